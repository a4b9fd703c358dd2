"""The end of a job: moved to the archive, whole, in the transaction that ends it; its dependants are released or fail.

Dependants are locked before their edges are looked at. So of two parents that end at the same time, one is the last and
sees what the other one wrote: the child is released once. An ended job stays in the archive as long as an unfinished
job comes after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stepfast.clock import new_fence
from stepfast.database.statement import sql
from stepfast.jobs.end_webhook import stage_failure_webhooks
from stepfast.suspects import READY_STATE
from stepfast.telemetry import when_committed

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from stepfast.database.connection import Transaction


ARCHIVE_COLUMNS = (
    "id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, trace, "
    "progress, progress_note, error_group, last_error, cursor_json"
)

# Runs after a lock on exactly these rows. An id that is already in the archive keeps its first ending.
ARCHIVE_JOBS = sql(
    f"""
    INSERT INTO stepfast_archive ({ARCHIVE_COLUMNS}, committed_fence, payload, state, finished_at)
    SELECT {ARCHIVE_COLUMNS}, fence, payload, :state, {{now}}
      FROM stepfast_job WHERE id {{any_of:ids}}
    ON CONFLICT DO NOTHING
    """,
    mariadb=f"""
    INSERT INTO stepfast_archive ({ARCHIVE_COLUMNS}, committed_fence, payload, state, finished_at)
    SELECT {ARCHIVE_COLUMNS}, fence, payload, :state, {{now}}
      FROM stepfast_job WHERE id {{any_of:ids}}
    ON DUPLICATE KEY UPDATE stepfast_archive.id = stepfast_archive.id
    """,
)
REMOVE_JOBS = sql("DELETE FROM stepfast_job WHERE id {any_of:ids}")
JOBS_WITH_DEPENDANTS = sql("SELECT id FROM stepfast_job WHERE id {any_of:ids} AND has_dependants = 1")


def archive(tx: Transaction, ids: list[str], state: str) -> None:
    """Move jobs whose rows the caller has locked; webhooks about tasks that did not end well are staged here."""
    tx.run(ARCHIVE_JOBS, ids=ids, state=state)
    tx.run(REMOVE_JOBS, ids=ids)
    if state != "done":
        stage_failure_webhooks(tx, ids)


def end_jobs(tx: Transaction, ids: list[str], state: str) -> None:
    """Move jobs whose rows the caller has locked, and release or fail the jobs that wait for them."""
    awaited = [str(row[0]) for row in tx.rows(JOBS_WITH_DEPENDANTS, ids=ids)]
    archive(tx, ids, state)
    if awaited:
        parents_ended(tx, awaited, state)


# --- Dependants of jobs that end.

FAILED_GROUP: Final = "DependencyFailed"
PURGED: Final = "purged"  # the end of a dead letter that an operator deletes: it can never be revived
ENDING_WORDS: Final = {
    "dead": "died",
    "cancelled": "was cancelled",
    PURGED: "was deleted",
    "unknown": "is not known",
}

AWAITED_PARENTS = sql("""
    SELECT DISTINCT parent_id FROM stepfast_dependency WHERE parent_id {any_of:ids} AND state = 'open'
""")
UNMET_CHILDREN = sql("""
    SELECT DISTINCT child_id FROM stepfast_dependency WHERE parent_id {any_of:ids} AND state IN ('open', 'broken')
""")
LOCK_CHILDREN = sql("""
    SELECT id, queue, has_dependants FROM stepfast_job WHERE id {any_of:ids} AND state = 'waiting'
     ORDER BY id {for_update}
""")
OPEN_EDGES_TO = sql("""
    SELECT child_id, parent_id, on_dead FROM stepfast_dependency WHERE parent_id {any_of:ids} AND state = 'open'
     ORDER BY parent_id, child_id
""")

MEET_EDGES = sql("""
    UPDATE stepfast_dependency SET state = 'met' WHERE parent_id {any_of:ids} AND state IN ('open', 'broken')
""")
MEET_EDGES_ANYWAY = sql("""
    UPDATE stepfast_dependency SET state = 'met' WHERE parent_id {any_of:ids} AND state = 'open' AND on_dead = 'run'
""")
BREAK_EDGES = sql("""
    UPDATE stepfast_dependency SET state = 'broken'
     WHERE parent_id {any_of:ids} AND child_id {any_of:children} AND state = 'open'
""")
STILL_WAITING = sql("""
    SELECT DISTINCT child_id FROM stepfast_dependency WHERE child_id {any_of:ids} AND state = 'open'
""")

# A child's own time may not have come yet.
RELEASE_CHILDREN = sql(f"""
    UPDATE stepfast_job
       SET state = CASE WHEN ready_at > {{now}} THEN 'scheduled' ELSE {READY_STATE} END,
           ready_at = CASE WHEN ready_at > {{now}} THEN ready_at ELSE {{now}} END, updated_at = {{now}}
     WHERE id {{any_of:ids}} AND state = 'waiting'
""")

# A new fence, as for every ending.
FAIL_CHILDREN = sql("""
    UPDATE stepfast_job SET fence = :fence, error_group = :error_group, last_error = :reason, updated_at = {now}
     WHERE id {any_of:ids} AND state = 'waiting'
""")


@dataclass(frozen=True)
class FailedParent:
    """A parent that will not be done, and how it ended."""

    id: str
    state: str

    @property
    def reason(self) -> str:
        return f"{FAILED_GROUP}: job {self.id}, which it comes after, {ENDING_WORDS[self.state]}"


@dataclass(frozen=True)
class WaitingChild:
    """A job that waits, and whose row is locked."""

    id: str
    queue: str
    has_dependants: int


def parents_ended(tx: Transaction, ids: Collection[str], state: str) -> None:
    """Release or fail the jobs that wait for these, which ended in `state`; and so on along the edges."""
    _follow(tx, sorted(ids), state)


def _follow(tx: Transaction, ended: list[str], state: str) -> None:
    while ended:  # no recursion: a chain may be long
        ended, state = _release_or_fail(tx, ended, state), "dead"


def _release_or_fail(tx: Transaction, parents: list[str], state: str) -> list[str]:
    """Decide about the children of these parents; returns the children that died of it and have dependants in turn."""
    children = [str(row[0]) for row in tx.rows(UNMET_CHILDREN, ids=parents)]
    if not children:
        return []
    waiting = lock_waiting(tx, children)
    if state == "done":
        tx.run(MEET_EDGES, ids=parents)
        release_children(tx, waiting)
        return []
    edges = tx.rows(OPEN_EDGES_TO, ids=parents)  # after the lock: a child that was replaced has other parents
    tx.run(MEET_EDGES_ANYWAY, ids=parents)
    by_id = {child.id: child for child in waiting}
    failing: dict[str, str] = {}  # child → the first parent of which it dies
    for child, parent, on_dead in edges:
        if child in by_id and (on_dead == "fail" or (on_dead == "wait" and state == PURGED)):
            failing.setdefault(child, parent)
    release_children(tx, [child for child in waiting if child.id not in failing])
    awaited: list[str] = []
    for parent in sorted(set(failing.values())):
        failed = [by_id[child] for child, cause in failing.items() if cause == parent]
        tx.run(BREAK_EDGES, ids=[parent], children=[child.id for child in failed])
        awaited += _fail(tx, failed, FailedParent(parent, state))
    return awaited


def lock_waiting(tx: Transaction, ids: Sequence[str]) -> list[WaitingChild]:
    """The jobs among these that wait for others, in the order of their ids, locked."""
    return tx.all(LOCK_CHILDREN, WaitingChild, ids=list(ids)) if ids else []


def release_children(tx: Transaction, waiting: Sequence[WaitingChild]) -> int:
    """Release those of these locked jobs that have no open edge left; returns how many."""
    if not waiting:
        return 0
    still = {row[0] for row in tx.rows(STILL_WAITING, ids=[child.id for child in waiting])}
    free = [child for child in waiting if child.id not in still]
    if free:
        tx.run(RELEASE_CHILDREN, ids=[child.id for child in free])
        tx.wakes.update(child.queue for child in free)
        when_committed(tx, "dependants.released", jobs=len(free))
    return len(free)


def fail_children(tx: Transaction, ids: Sequence[str], parent: FailedParent) -> None:
    """End these waiting jobs because of a parent, and decide about the jobs that wait for them."""
    _follow(tx, _fail(tx, lock_waiting(tx, ids), parent), "dead")


def _fail(tx: Transaction, children: Sequence[WaitingChild], parent: FailedParent) -> list[str]:
    """End these locked jobs; returns those that have dependants."""
    ids = [child.id for child in children]
    if not ids:
        return []
    tx.run(FAIL_CHILDREN, ids=ids, fence=new_fence(), error_group=FAILED_GROUP, reason=parent.reason)
    archive(tx, ids, "dead")
    when_committed(
        tx, "dependants.failed", job_id=parent.id, jobs=len(ids), reason=ENDING_WORDS[parent.state]
    )
    return [child.id for child in children if child.has_dependants]


# --- Ended jobs that an unfinished job depends on are not pruned.

# About a row of stepfast_archive. Part of the choice, so that what is kept does not stand in the way of the rest.
NOT_NEEDED: Final = """NOT EXISTS (
           SELECT 1 FROM stepfast_dependency d JOIN stepfast_job c ON c.id = d.child_id
            WHERE d.parent_id = stepfast_archive.id)"""

NEEDED_PARENTS = sql("""
    SELECT DISTINCT d.parent_id FROM stepfast_dependency d JOIN stepfast_job c ON c.id = d.child_id
     WHERE d.parent_id {any_of:ids}
""")


def not_needed(tx: Transaction, ids: list[str]) -> list[str]:
    """The locked rows among these without an unfinished dependant: an edge may have been added before the lock."""
    needed = {row[0] for row in tx.rows(NEEDED_PARENTS, ids=ids)} if ids else set()
    return [job_id for job_id in ids if job_id not in needed]
