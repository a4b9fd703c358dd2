"""The shop's own tables, with SQLAlchemy, in the same database as the jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends
from sqlalchemy import String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

URL = os.environ.get(
    "STEPFAST_DATABASE_URL", "sqlite:///shop.db"
)  # the web application and the worker use the same database
engine = create_engine(URL.replace("postgresql://", "postgresql+psycopg://", 1))


class Base(DeclarativeBase):
    """All tables of the shop."""


class Order(Base):
    __tablename__ = "shop_order"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    item: Mapped[str] = mapped_column(String(100))


class Parcel(Base):
    """The parcel of an order, written by the commit of its job."""

    __tablename__ = "shop_parcel"

    order_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    label: Mapped[str] = mapped_column(String(100))


def create_tables() -> None:
    Base.metadata.create_all(engine)


def session() -> Iterator[Session]:
    """One transaction for each request: committed when it succeeds, rolled back when it fails."""
    with Session(engine) as opened, opened.begin():
        yield opened


# Closed before the answer is sent: a client that reads "201 Created" finds the order.
InTransaction = Annotated[Session, Depends(session, scope="function")]
