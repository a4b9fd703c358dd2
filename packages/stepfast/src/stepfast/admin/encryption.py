"""Encryption keys: which keys stored documents need, and rotation to the first key of STEPFAST_SECRET_KEY.

Rotation goes in bounded batches, each in a transaction of its own, and looks at every row that is encrypted. A row that
is under the first key already is left alone, so a rotation that was interrupted can simply be run again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast.admin.audit import Actor, Command, record
from stepfast.admin.jobs import JobDetail, show_job
from stepfast.database.statement import sql
from stepfast.encryption import MARK, key_ids, keyring
from stepfast.errors import SealedError
from stepfast.jobs.wait import reencrypt_cursor

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.database.connection import Transaction, Value
    from stepfast.database.database import Database
    from stepfast.database.statement import Statement
    from stepfast.encryption import Keyring


BATCH: Final = 200
INSIDE: Final = f"%{MARK}%"  # the cursor of a job that waits has it inside

ENCRYPTED_JOBS = sql("""
    SELECT id, kind, fence, {text_of:payload}, cursor_json FROM stepfast_job
     WHERE id > :after AND ({text_of:payload} LIKE :inside OR cursor_json LIKE :inside)
     ORDER BY id LIMIT :limit {for_update}
""")
ENCRYPTED_ENDED = sql("""
    SELECT id, kind, payload, cursor_json, result FROM stepfast_archive
     WHERE id > :after AND (payload LIKE :inside OR cursor_json LIKE :inside OR result LIKE :inside)
     ORDER BY id LIMIT :limit {for_update}
""")
ENCRYPTED_EVENTS = sql("""
    SELECT id, event_id, name, payload FROM stepfast_event
     WHERE id > :after AND payload LIKE :inside
     ORDER BY id LIMIT :limit {for_update}
""")

WRITE_JOB = sql("""
    UPDATE stepfast_job SET payload = {json_of:payload}, cursor_json = :cursor WHERE id = :id AND fence = :fence
""")
WRITE_ENDED = sql("""
    UPDATE stepfast_archive SET payload = :payload, cursor_json = :cursor, result = :result WHERE id = :id
""")
WRITE_EVENT = sql("UPDATE stepfast_event SET payload = :payload WHERE id = :id")


@dataclass(frozen=True)
class EncryptionKey:
    """A key of STEPFAST_SECRET_KEY, or one that stored documents need."""

    key: str
    documents: int  # that are encrypted with it
    here: bool  # STEPFAST_SECRET_KEY has it in this process
    seals: bool  # it is the first one: new documents are encrypted with it


@dataclass(frozen=True)
class Rotated:
    """What became of the encrypted rows."""

    key: str  # the current key
    renewed: int = 0  # rows that were encrypted anew
    current: int = 0  # rows that were under this key before
    unreadable: int = 0  # rows whose key is not here: they are unchanged

    def __add__(self, other: Rotated) -> Rotated:
        return Rotated(
            self.key,
            self.renewed + other.renewed,
            self.current + other.current,
            self.unreadable + other.unreadable,
        )


def rotate(database: Database, *, by: Actor | None = None) -> Rotated:
    """Encrypt with the first key all rows that are encrypted with another one."""
    keys = keyring()
    command = Command(database, by, "encryption.rotate", keys.current)
    total = Rotated(keys.current)
    for statement, first, renew in (
        (ENCRYPTED_JOBS, "", _job),
        (ENCRYPTED_ENDED, "", _ended),
        (ENCRYPTED_EVENTS, 0, _event),
    ):
        total += _rotate_table(command, keys, statement, first, renew)
    command.end()
    return total


def list_keys(database: Database) -> list[EncryptionKey]:
    """The keys that are here, in their order, then those that only stored documents name. Reads every encrypted row."""
    here, needed = key_ids(), keys_in_use(database)
    return [
        EncryptionKey(key, needed.get(key, 0), key in here, bool(here) and key == here[0])
        for key in [*here, *sorted(needed.keys() - set(here))]
    ]


def keys_in_use(database: Database) -> dict[str, int]:
    """How many encrypted documents need which key."""
    found: Counter[str] = Counter()
    for statement, first in ((ENCRYPTED_JOBS, ""), (ENCRYPTED_ENDED, ""), (ENCRYPTED_EVENTS, 0)):
        after: Value = first
        while True:
            with database.transaction() as tx:
                rows = tx.rows(statement, after=after, inside=INSIDE, limit=BATCH)
            if not rows:
                break
            texts = [text for row in rows for text in row[1:] if isinstance(text, str)]
            found.update(key for text in texts for key in _keys(text))
            last = rows[-1][0]
            if type(last) is type(after) and last <= after:
                break  # an id that is not UTF-8, which only SQLite stores, and sorts behind all others
            after = last
    return dict(found)


def show_decrypted(tx: Transaction, job_id: str, *, logs: int = 100, by: Actor | None = None) -> JobDetail:
    """Everything about one job, decrypted. The look itself is recorded in the audit."""
    detail = show_job(tx, job_id, logs=logs, decrypt=True)
    record(tx, by, "job.decrypt", job_id)
    return detail


def _rotate_table(
    command: Command, keys: Keyring, statement: Statement, first: Value, renew: Callable[..., bool]
) -> Rotated:
    total, after = Rotated(keys.current), first

    def batch(tx: Transaction) -> tuple[tuple[Rotated, Value], int | None]:
        rows = tx.rows(statement, after=after, inside=INSIDE, limit=BATCH)
        done = Counter(_outcome(tx, keys, renew, row) for row in rows)
        answer = Rotated(keys.current, done["renewed"], done["current"], done["unreadable"])
        return (answer, rows[-1][0] if rows else None), done["renewed"] or None

    while True:
        found, last = command.run(batch)
        if last is None:
            return total
        total, after = total + found, last


def _outcome(tx: Transaction, keys: Keyring, renew: Callable[..., bool], row: Any) -> str:
    try:
        return "renewed" if renew(tx, keys, *row) else "current"
    except SealedError:
        return "unreadable"


def _job(tx: Transaction, keys: Keyring, *row: Any) -> bool:
    job_id, kind, fence, payload, cursor = row
    new = _new(keys, kind, job_id, payload=payload, cursor=cursor)
    if new == {"payload": payload, "cursor": cursor}:
        return False
    tx.run(WRITE_JOB, id=job_id, fence=fence, **new)
    return True


def _ended(tx: Transaction, keys: Keyring, *row: Any) -> bool:
    job_id, kind, payload, cursor, result = row
    new = _new(keys, kind, job_id, payload=payload, cursor=cursor, result=result)
    if new == {"payload": payload, "cursor": cursor, "result": result}:
        return False
    tx.run(WRITE_ENDED, id=job_id, **new)
    return True


def _event(tx: Transaction, keys: Keyring, *row: Any) -> bool:
    event, event_id, name, payload = row
    new = keys.reencrypt(payload, f"event {name}", event_id)
    if new == payload:
        return False
    tx.run(WRITE_EVENT, id=event, payload=new)
    return True


def _new(keys: Keyring, kind: str, job_id: str, **stored: str | None) -> dict[str, str | None]:
    """These documents, encrypted with the first key."""
    return {
        what: None if it is None else reencrypt_cursor(it, keys, f"{what} of {kind}", job_id)
        for what, it in stored.items()
    }


def _keys(text: str) -> list[str]:
    """The names of the keys that a stored text needs."""
    return [part.split('"', 1)[0].partition(".")[2] for part in text.split(MARK)[1:]]
