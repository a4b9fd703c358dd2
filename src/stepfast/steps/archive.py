"""Where jobs go when they end: moved, whole, in the transaction that ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.database.statement import sql
from stepfast.steps.task_ends import tell_failures

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

COLUMNS = (
    "id, queue, kind, priority, ready_at, created_at, leased_at, unique_key, step, failures, crashes, trace, "
    "progress, progress_note, error_group, last_error, cursor_json"
)

# Runs after a lock on exactly these rows. An id that is already in the archive keeps its first ending.
ARCHIVE = sql(
    f"""
    INSERT INTO stepfast_archive ({COLUMNS}, committed_fence, payload, state, finished_at)
    SELECT {COLUMNS}, fence, payload, :state, {{now}}
      FROM stepfast_job WHERE id {{any_of:ids}}
    ON CONFLICT DO NOTHING
    """,
    mariadb=f"""
    INSERT INTO stepfast_archive ({COLUMNS}, committed_fence, payload, state, finished_at)
    SELECT {COLUMNS}, fence, payload, :state, {{now}}
      FROM stepfast_job WHERE id {{any_of:ids}}
    ON DUPLICATE KEY UPDATE stepfast_archive.id = stepfast_archive.id
    """,
)

REMOVE = sql("DELETE FROM stepfast_job WHERE id {any_of:ids}")


def archive(tx: Transaction, ids: list[str], state: str) -> None:
    """Move jobs whose rows the caller has locked."""
    tx.run(ARCHIVE, ids=ids, state=state)
    tx.run(REMOVE, ids=ids)
    if state != "done":
        tell_failures(tx, ids)
