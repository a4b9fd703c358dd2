"""Read the tables directly, and write what a test needs to find there.

Time is moved by writing instants into rows: the database's clock decides, and it cannot be set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from stepfast.database.statement import sql

if TYPE_CHECKING:
    from stepfast import Stepfast


T = TypeVar("T")
Row = dict[str, Any]

PATIENCE = 20.0  # seconds; only a test that fails waits so long
SECOND = 1_000_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR

# One statement, so that a job on its way from one table to the other is seen once.
STATES = """
    SELECT state FROM stepfast_job WHERE id = :id UNION ALL SELECT state FROM stepfast_archive WHERE id = :id
"""
CLOCK = sql("SELECT {now}")
WORKER = sql("""
    INSERT INTO stepfast_worker (incarnation, worker_id, state, alive_until, lease, started_at, beat_at,
                                 process, host, pid, concurrency, queues)
    VALUES (:incarnation, :worker_id, :state, {now} + :alive_for, 10000000, {now}, {now},
            'another machine/1/1', 'elsewhere', 1, 10, '*')
""")


def query(app: Stepfast, text: str, **parameters: Any) -> list[Row]:
    with app.database.reading() as tx:
        return tx.query(text, parameters)


def change(app: Stepfast, text: str, **parameters: Any) -> int:
    with app.transaction() as tx:
        return tx.execute(text, parameters)


def now(app: Stepfast) -> int:
    """The database's time."""
    with app.database.reading() as tx:
        return int(tx.first(CLOCK))


def live(app: Stepfast, job_id: str) -> Row | None:
    """The row of an unfinished job."""
    found = query(app, "SELECT * FROM stepfast_job WHERE id = :id", id=job_id)
    return found[0] if found else None


def ended(app: Stepfast, job_id: str) -> Row | None:
    """The row of a job that ended."""
    found = query(app, "SELECT * FROM stepfast_archive WHERE id = :id", id=job_id)
    return found[0] if found else None


def state(app: Stepfast, job_id: str) -> str | None:
    """The state of a job; fails if it is both live and archived."""
    found = query(app, STATES, id=job_id)
    assert len(found) <= 1, f"job {job_id} is live and archived"
    return str(found[0]["state"]) if found else None


def count(app: Stepfast, table: str, where: str = "1 = 1") -> int:
    return int(query(app, f"SELECT count(*) AS n FROM {table} WHERE {where}")[0]["n"])


def logs(app: Stepfast, job_id: str) -> list[str]:
    found = query(app, "SELECT message FROM stepfast_log WHERE job_id = :id ORDER BY id", id=job_id)
    return [str(row["message"]) for row in found]


def add_worker(
    app: Stepfast, incarnation: int, *, worker_id: str = "alice", state: str = "alive", alive_for: int = HOUR
) -> int:
    """Add a worker of another machine. With a negative `alive_for` it has been silent for that long."""
    with app.transaction() as tx:
        tx.run(WORKER, incarnation=incarnation, worker_id=worker_id, state=state, alive_for=alive_for)
    return incarnation


def set_schema_version(app: Stepfast, version: int) -> None:
    """Write this schema version into the tables."""
    with app.transaction() as tx:
        tx.execute("DELETE FROM stepfast_schema WHERE component = 'stepfast'")
        tx.execute(
            "INSERT INTO stepfast_schema (component, version, name, applied_at)"
            " VALUES ('stepfast', :version, 'another', 1)",
            {"version": version},
        )


def make_due(app: Stepfast, job_id: str) -> None:
    """Make a scheduled job ready."""
    matched = change(
        app,
        "UPDATE stepfast_job SET state = 'ready', ready_at = 1 WHERE id = :id AND state = 'scheduled'",
        id=job_id,
    )
    assert matched == 1


def eventually(look: Callable[[], T | None], patience: float = PATIENCE) -> T:
    """Call `look` until it returns something true, and return that."""
    deadline = time.monotonic() + patience
    while not (found := look()):
        assert time.monotonic() < deadline, f"did not happen within {patience} s"
        time.sleep(0.005)
    return found


# All rows of some tables, to be brought back as often as a test needs the same beginning.

ENGINE = (
    "job",
    "archive",
    "worker",
    "queue",
    "key",
    "log",
    "limit",
    "slot",
    "audit",
    "outbox",
    "alert",
    "death",
)
RUNS = ("feed", "run", "partition", "page", "seen", "raw", "quarantine", "debt")
OF_RUNS = (*(f"stepfast_{it}" for it in (*ENGINE, *RUNS)), "item")
GENERATED = {"result_kind"}  # columns that MariaDB works out itself


@dataclass(frozen=True)
class Snapshot:
    tables: dict[str, list[Row]]

    @classmethod
    def taken(cls, app: Stepfast, tables: Iterable[str] = OF_RUNS) -> Snapshot:
        return cls({it: [_own(row) for row in query(app, f"SELECT * FROM {it}")] for it in tables})

    def restore(self, app: Stepfast) -> None:
        own = (
            "OVERRIDING SYSTEM VALUE " if app.database.dialect.name == "postgresql" else ""
        )  # ids it gave out
        with app.transaction() as tx:
            for table, kept in self.tables.items():
                tx.execute(f"DELETE FROM {table}")
                if kept:
                    names = list(kept[0])
                    values = ", ".join(f":{it}" for it in names)
                    tx.execute_many(f"INSERT INTO {table} ({', '.join(names)}) {own}VALUES ({values})", kept)


def _own(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in GENERATED}
