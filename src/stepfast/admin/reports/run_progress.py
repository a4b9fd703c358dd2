"""How a run comes along, for somebody who watches it: what changed, how fast it goes, and when it may be over.

Each look reads the run's row and those of its partitions that were written lately, wherever their workers are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stepfast.admin.reports.run_facts import PENDING
from stepfast.admin.rows import now, reader
from stepfast.clock import micros
from stepfast.database.statement import sql
from stepfast.errors import ContentionError, UnreachableError
from stepfast.runs.run import Run, find_run
from stepfast.runs.states import ACTIVE_RUN, OPEN_PARTITION, PartitionState, RunState

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database

LATE: Final = timedelta(
    seconds=60
)  # no transaction of ours is open for so long: what it wrote is seen by then
PACE_OVER: Final = 30.0  # seconds by which a speed is judged
PENDING_EVERY: Final = 2.0  # seconds between two counts of the rows that wait for consolidation
POLL: Final = 0.5
OUTAGE_PAUSE: Final = 1.0

WRITTEN_LATELY = sql("""
    SELECT number, name, state, seen, COALESCE(counted, estimate), requests, last_error FROM stepfast_partition
     WHERE run_id = :id AND updated_at >= :since ORDER BY number
""")


@dataclass(frozen=True)
class PartitionProgress:
    number: int
    name: str
    state: PartitionState
    seen: int
    expected: int | None
    requests: int
    error: str | None

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_PARTITION


_read = reader(PartitionProgress, state=PartitionState)


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """One look at a run."""

    run_id: str
    feed: str
    state: RunState
    reason: str | None
    partitions: int
    completed: int
    failed: int
    rows: int  # that were read
    expected: int | None  # rows that there are to read, as far as anybody knows
    requests: int
    applied: int
    quarantined: int
    pending: int | None  # rows that wait for consolidation
    rows_per_second: float
    pages_per_second: float
    seconds_left: float | None  # of the part of its life that the run is in; None: nobody knows
    changed: tuple[PartitionProgress, ...]  # since the look before this one
    still_for: float = 0.0  # seconds since a partition changed while we looked

    @property
    def ended(self) -> bool:
        return self.state not in ACTIVE_RUN

    @property
    def succeeded(self) -> bool:
        return self.state in (RunState.COMPLETED, RunState.PUBLISHED_PARTIAL)


class Pace:
    """Speeds over the last while. Pure: the time comes in."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, tuple[int, ...]]] = deque()

    def add(self, at: float, *counts: int) -> tuple[float, ...]:
        """Counts as they stand at an instant; answers how fast each of them grew."""
        while len(self._looks) > 1 and self._looks[1][0] <= at - PACE_OVER:
            self._looks.popleft()
        self._looks.append((at, counts))
        then, before = self._looks[0]
        took = at - then
        return tuple(
            max(0.0, (new - old) / took) if took > 0 else 0.0 for new, old in zip(counts, before, strict=True)
        )


class RunObserver:
    """Remembers what was seen of a run, and finds what is new."""

    def __init__(self, database: Database, run_id: str) -> None:
        self._database = database
        self._run_id = run_id
        self._known: dict[int, PartitionProgress] = {}
        self._since = 0
        self._pace = Pace()
        self._pending: int | None = None
        self._pending_at = float("-inf")
        self._still_since: float | None = None

    def look(self) -> RunProgress:
        at = time.monotonic()
        with self._database.reading() as tx:
            # The run first: when it has ended, its partitions do not change any more.
            run = find_run(tx, self._run_id)
            changed = self._changes(tx)
            pending = self._rows_that_wait(tx, run, at)
        if changed or self._still_since is None:
            self._still_since = at
        rows = sum(it.seen for it in self._known.values())
        requests = sum(it.requests for it in self._known.values())
        rows_pace, pages_pace, applied_pace = self._pace.add(
            at, rows, requests, run.applied + run.quarantined
        )
        expected = self._expected()
        applying = run.at is RunState.APPLYING
        left = pending if applying else None if expected is None else max(0, expected - rows)
        pace = applied_pace if applying else rows_pace
        return RunProgress(
            run_id=run.id,
            feed=run.feed,
            state=run.state,
            reason=run.reason,
            partitions=run.partitions,
            completed=run.completed,
            failed=run.failed,
            rows=rows,
            expected=expected,
            requests=requests,
            applied=run.applied,
            quarantined=run.quarantined,
            pending=pending,
            rows_per_second=pace,
            pages_per_second=0.0 if applying else pages_pace,
            seconds_left=left / pace if left and pace and run.ended_at is None else None,
            changed=changed,
            still_for=0.0 if run.at is RunState.APPLYING else at - self._still_since,
        )

    @property
    def partitions(self) -> list[PartitionProgress]:
        """As they stood at the last look, by number."""
        return [self._known[number] for number in sorted(self._known)]

    def _changes(self, tx: Transaction) -> tuple[PartitionProgress, ...]:
        since, self._since = self._since, now(tx) - micros(LATE)
        found = tx.all(WRITTEN_LATELY, _read, id=self._run_id, since=since)
        changed = tuple(it for it in found if self._known.get(it.number) != it)
        self._known |= {it.number: it for it in changed}
        return changed

    def _rows_that_wait(self, tx: Transaction, run: Run, at: float) -> int | None:
        if run.at is not RunState.APPLYING:
            self._pending = None
        elif self._pending is None or at - self._pending_at >= PENDING_EVERY:
            self._pending, self._pending_at = int(tx.first(PENDING, feed=run.feed) or 0), at
        return self._pending

    def _expected(self) -> int | None:
        """What was read, where that has ended; else what the source or the plan says."""
        read = [it for it in self._known.values() if it.state is not PartitionState.SPLIT]
        sizes = [max(it.seen, it.expected or 0) if it.is_open else it.seen for it in read]
        if any(it.is_open and it.expected is None for it in read):
            return None
        return sum(sizes) if read else None


def watch_run(
    database: Database, run_id: str, *, poll: float = POLL, every: float | None = None
) -> Iterator[tuple[RunProgress, RunObserver]]:
    """A look whenever something changed, and one when it has ended; with `every`, also when so many seconds have passed.

    An outage of the database is waited for.
    """
    observer = RunObserver(database, run_id)
    shown: tuple[object, ...] | None = None
    shown_at = float("-inf")
    while True:
        try:
            progress = observer.look()
        except (UnreachableError, ContentionError):
            time.sleep(OUTAGE_PAUSE)
            continue
        facts = (progress.state, progress.completed, progress.failed, progress.applied, progress.pending)
        due = every is not None and time.monotonic() - shown_at >= every
        if progress.changed or facts != shown or progress.ended or due:
            shown, shown_at = facts, time.monotonic()
            yield progress, observer
        if progress.ended:
            return
        time.sleep(poll)
