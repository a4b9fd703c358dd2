"""Apply `migrations/*.sql` in order, each once, however many processes try at the same time.

PostgreSQL and SQLite take all of it in one transaction. MariaDB commits at every DDL statement, so
there each statement can be run again, and a lock held by name keeps a second process waiting.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from stepfast.database.dialects import DIALECTS
from stepfast.database.statement import Statement, sql
from stepfast.errors import DatabaseError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepfast.database.connection import Connection, Transaction
    from stepfast.database.database import Database
    from stepfast.database.dialects import Dialect


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

SCHEMA_TABLE = sql("""
    CREATE TABLE IF NOT EXISTS stepfast_schema (
        version INTEGER NOT NULL PRIMARY KEY,
        name VARCHAR(100) NOT NULL,
        applied_at BIGINT NOT NULL
    ) {table_options}
""")
VERSION = sql("SELECT max(version) FROM stepfast_schema")
RECORD = sql("INSERT INTO stepfast_schema (version, name, applied_at) VALUES (:version, :name, {now})")


@dataclass(frozen=True)
class Migration:
    version: int
    name: str
    statements: tuple[str, ...]

    def texts(self, dialect: Dialect) -> Iterator[str]:
        """What this dialect runs: its words filled in, the statements for others left out."""
        for statement in self.statements:
            only = _ONLY.search(statement)
            if only is None or dialect.name in {name.strip() for name in only[1].split(",")}:
                yield Statement(_ONLY.sub("", statement).strip()).render(dialect)


@cache
def migrations() -> tuple[Migration, ...]:
    from importlib import resources  # here: a tenth of the time that `import stepfast` takes

    folder = resources.files("stepfast.database") / "migrations"
    files = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name
    )
    return tuple(_read(file.name, file.read_text(encoding="utf-8")) for file in files)


def _read(filename: str, text: str) -> Migration:
    number, _, name = filename.removesuffix(".sql").partition("_")
    statements = tuple(part for part in re.split(r";[ \t]*\n", text + "\n") if _code(part))
    return Migration(int(number), name, statements)


def _code(part: str) -> str:
    return "\n".join(line for line in part.splitlines() if line.strip() and not line.strip().startswith("--"))


def migrate(database: Database) -> list[str]:
    """Bring the tables up to this code's version; returns the names of what was applied."""
    with _alone(database) as (connection, tx):
        connection.execute(SCHEMA_TABLE.render(database.dialect), {})
        version = tx.first(VERSION) or 0
        _refuse_newer(version)
        applied = []
        for migration in migrations():
            if migration.version > version:
                # The words of the real clock: the defaults of columns outlive a test's.
                for text in migration.texts(DIALECTS[database.dialect.name]):
                    _apply(connection, text)
                tx.run(RECORD, version=migration.version, name=migration.name)
                applied.append(f"{migration.version:04d}_{migration.name}")
        return applied


def printed(dialect: Dialect) -> str:
    """The whole schema as SQL, for people whose database administrator runs it."""
    parts = [SCHEMA_TABLE.render(dialect).strip()]
    for migration in migrations():
        parts.append(f"-- {migration.version:04d} {migration.name}")
        parts.extend(migration.texts(dialect))
        parts.append(
            f"INSERT INTO stepfast_schema (version, name, applied_at) VALUES ({migration.version}, '{migration.name}', {dialect.words['now']})"
        )
    # The rendered text has its percent signs doubled for drivers that format; a person's client does not.
    text = ";\n\n".join(part if part.startswith("-- 0") else part.replace("%%", "%") for part in parts)
    return re.sub(r"(-- \d{4} \w+);", r"\1", text) + ";\n"


def known_version() -> int:
    return max(migration.version for migration in migrations())


def schema_version(database: Database) -> int | None:
    """The version the tables are at, or None where there are none."""
    try:
        with database.reading() as tx:
            found = tx.first(VERSION)
    except DatabaseError as error:
        if any(word in str(error) for word in ("no such table", "does not exist", "doesn't exist")):
            return None
        raise
    return int(found) if found is not None else None


def require_current_schema(database: Database) -> None:
    """Refuse to work on tables this code does not know. An empty SQLite file gets them by itself."""
    version = schema_version(database)
    known = known_version()
    if version is None and database.dialect.name == "sqlite":
        migrate(database)
    elif version is None:
        raise SchemaError("the database has no Stepfast tables; run `stepfast migrate` once")
    elif version < known:
        raise SchemaError(
            f"the tables are at version {version}, this code needs {known}; run `stepfast migrate`"
        )
    else:
        _refuse_newer(version)


def _refuse_newer(version: int) -> None:
    known = known_version()
    if version > known:
        raise SchemaError(
            f"the tables are at version {version}, newer than this code knows ({known}); upgrade stepfast here, do not downgrade the tables"
        )


@contextmanager
def _alone(database: Database) -> Iterator[tuple[Connection, Transaction]]:
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
            tx.execute("SET LOCAL lock_timeout = '60s'")  # wait for a colleague who is migrating
            tx.execute(f"SELECT pg_advisory_xact_lock({_ADVISORY_KEY})")
        yield tx._connection, tx  # noqa: SLF001 - DDL goes past the guards that user statements pass


def _apply(connection: Connection, text: str) -> None:
    try:
        connection.execute(text, {})
    except DatabaseError as error:
        # On MariaDB an earlier try may have come this far before it was cut off.
        if connection.dialect.name != "mariadb" or not any(word in str(error) for word in _ALREADY_THERE):
            raise
