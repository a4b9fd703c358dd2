"""Which jobs to take, and when: the loop that turns ready rows into leases of this process.

A claim takes jobs in their order (`jobs/lease.py`); how many are wanted, `Leases` decides (`worker/leases.py`). `Admission`
(`worker/admission.py`) then asks their limits, and the leases that it admits wait in `Leases` for the event loop.
"""

from __future__ import annotations

import math
import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from stepfast.clock import boot_time
from stepfast.database.database import persist
from stepfast.database.dialects import Plans
from stepfast.errors import DatabaseError
from stepfast.jobs.commit import give_back
from stepfast.jobs.lease import (
    Lease,
    claim,
    claim_named,
    claim_suspect,
    claim_suspects,
    queues_with_work,
    waiting_suspects,
)
from stepfast.telemetry import happened, wanted
from stepfast.worker.periodic import Outage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast.config import WorkerSettings
    from stepfast.database.connection import Connection, Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.lease import WaitingSuspects
    from stepfast.worker.admission import Admission
    from stepfast.worker.heartbeat import Heartbeat
    from stepfast.worker.leases import Leases
    from stepfast.worker.wakeups import Wakeups

T = TypeVar("T")

# Seconds; after work, for longer than a wake-up may be withheld.
QUICK_LOOKS: Final = (0.002, 0.004, 0.008, 0.016)
UNHEARD_LOOKS: Final = (0.003,) * 20  # after work, where the database sends no wake-ups
HEARD_POLL: Final = 1.0  # seconds; hearing nothing is never trusted
UNHEARD_POLL: Final = 0.05  # where the database sends no wake-ups,
RESTING_POLL: Final = 0.25  # and when there was nothing to do ...
RESTING_AFTER: Final = 10.0  # ... for so long
STUCK_AFTER: Final = 0.5  # seconds after which unstarted jobs go back
DISCOVER_EVERY: Final = 0.25
DISCOVER_SHARE: Final = 20  # looking for queues takes a twentieth of the time at most
FEWEST_TOGETHER: Final = 3  # suspects that run side by side, where there are as many
ALONE_FOR: Final = 2.0  # seconds that suspects may keep a worker for themselves, when others wait


class Claimer:
    """Claims jobs from the queues in turn, as many as the handlers can take."""

    def __init__(  # noqa: PLR0917 - what a claim needs to know
        self,
        database: Database,
        settings: WorkerSettings,
        leases: Leases,
        admission: Admission,
        heartbeat: Heartbeat,
        wakeups: Wakeups,
    ) -> None:
        self._database = database
        self._settings = settings
        self._leases = leases
        self._admission = admission
        self._heartbeat = heartbeat
        self._wakeups = wakeups
        self._hints: dict[str, Hint] = {}
        self._discovered: list[str] = []
        self._discover_at = 0.0
        self._worked_at = time.monotonic()
        self._turn = 0
        self._outage = Outage("claiming", settings.worker_id)
        self._keeping = Outage("giving back", settings.worker_id)
        self._answered = False  # whether the database has answered a question of this round
        self._suspects_wait = threading.Event()  # and have no process of their own
        self._alone_since: float | None = None  # since when suspects have this worker to themselves
        self._normal_until = 0.0
        self._stopping = threading.Event()

    def work_until(self, stopping: threading.Event) -> None:
        """Claim jobs and hand them over, until told to stop."""
        self._stopping = stopping
        empty = 0  # rounds in a row that found nothing
        named: set[str] = set()
        while not stopping.is_set():
            self._answered = False
            try:
                found = self._run_suspects() if self._is_turn_of_suspects() else self._round(named)
            except DatabaseError as error:
                self._outage.begin(error)
                self._wakeups.wait(random.uniform(0.5, 1.0))
                continue
            if self._outage.lasts and self._answered:
                self._outage.end()
            empty = 0 if found else empty + 1
            self._worked_at = time.monotonic() if found else self._worked_at
            woken, named = self._wakeups.wait(self._pause(empty))
            if woken:
                empty = 0  # what woke us may be visible only a moment later: look a few times
            for queue in named:
                self._hints.setdefault(queue, Hint()).woken = True

    # One round: ask each queue once.

    def _round(self, named: set[str]) -> int:
        """Ask each queue once, starting with another one each time; returns how many jobs were taken."""
        self._return_stuck()
        if boot_time() >= self._heartbeat.may_claim_until:
            return 0
        taken = 0
        queues = self._queues(named)
        for _ in queues:
            want = self._leases.wanted()
            if want <= 0:
                break
            self._turn = (self._turn + 1) % len(queues)
            leases = self._claim(queues[self._turn], want)
            if leases:
                taken += len(leases)
                self._leases.add(self._admission.admit(leases))
        return taken

    def _queues(self, named: set[str]) -> list[str]:
        """The queues to ask: those that the settings name, or all that have work."""
        if self._settings.queues:
            return list(self._settings.queues)
        if named:
            return sorted(named)
        now = time.monotonic()
        if not self._discovered or now >= self._discover_at:
            with self._database.looking() as tx:
                self._discovered = queues_with_work(tx)
            self._answered = True
            # Dead index entries that a foreign transaction pins make this expensive, too.
            took = time.monotonic() - now
            self._discover_at = now + max(DISCOVER_EVERY, took * DISCOVER_SHARE)
        return list(self._discovered)

    def _claim(self, queue: str, want: int) -> list[Lease]:
        """Claim up to `want` jobs of one queue, from where the hint says; the rest without the hint."""
        hint = self._hints.setdefault(queue, Hint())
        now = time.monotonic()
        start = hint.start(now)
        leases = self._take(queue, want, start)
        self._answered = True
        took = time.monotonic() - now
        hint.learn(leases, want, now + took, hinted=start is not None, took=took)
        if start is not None and len(leases) < want:
            rest = want - len(leases)
            more = self._take(queue, rest, None)
            both = time.monotonic() - now
            hint.learn(more, rest, now + both, hinted=False, took=both - took)
            leases += more
        if not leases and queue in self._discovered:
            self._discovered.remove(queue)
        if wanted("jobs.claimed"):
            happened("jobs.claimed", queue=queue, jobs=len(leases), waited_s=self._waited(leases))
        return leases

    def _take(self, queue: str, want: int, start: tuple[int, int] | None) -> list[Lease]:
        owner = self._heartbeat.incarnation

        def take(tx: Transaction) -> list[Lease]:
            leases = claim(tx, queue, owner, want, start)
            tx.wrote = bool(leases)
            return leases

        return persist(self._database, take)

    def _waited(self, leases: list[Lease]) -> list[float] | None:
        """For how many seconds each job was ready, by the database's clock."""
        now = self._heartbeat.database_time()
        return None if now is None else [max(0.0, now - lease.ready_at / 1e6) for lease in leases]

    def _return_stuck(self) -> None:
        """Give back leases that wait here behind slow steps, so that other workers can run them."""
        if self._leases.longest_wait() > STUCK_AFTER:
            self._leases.slow_down()
            self.give_back(self._leases.take_waiting())

    def give_back(self, leases: list[Lease], *, on: Connection | None = None) -> bool:
        """Put these jobs back into their queues: their steps have not run, or were interrupted. False if that failed."""
        given_back = True
        by_fence: dict[int, list[str]] = {}
        for lease in leases:
            by_fence.setdefault(lease.fence, []).append(lease.job_id)
        for fence, ids in by_fence.items():
            try:
                with self._database.transaction(Plans.ENGINE, on=on) as tx:
                    give_back(tx, ids, fence)
                    self._admission.free(tx, [lease for lease in leases if lease.fence == fence])
            except DatabaseError as error:
                given_back = False
                self._keeping.begin(error, note="leases cannot be given back: they run out by themselves")
            else:
                self._keeping.end()
        return given_back

    def give_back_uncommitted(self) -> None:
        """Put back the jobs whose ends a part of the worker that broke has not written; what is written stays so."""
        for job_id, fence in self._leases.uncommitted():
            try:
                with self._database.transaction(Plans.ENGINE) as tx:
                    give_back(tx, [job_id], fence)
            except DatabaseError as error:
                self._keeping.begin(error, note="leases cannot be given back: they run out by themselves")
                return

    # How long to wait for the next round.

    def _pause(self, empty: int) -> float:
        self._leases.claimer_waits = True  # before we ask: a slot that is freed in between must wake us
        if self._leases.wanted() <= 0:
            return STUCK_AFTER
        self._leases.claimer_waits = False
        if not empty:
            return 0.0
        looks = QUICK_LOOKS if self._wakeups.heard else UNHEARD_LOOKS
        if empty <= len(looks):
            return looks[empty - 1]
        return self._poll() * random.uniform(0.9, 1.1)

    def _poll(self) -> float:
        if self._settings.poll_interval is not None:
            return self._settings.poll_interval.total_seconds()
        if self._wakeups.heard:
            return HEARD_POLL
        rested = time.monotonic() - self._worked_at > RESTING_AFTER
        return RESTING_POLL if rested else UNHEARD_POLL

    # Jobs that a broker names.

    def wanted(self) -> int:
        """How many jobs may be taken now, apart from this loop."""
        if self._stopping.is_set() or boot_time() >= self._heartbeat.may_claim_until:
            return 0
        return self._leases.wanted()

    def take_named(self, choose: Callable[[Transaction], tuple[T, list[str]]]) -> T:
        """Claim the jobs that `choose` names, as far as they are ready, and run them; returns its other answer."""
        owner = self._heartbeat.incarnation

        def take(tx: Transaction) -> tuple[T, list[Lease]]:
            answer, ids = choose(tx)
            return answer, claim_named(tx, ids, owner)

        answer, leases = persist(self._database, take)
        if self._stopping.is_set():
            self.give_back(leases)
        elif leases:
            self._leases.add(self._admission.admit(leases))
        return answer

    # Suspects: jobs whose worker died. They run in disposable processes, or here, where none can be started.

    def run_suspects_until_none(self, stopping: threading.Event, *, alone: bool) -> None:
        """The whole life of a disposable process: suspects that run `alone`, or the others, a few side by side.

        Alone means: nothing else is held, nothing waits for its commit, and nothing is claimed until it has ended.
        """
        owner, queues = self._heartbeat.incarnation, list(self._settings.queues)
        while not stopping.is_set():
            busy = self._leases.held > 0 or self._leases.behind()
            if boot_time() < self._heartbeat.may_claim_until and not (alone and busy):
                want = 1 if alone else self._side_by_side(queues) - self._leases.held
                taken = self._take_suspects(owner, queues, want, alone=alone) if want > 0 else 0
                if not taken and not busy:
                    return
            self._wakeups.wait(0.2)

    def _side_by_side(self, queues: list[str]) -> int:
        """How many suspects run at once: few enough that a death leaves few to try one by one."""
        with self._database.looking() as tx:
            waiting = waiting_suspects(tx, queues).together + self._leases.held
        return min(self._settings.concurrency, max(FEWEST_TOGETHER, math.ceil(math.sqrt(waiting))))

    def _take_suspects(self, owner: int, queues: list[str], want: int, *, alone: bool) -> int:
        leases = persist(self._database, lambda tx: claim_suspects(tx, owner, queues, want, alone=alone))
        if leases:
            self._leases.add(self._admission.admit(leases))
        return len(leases)

    def run_suspects(self, waiting: WaitingSuspects) -> None:
        """Let suspects have this worker to themselves for a while, if any wait."""
        if any(waiting):
            self._suspects_wait.set()
            self._wakeups.nudge()

    def _is_turn_of_suspects(self) -> bool:
        return self._alone_since is not None or (
            self._suspects_wait.is_set() and time.monotonic() >= self._normal_until
        )

    def _run_suspects(self) -> int:
        """Let everything here finish, then run suspects one by one; after a while the other jobs get a turn."""
        if self._alone_since is None:
            self._alone_since = time.monotonic()
            self._leases.suspects_turn = True
            self.give_back(self._leases.take_waiting())
        if self._leases.held or self._leases.behind() or boot_time() >= self._heartbeat.may_claim_until:
            return 0
        enough = time.monotonic() - self._alone_since > ALONE_FOR
        if not enough and self._claim_suspect():
            return 1
        self._alone_since = None
        self._leases.suspects_turn = False
        if enough:
            self._normal_until = time.monotonic() + ALONE_FOR
        else:
            self._suspects_wait.clear()
        return 0

    def _claim_suspect(self) -> bool:
        owner, queues = self._heartbeat.incarnation, list(self._settings.queues)
        lease = persist(self._database, lambda tx: claim_suspect(tx, owner, queues))
        self._answered = True
        if lease is not None:
            self._leases.add(self._admission.admit([lease]))
        return lease is not None


UNHINTED_EVERY: Final = 1.0  # seconds; a long transaction may commit an older time
UNHINTED_AFTER_WAKE: Final = 0.1  # seconds; a wake-up may mean more urgent work
UNHINTED_SHARE: Final = 20  # claims without the hint take a twentieth of the time at most
MARGIN: Final = 100_000  # microseconds before the lowest time seen: transactions commit out of order


@dataclass
class Hint:
    """Where the next claim of one queue may start, so that it does not walk over dead index entries."""

    priority: int | None = None
    lowest: int = 0
    unhinted_at: float = field(default=-1e9)
    unhinted_took: float = 0.0  # seconds; with a foreign transaction open it grows with every job done
    woken: bool = False

    def start(self, now: float) -> tuple[int, int] | None:
        """(priority, lowest time), or None when the whole queue must be asked."""
        since = now - self.unhinted_at
        dear = self.unhinted_took * UNHINTED_SHARE
        if self.priority is None or since >= max(UNHINTED_EVERY, dear):
            return None
        if self.woken and since >= max(UNHINTED_AFTER_WAKE, dear):
            return None
        return (self.priority, self.lowest)

    def learn(
        self, leases: Sequence[Lease], limit: int, now: float, *, hinted: bool, took: float = 0.0
    ) -> None:
        """Remember what a claim saw. A claim that came back short knows nothing about where to start."""
        if not hinted:
            self.unhinted_at = now
            self.unhinted_took = took
            self.woken = False
        if len(leases) < limit or leases[0].priority != leases[-1].priority:
            self.priority = None
            return
        self.priority = leases[0].priority
        self.lowest = leases[0].ready_at - MARGIN
