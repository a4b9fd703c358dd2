"""The three databases, durable as in production, and an empty one for every run."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import psycopg
import pymysql

from devtools.mariadb import MariaDB
from devtools.postgresql import PostgreSQL
from devtools.server import Server
from stepfast import Stepfast

Product = Literal["postgresql", "mariadb", "sqlite"]
PRODUCTS: tuple[Product, ...] = ("postgresql", "mariadb", "sqlite")
NAMES = {"postgresql": "PostgreSQL", "mariadb": "MariaDB", "sqlite": "SQLite"}

# fsync and the flush at each commit are left as they come: on. Memory as a small production server has it.
POSTGRESQL_SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "4GB"}
MARIADB_SETTINGS = {"innodb-buffer-pool-size": "1G", "innodb-log-file-size": "512M"}

EFFECTS = "CREATE TABLE bench_effect (id INTEGER NOT NULL PRIMARY KEY, note VARCHAR(100) NOT NULL)"


@dataclass(frozen=True)
class Place:
    """One empty database."""

    product: Product
    url: str
    server: int | None  # the server's process; SQLite has none

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement with the bare driver, and commit."""
        with self.connection() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """A cursor on a connection of its own that commits by itself."""
        connection = self._connect()
        try:
            yield connection.cursor()
        finally:
            connection.close()

    def prepare(self) -> None:
        """Stepfast's tables, and one for the effects of its steps."""
        app = Stepfast(self.url)
        app.migrate()
        app.close()
        self.rows(EFFECTS)

    def rest(self) -> None:
        """Refresh statistics and flush: every run starts from the same state."""
        match self.product:
            case "postgresql":
                self.rows("VACUUM ANALYZE")
                self.rows("CHECKPOINT")
            case "mariadb":
                self.rows("FLUSH NO_WRITE_TO_BINLOG TABLES")
            case "sqlite":
                self.rows("PRAGMA wal_checkpoint(TRUNCATE)")

    def _connect(self) -> Any:
        parts = urlsplit(self.url)
        match self.product:
            case "postgresql":
                return psycopg.connect(self.url, autocommit=True)
            case "mariadb":
                return pymysql.connect(
                    host=parts.hostname or "",
                    port=parts.port or 0,
                    user=parts.username or "",
                    password=parts.password or "",
                    database=parts.path.lstrip("/"),
                    autocommit=True,
                )
            case "sqlite":
                return sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None, timeout=10)


class Databases:
    """Start each server when it is first needed; remove everything at the end."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stepfast-bench-", dir="/var/tmp"))
        self.folder.chmod(0o755)  # the servers run as accounts of their own
        self._servers: dict[str, Server] = {}
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def place(self, product: Product) -> Iterator[Place]:
        """An empty database, dropped afterwards."""
        self._count += 1
        name = f"bench_{self._count}"
        if product == "sqlite":
            folder = self.folder / name
            folder.mkdir()
            yield Place("sqlite", f"sqlite:///{folder}/work.db", None)
            shutil.rmtree(folder)
            return
        server = self.server(product)
        server.create_database(name)
        pid = int((server.site.folder / "server.pid").read_text())
        yield Place(product, server.url(name), pid)
        server.drop_database(name)

    def server(self, product: Literal["postgresql", "mariadb"]) -> Server:
        if product not in self._servers:
            engine = (
                PostgreSQL(durable=True, settings=POSTGRESQL_SETTINGS)
                if product == "postgresql"
                else MariaDB(durable=True, settings=MARIADB_SETTINGS)
            )
            server = Server(engine, parent=self.folder)
            server.start()
            self._servers[product] = server
        return self._servers[product]

    def version(self, product: Product) -> str:
        with self.place(product) as place:
            return str(
                place.rows("SELECT sqlite_version()" if product == "sqlite" else "SELECT version()")[0][0]
            )
