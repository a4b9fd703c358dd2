"""Every worker that knows feeds watches over their runs, for all: no process is special, and none is needed.

While nothing runs, that is one statement every two seconds.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from stepfast.clock import micros
from stepfast.database.database import persist
from stepfast.errors import DatabaseError
from stepfast.runs import watchdog as mending
from stepfast.runs import watchdog as pruning
from stepfast.runs import watchdog as vigil
from stepfast.runs.run import RunState
from stepfast.runs.watchdog import Act
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from datetime import timedelta

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.feeds import Feeds
    from stepfast.runs.watchdog import Glance


LOOK: Final = 2.0  # seconds between looks, at least
SHARE: Final = 100  # a look may take a hundredth of the time: after a long one there is a longer pause
LONGEST_PAUSE: Final = 15.0
TIDY: Final = 60.0  # seconds between looks at what is old
BREATH: Final = 0.02  # seconds in which others may write

Doing = Callable[["Transaction"], Act | None]


class Vigil:
    """A thread that watches over runs while the worker lives."""

    def __init__(self, database: Database, feeds: Feeds, runs_kept: timedelta) -> None:
        self._database = database
        self._feeds = feeds
        self._runs_kept = runs_kept
        self._next_stall_look: dict[str, float] = {}
        self._next_tidying = time.monotonic() + random.uniform(1, TIDY)
        self._failing = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch_until_stopped, name="stepfast-vigil", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def look(self) -> int:
        """One pass over all runs that have not ended; returns how much was done."""
        with self._database.looking() as tx:
            active = vigil.active_runs(tx)
        self._next_stall_look = {it.id: self._next_stall_look.get(it.id, 0.0) for it in active}
        done, met = 0, []
        for run in active:
            declared = self._feeds.find(run.feed)
            try:
                if declared is not None:
                    done += sum(self._do(run, act, what) for act, what in self._needed(declared, run))
            except Exception as error:  # noqa: BLE001 - one run must not keep us from the others
                met.append(error)
        if met:
            raise met[0]
        return done

    def tidy(self) -> None:
        """Tell people what has got old, and forget what is too old."""
        for declared in self._feeds.all():
            with self._database.looking() as tx:
                old, dying = vigil.is_old(tx, declared), vigil.many_died(tx, declared)
            if old and persist(self._database, partial(vigil.tell_old, declared=declared)):
                happened("watermark.aged", feed=declared.name)
            if dying:
                persist(self._database, partial(vigil.tell_dead, declared=declared))
        self._forget_seen()
        self._forget_runs()

    def _needed(self, declared: Declaration, run: Glance) -> Iterator[tuple[Doing, str | None]]:
        """What one look at a run finds to be done, each with the partition that it is about."""
        with self._database.looking() as tx:
            lost: list[str] = []
            if run.at is RunState.FETCHING:
                lost = vigil.orphans(tx, run.id)
                ended = not lost and vigil.all_read(tx, run.id)
                mend = mending.mend_completion if ended else None
            else:
                mend = None if vigil.is_moved(tx, run) else mending.mend_run
            stands = self._stands_still(tx, declared, run)
        for partition_id in lost:
            yield partial(mending.mend_partition, declared=declared, partition_id=partition_id), partition_id
        if mend is not None:
            yield partial(mend, declared=declared, run_id=run.id), None
        if stands and run.state is not RunState.STALLED:
            yield partial(vigil.stall, declared=declared, run_id=run.id), None
        if not stands and run.state is RunState.STALLED:
            yield partial(vigil.move_again, declared=declared, run_id=run.id), None

    def _stands_still(self, tx: Transaction, declared: Declaration, run: Glance) -> bool:
        """Whether nothing has moved it for too long. Of one that moves it is known when to look again."""
        patience = declared.stall_after
        unsuspicious = run.still_for < patience or time.monotonic() < self._next_stall_look[run.id]
        if run.state is not RunState.STALLED and unsuspicious:
            return False
        still = vigil.still_for(tx, run.id)
        self._next_stall_look[run.id] = time.monotonic() + max(LOOK, (patience - still).total_seconds())
        return still >= patience

    def _do(self, run: Glance, act: Doing, partition_id: str | None) -> int:
        done = persist(self._database, act)
        match done:
            case None:
                return 0
            case Act.FAILED:
                if partition_id is not None:  # the end of a run is told where it ends
                    happened("partition.failed", feed=run.feed, run_id=run.id, partition_id=partition_id)
            case Act.STALLED:
                happened("run.stalled", feed=run.feed, run_id=run.id)
            case Act.RESUMED | Act.EVALUATED | Act.MOVED:
                happened("run.resumed", feed=run.feed, run_id=run.id, partition_id=partition_id, note=done)
        return 1

    def _forget_seen(self) -> None:
        after = ""
        while not self._stop.is_set():
            with self._database.looking() as tx:
                found = pruning.seen_by_nobody(tx, after)
            if found is None:
                return
            self._in_batches(partial(pruning.forget_seen, partition_id=found))
            after = found

    def _forget_runs(self) -> None:
        while not self._stop.is_set():
            with self._database.looking() as tx:
                run_id = pruning.oldest(tx, micros(self._runs_kept))
            if run_id is None or not self._in_batches(partial(pruning.forget_run, run_id=run_id)):
                return
            happened("run.pruned", run_id=run_id)

    def _in_batches(self, forget: Callable[[Transaction], pruning.Pruned]) -> int:
        rows = 0
        while not self._stop.is_set():
            pruned = persist(self._database, forget)
            rows += pruned.rows
            if not pruned.more:
                break
            self._stop.wait(BREATH)
        return rows

    def _watch_until_stopped(self) -> None:
        pause = random.uniform(0, LOOK)
        while not self._stop.wait(pause):
            pause = LOOK
            try:
                pause = self._pass()
                if self._failing:
                    self._failing = False
                    happened("database.recovered", note="runs are watched")
            except DatabaseError as error:
                if not self._failing:
                    self._failing = True
                    happened("database.lost", error=error, note="runs are not watched")
            except Exception as error:  # noqa: BLE001 - others depend on this thread: it goes on
                happened("worker.failed", error=error, note="vigil")

    def _pass(self) -> float:
        """Look, and tidy up if it is time; returns seconds until the next look."""
        began = time.monotonic()
        self.look()
        took = time.monotonic() - began
        if time.monotonic() >= self._next_tidying:
            self._next_tidying = time.monotonic() + TIDY
            self.tidy()
        return max(LOOK, min(SHARE * took, LONGEST_PAUSE)) * random.uniform(0.9, 1.1)
