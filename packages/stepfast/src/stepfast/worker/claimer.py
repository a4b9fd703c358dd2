"""Which jobs to take, when: the loop that turns ready rows into running steps."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from stepfast.database.database import persist
from stepfast.database.dialects import Whose
from stepfast.encryption import is_sealed, keyring, opened
from stepfast.errors import DatabaseError, SealedError
from stepfast.jobs.commit import give_back
from stepfast.jobs.lease import Lease, claim, claim_named, claim_suspect, queues_with_work
from stepfast.limits.limit import limit_id
from stepfast.limits.slots import LimitedStep, admit, pass_on_slots
from stepfast.telemetry import happened, wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast.config import WorkerSettings
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.kinds import Kinds
    from stepfast.limits.limit import Limit
    from stepfast.worker.execution import Execution
    from stepfast.worker.heartbeat import Heartbeat
    from stepfast.worker.wakeups import Wakeups


# Which queue to ask next, how many jobs to take, and where to start looking. Decisions only; no database.

HORIZON: Final = 0.2  # seconds of work to hold in advance: what a crash may leave behind
UNHINTED_EVERY: Final = 1.0  # a long transaction may commit an older time
UNHINTED_AFTER_WAKE: Final = 0.1  # a wake-up may mean more urgent work
UNHINTED_SHARE: Final = 20  # claims without the hint take a twentieth of the time at most
MARGIN: Final = 100_000  # microseconds before the lowest time seen: transactions commit out of order


@dataclass(frozen=True)
class Appetite:
    """How much to hold, and when to ask for more.

    Slow handlers get what they can start at once. Fast ones get `HORIZON` seconds of work in advance, up to
    one batch that runs and one that waits, and ask again when half of it is gone.
    """

    most: int
    low_water: int  # ask again when no more than this is held
    batch: int

    def want(self, held: int) -> int:
        """How many jobs to claim now."""
        return min(self.batch, self.most - held) if held <= self.low_water else 0


def appetite(slots: int, average: float, batch: int) -> Appetite:
    """The appetite of `slots` handlers that take `average` seconds each (0: not known yet)."""
    ahead = 0 if average <= 0 else min(2 * batch, int(slots * HORIZON / max(average, 1e-6)))
    if ahead <= slots:
        return Appetite(slots, slots - 1, batch)
    most = slots + ahead
    return Appetite(most, most - min(batch, most // 2), batch)


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


# What stands between a claim and a start: the limits.
#
# A claim takes jobs in their order, whatever they are. Those whose limits have no room are held, so that the
# ones behind them are reached; the others start. The slots taken here are freed in the transaction that ends the
# step, or by whoever finds that their fence has moved on.


class Gate:
    """Asks for all jobs of a claim at once, and remembers whose slots were taken here."""

    def __init__(self, database: Database, kinds: Kinds) -> None:
        self._database = database
        self._kinds = kinds
        self._slots: dict[tuple[str, int], tuple[str, ...]] = {}  # (job, fence) → limits whose slot it has

    @property
    def open(self) -> bool:
        """Nothing here has a limit."""
        return not self._kinds.limited

    def limits(self, lease: Lease) -> bool:
        """Whether this job has limits; the next step of such a job has to ask again."""
        return not self.open and bool(self._kinds.limits_of(lease.kind, lease.queue))

    def admit(self, leases: list[Lease]) -> list[Lease]:
        """Those that may start now. The others are held, and no longer ours."""
        if self.open:
            return leases
        asking: dict[int, list[LimitedStep]] = defaultdict(list)  # by fence: one for each claim
        known: dict[tuple[str, str], list[tuple[str, Limit]]] = {}
        for lease in leases:
            place = (lease.kind, lease.queue)
            limits = known.get(place)
            if limits is None:
                limits = known[place] = self._kinds.limits_of(*place)
            if limits:
                arguments = _arguments(lease) if any(it.by for _, it in limits) else None
                named = tuple((limit_id(it, scope, arguments), it) for scope, it in limits)
                asking[lease.fence].append(LimitedStep(lease.job_id, named))
        held: set[str] = set()
        for fence, asked in asking.items():
            held |= self._ask(asked, fence)
        return [lease for lease in leases if lease.job_id not in held] if held else leases

    def _ask(self, wanted: list[LimitedStep], fence: int) -> set[str]:
        answer = persist(self._database, lambda tx: admit(tx, wanted, fence))
        held = set(answer.held)
        for it in wanted:
            taken = tuple(name for name, limit in it.limits if limit.slots)
            if taken and it.job_id not in held:
                self._slots[it.job_id, fence] = taken
        if held:
            happened("jobs.held", jobs=len(held), limits=len(set(answer.held.values())))
        return held

    def free(self, tx: Transaction, leases: Sequence[Lease]) -> None:
        """These steps end in this transaction."""
        if not self._slots:
            return
        by_fence: dict[int, list[str]] = defaultdict(list)
        freed: dict[int, Counter[str]] = defaultdict(Counter)
        for lease in leases:
            if taken := self._slots.get((lease.job_id, lease.fence)):
                by_fence[lease.fence].append(lease.job_id)
                freed[lease.fence].update(taken)
        for fence, ids in by_fence.items():
            pass_on_slots(tx, ids, fence, freed[fence])

    def forget(self, leases: Sequence[Lease]) -> None:
        """They have ended, one way or another."""
        if self._slots:
            for lease in leases:
                self._slots.pop((lease.job_id, lease.fence), None)


def _arguments(lease: Lease) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(opened(lease.payload, f"payload of {lease.kind}"))
    except (msgspec.DecodeError, SealedError):
        return {}  # the handler's own check says what is wrong with it
    if not isinstance(found, dict):
        return {}
    # A limit's name stands in the clear: of what is encrypted it holds a fingerprint.
    return {name: fingerprint(it) for name, it in found.items()} if is_sealed(lease.payload) else found


def fingerprint(value: Any) -> str:
    return keyring().sign(msgspec.json.encode(value).decode(), "limit").hex()[:32]
