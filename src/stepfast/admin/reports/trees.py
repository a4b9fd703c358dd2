"""Who comes after whom: the parents and children of a job, and the tree below it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stepfast.admin.rows import reader
from stepfast.database.statement import sql
from stepfast.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.statement import Statement

MOST: Final = 1_000  # jobs of one tree that are shown
FORGOTTEN: Final = "forgotten"  # instead of a state: its retention time is over


@dataclass(frozen=True)
class Relative:
    """Another job, and the edge to it."""

    id: str
    state: str
    kind: str | None
    bond: str  # "after", or "member" of the group whose completion job is the child
    edge: str  # "open": the child waits. "met": it need not. "broken": the child ended because of the parent
    on_dead: str


@dataclass(frozen=True)
class TreeLine:
    """One job of a tree, in the order in which it is shown."""

    depth: int
    id: str
    state: str
    kind: str | None
    bond: str | None  # to the one above it; None: the job that was asked for
    edge: str | None
    on_dead: str | None
    again: bool = False  # it was shown above, with what comes after it


_RELATIVES = """
    SELECT d.{other}, COALESCE(j.state, a.state, 'forgotten'), COALESCE(j.kind, a.kind), d.bond, d.state, d.on_dead
      FROM stepfast_dependency d LEFT JOIN stepfast_job j ON j.id = d.{other}
           LEFT JOIN stepfast_archive a ON a.id = d.{other}
     WHERE d.{own} = :id {which}
     ORDER BY d.{other} LIMIT :limit
"""
PARENTS = sql(_RELATIVES.format(other="parent_id", own="child_id", which=""))
MEMBERS = sql(_RELATIVES.format(other="parent_id", own="child_id", which="AND d.bond = 'member'"))
CHILDREN = sql(_RELATIVES.format(other="child_id", own="parent_id", which=""))
JOB = sql("""
    SELECT state, kind FROM stepfast_job WHERE id = :id UNION ALL SELECT state, kind FROM stepfast_archive WHERE id = :id
""")

_relative = reader(Relative)


def parents_of(tx: Transaction, job_id: str, limit: int = 100) -> list[Relative]:
    """What a job comes after."""
    return tx.all(PARENTS, _relative, id=job_id, limit=limit)


def children_of(tx: Transaction, job_id: str, limit: int = 100) -> list[Relative]:
    """What comes after a job."""
    return tx.all(CHILDREN, _relative, id=job_id, limit=limit)


def tree_of(tx: Transaction, job_id: str, most: int = MOST) -> list[TreeLine]:
    """A job, of a group also its members, and all that comes after it; the first `most` of them."""
    found = tx.rows(JOB, id=job_id)
    if not found:
        raise NotFoundError(
            f"there is no job {job_id}; finished jobs are forgotten after their retention time"
        )
    lines = [TreeLine(0, job_id, found[0][0], found[0][1], None, None, None)]
    lines += [_line(1, it) for it in _asked(tx, MEMBERS, job_id, most)]
    seen = {it.id for it in lines}
    todo = [(1, it) for it in reversed(_asked(tx, CHILDREN, job_id, most))]
    while todo and len(lines) < most:  # no recursion: a chain may be long
        depth, it = todo.pop()
        lines.append(_line(depth, it, again=it.id in seen))
        if it.id not in seen:
            seen.add(it.id)
            todo += [(depth + 1, below) for below in reversed(_asked(tx, CHILDREN, it.id, most))]
    return lines


def _asked(tx: Transaction, statement: Statement, job_id: str, most: int) -> Sequence[Relative]:
    return tx.all(statement, _relative, id=job_id, limit=most)


def _line(depth: int, it: Relative, *, again: bool = False) -> TreeLine:
    return TreeLine(depth, it.id, it.state, it.kind, it.bond, it.edge, it.on_dead, again)
