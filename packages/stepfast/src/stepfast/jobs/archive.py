"""Where jobs go when they end: moved, whole, in the transaction that ends them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stepfast.clock import new_fence
from stepfast.database.statement import sql
from stepfast.errors import CRASH_GROUP
from stepfast.jobs.end_webhook import stage_failure_webhooks
from stepfast.telemetry import happened

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


def archive(tx: Transaction, ids: list[str], state: str) -> None:
    """Move jobs whose rows the caller has locked."""
    tx.run(ARCHIVE_JOBS, ids=ids, state=state)
    tx.run(REMOVE_JOBS, ids=ids)
    if state != "done":
        stage_failure_webhooks(tx, ids)


# What becomes of those who wait for a job that ends: in the transaction that ends it, which holds its row.
#
# Children are locked before their edges are looked at. So of two parents that end at the same time, one is the last,
# and sees what the other one wrote: the child is let go once.

FAILED_GROUP: Final = "DependencyFailed"
PURGED: Final = "purged"  # the end of a dead letter that an operator deletes: nobody will ever revive it
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

# Its own time may not have come yet. Who was a suspect comes back as one.
RELEASE_CHILDREN = sql(f"""
    UPDATE stepfast_job
       SET state = CASE WHEN ready_at > {{now}} THEN 'scheduled'
                        WHEN error_group = '{CRASH_GROUP}' THEN 'suspect' ELSE 'ready' END,
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

    parent: str
    state: str

    @property
    def reason(self) -> str:
        return f"{FAILED_GROUP}: job {self.parent}, which it comes after, {ENDING_WORDS[self.state]}"


@dataclass(frozen=True)
class WaitingChild:
    """A job that waits, and whose row is locked."""

    id: str
    queue: str
    has_dependants: int


def parents_ended(tx: Transaction, ids: Collection[str], state: str) -> None:
    """These jobs have ended like this: let go, or end, those that waited for them, and so on along the edges."""
    _follow(tx, sorted(ids), state)


def _follow(tx: Transaction, ended: list[str], state: str) -> None:
    while ended:  # no recursion: a chain may be long
        ended, state = _told(tx, ended, state), "dead"


def _told(tx: Transaction, ended: list[str], state: str) -> list[str]:
    """Tell those who wait for these; returns who ended because of it and is waited for in turn."""
    children = [str(row[0]) for row in tx.rows(UNMET_CHILDREN, ids=ended)]
    if not children:
        return []
    waiting = lock_waiting(tx, children)
    if state == "done":
        tx.run(MEET_EDGES, ids=ended)
        release_children(tx, waiting)
        return []
    edges = tx.rows(
        OPEN_EDGES_TO, ids=ended
    )  # after the lock: a child that was replaced meanwhile has other parents
    tx.run(MEET_EDGES_ANYWAY, ids=ended)
    by_id = {it.id: it for it in waiting}
    failing: dict[str, str] = {}  # child → the first parent of whom it dies
    for child, parent, on_dead in edges:
        if child in by_id and (on_dead == "fail" or (on_dead == "wait" and state == PURGED)):
            failing.setdefault(child, parent)
    release_children(tx, [it for it in waiting if it.id not in failing])
    awaited: list[str] = []
    for parent in sorted(set(failing.values())):
        failed = [by_id[child] for child, cause in failing.items() if cause == parent]
        tx.run(BREAK_EDGES, ids=[parent], children=[it.id for it in failed])
        awaited += _fail(tx, failed, FailedParent(parent, state))
    return awaited


def release_children(tx: Transaction, waiting: Sequence[WaitingChild]) -> int:
    """Let those of these go on that wait for nobody any more; their rows are locked. Returns how many."""
    if not waiting:
        return 0
    still = {row[0] for row in tx.rows(STILL_WAITING, ids=[it.id for it in waiting])}
    free = [it for it in waiting if it.id not in still]
    if free:
        tx.run(RELEASE_CHILDREN, ids=[it.id for it in free])
        tx.wakes.update(it.queue for it in free)
        happened("dependants.released", jobs=len(free))
    return len(free)


def lock_waiting(tx: Transaction, ids: Sequence[str]) -> list[WaitingChild]:
    """Those of these jobs that wait for others, in the order of their ids, locked."""
    return tx.all(LOCK_CHILDREN, WaitingChild, ids=list(ids)) if ids else []


def fail_children(tx: Transaction, ids: Sequence[str], death: FailedParent) -> None:
    """End these waiting jobs because of a parent; who waits for them is told as well."""
    _follow(tx, _fail(tx, lock_waiting(tx, ids), death), "dead")


def _fail(tx: Transaction, children: Sequence[WaitingChild], death: FailedParent) -> list[str]:
    """Returns those of them that somebody waits for."""
    ids = [it.id for it in children]
    if not ids:
        return []
    tx.run(FAIL_CHILDREN, ids=ids, fence=new_fence(), error_group=FAILED_GROUP, reason=death.reason)
    archive(tx, ids, "dead")
    happened("dependants.failed", job_id=death.parent, jobs=len(ids), reason=ENDING_WORDS[death.state])
    return [it.id for it in children if it.has_dependants]


# The end of jobs that no commit of their own ends: moved to the archive, and told to those who wait for them.

JOBS_WITH_DEPENDANTS = sql("SELECT id FROM stepfast_job WHERE id {any_of:ids} AND has_dependants = 1")


def end_jobs(tx: Transaction, ids: list[str], state: str) -> None:
    """Move jobs whose rows the caller has locked, and let go or end whoever waits for them."""
    awaited = [str(row[0]) for row in tx.rows(JOBS_WITH_DEPENDANTS, ids=ids)]
    archive(tx, ids, state)
    if awaited:
        parents_ended(tx, awaited, state)


# What must be kept beyond its time: jobs that ended, as long as one that comes after them is unfinished.

# About a row of stepfast_archive. Part of the choice, so that what is kept does not stand in the way of the rest.
NOT_NEEDED: Final = """NOT EXISTS (
           SELECT 1 FROM stepfast_dependency d JOIN stepfast_job c ON c.id = d.child_id
            WHERE d.parent_id = stepfast_archive.id)"""

NEEDED_PARENTS = sql("""
    SELECT DISTINCT d.parent_id FROM stepfast_dependency d JOIN stepfast_job c ON c.id = d.child_id
     WHERE d.parent_id {any_of:ids}
""")


def not_needed(tx: Transaction, ids: list[str]) -> list[str]:
    """Those of these locked rows that nobody comes after: an edge may have been added before we had the lock."""
    needed = {row[0] for row in tx.rows(NEEDED_PARENTS, ids=ids)} if ids else set()
    return [it for it in ids if it not in needed]
