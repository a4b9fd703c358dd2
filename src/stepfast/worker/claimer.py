"""Which jobs to take, when: the loop that turns ready rows into running steps."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from stepfast.database.database import persist
from stepfast.database.dialects import Whose
from stepfast.errors import DatabaseError
from stepfast.steps.commit import give_back
from stepfast.steps.lease import Lease, claim, claim_named, claim_suspect
from stepfast.steps.queues import queues_with_work
from stepfast.telemetry import happened, wanted
from stepfast.worker.claiming import Hint, appetite

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.config import WorkerSettings
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.worker.execution import Execution
    from stepfast.worker.gate import Gate
    from stepfast.worker.incarnation import Heartbeat
    from stepfast.worker.wakeups import Wakeups

T = TypeVar("T")

QUICK_LOOKS: Final = (0.002, 0.004, 0.008, 0.016)  # after work, for longer than a wake-up may be withheld
UNHEARD_LOOKS: Final = (0.003,) * 20  # after work, where nobody wakes us
HEARD_POLL: Final = 1.0  # seconds; hearing nothing is never trusted
UNHEARD_POLL: Final = 0.05  # where nobody wakes us,
RESTING_POLL: Final = 0.25  # and when there was nothing to do ...
RESTING_AFTER: Final = 10.0  # ... for so long
STUCK_AFTER: Final = 0.5  # seconds after which unstarted jobs go back
DISCOVER_EVERY: Final = 0.25
DISCOVER_SHARE: Final = 20  # looking for queues takes a twentieth of the time at most
ALONE_FOR: Final = 2.0  # seconds that suspects may keep a worker for themselves, when others wait


@dataclass(frozen=True)
class Room:
    """What limits the appetite, asked anew each time."""

    slots: Callable[[], int]
    behind: Callable[[], bool]  # commits fall behind: more answers would only wait


class Claimer:
    """Asks the queues in turn, as much as the handlers can take."""

    def __init__(
        self,
        database: Database,
        settings: WorkerSettings,
        *,
        execution: Execution,
        heartbeat: Heartbeat,
        wakeups: Wakeups,
        room: Room,
        gate: Gate,
    ) -> None:
        self._database = database
        self._settings = settings
        self._execution = execution
        self._heartbeat = heartbeat
        self._wakeups = wakeups
        self._room = room
        self._gate = gate
        self._hints: dict[str, Hint] = {}
        self._discovered: list[str] = []
        self._discover_at = 0.0
        self._worked_at = time.monotonic()
        self._turn = 0
        self._lost = False
        self.waits_for_room = False  # else for work: then a free slot is no news
        self.alone_wanted = threading.Event()  # suspects wait and have no process of their own
        self._alone_since: float | None = None
        self._normal_until = 0.0
        self._stopping = threading.Event()

    def work_until(self, stopping: threading.Event) -> None:
        """Claim and hand over until told to stop."""
        self._stopping = stopping
        empty = 0
        named: set[str] = set()
        while not stopping.is_set():
            try:
                found = self._alone() if self._wants_to_be_alone() else self._round(named)
                if self._lost:
                    self._lost = False
                    happened(
                        "database.recovered", worker_id=self._settings.worker_id, note="claiming goes on"
                    )
            except DatabaseError as error:
                if not self._lost:
                    self._lost = True
                    happened(
                        "database.lost",
                        worker_id=self._settings.worker_id,
                        error=error,
                        note="claiming waits",
                    )
                self._wakeups.wait(random.uniform(0.5, 1.0))
                continue
            empty = 0 if found else empty + 1
            self._worked_at = time.monotonic() if found else self._worked_at
            woken, named = self._wakeups.wait(self._pause(empty))
            if woken:
                empty = 0  # what woke us may be visible only a moment later: look a few times
            for queue in named:
                self._hints.setdefault(queue, Hint()).woken = True

    def suspects_until_none(self, stopping: threading.Event) -> None:
        """The whole life of a lone process: one suspect at a time, nothing else on board."""
        while not stopping.is_set():
            if not self._execution.held and not self._room.behind() and not self._claim_suspect():
                return
            self._wakeups.wait(0.2)

    def wants(self) -> int:
        """How many jobs may be taken now, by those who hear of them in another way than this loop."""
        if self._stopping.is_set() or self._alone_since is not None or not self._heartbeat.may_claim:
            return 0
        return self._appetite()

    def take_named(self, choose: Callable[[Transaction], tuple[T, list[str]]]) -> T:
        """Take the jobs that `choose` names, as far as they are ready, and run them; returns what else it answers."""
        owner = self._heartbeat.incarnation

        def take(tx: Transaction) -> tuple[T, list[Lease]]:
            answer, ids = choose(tx)
            return answer, claim_named(tx, ids, owner)

        answer, leases = persist(self._database, take)
        if self._stopping.is_set():
            self.give_back(leases)
        elif leases:
            self._execution.start(self._gate.admit(leases))
        return answer

    def hungry(self) -> bool:
        return self._alone_since is None and self._appetite() > 0

    def _pause(self, empty: int) -> float:
        self.waits_for_room = True  # before we ask: a slot that is freed in between must be heard of
        if not self.hungry():
            return STUCK_AFTER
        self.waits_for_room = False
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

    def _appetite(self) -> int:
        if self._room.behind():
            return 0
        hunger = appetite(self._room.slots(), self._execution.average, self._settings.batch)
        self._execution.low_water = hunger.low_water
        return hunger.want(self._execution.held)

    def _round(self, named: set[str]) -> int:
        """Ask each queue once, starting with another one each time; returns how many jobs were taken."""
        self._return_stuck()
        if not self._heartbeat.may_claim:
            return 0
        taken = 0
        queues = self._queues(named)
        for _ in queues:
            want = self._appetite()
            if want <= 0:
                break
            self._turn = (self._turn + 1) % len(queues)
            leases = self._claim(queues[self._turn], want)
            if leases:
                taken += len(leases)
                self._execution.start(self._gate.admit(leases))
        return taken

    def _queues(self, named: set[str]) -> list[str]:
        """The queues to ask: those we were given, or all that have work."""
        if self._settings.queues:
            return list(self._settings.queues)
        if named:
            return sorted(named)
        now = time.monotonic()
        if not self._discovered or now >= self._discover_at:
            with self._database.looking() as tx:
                self._discovered = queues_with_work(tx)
            # Dead index entries that a foreign transaction pins make this dear, too.
            took = time.monotonic() - now
            self._discover_at = now + max(DISCOVER_EVERY, took * DISCOVER_SHARE)
        return list(self._discovered)

    def _claim(self, queue: str, want: int) -> list[Lease]:
        hint = self._hints.setdefault(queue, Hint())
        now = time.monotonic()
        start = hint.start(now)
        leases = self._take(queue, want, start)
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

    def _waited(self, leases: list[Lease]) -> list[float] | None:
        """For how many seconds each of them was ready, by the database's clock."""
        now = self._heartbeat.database_time()
        return None if now is None else [max(0.0, now - lease.ready_at / 1e6) for lease in leases]

    def _take(self, queue: str, want: int, start: tuple[int, int] | None) -> list[Lease]:
        owner = self._heartbeat.incarnation
        return persist(self._database, lambda tx: claim(tx, queue, owner, want, start))

    def _return_stuck(self) -> None:
        """What waits here behind slow steps goes back, so that other workers can run it."""
        if self._execution.unstarted.longest_wait() > STUCK_AFTER:
            self._execution.slow_down()
            self.give_back(self._execution.take_unstarted())

    def give_back(self, leases: list[Lease]) -> None:
        by_fence: dict[int, list[str]] = {}
        for lease in leases:
            by_fence.setdefault(lease.fence, []).append(lease.job_id)
        for fence, ids in by_fence.items():
            try:
                with self._database.transaction(Whose.OURS) as tx:
                    give_back(tx, ids, fence)
                    self._gate.free(tx, [lease for lease in leases if lease.fence == fence])
            except DatabaseError as error:
                happened("database.lost", error=error, note="leases run out by themselves")

    # Suspects, where no process of their own can be started for them

    def _wants_to_be_alone(self) -> bool:
        return self._alone_since is not None or (
            self.alone_wanted.is_set() and time.monotonic() >= self._normal_until
        )

    def _alone(self) -> int:
        """Let everything here finish, then run suspects one by one; after a while the others get a turn."""
        if self._alone_since is None:
            self._alone_since = time.monotonic()
            self.give_back(self._execution.take_unstarted())
        if self._execution.held or self._room.behind() or not self._heartbeat.may_claim:
            return 0
        enough = time.monotonic() - self._alone_since > ALONE_FOR
        if not enough and self._claim_suspect():
            return 1
        self._alone_since = None
        if enough:
            self._normal_until = time.monotonic() + ALONE_FOR
        else:
            self.alone_wanted.clear()
        return 0

    def _claim_suspect(self) -> bool:
        owner, queues = self._heartbeat.incarnation, list(self._settings.queues)
        lease = persist(self._database, lambda tx: claim_suspect(tx, owner, queues))
        if lease is not None:
            self._execution.start(self._gate.admit([lease]))
        return lease is not None
