"""What operators did, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepfast.admin.rows import reader
from stepfast.clock import Duration, duration, micros, moment
from stepfast.database.statement import sql
from stepfast.errors import NotFoundError
from stepfast.steps.payload import decode

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.connection import Transaction


@dataclass(frozen=True)
class AuditEntry:
    """One command of an operator."""

    id: str
    at: datetime
    ended_at: (
        datetime | None
    )  # None: it works in batches and is at it, or was cut short; `touched` is true either way
    who: str
    what: str
    subject: str  # a job, a queue, or the filter that chose many
    why: str | None
    touched: int  # rows that it changed
    detail: dict[str, Any] | None


# `any_…` switches a filter off (PostgreSQL cannot guess the type of a lone NULL).
NEWEST = sql("""
    SELECT id, at, ended_at, who, what, subject, why, touched, detail
      FROM stepfast_audit
     WHERE (:any_who = 1 OR who = :who) AND (:any_what = 1 OR what = :what)
       AND (:any_subject = 1 OR subject = :subject) AND at >= {now} - :age
       AND (at < :at OR at = :at AND id < :before)
     ORDER BY at DESC, id DESC LIMIT :limit
""")
PLACE = sql("SELECT at FROM stepfast_audit WHERE id = :id")
ALWAYS = 2**62  # microseconds: longer ago, and later, than anything

entry = reader(AuditEntry, at=moment, detail=decode)


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
    """What was done, newest first; `before` is the last id of the page before."""
    return tx.all(
        NEWEST,
        entry,
        who=who,
        any_who=int(who is None),
        what=what,
        any_what=int(what is None),
        subject=subject,
        any_subject=int(subject is None),
        age=ALWAYS if since is None else micros(duration(since, "since")),
        at=ALWAYS if before is None else _place(tx, before),
        before=before or "",
        limit=limit,
    )


def _place(tx: Transaction, entry_id: str) -> int:
    at = tx.first(PLACE, id=entry_id)
    if at is None:
        raise NotFoundError(f"there is no audit entry {entry_id}; old ones are forgotten after their time")
    return int(at)
