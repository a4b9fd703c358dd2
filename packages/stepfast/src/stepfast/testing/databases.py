"""Databases for tests: a SQLite file for each test, or a schema on a server that is emptied before each one.

On PostgreSQL it is a schema, on MariaDB a database; it is made for one test run and dropped after it. Everything else on
the server is never touched.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit, urlunsplit

from stepfast.app import Stepfast
from stepfast.database.drivers import masked, open_database
from stepfast.database.migrate import migrate
from stepfast.errors import ConfigurationError, DatabaseError, UnreachableError
from stepfast.worker.process import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepfast.database.connection import Connection


VARIABLE: Final = "STEPFAST_TEST_DATABASE_URL"


def sqlite_template(folder: Path) -> Path:
    """A file with all tables: copying it takes a fraction of the time of a migration."""
    path = folder / "template.db"
    with closing(open_database(f"sqlite:///{path}")) as database:
        migrate(database)
    return path


def sqlite_copy(template: Path, folder: Path) -> str:
    path = folder / "stepfast.db"
    shutil.copyfile(template, path)
    return f"sqlite:///{path}"


def named_app(target: str) -> Stepfast:
    """The application called "module:app"."""
    app = load(target)
    if not isinstance(app, Stepfast):
        raise ConfigurationError(f"stepfast_app = {target}: that is {app!r:.80}, no Stepfast application")
    return app


@contextmanager
def on_database(app: Stepfast | None, url: str) -> Iterator[Stepfast]:
    """`app`, or a new one, on the database at `url` while the block lasts."""
    app = app or Stepfast(url)
    before = app.use(open_database(url))
    try:
        yield app
    finally:
        app.close()
        app.use(before)


@dataclass(frozen=True)
class ScratchSchema:
    """A schema of PostgreSQL, or a database of MariaDB, that belongs to this test run."""

    name: str
    url: str
    empty_tables: frozenset[str]  # tables that the migrations leave without rows
    tables: frozenset[str]  # tables and views that the migrations make

    def empty(self) -> None:
        """Delete every row, and drop every table that a test made."""
        with closing(open_database(self.url).connect()) as connection:
            quote_sign = connection.dialect.quote
            if connection.dialect.name == "mariadb":
                connection.execute("SET SESSION foreign_key_checks = 0")
            cascade = "CASCADE" if connection.dialect.name == "postgresql" else ""
            found = _tables(connection, self.name)
            for table in sorted(
                found, key=lambda it: "VIEW" not in found[it]
            ):  # views go before what they show
                target = f"{quote_sign}{table}{quote_sign}"
                if table in self.empty_tables:
                    connection.execute(f"DELETE FROM {target}")
                elif table not in self.tables:
                    what = "VIEW" if "VIEW" in found[table] else "TABLE"
                    connection.execute(f"DROP {what} IF EXISTS {target} {cascade}")
            # The tables of applications are gone: their next `migrate` must make them again.
            connection.execute("DELETE FROM stepfast_schema WHERE component <> 'stepfast'")
            connection.execute("DELETE FROM stepfast_view_names WHERE id <> 'stepfast'")


@contextmanager
def scratch_schema(url: str) -> Iterator[ScratchSchema]:
    """Make a schema with all tables on the server of `url`, and drop it afterwards."""
    name = f"stepfast_test_{os.getpid()}_{os.urandom(4).hex()}"
    home = open_database(url)
    make, drop = {
        "postgresql": (f'CREATE SCHEMA "{name}"', f'DROP SCHEMA "{name}" CASCADE'),
        "mariadb": (f"CREATE DATABASE `{name}`", f"DROP DATABASE `{name}`"),
    }[home.dialect.name]
    _execute(url, make)
    try:
        inside = _url_inside(url, name, home.dialect.name)
        with closing(open_database(inside)) as database:
            migrate(database)
        with closing(open_database(inside).connect()) as connection:
            tables = _tables(connection, name)
            made = {table for table, kind in tables.items() if "VIEW" not in kind}
            empty = frozenset(table for table in made if not _rows(connection, table))
        yield ScratchSchema(name, inside, empty, frozenset(tables))
    finally:
        _execute(url, drop)


def _url_inside(url: str, name: str, dialect: str) -> str:
    """The URL of the schema."""
    if dialect == "mariadb":
        return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
    if "options=" in url.partition("?")[2]:
        raise ConfigurationError(
            f"{VARIABLE}: leave `options` out of {masked(url)}; tests set the search path there"
        )
    # The user's own tables stay on the search path; ours come first.
    path = quote(f'-csearch_path="{name}",public', safe="")
    return f"{url}{'&' if '?' in url else '?'}options={path}"  # as text: it may name several hosts


def _tables(connection: Connection, name: str) -> dict[str, str]:
    """Tables and views of a schema, and which of the two each one is."""
    listing = "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = '{}'"
    return {row[0]: row[1] for row in connection.execute(listing.format(name)).fetchall()}


def _rows(connection: Connection, table: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0])


def _execute(url: str, statement: str) -> None:
    try:
        with closing(open_database(url).connect()) as connection:
            connection.execute(statement)
    except UnreachableError:
        raise
    except DatabaseError as error:
        raise ConfigurationError(
            f"{VARIABLE}: tests need the right to say {statement!r} at {masked(url)}: {error}"
        ) from error
