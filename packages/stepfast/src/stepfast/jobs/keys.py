"""Unique keys: which are accepted, how long they are remembered, and what becomes of a call whose key is taken.

A key is held by one unfinished job of its kind; a job of another kind may have the same key. Uniqueness must not rest on the live table alone: a job that ends moves to the
archive, and a duplicate that overlaps the move would get in. So a key that outlives its job is a row that never moves.

The insert that decides who gets a key is `_enqueue_keyed` in `jobs/enqueue.py`, under the unique index of `stepfast_job`;
calls that merge or wait behind the holder of their key are in `jobs/debounce.py`.

The holder may have a successor, which waits under a key of its own ("(after) …", see `debounce`). What was asked last
must be done last: a successor whose turn has come counts as the holder of the key, and a call that replaces the holder replaces its
successor too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, assert_never

from stepfast.clock import Duration, duration, micros
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, ContentionError, DuplicateKeyError
from stepfast.jobs.state import Enqueued, NewJob
from stepfast.telemetry import happened, when_committed
from stepfast.telemetry.masking import storable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction


OnDuplicate = Literal["reject", "skip", "replace", "merge"]  # what a caller may choose
DuplicatePolicy = Literal["reject", "skip", "replace"]  # what happens where calls are not merged
LONGEST_KEY: Final = 128
TRIES: Final = 5
SUCCESSOR_PREFIX: Final = "(after) "  # of the key of a job that waits for the end of the holder of the rest
# The key that a job is going to hold, if not now; SUBSTR counts from 1.
OWN_KEY: Final = f"CASE WHEN unique_key LIKE '{SUCCESSOR_PREFIX}%' THEN SUBSTR(unique_key, {len(SUCCESSOR_PREFIX) + 1}) ELSE unique_key END"


def check_key(key: object) -> None:
    """Refuse keys that a database would change, or take for another."""
    if key is None:
        return
    if not isinstance(key, str):
        raise ConfigurationError(f"key {key!r}: a text, not {type(key).__name__}")
    if not 0 < len(key) <= LONGEST_KEY:
        raise ConfigurationError(f"key {key[:40]!r}…: 1 to {LONGEST_KEY} characters, not {len(key)}")
    if key != key.rstrip():
        raise ConfigurationError(f"key {key!r} ends in a space, which MariaDB would not see; strip it")
    if key != storable(key):
        raise ConfigurationError(f"key {key!r}: no database stores NUL or half a character")
    if key.startswith(SUCCESSOR_PREFIX):
        raise ConfigurationError(
            f"key {key!r}: keys that begin with {SUCCESSOR_PREFIX!r} are those of waiting successors"
        )


def duplicate_policy(on_duplicate: str | None) -> DuplicatePolicy:
    """What happens to a call whose key is held, where calls are not merged."""
    match on_duplicate:
        case None | "reject" | "merge":
            return "reject"
        case "skip" | "replace":
            return on_duplicate
        case _:
            raise ConfigurationError(
                f"on_duplicate={on_duplicate!r}: use 'reject', 'skip', 'replace' or 'merge'"
            )


def remembered_for(key: str | None, unique_for: Duration | None, unique_per: Duration | None) -> int | None:
    """For how many microseconds the key is remembered; None: only while its job is unfinished."""
    if unique_for is None and unique_per is None:
        return None
    given = {"unique_for": unique_for, "unique_per": unique_per}
    named = {name: period for name, period in given.items() if period is not None}
    if len(named) > 1:
        raise ConfigurationError(
            "enqueue: give unique_for (from now on) or unique_per (a fixed window), not both"
        )
    name = next(iter(named))
    if key is None:
        raise ConfigurationError(f"enqueue: {name} needs a key to remember")
    period = micros(duration(named[name], name))
    if period <= 0:
        raise ConfigurationError(f"enqueue: {name}={named[name]!r} is no time at all; give one above zero")
    return period


# --- Remembered keys.

# `window` is 1, or the length of the windows that time is cut into (from 1970, UTC).
REMEMBER_KEY = sql("""
    INSERT INTO stepfast_key (id, job_id, kind, until_at) VALUES (:id, :job_id, :kind, {now} - {now} % :window + :keep)
    {keep_existing}
""")

# A key whose time is over may be taken again; the first call gets it.
TAKE_OVER_KEY = sql("""
    UPDATE stepfast_key SET job_id = :job_id, kind = :kind, until_at = {now} - {now} % :window + :keep
     WHERE id = :id AND job_id <> :job_id AND until_at <= {now}
""")

REMEMBERED_HOLDER = sql("SELECT job_id FROM stepfast_key WHERE id = :id")
# A lent transaction of MariaDB's may look at the past (REPEATABLE READ), where the key is not yet there.
REMEMBERED_HOLDER_NOW = sql("SELECT job_id FROM stepfast_key WHERE id = :id {for_update}")
REMEMBERED_KIND_NOW = sql("SELECT kind FROM stepfast_key WHERE id = :id {for_update}")

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


def remember_key(
    tx: Transaction,
    scope: str,
    key: str,
    job_id: str,
    keep: int,
    *,
    window: int = 1,
    kind: str | None = None,
) -> str:
    """Claim `key` for `job_id`; returns the job that holds it, which is another one if we came late."""
    name = f"{scope}:{key}"
    for again in range(TRIES):
        tx.run(REMEMBER_KEY, id=name, job_id=job_id, kind=kind, keep=keep, window=window)
        tx.run(TAKE_OVER_KEY, id=name, job_id=job_id, kind=kind, keep=keep, window=window)
        holder = tx.first(REMEMBERED_HOLDER_NOW if again else REMEMBERED_HOLDER, id=name)
        if holder is not None:
            return str(holder)
        # Its time was over, and another process forgot it between our insert and our look: it is free now.
    raise ContentionError(f"key {key!r} was forgotten {TRIES} times while we looked; try again")


def remembered_kind(tx: Transaction, scope: str, key: str) -> str | None:
    """The kind of the job that the key was claimed for, where it was said."""
    kind: str | None = tx.first(REMEMBERED_KIND_NOW, id=f"{scope}:{key}")
    return kind


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
    """Forget keys whose time is over; returns how many."""
    ids = [row[0] for row in tx.rows(EXPIRED_KEYS, limit=limit)]
    return tx.run(FORGET_KEYS, ids=ids) if ids else 0


# --- A call whose key is taken: by a job, or by the successor that is next.

REPLACED: Final = "a newer call with its key replaced it, and the job that it waited for"

LOCK_SUCCESSOR = sql("SELECT id FROM stepfast_job WHERE unique_key = :key AND kind = :kind {for_update}")

SUCCESSOR_KEYS = sql("SELECT unique_key FROM stepfast_job WHERE unique_key {any_of:keys} AND kind = :kind")

# A row of this transaction, which no other one has seen.
WITHDRAW_JOB = sql("DELETE FROM stepfast_job WHERE id = :id AND leased_at IS NULL")


def report_duplicate(
    tx: Transaction, job: NewJob, key: str, holder: str, on_duplicate: DuplicatePolicy
) -> Enqueued:
    """Report that `holder` has the key, or raise. The key stays out of the event: it may say more than a log should."""
    match on_duplicate:
        case "skip":
            when_committed(tx, "duplicate.skipped", job_id=holder, kind=job.kind, queue=job.queue)
        case "replace":
            when_committed(tx, "duplicate.replaced", job_id=holder, kind=job.kind, queue=job.queue)
        case "reject":
            happened("duplicate.refused", job_id=holder, kind=job.kind, queue=job.queue)
            raise DuplicateKeyError(key, holder)
        case _:
            assert_never(on_duplicate)
    return Enqueued(holder, created=False, replaced=on_duplicate == "replace")


def keys_with_successor(tx: Transaction, kind: str, keys: Sequence[str]) -> set[str]:
    """The keys among these that a successor of this kind waits for."""
    waiting = [SUCCESSOR_PREFIX + key for key in keys]
    if not waiting:
        return set()
    found = tx.rows(SUCCESSOR_KEYS, keys=waiting, kind=kind)
    return {row[0].removeprefix(SUCCESSOR_PREFIX) for row in found}


def first_in_line(tx: Transaction, job: NewJob, key: str, on_duplicate: DuplicatePolicy) -> str:
    """The job that does the work of a key which our new job has just taken, although a successor waits for it."""
    if on_duplicate == "replace":
        drop_successor(tx, job.kind, key)
        return job.id
    successor = tx.first(LOCK_SUCCESSOR, key=SUCCESSOR_PREFIX + key, kind=job.kind)
    if successor is None:
        return job.id  # it was cancelled between our look and our lock
    tx.run(WITHDRAW_JOB, id=job.id)
    return str(successor)


def drop_successor(tx: Transaction, kind: str, key: str) -> None:
    """Cancel the successor of a holder that got a new payload: it was asked before, and must not come after."""
    if (successor := tx.first(LOCK_SUCCESSOR, key=SUCCESSOR_PREFIX + key, kind=kind)) is not None:
        from stepfast.jobs.cancel import cancel_jobs  # few programs replace, or have successors

        cancel_jobs(tx, [str(successor)], REPLACED)
