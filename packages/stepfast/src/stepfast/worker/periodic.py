"""Work that a worker repeats: a thread, its duties, and what they do while the database is away.

A duty is a function that returns the pause until its next call, in seconds; `NEVER` waits for `wake()`. The first duty
of a thread sets its beat: the others are called after it, in their order, when their own pauses are over by then. So an
idle worker wakes up rarely, and the most important duty comes first. When the database does not answer, all duties wait
for it, and two events say so: `database.lost` when that begins, `database.recovered` when it is over.
"""

from __future__ import annotations

import math
import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stepfast.database.database import persist
from stepfast.errors import DatabaseError
from stepfast.telemetry import happened
from stepfast.worker.vital import VitalParts

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database


AWAY: Final = 1.0  # seconds until the next call, after the database did not answer
FAILED: Final = 5.0  # seconds, after any other error
NEVER: Final = math.inf
LEAVING: Final = 10.0  # seconds that a call under way gets when the thread is stopped
BREATH: Final = 0.02  # seconds between two batches, in which others may write


class Outage:
    """The absence of the database, as one part of a worker meets it: its begin and its end are reported once each."""

    def __init__(self, part: str, worker_id: str | None = None) -> None:
        self._part = part
        self._worker_id = worker_id
        self.lasts = False

    def begin(self, error: Exception, note: str | None = None) -> None:
        """The database did not answer; `note` says what that means, if this part does not wait."""
        if not self.lasts:
            self.lasts = True
            note = note or f"{self._part} waits"
            happened("database.lost", worker_id=self._worker_id, error=error, note=note)

    def end(self) -> None:
        """The database answered."""
        if self.lasts:
            self.lasts = False
            happened("database.recovered", worker_id=self._worker_id, note=f"{self._part} goes on")


@dataclass
class Duty:
    """One function of a `Periodic`, and when it is called next, by the monotonic clock."""

    work: Callable[[], float]
    due_at: float
    rests_until: float = 0.0  # no wake-up makes it due earlier
    misses_database: bool = False  # its last call got no answer
    fails: bool = False  # its last call met an error that nobody expected


class Periodic:
    """A thread that calls its duties until it is stopped.

    With `last_call`, the first duty is called once more then.
    """

    def __init__(
        self,
        name: str,
        worker_id: str | None = None,
        *,
        last_call: bool = False,
        vital: VitalParts | None = None,
    ) -> None:
        self.stopping = threading.Event()
        self.rest = 0.0  # seconds between two calls of the first duty, at least, however often it is woken
        self._name = name
        self._worker_id = worker_id
        self._last_call = last_call
        self._duties: list[Duty] = []
        self._outage = Outage(name, worker_id)
        self._woken = threading.Event()
        self._vital = vital or VitalParts()
        self._thread = self._vital.thread(name, self._work_until_stopped)

    def add(self, work: Callable[[], float], first: float = 0.0) -> None:
        """Call `work` in `first` seconds, and again after each pause that it returns."""
        self._duties.append(Duty(work, time.monotonic() + first))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Call no duty any more; wait for a call that is under way."""
        self.stopping.set()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=LEAVING)

    def wake(self) -> None:
        """Call the first duty now, as soon as it has rested."""
        self._woken.set()

    def _work_until_stopped(self) -> None:
        while not self.stopping.is_set():
            if self._woken.wait(self._until_next()):
                self._woken.clear()
                self._hasten()
            self._call_due()
        if self._last_call:
            self._call(self._duties[0], time.monotonic())

    def _until_next(self) -> float:
        return min(max(0.0, self._duties[0].due_at - time.monotonic()), threading.TIMEOUT_MAX)

    def _hasten(self) -> None:
        """Make the first duty due. While it rests, further wake-ups are not even heard."""
        first = self._duties[0]
        first.due_at = min(first.due_at, first.rests_until)
        self.stopping.wait(max(0.0, first.due_at - time.monotonic()))

    def _call_due(self) -> None:
        beat = time.monotonic()
        for duty in self._duties:
            if self.stopping.is_set():
                return
            if time.monotonic() >= duty.due_at:
                self._call(duty, beat)

    def _call(self, duty: Duty, beat: float) -> None:
        try:
            pause, rest = duty.work(), self.rest
        except DatabaseError as error:
            self._wait_for_database(duty, error)
            return
        except Exception as error:  # noqa: BLE001 - others depend on this thread: it goes on
            happened("worker.failed", worker_id=self._worker_id, error=error, note=self._name)
            duty.fails = True
            self._vital.failed(self._name, error)
            pause = rest = around(FAILED)
        else:
            duty.misses_database = False
            if duty.fails:
                duty.fails = False
                if not any(other.fails for other in self._duties):
                    self._vital.succeeded(self._name)
            if not any(other.misses_database for other in self._duties):
                self._outage.end()
        now = time.monotonic()
        # Pauses of other duties count from the beat: with the pause of the first one, they are over at the next beat.
        duty.due_at = pause + (now if duty is self._duties[0] else beat)
        duty.rests_until = now + rest

    def _wait_for_database(self, duty: Duty, error: Exception) -> None:
        """Let all duties wait: while one of them gets no answer, the others would get none."""
        duty.misses_database = True
        self._outage.begin(error)
        retry_at = time.monotonic() + around(AWAY)
        duty.due_at = duty.rests_until = retry_at
        for other in self._duties:
            other.due_at = max(other.due_at, retry_at)


def around(seconds: float) -> float:
    """This pause, a tenth shorter or longer: workers that were started together do not look together."""
    return seconds * random.uniform(0.9, 1.1)


def in_batches(
    database: Database,
    stopping: threading.Event,
    forget: Callable[[Transaction], int],
    *,
    look: Callable[[Transaction], bool] | None = None,
    batch: int = 1,
) -> int:
    """Call `forget`, each time in a short transaction, until it forgets fewer than `batch` rows or the worker stops.

    Returns how many rows were forgotten. With `look`, nothing is written unless that finds something.
    """
    if look is not None:
        with database.looking() as tx:
            if not look(tx):
                return 0
    total = 0
    while not stopping.is_set():
        rows = persist(database, forget)
        total += rows
        if rows < batch:
            break
        stopping.wait(BREATH)
    return total
