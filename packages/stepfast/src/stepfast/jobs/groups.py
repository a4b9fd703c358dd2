"""Groups: jobs whose common end starts another job, once.

The completion job is the group, and its id is the group's. It waits for each member by an edge of its own, so all that
is true of jobs that come after others is true here: the last member to end lets it go, in its own transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, NotFoundError, StateError
from stepfast.jobs.archive import fail_children, lock_waiting, release_children
from stepfast.jobs.dependencies import (
    EDGES_TO,
    ON_DEAD,
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
    """The group that jobs join which are enqueued in this context, and the transaction they are stored in."""

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


OPEN_GROUP: Final[ContextVar[OpenGroup | None]] = ContextVar("stepfast_group", default=None)


def open_group(database: Database) -> OpenGroup | None:
    """The group whose block we are in, if any."""
    found = OPEN_GROUP.get()
    return None if found is None or found.closed or found.database is not database else found


def group_of(tx: Transaction, job_id: str) -> str:
    """The group of which this unfinished job is a member."""
    found = [str(row[0]) for row in tx.rows(GROUPS_OF_MEMBER, id=job_id)]
    if not found:
        raise StateError(f"job {job_id} is no member of a group; say which one: app.group(id=…)")
    if len(found) > 1:
        raise StateError(f"job {job_id} is a member of {', '.join(found)}; say which one: app.group(id=…)")
    return found[0]


def group_policy(tx: Transaction, group_id: str) -> OnDead:
    """What happens to an unfinished group when a member dies."""
    found: OnDead | None = tx.first(GROUP_POLICY, id=group_id)
    if found is None:
        if tx.first(JOB_STATE, id=group_id) is None:
            raise NotFoundError(f"there is no group {group_id}; its id is that of its completion job")
        raise StateError(f"job {group_id} is not the completion job of a group that has members")
    return found


def add_members(
    tx: Transaction, group_id: str, stored: Sequence[Enqueued], on_dead: OnDead, *, free: bool = False
) -> None:
    """Let these jobs be members, before the group completes; refused if it has.

    `free`: the new ones among them come after nobody.
    """
    members = sorted({it.id for it in stored})
    if not members:
        return
    standing = lock_standing(tx, members)
    new = all(it.created for it in stored)
    known = set() if new else {str(row[0]) for row in tx.rows(EDGES_TO, id=group_id, parents=members)}
    if known.issuperset(members):
        return  # as after a repetition
    if not lock_waiting(tx, [group_id]):
        _join_ended(tx, group_id, [it for it in members if it not in known], standing, on_dead)
        return
    verdict = judge_edges(standing, After(tuple(it for it in members if it not in known), on_dead))
    if not new or not free:
        refuse_cycle(tx, group_id, members)
    mark_parents(tx, standing)
    add_edges(tx, [group_id], verdict.states, "member", on_dead)
    if verdict.broken is not None:
        fail_children(tx, [group_id], verdict.broken)


def _join_ended(
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
    states = {it: "met" if standing[it] == "done" else "broken" for it in members}
    add_edges(tx, [group_id], states, "member", on_dead)


def close_group(tx: Transaction, group_id: str) -> None:
    """Nobody in this transaction adds to it any more: one whose members have all ended, or that has none, goes on."""
    release_children(tx, lock_waiting(tx, [group_id]))


# Store jobs that come after others, or into a group: what `enqueue` does where one of both is asked for.

Store = Callable[["NewJob"], list["Enqueued"]]


class HasId(Protocol):
    """A job, as an enqueue returned it."""

    @property
    def id(self) -> str: ...


Parents = HasId | str | Iterable[HasId | str]


def read_after(after: Parents | None, on_dead: str) -> After | None:
    """What was given as `after` and `on_dead`; None where it names nobody."""
    choice = checked_on_dead(on_dead)
    if after is None:
        return None
    given: Iterable[Any] = [after] if isinstance(after, str) or hasattr(after, "id") else after
    ids = dict.fromkeys(_id(it) for it in given)  # once each, in their order
    return After(tuple(ids), choice) if ids else None


def checked_on_dead(on_dead: str) -> OnDead:
    for choice in ON_DEAD:
        if on_dead == choice:
            return choice
    raise ConfigurationError(f"on_dead={on_dead!r}: use 'wait', 'fail' or 'run'")


def _id(given: Any) -> str:
    found = given if isinstance(given, str) else getattr(given, "id", None)
    if not isinstance(found, str) or not found:
        raise ConfigurationError(f"after={given!r:.80}: give jobs as enqueue returned them, or their ids")
    return found


def store_with_edges(
    tx: Transaction, job: NewJob, after: After | None, group: OpenGroup | None, store: Store
) -> list[Enqueued]:
    """Store jobs like this one; they come after others, join a group, or both."""
    stored = store(job) if after is None else enqueue_after(tx, job, after, store)
    if group is not None:
        add_members(tx, group.group_id, stored, group.on_dead, free=after is None)
    return stored
