"""The audit: who did what, to what and why, one row per command, in the transaction of the action itself.

So either both are there or neither. An action that was refused, or that changed nothing, leaves no row.
A command that works in batches is a `Command`: its row begins with the first batch that changes something, and each
batch adds what it touched in its own transaction. Wherever such a command is killed, its row says exactly what was
done, and that it did not end.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stepfast.admin.rows import reader
from stepfast.clock import Duration, duration, micros, moment, new_id
from stepfast.database.database import persist
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, NotFoundError
from stepfast.jobs.payload import decode, to_json
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database


T = TypeVar("T")
Row = TypeVar("Row")
Fact = str | float | int | None
Detail = Mapping[str, Fact]
Progress = Callable[[int], object]  # gets the number of rows that a command has walked over

OPERATOR: Final = "STEPFAST_OPERATOR"  # the variable that names the operator
LONGEST: Final = 200  # characters of who, what and subject
LONGEST_REASON: Final = 2_000
HIDDEN: Final = "***"


@dataclass(frozen=True)
class Actor:
    """The person or program that acts, and its reason."""

    name: str
    reason: str | None = None

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigurationError(f"operator {self.name!r}: say who acts, for example 'alice'")

    def with_reason(self, reason: str | None) -> Actor:
        """The same actor with this reason; unchanged if it is None."""
        return self if reason is None else replace(self, reason=reason)


def actor_or_default(name: str | None = None, reason: str | None = None) -> Actor:
    """The actor of this name; without one STEPFAST_OPERATOR, else the user and host of this process."""
    return Actor(name or os.environ.get(OPERATOR) or _user_and_host(), reason)


def actor_named(name: str | None, reason: str | None) -> Actor:
    """The actor of exactly this name; the default one without a name."""
    return actor_or_default(None, reason) if name is None else Actor(name, reason)


def require_reason(by: Actor | None, missing: str) -> Actor:
    """The actor, which must have a reason; `missing` is the sentence to refuse it with."""
    by = by or actor_or_default()
    if not by.reason:
        raise ConfigurationError(missing)
    return by


def _user_and_host() -> str:
    from getpass import getuser

    try:
        user = getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no name
        user = f"uid-{os.getuid()}" if hasattr(os, "getuid") else "somebody"
    return f"{user}@{socket.gethostname()}"


# Record

INSERT_ENTRY = sql("""
    INSERT INTO stepfast_audit (id, at, ended_at, who, what, subject, why, touched, detail)
    VALUES (:id, {now}, CASE WHEN :ended = 1 THEN {now} END, :who, :what, :subject, :why, :touched, :detail)
""")
ADD_TOUCHED = sql(
    "UPDATE stepfast_audit SET touched = touched + :touched WHERE id = :id AND ended_at IS NULL"
)
END_ENTRY = sql("UPDATE stepfast_audit SET ended_at = {now} WHERE id = :id AND ended_at IS NULL")


def record(
    tx: Transaction,
    by: Actor | None,
    what: str,
    subject: str,
    *,
    touched: int = 1,
    detail: Detail | None = None,
) -> None:
    """Record an action that is complete with this transaction; `what` is its verb, such as "queue.pause".

    `detail` holds further facts, never a payload. Call it only where something was changed.
    """
    row = _row(by or actor_or_default(), what, subject, detail)
    tx.run(INSERT_ENTRY, **row, id=new_id(), touched=touched, ended=1)


class Command:
    """A command that works in batches, each in a transaction of its own: one row, true after every batch."""

    def __init__(
        self,
        database: Database,
        by: Actor | None,
        what: str,
        subject: str,
        detail: Detail | None = None,
    ) -> None:
        self._database = database
        self._row = _row(by or actor_or_default(), what, subject, detail)
        self._id = new_id()
        self._begun = False

    def each_batch(
        self,
        choose: Callable[[Transaction, Row | None], Sequence[Row]],
        work: Callable[[Transaction, Sequence[Row]], int],
        progress: Progress | None = None,
    ) -> tuple[int, int]:
        """Walk over rows in batches until none is left, and end the command.

        `choose` finds the next rows; it gets the last row of the batch before, None at first. `work` changes them and
        says how many it has changed. Returns how many rows were chosen, and how many were changed.
        """
        chosen = changed = 0
        last: Row | None = None

        def batch(tx: Transaction) -> tuple[tuple[Sequence[Row], int], int | None]:
            rows = choose(tx, last)
            count = work(tx, rows) if rows else 0
            return (rows, count), count or None

        while True:
            rows, count = self.run(batch)
            if not rows:
                self.end()
                return chosen, changed
            chosen, changed, last = chosen + len(rows), changed + count, rows[-1]
            if progress is not None:
                progress(chosen)

    def run(self, batch: Callable[[Transaction], tuple[T, int | None]]) -> T:
        """Commit one batch with its record. It answers what it found, and how many rows it touched.

        None means that it changed nothing, which is not recorded; 0 that it changed something else.
        """

        def work(tx: Transaction) -> tuple[T, int | None]:
            answer, touched = batch(tx)
            if touched is not None and tx.run(ADD_TOUCHED, id=self._id, touched=touched) != 1:
                tx.run(INSERT_ENTRY, **self._row, id=self._id, touched=touched, ended=0)
            return answer, touched

        answer, touched = persist(self._database, work)
        self._begun = self._begun or touched is not None
        return answer

    def end(self) -> None:
        """Record that the command has done all of its work."""
        if self._begun:
            persist(self._database, lambda tx: tx.run(END_ENTRY, id=self._id))


def _row(by: Actor, what: str, subject: str, detail: Detail | None) -> dict[str, str | None]:
    facts = {name: _shown(name, value) for name, value in (detail or {}).items() if value is not None}
    return {
        "who": without_secrets(by.name)[:LONGEST],
        "what": what[:LONGEST],
        "subject": without_secrets(subject)[:LONGEST],
        "why": None if by.reason is None else without_secrets(by.reason)[:LONGEST_REASON],
        "detail": to_json(facts) if facts else None,
    }


def _shown(name: str, value: Fact) -> Fact:
    """The value, unless it or its name looks like a secret."""
    if without_secrets(f"{name}=x") != f"{name}=x":
        return HIDDEN
    return without_secrets(value) if isinstance(value, str) else value


# Look


@dataclass(frozen=True)
class AuditEntry:
    """One command of an operator."""

    id: str
    at: datetime
    # None: the command works in batches and is still at work, or was cut short; `touched` is true either way
    ended_at: datetime | None
    who: str
    what: str
    subject: str  # a job, a queue, or the filter that chose many
    why: str | None
    touched: int  # rows that it changed
    detail: dict[str, Any] | None


# `any_…` switches a filter off (PostgreSQL cannot guess the type of a lone NULL).
LIST_ENTRIES = sql("""
    SELECT id, at, ended_at, who, what, subject, why, touched, detail
      FROM stepfast_audit
     WHERE (:any_who = 1 OR who = :who) AND (:any_what = 1 OR what = :what)
       AND (:any_subject = 1 OR subject = :subject) AND at >= {now} - :age
       AND (at < :at OR at = :at AND id < :before)
     ORDER BY at DESC, id DESC LIMIT :limit
""")
ENTRY_TIME = sql("SELECT at FROM stepfast_audit WHERE id = :id")
ALWAYS = 2**62  # microseconds: longer ago, and later, than anything

read_entry = reader(AuditEntry, at=moment, detail=decode)


def list_audit(
    tx: Transaction,
    *,
    who: str | None = None,
    what: str | None = None,
    subject: str | None = None,
    since: Duration | None = None,
    limit: int = 50,
    before: str | None = None,
) -> list[AuditEntry]:
    """Commands of operators, newest first; `before` is the last id of the page before."""
    return tx.all(
        LIST_ENTRIES,
        read_entry,
        who=who,
        any_who=int(who is None),
        what=what,
        any_what=int(what is None),
        subject=subject,
        any_subject=int(subject is None),
        age=ALWAYS if since is None else micros(duration(since, "since")),
        at=ALWAYS if before is None else _time_of(tx, before),
        before=before or "",
        limit=limit,
    )


def _time_of(tx: Transaction, entry_id: str) -> int:
    at = tx.first(ENTRY_TIME, id=entry_id)
    if at is None:
        raise NotFoundError(f"there is no audit entry {entry_id}; old ones are forgotten after their time")
    return int(at)


# Forget

_OLD = "SELECT id FROM stepfast_audit WHERE at < {now} - :age ORDER BY at, id LIMIT :limit"
ANY_OLD_ENTRY = sql(_OLD)
OLD_ENTRIES = sql(_OLD + " {skip_locked}")
FORGET_ENTRIES = sql("DELETE FROM stepfast_audit WHERE id {any_of:ids}")


def any_older(tx: Transaction, age: int) -> bool:
    """Whether there are entries older than `age`; a look, so that an idle worker takes no lock."""
    return bool(tx.rows(ANY_OLD_ENTRY, age=age, limit=1))


def prune(tx: Transaction, age: int, limit: int) -> int:
    """Forget one batch of entries older than `age`; returns how many."""
    ids = [row[0] for row in tx.rows(OLD_ENTRIES, age=age, limit=limit)]
    return tx.run(FORGET_ENTRIES, ids=ids) if ids else 0
