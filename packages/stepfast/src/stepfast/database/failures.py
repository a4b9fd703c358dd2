"""What a driver's exception means for the transaction it hit. One place knows the three vocabularies."""

from __future__ import annotations

from typing import Any, Final

from stepfast.errors import (
    ConstraintError,
    ContentionError,
    DatabaseError,
    PoisonedTransactionError,
    UnknownCommitError,
    UnreachableError,
)

_DRIVERS = {"psycopg", "pymysql", "sqlite3", "asyncpg", "aiomysql", "asyncmy"}
_LOST_SQLSTATES = ("08", "57P")  # connection exceptions; the server is going away or starting up
_CONTENTION_SQLSTATES = ("40001", "40P01", "55P03")
_CONSTRAINT_SQLSTATE = "23"
_LOST_MYSQL = {
    0,
    1040,
    1047,  # Galera: the node is outside its cluster
    1053,
    1077,
    1079,
    1080,
    1152,
    1158,
    1159,
    1160,
    1161,
    1180,  # Galera: the node lost its cluster while it committed
    1184,
    1927,
    2002,
    2003,
    2006,
    2013,
    2014,
    2055,
    4031,
}
# What a server says that takes no writes (any more), though it answers. A new connection may lead to one that does.
_READ_ONLY_SQLSTATE: Final = "25006"
_READ_ONLY_OPTION: Final = 1290  # also said of other options
_READ_ONLY_MODE: Final = 1836
_OUTSIDE_CLUSTER: Final = 1047
_READ_ONLY_TRANSACTION: Final = 1792  # only this transaction, which its opener made so
_CONTENTION_MYSQL = {1205, 1213, 3572}
# What no row can be blamed for: missing tables and rights, resources, timeouts, settings.
_SYSTEM_SQLSTATES = ("0A", "25", "26", "28", "3D", "3F", "42", "53", "54", "55", "57", "58", "F0", "XX")
_SYSTEM_MYSQL = {
    1021,
    1037,
    1041,
    1044,
    1045,
    1046,
    1054,
    1064,
    1114,
    1142,
    1143,
    1146,
    1153,
    1290,
    1317,
    1370,
    1792,
    1836,
    1969,
    3024,
}
_SYSTEM_SQLITE = (
    "no such",
    "readonly",
    "read-only",
    "malformed",
    "is full",
    "not authorized",
    "syntax error",
    "interrupted",
)
_CONSTRAINT_MYSQL = {1048, 1062, 1169, 1216, 1217, 1364, 1451, 1452, 1557, 1761, 1762, 4025}


def translate(error: Exception, connection: Any = None) -> DatabaseError:
    """A driver's exception, raised on this connection of the driver's, as one of ours; it stays reachable as the cause."""
    module = type(error).__module__.partition(".")[0]
    if module in {"psycopg", "asyncpg"}:
        return _from_postgresql(error, connection)
    if module in {"pymysql", "aiomysql", "asyncmy"}:
        return _from_mysql(error)
    return _from_sqlite(error)


def is_driver_error(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in _DRIVERS


def blames_a_row(error: DatabaseError) -> bool:
    """Whether a row is at fault, so that others might be stored: not if the table is missing, the disk full, or a lock was in the way."""
    if isinstance(error, ConstraintError):
        return True
    if isinstance(error, ContentionError | UnreachableError | UnknownCommitError | PoisonedTransactionError):
        return False
    cause = error.__cause__
    state: str | None = getattr(cause, "sqlstate", None)
    if state is not None:
        return not state.startswith(_SYSTEM_SQLSTATES)
    text = str(error)
    return _mysql_code(cause) not in _SYSTEM_MYSQL and not any(words in text for words in _SYSTEM_SQLITE)


def blames_data(error: DatabaseError) -> bool:
    """Whether the values of a statement are certainly at fault: it would be refused again."""
    if isinstance(error, ConstraintError | PoisonedTransactionError):
        return True
    return any(it.__name__ in {"DataError", "IntegrityError"} for it in type(error.__cause__).__mro__)


def may_only_read(error: DatabaseError) -> bool:
    """Whether the transaction, the session or the server takes no writes."""
    cause = error.__cause__
    if (
        getattr(cause, "sqlstate", None) == _READ_ONLY_SQLSTATE
        or _mysql_code(cause) in {_READ_ONLY_TRANSACTION, _READ_ONLY_MODE}
        or _has_read_only_option(cause)
    ):
        return True
    return type(cause).__module__ == "sqlite3" and "readonly" in str(cause)


def is_read_only_server(error: BaseException) -> bool:
    """Whether the server answers, but takes no writes: a standby, one that was set read-only, a node outside its cluster."""
    if not isinstance(error, UnreachableError | UnknownCommitError):
        return False
    cause: BaseException | None = error.__cause__
    while cause is not None:
        code = _mysql_code(cause)
        if getattr(cause, "sqlstate", None) == _READ_ONLY_SQLSTATE or code in {
            _READ_ONLY_MODE,
            _OUTSIDE_CLUSTER,
        }:
            return True
        if _has_read_only_option(cause):
            return True
        cause = cause.__cause__
    return False


def is_outage_of(error: BaseException, origin: int) -> bool:
    """Whether this is an outage or a conflict of the database with this `origin`, and not of another one."""
    if isinstance(error, BaseExceptionGroup):  # of a handler with an asyncio.TaskGroup
        return all(is_outage_of(part, origin) for part in error.exceptions)
    outage = isinstance(error, UnreachableError | UnknownCommitError | ContentionError)
    return outage and getattr(error, "origin", None) == origin


def has_failed(error: DatabaseError) -> bool:
    """Whether an earlier statement of PostgreSQL's transaction failed: it can only roll back."""
    return getattr(error.__cause__, "sqlstate", None) == "25P02"


def _mysql_code(error: BaseException | None) -> int:
    return error.args[0] if error is not None and error.args and isinstance(error.args[0], int) else -1


def _has_read_only_option(error: BaseException | None) -> bool:
    return _mysql_code(error) == _READ_ONLY_OPTION and "read" in str(error)


def _takes_writes(connection: Any) -> bool:
    """Whether PostgreSQL has said of this session that it may write; the server reports that since version 14.

    A statement that is refused all the same was sent in a transaction that its opener made read-only.
    """
    try:
        if hasattr(connection, "get_settings"):  # asyncpg
            said = connection.get_settings()
            return {said.in_hot_standby, said.default_transaction_read_only} == {"off"}
        ask = connection.info.parameter_status
        return {ask("in_hot_standby"), ask("default_transaction_read_only")} == {"off"}
    except Exception:  # noqa: BLE001 - not reported, or the connection is closed
        return False


def _from_postgresql(error: Exception, connection: Any) -> DatabaseError:
    state: str | None = getattr(error, "sqlstate", None)
    text = str(error).strip() or type(error).__name__
    if state is None:
        # No SQLSTATE means that the client noticed: the socket broke, or never opened.
        lost = type(error).__name__ in {"OperationalError", "InterfaceError", "ConnectionTimeout"}
        return UnreachableError(text) if lost else DatabaseError(text)
    if state in _CONTENTION_SQLSTATES:
        return ContentionError(text)
    if state.startswith(_LOST_SQLSTATES) or state == "25P03":  # 25P03: idle in transaction too long
        return UnreachableError(text)
    if state == _READ_ONLY_SQLSTATE and not _takes_writes(connection):
        return UnreachableError(
            f"this server takes no writes, it is a standby or was set read-only ({text}); the URL must lead to the primary"
        )
    if state.startswith(_CONSTRAINT_SQLSTATE):
        return ConstraintError(text)
    return DatabaseError(text)


def _from_mysql(error: Exception) -> DatabaseError:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else -1
    text = str(error.args[1]) if len(error.args) > 1 else str(error) or type(error).__name__
    name = type(error).__name__
    if code in _CONTENTION_MYSQL:
        return ContentionError(text)
    if code == _OUTSIDE_CLUSTER and "WSREP" in text:
        return UnreachableError(f"this Galera node is outside its cluster and takes no statements ({text})")
    if code == _READ_ONLY_MODE or _has_read_only_option(error):
        return UnreachableError(f"this server takes no writes ({text}); the URL must lead to the primary")
    if code in _LOST_MYSQL or name == "InterfaceError":
        return UnreachableError(text)
    if code in _CONSTRAINT_MYSQL or name == "IntegrityError":
        return ConstraintError(text)
    return DatabaseError(text)


def _from_sqlite(error: Exception) -> DatabaseError:
    text = str(error)
    name = type(error).__name__
    if name == "IntegrityError":
        return ConstraintError(text)
    if "locked" in text or "busy" in text:
        return ContentionError(text)
    if name == "OperationalError" and ("unable to open" in text or "disk I/O" in text or "is full" in text):
        return UnreachableError(text)
    return DatabaseError(text)
