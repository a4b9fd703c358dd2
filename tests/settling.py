"""A lone worker that ends several steps at once, as the settlement of a real one does, and without its threads.

worker = SettlingWorker(app)
group = worker.think_all(worker.take(3))
worker.settle(group)              # one transaction, or each alone
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepfast.database.database import persist
from stepfast.jobs.lease import Lease, claim
from stepfast.jobs.step import Report
from stepfast.worker.claimer import Gate
from stepfast.worker.committer import Settlement
from stepfast.worker.reporter import Reporter
from stepfast.worker.running import Ended
from tests.lone_worker import LoneWorker

if TYPE_CHECKING:
    from stepfast.jobs.outcome import Effect, Ending

PAGE = "catalogue.page"


@dataclass
class SettlingWorker(LoneWorker):
    stayed: list[Lease] = field(
        default_factory=list, init=False
    )  # continuations that are handed over to be run here
    ended: list[Lease] = field(default_factory=list, init=False)  # leases that are said to be no longer held

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gate = Gate(self.app.database, self.app.kinds)
        self.reporter = Reporter(self.app.database, lambda *_: None)
        self.settlement = Settlement(
            self.app.database,
            reporter=self.reporter,
            gate=self.gate,
            goes_on=self.go_on,
            settled=self.ended.extend,
            healthy=lambda: True,
        )

    def go_on(self, lease: Lease, _chain: int, _since: float) -> bool:
        self.stayed.append(lease)
        return True

    def take(self, count: int) -> list[Lease]:
        """So many jobs that are ready, if their limits have room."""
        found = persist(self.app.database, lambda tx: claim(tx, "default", self.incarnation, count))
        assert len(found) == count, f"only {len(found)} are ready"
        return self.gate.admit(found)

    def take_pages(self, count: int) -> list[Lease]:
        """Plan the run, and take the first requests of so many partitions."""
        return [self.until(kind=PAGE), *self.take(count - 1)]

    def first_pages(self, count: int) -> list[Ended]:
        """The same behind the count of each, and what their handlers answered."""
        self.settle(self.think_all(self.take_pages(count)))
        return self.think_all(self.go_on_with())

    def think_all(self, leases: Sequence[Lease]) -> list[Ended]:
        """Run their handlers."""
        thoughts = [(it, self.think(it)) for it in leases]
        return [self.end(it, thought.ending, thought.effects) for it, thought in thoughts]

    def end(self, lease: Lease, ending: Ending, effects: Sequence[Effect] = ()) -> Ended:
        return Ended(lease, ending, effects, self.app.kinds.get(lease.kind).retry)

    def say(self, lease: Lease, message: str) -> None:
        """A line of its log that nobody has written yet."""
        self.reporter.put(Report(lease, None, None, "info", message))

    def settle(self, group: Sequence[Ended]) -> None:
        """As one lane does."""
        self.settlement._settle_some(list(group))
        while self.settlement._lanes._line:
            self.settlement._settle_some(self.settlement._lanes._next())

    def go_on_with(self) -> list[Lease]:
        """What stayed here, to be run next."""
        stayed, self.stayed = self.stayed, []
        return stayed
