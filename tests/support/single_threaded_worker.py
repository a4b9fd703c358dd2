"""Workers without threads: the test decides what happens next, and between which two statements.

    worker = SingleThreadedWorker(app)
    lease = worker.claim()
    answer = worker.run_handler(lease)  # asks the source, writes nothing
    worker.commit(lease, answer)  # its effects and its outcome

`GroupCommittingWorker` ends several steps in one transaction, as the committer of a real worker does:

    worker = GroupCommittingWorker(app)
    group = worker.run_handlers(worker.take(3))
    worker.commit_group(group)  # one transaction, or each alone
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stepfast.config import WorkerSettings
from stepfast.database.database import persist
from stepfast.jobs.commit import commit, effects_of
from stepfast.jobs.lease import Lease, claim, claim_suspect
from stepfast.jobs.outcome import Done
from stepfast.jobs.rescue import declare_dead, rescue
from stepfast.jobs.retry import judge
from stepfast.jobs.step import Report, Step
from stepfast.worker.admission import Admission
from stepfast.worker.committer import Committer
from stepfast.worker.heartbeat import Heartbeat, register
from stepfast.worker.leases import Leases
from stepfast.worker.maintenance import promote
from stepfast.worker.reporter import Reporter
from stepfast.worker.running import Ended
from stepfast.worker.wakeups import Wakeups
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.jobs.outcome import Effect, Ending


MOST_STEPS = 2_000  # only a run that never ends takes more


@dataclass(frozen=True)
class Answer:
    """What a handler answered."""

    ending: Ending
    effects: Sequence[Effect] = ()


class NoReports:
    """Drops the reports of a step."""

    def put(self, report: Report, /) -> None: ...
    def results_of_parents(self, _: str, /) -> dict[str, Any]:
        return {}


@dataclass
class SingleThreadedWorker:
    app: Stepfast
    name: str = "lone"
    incarnation: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        settings = WorkerSettings(worker_id=self.name, lease=timedelta(hours=1))
        self.incarnation = persist(self.app.database, lambda tx: register(tx, settings))

    def claim(self) -> Lease | None:
        """Claim the next ready job, or else a suspect."""
        found = persist(self.app.database, lambda tx: claim(tx, "default", self.incarnation, 1))
        if found:
            return found[0]
        return persist(self.app.database, lambda tx: claim_suspect(tx, self.incarnation, []))

    def run_handler(self, lease: Lease) -> Answer:
        """Run the handler. What it raises is judged as the worker does."""
        kind = self.app.kinds.get(lease.kind)
        step = Step(lease, NoReports(), self.name)
        try:
            arguments = kind.arguments.decode(lease.payload)
            given = (step,) if kind.arguments.wants_step else ()
            answer: Any = asyncio.run(_awaited(kind.handler(*given, **arguments)))
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            return Answer(judge(error, kind.retry, lease.failures, 0.0))
        ending = Done(answer) if answer is None else answer
        return Answer(ending, [*step.effects, *effects_of(ending)] if hasattr(ending, "effects") else ())

    def commit(self, lease: Lease, thought: Answer) -> Ending:
        """Commit an answer; an error of an effect fails the step, in a transaction of its own."""
        try:
            persist(self.app.database, lambda tx: commit(tx, lease, thought.ending, thought.effects))
        except Exception as error:
            if not thought.effects:
                raise
            kind = self.app.kinds.get(lease.kind)
            failed = judge(error, kind.retry, lease.failures, 0.0)
            persist(self.app.database, lambda tx: commit(tx, lease, failed))
            return failed
        return thought.ending

    def step(self) -> Lease | None:
        """Run and commit one step; None if no job is ready."""
        lease = self.claim()
        if lease is not None:
            self.commit(lease, self.run_handler(lease))
        return lease

    def until(self, *, kind: str) -> Lease:
        """Work until the next job is of this kind, and take it."""
        for _ in range(MOST_STEPS):
            lease = self.claim()
            assert lease is not None, f"nothing is ready, and no {kind} came"
            if lease.kind == kind:
                return lease
            self.commit(lease, self.run_handler(lease))
        raise AssertionError(f"no {kind} came in {MOST_STEPS} steps")

    def finish(self) -> int:
        """Work until no job is left; returns the number of steps. Scheduled jobs become ready at once."""
        for number in range(MOST_STEPS):
            rows.change(self.app, "UPDATE stepfast_job SET ready_at = 1 WHERE state = 'scheduled'")
            persist(self.app.database, promote)
            if self.step() is None:
                assert not rows.count(self.app, "stepfast_job"), "no worker can claim the jobs that are left"
                return number
        raise AssertionError(f"no end in {MOST_STEPS} steps")

    def declare_others_dead(self) -> None:
        """Declare all other workers dead, and rescue their jobs."""
        rows.change(
            self.app,
            "UPDATE stepfast_worker SET alive_until = 1 WHERE state = 'alive' AND incarnation <> :me",
            me=self.incarnation,
        )
        persist(self.app.database, lambda tx: declare_dead(tx, self.incarnation, trust_clock=True))
        while persist(self.app.database, lambda tx: rescue(tx, WorkerSettings.crash_limit)).jobs:
            pass


async def _awaited(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


PAGE = "catalogue.page"


class NotedLeases(Leases):
    """Leases of a worker without an event loop: what continues here and what has ended is noted."""

    def __init__(self, app: Stepfast) -> None:
        super().__init__(WorkerSettings(), Wakeups(app.database))
        self.stayed: list[Lease] = []  # continuations that are to be run here
        self.over: list[Lease] = []  # leases that are no longer held

    def resume(self, lease: Lease, chain: int, chain_since: float) -> bool:
        del chain, chain_since
        self.stayed.append(lease)
        return True

    def forget(self, leases: Iterable[Lease]) -> None:
        self.over.extend(leases)


class Healthy(Heartbeat):
    """A heartbeat that gets through, and is never started."""

    @property
    def may_claim(self) -> bool:
        return True


@dataclass
class GroupCommittingWorker(SingleThreadedWorker):
    def __post_init__(self) -> None:
        super().__post_init__()
        database = self.app.database
        self.leases = NotedLeases(self.app)
        self.admission = Admission(database, self.app.kinds)
        self.reporter = Reporter(database, self.leases)
        heartbeat = Healthy(database, WorkerSettings(), self.leases, Wakeups(database))
        self.committer = Committer(database, self.leases, self.admission, self.reporter, heartbeat)

    @property
    def stayed(self) -> list[Lease]:
        return self.leases.stayed

    @property
    def ended(self) -> list[Lease]:
        return self.leases.over

    def take(self, count: int) -> list[Lease]:
        """Claim so many ready jobs, and ask their limits."""
        found = persist(self.app.database, lambda tx: claim(tx, "default", self.incarnation, count))
        assert len(found) == count, f"only {len(found)} are ready"
        return self.admission.admit(found)

    def take_pages(self, count: int) -> list[Lease]:
        """Plan the run, and take the first requests of so many partitions."""
        return [self.until(kind=PAGE), *self.take(count - 1)]

    def first_pages(self, count: int) -> list[Ended]:
        """Do the counts of so many partitions, then run the handlers of their first pages."""
        self.commit_group(self.run_handlers(self.take_pages(count)))
        return self.run_handlers(self.take_continued())

    def run_handlers(self, leases: Sequence[Lease]) -> list[Ended]:
        """Run their handlers."""
        thoughts = [(it, self.run_handler(it)) for it in leases]
        return [self.end(it, thought.ending, thought.effects) for it, thought in thoughts]

    def end(self, lease: Lease, ending: Ending, effects: Sequence[Effect] = ()) -> Ended:
        return Ended(lease, ending, effects, self.app.kinds.get(lease.kind).retry)

    def say(self, lease: Lease, message: str) -> None:
        """Put a line of the job's log that is not written yet."""
        self.reporter.put(Report(lease, None, None, "info", message))

    def commit_group(self, group: Sequence[Ended]) -> None:
        """As one thread of the committer does."""
        self.committer._commit_group(list(group))
        while len(self.committer._line):
            self.committer._commit_group(self.committer._line.take(self.committer._may_share))

    def take_continued(self) -> list[Lease]:
        """The continuations that stayed on this worker, to be run next."""
        stayed, self.leases.stayed = self.leases.stayed, []
        return stayed
