"""The words that statements use and the three databases spell differently: `{now}`, `{skip_locked}`, `{any_of}` …

`sql` in `statement.py` puts them into the text of a statement. A statement that needs a text of its own for one database
carries it as an override, with the reason beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


MARK: Final = "made by stepfast migrate"  # in tables of MariaDB and in views, so that they are known again


class Plans(Enum):
    """Planner settings that a PostgreSQL transaction begins with."""

    FREE = "free"  # the planner's own choice: for statements of users
    ENGINE = "engine"  # each statement of Stepfast has one right plan: its index, in its order
    BY_KEY = "by key"  # each statement names one row by its key, or inserts: its plan may be kept


@dataclass(frozen=True, eq=False)  # there are three of them, each equal to itself only
class Dialect:
    name: str
    edition: str  # key of the cache of rendered statements; empty: none, since the time of a test's clock does not last
    parameter: str  # how the driver spells the parameter called {}
    begin: Mapping[Plans, str]  # opens a transaction that is going to write, with its limits
    begin_reading: str  # opens one that only looks
    commits_unasked: bool  # whether a statement of the user's may end the transaction without saying so
    quote: str  # around identifiers
    most_parameters: int  # in one statement
    words: Mapping[str, str]  # the vocabulary of `statement.sql`


@dataclass(frozen=True)
class Shift:
    """Another time than the database's own, for tests: so many microseconds away from it, or frozen."""

    offset: int = 0
    frozen_at: int | None = None

    def applied(self, dialect: Dialect) -> Dialect:
        """The dialect with `{now}` at that time."""
        now = f"({dialect.words['now']} + ({self.offset}))" if self.frozen_at is None else str(self.frozen_at)
        return replace(dialect, edition="", words={**dialect.words, "now": now})


SQLITE = Dialect(
    name="sqlite",
    edition="sqlite",
    parameter=":{}",
    # Deferred: 183 of 240 contended transactions failed; immediate: none.
    begin=dict.fromkeys(Plans, "BEGIN IMMEDIATE"),
    begin_reading="BEGIN",
    commits_unasked=False,
    quote='"',
    most_parameters=30_000,
    words={
        "key": "VARCHAR(128)",
        "label": "VARCHAR(200)",
        "long_label": "VARCHAR(300)",
        "document": "TEXT",
        "json": "TEXT NOT NULL CHECK (json_valid({}))",
        "sequence": "INTEGER PRIMARY KEY AUTOINCREMENT",  # without it SQLite gives a deleted row's id again
        "table_options": "",
        "if_not_exists": "IF NOT EXISTS",
        "with_limits": "",
        # Millisecond grain (3.40 has no microseconds): order inside a millisecond rests on the ids.
        "now": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) * 1000 AS INTEGER)",
        "any_of": "IN (SELECT value FROM json_each(:{}))",
        "json_of": ":{}",
        "text_of": "{}",
        "for_update": "",  # BEGIN IMMEDIATE is the lock
        "skip_locked": "",
        "keep_existing": "ON CONFLICT DO NOTHING",
        "claim_index": "",
    },
)
# One round trip, and inside the transaction so that a transaction pooler keeps the limits:
# a host that vanished must not hold our rows for hours.
_LIMITED = (
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '2s'; "
    "SET LOCAL statement_timeout = '30s'; SET LOCAL idle_in_transaction_session_timeout = '10s'"
)
# A queue is empty, then full: whatever the statistics say is wrong by then. Our statements have one right plan, the
# index in its order; scanning and sorting drained 1,300 jobs/s after an idle hour, this 32,000.
_ONE_PLAN = (
    "; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_hashjoin = off; "
    "SET LOCAL enable_mergejoin = off; SET LOCAL enable_sort = off; SET LOCAL jit = off"
)
# One row by its key: that plan may be kept, which spares the server a quarter of a step with an effect row.
_KEPT_PLAN = (
    "; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off; "
    "SET LOCAL plan_cache_mode = force_generic_plan"
)
POSTGRESQL = Dialect(
    name="postgresql",
    edition="postgresql",
    parameter="%({})s",
    begin={
        Plans.FREE: _LIMITED,
        Plans.ENGINE: _LIMITED + _ONE_PLAN,
        Plans.BY_KEY: _LIMITED + _KEPT_PLAN,
    },
    begin_reading=(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; "
        "SET LOCAL lock_timeout = '2s'; SET LOCAL statement_timeout = '30s'"
    ),
    commits_unasked=False,  # a procedure's COMMIT is refused inside our transaction
    quote='"',
    most_parameters=60_000,
    words={
        "key": 'VARCHAR(128) COLLATE "C"',
        "label": 'VARCHAR(200) COLLATE "C"',
        "long_label": 'VARCHAR(300) COLLATE "C"',
        "document": "TEXT",
        "json": "JSON NOT NULL",  # checked when stored, kept as written
        "sequence": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "table_options": "",
        "if_not_exists": "IF NOT EXISTS",
        # Rows live for seconds: vacuum must follow the deletes, not the table's size.
        "with_limits": (
            "WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, "
            "autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1, autovacuum_vacuum_cost_limit = 2000, "
            "vacuum_truncate = off)"  # truncating would lock everybody out of a table that fills again at once
        ),
        # statement_timestamp() is stable, so the index may use it; clock_timestamp() is volatile (608 ms against 59).
        "now": "CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)",
        "any_of": "= ANY(CAST(:{} AS TEXT[]))",
        # As texts, whatever a lent connection was taught about JSON (SQLAlchemy and asyncpg have codecs of their own).
        "json_of": "CAST(CAST(:{} AS TEXT) AS JSON)",
        "text_of": "CAST({} AS TEXT)",
        "for_update": "FOR UPDATE",
        "skip_locked": "FOR UPDATE SKIP LOCKED",
        "keep_existing": "ON CONFLICT DO NOTHING",
        "claim_index": "",
    },
)
MARIADB = Dialect(
    name="mariadb",
    edition="mariadb",
    parameter="%({})s",
    begin=dict.fromkeys(Plans, "START TRANSACTION"),
    begin_reading="START TRANSACTION READ ONLY",
    commits_unasked=True,  # by DDL, also inside a procedure
    quote="`",
    most_parameters=60_000,
    words={
        "key": "VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "label": "VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "long_label": "VARCHAR(300) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "document": "LONGTEXT",
        "json": "LONGTEXT NOT NULL CHECK (JSON_VALID({}))",
        "sequence": "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
        "if_not_exists": "",  # MySQL has none; a second try may find it there
        "table_options": f"ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='{MARK}'",
        "with_limits": "",
        # UNIX_TIMESTAMP(NOW(6)) goes back 3,600 s in the repeated hour of a DST change.
        "now": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
        "any_of": "IN :{}",
        "json_of": ":{}",
        "text_of": "{}",
        "for_update": "FOR UPDATE",
        "skip_locked": "FOR UPDATE SKIP LOCKED",
        "keep_existing": "ON DUPLICATE KEY UPDATE id = id",  # INSERT IGNORE would hide other errors
        # The optimizer would sort the whole queue, and lock it while it does.
        "claim_index": "FORCE INDEX (stepfast_job_ready)",
    },
)
DIALECTS = {dialect.name: dialect for dialect in (SQLITE, POSTGRESQL, MARIADB)}
