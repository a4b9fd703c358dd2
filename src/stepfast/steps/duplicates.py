"""A call whose key is taken: by a job, or by the successor that is next ("(after) …").

What was asked last must be done last. So a successor whose turn has come, but who has not been told yet, has the key
already; and who replaces the job replaces all that waits behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, assert_never

from stepfast.database.statement import sql
from stepfast.errors import DuplicateKeyError
from stepfast.steps.cancellation import cancel_jobs
from stepfast.steps.job import Enqueued, NewJob
from stepfast.steps.keys import AFTER
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction

OnDuplicate = Literal["reject", "skip", "replace"]
REPLACED: Final = "a newer call with its key replaced it, and the job that it waited for"

SUCCESSOR = sql("SELECT id FROM stepfast_job WHERE unique_key = :key {for_update}")

WAITED_FOR = sql("SELECT unique_key FROM stepfast_job WHERE unique_key {any_of:keys}")

# A row of this transaction, which nobody has seen.
WITHDRAW = sql("DELETE FROM stepfast_job WHERE id = :id AND leased_at IS NULL")


def duplicate(job: NewJob, key: str, holder: str, on_duplicate: OnDuplicate) -> Enqueued:
    """Somebody holds the key. It stays out of the event: it may say more than a log should."""
    match on_duplicate:
        case "skip":
            happened("duplicate.skipped", job_id=holder, kind=job.kind, queue=job.queue)
        case "replace":
            happened("duplicate.replaced", job_id=holder, kind=job.kind, queue=job.queue)
        case "reject":
            happened("duplicate.refused", job_id=holder, kind=job.kind, queue=job.queue)
            raise DuplicateKeyError(key, holder)
        case _:
            assert_never(on_duplicate)
    return Enqueued(holder, created=False, replaced=on_duplicate == "replace")


def waited_for(tx: Transaction, keys: Sequence[str]) -> set[str]:
    """Those of the keys that a successor waits for."""
    after = [AFTER + key for key in keys]
    return {row[0].removeprefix(AFTER) for row in tx.rows(WAITED_FOR, keys=after)} if after else set()


def first_in_line(tx: Transaction, job_id: str, key: str, on_duplicate: OnDuplicate) -> str:
    """Who does the work of a key that our new job has just taken, although a successor waits for it."""
    if on_duplicate == "replace":
        drop_successor(tx, key)
        return job_id
    successor = tx.first(SUCCESSOR, key=AFTER + key)
    if successor is None:
        return job_id  # it was cancelled between our look and our lock
    tx.run(WITHDRAW, id=job_id)
    return str(successor)


def drop_successor(tx: Transaction, key: str) -> None:
    """What waits behind the holder of the key was asked before the payload that is now there, and must not come after."""
    if (successor := tx.first(SUCCESSOR, key=AFTER + key)) is not None:
        cancel_jobs(tx, [str(successor)], REPLACED)
