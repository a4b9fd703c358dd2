"""A job and all that hangs on it: those that come after it, and those that come after them.

Of the completion job of a group, its members belong to the tree as well: they are what it is about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepfast.database.statement import sql
from stepfast.errors import ContentionError
from stepfast.steps.cancellation import Stopped, cancel_jobs
from stepfast.steps.dead_letters import Chosen, revive_many

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.database.statement import Statement

LOOKS: Final = 5

MEMBERS = sql("SELECT parent_id FROM stepfast_dependency WHERE child_id {any_of:ids} AND bond = 'member'")
CHILDREN = sql("SELECT child_id FROM stepfast_dependency WHERE parent_id {any_of:ids}")
FAILED_CHILDREN = sql("""
    SELECT child_id FROM stepfast_dependency WHERE parent_id {any_of:ids} AND state = 'broken'
""")
LOCK = sql("SELECT id FROM stepfast_job WHERE id {any_of:ids} ORDER BY id {for_update}")
LOCK_ENDED = sql("""
    SELECT id, queue, finished_at FROM stepfast_archive WHERE id {any_of:ids} AND state IN ('dead', 'cancelled')
     ORDER BY id {for_update}
""")

# What ended with its tree comes back with it.
BREAK = sql("""
    UPDATE stepfast_dependency SET state = 'broken'
     WHERE child_id {any_of:ids} AND parent_id {any_of:parents} AND state = 'open'
""")


def cancel_tree(tx: Transaction, job_id: str, reason: str) -> Stopped:
    """End those of the tree that wait, and ask those that run to stop."""
    ids = _locked(tx, job_id)
    tx.run(BREAK, ids=ids, parents=ids)
    return cancel_jobs(tx, ids, reason)


def revive_tree(tx: Transaction, job_id: str) -> tuple[int, int]:
    """Revive a job, if it is dead or cancelled, and all that ended because of it.

    Returns how many were revived, and how many could not be, because unfinished jobs hold their keys.
    """
    ids = _followed(tx, _with_members(tx, job_id), FAILED_CHILDREN)
    letters = tx.all(LOCK_ENDED, Chosen, ids=ids)
    revived = revive_many(tx, letters)
    return revived, len(letters) - revived


def _locked(tx: Transaction, job_id: str) -> list[str]:
    """The whole tree, with its live rows locked: from then on nobody can add to it."""
    for _ in range(LOOKS):
        ids = _followed(tx, _with_members(tx, job_id), CHILDREN)
        tx.rows(LOCK, ids=ids)
        if _followed(tx, _with_members(tx, job_id), CHILDREN) == ids:
            return ids
    raise ContentionError(f"the tree of job {job_id} grew {LOOKS} times while we looked; try again")


def _with_members(tx: Transaction, job_id: str) -> list[str]:
    """The job; of a group's completion also the members, and theirs."""
    found, frontier = {job_id}, [job_id]
    while frontier:
        members = {str(row[0]) for row in tx.rows(MEMBERS, ids=frontier)}
        frontier = sorted(members - found)
        found |= members
    return sorted(found)


def _followed(tx: Transaction, roots: list[str], along: Statement) -> list[str]:
    """These, and whoever comes after them."""
    found, frontier = set(roots), roots
    while frontier:
        children = {str(row[0]) for row in tx.rows(along, ids=frontier)}
        frontier = sorted(children - found)
        found |= children
    return sorted(found)
