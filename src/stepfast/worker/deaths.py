"""A job that dies raises an alert, one per kind and error: noticed afterwards, not in the commit that buries it.

Dead letters are looked at in the order of their deaths, behind a bookmark. A death may be committed after a younger one,
so the last minutes before the bookmark are looked at again, and those that were counted are remembered for so long.
Jobs of a run raise none: their run does, once for all of them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from stepfast.clock import micros
from stepfast.database.statement import sql
from stepfast.outbox.alerts import alert, raise_alert

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

BOOKMARK: Final = "deaths"
OVERLAP: Final = timedelta(minutes=2)  # longer than any transaction of ours may last
OLDEST: Final = timedelta(days=1)  # what died before nobody was there to notice is history
BATCH: Final = 500

KNOWN = sql("SELECT 1 FROM stepfast_bookmark WHERE id = :id")
BEGIN = sql("INSERT INTO stepfast_bookmark (id, at) VALUES (:id, {now}) {keep_existing}")
WHERE = sql("SELECT at, {now} FROM stepfast_bookmark WHERE id = :id {skip_locked}")
MOVE = sql("UPDATE stepfast_bookmark SET at = :at WHERE id = :id AND at <> :at")

UNNOTICED = sql("""
    SELECT a.id, a.kind, COALESCE(a.error_group, ''), a.queue, COALESCE(a.last_error, ''), a.finished_at, a.trace
      FROM stepfast_archive a
     WHERE a.state = 'dead' AND a.finished_at > :since
       AND NOT EXISTS (SELECT 1 FROM stepfast_death d WHERE d.id = a.id AND d.finished_at = a.finished_at)
     ORDER BY a.finished_at LIMIT :limit
""")
RUNS = sql("SELECT id FROM stepfast_run WHERE id {any_of:ids}")
NOTICE = sql("INSERT INTO stepfast_death (id, finished_at) VALUES (:id, :finished_at) {keep_existing}")
FORGET = sql("DELETE FROM stepfast_death WHERE finished_at < :before")


@dataclass(frozen=True)
class Death:
    job_id: str
    kind: str
    error_group: str
    queue: str
    error: str
    finished_at: int
    trace: str | None

    @property
    def run_id(self) -> str | None:
        """The run to which it belongs, if it does: its trace has the same digits."""
        digits = (self.trace or "").split("-")[1:2]
        try:
            return str(UUID(digits[0])) if digits else None
        except ValueError:
            return None


@dataclass(frozen=True)
class Noticed:
    """How far somebody has looked, and what was found on the way."""

    since: int  # nothing before this instant will ever be unnoticed
    deaths: int
    more: bool


def notice(tx: Transaction) -> Noticed | None:
    """Raise alerts for deaths that nobody noticed yet; None if a colleague is at it."""
    if not tx.rows(KNOWN, id=BOOKMARK):
        tx.run(BEGIN, id=BOOKMARK)
    rows = tx.rows(WHERE, id=BOOKMARK)
    if not rows:
        return None
    bookmark, now = rows[0]
    since = max(bookmark, now - micros(OLDEST)) - micros(OVERLAP)
    found = tx.all(UNNOTICED, Death, since=since, limit=BATCH)
    for together in _by_cause(_without_runs(tx, found)):
        _raise(tx, together)
    tx.run_many(NOTICE, [{"id": it.job_id, "finished_at": it.finished_at} for it in found])
    at = now if len(found) < BATCH else max(bookmark, found[-1].finished_at)
    tx.run(MOVE, id=BOOKMARK, at=at)
    tx.run(FORGET, before=at - 2 * micros(OVERLAP))
    return Noticed(at - micros(OVERLAP), len(found), more=len(found) == BATCH)


def _without_runs(tx: Transaction, deaths: list[Death]) -> list[Death]:
    ids = sorted({it.run_id for it in deaths if it.run_id is not None})
    runs = {str(row[0]) for row in tx.rows(RUNS, ids=ids)} if ids else set()
    return [it for it in deaths if it.run_id not in runs]


def _by_cause(deaths: list[Death]) -> list[list[Death]]:
    """In the order of their causes: two who raise several lock them in one order."""
    groups: dict[tuple[str, str], list[Death]] = defaultdict(list)
    for it in deaths:
        groups[it.kind, it.error_group].append(it)
    return [groups[cause] for cause in sorted(groups)]


def _raise(tx: Transaction, deaths: list[Death]) -> None:
    last = deaths[-1]
    what = last.error.strip().partition("\n")[0][:500]
    body = (
        f"Job {last.job_id} of queue {last.queue} became a dead letter: {what or 'for no stated reason'}\n\n"
        f"Look at it:       stepfast jobs show {last.job_id}\n"
        f"See all of them:  stepfast dead-letters list --by-error\n"
        f"Try them again:   stepfast dead-letters retry --kind {last.kind}"
    )
    cause = f"job died: {last.kind}: {last.error_group}"
    raise_alert(tx, alert(cause, f"Job {last.kind} died", body, times=len(deaths)))
