"""Jobs that come after others (`after=`): one edge for each parent of a child.

Adding an edge locks the parent's row, live or ended, and marks a live one: so the parent cannot end, be revived or be
forgotten meanwhile, and its end later releases or fails its dependants (see `archive`). An edge whose parent has ended
already is decided here, by the same policy as if it ended a moment later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, CycleError, NotFoundError
from stepfast.jobs.archive import (
    AWAITED_PARENTS,
    PURGED,
    FailedParent,
    fail_children,
    lock_waiting,
    parents_ended,
    release_children,
)
from stepfast.jobs.payload import decode

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.jobs.kinds import Kinds
    from stepfast.jobs.state import Enqueued, NewJob


OnDead = Literal["wait", "fail", "run"]
ON_DEAD: Final = ("wait", "fail", "run")
Bond = Literal["after", "member"]
Standing = Mapping[str, str]  # id → "live", or the state it ended in; an unknown id is left out
LOOKS: Final = 2  # a job that is revived while we look has left the archive before we ask it


class HasId(Protocol):
    """A job, as an enqueue returned it."""

    @property
    def id(self) -> str: ...


Parents = HasId | str | Iterable[HasId | str]


@dataclass(frozen=True)
class After:
    """What a job waits for, and what happens to it when one of them dies or is cancelled."""

    parents: tuple[str, ...]
    on_dead: OnDead = "wait"


def read_after(after: Parents | None, on_dead: str) -> After | None:
    """What was given as `after` and `on_dead`; None where it names no job."""
    policy = checked_on_dead(on_dead)
    if after is None:
        return None
    given: Iterable[Any] = [after] if isinstance(after, str) or hasattr(after, "id") else after
    ids = dict.fromkeys(_id(parent) for parent in given)  # once each, in their order
    return After(tuple(ids), policy) if ids else None


def checked_on_dead(on_dead: str) -> OnDead:
    for policy in ON_DEAD:
        if on_dead == policy:
            return policy
    raise ConfigurationError(f"on_dead={on_dead!r}: use 'wait', 'fail' or 'run'")


def _id(parent: Any) -> str:
    found = parent if isinstance(parent, str) else getattr(parent, "id", None)
    if not isinstance(found, str) or not found:
        raise ConfigurationError(f"after={parent!r:.80}: give jobs as enqueue returned them, or their ids")
    return found


# --- Add edges.

LOCK_LIVE_JOBS = sql("SELECT id FROM stepfast_job WHERE id {any_of:ids} ORDER BY id {for_update}")
LOCK_ENDED_JOBS = sql("SELECT id, state FROM stepfast_archive WHERE id {any_of:ids} ORDER BY id {for_update}")
MARK_PARENTS = sql("UPDATE stepfast_job SET has_dependants = 1 WHERE id {any_of:ids} AND has_dependants = 0")

ADD_EDGE = sql("""
    INSERT INTO stepfast_dependency (child_id, parent_id, bond, on_dead, state)
    VALUES (:child_id, :parent_id, :bond, :on_dead, :state)
""")
DROP_EDGES = sql("""
    DELETE FROM stepfast_dependency
     WHERE child_id IN (SELECT id FROM stepfast_job WHERE unique_key = :key AND kind = :kind)
""")
EDGES_TO = sql(
    "SELECT parent_id FROM stepfast_dependency WHERE child_id = :id AND parent_id {any_of:parents}"
)

UNMET_EDGES = sql("""
    SELECT child_id, parent_id FROM stepfast_dependency WHERE child_id {any_of:ids} AND state <> 'met'
     ORDER BY child_id, parent_id
""")


def enqueue_after(
    tx: Transaction, job: NewJob, after: After, store: Callable[[NewJob], list[Enqueued]]
) -> list[Enqueued]:
    """Let `store` store jobs like this one, and add edges from those that are new, or got a new payload."""
    if job.id in after.parents:
        raise CycleError([job.id, job.id])
    standing = lock_standing(tx, after.parents)
    edges = judge_edges(standing, after)
    stored = store(replace(job, waits=edges.waits))
    for child in stored:
        if child.replaced:
            refuse_cycle(tx, child.id, after.parents)
    children = [child.id for child in stored if child.created or child.replaced]
    if children:
        mark_parents(tx, standing)
        add_edges(tx, children, edges.states, "after", after.on_dead)
        if edges.broken is not None:
            fail_children(tx, children, edges.broken)
    return stored


def lock_standing(tx: Transaction, ids: Sequence[str]) -> dict[str, str]:
    """Where these jobs stand. They stay there until this transaction ends: the rows are locked in the order of ids."""
    standing: dict[str, str] = {}
    missing = sorted(set(ids))
    for _ in range(LOOKS):
        if missing:
            standing |= {str(row[0]): "live" for row in tx.rows(LOCK_LIVE_JOBS, ids=missing)}
            missing = [job_id for job_id in missing if job_id not in standing]
        if missing:
            standing |= {str(row[0]): str(row[1]) for row in tx.rows(LOCK_ENDED_JOBS, ids=missing)}
            missing = [job_id for job_id in missing if job_id not in standing]
    return standing


@dataclass(frozen=True)
class EdgeStates:
    """How the edges of a new child begin."""

    states: Mapping[str, str]  # of the edge to each parent
    broken: FailedParent | None = None  # the parent because of which the child dies at once

    @property
    def waits(self) -> bool:
        return any(state != "met" for state in self.states.values())


def judge_edges(standing: Standing, after: After) -> EdgeStates:
    """How the edges to parents that stand like this begin. Pure."""
    states: dict[str, str] = {}
    broken: FailedParent | None = None
    for parent in after.parents:
        at = standing.get(parent, "unknown")
        if at == "unknown" and after.on_dead == "wait":
            raise NotFoundError(
                f"after: there is no job {parent}; finished jobs are forgotten after their retention time, and "
                "nobody can wait for what is not known. With on_dead='run' it counts as done"
            )
        if at in {"live", "done"}:
            states[parent] = "open" if at == "live" else "met"
        else:
            states[parent] = {"wait": "open", "fail": "broken", "run": "met"}[after.on_dead]
            if after.on_dead == "fail":
                broken = broken or FailedParent(parent, at)
    return EdgeStates(states, broken)


def mark_parents(tx: Transaction, standing: Standing) -> None:
    """Mark the live jobs: their end must look for dependants."""
    if live := [job_id for job_id, at in standing.items() if at == "live"]:
        tx.run(MARK_PARENTS, ids=live)


def add_edges(
    tx: Transaction, children: Sequence[str], states: Mapping[str, str], bond: Bond, on_dead: OnDead
) -> None:
    """Add the edges from each of `children` to each parent of `states`."""
    edges = [
        {"child_id": child, "parent_id": parent, "bond": bond, "on_dead": on_dead, "state": state}
        for child in children
        for parent, state in states.items()
    ]
    tx.run_many(ADD_EDGE, edges)


def drop_edges(tx: Transaction, kind: str, key: str) -> None:
    """Drop the edges of the job with this key, which got a new payload: it no longer comes after those jobs."""
    tx.run(DROP_EDGES, kind=kind, key=key)


def refuse_cycle(tx: Transaction, child: str, parents: Sequence[str]) -> None:
    """Raise if one of `parents` waits, directly or through others, for `child`.

    What is walked over stays locked: two edges that are added at the same time cannot both overlook the other.
    """
    waited_by = dict.fromkeys(parents, child)
    frontier = sorted(waited_by)
    while frontier:
        if child in waited_by:
            raise CycleError(_path(waited_by, child))
        tx.rows(LOCK_LIVE_JOBS, ids=frontier)
        found = {str(parent): str(job_id) for job_id, parent in tx.rows(UNMET_EDGES, ids=frontier)}
        frontier = sorted(found.keys() - waited_by.keys())
        waited_by |= {parent: found[parent] for parent in frontier}


def _path(waited_by: Mapping[str, str], child: str) -> list[str]:
    """From `child` along the jobs it would wait for, back to itself."""
    path = [child]
    while len(path) == 1 or path[-1] != child:
        path.append(waited_by[path[-1]])
    return path[::-1]


# --- What the parents answered (`step.parents`).

PARENT_RESULTS = sql("""
    SELECT d.parent_id, a.kind, a.result FROM stepfast_dependency d JOIN stepfast_archive a ON a.id = d.parent_id
     WHERE d.child_id = :id AND a.state = 'done'
     ORDER BY d.parent_id
""")


def results_of_parents(tx: Transaction, job_id: str, kinds: Kinds) -> dict[str, Any]:
    """What the parents of a job answered, by their ids; those that are not done are left out."""
    return {
        str(parent): None if result is None else decode(kinds.open(kind, result, "result", str(parent)))
        for parent, kind, result in tx.rows(PARENT_RESULTS, id=job_id)
    }


# --- A revived job waits again for its parents, as far as they are not done.

UNMET_PARENTS = sql("""
    SELECT DISTINCT parent_id FROM stepfast_dependency WHERE child_id {any_of:ids} AND state <> 'met'
""")
REOPEN_EDGES = sql("""
    UPDATE stepfast_dependency SET state = 'open'
     WHERE child_id {any_of:ids} AND parent_id {any_of:parents} AND state = 'broken'
""")
MEET_EDGES_OF = sql("""
    UPDATE stepfast_dependency SET state = 'met'
     WHERE child_id {any_of:ids} AND parent_id {any_of:parents} AND state <> 'met'
""")


def wait_again(tx: Transaction, ids: Sequence[str]) -> None:
    """Look again at the parents of these jobs, which this transaction has just revived.

    A parent that is dead is waited for, whatever the policy was: an operator who revives a job knows about it, and revives
    the parent as well. One that was forgotten counts as done: it can never be revived.
    """
    waiting = lock_waiting(tx, ids)
    if not waiting:
        return
    # A transaction that ends a parent now does not see our children yet. It ends before we look at the edges, or after
    # we hold the parent.
    children = [child.id for child in waiting]
    parents = {str(row[0]) for row in tx.rows(UNMET_PARENTS, ids=children)}
    standing = lock_standing(tx, sorted(parents))
    over = sorted(parent for parent in parents if standing.get(parent, "done") == "done")
    if over:
        tx.run(MEET_EDGES_OF, ids=children, parents=over)
    if waited_for := sorted(parents.difference(over)):
        tx.run(REOPEN_EDGES, ids=children, parents=waited_for)
    mark_parents(tx, standing)
    release_children(tx, waiting)


# --- Stranded dependants: they wait for jobs whose rows were deleted or moved by hand.
#
# Every end of a job releases its dependants in the same transaction. So nothing should ever be found here; but a job
# that waits for ever would not be noticed either. `stepfast doctor` looks for them, `stepfast doctor --repair` helps.

OPEN_EDGES = sql("""
    SELECT child_id, parent_id, on_dead FROM stepfast_dependency
     WHERE state = 'open' AND child_id >= :child AND (child_id > :child OR parent_id > :parent)
     ORDER BY child_id, parent_id LIMIT :limit
""")
LIVE_PARENTS = sql("SELECT id FROM stepfast_job WHERE id {any_of:ids}")
ENDED_PARENTS = sql("SELECT id, state FROM stepfast_archive WHERE id {any_of:ids}")


def find_stranded(tx: Transaction, batch: int = 1_000) -> list[str]:
    """Parents that have ended although jobs wait for them. A look at all open edges that takes no lock."""
    ended: set[str] = set()
    child = parent = ""
    while edges := tx.rows(OPEN_EDGES, child=child, parent=parent, limit=batch):
        ended |= _ended_parents(tx, edges)
        last = str(edges[-1][0]), str(edges[-1][1])
        if last <= (child, parent):
            break  # an id that is no text, which only SQLite stores, and sorts behind all others
        child, parent = last
    # A parent that ended while we looked has decided about its dependants in the same transaction.
    return sorted(str(row[0]) for row in tx.rows(AWAITED_PARENTS, ids=sorted(ended))) if ended else []


def _ended_parents(tx: Transaction, edges: Sequence[Sequence[Any]]) -> set[str]:
    """The parents of these open edges that have ended; an edge may stay open behind a dead one that it waits for."""
    asked = sorted({str(parent) for _, parent, _ in edges})
    live = {row[0] for row in tx.rows(LIVE_PARENTS, ids=asked)}
    gone = [parent for parent in asked if parent not in live]
    dead = {row[0] for row in tx.rows(ENDED_PARENTS, ids=gone) if row[1] != "done"} if gone else set()
    return {
        str(parent)
        for _, parent, on_dead in edges
        if parent not in live and not (parent in dead and on_dead == "wait")
    }


def release_stranded(tx: Transaction, parents: list[str]) -> int:
    """Release or fail the dependants of these jobs, as far as they have ended; returns of how many parents."""
    standing = lock_standing(tx, parents)
    by_state: dict[str, list[str]] = defaultdict(list)
    for row in tx.rows(
        AWAITED_PARENTS, ids=parents
    ):  # most ended a moment ago, and their dependants are released
        by_state[standing.get(row[0], PURGED)].append(row[0])
    by_state.pop("live", None)
    for state, ids in by_state.items():
        parents_ended(tx, ids, state)
    return sum(map(len, by_state.values()))
