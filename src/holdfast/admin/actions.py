"""What an operator may do. Each action is a guarded statement; who comes too late is told in which state the job is.

Whatever may concern thousands of rows goes in bounded batches, each in a transaction of its own: those functions take
the database and not a transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.admin.rows import now
from holdfast.clock import new_fence
from holdfast.config import WorkerSettings
from holdfast.database.database import persist
from holdfast.database.statement import sql
from holdfast.database.wakeup import CANCEL
from holdfast.errors import ConfigurationError, ContentionError, NotFoundError, StateError
from holdfast.steps import dead_letters
from holdfast.steps.archive import archive
from holdfast.steps.dead_letters import Chosen, Filter
from holdfast.steps.failure import LONGEST_ERROR, without_secrets
from holdfast.steps.job import JobState
from holdfast.steps.rescue import Rescued, declare_dead, rescue

if TYPE_CHECKING:
    from holdfast.database.connection import Transaction
    from holdfast.database.database import Database

BATCH: Final = 200
TRIES: Final = 5
LONGEST_NAME: Final = 128
LONGEST_NOTE: Final = 500
NOBODY: Final = 0  # no incarnation of ours to spare
CANCELLED_GROUP: Final = "Cancelled"

Progress = Callable[[int], object]  # told how many are behind us

STATE = sql("""
    SELECT state, queue FROM holdfast_job WHERE id = :id
    UNION ALL SELECT state, queue FROM holdfast_archive WHERE id = :id
""")

# A new fence, so that nobody who held it before takes the ending for its own.
CANCEL_WAITING = sql("""
    UPDATE holdfast_job SET fence = :fence, error_group = :error_group, last_error = :reason, updated_at = {now}
     WHERE id = :id AND state IN ('scheduled', 'ready', 'suspect', 'held')
""")

ASK_TO_STOP = sql("""
    UPDATE holdfast_job SET cancel_at = COALESCE(cancel_at, {now}), updated_at = {now} WHERE id = :id AND state = 'leased'
""")

NOTE = sql("""
    INSERT INTO holdfast_log (job_id, at, level, step, message)
    SELECT id, {now}, 'warning', step, :message FROM holdfast_job WHERE id = :id
""")

HASTEN = sql("""
    UPDATE holdfast_job SET state = 'ready', ready_at = {now}, updated_at = {now} WHERE id = :id AND state = 'scheduled'
""")

KNOW_QUEUE = sql("INSERT INTO holdfast_queue (id) VALUES (:id) {keep_existing}")
PAUSE = sql("UPDATE holdfast_queue SET paused_at = {now}, note = :note WHERE id = :id AND paused_at IS NULL")
REMARK = sql("UPDATE holdfast_queue SET note = :note WHERE id = :id AND paused_at IS NOT NULL")
RESUME = sql(
    "UPDATE holdfast_queue SET paused_at = NULL, note = NULL WHERE id = :id AND paused_at IS NOT NULL"
)

ENDED_STATE = sql("SELECT state FROM holdfast_archive WHERE id = :id {for_update}")


@dataclass(frozen=True)
class Retried:
    """What became of many dead letters."""

    retried: int
    refused: int  # their keys are held by unfinished jobs


def cancel(tx: Transaction, job_id: str, reason: str | None = None) -> JobState:
    """End a waiting job at once; ask a leased one to stop. Returns the state it is in now."""
    text = without_secrets(f"Cancelled: {reason}" if reason else "Cancelled by an operator")[:LONGEST_ERROR]
    for _ in range(TRIES):
        if (
            tx.run(CANCEL_WAITING, id=job_id, fence=new_fence(), error_group=CANCELLED_GROUP, reason=text)
            == 1
        ):
            archive(tx, [job_id], JobState.CANCELLED.value)
            return JobState.CANCELLED
        if tx.run(ASK_TO_STOP, id=job_id) == 1:
            tx.run(NOTE, id=job_id, message=text)
            tx.wakes.add(CANCEL)
            return JobState.LEASED
        state, _queue = _state(tx, job_id)
        if state in {JobState.DONE, JobState.DEAD, JobState.CANCELLED}:
            raise StateError(f"job {job_id} is {state}: it has ended, there is nothing to cancel")
    raise ContentionError(f"job {job_id} changed its state {TRIES} times while we looked; try again")


def retry(tx: Transaction, job_id: str) -> JobState:
    """Revive a dead or cancelled job, or let a scheduled one run now. Returns the state it is in now."""
    state, queue = _state(tx, job_id)
    match state:
        case JobState.DEAD | JobState.CANCELLED:
            dead_letters.revive(tx, job_id)
            return _state(tx, job_id)[0]
        case JobState.SCHEDULED if tx.run(HASTEN, id=job_id) == 1:
            tx.wakes.add(queue)
        case JobState.READY | JobState.SUSPECT | JobState.SCHEDULED:
            raise StateError(f"job {job_id} is {state}: it waits for a worker already")
        case JobState.HELD:
            raise StateError(
                f"job {job_id} is held: a limit is exhausted, and it runs as soon as there is room"
            )
        case JobState.LEASED:
            raise StateError(f"job {job_id} is leased: a worker is at it; cancel it first, or wait")
        case JobState.DONE:
            raise StateError(f"job {job_id} is done: enqueue a new one to do it again")
    return JobState.READY


def retry_dead(database: Database, which: Filter | None = None, progress: Progress | None = None) -> Retried:
    """Revive the dead letters that are there now and match, oldest first."""

    def batch(tx: Transaction, letters: list[Chosen]) -> int:
        return dead_letters.revive_many(tx, letters)

    chosen, revived = _each_batch(database, which or Filter(), batch, progress)
    return Retried(revived, chosen - revived)


def purge_dead(database: Database, which: Filter | None = None, progress: Progress | None = None) -> int:
    """Delete the dead letters that are there now and match, with their logs, for good; returns how many."""

    def batch(tx: Transaction, letters: list[Chosen]) -> int:
        return dead_letters.purge(tx, [it.id for it in letters])

    return _each_batch(database, which or Filter(), batch, progress)[1]


def purge_dead_letter(tx: Transaction, job_id: str) -> None:
    """Delete one dead letter and its log for good."""
    state = tx.first(ENDED_STATE, id=job_id)
    if state != JobState.DEAD:
        found = _state(tx, job_id)[0]
        raise StateError(f"job {job_id} is no dead letter, it is {found}; only dead letters are purged")
    dead_letters.purge(tx, [job_id])


def count_dead(tx: Transaction, which: Filter | None = None) -> int:
    """How many dead letters match."""
    return dead_letters.count(tx, which or Filter(), now(tx))


def pause_queue(tx: Transaction, name: str, note: str | None = None) -> bool:
    """Let nobody take jobs of this queue; what runs goes on. False if it was paused before (its note is replaced)."""
    _check_name(name)
    text = note[:LONGEST_NOTE] if note else None
    tx.run(KNOW_QUEUE, id=name)
    if tx.run(PAUSE, id=name, note=text) == 1:
        return True
    if text is not None:
        tx.run(REMARK, id=name, note=text)
    return False


def resume_queue(tx: Transaction, name: str) -> bool:
    """Let workers take its jobs again. False if it was not paused."""
    _check_name(name)
    tx.wakes.add(name)
    return tx.run(RESUME, id=name) == 1


def reset_leases(database: Database, crash_limit: int = WorkerSettings.crash_limit) -> Rescued:
    """Take back what expired leases hold, as every living worker does by itself; `.jobs` is how many.

    Expired means: by the database's clock. A lease that is in force is never touched.
    """
    persist(database, lambda tx: declare_dead(tx, NOBODY, trust_clock=True, trust_machine=False))
    total = Rescued()
    while (found := persist(database, lambda tx: rescue(tx, crash_limit))).jobs:
        total += found
    return total


def _each_batch(
    database: Database,
    which: Filter,
    work: Callable[[Transaction, list[Chosen]], int],
    progress: Progress | None,
) -> tuple[int, int]:
    """Walk over what matches now, in batches; returns how many were chosen, and how many `work` counted."""
    with database.reading() as tx:
        until = now(tx)
    chosen = counted = 0
    last: Chosen | None = None

    def one(tx: Transaction) -> tuple[list[Chosen], int]:
        letters = dead_letters.choose(tx, which, BATCH, until, last)
        return letters, work(tx, letters) if letters else 0

    while True:
        letters, count = persist(database, one)
        if not letters:
            return chosen, counted
        chosen, counted, last = chosen + len(letters), counted + count, letters[-1]
        if progress is not None:
            progress(chosen)


def _state(tx: Transaction, job_id: str) -> tuple[JobState, str]:
    rows = tx.rows(STATE, id=job_id)
    if not rows:
        raise NotFoundError(
            f"there is no job {job_id}; finished jobs are forgotten after their retention time"
        )
    return JobState(rows[0][0]), rows[0][1]


def _check_name(name: str) -> None:
    if not 0 < len(name) <= LONGEST_NAME:
        raise ConfigurationError(f"queue {name[:40]!r}: 1 to {LONGEST_NAME} characters, not {len(name)}")
