"""Migrations: the tables of Stepfast and of the installed applications, brought up to what the code knows.

A component is a set of tables with versions of its own. Its folder holds the migrations in order, each a file
(`0002_prices.sql`) or, where that would be long, a folder of files by subject (`0001_first/01_jobs.sql`). Each is applied
once, however many processes try at the same time.

PostgreSQL and SQLite take all migrations of a component in one transaction. MariaDB commits at every DDL statement, so
there each statement can be run again, and a lock held by name keeps a second process waiting.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from stepfast.database.dialects import DIALECTS
from stepfast.database.statement import Statement, sql
from stepfast.errors import ConfigurationError, DatabaseError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from importlib.resources.abc import Traversable

    from stepfast.database.connection import Connection, Transaction
    from stepfast.database.database import Database
    from stepfast.database.dialects import Dialect


ENTRY_POINTS: Final = "stepfast.migrations"

_ONLY: Final = re.compile(r"^-- only: ([\w, ]+)$", re.MULTILINE)
_ADVISORY_KEY: Final = 4_846_171_025
_ALREADY_THERE: Final = (
    "1050",
    "1060",
    "1061",
    "already exists",
    "Duplicate key name",
    "Duplicate column name",
)
_MISSING: Final = ("no such table", "does not exist", "doesn't exist")

SCHEMA_TABLE = sql("""
    CREATE TABLE IF NOT EXISTS stepfast_schema (
        component {key} NOT NULL,
        version INTEGER NOT NULL,
        name VARCHAR(100) NOT NULL,
        applied_at BIGINT NOT NULL,
        PRIMARY KEY (component, version)
    ) {table_options}
""")
COMPONENT_VERSION = sql("SELECT max(version) FROM stepfast_schema WHERE component = :component")
RECORD_MIGRATION = sql("""
    INSERT INTO stepfast_schema (component, version, name, applied_at) VALUES (:component, :version, :name, {now})
""")


@dataclass(frozen=True)
class Migration:
    """One step from a version of a component's tables to the next."""

    version: int
    name: str
    statements: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.version:04d}_{self.name}"

    def texts(self, dialect: Dialect) -> Iterator[str]:
        """The statements for this dialect, with its words filled in."""
        for statement in self.statements:
            only = _ONLY.search(statement)
            if only is None or dialect.name in {name.strip() for name in only[1].split(",")}:
                yield Statement(_ONLY.sub("", statement).strip()).render(dialect)


@dataclass(frozen=True)
class Component:
    """A set of tables with versions of its own: Stepfast's, or those of an application.

    `folder` of the importable `package` holds the migrations. `after` fills in first rows: it is called in a transaction
    of its own by every `migrate` of the component, so it must leave rows alone that are there already.
    """

    name: str
    package: str
    folder: str = "migrations"
    after: Callable[[Transaction], None] | None = None

    @cached_property
    def migrations(self) -> tuple[Migration, ...]:
        from importlib import resources  # here: a tenth of the time that `import stepfast` takes

        folder = resources.files(self.package) / self.folder
        return tuple(_read(part) for part in _in_order(folder) if part.name[:1].isdigit())

    @property
    def version(self) -> int:
        """The version that this code knows."""
        return max(migration.version for migration in self.migrations)


CORE: Final = Component("stepfast", package="stepfast.database")


def _in_order(folder: Traversable) -> list[Traversable]:
    return sorted(folder.iterdir(), key=lambda part: part.name)


def _read(part: Traversable) -> Migration:
    """A migration from its file, or from the files of its folder."""
    files = _in_order(part) if part.is_dir() else [part]
    number, _, name = part.name.removesuffix(".sql").partition("_")
    texts = (file.read_text(encoding="utf-8") + "\n" for file in files if file.name.endswith(".sql"))
    statements = (statement for text in texts for statement in re.split(r";[ \t]*\n", text))
    return Migration(int(number), name, tuple(statement for statement in statements if _code(statement)))


def _code(statement: str) -> str:
    """The statement without its comments."""
    lines = (line for line in statement.splitlines() if not line.strip().startswith("--"))
    return "\n".join(lines).strip()


def installed_components() -> tuple[Component, ...]:
    """Stepfast, and what installed applications name under the entry point `stepfast.migrations`."""
    from importlib.metadata import entry_points

    components = {CORE.name: CORE}
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        component = entry.load()
        if not isinstance(component, Component):
            raise ConfigurationError(f"{ENTRY_POINTS}: {entry.value} is no stepfast.applications.Component")
        if component.name in components:
            raise ConfigurationError(f"{ENTRY_POINTS}: two packages bring tables called {component.name!r}")
        components[component.name] = component
    return tuple(components.values())


def migrate(database: Database, component: Component = CORE) -> list[str]:
    """Bring the tables of a component up to this code's version; returns the names of the migrations applied."""
    with _alone(database) as (connection, tx):
        connection.execute(SCHEMA_TABLE.render(database.dialect), {})
        version = tx.first(COMPONENT_VERSION, component=component.name) or 0
        _refuse_newer(component, version)
        applied = [migration for migration in component.migrations if migration.version > version]
        for migration in applied:
            # The words of the real clock: the defaults of columns outlive a test's.
            for text in migration.texts(DIALECTS[database.dialect.name]):
                _apply(connection, text)
            tx.run(RECORD_MIGRATION, component=component.name, version=migration.version, name=migration.name)
    if component.after is not None:
        with database.transaction() as tx:
            component.after(tx)
    return [str(migration) for migration in applied]


@contextmanager
def _alone(database: Database) -> Iterator[tuple[Connection, Transaction]]:
    """A connection for DDL, while no other process migrates."""
    from stepfast.database.connection import Transaction

    if database.dialect.name == "mariadb":
        connection = database.connect()
        tx = Transaction(connection)
        try:
            granted = connection.execute("SELECT GET_LOCK('stepfast.migrate', 60)").fetchall()[0][0]
            if granted != 1:
                raise SchemaError(
                    "another process has been migrating for a minute; try again when it is done"
                )
            yield connection, tx
        finally:
            connection.close()  # gives the lock back
        return
    with database.transaction() as tx:
        if database.dialect.name == "postgresql":
            tx.execute("SET LOCAL lock_timeout = '60s'")  # another process may be migrating: wait for it
            tx.execute(f"SELECT pg_advisory_xact_lock({_ADVISORY_KEY})")
        yield tx._connection, tx  # noqa: SLF001 - DDL goes past the guards that user statements pass


def _apply(connection: Connection, text: str) -> None:
    try:
        connection.execute(text, {})
    except DatabaseError as error:
        # On MariaDB an earlier try may have come this far before it was cut off.
        if connection.dialect.name != "mariadb" or not any(word in str(error) for word in _ALREADY_THERE):
            raise


def printed(dialect: Dialect, components: Iterable[Component] = (CORE,)) -> str:
    """The tables as SQL, for people whose database administrator runs it."""
    parts = [f"{SCHEMA_TABLE.render(dialect).strip()};\n"]
    for component in components:
        for migration in component.migrations:
            parts.append(f"-- {component.name} {migration.version:04d} {migration.name}\n")
            # The rendered text has its percent signs doubled for drivers that format; a person's client does not.
            parts.extend(f"{text.replace('%%', '%')};\n" for text in migration.texts(dialect))
            parts.append(
                "INSERT INTO stepfast_schema (component, version, name, applied_at)"
                f" VALUES ('{component.name}', {migration.version}, '{migration.name}', {dialect.words['now']});\n"
            )
    return "\n".join(parts)


def schema_version(database: Database, component: Component = CORE) -> int | None:
    """The version of a component's tables, or None where there are none."""
    try:
        with database.reading() as tx:
            version = tx.first(COMPONENT_VERSION, component=component.name)
    except DatabaseError as error:
        if any(word in str(error) for word in _MISSING):
            return None
        raise
    return int(version) if version is not None else None


def require_current_schema(database: Database) -> None:
    """Refuse to work on tables this code does not know. An empty SQLite file gets them by itself."""
    version = schema_version(database)
    if version is None and database.dialect.name == "sqlite":
        migrate(database)
    elif version is None:
        raise SchemaError("the database has no Stepfast tables; run `stepfast migrate` once")
    elif version < CORE.version:
        raise SchemaError(
            f"the tables of {CORE.name} are at version {version}, this code needs {CORE.version}; run `stepfast migrate`"
        )
    else:
        _refuse_newer(CORE, version)


def _refuse_newer(component: Component, version: int) -> None:
    if version > component.version:
        raise SchemaError(
            f"the tables of {component.name} are at version {version}, newer than this code knows ({component.version}); "
            f"upgrade {component.name} here, do not downgrade the tables"
        )
