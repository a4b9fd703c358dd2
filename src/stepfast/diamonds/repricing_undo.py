"""A repricing is taken back: the rule set of before counts again, and the prices that it changed are restored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.diamonds.datasets import bump
from stepfast.diamonds.money import stored
from stepfast.diamonds.rules_rows import Activated, activate, active_version
from stepfast.errors import NotFoundError, StateError

if TYPE_CHECKING:
    from stepfast import Transaction

_FIND = """
    SELECT id, job_id, from_version, to_version, state, looked_at, changed, unpriced, started_at, ended_at
      FROM repricings
"""
FIND = sql(_FIND + " WHERE id = :id")
LIST = sql(_FIND + " ORDER BY started_at DESC, id DESC LIMIT :limit")
TAKE_BACK = sql(
    "UPDATE repricings SET state = 'reverting' WHERE id = :id AND state IN ('running', 'completed')"
)
TAKEN_BACK = sql(
    "UPDATE repricings SET state = 'reverted', ended_at = {now} WHERE id = :id AND state = 'reverting'"
)
TOTAL = sql("SELECT count(*) FROM repricing_snapshots WHERE repricing_id = :id")
READ = sql("""
    SELECT id, old_version, old_price, old_ratio, old_pricing_rating, old_rating, changed_at FROM repricing_snapshots
     WHERE repricing_id = :repricing_id AND id > :after
     ORDER BY id LIMIT :limit
""")
LOCK = sql("""
    SELECT id, updated_at, feed FROM diamonds
     WHERE id >= :first AND id <= :last AND ruleset_version = :version
     ORDER BY id
    {for_update}
""")
RESTORE = sql("""
    UPDATE diamonds
       SET price_model_price = :price, markup_ratio = :ratio, pricing_rating = :pricing_rating, rating = :rating,
           ruleset_version = :before, updated_at = {now}
     WHERE id = :id AND ruleset_version = :version
""")


@dataclass(frozen=True)
class RepricingReport:
    """A repricing as an operator sees it."""

    id: str
    job_id: str
    from_version: int | None
    to_version: int
    state: str  # running, completed, superseded, reverting, reverted
    looked_at: int
    changed: int
    unpriced: int
    started_at: datetime
    ended_at: datetime | None


class Snapshot(NamedTuple):
    """What a stone cost before, and when the repricing changed that."""

    id: int
    old_version: int
    old_price: Any
    old_ratio: Any
    old_pricing_rating: int | None
    old_rating: int
    changed_at: int


@dataclass(frozen=True)
class Restoring:
    """The next stones to restore."""

    repricing: RepricingReport
    snapshots: Sequence[Snapshot]


def undo(tx: Transaction, repricing_id: str) -> Activated:
    """Move the active set back; the job that restores the prices is asked for in the same transaction."""
    it = find_repricing(tx, repricing_id)
    if (active := active_version(tx)) != it.to_version:
        raise StateError(
            f"repricing {it.id} was by rule set {it.to_version}, but {active} is active by now; activate the set you "
            "want and reprice"
        )
    if it.from_version is None:
        raise StateError(f"repricing {it.id} was by the first rule set of all; there is none to go back to")
    moved = activate(tx, it.from_version)
    if tx.run(TAKE_BACK, id=it.id) != 1:
        raise StateError(
            f"repricing {it.id} is {it.state}; only one that is running or completed can be taken back"
        )
    return moved


def find_repricing(tx: Transaction, repricing_id: str) -> RepricingReport:
    rows = tx.all(FIND, _report, id=repricing_id)
    if not rows:
        raise NotFoundError(
            f"there is no repricing {repricing_id}; `stepfast diamonds rules repricings` shows them"
        )
    return rows[0]


def list_repricings(tx: Transaction, *, limit: int = 50) -> list[RepricingReport]:
    return tx.all(LIST, _report, limit=limit)


def snapshots_of(tx: Transaction, repricing_id: str) -> int:
    return int(tx.first(TOTAL, id=repricing_id))


def next_snapshots(tx: Transaction, repricing_id: str, after: int, limit: int) -> Restoring:
    it = find_repricing(tx, repricing_id)
    return Restoring(it, tx.all(READ, Snapshot, repricing_id=repricing_id, after=after, limit=limit))


def restore(tx: Transaction, it: Restoring) -> None:
    """Restore the stones that nobody has written since the repricing did."""
    version = it.repricing.to_version
    first, last = it.snapshots[0].id, it.snapshots[-1].id
    found = tx.rows(LOCK, first=first, last=last, version=version)
    now = {row[0]: (int(row[1]), str(row[2])) for row in found}
    same = [old for old in it.snapshots if old.id in now and unchanged(old, now[old.id][0])]
    tx.run_many(RESTORE, [_columns(old, version) for old in same])
    for feed in sorted({now[old.id][1] for old in same}):
        bump(tx, feed)


def unchanged(old: Snapshot, updated_at: int) -> bool:
    """Whether the repricing was the last to write the stone. An equal price proves nothing: its cut may be another."""
    return updated_at == old.changed_at


def taken_back(tx: Transaction, repricing_id: str) -> None:
    tx.run(TAKEN_BACK, id=repricing_id)


def _columns(old: Snapshot, version: int) -> dict[str, Any]:
    return {
        "id": old.id,
        "version": version,
        "before": old.old_version,
        "price": str(stored(old.old_price)),
        "ratio": str(old.old_ratio),
        "pricing_rating": old.old_pricing_rating,
        "rating": old.old_rating,
    }


def _report(*row: Any) -> RepricingReport:
    *facts, started_at, ended_at = row
    times = [moment(int(started_at)), None if ended_at is None else moment(int(ended_at))]
    return RepricingReport(*[*facts, *times])
