"""Types of columns that refuse what no code of ours writes: for rows that are written by hand.

A migration writes `ready_at {instant} NOT NULL`, as if it were a type. SQLite and MariaDB get a CHECK at the end of the column.
PostgreSQL gets a domain, which `{domain:instant}` makes: it reads the CHECKs of a table anew for every statement, 3 µs each,
and a domain's once per connection. In a statement that is planned anew a domain still costs 0.8 µs. So `{instant:hot}`, in
tables that every job passes through, is a plain number there; what would hurt most (state, ready_at, failures, crashes) is
checked everywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stepfast.database.dialects import Dialect


_COLUMN: Final = re.compile(r"^(\s+\w+ )\{(\w+)(:hot)?\}(.*?)(,?)$", re.MULTILINE)
_DOMAIN: Final = re.compile(r"\{domain:(\w+)\}")


@dataclass(frozen=True)
class ColumnType:
    """A type of the database, and a condition for its values; `{}` stands for the column."""

    base: str
    condition: str

    def check(self, column: str, _: str) -> str:
        return f"CHECK ({self.condition.format(column)})"


@dataclass(frozen=True)
class OneOf:
    """A text that must be one of these."""

    base: str
    values: tuple[str, ...]

    def check(self, column: str, dialect: str) -> str:
        if dialect == "sqlite":  # for a list it would build a small table, at every INSERT
            return f"CHECK ({' OR '.join(f'{column} = {value!r}' for value in self.values)})"
        return f"CHECK ({column} IN ({', '.join(map(repr, self.values))}))"


def _range(base: str, lowest: int, highest: int) -> ColumnType:
    return ColumnType(base, f"{{}} BETWEEN {lowest} AND {highest}")


def _one_of(base: str, values: str) -> OneOf:
    return OneOf(base, tuple(values.split()))


COLUMN_TYPES: Final[dict[str, ColumnType | OneOf]] = {
    "instant": _range("BIGINT", -62_135_596_800_000_000, 253_402_300_799_999_999),  # the years 1 to 9999
    "counter": _range("INTEGER", 0, 1_000_000_000),  # two of them can be added
    "total": _range("BIGINT", 0, 1_000_000_000_000_000_000),  # a large counter, or a duration in microseconds
    "skew": _range(
        "BIGINT", -1_000_000_000_000_000_000, 1_000_000_000_000_000_000
    ),  # microseconds between two clocks
    "flag": _range("INTEGER", 0, 1),
    "priority": _range(
        "INTEGER", -32_768, 32_767
    ),  # on PostgreSQL a SMALLINT, which is no larger, and needs no domain
    "percentage": _range("INTEGER", 0, 100),
    "job_state": _one_of("VARCHAR(10)", "scheduled ready suspect leased held waiting"),
    "ended_state": _one_of("VARCHAR(10)", "done dead cancelled"),
    "worker_state": _one_of("VARCHAR(10)", "alive stopped dead"),
    "bond": _one_of("VARCHAR(10)", "after member"),
    "on_dead": _one_of("VARCHAR(10)", "wait fail run"),
    "edge_state": _one_of("VARCHAR(10)", "open met broken"),
    "missed": _one_of("VARCHAR(10)", "once all skip"),
    "overlap": _one_of("VARCHAR(10)", "allow skip"),
    "message_state": _one_of("VARCHAR(10)", "waiting sent dead"),
    "run_kind": _one_of("VARCHAR(12)", "full incremental backfill verify remap"),
    "run_state": _one_of(
        "VARCHAR(20)",
        "planning fetching applying sweeping stalled completed published_partial failed failed_quality cancelled",
    ),
    "partition_state": _one_of("VARCHAR(20)", "ready running done done_unverified split failed cancelled"),
    "quarantine_state": _one_of("VARCHAR(10)", "open replaying replayed superseded discarded"),
    "debt_state": _one_of("VARCHAR(10)", "open closed"),
    "queued_state": _one_of("VARCHAR(10)", "ready done dead"),
}


def with_column_types(text: str, dialect: Dialect) -> str:
    """A statement of a migration, its column types as this database has them."""
    text = _DOMAIN.sub(lambda found: _domain(found[1]), text)
    return _COLUMN.sub(lambda found: _column(found, dialect), text)


def _domain(name: str) -> str:
    found = COLUMN_TYPES[name]
    return f"CREATE DOMAIN stepfast_{name} AS {found.base} {found.check('VALUE', 'postgresql')}"


def _column(found: re.Match[str], dialect: Dialect) -> str:
    start, name, hot, rest, comma = found.groups()
    if name not in COLUMN_TYPES:
        return found[0]  # a word of the dialect
    it = COLUMN_TYPES[name]
    if dialect.name == "postgresql":
        plain = "SMALLINT" if name == "priority" else it.base if hot else f"stepfast_{name}"
        return f"{start}{plain}{rest}{comma}"
    return f"{start}{it.base}{rest} {it.check(start.strip(), dialect.name)}{comma}"
