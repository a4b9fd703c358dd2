"""Open a database by its URL: the driver, its session settings, and what a pooler before PostgreSQL takes away."""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from stepfast.config import listen_url, max_connections
from stepfast.database.connection import Connection
from stepfast.database.database import Database
from stepfast.database.dialects import MARIADB, POSTGRESQL, SQLITE
from stepfast.errors import AccessRefusedError, ConfigurationError, UnreachableError, install_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from urllib.parse import SplitResult

    from stepfast.database.tls import MariadbOptions


CONNECT_SECONDS = 10
ANSWER_SECONDS = 60  # for one statement of MariaDB
SILENCE_MILLISECONDS = 10_000  # a peer that acknowledges nothing for so long is gone
_PASSWORD = re.compile(r"^((?:[^/@]*//)?+[^:@/]*):.*@")
_NETLOC = re.compile(r"^([^/?#]*//)([^/?#]*)(.*)$", re.DOTALL)
_FILE_NAME = re.compile(r"[\w./-]{1,200}\.(?:db3?|sqlite3?)", re.ASCII)
SCHEMES: Final = {"postgresql", "postgres", "mysql", "mariadb"}
_QUERY_SECRET = re.compile(r"([?&](?:ssl)?pass\w*=)([^&]*)", re.IGNORECASE)


def open_database(url: str) -> Database:
    """Read `url` and prepare a database; the first connection is made when it is needed."""
    parts = split_url(url)
    match parts.scheme:
        case "sqlite":
            path = sqlite_path(url)
            return Database(url, SQLITE, lambda: _connect_sqlite(path))
        case "postgresql" | "postgres":
            connect, elsewhere = _to_postgresql(url, parts), listen_url()
            listen = None if elsewhere is None else _to_postgresql(elsewhere, _listening(elsewhere))
            return Database(url, POSTGRESQL, connect, wakes=True, listen=listen, most=max_connections())
        case "mysql" | "mariadb":
            if len(hosts_of(url)) > 1:
                raise ConfigurationError(
                    f"{masked(url)!r} names several hosts, and the driver of MariaDB and MySQL connects to one: let a proxy "
                    "(HAProxy, MaxScale, ProxySQL) stand before the cluster, and name that"
                )
            from stepfast.database.tls import read_options

            options = read_options(parts.query, parts.hostname)
            return Database(url, MARIADB, lambda: _connect_mariadb(parts, options), most=max_connections())
        case "":
            raise ConfigurationError(
                f"{_shown(url)} is not a database URL; write sqlite:///work.db, postgresql://user@host/name or mysql://user@host/name"
            )
        case other:
            raise ConfigurationError(
                f"no driver for {other!r} URLs; use sqlite:///, postgresql:// or mysql:// (without '+driver' suffixes)"
            )


def split_url(url: str) -> SplitResult:
    """The parts of a database URL; of several hosts (`h1:5432,h2:5432`) only the first is among them."""
    try:
        parts = urlsplit(_with_first_host(url))
        good = parts.netloc.count("@") <= 1 and all(port != 0 for _, port in hosts_of(url))
        good = good and (parts.scheme not in SCHEMES or "://" in url)
    except ValueError:
        good = False
    if not good:
        raise ConfigurationError(
            f"{_shown(url)} is not a database URL: check host and port and the two slashes before them, and write special characters "
            "of the password as %40 (@), %2F (/), %3A (:)"
        )
    return parts


def hosts_of(url: str) -> list[tuple[str, int | None]]:
    """The hosts and ports that a URL names, before the path or as `?host=…&port=…`; raises ValueError where a port is none."""
    match = _NETLOC.match(url)
    listed = [] if match is None else match[2].rpartition("@")[2].split(",")
    hosts = [(one.hostname or "", one.port) for one in (urlsplit(f"//{host}") for host in listed)]
    options = parse_qs(url.partition("?")[2])
    if "host" in options and not any(host for host, _ in hosts):
        names, ports = options["host"][-1].split(","), options.get("port", [""])[-1].split(",")
        ports = ports * len(names) if len(ports) == 1 else ports
        hosts = [(name, int(port) if port else None) for name, port in zip(names, ports, strict=False)]
    return hosts


def _with_first_host(url: str) -> str:
    match = _NETLOC.match(url)
    if match is None or "," not in match[2]:
        return url
    user, at, hosts = match[2].rpartition("@")
    return f"{match[1]}{user}{at}{hosts.partition(',')[0]}{match[3]}"


def masked(url: str) -> str:
    """The URL as it may be shown: without its password."""
    if url.startswith("sqlite:"):
        return url
    # By shape and not by parsing: a URL that is written wrongly is the one that gets printed.
    return _QUERY_SECRET.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))


def _shown(url: str) -> str:
    """What was given in place of a URL. Where a password stands in a text of another shape is unknown, so that is not shown."""
    if "://" in url or _FILE_NAME.fullmatch(url):
        return repr(masked(url))
    return f"what was given ({len(url)} characters, not shown)"


def sqlite_path(url: str) -> str:
    """The file that a sqlite:/// URL names."""
    path = unquote(url.removeprefix("sqlite://").split("?")[0])
    if path in {"", "/"} or path.startswith("/:memory:"):
        raise ConfigurationError("sqlite: work that must not be lost needs a file; write sqlite:///work.db")
    if not path.startswith("/"):
        raise ConfigurationError(
            "the URL of a SQLite file: write three slashes for a relative path (sqlite:///work.db), four for an absolute one"
        )
    return path[1:]


def _connect_sqlite(path: str) -> Connection:
    import sqlite3

    try:
        _create_for_us_alone(path)
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
        raise AccessRefusedError(f"cannot open the SQLite file {path!r}: {hint}") from error
    if mode != "wal":
        raise ConfigurationError(
            f"the SQLite file {path!r} cannot use WAL (journal mode {mode!r}): is it on a network file system? Use a local disk"
        )
    return Connection(raw, SQLITE)


def _create_for_us_alone(path: str) -> None:
    """Create the file, readable by nobody else, if it is not there: payloads are in it. SQLite gives its other files the same mode.

    A file that is there keeps its mode: who wants to share it creates it.
    """
    with suppress(OSError):  # it is there; or SQLite has the words for what is wrong
        os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


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
    options = _options_for_hosts(len(hosts_of(url)), parse_qs(parts.query))
    return lambda: _connect_postgresql(conninfo, said, options)


def _options_for_hosts(hosts: int, given: Mapping[str, object]) -> dict[str, Any]:
    """Where several hosts are named, the one that takes writes is meant, and all of them get their share of the time."""
    options: dict[str, Any] = {}
    if "connect_timeout" not in given:
        options["connect_timeout"] = max(2, CONNECT_SECONDS // hosts) if hosts else CONNECT_SECONDS
    if hosts > 1 and "target_session_attrs" not in given:
        options["target_session_attrs"] = "read-write"
    return options


def _listening(url: str) -> SplitResult:
    parts = split_url(url)
    if parts.scheme not in {"postgresql", "postgres"} or declared_pooler(parts) is Pooler.TRANSACTION:
        raise ConfigurationError(
            f"STEPFAST_LISTEN_URL={masked(url)!r}: write a postgresql:// URL that leads to the server itself"
        )
    return parts


def _connect_postgresql(conninfo: str, said: Pooler | None, options: Mapping[str, Any]) -> Connection:
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
            tcp_user_timeout=SILENCE_MILLISECONDS,
            keepalives_idle=_probe_seconds(),
            keepalives_interval=_probe_seconds(),
            application_name="stepfast",
            prepare_threshold=None,  # a transaction pooler would lose what is prepared
            **options,
        )
        pooled = begin_session(raw, said, place)
    except psycopg.OperationalError as error:
        first = _first_line(error, conninfo)
        kind = AccessRefusedError if refuses_access(str(error)) else UnreachableError
        raise refused_option(first, place) or kind(f"cannot reach PostgreSQL at {place}: {first}") from error
    except psycopg.ProgrammingError as error:
        raise ConfigurationError(
            f"{masked(conninfo)!r} is not a PostgreSQL URL: {_first_line(error, conninfo)}"
        ) from error
    raw.adapters.register_loader("json", TextLoader)  # payloads are decoded once, by msgspec
    connection = Connection(raw, POSTGRESQL)
    connection.pooled = pooled
    return connection


# What PostgreSQL, or a pooler before it, says to a client that it will never let in. libpq has no code for that, only words.
_REFUSALS: Final = re.compile(
    r"authentication failed|no password supplied|does not exist|no pg_hba\.conf entry|permission denied for database"
    r"|not permitted to log in|not currently accepting connections|no such (?:database|user)|does not support SSL"
    r"|invalid (?:database|user) name|sslmode|certificate"
)


def refuses_access(message: str) -> bool:
    """Whether the server answered, and user, password, database or TLS settings are wrong: waiting does not help."""
    return _REFUSALS.search(message) is not None


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


# Access denied (to a database, to this host, with this plugin or without TLS), an unknown database, an expired password.
_ACCESS_CODES: Final = {1044, 1045, 1049, 1130, 1251, 1698, 1820, 1862, 2026, 2059, 3118, 3159}


def _connect_mariadb(parts: SplitResult, options: MariadbOptions) -> Connection:
    import ssl

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
    timeout = options.connect_timeout or CONNECT_SECONDS
    try:
        raw: Any = pymysql.connect(
            host=parts.hostname or "localhost",
            port=parts.port or 3306,
            user=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else "",
            database=unquote(name),
            unix_socket=options.unix_socket,
            autocommit=True,  # every transaction is opened by name
            charset="utf8mb4",
            connect_timeout=timeout,
            read_timeout=timeout,  # a server that hangs does not greet
            write_timeout=ANSWER_SECONDS,
            client_flag=CLIENT.FOUND_ROWS,  # rowcount must mean matched, not changed, as elsewhere
            init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",  # no gap locks
            **options.for_driver(),
        )
        _limit_mariadb(raw)
        raw._read_timeout = ANSWER_SECONDS  # noqa: SLF001 - PyMySQL has no name for it
    except pymysql.OperationalError as error:
        place = options.unix_socket or f"{parts.hostname}:{parts.port or 3306}"
        cause = getattr(error, "original_exception", None)
        refused = error.args[0] in _ACCESS_CODES or isinstance(cause, ssl.SSLCertVerificationError)
        kind = AccessRefusedError if refused else UnreachableError
        raise kind(f"cannot reach MariaDB/MySQL at {place}: {error.args[-1]}") from error
    return Connection(raw, MARIADB)


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
    places = (
        (f"[{host}]" if ":" in host else host or "the local socket", port) for host, port in hosts_of(url)
    )
    return ", ".join(f"{host}:{port or 5432}" for host, port in places)


def _first_line(error: Exception, url: str) -> str:
    """The first line of a driver's error, with secrets of the URL masked."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    parts = urlsplit(_with_first_host(url))
    secrets = [parts.password, *(found[1] for found in _QUERY_SECRET.findall(url))]
    for secret in filter(None, [*secrets, *(unquote(it) for it in secrets if it)]):
        text = text.replace(secret, "***")
    return text
