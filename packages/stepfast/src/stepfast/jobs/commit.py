"""The one transaction a step ends in.

The outcome is written first: it matches only under the fence, so it is the guard and the lock in one, and
if the step was taken over meanwhile nothing below happens. Then the effects, in the same transaction, so
there is no order in which a crash could lose one and keep the other. (MariaDB locks the job under its fence,
applies the effects, and writes the outcome last.) Every ending that leaves the job alive
writes a new fence and keeps the one it consumed, so that a COMMIT whose answer was lost can be told from
one that never happened (`commit_states`).

Most steps have no effects: `finish_many` and `continue_here` end many of them in one transaction.

`worker/execution.py` calls the handler, and `worker/running.py` makes an `Ending` of its answer or exception;
`worker/committer.py` opens the transaction, puts steps together, and tries again. A done job is moved to the archive here;
dead and cancelled ones, and the release of jobs that come after, are in `archive.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, assert_never

from stepfast.clock import duration, micros, new_fence
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, DatabaseError, LeaseLostError
from stepfast.jobs.archive import ARCHIVE_COLUMNS, archive, end_jobs, parents_ended
from stepfast.jobs.events import await_event
from stepfast.jobs.outcome import (
    Again,
    Bury,
    Call,
    Continue,
    Done,
    Effect,
    Ending,
    GiveBack,
    Reject,
    ReservedContinue,
    Snooze,
    Stop,
    Wait,
)
from stepfast.jobs.payload import encode
from stepfast.jobs.retry import grouped
from stepfast.jobs.wait import callback_event, waiting_cursor
from stepfast.suspects import CRASH_GROUP, READY_STATE
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepfast.database.connection import Transaction
    from stepfast.database.statement import Statement
    from stepfast.jobs.lease import Lease


CANCELLED = "cancelled by an operator"

# The fence alone says "leased by me": every claim, ending and rescue writes a new one. `state = 'leased'` beside it
# would tempt PostgreSQL's generic plans into the small leased index, once per row (75 µs a job against 13).
# Asked before the effects only where one of them could commit behind our back: the outcome must not go with it.
LOCK_LEASED_JOB = sql("""
    SELECT id FROM stepfast_job WHERE id = :id AND fence = :fence {for_update}
""")


def commit(
    tx: Transaction, lease: Lease, ending: Ending, effects: Sequence[Effect] = (), *, stay: bool = False
) -> int | None:
    """Write everything a step ends with, or raise and write nothing.

    With `stay`, a continuation remains leased to the caller, unless it was cancelled: its new fence is returned. Ask
    `more_urgent` before.
    """
    if effects and tx.dialect.commits_unasked:
        _refuse_unless(bool(tx.rows(LOCK_LEASED_JOB, id=lease.job_id, fence=lease.fence)), lease)
        _apply(tx, effects)
        fence, awaited = _write(tx, lease, ending, stay=stay)
    else:
        fence, awaited = _write(tx, lease, ending, stay=stay)
        _apply(tx, effects)
    if awaited:  # last: an effect may add to the group that this job was the last member of
        parents_ended(tx, [lease.job_id], "done")
    return fence


def _refuse_unless(held: bool, lease: Lease) -> None:  # noqa: FBT001 - reads as a sentence
    if not held:
        raise LeaseLostError(lease.job_id, lease.fence)


def effects_of(outcome: Done | Continue | Snooze | Wait) -> list[Effect]:
    """The effects of an outcome; a function of the transaction is an effect, too."""
    given = outcome.effects
    if callable(given) or hasattr(given, "apply"):
        given = [given]  # one, without its list
    return [as_effect(it) for it in given]


def as_effect(given: Effect | Callable[[Transaction], object]) -> Effect:
    if hasattr(given, "apply"):
        return given
    if callable(given):
        return Call(given)
    raise ConfigurationError(
        f"an effect is a function of the transaction or has apply(tx), not {given!r:.80}"
    )


def _apply(tx: Transaction, effects: Sequence[Effect]) -> None:
    """Apply effects in their order, messages that leave the database last: that is the order of locks everywhere."""
    try:
        for effect in effects if len(effects) <= 1 else sorted(effects, key=_turn):
            effect.apply(tx)
    except DatabaseError as error:
        error.of_step = True
        raise


def _turn(effect: Effect) -> tuple[int, str]:
    turn: tuple[int, str] = getattr(effect, "turn", (0, ""))
    return turn


def _write(tx: Transaction, lease: Lease, ending: Ending, *, stay: bool) -> tuple[int | None, bool]:
    """Write the outcome; returns the fence of a continuation that stays, and whether jobs wait for one that is done now."""
    match ending:
        case Continue():
            return _continue(tx, lease, ending, stay=stay), False
        case Done(result):
            awaited = finish(tx, lease, None if result is None else encode(result))
            _refuse_unless(awaited is not None, lease)
            return None, bool(awaited)
        case Snooze(delay):
            _run_again(tx, lease, SNOOZE_JOB, delay=micros(duration(delay, "Snooze")))
        case Wait():
            _wait(tx, lease, ending)
        case Again(delay, error, group, charged, crashed):
            facts = {"error": error, "error_group": group, "charge": int(charged), "crash": int(crashed)}
            _run_again(tx, lease, RETRY_JOB, **facts, delay=micros(delay))
        case Reject(reason):
            _bury(tx, lease, Bury(f"Rejected: {without_secrets(reason)}", grouped(f"Rejected: {reason}")))
        case Bury():
            _bury(tx, lease, ending)
        case Stop(reason):
            _stop(tx, lease.job_id, lease.fence, reason)
        case GiveBack():
            _refuse_unless(give_back(tx, [lease.job_id], lease.fence) == 1, lease)
        case _:
            assert_never(ending)
    return None, False


# --- The job is done: it moves to the archive under its fence; an owner that lost the fence moves nothing. Jobs that
# others wait for are marked (`has_dependants`): only they cost more, and only if there are any.

# PostgreSQL moves rows in one statement; the DELETE is the lock and the guard. It names one table and asks for its
# primary key, so there is one way to run it. (A join with the list of ids can be turned around: 7.8 s for 500 jobs
# when vacuum had found the table empty.) Hence one statement per fence, with the results looked up by id.
_MOVE = f"""
    WITH mine AS (
        DELETE FROM stepfast_job WHERE {{which}} AND fence = :fence
        RETURNING {ARCHIVE_COLUMNS}, fence, payload, has_dependants
    ), kept AS (
        INSERT INTO stepfast_archive ({ARCHIVE_COLUMNS}, committed_fence, payload, result, state, finished_at)
        SELECT {ARCHIVE_COLUMNS}, fence, payload, {{result}}, 'done', {{{{now}}}} FROM mine
        ON CONFLICT DO NOTHING
    )
    SELECT id, has_dependants FROM mine
"""

# One job: elsewhere its copy is written first and the fenced REMOVE_DONE_JOB is the guard, which undoes the copy.
MOVE_DONE_JOB = sql(
    f"""
    INSERT INTO stepfast_archive ({ARCHIVE_COLUMNS}, committed_fence, payload, result, state, finished_at)
    SELECT {ARCHIVE_COLUMNS}, fence, payload, :result, 'done', {{now}} FROM stepfast_job WHERE id = :id AND fence = :fence
    ON CONFLICT DO NOTHING
    """,
    mariadb=f"""
    INSERT INTO stepfast_archive ({ARCHIVE_COLUMNS}, committed_fence, payload, result, state, finished_at)
    SELECT {ARCHIVE_COLUMNS}, fence, payload, :result, 'done', {{now}} FROM stepfast_job WHERE id = :id AND fence = :fence
    ON DUPLICATE KEY UPDATE stepfast_archive.id = stepfast_archive.id
    """,
    postgresql=_MOVE.format(which="id = :id", result="CAST(:result AS TEXT)"),
)
REMOVE_DONE_JOB = sql(
    "DELETE FROM stepfast_job WHERE has_dependants = 0 AND id = :id AND fence = :fence", postgresql=""
)
# The row stays locked from here on: a job that wants to wait for it finds it ended.
REMOVE_AWAITED_JOB = sql("DELETE FROM stepfast_job WHERE id = :id AND fence = :fence", postgresql="")


def finish(tx: Transaction, lease: Lease, result: str | None) -> bool | None:
    """Finish one step; returns whether jobs may wait for this one: `commit` releases them after the effects.

    None: the fence has moved on, and the caller rolls back.
    """
    mine = {"id": lease.job_id, "fence": lease.fence}
    if tx.takes_columns:
        moved = tx.rows(MOVE_DONE_JOB, **mine, result=result)
        return bool(moved[0][1]) if moved else None
    tx.run(MOVE_DONE_JOB, **mine, result=result)
    if tx.run(REMOVE_DONE_JOB, **mine) == 1:
        return False
    return True if tx.run(REMOVE_AWAITED_JOB, **mine) == 1 else None


_MANY = "id = ANY(CAST(:ids AS TEXT[]))"
MOVE_DONE_JOBS = sql("", postgresql=_MOVE.format(which=_MANY, result="CAST(NULL AS TEXT)"))
MOVE_DONE_JOBS_WITH_RESULTS = sql(
    "", postgresql=_MOVE.format(which=_MANY, result="CAST(:results AS JSONB) ->> id")
)

# SQLite hands the interpreter's lock around with every row it returns, and the others are busy: a count is one row.
COUNT_LEASED_JOBS = sql("""
    SELECT count(*), COALESCE(sum(has_dependants), 0) FROM stepfast_job WHERE id {any_of:ids} AND fence = :fence
""")
LOCK_LEASED_JOBS = sql("""
    SELECT id, has_dependants FROM stepfast_job
     WHERE id {any_of:ids} AND fence = :fence
     ORDER BY id
    {for_update}
""")

WRITE_RESULT = sql("UPDATE stepfast_archive SET result = :result WHERE id = :id AND committed_fence = :fence")


def finish_many(
    tx: Transaction, leases: Sequence[Lease], results: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Finish many steps that have no effects; returns the ids that were still ours.

    The others were taken over: nothing of them is written, and their owners decide.
    """
    by_fence: dict[int, list[str]] = {}
    for lease in leases:
        by_fence.setdefault(lease.fence, []).append(lease.job_id)
    mine: list[str] = []
    awaited: list[str] = []
    for fence, ids in by_fence.items():
        moved, marked = _move(tx, ids, fence, results)
        mine += moved
        awaited += marked
    if awaited:
        parents_ended(tx, awaited, "done")
    return mine


Moved = tuple[list[str], list[str]]  # the jobs that were still ours; those of them that others may wait for


def _move(tx: Transaction, ids: list[str], fence: int, results: Mapping[str, str]) -> Moved:
    kept = {job_id: results[job_id] for job_id in ids if job_id in results} if results else {}
    if tx.takes_columns and kept:
        return _moved(tx.rows(MOVE_DONE_JOBS_WITH_RESULTS, ids=ids, fence=fence, results=encode(kept)))
    if tx.takes_columns:
        return _moved(tx.rows(MOVE_DONE_JOBS, ids=ids, fence=fence))
    mine, awaited = _lock_leased(tx, ids, fence)
    if mine:
        archive(tx, mine, "done")
        with_result = [{"id": it, "fence": fence, "result": kept[it]} for it in mine if it in kept]
        tx.run_many(WRITE_RESULT, with_result)
    return mine, awaited


def _lock_leased(tx: Transaction, ids: list[str], fence: int) -> Moved:
    """Find the jobs that are still ours; they stay so until the commit."""
    if tx.dialect.name == "sqlite":
        counted = tx.rows(COUNT_LEASED_JOBS, ids=ids, fence=fence)[0]
        if tuple(counted) == (len(ids), 0):
            return ids, []
    return _moved(tx.rows(LOCK_LEASED_JOBS, ids=ids, fence=fence))


def _moved(rows: Sequence[Sequence[Any]]) -> Moved:
    return [row[0] for row in rows], [row[0] for row in rows if row[1]]


# --- The job goes on with its next step: leased to this worker, ready for any, or when an event has come.

_CONTINUE = """
    UPDATE stepfast_job
       SET state = {state}, ready_at = {{now}} + :delay,
           owner = NULL, leased_by = NULL, lease_until = NULL, cursor_json = :cursor, step = step + 1,
           failures = 0, crashes = 0, error_group = NULL,
           fence = :new_fence, committed_fence = :fence, updated_at = {{now}}
     WHERE id = :id AND fence = :fence AND cancel_at IS NULL
"""
CONTINUE_JOB = sql(_CONTINUE.format(state="CASE WHEN :delay > 0 THEN 'scheduled' ELSE 'ready' END"))
# Ready at once for the worker that gets its message; a claim looks at `ready_at`, and finds it after the head start.
CONTINUE_RESERVED_JOB = sql(_CONTINUE.format(state="'ready'"))

# The next step stays with this worker, unless the job was cancelled. Ask `more_urgent` before.
CONTINUE_JOB_HERE = sql("""
    UPDATE stepfast_job
       SET cursor_json = :cursor, step = step + 1, failures = 0, crashes = 0, error_group = NULL,
           ready_at = {now}, leased_at = {now}, fence = :new_fence, committed_fence = :fence, updated_at = {now}
     WHERE id = :id AND fence = :fence AND cancel_at IS NULL
""")

# A job that was asked to stop and is revived goes on behind the step whose effects are committed.
ADVANCE_CANCELLED_JOB = sql("""
    UPDATE stepfast_job
       SET cursor_json = :cursor, step = step + 1, failures = 0, crashes = 0, updated_at = {now}
     WHERE id = :id AND fence = :fence
""")

MORE_URGENT_WORK = sql("""
    SELECT 1 WHERE EXISTS (SELECT 1 FROM stepfast_queue WHERE id = :queue AND paused_at IS NOT NULL)
                OR EXISTS (SELECT 1 FROM stepfast_job WHERE queue = :queue AND state = 'ready' AND priority > :priority)
""")


def _continue(tx: Transaction, lease: Lease, ending: Continue, *, stay: bool) -> int | None:
    delay = micros(duration(ending.delay, "Continue(delay=…)"))
    cursor, fence = encode(ending.cursor, "cursor"), new_fence()
    mine = {"id": lease.job_id, "fence": lease.fence}
    if stay and not delay and tx.run(CONTINUE_JOB_HERE, **mine, cursor=cursor, new_fence=fence) == 1:
        return fence
    head_start = ending.head_start if isinstance(ending, ReservedContinue) and not delay else 0
    statement = CONTINUE_RESERVED_JOB if head_start else CONTINUE_JOB
    if tx.run(statement, **mine, cursor=cursor, delay=delay + head_start, new_fence=fence) != 1:
        _stop_behind(tx, lease, cursor)
    elif not delay and not head_start:
        tx.wakes.add(lease.queue)
    return None


def _wait(tx: Transaction, lease: Lease, ending: Wait) -> None:
    """Schedule the next step for the end of its patience; an event brings it forward."""
    name = ending.event or callback_event(lease.job_id, lease.step)
    patience = micros(duration(ending.timeout, "Wait(timeout=…)"))
    cursor, fence = waiting_cursor(encode(ending.cursor, "cursor"), name), new_fence()
    mine = {"id": lease.job_id, "fence": lease.fence}
    if tx.run(CONTINUE_JOB, **mine, cursor=cursor, delay=patience, new_fence=fence) == 1:
        await_event(tx, lease.job_id, fence, name, patience)
    else:
        _stop_behind(tx, lease, cursor)


def _stop_behind(tx: Transaction, lease: Lease, cursor: str) -> None:
    """Cancel a job behind the step that ends here."""
    tx.run(ADVANCE_CANCELLED_JOB, id=lease.job_id, fence=lease.fence, cursor=cursor)
    _stop(tx, lease.job_id, lease.fence, CANCELLED)


def continue_here(tx: Transaction, steps: Sequence[tuple[Lease, Continue]]) -> dict[str, int]:
    """Write continuations that all remain leased to the caller, or raise; returns the new fences by job."""
    fences = {lease.job_id: new_fence() for lease, _ in steps}
    rows = [
        {
            "id": lease.job_id,
            "fence": lease.fence,
            "cursor": encode(ending.cursor, "cursor"),
            "new_fence": fences[lease.job_id],
        }
        for lease, ending in steps
    ]
    if tx.run_many(CONTINUE_JOB_HERE, rows) != len(rows):
        lease = steps[0][0]
        raise LeaseLostError(lease.job_id, lease.fence)  # or another of them; or one of them is to stop
    return fences


def more_urgent(tx: Transaction, queue: str, priority: int) -> bool:
    """Whether the next step must not stay with its worker: the queue is paused, or more urgent work is ready."""
    return bool(tx.rows(MORE_URGENT_WORK, queue=queue, priority=priority))


# --- The same step runs again: snoozed, retried, or given back. A job that was asked to stop ends here instead.

SNOOZE_JOB = sql(f"""
    UPDATE stepfast_job
       SET state = CASE WHEN :delay > 0 THEN 'scheduled' ELSE {READY_STATE} END, ready_at = {{now}} + :delay,
           owner = NULL, leased_by = NULL, lease_until = NULL,
           fence = :new_fence, committed_fence = :fence, updated_at = {{now}}
     WHERE id = :id AND fence = :fence AND cancel_at IS NULL
""")

# A try that costs nothing proves nothing: a suspect stays one. One that fails by itself did not kill its worker.
# (`state` before `error_group`: MariaDB reads what stands to the left as already written.)
RETRY_JOB = sql(f"""
    UPDATE stepfast_job
       SET state = CASE WHEN :delay > 0 THEN 'scheduled' WHEN :charge > 0 OR :crash > 0 THEN 'ready' ELSE {READY_STATE} END,
           ready_at = {{now}} + :delay,
           owner = NULL, leased_by = NULL, lease_until = NULL, failures = failures + :charge,
           crashes = crashes + :crash, last_error = :error,
           error_group = CASE WHEN :charge = 0 AND :crash = 0 AND error_group = '{CRASH_GROUP}' THEN error_group ELSE :error_group END,
           fence = :new_fence, committed_fence = :fence, updated_at = {{now}}
     WHERE id = :id AND fence = :fence AND cancel_at IS NULL
""")

# A suspect that is given back has not proved anything, and must not run among others next time.
GIVE_BACK_JOBS = sql(f"""
    UPDATE stepfast_job
       SET state = {READY_STATE}, owner = NULL, leased_by = NULL, lease_until = NULL,
           fence = :new_fence, committed_fence = :fence, updated_at = {{now}}
     WHERE id {{any_of:ids}} AND fence = :fence AND cancel_at IS NULL
""")

LOCK_CANCELLED_JOBS = sql("""
    SELECT id FROM stepfast_job
     WHERE id {any_of:ids} AND fence = :fence AND cancel_at IS NOT NULL
     ORDER BY id
    {for_update}
""")


def _run_again(tx: Transaction, lease: Lease, statement: Statement, **facts: Any) -> None:
    """Snooze or retry this step."""
    mine = {"id": lease.job_id, "fence": lease.fence}
    if tx.run(statement, **mine, **facts, new_fence=new_fence()) != 1:
        _stop(tx, lease.job_id, lease.fence, CANCELLED)


def give_back(tx: Transaction, ids: list[str], fence: int) -> int:
    """Return leased jobs to their place, unharmed; returns how many were still ours."""
    matched = tx.run(GIVE_BACK_JOBS, ids=ids, fence=fence, new_fence=new_fence())
    if matched == len(ids):
        return matched
    stopped = [row[0] for row in tx.rows(LOCK_CANCELLED_JOBS, ids=ids, fence=fence)]
    for job_id in stopped:
        _stop(tx, job_id, fence, CANCELLED)
    return matched + len(stopped)


# --- The job ends without a result: dead or cancelled.

RECORD_FAILURE = sql("""
    UPDATE stepfast_job
       SET failures = failures + :charge, crashes = crashes + :crash, last_error = :error,
           error_group = :error_group, updated_at = {now}
     WHERE id = :id AND fence = :fence
""")


def _bury(tx: Transaction, lease: Lease, why: Bury) -> None:
    _record_failure(tx, lease.job_id, lease.fence, why, charge=int(not why.crashed))
    end_jobs(tx, [lease.job_id], "dead")


def _stop(tx: Transaction, job_id: str, fence: int, reason: str) -> None:
    _record_failure(tx, job_id, fence, Bury(reason, "Cancelled"), charge=0)
    end_jobs(tx, [job_id], "cancelled")


def _record_failure(tx: Transaction, job_id: str, fence: int, why: Bury, *, charge: int) -> None:
    facts = {"error": why.error, "error_group": why.group, "charge": charge, "crash": int(why.crashed)}
    if tx.run(RECORD_FAILURE, id=job_id, fence=fence, **facts) != 1:
        raise LeaseLostError(job_id, fence)


# --- Find out by the fences whether a COMMIT whose answer was lost took place.

LIVE_FENCES = sql("""
    SELECT id, fence, COALESCE(committed_fence, 0) FROM stepfast_job WHERE id {any_of:ids} ORDER BY id {for_update}
""")
ARCHIVED_FENCES = sql("SELECT id, COALESCE(committed_fence, 0) FROM stepfast_archive WHERE id {any_of:ids}")


class CommitState(StrEnum):
    """Whether a COMMIT whose answer was lost took place."""

    COMMITTED = "committed"
    OPEN = "open"  # the fence is still ours: it did not happen, and may be tried again
    SUPERSEDED = "superseded"  # another owner has the step: write nothing


def commit_states(tx: Transaction, leases: Sequence[Lease]) -> dict[str, CommitState]:
    """Look at the fences of these steps. The lock waits for a ghost session that may still be committing."""
    ids = [lease.job_id for lease in leases]
    live = {row[0]: (row[1], row[2]) for row in tx.rows(LIVE_FENCES, ids=ids)}
    archived = {row[0]: row[1] for row in tx.rows(ARCHIVED_FENCES, ids=ids)}
    states = {}
    for lease in leases:
        fence, committed = live.get(lease.job_id, (None, None))
        if fence == lease.fence:
            states[lease.job_id] = CommitState.OPEN
        elif lease.fence in (committed, archived.get(lease.job_id)):
            states[lease.job_id] = CommitState.COMMITTED
        else:
            states[lease.job_id] = CommitState.SUPERSEDED
    return states
