"""Finish steps: one with its effects, or many at once that have none.

A finished job moves to the archive under its fence. Whoever lost the fence moves nothing.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from holdfast.database.statement import sql
from holdfast.steps.archive import COLUMNS, archive
from holdfast.steps.payload import encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.database.connection import Transaction
    from holdfast.steps.lease import Lease

# PostgreSQL moves rows in one statement; the DELETE is the lock and the guard. It names one table and asks for its
# primary key, so there is one way to run it. (A join with the list of ids can be turned around: 7.8 s for 500 jobs
# when vacuum had found the table empty.) Hence one statement per fence, with the results looked up by id.
_MOVE = f"""
    WITH mine AS (
        DELETE FROM holdfast_job WHERE {{which}} AND fence = :fence RETURNING {COLUMNS}, fence, payload
    ), kept AS (
        INSERT INTO holdfast_archive ({COLUMNS}, committed_fence, payload, result, state, finished_at)
        SELECT {COLUMNS}, fence, payload, {{result}}, 'done', {{{{now}}}} FROM mine
        ON CONFLICT DO NOTHING
    )
    SELECT id FROM mine
"""
_MANY = "id = ANY(CAST(:ids AS TEXT[]))"

MOVE = sql("", postgresql=_MOVE.format(which=_MANY, result="CAST(NULL AS TEXT)"))
MOVE_WITH_RESULTS = sql("", postgresql=_MOVE.format(which=_MANY, result="CAST(:results AS JSONB) ->> id"))

# One job: elsewhere its copy is written first and the fenced REMOVE_ONE is the guard, which undoes the copy.
MOVE_ONE = sql(
    f"""
    INSERT INTO holdfast_archive ({COLUMNS}, committed_fence, payload, result, state, finished_at)
    SELECT {COLUMNS}, fence, payload, :result, 'done', {{now}} FROM holdfast_job WHERE id = :id AND fence = :fence
    ON CONFLICT DO NOTHING
    """,
    mariadb=f"""
    INSERT INTO holdfast_archive ({COLUMNS}, committed_fence, payload, result, state, finished_at)
    SELECT {COLUMNS}, fence, payload, :result, 'done', {{now}} FROM holdfast_job WHERE id = :id AND fence = :fence
    ON DUPLICATE KEY UPDATE holdfast_archive.id = holdfast_archive.id
    """,
    postgresql=_MOVE.format(which="id = :id", result="CAST(:result AS TEXT)"),
)
REMOVE_ONE = sql("DELETE FROM holdfast_job WHERE id = :id AND fence = :fence", postgresql="")

LOCK_MANY = sql("""
    SELECT id FROM holdfast_job
     WHERE id {any_of:ids} AND fence = :fence
     ORDER BY id
    {for_update}
""")

# SQLite hands the interpreter's lock around with every row it returns, and the others are busy: a count is one row.
HOW_MANY = sql("SELECT count(*) FROM holdfast_job WHERE id {any_of:ids} AND fence = :fence")

KEEP_RESULT = sql("UPDATE holdfast_archive SET result = :result WHERE id = :id AND committed_fence = :fence")


def finish(tx: Transaction, lease: Lease, result: str | None) -> bool:
    """Finish one step; whether it was still ours. If not, the caller rolls back."""
    mine = {"id": lease.job_id, "fence": lease.fence}
    if tx.takes_lists:
        return bool(tx.rows(MOVE_ONE, **mine, result=result))
    tx.run(MOVE_ONE, **mine, result=result)
    return tx.run(REMOVE_ONE, **mine) == 1


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
    for fence, ids in by_fence.items():
        mine.extend(_move(tx, ids, fence, results))
    return mine


def _move(tx: Transaction, ids: list[str], fence: int, results: Mapping[str, str]) -> list[str]:
    kept = {job_id: results[job_id] for job_id in ids if job_id in results} if results else {}
    if tx.takes_lists and kept:
        rows = tx.rows(MOVE_WITH_RESULTS, ids=ids, fence=fence, results=encode(kept))
        return [row[0] for row in rows]
    if tx.takes_lists:
        return [row[0] for row in tx.rows(MOVE, ids=ids, fence=fence)]
    mine = _held(tx, ids, fence)
    if mine:
        archive(tx, mine, "done")
        with_result = [{"id": it, "fence": fence, "result": kept[it]} for it in mine if it in kept]
        tx.run_many(KEEP_RESULT, with_result)
    return mine


def _held(tx: Transaction, ids: list[str], fence: int) -> list[str]:
    """Which of these are still ours, and stay so until the commit."""
    if tx.dialect.name == "sqlite" and tx.first(HOW_MANY, ids=ids, fence=fence) == len(ids):
        return ids
    return [row[0] for row in tx.rows(LOCK_MANY, ids=ids, fence=fence)]
