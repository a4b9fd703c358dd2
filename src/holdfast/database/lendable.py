"""Whether a connection of the caller's can keep the promise: the job exists if, and only if, the caller's rows do.

One that cannot is refused in words, before anything is written on it: it commits by itself, is closed, is in the
middle of something, belongs to another thread or leads to another database.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from holdfast.database.statement import sql
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.database.connection import Transaction
    from holdfast.database.database import Database

# Which database this is, as the server itself says: addresses differ where one of two comes through a pooler.
PLACE = sql(
    "SELECT DATABASE()",
    sqlite="SELECT file FROM pragma_database_list WHERE name = 'main'",
    postgresql="SELECT current_database() || ', table ' || COALESCE(CAST(CAST(to_regclass('holdfast_job') AS OID) AS TEXT), 'missing')",
)

IDLE, ACTIVE, FAILED, UNKNOWN = 0, 1, 3, 4  # libpq's transaction states
UTF8: Final = {"utf8mb4", ""}  # "": the driver's default, which it is

_places: Final[weakref.WeakKeyDictionary[Any, str]] = (
    weakref.WeakKeyDictionary()
)  # of databases and connections


def require_same_database(tx: Transaction, raw: Any, database: Database) -> None:
    """Ask both where they are; each is asked once (a file of SQLite's every time: that takes no time)."""
    mine = _places.get(database)
    if mine is None:
        with database.looking() as own:
            mine = _places[database] = str(own.first(PLACE))
    theirs = _remembered(raw)
    if theirs is None:
        theirs = str(tx.first(PLACE))
        _remember(raw, theirs)
    if theirs != mine:
        raise ConfigurationError(
            f"tx leads to another database ({theirs or 'in memory'}) than this app ({mine}): "
            "jobs and rows can only commit together in one"
        )


def _remembered(raw: Any) -> str | None:
    try:
        return _places.get(raw)
    except TypeError:  # sqlite3's cannot be remembered
        return None


def _remember(raw: Any, place: str) -> None:
    try:
        _places[raw] = place
    except TypeError:
        return


def _refuse(driver: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"tx: this {driver} connection {why}")


def check_sqlite(raw: Any) -> None:
    import sqlite3

    try:
        raw.cursor().close()  # asks whose thread this is, and whether it is open
    except sqlite3.ProgrammingError as error:
        if "thread" in str(error):
            raise _refuse(
                "sqlite3", "belongs to another thread; lend one that this thread has opened"
            ) from error
        raise _refuse("sqlite3", "is closed; lend an open one") from error
    check_sqlite_modes(raw, "sqlite3")


def check_aiosqlite(raw: Any) -> None:
    try:
        check_sqlite_modes(raw, "aiosqlite")
    except ValueError as error:
        raise _refuse("aiosqlite", "is closed; lend an open one") from error


def check_sqlite_modes(raw: Any, driver: str) -> None:
    if raw.text_factory is not str:
        raise _refuse(driver, "has a text_factory of its own; lend one that answers with str")
    by_itself = raw.isolation_level is None or getattr(raw, "autocommit", False) is True  # since Python 3.12
    if by_itself and not raw.in_transaction:
        raise _refuse(driver, "is in autocommit mode and outside a transaction; say BEGIN IMMEDIATE first")


def check_psycopg(raw: Any) -> None:
    if raw.closed:
        raise _refuse("psycopg", "is closed; lend an open one")
    if int(raw.pgconn.pipeline_status):
        raise _refuse("psycopg", "is in pipeline mode, where answers come late; leave the pipeline first")
    status = int(raw.info.transaction_status)
    if status == FAILED:
        raise _refuse("psycopg", "is in a transaction that has failed; roll it back first")
    if status in {ACTIVE, UNKNOWN}:
        raise _refuse("psycopg", "is busy with another command; let it end first")
    if raw.read_only:
        raise _refuse("psycopg", "may only read; set read_only to False")
    if status == IDLE and raw.autocommit:
        raise _refuse(
            "psycopg",
            "is in autocommit mode and outside a transaction; use `with connection.transaction():` (`async with` where it is async)",
        )


def check_asyncpg(raw: Any) -> None:
    if raw.is_closed():
        raise _refuse("asyncpg", "is closed; lend an open one")
    if not raw.is_in_transaction():
        raise _refuse(
            "asyncpg",
            "is in autocommit mode and outside a transaction; use `async with connection.transaction():`",
        )


def check_pymysql(raw: Any) -> None:
    check_mysql(raw, "PyMySQL", is_open=raw.open)


def check_aiomysql(raw: Any) -> None:
    check_mysql(raw, "aiomysql", is_open=not raw.closed)


def check_asyncmy(raw: Any) -> None:
    check_mysql(raw, "asyncmy", is_open=raw.connected)


def check_mysql(raw: Any, driver: str, *, is_open: bool) -> None:
    if not is_open:
        raise _refuse(driver, "is closed; lend an open one")
    if (charset := str(getattr(raw, "charset", ""))) not in UTF8:
        raise _refuse(
            driver, f"speaks {charset}, which cannot say everything; connect with charset='utf8mb4'"
        )
    if not raw.server_status & 1 and raw.get_autocommit():
        raise _refuse(
            driver, "is in autocommit mode and outside a transaction; call connection.begin() first"
        )


CHECKS: Final[dict[str, Callable[[Any], None]]] = {
    "sqlite3": check_sqlite,
    "aiosqlite": check_aiosqlite,
    "psycopg": check_psycopg,
    "asyncpg": check_asyncpg,
    "pymysql": check_pymysql,
    "aiomysql": check_aiomysql,
    "asyncmy": check_asyncmy,
}
