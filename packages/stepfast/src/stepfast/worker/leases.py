"""All leases of this process, in their three phases: waiting for a slot, running, committing.

The claimer adds leases, the event loop starts and ends their steps, the committer forgets them when their end is
written. The heartbeat asks which steps run, and halts those that were cancelled or replaced. How many more leases are
wanted follows from how many are here and from how long handlers take.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from stepfast.jobs.step import Halt

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from stepfast.config import WorkerSettings
    from stepfast.jobs.lease import Lease
    from stepfast.worker.guardian import Board
    from stepfast.worker.running import Running
    from stepfast.worker.wakeups import Wakeups

HORIZON: Final = 0.2  # seconds of work to hold in advance: what a crash may leave behind
UNWIND: Final = 5.0  # seconds a handler gets to clean up after its timeout
BATCHES_BEHIND: Final = 5  # batches of answers that may wait for their commit before claiming pauses


class Waiting(NamedTuple):
    """A lease whose step has not started."""

    lease: Lease
    chain: int  # how many steps its job has taken here in a row ...
    chain_since: float  # ... and since when
    waits_since: float


class Demand(NamedTuple):
    """How many leases to hold, and when to claim more."""

    most: int
    low_water: int  # claim again when no more than this is held
    batch: int

    def want(self, held: int) -> int:
        """How many jobs to claim now."""
        return min(self.batch, self.most - held) if held <= self.low_water else 0


def demand(slots: int, average: float, batch: int) -> Demand:
    """The demand of `slots` handlers that take `average` seconds each (0: not known yet).

    Slow handlers get what they can start at once. Fast ones get `HORIZON` seconds of work in advance, up to
    one batch that runs and one that waits, and claim again when half of it is gone.
    """
    ahead = 0 if average <= 0 else min(2 * batch, int(slots * HORIZON / max(average, 1e-6)))
    if ahead <= slots:
        return Demand(slots, slots - 1, batch)
    most = slots + ahead
    return Demand(most, most - min(batch, most // 2), batch)


class Leases:
    """The leases of one worker process. Every method may be called from any thread, except where it says otherwise."""

    def __init__(
        self,
        settings: WorkerSettings,
        wakeups: Wakeups,
        board: Board | None = None,
        *,
        suspects_only: bool = False,
    ) -> None:
        self._settings = settings
        self._board = board  # tells our guardian which steps have started
        if board is not None:
            board.uncommitted = self._started_jobs
        self._wakeups = wakeups
        self._suspects_only = suspects_only
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start: Callable[[], None] | None = None
        self._waiting: deque[Waiting] = deque()
        # Running steps by job and fence: a job that was replaced may run twice for a moment, its old step and its new
        # one. Only the event loop writes here, so there is no lock; other threads read a copy.
        self.running: dict[tuple[str, int], Running] = {}
        self._fences: dict[str, int] = {}  # job → fence of every lease whose end is not committed yet
        self._added = 0  # by several threads, under the lock
        self._removed = 0  # as above
        self._ended = 0  # by the event loop alone
        self._lock = threading.Lock()
        self._accepting = True
        self.average = 0.0  # seconds that a handler takes, smoothed
        self.lost_slots = 0  # slots of steps that ignored their timeout and still run
        self.low_water = settings.concurrency - 1  # with so few leases left the claimer is woken
        self.claimer_waits = False  # for a free slot; when it waits for work, a free slot is no news to it
        self.suspects_turn = False  # one suspect at a time runs here, and nothing else is claimed

    def bind(self, loop: asyncio.AbstractEventLoop, start: Callable[[], None]) -> None:
        """Name the event loop that runs the handlers, and what starts waiting leases there."""
        self._loop = loop
        self._start = start

    # Waiting: leases come from the claimer, and from the committer for jobs that continue here.

    def add(self, leases: Sequence[Lease], chain: int = 0, chain_since: float = 0.0) -> None:
        """Take these leases in; the event loop starts them as slots become free."""
        assert self._loop is not None  # noqa: S101 - bound before anything is claimed
        assert self._start is not None  # noqa: S101 - as above
        self._fences.update((lease.job_id, lease.fence) for lease in leases)
        with self._lock:
            self._added += len(leases)
        now = time.monotonic()
        new = tuple.__new__  # what Waiting(…) does in the end, without its Python
        self._waiting.extend([new(Waiting, (lease, chain, chain_since, now)) for lease in leases])
        self._loop.call_soon_threadsafe(self._start)

    def resume(self, lease: Lease, chain: int, chain_since: float) -> bool:
        """Take in the next step of a job that continues here. False when the worker is stopping."""
        if not self._accepting or self._loop is None:
            return False
        self.add([lease], chain, chain_since)
        return True

    def stop_accepting(self) -> None:
        """From now on jobs do not continue here."""
        self._accepting = False

    def next_waiting(self) -> Waiting | None:
        """The lease to start next."""
        try:  # asking first would not help: another thread takes from the other end
            waiting = self._waiting.popleft()
        except IndexError:
            return None
        if self._board is not None:
            self._board.start(waiting.lease.job_id, self._waiting)
        return waiting

    def take_waiting(self) -> list[Lease]:
        """Remove the leases that have not started, the last one first; the caller gives them back."""
        taken: list[Lease] = []
        while self._waiting:
            try:
                lease = self._waiting.pop().lease
            except IndexError:
                break
            taken.append(lease)
            self._drop(lease)
        self.remove(len(taken))
        return taken

    def longest_wait(self) -> float:
        """For how many seconds the first waiting lease has waited here."""
        try:
            return time.monotonic() - self._waiting[0].waits_since
        except IndexError:
            return 0.0

    def _started_jobs(self) -> list[str]:
        """Jobs whose steps have started and whose ends are not committed."""
        waiting = {it.lease.job_id for it in self._waiting.copy()}
        return [job_id for job_id in list(self._fences) if job_id not in waiting]

    # Running: started and ended by the event loop.

    def end(self) -> None:
        """One step has ended, and its answer is with the committer. Called on the event loop only."""
        self._ended += 1
        if self._added - self._ended - self._removed in (self.low_water, 0):  # on the way down, once
            self._wake_claimer()

    def remove(self, count: int) -> None:
        """So many leases are no longer held, although their steps have not ended here."""
        with self._lock:
            self._removed += count

    def steps(self) -> list[Running]:
        """The running steps, as they are now."""
        return list(self.running.copy().values())  # a copy is made in one piece, whatever the event loop does

    def running_fences(self) -> list[tuple[str, int]]:
        """Job and fence of each running step that the worker still vouches for."""
        return [(step.lease.job_id, step.lease.fence) for step in self.steps() if not step.abandoned]

    def running_leases(self) -> list[Lease]:
        """Leases of the running steps that were not told to stop."""
        return [step.lease for step in self.steps() if not step.abandoned and step.step.halted is None]

    def overdue(self) -> list[Running]:
        """Steps that ignored their timeout and the time to unwind."""
        latest = time.monotonic() - UNWIND
        return [step for step in self.steps() if not step.abandoned and (step.deadline or latest) < latest]

    def halt(self, job_id: str, fence: int, why: Halt) -> None:
        """Tell one step to stop, if it runs here."""
        step = self.running.get((job_id, fence))
        if step is not None and step.step.halted is None:
            self._halt(step, why)

    def halt_all(self, why: Halt) -> list[Lease]:
        """Tell every step to stop; returns the leases of those that ran. An abandoned one has failed already."""
        running = self.steps()
        for step in running:
            self._halt(step, why)
        return [step.lease for step in running if not step.abandoned]

    def lose_all(self) -> None:
        """This process was declared dead: another worker has all its jobs."""
        self.take_waiting()  # rescued with the rest; none of them has started
        self.halt_all(Halt.REPLACED)

    def doubt(self, *, uncertain: bool) -> None:
        """Tell all steps that the database has been silent for a whole lease, or that it is back."""
        for step in self.steps():
            step.step.doubt(uncertain=uncertain)

    def cancel(self, step: Running) -> None:
        """Cancel the task of a step that runs on the event loop. Called there only."""
        if step.task is not None and self.running.get((step.lease.job_id, step.lease.fence)) is step:
            step.task.cancel()

    def _halt(self, step: Running, why: Halt) -> None:
        step.step.halt(why)
        if step.kind.on_event_loop and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.cancel, step)

    # Committing: a lease is here until the committer knows what became of it.

    def forget(self, leases: Iterable[Lease]) -> None:
        """Their ends are committed, or refused."""
        for lease in leases:
            self._drop(lease)
        self._wake_claimer()  # one that waits for the committer to catch up is woken here only

    def uncommitted(self) -> list[tuple[str, int]]:
        """Job and fence of each lease whose end is not known to be written."""
        return list(self._fences.copy().items())

    def holds(self, job_id: str, fence: int) -> bool:
        """Whether this lease is here, in any phase."""
        return self._fences.get(job_id) == fence

    def _drop(self, lease: Lease) -> None:
        if self._fences.get(lease.job_id) == lease.fence:
            del self._fences[lease.job_id]

    # How many more are wanted.

    @property
    def held(self) -> int:
        """Leases whose steps have not ended: waiting, running, or on their way between."""
        gone = self._ended + self._removed  # read first: a lease that ends meanwhile counts as held
        return self._added - gone

    def behind(self) -> bool:
        """Whether commits fall behind: more answers would only wait."""
        committing = len(self._fences) - self.held
        return committing > (0 if self._suspects_only else BATCHES_BEHIND * self._settings.batch)

    def wanted(self) -> int:
        """How many jobs may be claimed now."""
        if self.suspects_turn or self.behind():
            return 0
        slots = max(0, self._settings.concurrency - self.lost_slots)
        now = demand(slots, self.average, self._settings.batch)
        self.low_water = now.low_water
        return now.want(self.held)

    def slow_down(self) -> None:
        """Handlers take longer than those before: believe the slowest one that runs."""
        now = time.monotonic()
        self.average = max([self.average, *(now - step.started for step in self.steps())])

    def _wake_claimer(self) -> None:
        if self._suspects_only or (self.claimer_waits and self.wanted() > 0):
            self._wakeups.nudge()
