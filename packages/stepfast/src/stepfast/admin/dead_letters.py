"""Dead letters: jobs that gave up, and messages that a broker put aside. List them, retry them, or purge them.

A dead job is revived; a message of a broker is sent again under a new id, because a broker that detects duplicates
swallows an id that it has seen, without a word. What may concern thousands of rows goes in batches, each in a
transaction of its own: those functions take the database and not a transaction.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from stepfast.admin.audit import Actor, Command, Progress, record
from stepfast.admin.jobs import (
    ENDED_COLUMNS,
    JobDetail,
    JobSummary,
    job_state,
    read_summary,
    show_job,
    shown_text,
)
from stepfast.admin.rows import now
from stepfast.database.statement import sql
from stepfast.errors import NotFoundError, StateError
from stepfast.jobs import dead_letters
from stepfast.jobs.dead_letters import ChosenLetter, FailureGroup, Filter, failure_groups, filter_parameters
from stepfast.jobs.state import JobState
from stepfast.outbox.messages import stage
from stepfast.telemetry.masking import masked_document
from stepfast.transports import dead_messages
from stepfast.transports.contract import LONGEST_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.transports.dead_messages import DeadMessage


__all__ = ["FailureGroup", "Filter", "failure_groups", "list_dead_letters", "show_dead_letter"]

BATCH: Final = 200
MESSAGES: Final = 100  # in one batch
TICK: Final = 0.0015  # seconds; SQLite's clock counts milliseconds

_RETRIED: Final = re.compile(r"(.*):retry-(\d+)", re.DOTALL)


@dataclass(frozen=True)
class Retried:
    """What became of many dead letters."""

    retried: int
    refused: int  # their keys are held by unfinished jobs


# Look

LIST_DEAD = sql(f"""
    SELECT {ENDED_COLUMNS} FROM stepfast_archive
     WHERE state = 'dead' AND (:any_kind = 1 OR kind = :kind) AND (:any_queue = 1 OR queue = :queue)
       AND (:any_error = 1 OR error_group = :error_group)
     ORDER BY finished_at DESC, id DESC LIMIT :limit
""")


def list_dead_letters(tx: Transaction, which: Filter | None = None, *, limit: int = 50) -> list[JobSummary]:
    """Dead jobs, the latest death first."""
    return tx.all(LIST_DEAD, read_summary, **filter_parameters(which or Filter()), limit=limit)


def list_dead_messages(tx: Transaction, which: Filter | None = None, *, limit: int = 50) -> list[DeadMessage]:
    """Dead letters of brokers, the latest first. A filter's kind is the message's subject, its error the reason."""
    return dead_messages.newest(tx, filter_parameters(which or Filter()), limit)


def show_dead_letter(tx: Transaction, job_id: str) -> JobDetail:
    """Everything about one dead job."""
    detail = show_job(tx, job_id)
    if detail.job.state is not JobState.DEAD:
        raise NotFoundError(f"job {job_id} is no dead letter, it is {detail.job.state}")
    return detail


def find_dead_letter(tx: Transaction, letter_id: str) -> JobDetail | DeadMessage:
    """Everything about one dead letter, a job or a message of a broker."""
    if (message := dead_messages.find(tx, letter_id)) is None:
        return show_dead_letter(tx, letter_id)
    body, properties = shown_text(message.body), masked_document(dict(message.properties))
    return replace(message, body=body, properties=properties)


def count_dead(tx: Transaction, which: Filter | None = None) -> int:
    """How many dead letters match."""
    which = which or Filter()
    return dead_letters.count_dead(tx, which, now(tx)) + dead_messages.count(tx, filter_parameters(which))


# Act on one

LOCK_ENDED_JOB = sql("SELECT state FROM stepfast_archive WHERE id = :id {for_update}")


def retry_dead_letter(tx: Transaction, letter_id: str, *, by: Actor | None = None) -> None:
    """Revive one dead job; send one message of a broker again."""
    if resend(tx, letter_id, by=by):
        return
    dead_letters.revive(tx, letter_id)
    record(tx, by, "dead-letters.retry", letter_id)


def purge_dead_letter(tx: Transaction, letter_id: str, *, by: Actor | None = None) -> None:
    """Delete one dead letter for good, a job with its log."""
    if forget(tx, letter_id, by=by):
        return
    state = tx.first(LOCK_ENDED_JOB, id=letter_id)
    if state != JobState.DEAD:
        found = job_state(tx, letter_id)[0]
        raise StateError(f"job {letter_id} is no dead letter, it is {found}; only dead letters are purged")
    dead_letters.purge(tx, [letter_id])
    record(tx, by, "dead-letters.purge", letter_id)


def resend(tx: Transaction, message_id: str, *, by: Actor | None = None) -> bool:
    """Send one message again, under a new id, to the queue from which it came; False if there is no such message."""
    found = dead_messages.find(tx, message_id)
    if found is None or _send(tx, [found]) != 1:
        return False
    record(tx, by, "dead-letters.retry", message_id, detail={"origin": found.origin})
    return True


def forget(tx: Transaction, message_id: str, *, by: Actor | None = None) -> bool:
    """Delete one message of a broker for good; False if there is no such message."""
    if not dead_messages.remove(tx, [message_id]):
        return False
    record(tx, by, "dead-letters.purge", message_id)
    return True


# Act on many


def retry_dead(
    database: Database,
    which: Filter | None = None,
    progress: Progress | None = None,
    *,
    by: Actor | None = None,
) -> Retried:
    """Retry the dead letters that are there now and match, oldest first."""
    which = which or Filter()
    chosen, revived = _each_job(
        database, "dead-letters.retry", which, dead_letters.revive_many, progress=progress, by=by
    )
    return Retried(revived + resend_all(database, which, by=by), chosen - revived)


def purge_dead(
    database: Database,
    which: Filter | None = None,
    progress: Progress | None = None,
    *,
    by: Actor | None = None,
) -> int:
    """Delete the dead letters that are there now and match, jobs with their logs, for good; returns how many."""

    def purge(tx: Transaction, letters: Sequence[ChosenLetter]) -> int:
        return dead_letters.purge(tx, [letter.id for letter in letters])

    which = which or Filter()
    _, purged = _each_job(database, "dead-letters.purge", which, purge, progress=progress, by=by)
    return purged + forget_all(database, which, by=by)


def resend_all(database: Database, which: Filter, *, by: Actor | None = None) -> int:
    """Send again the messages of brokers that are there now and match; returns how many."""
    return _each_message(database, "dead-letters.retry", which, _send, by)


def forget_all(database: Database, which: Filter, *, by: Actor | None = None) -> int:
    """Delete the messages of brokers that are there now and match; returns how many."""

    def remove(tx: Transaction, messages: Sequence[DeadMessage]) -> int:
        return dead_messages.remove(tx, [message.id for message in messages])

    return _each_message(database, "dead-letters.purge", which, remove, by)


def _each_job(
    database: Database,
    what: str,
    which: Filter,
    work: Callable[[Transaction, Sequence[ChosenLetter]], int],
    *,
    progress: Progress | None,
    by: Actor | None,
) -> tuple[int, int]:
    """Walk over the dead jobs that match now; returns how many were chosen, and how many `work` has changed."""
    with database.reading() as tx:
        until = now(tx)
    time.sleep(TICK)  # a job that dies of our work dies later than those that we walk over
    detail = {"kind": which.kind, "queue": which.queue, "error": which.error_group}
    given = " ".join(f"{name}={value}" for name, value in detail.items() if value is not None)
    command = Command(database, by, what, given or "all", detail)
    return command.each_batch(
        lambda tx, last: dead_letters.choose_dead(tx, which, BATCH, until, last), work, progress
    )


def _each_message(
    database: Database,
    what: str,
    which: Filter,
    work: Callable[[Transaction, Sequence[DeadMessage]], int],
    by: Actor | None,
) -> int:
    """Walk over the messages of brokers that match now; returns how many `work` has changed."""
    filters = filter_parameters(which)
    with database.reading() as tx:
        until, total = now(tx), dead_messages.count(tx, filters)
    if not total:
        return 0
    command = Command(database, by, what, "messages of brokers")
    return command.each_batch(lambda tx, _: dead_messages.oldest(tx, filters, until, MESSAGES), work)[1]


def _send(tx: Transaction, messages: Sequence[DeadMessage]) -> int:
    """Stage each message for its broker again; returns how many. One that another command removed is left out."""
    from stepfast.outbox.broker import broker_message

    sent = 0
    for message in messages:
        if not dead_messages.remove(tx, [message.id]):
            continue
        properties = {
            name: value for name, value in message.properties.items() if isinstance(value, str | int | bool)
        }
        again = broker_message(
            message.address,
            message.queue,
            id=retried_id(message.message_id),
            body=message.body,
            subject=message.subject,
            properties=properties,
        )
        stage(tx, again)
        sent += 1
    return sent


def retried_id(message_id: str) -> str:
    """`a` is `a:retry-1` the first time, then `a:retry-2`."""
    found = _RETRIED.fullmatch(message_id)
    name, number = (found[1], int(found[2]) + 1) if found else (message_id, 1)
    suffix = f":retry-{number}"
    return name[: LONGEST_ID - len(suffix)] + suffix
