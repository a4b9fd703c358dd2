"""The caller's connection: accepted or refused, and worked on, so that an enqueue joins the caller's transaction.

The promise: the job exists if, and only if, the caller's rows do. A connection that cannot keep it is refused in words
before anything is written on it: it commits by itself, is closed, is in the middle of something, belongs to another
thread or leads to another database. What is written on it is all there or not at all: if our work raises, the caller's
transaction is as it was before.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from stepfast.database.connection import Connection, Transaction
from stepfast.database.database import persist
from stepfast.database.dialects import Plans
from stepfast.database.failures import has_failed, may_only_read
from stepfast.database.statement import sql
from stepfast.database.wakeup import notify_for_lender
from stepfast.errors import ConfigurationError, DatabaseError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepfast.database.database import Database
    from stepfast.database.statement import Statement


T = TypeVar("T")
Lent = Transaction | Any | None  # ours, or a connection of sqlite3, psycopg, PyMySQL or SQLAlchemy


def within(database: Database, tx: Lent, work: Callable[[Transaction], T]) -> T:
    """Do `work` in the caller's transaction, however it was lent; without one, in a transaction of its own."""
    if tx is None:
        return persist(database, work, Plans.BY_KEY)
    if isinstance(tx, Transaction):
        return work(tx)
    with lent_transaction(tx, database) as lent:
        return work(lent)


@contextmanager
def lent_transaction(connection: object, database: Database) -> Iterator[Transaction]:
    """A transaction on the caller's connection, which the caller commits."""
    with work_on(accept(connection, database), database) as tx:
        yield tx


LENDERS: Final = {"sqlite3": "sqlite", "psycopg": "postgresql", "pymysql": "mariadb"}
ASYNC_LENDERS: Final = {
    "psycopg": "postgresql",
    "asyncpg": "postgresql",
    "aiosqlite": "sqlite",
    "aiomysql": "mariadb",
    "asyncmy": "mariadb",
}
_depth: Final = ContextVar("depth", default=0)  # one savepoint may stand inside another


def accept(connection: object, database: Database) -> Connection:
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


def driver_of(raw: object) -> str:
    """The package of a connection's driver, also if its class is a subclass of the driver's."""
    packages = (base.__module__.partition(".")[0] for base in type(raw).__mro__)
    return next((package for package in packages if package in CHECKS), "")


def is_async(connection: object, raw: object) -> bool:
    """Whether a connection is used with `await`, as SQLAlchemy's class or the driver's shows."""
    if type(connection).__module__.startswith("sqlalchemy.ext.asyncio"):
        return True
    driver = driver_of(raw)
    return driver in ASYNC_LENDERS and (driver != "psycopg" or hasattr(raw, "__aenter__"))


def require_kind(connection: object, kind: str | None, database: Database) -> None:
    """Refuse a connection of a driver that we do not know, or to another product than the app's."""
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
    if (inside := driver_connection_of_django(connection)) is not None:
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


def driver_connection_of_django(connection: Any) -> Any | None:
    """The driver's connection, if this is one of Django's (`django.db.connection`), and in a transaction; else None."""
    if not _is_django(type(connection)):
        return None
    connection.ensure_connection()
    if not connection.in_atomic_block and connection.get_autocommit():
        raise ConfigurationError(
            f"tx: Django's connection {connection.alias!r} is outside a transaction; enqueue inside `with "
            "transaction.atomic():`, or set ATOMIC_REQUESTS so that each view is"
        )
    if connection.needs_rollback:
        raise ConfigurationError(
            f"tx: the transaction on Django's connection {connection.alias!r} has failed; leave its atomic block first"
        )
    return connection.connection


def _is_django(kind: type) -> bool:
    """By the modules of its classes: other packages subclass Django's wrapper, and we do not import Django."""
    return any(
        base.__module__.startswith("django.db.backends.") or base.__module__ == "django.utils.connection"
        for base in kind.__mro__
    )


def _plain_cursor(raw: Any, driver: str) -> Any:
    """A cursor that answers with tuples, whatever the caller's cursors answer with."""
    if driver == "sqlite3":
        import sqlite3

        return sqlite3.Cursor(raw)
    if driver == "psycopg":
        import psycopg

        return psycopg.Cursor(raw, row_factory=psycopg.rows.tuple_row)
    import pymysql.cursors

    return raw.cursor(pymysql.cursors.Cursor)


@contextmanager
def work_on(connection: Connection, database: Database) -> Iterator[Transaction]:
    """Work in the lender's transaction: undone if it raises; workers are notified when the lender commits."""
    tx = Transaction(connection)
    savepoint = None
    outside = _depth.set(_depth.get() + 1)
    try:
        require_same_database(tx, connection.raw, database)
        savepoint = _set_savepoint(connection)
        yield tx
        if database.wakes:
            notify_for_lender(tx)
        if savepoint is not None:
            _release_savepoint(connection, savepoint)
        tx.committed()  # the lender commits, and we do not see it
    except BaseException as error:
        if savepoint is not None:
            _roll_back(connection, savepoint)
        if isinstance(error, DatabaseError):
            if error.origin is None:
                error.origin = database.origin
            if (refusal := _refusal(error, database)) is not None:
                raise refusal from error
        raise
    finally:
        _depth.reset(outside)


class LentSavepoint(NamedTuple):
    """Where our work in the lender's transaction began."""

    name: str
    opened: bool  # whether we opened the transaction too
    changes: int = 0  # of rows, so far


def savepoint_name(depth: int | None = None) -> str:
    """The name of the savepoint at this depth; without one, of the next savepoint."""
    return f"stepfast_lent_{_depth.get() + 1 if depth is None else depth}"


def _set_savepoint(connection: Connection) -> LentSavepoint | None:
    """Set a savepoint where a failed statement leaves the earlier ones standing.

    PostgreSQL needs none: there the caller's whole transaction fails with us. (And many savepoints in one
    transaction slow a whole server of PostgreSQL's down.)
    """
    if connection.dialect.name == "postgresql":
        return None
    opened = connection.dialect.name == "sqlite" and not connection.in_transaction()
    savepoint = LentSavepoint(
        savepoint_name(_depth.get()), opened, connection.raw.total_changes if opened else 0
    )
    if savepoint.opened:
        # As the driver would at the first INSERT; a savepoint outside would be a transaction, committed by its release.
        connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"SAVEPOINT {savepoint.name}")
    return savepoint


def _release_savepoint(connection: Connection, savepoint: LentSavepoint) -> None:
    connection.execute(f"RELEASE SAVEPOINT {savepoint.name}")
    if savepoint.opened and connection.raw.total_changes == savepoint.changes:
        connection.execute("ROLLBACK")  # we only looked: no other writer need wait for the lender


def _roll_back(connection: Connection, savepoint: LentSavepoint) -> None:
    try:
        if savepoint.opened:
            connection.execute("ROLLBACK")
        elif connection.in_transaction():
            connection.execute(f"ROLLBACK TO SAVEPOINT {savepoint.name}")
    except DatabaseError:
        return  # there is no such savepoint any more: a deadlock took the whole transaction with it


def _refusal(error: DatabaseError, database: Database) -> ConfigurationError | None:
    """What is wrong with the lent connection, if the error shows it."""
    if may_only_read(error) and not (isinstance(error, UnreachableError) and _is_read_only(database)):
        return ConfigurationError(
            f"tx: on this connection nothing can be written ({error}); lend one that may write"
        )
    if has_failed(error):
        return ConfigurationError(
            "tx: this connection is in a transaction that has failed; roll it back first"
        )
    return None


# A lent session may be read-only because its owner wanted that; one of our own is so only where the server is.
IS_READ_ONLY = sql(
    "SELECT @@global.read_only",
    sqlite="SELECT 0",
    postgresql="SELECT current_setting('transaction_read_only') = 'on'",
)


def _is_read_only(database: Database) -> bool:
    """Whether the server takes no writes, or does not answer any more."""
    try:
        with database.looking() as tx:
            return bool(tx.first(IS_READ_ONLY))
    except DatabaseError:
        return True


# Which database this is, as the server itself says: addresses differ where one of two comes through a pooler.
# And which session, where a driver may connect again behind the same connection.
IDENTIFY_DATABASE = sql(
    "SELECT DATABASE(), CONNECTION_ID()",
    sqlite="SELECT file, 0 FROM pragma_database_list WHERE name = 'main'",
    postgresql="SELECT current_database() || ', table ' || COALESCE(CAST(CAST(to_regclass('stepfast_job') AS OID) AS TEXT), 'missing'), 0",
)
# Another server may have a database of the same name.
READ_INSTALLATION = sql("SELECT name FROM stepfast_installation WHERE id = 1", sqlite="SELECT 'file'")
# On MariaDB a plain look would fix the moment that a lender at REPEATABLE READ sees from then on; this does not.
READ_LENT_INSTALLATION = sql(
    "SELECT name FROM stepfast_installation WHERE id = 1 LOCK IN SHARE MODE",
    sqlite="SELECT 'file'",
    postgresql="SELECT name FROM stepfast_installation WHERE id = 1",
)


class DatabaseIdentity(NamedTuple):
    """Which database a connection leads to."""

    name: str
    installation: str


NO_INSTALLATION: Final = ""  # the installation of tables that are not there, or older than it
_identities: Final[weakref.WeakKeyDictionary[Database, DatabaseIdentity]] = weakref.WeakKeyDictionary()
# Of lent connections: the database they led to the last time, and in which session.
_lent_to: Final[weakref.WeakKeyDictionary[Any, tuple[DatabaseIdentity, int]]] = weakref.WeakKeyDictionary()


def require_same_database(tx: Transaction, raw: Any, database: Database) -> None:
    """Ask which database a connection leads to, each time it is lent: its owner may have changed that since."""
    name, session = tx.rows(IDENTIFY_DATABASE)[0]
    mine = _identities.get(database)
    if mine is not None and _is_same(mine, tx, raw, name, session):
        return
    mine = _identify(database)  # the first time; or it may have been made anew
    if not _is_same(mine, tx, raw, name, session):
        theirs = "another one of this name" if name == mine.name else name or "one without a name"
        raise ConfigurationError(
            f"tx leads to another database ({theirs}) than this app ({mine.name}): "
            "jobs and rows can only commit together in one"
        )


def _is_same(ours: DatabaseIdentity, tx: Transaction, raw: Any, name: str, session: int) -> bool:
    """Whether a lent connection leads to our database. The installation is read once: a session stays on its server."""
    if name != ours.name:
        return False
    if ours.installation == NO_INSTALLATION or _remembered(raw) == (ours, session):
        return True
    theirs = DatabaseIdentity(name, _installation(tx, READ_LENT_INSTALLATION))
    _remember(raw, theirs, session)
    return theirs == ours


def _identify(database: Database) -> DatabaseIdentity:
    with database.looking() as own:
        name = str(own.first(IDENTIFY_DATABASE))
        _identities[database] = DatabaseIdentity(name, _installation(own, READ_INSTALLATION))
    return _identities[database]


def _installation(tx: Transaction, statement: Statement) -> str:
    try:
        return str(tx.first(statement))
    except DatabaseError as error:
        if any(words in str(error) for words in ("does not exist", "doesn't exist")):
            return NO_INSTALLATION
        raise


def _remembered(raw: Any) -> tuple[DatabaseIdentity, int] | None:
    try:
        return _lent_to.get(raw)
    except TypeError:  # sqlite3's cannot be remembered
        return None


def _remember(raw: Any, identity: DatabaseIdentity, session: int) -> None:
    with suppress(TypeError):
        _lent_to[raw] = (identity, session)


IDLE, ACTIVE, FAILED, UNKNOWN = 0, 1, 3, 4  # libpq's transaction states
UTF8: Final = {"utf8mb4", ""}  # "": the driver's default, which it is


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


def _refuse(driver: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"tx: this {driver} connection {why}")


CHECKS: Final[dict[str, Callable[[Any], None]]] = {
    "sqlite3": check_sqlite,
    "aiosqlite": check_aiosqlite,
    "psycopg": check_psycopg,
    "asyncpg": check_asyncpg,
    "pymysql": check_pymysql,
    "aiomysql": check_aiomysql,
    "asyncmy": check_asyncmy,
}
