"""A connection of the caller's own, on which an enqueue joins the caller's transaction.

It is looked at before first use, and refused in words if it could not keep the promise: a connection
that commits every statement by itself would store the job whatever becomes of the caller's rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.database.connection import Connection, Transaction
from holdfast.database.wakeup import notify
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.database.database import Database

_DRIVERS: Final = {"sqlite3": "sqlite", "psycopg": "postgresql", "pymysql": "mariadb"}


def lend(connection: object, database: Database) -> Transaction:
    """A transaction on the caller's connection; whoever opened it commits it."""
    raw = _driver_connection(connection)
    kind = _DRIVERS.get(type(raw).__module__.partition(".")[0])
    if kind is None:
        raise ConfigurationError(
            f"tx={type(connection).__name__}: lend a connection of sqlite3, psycopg or PyMySQL, or of SQLAlchemy on one of them"
        )
    if kind != database.dialect.name:
        raise ConfigurationError(
            f"tx is a {kind} connection, but this app works on {database.dialect.name}: both must be the same database"
        )
    _CHECKS[kind](raw)
    return Transaction(Connection(raw, database.dialect, _plain_cursor(raw, kind)))


def finish(tx: Transaction, database: Database) -> None:
    """Tell the workers, as part of the caller's transaction where the database can, else leave it to their polling."""
    if database.wakes:
        notify(tx, database.url)


def _driver_connection(connection: Any) -> Any:
    """Unwrap SQLAlchemy's session and connection; anything else is taken as it is."""
    if type(connection).__module__.startswith("sqlalchemy"):
        if hasattr(connection, "connection") and callable(connection.connection):  # a Session
            connection = connection.connection()
        return connection.connection.driver_connection
    return connection


def _plain_cursor(raw: Any, kind: str) -> Any:
    """A cursor that answers with tuples, whatever rows the caller's own ones make."""
    if kind == "sqlite":
        import sqlite3

        return sqlite3.Cursor(raw)
    if kind == "postgresql":
        import psycopg

        return psycopg.Cursor(raw, row_factory=psycopg.rows.tuple_row)
    import pymysql.cursors

    return raw.cursor(pymysql.cursors.Cursor)


def _check_sqlite(raw: Any) -> None:
    if raw.text_factory is not str:
        raise ConfigurationError(
            "tx: this sqlite3 connection has a text_factory of its own; lend one that answers with str"
        )
    if raw.in_transaction:
        return
    if (
        raw.isolation_level is None or getattr(raw, "autocommit", False) is True
    ):  # the latter since Python 3.12
        raise ConfigurationError(
            "tx: this sqlite3 connection is in autocommit mode and outside a transaction; say BEGIN IMMEDIATE first"
        )


def _check_postgresql(raw: Any) -> None:
    status = int(raw.info.transaction_status)
    if status == 3:  # noqa: PLR2004 - PQTRANS_INERROR
        raise ConfigurationError("tx: this psycopg connection's transaction has failed; roll it back first")
    if status == 0 and raw.autocommit:
        raise ConfigurationError(
            "tx: this psycopg connection is in autocommit mode and outside a transaction; use `with connection.transaction():`"
        )


def _check_mariadb(raw: Any) -> None:
    if not raw.server_status & 1 and raw.get_autocommit():
        raise ConfigurationError(
            "tx: this PyMySQL connection is in autocommit mode and outside a transaction; call connection.begin() first"
        )


_CHECKS: Final[dict[str, Callable[[Any], None]]] = {
    "sqlite": _check_sqlite,
    "postgresql": _check_postgresql,
    "mariadb": _check_mariadb,
}
