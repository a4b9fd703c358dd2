"""Databases for tests, one for each test and thrown away after it.

Real servers, started once per test process and only if a collected test will want them; they come up in the
background while the first tests run. Migrating is done once where the product can copy a database; one of MariaDB is
emptied and used again.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cached_property
from itertools import count
from pathlib import Path

from devtools import guardian
from devtools.mariadb import MariaDB
from devtools.pgbouncer import PgBouncer
from devtools.postgresql import PostgreSQL
from devtools.server import Engine, Server
from tests.recycling import Structure, emptied, structure

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
