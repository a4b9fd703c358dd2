"""Groups: jobs whose common end starts another job, once.

The completion job is the group, and its id is the group's. It waits for each member by an edge of its own, so all that
is true of jobs that come after others is true here: the last member to end releases it, in its own transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, NotFoundError, StateError
from stepfast.jobs.archive import fail_children, lock_waiting, release_children
from stepfast.jobs.dependencies import (
    EDGES_TO,
    After,
    OnDead,
    add_edges,
    enqueue_after,
    judge_edges,
    lock_standing,
    mark_parents,
    refuse_cycle,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.dependencies import Standing
    from stepfast.jobs.state import Enqueued, NewJob


JOB_STATE = sql("""
    SELECT state FROM stepfast_job WHERE id = :id UNION ALL SELECT state FROM stepfast_archive WHERE id = :id
""")
GROUP_POLICY = sql("SELECT on_dead FROM stepfast_dependency WHERE child_id = :id AND bond = 'member' LIMIT 1")
GROUPS_OF_MEMBER = sql("""
    SELECT child_id FROM stepfast_dependency WHERE parent_id = :id AND bond = 'member' AND state = 'open'
     ORDER BY child_id
""")


@dataclass
class OpenGroup:
    """The group around the enqueues of this context: its members are stored in one transaction (see `OPEN_GROUP`)."""

    database: Database
    tx: Transaction
    lent: object  # what the caller gave us as the transaction, if anything
    group_id: str
    on_dead: OnDead
    closed: bool = field(default=False, init=False)  # contexts are copied: what runs later is no member

    def checked(self, tx: object) -> Transaction:
        """The transaction of a member, whose caller gave us `tx`."""
        if tx is None or tx is self.tx or tx is self.lent:
            return self.tx
        raise ConfigurationError(
            "enqueue(tx=…) inside a group: its jobs are stored in one transaction; give it to app.group(tx=…)"
        )


def store_with_edges(
    tx: Transaction,
    job: NewJob,
    after: After | None,
    group: OpenGroup | None,
    store: Callable[[NewJob], list[Enqueued]],
) -> list[Enqueued]:
    """Let `store` store jobs that come after others, are members of a group, or both."""
    stored = store(job) if after is None else enqueue_after(tx, job, after, store)
    if group is not None:
        add_members(tx, group.group_id, stored, group.on_dead, free=after is None)
    return stored


def add_members(
    tx: Transaction, group_id: str, stored: Sequence[Enqueued], on_dead: OnDead, *, free: bool = False
) -> None:
    """Make these jobs members, before the group completes; refused if it has.

    `free`: the new ones among them come after no other job.
    """
    members = sorted({job.id for job in stored})
    if not members:
        return
    standing = lock_standing(tx, members)
    new = all(job.created for job in stored)
    known = set() if new else {str(row[0]) for row in tx.rows(EDGES_TO, id=group_id, parents=members)}
    if known.issuperset(members):
        return  # as after a repetition
    added = [member for member in members if member not in known]
    if not lock_waiting(tx, [group_id]):
        _add_to_ended_group(tx, group_id, added, standing, on_dead)
        return
    edges = judge_edges(standing, After(tuple(added), on_dead))
    if not new or not free:
        refuse_cycle(tx, group_id, members)
    mark_parents(tx, standing)
    add_edges(tx, [group_id], edges.states, "member", on_dead)
    if edges.broken is not None:
        fail_children(tx, [group_id], edges.broken)


def _add_to_ended_group(
    tx: Transaction, group_id: str, members: list[str], standing: Standing, on_dead: OnDead
) -> None:
    """A group that died or was cancelled may be revived, and then waits for these as well. One that completed may not."""
    if lock_standing(tx, [group_id]).get(group_id) not in {"dead", "cancelled"}:
        state = tx.first(JOB_STATE, id=group_id)
        raise StateError(
            f"group {group_id} {'is not known' if state is None else f'has completed: it is {state}'}; "
            "a member can be added while another one is unfinished, from its own handler for example"
        )
    mark_parents(tx, standing)
    states = {member: "met" if standing[member] == "done" else "broken" for member in members}
    add_edges(tx, [group_id], states, "member", on_dead)


def close_group(tx: Transaction, group_id: str) -> None:
    """Release a group to which this transaction adds nothing more, if it has no unfinished member."""
    release_children(tx, lock_waiting(tx, [group_id]))


def group_of(tx: Transaction, job_id: str) -> str:
    """The group of which this unfinished job is a member."""
    groups = [str(row[0]) for row in tx.rows(GROUPS_OF_MEMBER, id=job_id)]
    if not groups:
        raise StateError(f"job {job_id} is no member of a group; say which one: app.group(id=…)")
    if len(groups) > 1:
        raise StateError(f"job {job_id} is a member of {', '.join(groups)}; say which one: app.group(id=…)")
    return groups[0]


def group_policy(tx: Transaction, group_id: str) -> OnDead:
    """What happens to an unfinished group when a member dies."""
    on_dead: OnDead | None = tx.first(GROUP_POLICY, id=group_id)
    if on_dead is None:
        if tx.first(JOB_STATE, id=group_id) is None:
            raise NotFoundError(f"there is no group {group_id}; its id is that of its completion job")
        raise StateError(f"job {group_id} is not the completion job of a group that has members")
    return on_dead
