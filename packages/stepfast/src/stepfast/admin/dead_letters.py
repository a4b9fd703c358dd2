"""Dead letters: the newest first, or grouped by what killed them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stepfast.admin.audit import Actor, Command, record, whoever
from stepfast.admin.jobs import ENDED_COLUMNS, JobDetail, JobSummary, job_state, show_job, summary
from stepfast.admin.rows import now
from stepfast.database.statement import sql
from stepfast.errors import NotFoundError, StateError
from stepfast.jobs import dead_letters
from stepfast.jobs.dead_letters import ChosenLetter, FailureGroup, Filter, failure_groups, filter_parameters
from stepfast.jobs.state import JobState
from stepfast.outbox.messages import stage
from stepfast.transports import dead_messages
from stepfast.transports.contract import LONGEST_ID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.transports.dead_messages import DeadMessage


NEWEST = sql(f"""
    SELECT {ENDED_COLUMNS} FROM stepfast_archive
     WHERE state = 'dead' AND (:any_kind = 1 OR kind = :kind) AND (:any_queue = 1 OR queue = :queue)
       AND (:any_error = 1 OR error_group = :error_group)
     ORDER BY finished_at DESC, id DESC LIMIT :limit
""")


def list_dead_letters(tx: Transaction, which: Filter | None = None, *, limit: int = 50) -> list[JobSummary]:
    """Dead letters, the latest death first."""
    return tx.all(NEWEST, summary, **filter_parameters(which or Filter()), limit=limit)


def show_dead_letter(tx: Transaction, job_id: str) -> JobDetail:
    """Everything about one dead letter."""
    detail = show_job(tx, job_id)
    if detail.job.state is not JobState.DEAD:
        raise NotFoundError(f"job {job_id} is no dead letter, it is {detail.job.state}")
    return detail


__all__ = ["FailureGroup", "Filter", "failure_groups", "list_dead_letters", "show_dead_letter"]


# Dead letters that came from a broker: listed with our own, sent again under a new id, or forgotten.
#
# A broker that detects duplicates swallows a message whose id it has seen, without a word; so the id of a retry counts.

MESSAGES: Final = 100  # in one batch

_RETRIED: Final = re.compile(r"(.*):retry-(\d+)", re.DOTALL)


def list_dead_messages(tx: Transaction, which: Filter | None = None, *, limit: int = 50) -> list[DeadMessage]:
    """Those that match, the latest first. A filter's kind is what the message calls itself, its error the reason."""
    return dead_messages.newest(tx, filter_parameters(which or Filter()), limit)


def count_dead_messages(tx: Transaction, which: Filter | None = None) -> int:
    return dead_messages.count(tx, filter_parameters(which or Filter()))


def resend(tx: Transaction, message_id: str, *, by: Actor | None = None) -> bool:
    """Send one again, under a new id, to the queue from which it came; False if there is no such message."""
    found = dead_messages.find(tx, message_id)
    if found is None or _send([found], tx) != 1:
        return False
    record(tx, by or whoever(), "dead-letters.retry", message_id, detail={"origin": found.origin})
    return True


def forget(tx: Transaction, message_id: str, *, by: Actor | None = None) -> bool:
    """Delete one for good; False if there is no such message."""
    if not dead_messages.remove(tx, [message_id]):
        return False
    record(tx, by or whoever(), "dead-letters.purge", message_id)
    return True


def resend_all(database: Database, which: Filter, *, by: Actor | None = None) -> int:
    """Send again what is there now and matches; returns how many."""
    return _each_message_batch(database, "dead-letters.retry", which, lambda tx, found: _send(found, tx), by)


def forget_all(database: Database, which: Filter, *, by: Actor | None = None) -> int:
    """Delete what is there now and matches; returns how many."""

    def remove(tx: Transaction, found: Sequence[DeadMessage]) -> int:
        return dead_messages.remove(tx, [it.id for it in found])

    return _each_message_batch(database, "dead-letters.purge", which, remove, by)


def retried_id(message_id: str) -> str:
    """`a` is `a:retry-1` the first time, then `a:retry-2`."""
    found = _RETRIED.fullmatch(message_id)
    name, number = (found[1], int(found[2]) + 1) if found else (message_id, 1)
    suffix = f":retry-{number}"
    return name[: LONGEST_ID - len(suffix)] + suffix


def _send(found: Sequence[DeadMessage], tx: Transaction) -> int:
    from stepfast.outbox.broker import broker_message

    sent = 0
    for it in found:
        if not dead_messages.remove(tx, [it.id]):  # somebody else was quicker
            continue
        properties = {
            name: value for name, value in it.properties.items() if isinstance(value, str | int | bool)
        }
        new = retried_id(it.message_id)
        stage(
            tx,
            broker_message(
                it.address, it.queue, id=new, body=it.body, subject=it.subject, properties=properties
            ),
        )
        sent += 1
    return sent


def _each_message_batch(
    database: Database,
    what: str,
    which: Filter,
    work: Callable[[Transaction, Sequence[DeadMessage]], int],
    by: Actor | None,
) -> int:
    with database.reading() as tx:
        until, total = now(tx), dead_messages.count(tx, filter_parameters(which))
    if not total:
        return 0
    command = Command(database, by or whoever(), what, "messages of brokers", None)

    def batch(tx: Transaction) -> tuple[int, int | None]:
        found = dead_messages.oldest(tx, filter_parameters(which), until, MESSAGES)
        count = work(tx, found) if found else 0
        return count, count or None

    done = 0
    while count := command.run(batch):
        done += count
    command.end()
    return done


BATCH: Final = 200


TICK: Final = 0.0015  # seconds; SQLite's clock counts milliseconds


Progress = Callable[[int], object]  # told how many are behind us


ENDED_STATE = sql("SELECT state FROM stepfast_archive WHERE id = :id {for_update}")


@dataclass(frozen=True)
class Retried:
    """What became of many dead letters."""

    retried: int
    refused: int  # their keys are held by unfinished jobs


def retry_dead_letter(tx: Transaction, job_id: str, *, by: Actor | None = None) -> None:
    """Revive one dead letter; a message of a broker is sent again."""
    if resend(tx, job_id, by=by):
        return
    dead_letters.revive(tx, job_id)
    record(tx, by or whoever(), "dead-letters.retry", job_id)


def retry_dead(
    database: Database,
    which: Filter | None = None,
    progress: Progress | None = None,
    *,
    by: Actor | None = None,
) -> Retried:
    """Revive the dead letters that are there now and match, oldest first."""
    which = which or Filter()
    command = Command(database, by or whoever(), "dead-letters.retry", _spelled(which), _detail(which))
    chosen, revived = _each_batch(database, command, which, dead_letters.revive_many, progress)
    return Retried(revived + resend_all(database, which, by=by), chosen - revived)


def purge_dead(
    database: Database,
    which: Filter | None = None,
    progress: Progress | None = None,
    *,
    by: Actor | None = None,
) -> int:
    """Delete the dead letters that are there now and match, with their logs, for good; returns how many."""

    def purge(tx: Transaction, letters: list[ChosenLetter]) -> int:
        return dead_letters.purge(tx, [it.id for it in letters])

    which = which or Filter()
    command = Command(database, by or whoever(), "dead-letters.purge", _spelled(which), _detail(which))
    purged = _each_batch(database, command, which, purge, progress)[1]
    return purged + forget_all(database, which, by=by)


def purge_dead_letter(tx: Transaction, job_id: str, *, by: Actor | None = None) -> None:
    """Delete one dead letter and its log for good."""
    if forget(tx, job_id, by=by):
        return
    state = tx.first(ENDED_STATE, id=job_id)
    if state != JobState.DEAD:
        found = job_state(tx, job_id)[0]
        raise StateError(f"job {job_id} is no dead letter, it is {found}; only dead letters are purged")
    dead_letters.purge(tx, [job_id])
    record(tx, by or whoever(), "dead-letters.purge", job_id)


def count_dead(tx: Transaction, which: Filter | None = None) -> int:
    """How many dead letters match."""
    which = which or Filter()
    return dead_letters.count_dead(tx, which, now(tx)) + count_dead_messages(tx, which)


def _each_batch(
    database: Database,
    command: Command,
    which: Filter,
    work: Callable[[Transaction, list[ChosenLetter]], int],
    progress: Progress | None,
) -> tuple[int, int]:
    """Walk over what matches now, in batches; returns how many were chosen, and how many `work` counted."""
    with database.reading() as tx:
        until = now(tx)
    time.sleep(TICK)  # what dies of our work dies later than what we walk over
    chosen = counted = 0
    last: ChosenLetter | None = None

    def batch(tx: Transaction) -> tuple[tuple[list[ChosenLetter], int], int | None]:
        letters = dead_letters.choose_dead(tx, which, BATCH, until, last)
        count = work(tx, letters) if letters else 0
        return (letters, count), count or None

    while True:
        letters, count = command.run(batch)
        if not letters:
            command.end()
            return chosen, counted
        chosen, counted, last = chosen + len(letters), counted + count, letters[-1]
        if progress is not None:
            progress(chosen)


def _spelled(which: Filter) -> str:
    given = [f"{name}={value}" for name, value in _detail(which).items() if value is not None]
    return " ".join(given) or "all"


def _detail(which: Filter) -> dict[str, str | None]:
    return {"kind": which.kind, "queue": which.queue, "error": which.error_group}
