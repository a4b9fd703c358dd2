"""The rows of a repricing: stones with what their price depends on, what they cost before, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast import Upsert
from stepfast.database.statement import sql
from stepfast.diamonds.behind import ALL, IN_SCOPE, Scope
from stepfast.diamonds.datasets import bump
from stepfast.diamonds.mapping import RejectedError
from stepfast.diamonds.money import THOUSANDTH, stored
from stepfast.diamonds.pricing import RATIO_GRAIN
from stepfast.diamonds.rules_rows import previous_version
from stepfast.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast import Transaction
    from stepfast.diamonds.rules import Quote, RuleSet

KEPT: Final = 5  # repricings that can be taken back
FORGOTTEN: Final = 2_000  # snapshots that a step forgets at most

_COLUMNS = """id, feed, ruleset_version, updated_at, supplier_stone_id, lab_grown, fancy_color, pricing_rating, rating, feed_price,
           price_model_price, markup_ratio, carats, table_pct, depth_pct, crown_angle, pavilion_angle, ratio, shape,
           color, clarity, cut, polish, symmetry, fluorescence_intensity, certificate_lab, girdle, culet_size"""
READ = sql(f"SELECT {_COLUMNS} FROM diamonds WHERE id > :after AND {IN_SCOPE} ORDER BY id LIMIT :limit")
READ_ALL = sql(
    f"SELECT {_COLUMNS} FROM diamonds WHERE deleted_at IS NULL AND id > :after ORDER BY id LIMIT :limit"
)
LOCK = sql("""
    SELECT id, ruleset_version, updated_at FROM diamonds
     WHERE id >= :first AND id <= :last AND ruleset_version <> :version
     ORDER BY id
    {for_update}
""")
CLOCK = sql("SELECT {now}")
# A stone that has a price again is as fresh as what the source said last, unless that was put into quarantine.
_FRESH = """stale_since = CASE WHEN stale_since IS NOT NULL AND EXISTS (
               SELECT 1 FROM stepfast_raw r
                WHERE r.feed = diamonds.feed AND r.item_id = diamonds.supplier_stone_id AND r.pending = 2
           ) THEN stale_since END"""
# Locked by the statement before them, and still as they were read.
CHANGE = sql(f"""
    UPDATE diamonds
       SET price_model_price = :price, markup_ratio = :ratio, pricing_rating = :pricing_rating, rating = :rating,
           ruleset_version = :version, updated_at = :changed_at, {_FRESH}
     WHERE id = :id AND ruleset_version = :before
""")
KEEP = sql(f"""
    UPDATE diamonds SET ruleset_version = :version, updated_at = {{now}}, {_FRESH}
     WHERE id = :id AND ruleset_version = :before
""")
UNPRICED = sql("""
    UPDATE diamonds SET ruleset_version = :version, updated_at = {now}, stale_since = COALESCE(stale_since, {now})
     WHERE id = :id AND ruleset_version = :before
""")
BEGIN = sql("""
    INSERT INTO repricings (id, job_id, from_version, to_version, state, started_at)
    VALUES (:id, :job_id, :from_version, :to_version, 'running', {now})
    {keep_existing}
""")
SUPERSEDE = sql("""
    UPDATE repricings SET state = 'superseded', ended_at = {now}
     WHERE job_id = :job_id AND id <> :id AND state = 'running'
""")
COUNT = sql("""
    UPDATE repricings SET looked_at = looked_at + :looked_at, changed = changed + :changed, unpriced = unpriced + :unpriced
     WHERE id = :id AND state = 'running'
""")
END = sql("UPDATE repricings SET state = 'completed', ended_at = {now} WHERE id = :id AND state = 'running'")
OLDEST = sql("SELECT min(repricing_id) FROM repricing_snapshots")
LAST_KEPT = sql("SELECT id FROM repricings ORDER BY id DESC LIMIT 1 OFFSET :kept")
OLD = sql("SELECT id FROM repricing_snapshots WHERE repricing_id = :id ORDER BY id LIMIT 1 OFFSET :most")
FORGET = sql("DELETE FROM repricing_snapshots WHERE repricing_id = :id AND id <= :until")


class Sold(msgspec.Struct, frozen=True):
    """A stone as it is sold now, with everything that a rule may ask for."""

    id: int
    feed: str
    ruleset_version: int
    updated_at: int
    supplier_stone_id: str
    lab_grown: bool
    fancy_color: str | None
    pricing_rating: int | None
    rating: int
    feed_price: Decimal
    price_model_price: Decimal
    markup_ratio: Decimal
    carats: Decimal
    table_pct: Decimal | None
    depth_pct: Decimal | None
    crown_angle: Decimal | None
    pavilion_angle: Decimal | None
    ratio: Decimal | None
    shape: str | None
    color: str | None
    clarity: str | None
    cut: str | None
    polish: str | None
    symmetry: str | None
    fluorescence_intensity: str | None
    certificate_lab: str | None
    girdle: str | None
    culet_size: str | None


def _sold(*row: Any) -> Sold:
    values = list(row)
    values[5] = bool(row[5])
    values[9:11] = [stored(it) for it in row[9:11]]
    values[11] = stored(row[11], RATIO_GRAIN)
    values[12:17] = [None if it is None else stored(it) for it in row[12:17]]
    values[17] = None if row[17] is None else stored(row[17], THOUSANDTH)
    return Sold(*values)


@dataclass(frozen=True)
class Batch:
    """Stones, and what they are to cost; None: no rule of the set is for it."""

    version: int
    quotes: Sequence[tuple[Sold, Quote | None]]

    @staticmethod
    def priced(rows: Sequence[Sold], rules: RuleSet) -> Batch:
        return Batch(rules.version, [(it, quoted(it, rules)) for it in rows])

    @property
    def changes(self) -> int:
        return sum(quote is not None and differs(it, quote) for it, quote in self.quotes)


def quoted(it: Sold, rules: RuleSet) -> Quote | None:
    try:
        return rules.quote(it)
    except RejectedError:
        return None


def differs(it: Sold, quote: Quote) -> bool:
    return (it.markup_ratio, it.price_model_price, it.pricing_rating, it.rating) != quote


def read_batch(tx: Transaction, version: int, after: int, limit: int, scope: Scope = ALL) -> list[Sold]:
    """The next stones that another set has priced."""
    return tx.all(READ, _sold, version=version, after=after, limit=limit, **scope.bounds)


def read_all(tx: Transaction, after: int, limit: int) -> list[Sold]:
    """The next stones that are there, whoever has priced them."""
    return tx.all(READ_ALL, _sold, after=after, limit=limit)


def begin(tx: Transaction, repricing_id: str, job_id: str, version: int) -> None:
    """It is there from its first batch on; of one job only the last is running."""
    before = previous_version(tx)
    tx.run(SUPERSEDE, job_id=job_id, id=repricing_id)
    tx.run(BEGIN, id=repricing_id, job_id=job_id, from_version=before, to_version=version)


def end(tx: Transaction, repricing_id: str, job_id: str) -> None:
    tx.run(SUPERSEDE, job_id=job_id, id=repricing_id)
    tx.run(END, id=repricing_id)


def write_batch(tx: Transaction, repricing_id: str, batch: Batch) -> None:
    """Change the stones that are still as they were read; the others wait for the next pass."""
    first, last = batch.quotes[0][0].id, batch.quotes[-1][0].id
    now = {row[0]: (row[1], row[2]) for row in tx.rows(LOCK, first=first, last=last, version=batch.version)}
    current = [(it, quote) for it, quote in batch.quotes if unchanged(it, now.get(it.id))]
    unpriced = [it for it, quote in current if quote is None]
    changed = [(it, quote) for it, quote in current if quote is not None and differs(it, quote)]
    same = [it for it, quote in current if quote is not None and not differs(it, quote)]
    stamp = {"changed_at": int(tx.first(CLOCK))}  # who writes them later leaves another one
    snapshots = [_snapshot(repricing_id, it, quote) | stamp for it, quote in changed]
    Upsert("repricing_snapshots", ("repricing_id", "id"), snapshots).apply(tx)
    tx.run_many(CHANGE, [_moved(it, batch.version) | _columns(quote) | stamp for it, quote in changed])
    tx.run_many(KEEP, [_moved(it, batch.version) for it in same])
    tx.run_many(UNPRICED, [_moved(it, batch.version) for it in unpriced])
    counted = {"looked_at": len(current), "changed": len(changed), "unpriced": len(unpriced)}
    if tx.run(COUNT, id=repricing_id, **counted) != 1:
        raise TransientError(
            f"repricing {repricing_id} was taken back or replaced meanwhile; look again", delay=0
        )
    for feed in sorted({it.feed for it, _ in changed}):
        bump(tx, feed)
    _forget(tx)


def unchanged(it: Sold, now: tuple[int, int] | None) -> bool:
    """Whether nobody has written it since it was read."""
    return now == (it.ruleset_version, it.updated_at)


def _snapshot(repricing_id: str, it: Sold, quote: Quote) -> dict[str, Any]:
    return {
        "repricing_id": repricing_id,
        "id": it.id,
        "old_version": it.ruleset_version,
        "old_price": str(it.price_model_price),
        "old_ratio": str(it.markup_ratio),
        "old_pricing_rating": it.pricing_rating,
        "old_rating": it.rating,
        "new_price": str(quote.price_model_price),
    }


def _moved(it: Sold, version: int) -> dict[str, Any]:
    return {"id": it.id, "before": it.ruleset_version, "version": version}


def _columns(quote: Quote) -> dict[str, Any]:
    return {
        "price": str(quote.price_model_price),
        "ratio": str(quote.markup_ratio),
        "pricing_rating": quote.pricing_rating,
        "rating": quote.rating,
    }


def _forget(tx: Transaction) -> None:
    """Snapshots of repricings that nobody will take back any more; a few with every batch."""
    oldest, last_kept = tx.first(OLDEST), tx.first(LAST_KEPT, kept=KEPT)
    if oldest is not None and last_kept is not None and oldest <= last_kept:
        until = tx.first(OLD, id=oldest, most=FORGOTTEN)
        tx.run(FORGET, id=oldest, until=2**62 if until is None else int(until))
