"""Finish steps: one with its effects, or many at once that have none.

A finished job moves to the archive under its fence. Whoever lost the fence moves nothing. Jobs that others wait for
are marked (`has_dependants`): only they cost more, and only if there are any.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from stepfast.database.statement import sql
from stepfast.steps.archive import COLUMNS, archive
from stepfast.steps.dependants import parents_ended
from stepfast.steps.payload import encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.steps.lease import Lease

# PostgreSQL moves rows in one statement; the DELETE is the lock and the guard. It names one table and asks for its
# primary key, so there is one way to run it. (A join with the list of ids can be turned around: 7.8 s for 500 jobs
# when vacuum had found the table empty.) Hence one statement per fence, with the results looked up by id.
_MOVE = f"""
    WITH mine AS (
        DELETE FROM stepfast_job WHERE {{which}} AND fence = :fence
        RETURNING {COLUMNS}, fence, payload, has_dependants
    ), kept AS (
        INSERT INTO stepfast_archive ({COLUMNS}, committed_fence, payload, result, state, finished_at)
        SELECT {COLUMNS}, fence, payload, {{result}}, 'done', {{{{now}}}} FROM mine
        ON CONFLICT DO NOTHING
    )
    SELECT id, has_dependants FROM mine
"""
_MANY = "id = ANY(CAST(:ids AS TEXT[]))"

MOVE = sql("", postgresql=_MOVE.format(which=_MANY, result="CAST(NULL AS TEXT)"))
MOVE_WITH_RESULTS = sql("", postgresql=_MOVE.format(which=_MANY, result="CAST(:results AS JSONB) ->> id"))

# One job: elsewhere its copy is written first and the fenced REMOVE_ONE is the guard, which undoes the copy.
MOVE_ONE = sql(
    f"""
    INSERT INTO stepfast_archive ({COLUMNS}, committed_fence, payload, result, state, finished_at)
    SELECT {COLUMNS}, fence, payload, :result, 'done', {{now}} FROM stepfast_job WHERE id = :id AND fence = :fence
    ON CONFLICT DO NOTHING
    """,
    mariadb=f"""
    INSERT INTO stepfast_archive ({COLUMNS}, committed_fence, payload, result, state, finished_at)
    SELECT {COLUMNS}, fence, payload, :result, 'done', {{now}} FROM stepfast_job WHERE id = :id AND fence = :fence
    ON DUPLICATE KEY UPDATE stepfast_archive.id = stepfast_archive.id
    """,
    postgresql=_MOVE.format(which="id = :id", result="CAST(:result AS TEXT)"),
)
REMOVE_ONE = sql(
    "DELETE FROM stepfast_job WHERE has_dependants = 0 AND id = :id AND fence = :fence", postgresql=""
)
# The row stays locked from here on, and whoever wants to wait for it finds it ended.
REMOVE_AWAITED = sql("DELETE FROM stepfast_job WHERE id = :id AND fence = :fence", postgresql="")

LOCK_MANY = sql("""
    SELECT id, has_dependants FROM stepfast_job
     WHERE id {any_of:ids} AND fence = :fence
     ORDER BY id
    {for_update}
""")

# SQLite hands the interpreter's lock around with every row it returns, and the others are busy: a count is one row.
HOW_MANY = sql("""
    SELECT count(*), COALESCE(sum(has_dependants), 0) FROM stepfast_job WHERE id {any_of:ids} AND fence = :fence
""")

KEEP_RESULT = sql("UPDATE stepfast_archive SET result = :result WHERE id = :id AND committed_fence = :fence")


def finish(tx: Transaction, lease: Lease, result: str | None) -> bool | None:
    """Finish one step; returns whether others may wait for its job, which the caller tells them after the effects.

    None: it was not ours any more, and the caller rolls back.
    """
    mine = {"id": lease.job_id, "fence": lease.fence}
    if tx.takes_lists:
        moved = tx.rows(MOVE_ONE, **mine, result=result)
        return bool(moved[0][1]) if moved else None
    tx.run(MOVE_ONE, **mine, result=result)
    if tx.run(REMOVE_ONE, **mine) == 1:
        return False
    return True if tx.run(REMOVE_AWAITED, **mine) == 1 else None


def acknowledge(
    tx: Transaction, ended: Sequence[Lease], results: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Finish many steps that have no effects; returns the ids that were still ours.

    The others were taken over: nothing of them is written, and their owners decide.
    """
    by_fence: dict[int, list[str]] = {}
    for lease in ended:
        by_fence.setdefault(lease.fence, []).append(lease.job_id)
    mine: list[str] = []
    awaited: list[str] = []
    for fence, ids in by_fence.items():
        moved, marked = _move(tx, ids, fence, results)
        mine += moved
        awaited += marked
    if awaited:
        parents_ended(tx, awaited, "done")
    return mine


Moved = tuple[list[str], list[str]]  # those that were still ours; of them, those that others may wait for


def _move(tx: Transaction, ids: list[str], fence: int, results: Mapping[str, str]) -> Moved:
    kept = {job_id: results[job_id] for job_id in ids if job_id in results} if results else {}
    if tx.takes_lists and kept:
        return _told(tx.rows(MOVE_WITH_RESULTS, ids=ids, fence=fence, results=encode(kept)))
    if tx.takes_lists:
        return _told(tx.rows(MOVE, ids=ids, fence=fence))
    mine, awaited = _held(tx, ids, fence)
    if mine:
        archive(tx, mine, "done")
        with_result = [{"id": it, "fence": fence, "result": kept[it]} for it in mine if it in kept]
        tx.run_many(KEEP_RESULT, with_result)
    return mine, awaited


def _held(tx: Transaction, ids: list[str], fence: int) -> Moved:
    """Which of these are still ours, and stay so until the commit."""
    if tx.dialect.name == "sqlite" and tuple(tx.rows(HOW_MANY, ids=ids, fence=fence)[0]) == (len(ids), 0):
        return ids, []
    return _told(tx.rows(LOCK_MANY, ids=ids, fence=fence))


def _told(rows: Sequence[Sequence[Any]]) -> Moved:
    return [row[0] for row in rows], [row[0] for row in rows if row[1]]
