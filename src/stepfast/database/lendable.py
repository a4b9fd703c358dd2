"""Whether a connection of the caller's can keep the promise: the job exists if, and only if, the caller's rows do.

One that cannot is refused in words, before anything is written on it: it commits by itself, is closed, is in the
middle of something, belongs to another thread or leads to another database.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.database.statement import Statement

# Which database this is, as the server itself says: addresses differ where one of two comes through a pooler.
# And which session, where a driver may connect again behind the same connection.
PLACE = sql(
    "SELECT DATABASE(), CONNECTION_ID()",
    sqlite="SELECT file, 0 FROM pragma_database_list WHERE name = 'main'",
    postgresql="SELECT current_database() || ', table ' || COALESCE(CAST(CAST(to_regclass('stepfast_job') AS OID) AS TEXT), 'missing'), 0",
)
# Another server may have a database of the same name.
INSTALLATION = sql("SELECT name FROM stepfast_installation WHERE id = 1", sqlite="SELECT 'file'")
# On MariaDB a plain look would fix the moment that a lender at REPEATABLE READ sees from then on; this does not.
THEIR_INSTALLATION = sql(
    "SELECT name FROM stepfast_installation WHERE id = 1 LOCK IN SHARE MODE",
    sqlite="SELECT 'file'",
    postgresql="SELECT name FROM stepfast_installation WHERE id = 1",
)

IDLE, ACTIVE, FAILED, UNKNOWN = 0, 1, 3, 4  # libpq's transaction states
UTF8: Final = {"utf8mb4", ""}  # "": the driver's default, which it is


class Place(NamedTuple):
    """Where a connection leads to."""

    name: str
    installation: str


MISSING: Final = ""  # the installation of tables that are not there, or older than it

_own: Final[weakref.WeakKeyDictionary[Database, Place]] = weakref.WeakKeyDictionary()
# Of lent connections: where they led to the last time, in which session.
_lent: Final[weakref.WeakKeyDictionary[Any, tuple[Place, int]]] = weakref.WeakKeyDictionary()


def require_same_database(tx: Transaction, raw: Any, database: Database) -> None:
    """Ask where it leads to, each time it is lent: its owner may have turned it elsewhere since."""
    name, session = tx.rows(PLACE)[0]
    mine = _own.get(database)
    if mine is not None and _leads_to(mine, tx, raw, name, session):
        return
    mine = _ask(database)  # the first time; or it may have been made anew
    if not _leads_to(mine, tx, raw, name, session):
        theirs = "another one of this name" if name == mine.name else name or "one without a name"
        raise ConfigurationError(
            f"tx leads to another database ({theirs}) than this app ({mine.name}): "
            "jobs and rows can only commit together in one"
        )


def _leads_to(place: Place, tx: Transaction, raw: Any, name: str, session: int) -> bool:
    """Which installation it is, is asked once: a session stays on its server."""
    if name != place.name:
        return False
    if place.installation == MISSING or _remembered(raw) == (place, session):
        return True
    theirs = Place(name, _installation(tx, THEIR_INSTALLATION))
    _remember(raw, theirs, session)
    return theirs == place


def _ask(database: Database) -> Place:
    with database.looking() as own:
        _own[database] = place = Place(str(own.first(PLACE)), _installation(own, INSTALLATION))
    return place


def _installation(tx: Transaction, statement: Statement) -> str:
    try:
        return str(tx.first(statement))
    except DatabaseError as error:
        if any(words in str(error) for words in ("does not exist", "doesn't exist")):
            return MISSING
        raise


def _remembered(raw: Any) -> tuple[Place, int] | None:
    try:
        return _lent.get(raw)
    except TypeError:  # sqlite3's cannot be remembered
        return None


def _remember(raw: Any, place: Place, session: int) -> None:
    with suppress(TypeError):
        _lent[raw] = (place, session)


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
