"""The database before a case: jobs, a worker that is going to die, and what it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from stepfast import Done, Job, Stepfast
from stepfast.config import WorkerSettings
from stepfast.database.database import persist
from stepfast.jobs.commit import commit
from stepfast.jobs.lease import Lease, claim
from stepfast.worker.heartbeat import register
from tests.crash.recovery import effect_of
from tests.crash.table_dump import ALL_TABLES
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Transaction
    from stepfast.jobs.outcome import Effect, Ending

T = TypeVar("T")
SETTINGS = WorkerSettings(worker_id="victim", lease=timedelta(hours=1))
KEY = "key 1"  # of the first job of every case


def work(n: int, steps: int = 1) -> None:
    """Never called: the recovering worker of these tests ends jobs by itself."""


@dataclass
class Setup:
    """An emptied database with one registered worker, `victim`; a case adds what it needs."""

    app: Stepfast
    job: Job[..., None]
    victim: int = 0  # the incarnation of the process that dies
    jobs: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        with self.app.transaction() as tx:
            for table in ALL_TABLES:
                tx.execute(f"DELETE FROM {table}")
        self.victim = self.do(lambda tx: register(tx, SETTINGS))

    def do(self, act: Callable[[Transaction], T]) -> T:
        """Call `act` in a transaction of its own."""
        return persist(self.app.database, act)

    def enqueue(self, count: int = 1, *, steps: int = 1) -> list[str]:
        """Ready jobs, numbered from 1; the first one holds a key."""
        ids = []
        for _ in range(count):
            self.jobs += 1
            key = KEY if self.jobs == 1 else None
            ids.append(self.job.enqueue(n=self.jobs, steps=steps, key=key).id)
        return ids

    def leased(self, count: int = 1, *, steps: int = 1, by: int | None = None) -> list[Lease]:
        """New jobs that the victim holds, or another worker."""
        self.enqueue(count, steps=steps)
        return self.claimed(count, by=by)

    def claimed(self, count: int, *, by: int | None = None) -> list[Lease]:
        """Let the victim, or another worker, claim so many ready jobs."""
        leases = self.do(lambda tx: claim(tx, "default", self.victim if by is None else by, count))
        assert len(leases) == count
        return leases

    def end(
        self, lease: Lease, ending: Ending | None = None, effects: Sequence[Effect] | None = None
    ) -> None:
        """Commit a step, with its effect unless other effects are given."""
        with_it = [effect_of(lease)] if effects is None else effects
        self.do(lambda tx: commit(tx, lease, ending or Done(), with_it))

    def ended(self, count: int = 1, ending: Ending | None = None) -> list[str]:
        """New jobs that have ended; those that are done had no step to run."""
        leases = self.leased(count, steps=1 if ending else 0)
        for lease in leases:
            self.end(lease, ending, effects=())
        return [lease.job_id for lease in leases]

    def another_worker(self, *, silent: bool = False) -> int:
        return rows.add_worker(
            self.app, 4711, worker_id="another", alive_for=-rows.HOUR if silent else rows.HOUR
        )

    def change(self, text: str, **parameters: object) -> None:
        assert rows.change(self.app, text, **parameters), "changed no row"
