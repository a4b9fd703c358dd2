"""Rows become reports: stored instants become datetimes. And the database's time, the only one that decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from stepfast.clock import moment
from stepfast.database.statement import sql

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from stepfast.database.connection import Transaction


D = TypeVar("D", bound="DataclassInstance")
Reader = Callable[[Any], Any]

NOW = sql("SELECT {now}")


def now(tx: Transaction) -> int:
    """The database's time, in microseconds."""
    return int(tx.first(NOW))


def reader(into: type[D], **readers: Reader) -> Callable[..., D]:
    """A function that makes `into` of columns in the order of its fields; `readers` convert the columns they name.

    A value that cannot be converted was written by hand, and is shown as it is.
    """
    names = [field.name for field in fields(into) if field.init]
    how = [readers.get(name) or (moment if name.endswith(("_at", "_until")) else None) for name in names]

    def read(*row: Any) -> D:
        values = [
            value if value is None or read_one is None else _converted(value, read_one)
            for value, read_one in zip(row, how, strict=True)
        ]
        return into(*values)

    return read


def _converted(value: Any, read_one: Reader) -> Any:
    try:
        return read_one(value)
    except (TypeError, ValueError, OverflowError):
        return value
