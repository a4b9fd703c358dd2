"""Open a database by its URL: the driver, its session settings, and what a pooler before PostgreSQL takes away."""

from __future__ import annotations

import re
import socket
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from stepfast.config import listen_url, max_connections
from stepfast.database.connection import Connection
from stepfast.database.database import Database
from stepfast.database.dialects import MARIADB, POSTGRESQL, SQLITE
from stepfast.errors import ConfigurationError, UnreachableError, install_hint

if TYPE_CHECKING:
    from collections.abc import Callable
    from urllib.parse import SplitResult


CONNECT_SECONDS = 10
SILENCE_MILLISECONDS = 10_000  # a peer that acknowledges nothing for so long is gone
_PASSWORD = re.compile(r"^((?:[^/@]*//)?+[^:@/]*):.*@")
_QUERY_SECRET = re.compile(r"([?&](?:ssl)?pass\w*=)([^&]*)", re.IGNORECASE)


def open_database(url: str) -> Database:
    """Read `url` and prepare a database; the first connection is made when it is needed."""
    parts = _split(url)
    match parts.scheme:
        case "sqlite":
            path = sqlite_path(url)
            return Database(url, SQLITE, lambda: _connect_sqlite(path))
        case "postgresql" | "postgres":
            connect, elsewhere = _to_postgresql(url, parts), listen_url()
            listen = None if elsewhere is None else _to_postgresql(elsewhere, _listening(elsewhere))
            return Database(url, POSTGRESQL, connect, wakes=True, listen=listen, most=max_connections())
        case "mysql" | "mariadb":
            return Database(url, MARIADB, lambda: _connect_mariadb(parts), most=max_connections())
        case "":
            raise ConfigurationError(
                f"{masked(url)!r} is not a database URL; write sqlite:///work.db, postgresql://user@host/name or mysql://user@host/name"
            )
        case other:
            raise ConfigurationError(
                f"no driver for {other!r} URLs; use sqlite:///, postgresql:// or mysql:// (without '+driver' suffixes)"
            )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        good = parts.netloc.count("@") <= 1 and parts.port != 0  # reading the port raises if it is none
    except ValueError:
        good = False
    if not good:
        raise ConfigurationError(
            f"{masked(url)!r} is not a database URL: check host and port, and write special characters of the password as %40 (@), %2F (/), %3A (:)"
        )
    return parts


def masked(url: str) -> str:
    """The URL as it may be shown: without its password."""
    if url.startswith("sqlite:"):
        return url
    # By shape and not by parsing: a URL that is written wrongly is the one that gets printed.
    return _QUERY_SECRET.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))


def sqlite_path(url: str) -> str:
    """The file that a sqlite:/// URL names."""
    path = unquote(url.removeprefix("sqlite://").split("?")[0])
    if path in {"", "/"} or path.startswith("/:memory:"):
        raise ConfigurationError("sqlite: work that must not be lost needs a file; write sqlite:///work.db")
    if not path.startswith("/"):
        raise ConfigurationError(
            f"{url!r}: write three slashes for a relative path (sqlite:///work.db), four for an absolute one"
        )
    return path[1:]


def _connect_sqlite(path: str) -> Connection:
    import sqlite3

    try:
        # check_same_thread: a pooled connection moves between threads, one at a time.
        raw = sqlite3.connect(
            path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        raw.execute("PRAGMA busy_timeout = 0")  # its handler starves heartbeats; we retry BEGIN ourselves
        mode = _patiently(raw, "PRAGMA journal_mode = WAL")
        raw.execute("PRAGMA synchronous = FULL")  # a commit that returned is on disk
        raw.execute("PRAGMA foreign_keys = ON")
        raw.execute("PRAGMA wal_autocheckpoint = 16000")  # 64 MB: what changes often is copied back once
        raw.execute("PRAGMA temp_store = MEMORY")  # what a statement may have to undo: no file for it
        raw.execute("PRAGMA cache_size = -16000")  # 16 MB: the pages of a batch stay until its commit
    except sqlite3.OperationalError as error:
        folder = Path(path).parent
        hint = (
            f"the folder {str(folder)!r} does not exist" if not folder.exists() else _why_not(error, folder)
        )
        raise UnreachableError(f"cannot open the SQLite file {path!r}: {hint}") from error
    if mode != "wal":
        raise ConfigurationError(
            f"the SQLite file {path!r} cannot use WAL (journal mode {mode!r}): is it on a network file system? Use a local disk"
        )
    return Connection(raw, SQLITE)


def _patiently(raw: Any, pragma: str) -> str:
    """Run a pragma until the file is free: switching a fresh one to WAL needs it alone, and two processes may try at once."""
    import sqlite3
    import time

    for _ in range(2_000):
        try:
            return str(raw.execute(pragma).fetchone()[0])
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) and "busy" not in str(error):
                raise
            time.sleep(0.002)
    return str(raw.execute(pragma).fetchone()[0])


def _why_not(error: Exception, folder: Path) -> str:
    """The hint that SQLite does not give: in a container the working folder is often not ours."""
    if "unable to open" not in str(error) and "readonly" not in str(error):
        return str(error)
    return f"{error}. May we write to {str(folder.resolve())!r}? STEPFAST_DATABASE_URL names another place, such as sqlite:////tmp/work.db"


def _to_postgresql(url: str, parts: SplitResult) -> Callable[[], Connection]:
    conninfo, said = without_own_options(url), declared_pooler(parts)
    return lambda: _connect_postgresql(conninfo, said)


def _listening(url: str) -> SplitResult:
    parts = _split(url)
    if parts.scheme not in {"postgresql", "postgres"} or declared_pooler(parts) is Pooler.TRANSACTION:
        raise ConfigurationError(
            f"STEPFAST_LISTEN_URL={masked(url)!r}: write a postgresql:// URL that leads to the server itself"
        )
    return parts


def _connect_postgresql(conninfo: str, said: Pooler | None) -> Connection:
    try:
        import psycopg
        from psycopg.types.string import TextLoader
    except ImportError as missing:
        raise ConfigurationError(f"PostgreSQL needs an extra: {install_hint('postgresql')}") from missing
    place = _place(conninfo)
    try:
        raw = psycopg.connect(
            conninfo,
            autocommit=True,
            connect_timeout=CONNECT_SECONDS,
            tcp_user_timeout=SILENCE_MILLISECONDS,
            keepalives_idle=_probe_seconds(),
            keepalives_interval=_probe_seconds(),
            application_name="stepfast",
            prepare_threshold=None,  # a transaction pooler would lose what is prepared
        )
        pooled = begin_session(raw, said, place)
    except psycopg.OperationalError as error:
        first = _first_line(error, conninfo)
        raise refused_option(first, place) or UnreachableError(
            f"cannot reach PostgreSQL at {place}: {first}"
        ) from error
    except psycopg.ProgrammingError as error:
        raise ConfigurationError(
            f"{masked(conninfo)!r} is not a PostgreSQL URL: {_first_line(error, conninfo)}"
        ) from error
    raw.adapters.register_loader("json", TextLoader)  # payloads are decoded once, by msgspec
    connection = Connection(raw, POSTGRESQL)
    connection.pooled = pooled
    return connection


# What may stand between us and PostgreSQL, and what it takes away.
#
# A pooler gives each of its clients a process id of its own making, so the server's answer differs from what the
# client got when it connected: no setting and no privilege is needed to find a pooler.
# In transaction mode each transaction may meet another session of the server. So nothing is prepared, set or
# listened for that would have to outlive its transaction; limits travel with each BEGIN, and locks end with it.

PREPARE_AFTER: Final = 5  # executions of a statement, where the session is ours
OWN_OPTIONS: Final = ("pooler=",)  # of the URL's query: not for libpq


class Pooler(StrEnum):
    """What stands between us and the server, as `?pooler=` says; without it each connection finds out."""

    NONE = "none"  # the server itself answers
    SESSION = "session"  # a session of the server is ours for as long as we are connected
    TRANSACTION = "transaction"  # ... for as long as a transaction lasts


def declared_pooler(parts: SplitResult) -> Pooler | None:
    """The pooler that the URL names; None if each connection must find out."""
    said = parse_qs(parts.query).get("pooler")
    if said is None:
        return None
    try:
        return Pooler(said[-1])
    except ValueError:
        raise ConfigurationError(
            f"pooler={said[-1]!r}: write 'transaction' or 'session', as the pooler's own settings say, 'none' "
            "where there is none, or leave it out; poolers that work by statement have no transactions"
        ) from None


def without_own_options(url: str) -> str:
    """The URL as libpq understands it."""
    base, _, query = url.partition("?")
    kept = "&".join(part for part in query.split("&") if part and not part.startswith(OWN_OPTIONS))
    return f"{base}?{kept}" if kept else base


def begin_session(raw: Any, said: Pooler | None, place: str) -> bool:
    """Set what the session may keep; returns whether it is ours for one transaction at a time only."""
    try:
        between = said in {Pooler.SESSION, Pooler.TRANSACTION} or (said is None and stands_between(raw))
        if between:
            refuse_statements(raw, place)
        if between and said is not Pooler.SESSION:
            return True
        raw.prepare_threshold = PREPARE_AFTER
        # A plan that was made for an empty queue is no plan for a full one.
        raw.execute("SET plan_cache_mode = force_custom_plan")
    except BaseException:
        raw.close()
        raise
    return False


def stands_between(raw: Any) -> bool:
    """Whether a pooler answers instead of the server itself."""
    return backend(raw) != int(raw.info.backend_pid)


def backend(raw: Any) -> int:
    """The process id of the server session that answers just now."""
    return int(raw.execute("SELECT pg_backend_pid()").fetchone()[0])


def refuse_statements(raw: Any, place: str) -> None:
    """Refuse a pooler that works by statement: it says so when a transaction stays open."""
    import psycopg

    try:
        raw.execute("BEGIN")
        raw.execute("ROLLBACK")
    except psycopg.Error as error:
        if "statement pooling" not in str(error):
            raise
        raise ConfigurationError(
            f"the pooler at {place} works by statement, so nobody can have a transaction there: let it work by "
            "transaction (PgBouncer: pool_mode = transaction), or go to the server itself"
        ) from error


def refused_option(message: str, place: str) -> ConfigurationError | None:
    """The error for a start-up parameter that the pooler does not take; None if it complained about something else."""
    _, found, name = message.partition("unsupported startup parameter: ")
    if not found:
        return None
    return ConfigurationError(
        f"the pooler at {place} does not take {name.split()[0]!r} from the URL: leave it out and set it for the role "
        "(ALTER ROLE … SET …), or go to the server itself"
    )


def _connect_mariadb(parts: SplitResult) -> Connection:
    try:
        import pymysql
        from pymysql.constants import CLIENT
    except ImportError as missing:
        raise ConfigurationError(f"MariaDB and MySQL need an extra: {install_hint('mysql')}") from missing
    name = parts.path.lstrip("/")
    if not name:
        raise ConfigurationError(
            f"{masked(parts.geturl())!r} names no database; write mysql://user@host/name"
        )
    options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    try:
        raw = pymysql.connect(
            host=parts.hostname or "localhost",
            port=parts.port or 3306,
            user=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else "",
            database=unquote(name),
            unix_socket=options.get("unix_socket"),
            autocommit=True,  # every transaction is opened by name
            charset="utf8mb4",
            connect_timeout=CONNECT_SECONDS,
            read_timeout=60,
            write_timeout=60,
            client_flag=CLIENT.FOUND_ROWS,  # rowcount must mean matched, not changed, as elsewhere
            init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",  # no gap locks
            **_tls(parts.hostname, options),
        )
        _limit_mariadb(raw)
    except pymysql.OperationalError as error:
        place = options.get("unix_socket") or f"{parts.hostname}:{parts.port or 3306}"
        raise UnreachableError(f"cannot reach MariaDB/MySQL at {place}: {error.args[-1]}") from error
    return Connection(raw, MARIADB)


def _tls(host: str | None, options: dict[str, str]) -> dict[str, Any]:
    """TLS as the URL asks for; where the server offers it otherwise, except on this very machine.

    (The driver builds a new context for each connection, which takes 20 ms.)
    """
    paths: dict[str, Any] = {
        name: options[name] for name in ("ssl_ca", "ssl_cert", "ssl_key") if name in options
    }
    checks: dict[str, Any] = {
        name: options[name] in {"1", "true", "yes"}
        for name in ("ssl_verify_cert", "ssl_verify_identity", "ssl_disabled")
        if name in options
    }
    if not paths and not checks and host in {None, "localhost", "127.0.0.1", "::1"}:
        return {"ssl_disabled": True}
    return {**paths, **checks}


def _limit_mariadb(raw: Any) -> None:
    """Limit how long a session may wait or idle, so that a vanished host holds no rows for hours; set strict mode, so that nothing is cut silently."""
    import pymysql

    with raw.cursor() as cursor:
        cursor.execute(
            "SET SESSION innodb_lock_wait_timeout = 2, "
            "sql_mode = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'"
        )
        try:
            # A transaction that has only locked rows so far has written nothing, in MariaDB's eyes: it has the second limit.
            cursor.execute("SET SESSION idle_write_transaction_timeout = 10, idle_transaction_timeout = 30")
        except pymysql.OperationalError as error:
            if error.args[0] != 1193:  # noqa: PLR2004 - unknown system variable: MySQL has none of that name
                raise
    sock = getattr(raw, "_sock", None)
    if sock is not None and sock.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MILLISECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _probe_seconds())
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _probe_seconds())


def _probe_seconds() -> int:
    """Seconds between probes: a connection that only waits has nothing to be acknowledged, so probes must find a dead peer."""
    return max(1, SILENCE_MILLISECONDS // 2_000)


def _place(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname or 'the local socket'}:{parts.port or 5432}"


def _first_line(error: Exception, url: str) -> str:
    """The first line of a driver's error, with secrets of the URL masked."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    parts = urlsplit(url)
    secrets = [parts.password, *(found[1] for found in _QUERY_SECRET.findall(url))]
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return text
