"""What an operator may do. Each action is a guarded statement; who comes too late is told in which state the job is.

Each writes down who did it, and why, in its own transaction. One that is refused or changes nothing writes nothing.
Without a word from the caller it was `whoever()` runs this process.

Whatever may concern thousands of rows goes in bounded batches, each in a transaction of its own: those functions take
the database and not a transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stepfast.admin import dead_messages
from stepfast.admin.audit import Actor, Command, record, whoever
from stepfast.admin.rows import now
from stepfast.config import WorkerSettings
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, ContentionError, NotFoundError, StateError
from stepfast.steps import dead_letters
from stepfast.steps.cancellation import cancel_jobs
from stepfast.steps.dead_letters import Chosen, Filter
from stepfast.steps.job import LIVE, JobState
from stepfast.steps.rescue import Rescued, declare_dead, rescue

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database

BATCH: Final = 200
LONGEST_NAME: Final = 128
LONGEST_NOTE: Final = 500
NOBODY: Final = 0  # no incarnation of ours to spare
TICK: Final = 0.0015  # seconds; SQLite's clock counts milliseconds

Progress = Callable[[int], object]  # told how many are behind us

STATE = sql("""
    SELECT state, queue FROM stepfast_job WHERE id = :id
    UNION ALL SELECT state, queue FROM stepfast_archive WHERE id = :id
""")

HASTEN = sql("""
    UPDATE stepfast_job SET state = 'ready', ready_at = {now}, updated_at = {now} WHERE id = :id AND state = 'scheduled'
""")

KNOW_QUEUE = sql("INSERT INTO stepfast_queue (id) VALUES (:id) {keep_existing}")
PAUSE = sql("UPDATE stepfast_queue SET paused_at = {now}, note = :note WHERE id = :id AND paused_at IS NULL")
REMARK = sql("UPDATE stepfast_queue SET note = :note WHERE id = :id AND paused_at IS NOT NULL")
RESUME = sql(
    "UPDATE stepfast_queue SET paused_at = NULL, note = NULL WHERE id = :id AND paused_at IS NOT NULL"
)

ENDED_STATE = sql("SELECT state FROM stepfast_archive WHERE id = :id {for_update}")


@dataclass(frozen=True)
class Retried:
    """What became of many dead letters."""

    retried: int
    refused: int  # their keys are held by unfinished jobs


def cancel(tx: Transaction, job_id: str, reason: str | None = None, *, by: Actor | None = None) -> JobState:
    """End a waiting job at once; ask a leased one to stop. Returns the state it is in now."""
    by = (by or whoever()).because(reason)
    text = f"Cancelled: {by.reason}" if by.reason else "Cancelled by an operator"
    stopped = cancel_jobs(tx, [job_id], text)
    if not stopped.ended and not stopped.asked:
        found, _queue = _state(tx, job_id)
        if found in LIVE:
            raise ContentionError(f"job {job_id} was revived while we looked; try again")
        raise StateError(f"job {job_id} is {found}: it has ended, there is nothing to cancel")
    state = JobState.CANCELLED if stopped.ended else JobState.LEASED
    record(tx, by, "job.cancel", job_id, detail={"state": state})
    return state


def retry(tx: Transaction, job_id: str, *, by: Actor | None = None) -> JobState:
    """Revive a dead or cancelled job, or let a scheduled one run now. Returns the state it is in now."""
    was, queue = _state(tx, job_id)
    state = _retry(tx, job_id, was, queue)
    record(tx, by or whoever(), "job.retry", job_id, detail={"was": was, "state": state})
    return state


def _retry(tx: Transaction, job_id: str, state: JobState, queue: str) -> JobState:
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
                f"job {job_id} is held: it runs as soon as its limit has room, or the job that holds its key has ended"
            )
        case JobState.WAITING:
            raise StateError(
                f"job {job_id} waits for the jobs that it comes after (stepfast jobs show {job_id}), and runs when they are done"
            )
        case JobState.LEASED:
            raise StateError(f"job {job_id} is leased: a worker is at it; cancel it first, or wait")
        case JobState.DONE:
            raise StateError(f"job {job_id} is done: enqueue a new one to do it again")
    return JobState.READY


def retry_dead_letter(tx: Transaction, job_id: str, *, by: Actor | None = None) -> None:
    """Revive one dead letter; a message of a broker is sent again."""
    if dead_messages.resend(tx, job_id, by=by):
        return
    dead_letters.revive(tx, job_id)
    record(tx, by or whoever(), "dead-letters.retry", job_id)


def retry_dead(
    database: Database,
    which: Filter | None = None,
    progress: Progress | None = None,
    *,
    by: Actor | None = None,
) -> Retried:
    """Revive the dead letters that are there now and match, oldest first."""
    which = which or Filter()
    command = Command(database, by or whoever(), "dead-letters.retry", _spelled(which), _detail(which))
    chosen, revived = _each_batch(database, command, which, dead_letters.revive_many, progress)
    return Retried(revived + dead_messages.resend_all(database, which, by=by), chosen - revived)


def purge_dead(
    database: Database,
    which: Filter | None = None,
    progress: Progress | None = None,
    *,
    by: Actor | None = None,
) -> int:
    """Delete the dead letters that are there now and match, with their logs, for good; returns how many."""

    def purge(tx: Transaction, letters: list[Chosen]) -> int:
        return dead_letters.purge(tx, [it.id for it in letters])

    which = which or Filter()
    command = Command(database, by or whoever(), "dead-letters.purge", _spelled(which), _detail(which))
    purged = _each_batch(database, command, which, purge, progress)[1]
    return purged + dead_messages.forget_all(database, which, by=by)


def purge_dead_letter(tx: Transaction, job_id: str, *, by: Actor | None = None) -> None:
    """Delete one dead letter and its log for good."""
    if dead_messages.forget(tx, job_id, by=by):
        return
    state = tx.first(ENDED_STATE, id=job_id)
    if state != JobState.DEAD:
        found = _state(tx, job_id)[0]
        raise StateError(f"job {job_id} is no dead letter, it is {found}; only dead letters are purged")
    dead_letters.purge(tx, [job_id])
    record(tx, by or whoever(), "dead-letters.purge", job_id)


def count_dead(tx: Transaction, which: Filter | None = None) -> int:
    """How many dead letters match."""
    which = which or Filter()
    return dead_letters.count(tx, which, now(tx)) + dead_messages.count_dead_messages(tx, which)


def pause_queue(tx: Transaction, name: str, note: str | None = None, *, by: Actor | None = None) -> bool:
    """Let nobody take jobs of this queue; what runs goes on. False if it was paused before (its note is replaced)."""
    _check_name(name)
    by = by or whoever()
    text = (note or by.reason or "")[:LONGEST_NOTE] or None
    by = by if by.reason else by.because(note)
    detail = {"note": text} if text != by.reason else None
    tx.run(KNOW_QUEUE, id=name)
    if tx.run(PAUSE, id=name, note=text) == 1:
        record(tx, by, "queue.pause", name, detail=detail)
        return True
    if text is not None and tx.run(REMARK, id=name, note=text) == 1:
        record(tx, by, "queue.remark", name, detail=detail)
    return False


def resume_queue(tx: Transaction, name: str, *, by: Actor | None = None) -> bool:
    """Let workers take its jobs again. False if it was not paused."""
    _check_name(name)
    tx.wakes.add(name)
    if tx.run(RESUME, id=name) != 1:
        return False
    record(tx, by or whoever(), "queue.resume", name)
    return True


def reset_leases(
    database: Database, crash_limit: int = WorkerSettings.crash_limit, *, by: Actor | None = None
) -> Rescued:
    """Take back what expired leases hold, as every living worker does by itself; `.jobs` is how many.

    Expired means: by the database's clock. A lease that is in force is never touched.
    """

    def declare(tx: Transaction) -> tuple[int, int | None]:
        dead = declare_dead(tx, NOBODY, trust_clock=True, trust_machine=False)
        return dead, 0 if dead else None

    def batch(tx: Transaction) -> tuple[Rescued, int | None]:
        found = rescue(tx, crash_limit)
        return found, found.jobs or None

    command = Command(database, by or whoever(), "leases.reset", "expired", {"crash_limit": crash_limit})
    command.run(declare)
    total = Rescued()
    while (found := command.run(batch)).jobs:
        total += found
    command.end()
    return total


def _each_batch(
    database: Database,
    command: Command,
    which: Filter,
    work: Callable[[Transaction, list[Chosen]], int],
    progress: Progress | None,
) -> tuple[int, int]:
    """Walk over what matches now, in batches; returns how many were chosen, and how many `work` counted."""
    with database.reading() as tx:
        until = now(tx)
    time.sleep(TICK)  # what dies of our work dies later than what we walk over
    chosen = counted = 0
    last: Chosen | None = None

    def batch(tx: Transaction) -> tuple[tuple[list[Chosen], int], int | None]:
        letters = dead_letters.choose(tx, which, BATCH, until, last)
        count = work(tx, letters) if letters else 0
        return (letters, count), count or None

    while True:
        letters, count = command.run(batch)
        if not letters:
            command.end()
            return chosen, counted
        chosen, counted, last = chosen + len(letters), counted + count, letters[-1]
        if progress is not None:
            progress(chosen)


def _spelled(which: Filter) -> str:
    given = [f"{name}={value}" for name, value in _detail(which).items() if value is not None]
    return " ".join(given) or "all"


def _detail(which: Filter) -> dict[str, str | None]:
    return {"kind": which.kind, "queue": which.queue, "error": which.error_group}


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
