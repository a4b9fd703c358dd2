"""Dead letters: jobs that gave up wait for an operator, whatever their age, who revives or purges them.

Cancelled jobs can be revived too (`revive`).

One by one, all that match a filter, or a job with its whole tree: the jobs that come after it, and those after them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import moment, new_fence
from stepfast.database.statement import sql
from stepfast.errors import ContentionError, DuplicateKeyError, NotFoundError, StateError
from stepfast.jobs.archive import AWAITED_PARENTS, PURGED, parents_ended
from stepfast.jobs.cancel import Stopped, cancel_jobs
from stepfast.jobs.dependencies import wait_again
from stepfast.jobs.keys import OWN_KEY
from stepfast.suspects import READY_STATE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from stepfast.database.connection import Transaction
    from stepfast.database.statement import Statement


@dataclass(frozen=True)
class Filter:
    """Which dead letters are meant; an empty filter means all."""

    kind: str | None = None
    queue: str | None = None
    error_group: str | None = None


def filter_parameters(which: Filter) -> dict[str, Any]:
    """The filter as parameters."""
    return {
        "kind": which.kind,
        "any_kind": int(which.kind is None),
        "queue": which.queue,
        "any_queue": int(which.queue is None),
        "error_group": which.error_group,
        "any_error": int(which.error_group is None),
    }


@dataclass(frozen=True)
class FailureGroup:
    """Dead letters of one cause."""

    kind: str
    error_group: str
    count: int
    first_at: datetime
    last_at: datetime
    newest_id: str


@dataclass(frozen=True)
class ChosenLetter:
    """An ended job that the caller has locked, and its place in the order."""

    id: str
    queue: str
    finished_at: int


# --- Choose, count and group them.

# Oldest first, and never past `until`: a letter that dies again while many are being revived must not be
# chosen again. `any_…` switches a filter off (PostgreSQL cannot guess the type of a lone NULL).
CHOOSE_DEAD = sql("""
    SELECT id, queue, finished_at FROM stepfast_archive
     WHERE state = 'dead' AND (:any_kind = 1 OR kind = :kind) AND (:any_queue = 1 OR queue = :queue)
       AND (:any_error = 1 OR error_group = :error_group)
       AND finished_at BETWEEN :after AND :until AND (finished_at > :after OR id > :after_id)
     ORDER BY finished_at, id LIMIT :limit {skip_locked}
""")

COUNT_DEAD = sql("""
    SELECT count(*) FROM stepfast_archive
     WHERE state = 'dead' AND (:any_kind = 1 OR kind = :kind) AND (:any_queue = 1 OR queue = :queue)
       AND (:any_error = 1 OR error_group = :error_group) AND finished_at <= :until
""")

FAILURE_GROUPS = sql("""
    SELECT kind, COALESCE(error_group, ''), count(*), min(finished_at), max(finished_at), max(id)
      FROM stepfast_archive
     WHERE state = 'dead' AND (:any_kind = 1 OR kind = :kind) AND (:any_queue = 1 OR queue = :queue)
       AND (:any_error = 1 OR error_group = :error_group)
     GROUP BY kind, error_group ORDER BY count(*) DESC, kind, max(id) LIMIT :limit
""")


def choose_dead(
    tx: Transaction, which: Filter, limit: int, until: int, after: ChosenLetter | None = None
) -> list[ChosenLetter]:
    """Lock up to `limit` dead letters that died by `until`, oldest first, beginning behind `after`."""
    place = {"after": after.finished_at if after else 0, "after_id": after.id if after else ""}
    return tx.all(CHOOSE_DEAD, ChosenLetter, **filter_parameters(which), **place, until=until, limit=limit)


def count_dead(tx: Transaction, which: Filter, until: int) -> int:
    """How many `choose_dead` would find in the end."""
    return int(tx.first(COUNT_DEAD, **filter_parameters(which), until=until))


def failure_groups(tx: Transaction, which: Filter | None = None, limit: int = 50) -> list[FailureGroup]:
    """Dead letters by kind and error, the most frequent first."""
    return [
        FailureGroup(kind, error, count, moment(first), moment(last), newest)
        for kind, error, count, first, last, newest in tx.rows(
            FAILURE_GROUPS, **filter_parameters(which or Filter()), limit=limit
        )
    ]


# --- Revive, answer, purge.

LOCK_ENDED_JOB = sql(
    f"SELECT state, queue, kind, {OWN_KEY} FROM stepfast_archive WHERE id = :id {{for_update}}"
)

KEY_HOLDER = sql("SELECT id FROM stepfast_job WHERE unique_key = :key AND kind = :kind")

# A new fence, so that no owner from before its death can end the job again. A letter whose key an unfinished job
# holds stays where it is. A job that died of crashes comes back as a suspect: its neighbours must not pay for the next
# one. A job that comes after others which are not done waits for them.
_REVIVE = """
    INSERT INTO stepfast_job (id, queue, kind, state, priority, ready_at, created_at, updated_at, unique_key,
                              step, failures, crashes, trace, fence, progress, progress_note, last_error, error_group, cursor_json,
                              has_dependants, payload)
    SELECT id, queue, kind,
           CASE WHEN EXISTS (SELECT 1 FROM stepfast_dependency WHERE child_id = stepfast_archive.id AND state <> 'met') THEN 'waiting'
                ELSE {ready_state} END, priority, {{now}}, created_at, {{now}}, {own_key},
           step, 0, 0, trace, :fence, progress, progress_note, last_error, error_group, cursor_json,
           CASE WHEN EXISTS (SELECT 1 FROM stepfast_dependency WHERE parent_id = stepfast_archive.id) THEN 1 ELSE 0 END, {payload}
      FROM stepfast_archive WHERE id {{any_of:ids}} AND state IN ('dead', 'cancelled')
     ORDER BY finished_at, id
    {keep_existing}
"""

REVIVE_JOBS = sql(
    _REVIVE.format(
        payload="payload", keep_existing="ON CONFLICT DO NOTHING", ready_state=READY_STATE, own_key=OWN_KEY
    ),
    postgresql=_REVIVE.format(
        payload="CAST(payload AS JSON)",
        keep_existing="ON CONFLICT DO NOTHING",
        ready_state=READY_STATE,
        own_key=OWN_KEY,
    ),
    mariadb=_REVIVE.format(
        payload="payload",
        keep_existing="ON DUPLICATE KEY UPDATE stepfast_job.id = stepfast_job.id",
        ready_state=READY_STATE,
        own_key=OWN_KEY,
    ),
)

LEAVE_ARCHIVE = sql("""
    DELETE FROM stepfast_archive
     WHERE id {any_of:ids}
       AND EXISTS (SELECT 1 FROM stepfast_job WHERE stepfast_job.id = stepfast_archive.id AND fence = :fence)
""")


def revive(tx: Transaction, job_id: str) -> None:
    """Give an ended job a new life: fresh attempts, at the step where it stopped, under its old key."""
    rows = tx.rows(LOCK_ENDED_JOB, id=job_id)
    if not rows:
        raise NotFoundError(
            f"no ended job {job_id}; unfinished ones need no retry (stepfast jobs show {job_id})"
        )
    state, queue, kind, key = rows[0]
    if state not in {"dead", "cancelled"}:
        raise StateError(f"job {job_id} is {state}; only dead and cancelled jobs can be retried")
    if revive_many(tx, [ChosenLetter(job_id, queue, 0)]) == 1:
        return
    if key is None:
        raise StateError(f"job {job_id} is unfinished; it needs no retry")
    raise DuplicateKeyError(key, tx.first(KEY_HOLDER, key=key, kind=kind) or job_id)


def revive_many(tx: Transaction, letters: Sequence[ChosenLetter]) -> int:
    """Revive ended jobs that the caller has locked; returns how many. Unfinished jobs hold the keys of the others."""
    if not letters:
        return 0
    ids, fence = [letter.id for letter in letters], new_fence()
    tx.run(REVIVE_JOBS, ids=ids, fence=fence)
    tx.wakes.update(letter.queue for letter in letters)
    left = tx.run(LEAVE_ARCHIVE, ids=ids, fence=fence)
    wait_again(tx, ids)
    return left


CANCEL_DEAD = sql("UPDATE stepfast_archive SET state = 'cancelled' WHERE id {any_of:ids} AND state = 'dead'")


def mark_answered(tx: Transaction, ids: list[str]) -> int:
    """Mark dead letters as cancelled, because other jobs do their work now: they are kept as long as any ended job."""
    return tx.run(CANCEL_DEAD, ids=ids) if ids else 0


FORGET_ARCHIVED = sql("DELETE FROM stepfast_archive WHERE id {any_of:ids}")

FORGET_EDGES = sql("DELETE FROM stepfast_dependency WHERE child_id {any_of:ids}")

FORGET_LOGS = sql("DELETE FROM stepfast_log WHERE job_id {any_of:ids}")


def purge(tx: Transaction, ids: list[str]) -> int:
    """Delete ended jobs and their logs for good; returns how many. Jobs that wait for one of them die of it."""
    if not ids:
        return 0
    if awaited := [str(row[0]) for row in tx.rows(AWAITED_PARENTS, ids=ids)]:
        parents_ended(tx, awaited, PURGED)
    tx.run(FORGET_EDGES, ids=ids)
    tx.run(FORGET_LOGS, ids=ids)
    return tx.run(FORGET_ARCHIVED, ids=ids)


# --- A job and its tree: the jobs that come after it, and those that come after them.
#
# Of the completion job of a group, the members belong to the tree as well: they are what it is about.

LOOKS: Final = 5

GROUP_MEMBERS = sql(
    "SELECT parent_id FROM stepfast_dependency WHERE child_id {any_of:ids} AND bond = 'member'"
)

TREE_CHILDREN = sql("SELECT child_id FROM stepfast_dependency WHERE parent_id {any_of:ids}")

FAILED_CHILDREN = sql("""
    SELECT child_id FROM stepfast_dependency WHERE parent_id {any_of:ids} AND state = 'broken'
""")

LOCK_LIVE_TREE = sql("SELECT id FROM stepfast_job WHERE id {any_of:ids} ORDER BY id {for_update}")

LOCK_ENDED_TREE = sql("""
    SELECT id, queue, finished_at FROM stepfast_archive WHERE id {any_of:ids} AND state IN ('dead', 'cancelled')
     ORDER BY id {for_update}
""")

# A job that ended with its tree comes back with it.
BREAK_TREE_EDGES = sql("""
    UPDATE stepfast_dependency SET state = 'broken'
     WHERE child_id {any_of:ids} AND parent_id {any_of:parents} AND state = 'open'
""")


def cancel_tree(tx: Transaction, job_id: str, reason: str) -> Stopped:
    """End the jobs of the tree that wait, and ask those that run to stop."""
    ids = _lock_tree(tx, job_id)
    tx.run(BREAK_TREE_EDGES, ids=ids, parents=ids)
    return cancel_jobs(tx, ids, reason)


def revive_tree(tx: Transaction, job_id: str) -> tuple[int, int]:
    """Revive a job, if it is dead or cancelled, and all jobs that ended because of it.

    Returns how many were revived, and how many could not be, because unfinished jobs hold their keys.
    """
    ids = _with_children(tx, _with_members(tx, job_id), FAILED_CHILDREN)
    letters = tx.all(LOCK_ENDED_TREE, ChosenLetter, ids=ids)
    revived = revive_many(tx, letters)
    return revived, len(letters) - revived


def _lock_tree(tx: Transaction, job_id: str) -> list[str]:
    """The whole tree, with its live rows locked: from then on nothing can be added to it."""
    for _ in range(LOOKS):
        ids = _with_children(tx, _with_members(tx, job_id), TREE_CHILDREN)
        tx.rows(LOCK_LIVE_TREE, ids=ids)
        if _with_children(tx, _with_members(tx, job_id), TREE_CHILDREN) == ids:
            return ids
    raise ContentionError(f"the tree of job {job_id} grew {LOOKS} times while we looked; try again")


def _with_members(tx: Transaction, job_id: str) -> list[str]:
    """The job; of a group's completion also the members, and theirs."""
    found, frontier = {job_id}, [job_id]
    while frontier:
        members = {str(row[0]) for row in tx.rows(GROUP_MEMBERS, ids=frontier)}
        frontier = sorted(members - found)
        found |= members
    return sorted(found)


def _with_children(tx: Transaction, roots: list[str], along: Statement) -> list[str]:
    """These jobs, and all that come after them."""
    found, frontier = set(roots), roots
    while frontier:
        children = {str(row[0]) for row in tx.rows(along, ids=frontier)}
        frontier = sorted(children - found)
        found |= children
    return sorted(found)
