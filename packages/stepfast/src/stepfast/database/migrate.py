"""Migrations: the tables of Stepfast and of the installed applications, brought up to what the code knows.

A component is a set of tables with versions of its own. Its folder holds the migrations in order, each a file
(`0002_prices.sql`) or, where that would be long, a folder of files by subject (`0001_first/01_jobs.sql`). Each is applied
once, however many processes try at the same time. The folder `views` in it holds its views: see `views.py`.

PostgreSQL and SQLite take all migrations of a component in one transaction. MariaDB commits at every DDL statement, so
there each statement can be run again, and a lock held by name keeps a second process waiting. That lock holds on one
node of Galera only: where two nodes migrate at once, each takes what the other has done as done.

A migration looks before it writes. If there is nothing to do, it needs no right to create tables. If a table that it would
make is there already, and is not Stepfast's, nothing is changed.
"""

from __future__ import annotations

import random
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from stepfast.database.database import persist
from stepfast.database.dialects import DIALECTS, Plans
from stepfast.database.relations import find_relations
from stepfast.database.sql_files import in_order, statements_of, texts_for
from stepfast.database.statement import sql
from stepfast.database.tables import COLUMNS
from stepfast.database.views import (
    CHOICES,
    OWN_NAMES,
    checked_names,
    chosen_names,
    plan_views,
    read_views,
    remember_names,
)
from stepfast.errors import (
    ConfigurationError,
    ConstraintError,
    ContentionError,
    DatabaseError,
    SchemaError,
    UnreachableError,
)
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from importlib.resources.abc import Traversable

    from stepfast.database.connection import Connection, Transaction
    from stepfast.database.database import Database
    from stepfast.database.dialects import Dialect
    from stepfast.database.relations import Relation
    from stepfast.database.views import View, ViewChange


ENTRY_POINTS: Final = "stepfast.migrations"

# On this node only, where MariaDB is a Galera cluster.
TAKE_LOCK: Final = "SELECT GET_LOCK('stepfast.migrate', 60)"
CONFLICTS: Final = 5  # tries of one statement
_MAKES: Final = re.compile(
    r"^CREATE (?:UNIQUE )?(TABLE|INDEX|DOMAIN) +(?:IF NOT EXISTS )?(\w+)", re.MULTILINE
)
_ADVISORY_KEY: Final = 4_846_171_025
_ALREADY_THERE: Final = (
    "1050",
    "1060",
    "1061",
    "already exists",
    "Duplicate key name",
    "Duplicate column name",
)
# Also a column: a table called stepfast_schema may be the user's, which `migrate` then says.
_MISSING: Final = (
    "no such table",
    "no such column",
    "does not exist",
    "doesn't exist",
    "Unknown column",
)
_SCHEMA: Final = "stepfast_schema"

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
        yield from texts_for(dialect, self.statements)

    def names(self, dialect: Dialect) -> set[str]:
        """The tables that it makes, and the indexes where their names are not their table's own affair."""
        own = {"TABLE"} if dialect.name == "mariadb" else {"TABLE", "INDEX", "DOMAIN"}
        made = (found for text in self.texts(dialect) for found in _MAKES.findall(text))
        return {name for what, name in made if what in own}


@dataclass(frozen=True)
class Component:
    """A set of tables with versions of its own: Stepfast's, or those of an application.

    `folder` of the importable `package` holds the migrations, and in its folder `views` the views. `after` fills in first rows: it is called in a transaction
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
        return tuple(_read(part) for part in in_order(folder) if part.name[:1].isdigit())

    @cached_property
    def views(self) -> tuple[View, ...]:
        from importlib import resources

        return read_views(resources.files(self.package) / self.folder / "views")

    @property
    def version(self) -> int:
        """The version that this code knows."""
        return max(migration.version for migration in self.migrations)


CORE: Final = Component("stepfast", package="stepfast.database")


def _read(part: Traversable) -> Migration:
    """A migration from its file, or from the files of its folder."""
    number, _, name = part.name.removesuffix(".sql").partition("_")
    return Migration(int(number), name, statements_of(part))


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


def _report_skipped(sentence: str) -> None:
    happened("view.skipped", note=sentence)


def migrate(
    database: Database,
    component: Component = CORE,
    *,
    views: str | None = None,
    tell: Callable[[str], None] = _report_skipped,
) -> list[str]:
    """Bring the tables of a component up to this code's version; returns the names of the migrations applied.

    `views`: "none", "default" or a prefix for the names of its views, from now on. `tell` gets a sentence for each view that
    could not be made.
    """
    names = None if views is None else checked_names(views)
    with database.reading() as tx:
        plan = _plan(tx, component, names)
    applied: list[Migration] = []
    refusals: list[str] = []
    if plan.changes_something:
        with _alone(database) as (connection, tx):
            plan = _plan(tx, component, names)  # another process may have been faster
            applied, refusals = plan.apply(connection, tx)
    if component.after is not None:
        persist(database, component.after, Plans.FREE)
    for sentence in (*plan.names_taken, *refusals):
        tell(sentence)
    return [str(migration) for migration in applied]


@dataclass(frozen=True)
class Plan:
    """What is missing in a database for this code to work with it."""

    component: Component
    begun: bool  # whether the database has a table of versions
    migrations: tuple[Migration, ...]
    view_changes: tuple[ViewChange, ...]
    view_names: str | None  # to be remembered; None: they are already
    names_taken: tuple[str, ...]  # sentences about views that cannot be made

    @property
    def changes_something(self) -> bool:
        return bool(self.migrations or self.view_changes or self.view_names)

    def apply(self, connection: Connection, tx: Transaction) -> tuple[list[Migration], list[str]]:
        """Make the tables, then the views; returns what was applied here, and a sentence for each view that the database refused."""
        if not self.begun:
            connection.execute(SCHEMA_TABLE.render(connection.dialect), {})
        applied = []
        for migration in self.migrations:
            # The words of the real clock: the defaults of columns outlive a test's.
            for text in migration.texts(DIALECTS[connection.dialect.name]):
                _apply(connection, text)
            if _record(connection, self.component, migration):
                applied.append(migration)
        refusals = [refusal for change in self.view_changes if (refusal := change.apply(connection))]
        if self.view_names is not None:
            remember_names(tx, self.component.name, self.view_names)
        return applied, refusals


def _plan(tx: Transaction, component: Component, views: str | None) -> Plan:
    """Compare what is there with what this code needs. Only reads."""
    dialect = DIALECTS[tx.dialect.name]
    # Tables before their version: what another process commits between the two looks is then a version that is there.
    all_names = {name for it in component.migrations for name in it.names(dialect)}
    here = find_relations(tx, {_SCHEMA, CHOICES, *all_names})
    if _SCHEMA in here:
        _refuse_other_shape(tx, here[_SCHEMA])
    version = int((tx.first(COMPONENT_VERSION, component=component.name) if _SCHEMA in here else 0) or 0)
    _refuse_newer(component, version)
    pending = tuple(it for it in component.migrations if it.version > version)
    made_before = {name for it in component.migrations if it.version <= version for name in it.names(dialect)}
    for name in sorted({name for it in pending for name in it.names(dialect)} - made_before):
        if name in here and not here[name].made_by_migrate:
            raise _not_ours(here[name])
    changes, taken, remember = _plan_views(tx, component, views, remembers=CHOICES in here)
    return Plan(component, _SCHEMA in here, pending, changes, remember, taken)


def _plan_views(
    tx: Transaction, component: Component, names: str | None, *, remembers: bool
) -> tuple[tuple[ViewChange, ...], tuple[str, ...], str | None]:
    """Changes of views, sentences about names that are taken, and the choice of names if it must be remembered."""
    if not component.views:
        return (), (), None
    before, own = chosen_names(tx, component.name, CORE.name) if remembers else (OWN_NAMES, False)
    if names is not None and not remembers and component is not CORE:
        raise SchemaError(
            "names of views are remembered in Stepfast's own tables; run `stepfast migrate` once, then this"
        )
    after = before if names is None else names
    changes, taken = plan_views(tx, DIALECTS[tx.dialect.name], component.views, before, after)
    can_remember = remembers or component is CORE
    return tuple(changes), tuple(taken), after if can_remember and not (own and before == after) else None


def _refuse_other_shape(tx: Transaction, found: Relation) -> None:
    columns = {str(row[0]) for row in tx.rows(COLUMNS, table=_SCHEMA, folder=None)}
    if not {"component", "version", "name", "applied_at"} <= columns:
        raise _not_ours(found)


def _not_ours(found: Relation) -> SchemaError:
    return SchemaError(
        f"there is {found} that Stepfast did not make, and nothing was changed; rename it, or give Stepfast a schema or a database "
        "of its own"
    )


@contextmanager
def _alone(database: Database) -> Iterator[tuple[Connection, Transaction]]:
    """A connection for DDL, while no other process migrates."""
    from stepfast.database.connection import Transaction

    if database.dialect.name == "mariadb":
        connection = database.connect()
        tx = Transaction(connection)
        try:
            granted = connection.execute(TAKE_LOCK).fetchall()[0][0]
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


def _record(connection: Connection, component: Component, migration: Migration) -> bool:
    """Record that a migration is applied; False if another node of Galera was faster."""
    row = {"component": component.name, "version": migration.version, "name": migration.name}
    try:
        _execute(connection, RECORD_MIGRATION.render(connection.dialect), row)
    except ConstraintError:
        if connection.dialect.name != "mariadb":
            raise
        return False
    return True


def _execute(connection: Connection, text: str, parameters: Mapping[str, Any]) -> None:
    """Run a statement; on MariaDB, where it is a transaction by itself, again after a conflict with another node."""
    for attempt in range(1, CONFLICTS + 1):
        try:
            connection.execute(text, parameters)
        except ContentionError:
            if connection.dialect.name != "mariadb" or attempt == CONFLICTS:
                raise
            time.sleep(random.uniform(0, 0.01 * 2**attempt))
        else:
            return


def _apply(connection: Connection, text: str) -> None:
    try:
        _execute(connection, text, {})
    except DatabaseError as error:
        # On MariaDB an earlier try may have come this far before it was cut off.
        if connection.dialect.name != "mariadb" or not any(word in str(error) for word in _ALREADY_THERE):
            raise


def printed(dialect: Dialect, components: Iterable[Component] = (CORE,), *, views: str | None = None) -> str:
    """The tables and views as SQL, for people whose database administrator runs it."""
    names = OWN_NAMES if views is None else checked_names(views)
    parts = [SCHEMA_TABLE.render(dialect).strip()]
    for component in components:
        for migration in component.migrations:
            first, *rest = migration.texts(dialect)
            parts += [f"-- {component.name} {migration.version:04d} {migration.name}\n\n{first}", *rest]
            parts.append(
                "INSERT INTO stepfast_schema (component, version, name, applied_at)"
                f" VALUES ('{component.name}', {migration.version}, '{migration.name}', {dialect.words['now']})"
            )
        parts += [
            text
            for view in component.views
            if (name := view.name_among(names))
            for text in view.texts(dialect, name)
        ]
        if component.views:
            parts.append(f"INSERT INTO {CHOICES} (id, names) VALUES ('{component.name}', '{names}')")
    # The rendered text has its percent signs doubled for drivers that format; a person's client does not.
    return "\n".join(f"{part.replace('%%', '%')};\n" for part in parts)


def schema_version(database: Database, component: Component = CORE) -> int | None:
    """The version of a component's tables, or None where there are none."""
    try:
        with database.reading() as tx:
            version = tx.first(COMPONENT_VERSION, component=component.name)
    except UnreachableError:
        raise  # that a database or a role does not exist says nothing of its tables
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
