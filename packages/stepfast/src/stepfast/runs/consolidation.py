"""Consolidation makes target rows of raw rows: in rounds, each divided into shards, each a chain of short steps.

    begin_consolidation ──► round: divide ──► shards: batch, batch, … ──► round_ended ──► another round, or finish

A round begins with one job that divides the rows that wait into ranges of ids. Each range is a shard: a job whose steps
read a batch, map it, and write it in their commit. The last shard of a round looks, under the run's row, whether rows
wait again; if so there is another round, if not the run is finished. A short batch ends its shard, and says
nothing about the run.

`target.py` maps a batch and writes it, `raw_rows.py` has the rows that wait, and `lifecycle.py` begins the first round and
ends the last.

All rows of the feed are taken, whichever run observed them: a run that was cancelled may have observed an item last.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from stepfast.database.database import persist
from stepfast.database.statement import sql
from stepfast.database.tables import blurred
from stepfast.database.upsert import SortedRows
from stepfast.errors import ConfigurationError, DatabaseError, HeldError, NotFoundError, TransientError
from stepfast.jobs.outcome import Continue, Done, Outcome, Reject, Snooze
from stepfast.jobs.step import Step  # noqa: TC001 - a handler's hints are read at run time
from stepfast.runs import alerts
from stepfast.runs.lifecycle import round_ended, shard_id, stop_if_overspent
from stepfast.runs.quarantine import items_with_open_entries
from stepfast.runs.raw_rows import IdSpan, divide_pending, next_lot_to_remap, read_pending
from stepfast.runs.run import Run, RunState, enqueue_jobs, find_run, lock_run, new_job, report_start
from stepfast.runs.target import Applied, TargetWrite, map_rows, target_columns
from stepfast.telemetry import when_committed
from stepfast.threads import in_own_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.database.dialects import Dialect
    from stepfast.jobs.state import NewJob
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.target import MappedBatch


STALE_JOB = "this run is no longer consolidated by this job"
LONGEST_REASON = 1_000

# What a shard does now, in the words of the operators' documents: the note of its job, so that `runs show` can tell. A
# batch is mapped in its step, and upserted and marked in its commit. Batches that take milliseconds are not told apart: a
# note is a transaction of its own, which took an eighth of the time on SQLite.
VALIDATING: Final = "validating"  # of a whole round, before it has shards
LOADING_RULES: Final = "loading rules"  # with the feed's mapping(), before the first batch
UPSERTING: Final = "upserting and marking"
NOTE_EVERY: Final = 1.0  # seconds, at most, that a shard goes on after a note without another one

NOTE_PHASE = sql("UPDATE stepfast_job SET progress_note = :phase WHERE id = :id AND fence = :fence")
NOTE_NEXT_PHASE = sql("UPDATE stepfast_job SET progress_note = :phase WHERE id = :id")


@dataclass(frozen=True)
class ShardPhase:
    """The phase of the shard that one step works on."""

    database: Database
    job_id: str
    fence: int
    is_first: bool  # batch of the shard; later ones find the note of the commit before them
    noted: dict[str, float]  # when this process last wrote the note of a job (monotonic)

    @property
    def is_due(self) -> bool:
        """Whether the batch is told: the first one, and one that comes a while after the last note."""
        return self.is_first or time.monotonic() - self.noted.get(self.job_id, -NOTE_EVERY) >= NOTE_EVERY

    def note(self, phase: str) -> None:
        """Write down what the step does from here on. A database that refuses that is met by the commit, too."""
        self.noted[self.job_id] = time.monotonic()
        with suppress(DatabaseError):
            persist(
                self.database,
                lambda tx: tx.run(NOTE_PHASE, id=self.job_id, fence=self.fence, phase=phase),
                tries=1,
            )


class RunRound(NamedTuple):
    """Which round of which run a job was made for."""

    run_id: str
    epoch: int
    round: int


class ConsolidateJob:
    """The job that divides a round of a consolidation, and the jobs that consolidate its shards."""

    def __init__(self, declared: Declaration, database: Callable[[], Database]) -> None:
        self._declared = declared
        self._database = database
        self._noted: dict[str, float] = {}  # see `ShardPhase`

    async def consolidate(  # noqa: PLR0917 - the arguments of a job
        self,
        step: Step,
        run_id: str,
        epoch: int,
        round: int = 0,  # noqa: A002 - the word of the run
        after: str | None = None,
        until: str | None = None,
        shard: int | None = None,
    ) -> Outcome:
        """One step: divide a round, or take one batch of a shard."""
        step.annotate(run_id=run_id)
        wanted = RunRound(run_id, epoch, round)
        try:
            if shard is None or until is None:
                return await asyncio.to_thread(self._divide, wanted, step.cursor, step.number)
            span = IdSpan(step.cursor if step.cursor is not None else after, until)
            first = step.number == 0
            phase = ShardPhase(self._database(), step.job_id, step.fence, is_first=first, noted=self._noted)
            return await in_own_thread(self._take_batch, wanted, span, phase)
        except HeldError as held:
            return Snooze(held.delay or 0, effects=[HoldRun(wanted, str(held))])
        except (NotFoundError, ConfigurationError) as error:  # trying again would mend neither
            return Reject(str(error))

    def _divide(self, wanted: RunRound, after: str | None, number: int) -> Outcome:
        declared = self._declared
        with self._database().reading() as tx:
            run = _run_in_round(tx, wanted)
            if run is None:
                return Done(STALE_JOB)
            if run.kind == "remap" and run.rounds == 0:
                if number == 0:  # of a run that is not planned this is the beginning
                    report_start(run)
                lot = next_lot_to_remap(tx, run, after)
                if lot is not None:
                    return Continue(lot.until, effects=[lot])
            spans = divide_pending(tx, declared.name, declared.shards, declared.batch)
            alike = items_alike(tx, declared) if spans and run.kind == "full" and run.rounds == 0 else None
        return Done({"shards": len(spans)}, effects=[BeginRound(declared, run, spans, alike)])

    def _take_batch(self, wanted: RunRound, span: IdSpan, phase: ShardPhase) -> Outcome:
        """Read the next rows of a shard and map them; they are written in the step's commit."""
        declared, database = self._declared, self._database()
        if phase.is_first:
            phase.note(LOADING_RULES)
        with database.reading() as tx:
            run = _run_in_round(tx, wanted)
            if run is None:
                return Done(STALE_JOB)
            pending = read_pending(tx, declared.name, span, declared.batch)
            ids = pending.ids
            columns = target_columns(tx, declared) if ids else {}
            to_row = declared.feed.mapping(tx, run.id)
            entries = items_with_open_entries(tx, declared.name, ids[0], ids[-1]) if ids else set()
        if phase.is_first:
            phase.note(declared.mapping_phase)
        write = TargetWrite(
            declared=declared,
            run_id=run.id,
            batch=_sorted(declared, map_rows(declared, pending, columns, to_row), database.dialect),
            columns=columns,
            entries=entries,
            compares=run.kind == "verify" and not declared.stores,
        )
        ends = len(ids) < declared.batch or ids[-1] == span.until
        told = phase.is_due
        effects = [BatchCommit(write, run, ends=ends, job_id=phase.job_id if told else None)]
        if told:
            phase.note(UPSERTING)
        if ends:
            self._noted.pop(phase.job_id, None)
            return Done("nothing is left in this range", effects=effects)
        return Continue(ids[-1], effects=effects)


def _run_in_round(tx: Transaction, wanted: RunRound) -> Run | None:
    """The run, if it is being consolidated and this is its round."""
    run = find_run(tx, wanted.run_id)
    return run if run.phase is RunState.APPLYING and (run.epoch, run.rounds) == wanted[1:] else None


def _sorted(declared: Declaration, batch: MappedBatch, dialect: Dialect) -> MappedBatch:
    """The batch ready to be written, before the commit: SQLite has one writer at a time, and the others wait for it."""
    if declared.stores or not batch.rows:
        return batch
    try:
        return replace(batch, rows=SortedRows(declared.table, declared.key, batch.rows, dialect))
    except Exception:  # noqa: BLE001 - the row to blame is found when they are stored
        return batch


# A round begins.

BEGIN_ROUND = sql("""
    UPDATE stepfast_run SET rounds = rounds + 1, shards = :shards, updated_at = {now}
     WHERE id = :id AND epoch = :epoch AND rounds = :round AND state IN ('applying', 'stalled')
""")


@dataclass(frozen=True)
class BeginRound:
    """Begins a round: its shards, each with its job."""

    declared: Declaration
    run: Run  # as the step saw it
    spans: Sequence[IdSpan]
    alike: AlikeItems | None = None

    def apply(self, tx: Transaction, /) -> None:
        run = self.run
        begun = tx.run(BEGIN_ROUND, id=run.id, epoch=run.epoch, round=run.rounds, shards=len(self.spans))
        if begun != 1:
            raise _moved_on(run)
        run = lock_run(tx, run.id)
        when_committed(tx, "consolidation.started", run, round=run.rounds, shards=len(self.spans))
        if self.alike is not None:
            alerts.items_collide(tx, run, self.alike)
        if self.spans:
            enqueue_jobs(tx, [self._job(run, number, span) for number, span in enumerate(self.spans)])
        else:
            round_ended(tx, self.declared, run)

    def _job(self, run: Run, number: int, span: IdSpan) -> NewJob:
        arguments = {
            "run_id": run.id,
            "epoch": run.epoch,
            "round": run.rounds,
            "shard": number,
            **span._asdict(),
        }
        return replace(new_job(self.declared, run, "consolidate", **arguments), id=shard_id(run, number))


# A batch is written, and perhaps ends its shard and its round.

COUNT_BATCH = sql("""
    UPDATE stepfast_run
       SET applied = applied + :applied, quarantined = quarantined + :refused, differences = differences + :differing,
           shards = shards - :ended, reason = NULL, updated_at = {now}
     WHERE id = :id AND epoch = :epoch AND rounds = :round AND shards > 0 AND state IN ('applying', 'stalled')
""")


@dataclass(frozen=True)
class BatchCommit:
    """Writes one batch, and ends the shard if it was its last."""

    write: TargetWrite
    run: Run  # as the step saw it
    ends: bool
    job_id: str | None  # of the shard, if its note has to go back to the phase of its next batch

    @property
    def by_key(self) -> bool:
        """How the transaction is planned: all rows are found by their keys, unless the feed's own code looks for some."""
        return not self.write.declared.stores

    def apply(self, tx: Transaction, /) -> None:
        run, declared = self.run, self.write.declared
        done = self.write.apply(tx)
        self._count(tx, done)
        if self.job_id is not None and not self.ends:
            tx.run(NOTE_NEXT_PHASE, id=self.job_id, phase=declared.mapping_phase)
        if done.refused:
            when_committed(tx, "rows.quarantined", run, rows=done.refused)
        if done.refused or self.ends:
            now = lock_run(tx, run.id)
            if not stop_if_overspent(tx, declared, now) and now.shards == 0:
                round_ended(tx, declared, now)

    def _count(self, tx: Transaction, done: Applied) -> None:
        run = self.run
        counted = tx.run(
            COUNT_BATCH,
            id=run.id,
            epoch=run.epoch,
            round=run.rounds,
            applied=done.applied,
            refused=done.refused,
            differing=done.differing,
            ended=int(self.ends),
        )
        if counted != 1:
            raise _moved_on(run)


# A feed cannot map rows before a person has done something: the run is held. The next batch that is written clears the reason.

HOLD_RUN = sql("""
    UPDATE stepfast_run SET reason = :reason, updated_at = {now}
     WHERE id = :id AND epoch = :epoch AND rounds = :round AND state IN ('applying', 'stalled')
""")


@dataclass(frozen=True)
class HoldRun:
    """Stores what the run is held for, and raises an alert, once an hour."""

    wanted: RunRound
    reason: str

    def apply(self, tx: Transaction, /) -> None:
        run_id, epoch, round_ = self.wanted
        reason = self.reason[:LONGEST_REASON]
        if tx.run(HOLD_RUN, id=run_id, epoch=epoch, round=round_, reason=reason) != 1:
            return
        run = find_run(tx, run_id)
        if alerts.run_held(tx, run, reason):
            when_committed(tx, "run.held", run, note=reason)


def _moved_on(run: Run) -> TransientError:
    """The run was cancelled, restarted or ended: the step looks again, which costs no attempt."""
    return TransientError(
        f"run {run.id} was moved on by somebody else; nothing of this batch is written", delay=0
    )


# Items that differ, and are one for the target: MariaDB compares texts by a column's collation, which may ignore case
# and accents. The later one would replace the other without a trace.

# The collation that takes most texts for equal: whichever the column has, it finds what that one would.
FIND_ALIKE_ITEMS = sql(
    "",
    mariadb="""
    SELECT min(item_id), max(item_id) FROM stepfast_raw WHERE feed = :feed AND gone_at IS NULL
     GROUP BY item_id COLLATE utf8mb4_unicode_ci HAVING count(*) > 1 LIMIT 1
    """,
)
# Texts of one case with nothing that a collation folds cannot collide. Looking for one that is not so takes a tenth of
# the time, and stops at the first.
ANY_FOLDABLE_ITEMS = sql(
    "",
    mariadb="""
    SELECT EXISTS (SELECT 1 FROM stepfast_raw WHERE feed = :feed AND item_id NOT REGEXP '^[0-9a-z_.:-]*$')
       AND EXISTS (SELECT 1 FROM stepfast_raw WHERE feed = :feed AND item_id NOT REGEXP '^[0-9A-Z_.:-]*$')
    """,
)


class AlikeItems(NamedTuple):
    """Two items of a feed that a column of the target cannot tell apart."""

    one: str
    other: str
    column: str
    collation: str


def items_alike(tx: Transaction, declared: Declaration) -> AlikeItems | None:
    """An example, if the feed has any. Only where target rows are found by the identity of their items."""
    column = declared.item_column
    if declared.stores or column is None or tx.dialect.name != "mariadb":
        return None
    collation = blurred(tx, declared.table).get(column)
    if collation is None or not tx.first(ANY_FOLDABLE_ITEMS, feed=declared.name):
        return None
    found = tx.rows(FIND_ALIKE_ITEMS, feed=declared.name)
    return AlikeItems(str(found[0][0]), str(found[0][1]), column, str(collation)) if found else None
