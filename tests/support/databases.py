"""Databases for tests, one for each test and thrown away after it.

Real servers, started once per test process and only if a collected test will want them; they come up in the
background while the first tests run. Migrating is done once where the product can copy a database; one of MariaDB is
emptied and used again.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pymysql

from devtools import guardian
from devtools.mariadb import MariaDB
from devtools.pgbouncer import PgBouncer
from devtools.postgresql import PostgreSQL
from devtools.server import USER, Engine, Server

if TYPE_CHECKING:
    from pymysql.cursors import Cursor


# A database of MariaDB is used again: it cannot be copied, and migrating one takes longer than most tests.
#
# It is emptied after a test. If a test changed a table of Stepfast, or somebody will not leave, it is thrown away instead.

PATIENCE = 2.0  # seconds, for sessions that were told to leave
KEPT = "stepfast_schema"  # its rows are part of the structure
NAMES = "stepfast_view_names"
LASTING = {KEPT, NAMES, "stepfast_installation"}  # their rows stay

Structure = dict[str, str]


def structure(server: Server, name: str) -> Structure:
    """How every table and view was made."""
    with closing(_connect(server, name)) as connection, connection.cursor() as cursor:
        return {table: _made(cursor, table) for table in _tables(cursor)}


def emptied(server: Server, name: str, wanted: Structure) -> bool:
    """Bring a used database back to how it was when it was new; False if that cannot be done."""
    with closing(_connect(server, name)) as connection, connection.cursor() as cursor:
        if not _alone(cursor, name):
            return False
        try:
            cursor.execute(f"SET lock_wait_timeout = {PATIENCE:.0f}")
            tables = _tables(cursor)
            for table in tables.keys() - wanted.keys():
                cursor.execute(f"DROP {tables[table]} `{table}`")
            if KEPT in tables:
                cursor.execute(f"DELETE FROM `{KEPT}` WHERE component <> 'stepfast'")
            if NAMES in tables:
                cursor.execute(f"DELETE FROM `{NAMES}` WHERE id <> 'stepfast'")
            if any(table not in tables or _made(cursor, table) != text for table, text in wanted.items()):
                return False
            for table in _used(cursor, [it for it in wanted if tables[it] == "TABLE" and it not in LASTING]):
                cursor.execute(f"TRUNCATE TABLE `{table}`")
        except pymysql.MySQLError:
            return False
        return True


def _connect(server: Server, name: str) -> pymysql.Connection[Cursor]:
    return pymysql.connect(
        host="127.0.0.1",
        port=server.site.port,
        user=USER,
        password=server.site.password,
        database=name,
        autocommit=True,
        ssl_disabled=True,
    )


def _alone(cursor: Cursor, name: str) -> bool:
    """End all other sessions, and wait until they are gone, with what they had not committed."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        cursor.execute(
            "SELECT id FROM information_schema.processlist WHERE db = %s AND id <> connection_id()", (name,)
        )
        others = cursor.fetchall()
        if not others:
            return True
        for (client,) in others:
            with suppress(pymysql.err.OperationalError):  # left by itself
                cursor.execute("KILL %s", (client,))
        time.sleep(0.002)
    return False


def _tables(cursor: Cursor) -> dict[str, str]:
    cursor.execute("SHOW FULL TABLES")
    return {name: "VIEW" if kind == "VIEW" else "TABLE" for name, kind in cursor.fetchall()}


def _made(cursor: Cursor, table: str) -> str:
    cursor.execute(f"SHOW CREATE TABLE `{table}`")
    row = cursor.fetchone()
    assert row is not None
    text = re.sub(r" AUTO_INCREMENT=\d+", "", str(row[1]))
    if table != KEPT:
        return text
    cursor.execute(f"SELECT component, version, name FROM `{KEPT}` ORDER BY 1, 2")
    return f"{text} {cursor.fetchall()}"


def _used(cursor: Cursor, tables: list[str]) -> list[str]:
    """The tables that have rows, or have given out numbers."""
    cursor.execute(
        " UNION ALL ".join(f"SELECT '{it}' FROM DUAL WHERE EXISTS (SELECT 1 FROM `{it}`)" for it in tables)
    )
    filled = {row[0] for row in cursor.fetchall()}
    cursor.execute("SHOW TABLE STATUS WHERE Auto_increment > 1")
    return sorted(filled | ({row[0] for row in cursor.fetchall()} & set(tables)))


ENGINES: dict[str, Engine] = {"postgresql": PostgreSQL(), "mariadb": MariaDB()}
KINDS = ("sqlite", *ENGINES)
POOLED = "pgbouncer"  # PostgreSQL again, behind a pooler in transaction mode

MEMORY = Path("/dev/shm")  # noqa: S108 - a folder in memory; the servers make private ones inside it
ENOUGH_MEMORY = 4 * 2**30
TEMPLATE = "stepfast_template"


class Databases:
    """All databases of one test process."""

    def __init__(self) -> None:
        self._starters = ThreadPoolExecutor(len(ENGINES), "server-start")
        self._servers: dict[str, Future[Server]] = {}
        self._pooler: Server | None = None
        self._templates: set[str] = set()
        self._numbers = count(1)
        self._spare: list[str] = []  # databases that were used and emptied
        self._structure: Structure = {}  # of each of them

    def expect(self, kind: str) -> None:
        """A test will ask for this kind: begin to start its server."""
        kind = "postgresql" if kind == POOLED else kind
        if kind in ENGINES and kind not in self._servers:
            self._servers[kind] = self._starters.submit(_started, ENGINES[kind])

    def server(self, kind: str) -> Server:
        """The running server, brought back if the last test left it paused or dead."""
        self.expect(kind)
        server = self._servers[kind].result()
        server.cont()
        server.start()
        return server

    def pooler(self) -> Server:
        """The running PgBouncer, before the running PostgreSQL."""
        behind = self.server("postgresql")
        if self._pooler is None:
            self._pooler = Server(PgBouncer(behind), memory()).__enter__()  # `close` is its end
        self._pooler.cont()
        self._pooler.start()
        return self._pooler

    @contextmanager
    def empty(self, kind: str) -> Iterator[str]:
        """The URL of a database without any table."""
        with self._new(kind, None) as url:
            yield url

    @contextmanager
    def migrated(self, kind: str) -> Iterator[str]:
        """The URL of a database with all tables of Stepfast, and without rows."""
        match kind:
            case "mariadb":
                with self._recycled(kind) as url:
                    yield url
            case "pgbouncer":
                self._make_template("postgresql")
                with self._new(kind, TEMPLATE) as url:
                    yield url
            case _:
                self._make_template(kind)
                with self._new(kind, TEMPLATE) as url:
                    yield url

    def close(self) -> None:
        """Stop and remove everything, servers that are still starting included."""
        if self._pooler is not None:
            self._pooler.remove()
        self._starters.shutdown(cancel_futures=True)
        for start in self._servers.values():
            if not start.cancelled() and start.exception() is None:
                start.result().remove()
        self._servers.clear()
        if "_folder" in vars(self):
            shutil.rmtree(self._folder)
            self._folder_guardian.communicate()

    @cached_property
    def _folder(self) -> Path:
        """For SQLite's files."""
        folder = Path(tempfile.mkdtemp(prefix="stepfast-sqlite-", dir=memory()))
        self._folder_guardian = guardian.hire(folder)
        return folder

    @contextmanager
    def _new(self, kind: str, template: str | None) -> Iterator[str]:
        name = f"test_{next(self._numbers)}"
        if kind == "sqlite":
            path = self._folder / f"{name}.db"
            if template:
                shutil.copyfile(self._folder / f"{template}.db", path)
            try:
                yield f"sqlite:///{path}"
            finally:
                for leftover in self._folder.glob(f"{name}.db*"):
                    leftover.unlink()
        else:
            server = self.pooler() if kind == POOLED else self.server(kind)
            server.create_database(name, template)
            try:
                yield server.url(name)
            finally:
                (self.pooler() if kind == POOLED else self.server(kind)).drop_database(name)

    @contextmanager
    def _recycled(self, kind: str) -> Iterator[str]:
        server = self.server(kind)
        name = self._spare.pop() if self._spare else None
        if name is None:
            name = f"test_{next(self._numbers)}"
            server.create_database(name)
            _migrate(server.url(name))
            self._structure = self._structure or structure(server, name)
        try:
            yield server.url(name)
        finally:
            server = self.server(kind)
            if emptied(server, name, self._structure):
                self._spare.append(name)
            else:
                server.drop_database(name)

    def _make_template(self, kind: str) -> None:
        if kind in self._templates:
            return
        if kind == "sqlite":
            path = self._folder / f"{TEMPLATE}.db"
            path.unlink(missing_ok=True)
            _migrate(f"sqlite:///{path}")
            assert not path.with_name(f"{path.name}-wal").exists(), "rows are still outside the file to copy"
        else:
            server = self.server(kind)
            server.drop_database(TEMPLATE)  # left half-made by a migration that failed
            server.create_database(TEMPLATE)
            _migrate(server.url(TEMPLATE))
        self._templates.add(kind)


def _started(engine: Engine) -> Server:
    return Server(engine, memory()).__enter__()  # Databases.close is its end


def memory() -> Path | None:
    """A folder in memory if there is plenty: creating and dropping databases is twice as fast there, and fsync is free."""
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ENOUGH_MEMORY
    return MEMORY if roomy else None


def _migrate(url: str) -> None:
    # Imported here, so that tests of other things run while these modules do not even compile.
    from stepfast.database.drivers import open_database
    from stepfast.database.migrate import migrate

    with closing(open_database(url)) as database:
        migrate(database)
