"""Rows that no code of ours writes, in every table: each has one value that is odd, and is plain otherwise.

On SQLite they are written past the CHECK constraints of the tables, which a program can switch off there. A server has no such
switch for its clients: what it refuses cannot be in a row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepfast.database.column_types import COLUMN_TYPES
from stepfast.database.drivers import sqlite_path
from stepfast.database.tables import COLUMNS, table_names
from stepfast.errors import DatabaseError

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.database.connection import Connection


NOW = 1_794_807_000_000_000
NANOSECONDS = NOW * 1_000
DIGITS = "9" * 6_000

# What a plain row has in a column of this name; the table's own list wins.
PLAIN: dict[str, Any] = {
    "address": "http://example.com/hook",
    "abandoned": None,
    "after": None,
    "body": '{"a": 1}',
    "bond": "after",
    "channel": "webhook",
    "cron": "0 3 * * *",
    "cursor_json": '{"at": 1}',
    "declared": None,
    "decision": "next",
    "dedupe_key": None,
    "every": None,
    "frontier": None,
    "headers": '{"x": "y"}',
    "host": "elsewhere",
    "kind": "work",
    "leased_by": None,
    "level": "info",
    "message_ids": None,
    "missed": "once",
    "on_dead": "wait",
    "once_at": None,
    "overlap": "allow",
    "paging": None,
    "payload": '{"n": 1}',
    "pid": 1,
    "process": "elsewhere/1/1",
    "progress": 7,
    "properties": '{"a": "b"}',
    "queue": "default",
    "queues": "*",
    "removed_at": None,
    "result": '{"ok": true}',
    "scope": "complete",
    "severity": "error",
    "source": "code",
    "span": '{"type": "range", "low": 1, "high": 2}',
    "stage": "map",
    "stalled_in": None,
    "status": "completed",
    "tick_as": None,
    "trace": None,
    "tz": "UTC",
    "unique_key": None,
}
STATES: dict[str, tuple[str, ...]] = {
    "stepfast_job": ("ready", "scheduled", "leased", "held", "waiting", "suspect"),
    "stepfast_archive": ("dead", "done", "cancelled"),
    "stepfast_worker": ("alive", "stopped", "dead"),
    "stepfast_dependency": ("open", "met", "broken"),
    "stepfast_outbox": ("waiting", "sent", "dead"),
    "stepfast_run": ("fetching", "applying", "sweeping", "completed", "failed", "planning"),
    "stepfast_partition": ("ready", "running", "failed", "done"),
    "stepfast_quarantine": ("open",),
    "stepfast_debt": ("open", "closed"),
    "stepfast_message": ("ready", "done", "dead"),
}
OWN: dict[str, dict[str, Any]] = {
    "stepfast_run": {"kind": "full", "active_feed": None, "feed": "catalogue"},
    "stepfast_partition": {"run_id": "run-0", "name": "all"},
    "stepfast_page": {"partition_id": "partition-0"},
    "stepfast_seen": {"partition_id": "partition-0"},
    "stepfast_job": {"owner": 1, "held_by": None, "leased_by": None},
    "stepfast_dependency": {"parent_id": "job-0"},
    "stepfast_log": {"job_id": "job-0"},
    "stepfast_task": {"client": "acme"},
    "stepfast_received": {"client": "acme", "task_id": "task-0"},
    "stepfast_dead_message": {"transport": "database"},
    "stepfast_mask": {},
}
KEPT = {
    "stepfast_schema",
    "stepfast_view_names",
    "stepfast_installation",
}  # a wrong one makes the tables another version's
GENERATED = {"result_kind"}


@dataclass(frozen=True)
class AsText:
    """Bytes that SQLite takes for a text, and that are none."""

    raw: bytes = b"\xff\xfehalf"


WHOLE_NUMBERS: tuple[Any, ...] = (-1, 0, 2**31 - 1, -(2**31), NANOSECONDS, 2**63 - 1, -(2**63))
TEXTS: tuple[Any, ...] = (
    "",
    "nonsense",
    "\x1b[31mred\r\n\u202e",
    '{"a":',
    '"\\ud800"',
    '{"a": "\\udfff\\u0000"}',
    DIGITS,
    f'{{"n": {DIGITS}}}',
    "1e999",
    "[" * 300 + "]" * 300,
    "null",
    "[]",
    "7",
    '{"stepfast.wait":{"name":7},"cursor":',
    '{"stepfast.wait":{"name":"x","event":{"id":"1","at":1e30,"payload":1}},"cursor":1}',
    '{"stepfast.sealed":"nonsense"}',
    '{"type":"sweep"',
    '{"type":"sweep","phase":9}',
    "re:0:(",
    "re:nonsense",
    "re:0:",
)
ONLY_IN_SQLITE: tuple[Any, ...] = (AsText(), b"\xff\xfe", 1.5)
Row = dict[str, Any]


@dataclass(frozen=True)
class Written:
    """The odd rows that a database took, by table."""

    rows: dict[str, list[Row]]
    refused: int

    def keys(self, table: str, column: str = "id") -> list[Any]:
        return [row[column] for row in self.rows[table] if isinstance(row[column], str | int)]


def write_odd_rows(app: Stepfast) -> Written:
    """Put a row with each odd value into each column of each table."""
    with app.database.reading() as tx:
        tables = [name for name in table_names(tx) if name.startswith("stepfast_") and name not in KEPT]
        shapes = {
            table: {str(name): str(kind) for name, kind in tx.rows(COLUMNS, table=table, folder=None)}
            for table in tables
        }
    written: dict[str, list[Row]] = {}
    refused = 0
    with closing(Writer.opened(app)) as writer:
        for table, columns in shapes.items():
            written[table] = []
            for row in odd_rows(table, columns, sqlite=writer.is_sqlite):
                if writer.write(table, row):
                    written[table].append(row)
                else:
                    refused += 1
    return Written(written, refused)


def odd_rows(table: str, columns: dict[str, str], *, sqlite: bool) -> Iterator[Row]:
    """A plain row of each state, then rows with one odd value each."""
    states = STATES.get(table, ("ready",))
    for number, state in enumerate(states):
        yield plain_row(table, columns, number) | ({"state": state} if "state" in columns else {})
    number = len(states)
    for column, kind in columns.items():
        if column in GENERATED:
            continue
        whole = is_whole(kind)
        for odd in (*(WHOLE_NUMBERS if whole else (*TEXTS, *(ONLY_IN_SQLITE if sqlite else ()))), None):
            state = states[number % len(states)]
            plain = plain_row(table, columns, number) | ({"state": state} if "state" in columns else {})
            yield plain | {column: odd}
            number += 1


def is_whole(kind: str) -> bool:
    """Whether a column of this type holds whole numbers; on PostgreSQL it may be a domain of ours."""
    domain = COLUMN_TYPES.get(kind.removeprefix("stepfast_"))
    return "int" in (kind if domain is None else domain.base).lower()


def plain_row(table: str, columns: dict[str, str], number: int) -> Row:
    """A row as our code would write it."""
    row: Row = {}
    for column, kind in columns.items():
        if column in GENERATED:
            continue
        if column in OWN.get(table, {}):
            row[column] = OWN[table][column]
        elif column in PLAIN:
            row[column] = PLAIN[column]
        elif (column.endswith(("_at", "_until", "_to", "_from")) and is_whole(kind)) or column == "at":
            row[column] = NOW
        elif is_whole(kind):
            row[column] = number if column in {"id", "incarnation", "number", "seq"} else 1
        elif column == "id" or column.endswith("_id") or column in {"digest", "source", "remembered"}:
            row[column] = f"{table.removeprefix('stepfast_')}-{number}"
        else:
            row[column] = column
    return row


class Writer:
    """Writes rows; on SQLite past the constraints."""

    def __init__(self, connection: Connection | sqlite3.Connection) -> None:
        self._connection = connection
        self.is_sqlite = isinstance(connection, sqlite3.Connection)

    @classmethod
    def opened(cls, app: Stepfast) -> Writer:
        if app.database.dialect.name == "sqlite":
            raw = sqlite3.connect(sqlite_path(app.database.url), isolation_level=None)
            raw.execute("PRAGMA ignore_check_constraints = ON")
            raw.execute("PRAGMA synchronous = OFF")
            return cls(raw)
        return cls(app.database.connect())

    def write(self, table: str, row: Row) -> bool:
        """Whether the database took it."""
        names = ", ".join(row)
        if isinstance(self._connection, sqlite3.Connection):
            places = ", ".join("CAST(? AS TEXT)" if isinstance(it, AsText) else "?" for it in row.values())
            values = [it.raw if isinstance(it, AsText) else it for it in row.values()]
            try:
                self._connection.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", values)
            except (sqlite3.Error, OverflowError):
                return False
            return True
        own = "OVERRIDING SYSTEM VALUE " if self._connection.dialect.name == "postgresql" else ""
        places = ", ".join(f"%({name})s" for name in row)
        try:
            self._connection.execute(f"INSERT INTO {table} ({names}) {own}VALUES ({places})", row)
        except (DatabaseError, ValueError):
            return False
        return True

    def close(self) -> None:
        self._connection.close()
