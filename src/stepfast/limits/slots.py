"""The slots of concurrency limits: one row for each step that runs.

A slot belongs to a step's fence. When the fence has moved on (the step ended, its worker died and the job was
rescued, somebody replaced its payload), the slot is free, also where nobody deleted its row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.database.lists import as_document
from stepfast.database.statement import sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction

COUNT = sql("SELECT limit_id, count(*) FROM stepfast_slot WHERE limit_id {any_of:limits} GROUP BY limit_id")

# A slot that the job's last owner left behind is its own again.
_TAKE = "INSERT INTO stepfast_slot (job_id, limit_id, fence)"
TAKE = sql(
    f"{_TAKE} SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), :fence FROM json_each(:rows) WHERE true "
    "ON CONFLICT (job_id, limit_id) DO UPDATE SET fence = excluded.fence",
    postgresql=f"{_TAKE} SELECT job_id, limit_id, CAST(:fence AS BIGINT) "
    "FROM unnest(CAST(:jobs AS TEXT[]), CAST(:limits AS TEXT[])) AS taken (job_id, limit_id) "
    "ON CONFLICT (job_id, limit_id) DO UPDATE SET fence = excluded.fence",
    mariadb=f"{_TAKE} SELECT taken.job_id, taken.limit_id, :fence FROM JSON_TABLE(:rows, '$[*]' "
    "COLUMNS (job_id VARCHAR(128) PATH '$[0]', limit_id VARCHAR(200) PATH '$[1]')) AS taken "
    "ON DUPLICATE KEY UPDATE fence = VALUES(fence)",
)

FREE = sql("DELETE FROM stepfast_slot WHERE job_id {any_of:ids} AND fence = :fence")

DROP_STALE = sql("""
    DELETE FROM stepfast_slot
     WHERE limit_id {any_of:limits}
       AND NOT EXISTS (SELECT 1 FROM stepfast_job
                        WHERE stepfast_job.id = stepfast_slot.job_id AND stepfast_job.fence = stepfast_slot.fence)
""")


def count_slots(tx: Transaction, limits: list[str]) -> dict[str, int]:
    """How many slots of each limit are taken."""
    return {row[0]: int(row[1]) for row in tx.rows(COUNT, limits=limits)}


def take_slots(tx: Transaction, slots: Sequence[tuple[str, str]], fence: int) -> None:
    """A slot for each (job, limit)."""
    if not slots:
        return
    if tx.takes_lists:
        tx.run(TAKE, jobs=[job for job, _ in slots], limits=[limit for _, limit in slots], fence=fence)
    else:
        tx.run(TAKE, rows=as_document(slots), fence=fence)


def drop_stale_slots(tx: Transaction, limits: list[str]) -> int:
    """Free what the dead and the replaced left behind; returns how many."""
    return tx.run(DROP_STALE, limits=limits)


def free_slots(tx: Transaction, job_ids: list[str], fence: int) -> None:
    """Called in the transaction that ends these steps."""
    tx.run(FREE, ids=job_ids, fence=fence)
