"""Jobs that come after others: the edges, and the way in.

Whoever adds an edge locks the parent's row, live or ended, and marks a live one: so the parent cannot end, be revived
or be forgotten while we look, and whoever ends it later sees that somebody waits (see `dependants`). An edge whose
parent has ended already is decided here, by the same policy as if it ended a moment later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from stepfast.database.statement import sql
from stepfast.encryption import opened
from stepfast.errors import CycleError, NotFoundError
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
    from stepfast.jobs.state import Enqueued, NewJob


OnDead = Literal["wait", "fail", "run"]
ON_DEAD: Final = ("wait", "fail", "run")
Bond = Literal["after", "member"]
Standing = Mapping[str, str]  # id → "live", or the state it ended in; an id that nobody knows is left out
LOOKS: Final = 2  # a job that is revived while we look has left the archive before we ask it

LOCK_LIVE_JOBS = sql("SELECT id FROM stepfast_job WHERE id {any_of:ids} ORDER BY id {for_update}")
LOCK_ENDED_JOBS = sql("SELECT id, state FROM stepfast_archive WHERE id {any_of:ids} ORDER BY id {for_update}")
MARK_PARENTS = sql("UPDATE stepfast_job SET has_dependants = 1 WHERE id {any_of:ids} AND has_dependants = 0")

ADD_EDGE = sql("""
    INSERT INTO stepfast_dependency (child_id, parent_id, bond, on_dead, state)
    VALUES (:child_id, :parent_id, :bond, :on_dead, :state)
""")
DROP_EDGES = sql("""
    DELETE FROM stepfast_dependency WHERE child_id IN (SELECT id FROM stepfast_job WHERE unique_key = :key)
""")
EDGES_TO = sql(
    "SELECT parent_id FROM stepfast_dependency WHERE child_id = :id AND parent_id {any_of:parents}"
)

UNMET_EDGES = sql("""
    SELECT child_id, parent_id FROM stepfast_dependency WHERE child_id {any_of:ids} AND state <> 'met'
     ORDER BY child_id, parent_id
""")

PARENT_RESULTS = sql("""
    SELECT d.parent_id, a.kind, a.result FROM stepfast_dependency d JOIN stepfast_archive a ON a.id = d.parent_id
     WHERE d.child_id = :id AND a.state = 'done'
     ORDER BY d.parent_id
""")


@dataclass(frozen=True)
class After:
    """What a job waits for, and what happens to it when one of them dies or is cancelled."""

    parents: tuple[str, ...]
    on_dead: OnDead = "wait"


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


def lock_standing(tx: Transaction, ids: Sequence[str]) -> dict[str, str]:
    """Where these jobs stand. They stay there until this transaction ends: the rows are locked in the order of ids."""
    found: dict[str, str] = {}
    missing = sorted(set(ids))
    for _ in range(LOOKS):
        if missing:
            found |= {str(row[0]): "live" for row in tx.rows(LOCK_LIVE_JOBS, ids=missing)}
            missing = [it for it in missing if it not in found]
        if missing:
            found |= {str(row[0]): str(row[1]) for row in tx.rows(LOCK_ENDED_JOBS, ids=missing)}
            missing = [it for it in missing if it not in found]
    return found


def mark_parents(tx: Transaction, standing: Standing) -> None:
    """Whoever ends the live ones of these has to look who waits for them."""
    if live := [job_id for job_id, at in standing.items() if at == "live"]:
        tx.run(MARK_PARENTS, ids=live)


def enqueue_after(
    tx: Transaction, job: NewJob, after: After, store: Callable[[NewJob], list[Enqueued]]
) -> list[Enqueued]:
    """Let `store` store jobs like this one, and tie those that are new, or got a new payload, to their parents."""
    if job.id in after.parents:
        raise CycleError([job.id, job.id])
    standing = lock_standing(tx, after.parents)
    verdict = judge_edges(standing, after)
    stored = store(replace(job, waits=verdict.waits))
    for it in stored:
        if it.replaced:
            refuse_cycle(tx, it.id, after.parents)
    children = [it.id for it in stored if it.created or it.replaced]
    if children:
        mark_parents(tx, standing)
        add_edges(tx, children, verdict.states, "after", after.on_dead)
        if verdict.broken is not None:
            fail_children(tx, children, verdict.broken)
    return stored


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


def drop_edges(tx: Transaction, key: str) -> None:
    """The job with this key got a new payload: what the old one came after does not matter any more."""
    tx.run(DROP_EDGES, key=key)


def refuse_cycle(tx: Transaction, child: str, parents: Sequence[str]) -> None:
    """Raise if one of `parents` waits, through whomever, for `child`.

    What is walked over stays locked: two edges that are added at the same time cannot both overlook the other.
    """
    waited_by = dict.fromkeys(parents, child)
    frontier = sorted(waited_by)
    while frontier:
        if child in waited_by:
            raise CycleError(_path(waited_by, child))
        tx.rows(LOCK_LIVE_JOBS, ids=frontier)
        found = {str(parent): str(it) for it, parent in tx.rows(UNMET_EDGES, ids=frontier)}
        frontier = sorted(found.keys() - waited_by.keys())
        waited_by |= {parent: found[parent] for parent in frontier}


def _path(waited_by: Mapping[str, str], child: str) -> list[str]:
    """From `child` along those it would wait for, back to itself."""
    path = [child]
    while len(path) == 1 or path[-1] != child:
        path.append(waited_by[path[-1]])
    return path[::-1]


def results_of_parents(tx: Transaction, job_id: str) -> dict[str, Any]:
    """What the parents of a job answered, by their ids; those that are not done are left out."""
    return {
        str(parent): None if result is None else decode(opened(result, f"result of {kind}"))
        for parent, kind, result in tx.rows(PARENT_RESULTS, id=job_id)
    }


# A revived job waits again for what it comes after, as far as that is not done.

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
    """Look again at the parents of these jobs, which are live in this transaction for the first time.

    A parent that is dead is waited for, whatever the policy was: whoever revives a job knows about it, and revives the
    parent as well. One that was forgotten counts as done: nobody can revive it.
    """
    waiting = lock_waiting(tx, ids)
    if not waiting:
        return
    # Whoever ends a parent now does not see our children yet. It ends before we look at the edges, or after we hold it.
    children = [it.id for it in waiting]
    parents = {str(row[0]) for row in tx.rows(UNMET_PARENTS, ids=children)}
    standing = lock_standing(tx, sorted(parents))
    over = sorted(it for it in parents if standing.get(it, "done") == "done")
    if over:
        tx.run(MEET_EDGES_OF, ids=children, parents=over)
    if waited_for := sorted(parents.difference(over)):
        tx.run(REOPEN_EDGES, ids=children, parents=waited_for)
    mark_parents(tx, standing)
    release_children(tx, waiting)


# Jobs that wait for others which ended without telling them: rows that were deleted or moved by hand.
#
# Whoever ends a job tells those who wait, in the same transaction. So nothing should ever be found here; but a job that
# waits for ever is the worst that can happen to one, and nobody would notice.

OPEN_EDGES = sql("""
    SELECT child_id, parent_id, on_dead FROM stepfast_dependency
     WHERE state = 'open' AND child_id >= :child AND (child_id > :child OR parent_id > :parent)
     ORDER BY child_id, parent_id LIMIT :limit
""")
LIVE_PARENTS = sql("SELECT id FROM stepfast_job WHERE id {any_of:ids}")
ENDED_PARENTS = sql("SELECT id, state FROM stepfast_archive WHERE id {any_of:ids}")


class EdgeCursor(NamedTuple):
    """How far the open edges have been looked at."""

    child: str = ""
    parent: str = ""


BEGINNING = EdgeCursor()


def find_stranded(tx: Transaction, place: EdgeCursor, limit: int) -> tuple[list[str], EdgeCursor]:
    """Parents that have ended, among the next open edges; and where to go on. A look that takes no lock."""
    edges = tx.rows(OPEN_EDGES, child=place.child, parent=place.parent, limit=limit)
    if not edges:
        return [], BEGINNING
    asked = sorted({str(row[1]) for row in edges})
    live = {row[0] for row in tx.rows(LIVE_PARENTS, ids=asked)}
    gone = [it for it in asked if it not in live]
    dead = {row[0] for row in tx.rows(ENDED_PARENTS, ids=gone) if row[1] != "done"} if gone else set()
    late = {
        str(parent)
        for _, parent, on_dead in edges
        if parent not in live and not (parent in dead and on_dead == "wait")
    }
    last = EdgeCursor(str(edges[-1][0]), str(edges[-1][1])) if len(edges) == limit else BEGINNING
    return sorted(late), last


def release_stranded(tx: Transaction, parents: list[str]) -> int:
    """Tell those who wait for these, as far as they have ended; returns for how many parents that was needed."""
    standing = lock_standing(tx, parents)
    by_state: dict[str, list[str]] = defaultdict(list)
    for row in tx.rows(AWAITED_PARENTS, ids=parents):  # most ended a moment ago, and told it
        by_state[standing.get(row[0], PURGED)].append(row[0])
    by_state.pop("live", None)
    for state, ids in by_state.items():
        parents_ended(tx, ids, state)
    return sum(map(len, by_state.values()))
