"""Jobs that gave up. They wait here for an operator, whatever their age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.clock import new_fence
from holdfast.database.statement import sql
from holdfast.errors import DuplicateKeyError, NotFoundError, StateError

if TYPE_CHECKING:
    from holdfast.database.connection import Transaction

# NULL means "any": one statement serves one, filtered and all.
_FILTER = """
       AND (:kind IS NULL OR kind = :kind) AND (:queue IS NULL OR queue = :queue)
       AND (:error_group IS NULL OR error_group = :error_group)
"""

CHOOSE = sql(
    f"""
    SELECT id FROM holdfast_archive
     WHERE state = 'dead' {_FILTER}
     ORDER BY finished_at LIMIT :limit {{skip_locked}}
    """,
    # PostgreSQL cannot guess the type of a parameter that is only compared with NULL.
    postgresql=f"""
    SELECT id FROM holdfast_archive
     WHERE state = 'dead' {_FILTER.replace(":kind IS", "CAST(:kind AS TEXT) IS").replace(":queue IS", "CAST(:queue AS TEXT) IS").replace(":error_group IS", "CAST(:error_group AS TEXT) IS")}
     ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED
    """,
)

LOCK_ENDED = sql("SELECT state, queue, unique_key FROM holdfast_archive WHERE id = :id {for_update}")
HOLDER = sql("SELECT id FROM holdfast_job WHERE unique_key = :key")

# A new fence, so that nobody who held the job before its death can end it again.
REVIVE = sql(
    """
    INSERT INTO holdfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key,
                              step, failures, crashes, fence, progress, progress_note, last_error, error_group, cursor_json, payload)
    SELECT id, queue, kind, 'ready', priority, {now}, created_at, {now}, unique_key,
           step, 0, 0, :fence, progress, progress_note, last_error, error_group, cursor_json, payload
      FROM holdfast_archive WHERE id = :id AND state IN ('dead', 'cancelled')
""",
    postgresql="""
    INSERT INTO holdfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key,
                              step, failures, crashes, fence, progress, progress_note, last_error, error_group, cursor_json, payload)
    SELECT id, queue, kind, 'ready', priority, {now}, created_at, {now}, unique_key,
           step, 0, 0, :fence, progress, progress_note, last_error, error_group, cursor_json, CAST(payload AS JSON)
      FROM holdfast_archive WHERE id = :id AND state IN ('dead', 'cancelled')
""",
)

FORGET = sql("DELETE FROM holdfast_archive WHERE id {any_of:ids}")
FORGET_LOGS = sql("DELETE FROM holdfast_log WHERE job_id {any_of:ids}")

GROUPS = sql("""
    SELECT kind, COALESCE(error_group, ''), count(*), min(finished_at), max(finished_at), max(id)
      FROM holdfast_archive WHERE state = 'dead'
     GROUP BY kind, error_group ORDER BY count(*) DESC, kind LIMIT :limit
""")


@dataclass(frozen=True)
class Filter:
    """Which dead letters are meant; an empty filter means all."""

    kind: str | None = None
    queue: str | None = None
    error_group: str | None = None


@dataclass(frozen=True)
class FailureGroup:
    """Dead letters of one cause."""

    kind: str
    error_group: str
    count: int
    first_at: int
    last_at: int
    newest_id: str


def choose(tx: Transaction, which: Filter, limit: int) -> list[str]:
    """Lock up to `limit` dead letters, oldest first."""
    rows = tx.rows(CHOOSE, kind=which.kind, queue=which.queue, error_group=which.error_group, limit=limit)
    return [row[0] for row in rows]


def revive(tx: Transaction, job_id: str) -> None:
    """Give an ended job a new life: fresh attempts, at the step where it stopped, under its old key."""
    rows = tx.rows(LOCK_ENDED, id=job_id)
    if not rows:
        raise NotFoundError(
            f"no ended job {job_id}; unfinished ones need no retry (holdfast jobs show {job_id})"
        )
    state, queue, key = rows[0]
    if state not in {"dead", "cancelled"}:
        raise StateError(f"job {job_id} is {state}; only dead and cancelled jobs can be retried")
    if key is not None and (holder := tx.first(HOLDER, key=key)) is not None:
        raise DuplicateKeyError(key, holder)
    tx.run(REVIVE, id=job_id, fence=new_fence())
    tx.run(FORGET, ids=[job_id])
    tx.wakes.add(queue)


def purge(tx: Transaction, ids: list[str]) -> int:
    """Delete ended jobs and their logs for good; returns how many."""
    if not ids:
        return 0
    tx.run(FORGET_LOGS, ids=ids)
    return tx.run(FORGET, ids=ids)


def failure_groups(tx: Transaction, limit: int = 50) -> list[FailureGroup]:
    return tx.all(GROUPS, FailureGroup, limit=limit)
