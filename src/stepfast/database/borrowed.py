"""A connection of the caller's own, on which an enqueue joins the caller's transaction.

It is looked at before first use, and refused in words if it could not keep the promise (see `lendable`). What is
written on it is all there or not at all: if our work raises, the caller's transaction is as it was before.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from stepfast.database.borrowed_django import inside_django
from stepfast.database.connection import Connection, Transaction
from stepfast.database.database import persist
from stepfast.database.dialects import Whose
from stepfast.database.failures import has_failed, may_only_read
from stepfast.database.lendable import CHECKS, require_same_database
from stepfast.database.wakeup import notify_for_lender
from stepfast.errors import ConfigurationError, DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepfast.database.database import Database

T = TypeVar("T")
Lent = Transaction | Any | None  # ours, or a connection of sqlite3, psycopg, PyMySQL or SQLAlchemy

LENDERS: Final = {"sqlite3": "sqlite", "psycopg": "postgresql", "pymysql": "mariadb"}
ASYNC_LENDERS: Final = {
    "psycopg": "postgresql",
    "asyncpg": "postgresql",
    "aiosqlite": "sqlite",
    "aiomysql": "mariadb",
    "asyncmy": "mariadb",
}
_depth: Final = ContextVar("depth", default=0)  # one savepoint may stand inside another


@contextmanager
def borrowed(connection: object, database: Database) -> Iterator[Transaction]:
    """A transaction on the caller's connection; whoever opened it commits it."""
    with on(lend(connection, database), database) as tx:
        yield tx


def lend(connection: object, database: Database) -> Connection:
    """The caller's connection as we use it, if it can keep the promise."""
    raw = _driver_connection(connection)
    driver = driver_of(raw)
    if is_async(connection, raw):
        raise ConfigurationError(
            f"tx={type(connection).__name__} is async: await job.enqueue_async(…, tx=…), or app.join(connection, work)"
        )
    require_kind(connection, LENDERS.get(driver), database)
    CHECKS[driver](raw)
    return Connection(raw, database.dialect, _plain_cursor(raw, driver))


@contextmanager
def on(connection: Connection, database: Database) -> Iterator[Transaction]:
    """Work in the lender's transaction; undone if it raises, told to the workers when the lender commits."""
    tx = Transaction(connection)
    mark = None
    outside = _depth.set(_depth.get() + 1)
    try:
        require_same_database(tx, connection.raw, database)
        mark = _mark(connection)
        yield tx
        if database.wakes:
            notify_for_lender(tx)
        if mark is not None:
            _keep(connection, mark)
    except BaseException as error:
        if mark is not None:
            _undo(connection, mark)
        if isinstance(error, DatabaseError) and (refusal := _refusal(error)) is not None:
            raise refusal from error
        raise
    finally:
        _depth.reset(outside)


def driver_of(raw: object) -> str:
    """The package of its driver, also where the caller's own class stands on the driver's."""
    packages = (it.__module__.partition(".")[0] for it in type(raw).__mro__)
    return next((it for it in packages if it in CHECKS), "")


def is_async(connection: object, raw: object) -> bool:
    """Whether it is used with `await`: by SQLAlchemy's own sign, or by that of its driver."""
    if type(connection).__module__.startswith("sqlalchemy.ext.asyncio"):
        return True
    driver = driver_of(raw)
    return driver in ASYNC_LENDERS and (driver != "psycopg" or hasattr(raw, "__aenter__"))


def require_kind(connection: object, kind: str | None, database: Database) -> None:
    if kind is None:
        raise ConfigurationError(
            f"tx={type(connection).__name__}: lend a connection of sqlite3, psycopg or PyMySQL, or of SQLAlchemy on one of them; "
            "with `await`, one of asyncpg, psycopg, aiosqlite, aiomysql or asyncmy"
        )
    if kind != database.dialect.name:
        raise ConfigurationError(
            f"tx is a {kind} connection, but this app works on {database.dialect.name}: both must be the same database"
        )


def _driver_connection(connection: Any) -> Any:
    """Unwrap SQLAlchemy's session and connection, and Django's; anything else is taken as it is."""
    if (inside := inside_django(connection)) is not None:
        return inside
    module = type(connection).__module__
    if not module.startswith("sqlalchemy") or module.startswith("sqlalchemy.ext.asyncio"):
        return connection
    if not hasattr(connection, "connection"):
        return connection  # an Engine, which is no connection
    if hasattr(connection, "connection") and callable(connection.connection):  # a Session
        connection = connection.connection()
    if not connection.in_transaction():
        connection.begin()  # SQLAlchemy would not know that there is anything to commit
    return connection.connection.driver_connection


def _plain_cursor(raw: Any, driver: str) -> Any:
    """A cursor that answers with tuples, whatever rows the caller's own ones make."""
    if driver == "sqlite3":
        import sqlite3

        return sqlite3.Cursor(raw)
    if driver == "psycopg":
        import psycopg

        return psycopg.Cursor(raw, row_factory=psycopg.rows.tuple_row)
    import pymysql.cursors

    return raw.cursor(pymysql.cursors.Cursor)


def mark_name(depth: int | None = None) -> str:
    """What the savepoint is called; that of the next one, if no depth is given."""
    return f"stepfast_lent_{_depth.get() + 1 if depth is None else depth}"


class Mark(NamedTuple):
    """Where we began."""

    name: str
    opened: bool  # whether we opened the transaction too
    changes: int = 0  # of rows, so far


def _mark(connection: Connection) -> Mark | None:
    """Remember where we began, where a failed statement leaves the others standing.

    PostgreSQL needs none of it: there the caller's whole transaction fails with us. (And many savepoints in one
    transaction slow a whole server of PostgreSQL's down.)
    """
    if connection.dialect.name == "postgresql":
        return None
    opened = connection.dialect.name == "sqlite" and not connection.in_transaction()
    mark = Mark(mark_name(_depth.get()), opened, connection.raw.total_changes if opened else 0)
    if mark.opened:
        # As the driver would at the first INSERT; a savepoint outside would be a transaction, committed by its release.
        connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"SAVEPOINT {mark.name}")
    return mark


def _keep(connection: Connection, mark: Mark) -> None:
    connection.execute(f"RELEASE SAVEPOINT {mark.name}")
    if mark.opened and connection.raw.total_changes == mark.changes:
        connection.execute("ROLLBACK")  # we only looked: nobody need wait for the lender


def _undo(connection: Connection, mark: Mark) -> None:
    try:
        if mark.opened:
            connection.execute("ROLLBACK")
        elif connection.in_transaction():
            connection.execute(f"ROLLBACK TO SAVEPOINT {mark.name}")
    except DatabaseError:
        return  # there is no such savepoint any more: a deadlock took the whole transaction with it


def _refusal(error: DatabaseError) -> ConfigurationError | None:
    if may_only_read(error):
        return ConfigurationError(
            f"tx: on this connection nothing can be written ({error}); lend one that may write"
        )
    if has_failed(error):
        return ConfigurationError(
            "tx: this connection is in a transaction that has failed; roll it back first"
        )
    return None


def within(database: Database, tx: Lent, work: Callable[[Transaction], T]) -> T:
    """Do it in the caller's transaction, however it was lent; without one, in a transaction of its own."""
    if tx is None:
        return persist(database, work, Whose.OURS_BY_KEY)
    if isinstance(tx, Transaction):
        return work(tx)
    with borrowed(tx, database) as lent:
        return work(lent)


async def within_async(database: Database, tx: Any, work: Callable[[Any], T]) -> T:
    """Do it in the caller's transaction on an async connection; without one, beside the event loop."""
    from stepfast.database.bridged import (  # asyncio: not for programs without a loop
        beside_the_loop,
        lent_by_loop,
    )

    if tx is None:
        return await beside_the_loop(lambda: work(None))
    if isinstance(tx, Transaction):
        return work(tx)
    return await lent_by_loop(tx, database, work)
