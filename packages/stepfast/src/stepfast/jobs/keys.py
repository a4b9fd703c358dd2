"""Keys that are remembered longer than their job lives.

Uniqueness must not rest on the live table alone: a job that ends moves to the archive, and a duplicate
that overlaps the move would get in. So what must be remembered is a row that never moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, assert_never

from stepfast.database.statement import sql
from stepfast.errors import ContentionError, DuplicateKeyError
from stepfast.jobs.cancel import cancel_jobs
from stepfast.jobs.state import Enqueued, NewJob
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction


TRIES = 5
SUCCESSOR_PREFIX: Final = (
    "(after) "  # so begins the key of a job that waits for the end of the holder of the rest
)
# The key that a job is going to hold, if not now; SUBSTR counts from 1.
OWN_KEY: Final = f"CASE WHEN unique_key LIKE '{SUCCESSOR_PREFIX}%' THEN SUBSTR(unique_key, {len(SUCCESSOR_PREFIX) + 1}) ELSE unique_key END"

# `window` is 1, or the length of the windows that time is cut into (from 1970, UTC).
REMEMBER_KEY = sql("""
    INSERT INTO stepfast_key (id, job_id, until_at) VALUES (:id, :job_id, {now} - {now} % :window + :keep)
    {keep_existing}
""")

# A key whose time is over may be taken again, by whoever comes first.
TAKE_OVER_KEY = sql("""
    UPDATE stepfast_key SET job_id = :job_id, until_at = {now} - {now} % :window + :keep
     WHERE id = :id AND job_id <> :job_id AND until_at <= {now}
""")

REMEMBERED_HOLDER = sql("SELECT job_id FROM stepfast_key WHERE id = :id")
# A lent transaction of MariaDB's may look at the past (REPEATABLE READ), where the key is not yet there.
REMEMBERED_HOLDER_NOW = sql("SELECT job_id FROM stepfast_key WHERE id = :id {for_update}")

HAND_OVER_KEY = sql("UPDATE stepfast_key SET job_id = :holder WHERE id = :id AND job_id = :job_id")

PROLONG_KEY = sql(
    "UPDATE stepfast_key SET until_at = {now} + :keep WHERE id = :id AND until_at < {now} + :keep"
)

RELEASE_KEY = sql("DELETE FROM stepfast_key WHERE id = :id AND job_id = :job_id")

FORGET_KEYS = sql("""
    DELETE FROM stepfast_key WHERE id {any_of:ids}
""")

EXPIRED_KEYS = sql(
    "SELECT id FROM stepfast_key WHERE until_at <= {now} ORDER BY until_at LIMIT :limit {skip_locked}"
)


def remember_key(tx: Transaction, scope: str, key: str, job_id: str, keep: int, *, window: int = 1) -> str:
    """Claim `key` for `job_id`; returns the job that holds it, which is another one if we came late."""
    name = f"{scope}:{key}"
    for again in range(TRIES):
        tx.run(REMEMBER_KEY, id=name, job_id=job_id, keep=keep, window=window)
        tx.run(TAKE_OVER_KEY, id=name, job_id=job_id, keep=keep, window=window)
        holder = tx.first(REMEMBERED_HOLDER_NOW if again else REMEMBERED_HOLDER, id=name)
        if holder is not None:
            return str(holder)
        # Its time was over, and somebody forgot it between our insert and our look: it is free now.
    raise ContentionError(f"key {key!r} was forgotten {TRIES} times while we looked; try again")


def hand_over_key(tx: Transaction, scope: str, key: str, job_id: str, holder: str) -> None:
    """Remember the key for `holder` instead: our own job was not needed."""
    tx.run(HAND_OVER_KEY, id=f"{scope}:{key}", job_id=job_id, holder=holder)


def prolong_key(tx: Transaction, scope: str, key: str, keep: int) -> None:
    """Remember the key for `keep` microseconds from now at least."""
    tx.run(PROLONG_KEY, id=f"{scope}:{key}", keep=keep)


def release_key(tx: Transaction, scope: str, key: str, job_id: str) -> None:
    """Forget the key that we claimed for `job_id`: no such job came to be."""
    tx.run(RELEASE_KEY, id=f"{scope}:{key}", job_id=job_id)


def forget_expired_keys(tx: Transaction, limit: int) -> int:
    """Drop keys whose time is over; returns how many."""
    ids = [row[0] for row in tx.rows(EXPIRED_KEYS, limit=limit)]
    return tx.run(FORGET_KEYS, ids=ids) if ids else 0


# A call whose key is taken: by a job, or by the successor that is next ("(after) …").
#
# What was asked last must be done last. So a successor whose turn has come, but who has not been told yet, has the key
# already; and who replaces the job replaces all that waits behind it.

DuplicatePolicy = Literal["reject", "skip", "replace"]
REPLACED: Final = "a newer call with its key replaced it, and the job that it waited for"

LOCK_SUCCESSOR = sql("SELECT id FROM stepfast_job WHERE unique_key = :key {for_update}")

SUCCESSOR_KEYS = sql("SELECT unique_key FROM stepfast_job WHERE unique_key {any_of:keys}")

# A row of this transaction, which nobody has seen.
WITHDRAW_JOB = sql("DELETE FROM stepfast_job WHERE id = :id AND leased_at IS NULL")


def report_duplicate(job: NewJob, key: str, holder: str, on_duplicate: DuplicatePolicy) -> Enqueued:
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


def keys_with_successor(tx: Transaction, keys: Sequence[str]) -> set[str]:
    """Those of the keys that a successor waits for."""
    after = [SUCCESSOR_PREFIX + key for key in keys]
    return (
        {row[0].removeprefix(SUCCESSOR_PREFIX) for row in tx.rows(SUCCESSOR_KEYS, keys=after)}
        if after
        else set()
    )


def first_in_line(tx: Transaction, job_id: str, key: str, on_duplicate: DuplicatePolicy) -> str:
    """Who does the work of a key that our new job has just taken, although a successor waits for it."""
    if on_duplicate == "replace":
        drop_successor(tx, key)
        return job_id
    successor = tx.first(LOCK_SUCCESSOR, key=SUCCESSOR_PREFIX + key)
    if successor is None:
        return job_id  # it was cancelled between our look and our lock
    tx.run(WITHDRAW_JOB, id=job_id)
    return str(successor)


def drop_successor(tx: Transaction, key: str) -> None:
    """What waits behind the holder of the key was asked before the payload that is now there, and must not come after."""
    if (successor := tx.first(LOCK_SUCCESSOR, key=SUCCESSOR_PREFIX + key)) is not None:
        cancel_jobs(tx, [str(successor)], REPLACED)
