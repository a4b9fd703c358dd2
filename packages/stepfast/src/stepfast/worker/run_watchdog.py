"""Every worker that knows feeds looks after their runs, for all workers: no process is special, and none is needed.

A look finds partitions and runs whose job is gone, runs that have stalled and runs that move again, and acts on each in
a transaction of its own. While nothing runs, that is one statement every two seconds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from stepfast.clock import micros
from stepfast.database.database import persist
from stepfast.runs import watchdog
from stepfast.runs.run import RunState
from stepfast.telemetry import happened
from stepfast.worker.periodic import Periodic, around, in_batches

if TYPE_CHECKING:
    from datetime import timedelta

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.feeds import Feeds
    from stepfast.runs.watchdog import Pruned, RunLook, WatchdogAct
    from stepfast.worker.vital import VitalParts


LOOK: Final = 2.0  # seconds between looks, at least
SHARE: Final = 100  # a look may take a hundredth of the time: after a long one there is a longer pause
LONGEST_PAUSE: Final = 15.0
TIDY_EVERY: Final = 60.0
BATCH: Final = 5_000  # rows that one transaction forgets

Repair = Callable[["Transaction"], "WatchdogAct | None"]


class RunWatchdog:
    """A thread that looks after runs while the worker lives."""

    def __init__(
        self, database: Database, feeds: Feeds, runs_kept: timedelta, vital: VitalParts | None = None
    ) -> None:
        self._database = database
        self._feeds = feeds
        self._runs_kept = runs_kept
        self._next_stall_look: dict[str, float] = {}  # by run
        self._thread = Periodic("run-watchdog", vital=vital)
        self._thread.add(self._look_and_rest, first=random.uniform(0, LOOK))
        self._thread.add(self.tidy, first=random.uniform(1, TIDY_EVERY))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()

    def _look_and_rest(self) -> float:
        began = time.monotonic()
        self.look()
        took = time.monotonic() - began
        return around(max(LOOK, min(SHARE * took, LONGEST_PAUSE)))

    def look(self) -> int:
        """Look once at all runs that have not ended; returns how many repairs were made."""
        with self._database.looking() as tx:
            active = watchdog.active_runs(tx)
        self._next_stall_look = {run.id: self._next_stall_look.get(run.id, 0.0) for run in active}
        done, errors = 0, []
        for run in active:
            declared = self._feeds.find(run.feed)
            try:
                if declared is not None:
                    done += sum(
                        persist(self._database, repair) is not None for repair in self._needed(declared, run)
                    )
            except Exception as error:  # noqa: BLE001 - one run must not keep us from the others
                errors.append(error)
        if errors:
            raise errors[0]
        return done

    def _needed(self, declared: Declaration, run: RunLook) -> Iterator[Repair]:
        """The repairs that one look at a run finds to be needed. Each reports what it did."""
        with self._database.looking() as tx:
            lost: list[str] = []
            if run.phase is RunState.FETCHING:
                lost = watchdog.orphaned_partitions(tx, run.id)
                ended = not lost and watchdog.all_partitions_read(tx, run.id)
                repair = watchdog.repair_completion if ended else None
            else:
                repair = None if watchdog.has_live_jobs(tx, run) else watchdog.repair_run
            still = self._stands_still(tx, declared, run)
        for row_id in lost:
            yield partial(watchdog.repair_partition, declared=declared, row_id=row_id)
        if repair is not None:
            yield partial(repair, declared=declared, run_id=run.id)
        if still and run.state is not RunState.STALLED:
            yield partial(watchdog.stall_run, declared=declared, run_id=run.id)
        if not still and run.state is RunState.STALLED:
            yield partial(watchdog.unstall_run, declared=declared, run_id=run.id)

    def _stands_still(self, tx: Transaction, declared: Declaration, run: RunLook) -> bool:
        """Whether nothing has moved the run for too long. Of a run that moves it is known when to look again."""
        patience = declared.stall_after
        unsuspicious = run.still_for < patience or time.monotonic() < self._next_stall_look[run.id]
        if run.state is not RunState.STALLED and unsuspicious:
            return False
        still = watchdog.still_for(tx, run.id)
        self._next_stall_look[run.id] = time.monotonic() + max(LOOK, (patience - still).total_seconds())
        return still >= patience

    def tidy(self) -> float:
        """Alert people about old watermarks and dying jobs, and prune; returns the seconds until the next time."""
        for declared in self._feeds.all():
            with self._database.looking() as tx:
                old, dying = watchdog.is_watermark_old(tx, declared), watchdog.many_jobs_died(tx, declared)
            if old and persist(self._database, partial(watchdog.alert_old_watermark, declared=declared)):
                happened("watermark.aged", feed=declared.name)
            if dying:
                persist(self._database, partial(watchdog.alert_dead_jobs, declared=declared))
        self._prune_seen_rows()
        self._prune_runs()
        return TIDY_EVERY

    def _prune_seen_rows(self) -> None:
        """Forget what partitions have seen, once it is not needed any more."""
        after = ""
        while not self._thread.stopping.is_set():
            with self._database.looking() as tx:
                row_id = watchdog.next_unneeded_seen(tx, after)
            if row_id is None:
                return
            self._forget(partial(watchdog.forget_seen, row_id=row_id, limit=BATCH), batch=BATCH)
            after = row_id

    def _prune_runs(self) -> None:
        """Forget runs that ended longer than `runs_kept` ago."""
        while not self._thread.stopping.is_set():
            with self._database.looking() as tx:
                run_id = watchdog.oldest_ended_run(tx, micros(self._runs_kept))
            if run_id is None or not self._forget(partial(watchdog.forget_run, run_id=run_id, limit=BATCH)):
                return
            happened("run.pruned", run_id=run_id)

    def _forget(self, forget: Callable[[Transaction], Pruned], batch: int = 1) -> int:
        return in_batches(self._database, self._thread.stopping, lambda tx: forget(tx).rows, batch=batch)
