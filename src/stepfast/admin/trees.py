"""What an operator may do with a job and all that comes after it: stop it, or bring it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepfast.admin.actions import STATE
from stepfast.admin.audit import Actor, record, whoever
from stepfast.errors import NotFoundError, StateError
from stepfast.steps import trees
from stepfast.steps.job import JobState

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction


@dataclass(frozen=True)
class TreeStopped:
    """What became of a tree that was cancelled."""

    state: JobState  # of the job that was named
    ended: int
    asked: int  # run, and were asked to stop


@dataclass(frozen=True)
class TreeRevived:
    """What became of a tree that was revived."""

    state: JobState  # of the job that was named
    revived: int


def cancel_tree(
    tx: Transaction, job_id: str, reason: str | None = None, *, by: Actor | None = None
) -> TreeStopped:
    """End a job and all that comes after it; ask what runs to stop. Of a group also its members."""
    by = (by or whoever()).because(reason)
    text = f"Cancelled with the tree of {job_id}" + (f": {by.reason}" if by.reason else "")
    stopped = trees.cancel_tree(tx, job_id, text)
    state = _state(tx, job_id)
    if not stopped.ended and not stopped.asked:
        raise StateError(f"job {job_id} is {state}, and nothing that comes after it is unfinished")
    touched = len(stopped.ended) + len(stopped.asked)
    record(tx, by, "job.cancel", job_id, touched=touched, detail={"state": state, "tree": touched})
    return TreeStopped(state, len(stopped.ended), len(stopped.asked))


def retry_tree(tx: Transaction, job_id: str, *, by: Actor | None = None) -> TreeRevived:
    """Revive a dead or cancelled job, and all that ended because of it; of a group also its members."""
    was = _state(tx, job_id)
    revived, refused = trees.revive_tree(tx, job_id)
    if refused:
        raise StateError(
            f"{refused} of the tree of job {job_id} cannot be revived: unfinished jobs hold their keys; nothing was changed"
        )
    if not revived:
        raise StateError(
            f"job {job_id} is {was}, and nothing of its tree died or was cancelled because of it"
        )
    state = _state(tx, job_id)
    record(
        tx,
        by or whoever(),
        "job.retry",
        job_id,
        touched=revived,
        detail={"was": was, "state": state, "tree": revived},
    )
    return TreeRevived(state, revived)


def _state(tx: Transaction, job_id: str) -> JobState:
    found = tx.first(STATE, id=job_id)
    if found is None:
        raise NotFoundError(
            f"there is no job {job_id}; finished jobs are forgotten after their retention time"
        )
    return JobState(found)
