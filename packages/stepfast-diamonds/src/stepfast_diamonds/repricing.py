"""Repricing: a job of many short steps gives stones that another rule set priced the prices of the active one.

Each step takes the next thousand, works out their prices, and in its commit changes those that are unchanged since they
were read, after it has kept their old prices in snapshots. The job ends when no stone is behind; what a run that began
with an older set writes in the meantime is taken in another pass. If another set becomes active, it goes on with that
one. An operator asks for it, or a run that ends under newer rules than it began with: then for what that run wrote.

A repricing can be undone (the snapshots are restored), and tried before (`dry_run`, which writes nothing).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from stepfast import Continue, Done, Step, Upsert, sql
from stepfast.applications import moment
from stepfast.errors import NotFoundError, StateError, TransientError
from stepfast_diamonds.datasets import bump_version
from stepfast_diamonds.mapping import RejectedError
from stepfast_diamonds.money import THOUSANDTH, rounded, stored
from stepfast_diamonds.pricing import RATIO_GRAIN
from stepfast_diamonds.rule_sets import (
    Activated,
    activate,
    active_version,
    previous_version,
    rules_or_active,
    version_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import EnqueuedJob, Job, Stepfast, Transaction
    from stepfast_diamonds.rules import Quote, RuleSet


# Stones behind: priced by another rule set than the active one.

NEWEST: Final = 2_147_483_647  # a version that there will never be
COUNT_BEHIND = sql("SELECT count(*) FROM diamonds WHERE ruleset_version <> :version")
LOWEST_AND_HIGHEST_VERSION = sql("SELECT min(ruleset_version), max(ruleset_version) FROM diamonds")
IN_SCOPE: Final = """ruleset_version <> :version AND ruleset_version >= :oldest AND ruleset_version <= :newest
       AND updated_at >= :since AND (feed = :feed OR :feed = '')"""
COUNT_BEHIND_IN_SCOPE = sql(f"SELECT count(*) FROM diamonds WHERE {IN_SCOPE}")
ANY_BEHIND_IN_SCOPE = sql(f"SELECT 1 FROM diamonds WHERE {IN_SCOPE} LIMIT 1")


@dataclass(frozen=True)
class RepricingScope:
    """Which stones behind are meant: those that this set has priced, for this feed, since then. None: any."""

    version: int | None = None
    feed: str | None = None
    since: int = 0

    @property
    def bounds(self) -> dict[str, Any]:
        """The parameters of `IN_SCOPE`."""
        return {
            "oldest": self.version or 0,
            "newest": self.version or NEWEST,
            "feed": self.feed or "",
            "since": self.since,
        }


ALL_STONES: Final = RepricingScope()


def left_behind(tx: Transaction, version: int, scope: RepricingScope = ALL_STONES) -> int:
    """How many stones of the scope are priced by another set than this."""
    if scope == ALL_STONES:
        return int(tx.first(COUNT_BEHIND, version=version))
    return int(tx.first(COUNT_BEHIND_IN_SCOPE, version=version, **scope.bounds))


def any_behind(tx: Transaction, version: int, scope: RepricingScope = ALL_STONES) -> bool:
    """Whether a stone of the scope is behind. For all stones, the two ends of an index tell."""
    if scope != ALL_STONES:
        return tx.first(ANY_BEHIND_IN_SCOPE, version=version, **scope.bounds) is not None
    low, high = tx.rows(LOWEST_AND_HIGHEST_VERSION)[0]
    return low is not None and (int(low), int(high)) != (version, version)


KEY: Final = "diamonds.reprice"  # one at a time about all stones
BATCH: Final = 1_000
LONGEST_REST: Final = 60  # seconds between two passes, while a run still writes old prices


class RepricingCursor(msgspec.Struct, frozen=True):
    """Where a repricing stands: its cursor."""

    version: int
    number: int = 0  # how many sets this job has priced by
    after: int = 0
    passes: int = 0
    total: int = 0
    looked_at: int = 0
    changed: int = 0

    def name(self, job_id: str) -> str:
        return f"{job_id}.{self.number}"


class Repricing:
    """The two jobs, on an application: `reprice` and `revert`."""

    def __init__(self, app: Stepfast, *, queue: str = "default") -> None:
        self.app = app
        self._known: dict[int, RuleSet] = {}

        def reprice(
            step: Step, of_version: int | None = None, feed: str | None = None, since: int = 0
        ) -> Done | Continue:
            return self._reprice(step, RepricingScope(of_version, feed, since))

        def revert(step: Step, repricing_id: str) -> Done | Continue:
            return self._revert(step, repricing_id)

        self.reprice: Job[..., Any] = app.job(name="diamonds.reprice", queue=queue)(reprice)
        self.revert: Job[..., Any] = app.job(name="diamonds.revert", queue=queue)(revert)

    def ask(self, tx: Transaction | None = None, scope: RepricingScope = ALL_STONES) -> EnqueuedJob[Any]:
        """Enqueue a repricing of all stones, or of some, unless one of this scope is unfinished."""
        if scope == ALL_STONES:
            return self.reprice.enqueue(tx=tx, key=KEY, on_duplicate="skip")
        return self.reprice.enqueue(
            tx=tx,
            key=f"{KEY}:{scope.version}:{scope.feed}:{scope.since}",
            on_duplicate="skip",
            of_version=scope.version,
            feed=scope.feed,
            since=scope.since,
        )

    def take_back(self, tx: Transaction, repricing_id: str) -> EnqueuedJob[Any]:
        """Enqueue the job that restores the prices; `undo_repricing` has moved the active set back."""
        return self.revert.enqueue(tx=tx, key=f"diamonds.revert:{repricing_id}", repricing_id=repricing_id)

    def _rules(self, version: int) -> RuleSet:
        if version not in self._known:
            with self.app.reading() as tx:
                rules = rules_or_active(tx, version)
            if rules.version != version:
                raise TransientError(
                    "another rule set is active by now; the batch is priced by that one", delay=0
                )
            self._known[version] = rules
        return self._known[version]

    def _reprice(self, step: Step, scope: RepricingScope) -> Done | Continue:
        with self.app.reading() as tx:
            at = self._at(tx, step)
            if at.after == 0 and at.passes == 0:
                at = msgspec.structs.replace(at, total=left_behind(tx, at.version, scope))
            rows = read_batch(tx, at.version, at.after, BATCH, scope)
        if not rows:
            return self._next_pass(step, at, scope)
        batch = Batch.priced(rows, self._rules(at.version))
        further = msgspec.structs.replace(
            at,
            after=rows[-1].id,
            looked_at=at.looked_at + len(rows),
            changed=at.changed + batch.changes,
        )
        done = further.looked_at / max(further.total, further.looked_at)
        step.progress(
            min(99, 100 * done), f"{further.looked_at:,} of {further.total:,}, {further.changed:,} changed"
        )
        return Continue(further, effects=[RepriceBatch(step.job_id, at, batch)])

    def _at(self, tx: Transaction, step: Step) -> RepricingCursor:
        """Where this step begins: behind the last one, or anew if another set is active by now."""
        version = version_of(tx, None) or rules_or_active(tx, 0).version
        if step.cursor is None:
            return RepricingCursor(version)
        at = msgspec.convert(step.cursor, RepricingCursor)
        return at if at.version == version else RepricingCursor(version, at.number + 1)

    def _next_pass(self, step: Step, at: RepricingCursor, scope: RepricingScope) -> Done | Continue:
        with self.app.reading() as tx:
            over = not any_behind(tx, at.version, scope)
        if over:
            result = {"version": at.version, "looked_at": at.looked_at, "changed": at.changed}
            return Done(result, effects=[EndRepricing(step.job_id, at)])
        further = msgspec.structs.replace(at, after=0, passes=at.passes + 1)
        return Continue(further, delay=0 if at.after else min(LONGEST_REST, 2**at.passes))

    def _revert(self, step: Step, repricing_id: str) -> Done | Continue:
        at = step.cursor or {"after": 0, "done": 0}
        with self.app.reading() as tx:
            total = at.get("total") or snapshots_of(tx, repricing_id)
            batch = next_snapshots(tx, repricing_id, at["after"], BATCH)
        if not batch.snapshots:
            return Done({"looked_at": at["done"]}, effects=[lambda tx: self._restored(tx, repricing_id)])
        done = at["done"] + len(batch.snapshots)
        step.progress(min(99, 100 * done / max(total, done)), f"{done:,} of {total:,} looked at")
        further = {"after": batch.snapshots[-1].id, "done": done, "total": total}
        return Continue(further, effects=[lambda tx: restore_batch(tx, batch)])

    def _restored(self, tx: Transaction, repricing_id: str) -> None:
        """End the undo. Stones that the undone set has priced since are priced anew."""
        end_taking_back(tx, repricing_id)
        scope = RepricingScope(find_repricing(tx, repricing_id).to_version)
        if any_behind(tx, active_version(tx), scope):
            self.ask(tx, scope)


@dataclass(frozen=True)
class RepriceBatch:
    """The effect of a step: one batch is written."""

    job_id: str
    at: RepricingCursor
    batch: Batch

    def apply(self, tx: Transaction, /) -> None:
        name = self.at.name(self.job_id)
        begin_repricing(tx, name, self.job_id, self.at.version)
        write_batch(tx, name, self.batch)


@dataclass(frozen=True)
class EndRepricing:
    """The effect of the last step: no stone is behind."""

    job_id: str
    at: RepricingCursor

    def apply(self, tx: Transaction, /) -> None:
        end_repricing(tx, self.at.name(self.job_id), self.job_id)


# The rows of a repricing: stones with what their price depends on, their old prices, and how far it is.

KEPT_REPRICINGS: Final = 5  # repricings that can be taken back
FORGOTTEN_AT_ONCE: Final = 2_000  # snapshots that a step forgets at most
_COLUMNS = """id, feed, ruleset_version, updated_at, supplier_stone_id, lab_grown, fancy_color, pricing_rating, rating, feed_price,
           price_model_price, markup_ratio, carats, table_pct, depth_pct, crown_angle, pavilion_angle, ratio, shape,
           color, clarity, cut, polish, symmetry, fluorescence_intensity, certificate_lab, girdle, culet_size"""
READ_STONES_BEHIND = sql(
    f"SELECT {_COLUMNS} FROM diamonds WHERE id > :after AND {IN_SCOPE} ORDER BY id LIMIT :limit"
)
READ_ALL_STONES = sql(
    f"SELECT {_COLUMNS} FROM diamonds WHERE deleted_at IS NULL AND id > :after ORDER BY id LIMIT :limit"
)
LOCK_STONES = sql("""
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
REPRICE_STONE = sql(f"""
    UPDATE diamonds
       SET price_model_price = :price, markup_ratio = :ratio, pricing_rating = :pricing_rating, rating = :rating,
           ruleset_version = :version, updated_at = :changed_at, {_FRESH}
     WHERE id = :id AND ruleset_version = :before
""")
KEEP_PRICE = sql(f"""
    UPDATE diamonds SET ruleset_version = :version, updated_at = {{now}}, {_FRESH}
     WHERE id = :id AND ruleset_version = :before
""")
MARK_UNPRICED = sql("""
    UPDATE diamonds SET ruleset_version = :version, updated_at = {now}, stale_since = COALESCE(stale_since, {now})
     WHERE id = :id AND ruleset_version = :before
""")
BEGIN_REPRICING = sql("""
    INSERT INTO repricings (id, job_id, from_version, to_version, state, started_at)
    VALUES (:id, :job_id, :from_version, :to_version, 'running', {now})
    {keep_existing}
""")
SUPERSEDE_REPRICINGS = sql("""
    UPDATE repricings SET state = 'superseded', ended_at = {now}
     WHERE job_id = :job_id AND id <> :id AND state = 'running'
""")
COUNT_REPRICED = sql("""
    UPDATE repricings SET looked_at = looked_at + :looked_at, changed = changed + :changed, unpriced = unpriced + :unpriced
     WHERE id = :id AND state = 'running'
""")
END_REPRICING = sql(
    "UPDATE repricings SET state = 'completed', ended_at = {now} WHERE id = :id AND state = 'running'"
)
OLDEST_SNAPSHOTS = sql("SELECT min(repricing_id) FROM repricing_snapshots")
LAST_KEPT_REPRICING = sql("SELECT id FROM repricings ORDER BY id DESC LIMIT 1 OFFSET :kept")
LAST_SNAPSHOT_TO_FORGET = sql(
    "SELECT id FROM repricing_snapshots WHERE repricing_id = :id ORDER BY id LIMIT 1 OFFSET :most"
)
FORGET_SNAPSHOTS = sql("DELETE FROM repricing_snapshots WHERE repricing_id = :id AND id <= :until")


class PricedStone(msgspec.Struct, frozen=True):
    """A stone with its present price and everything that a rule may ask for."""

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


def _priced_stone(*row: Any) -> PricedStone:
    values = list(row)
    values[5] = bool(row[5])
    values[9:11] = [stored(it) for it in row[9:11]]
    values[11] = stored(row[11], RATIO_GRAIN)
    values[12:17] = [None if it is None else stored(it) for it in row[12:17]]
    values[17] = None if row[17] is None else stored(row[17], THOUSANDTH)
    return PricedStone(*values)


@dataclass(frozen=True)
class Batch:
    """Stones and their new prices; None: no rule of the set applies."""

    version: int
    quotes: Sequence[tuple[PricedStone, Quote | None]]

    @staticmethod
    def priced(rows: Sequence[PricedStone], rules: RuleSet) -> Batch:
        return Batch(rules.version, [(it, quoted(it, rules)) for it in rows])

    @property
    def changes(self) -> int:
        return sum(quote is not None and differs(it, quote) for it, quote in self.quotes)


def quoted(it: PricedStone, rules: RuleSet) -> Quote | None:
    try:
        return rules.quote(it)
    except RejectedError:
        return None


def differs(it: PricedStone, quote: Quote) -> bool:
    return (it.markup_ratio, it.price_model_price, it.pricing_rating, it.rating) != quote


def read_batch(
    tx: Transaction, version: int, after: int, limit: int, scope: RepricingScope = ALL_STONES
) -> list[PricedStone]:
    """The next stones that another set has priced."""
    return tx.all(
        READ_STONES_BEHIND, _priced_stone, version=version, after=after, limit=limit, **scope.bounds
    )


def read_all(tx: Transaction, after: int, limit: int) -> list[PricedStone]:
    """The next stones that are not deleted, by whatever set they are priced."""
    return tx.all(READ_ALL_STONES, _priced_stone, after=after, limit=limit)


def begin_repricing(tx: Transaction, repricing_id: str, job_id: str, version: int) -> None:
    """Write the row of a repricing with its first batch; of one job only the last is running."""
    before = previous_version(tx)
    tx.run(SUPERSEDE_REPRICINGS, job_id=job_id, id=repricing_id)
    tx.run(BEGIN_REPRICING, id=repricing_id, job_id=job_id, from_version=before, to_version=version)


def end_repricing(tx: Transaction, repricing_id: str, job_id: str) -> None:
    tx.run(SUPERSEDE_REPRICINGS, job_id=job_id, id=repricing_id)
    tx.run(END_REPRICING, id=repricing_id)


def write_batch(tx: Transaction, repricing_id: str, batch: Batch) -> None:
    """Change the stones that are still as they were read; the others wait for the next pass."""
    first, last = batch.quotes[0][0].id, batch.quotes[-1][0].id
    now = {
        row[0]: (row[1], row[2])
        for row in tx.rows(LOCK_STONES, first=first, last=last, version=batch.version)
    }
    current = [(it, quote) for it, quote in batch.quotes if is_unchanged(it, now.get(it.id))]
    unpriced = [it for it, quote in current if quote is None]
    changed = [(it, quote) for it, quote in current if quote is not None and differs(it, quote)]
    same = [it for it, quote in current if quote is not None and not differs(it, quote)]
    stamp = {"changed_at": int(tx.first(CLOCK))}  # a later write leaves another one
    snapshots = [_snapshot(repricing_id, it, quote) | stamp for it, quote in changed]
    Upsert("repricing_snapshots", ("repricing_id", "id"), snapshots).apply(tx)
    tx.run_many(REPRICE_STONE, [_moved(it, batch.version) | _columns(quote) | stamp for it, quote in changed])
    tx.run_many(KEEP_PRICE, [_moved(it, batch.version) for it in same])
    tx.run_many(MARK_UNPRICED, [_moved(it, batch.version) for it in unpriced])
    counted = {"looked_at": len(current), "changed": len(changed), "unpriced": len(unpriced)}
    if tx.run(COUNT_REPRICED, id=repricing_id, **counted) != 1:
        raise TransientError(
            f"repricing {repricing_id} was taken back or replaced meanwhile; look again", delay=0
        )
    for feed in sorted({it.feed for it, _ in changed}):
        bump_version(tx, feed)
    _forget(tx)


def is_unchanged(it: PricedStone, now: tuple[int, int] | None) -> bool:
    """Whether the stone was not written since it was read."""
    return now == (it.ruleset_version, it.updated_at)


def _snapshot(repricing_id: str, it: PricedStone, quote: Quote) -> dict[str, Any]:
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


def _moved(it: PricedStone, version: int) -> dict[str, Any]:
    return {"id": it.id, "before": it.ruleset_version, "version": version}


def _columns(quote: Quote) -> dict[str, Any]:
    return {
        "price": str(quote.price_model_price),
        "ratio": str(quote.markup_ratio),
        "pricing_rating": quote.pricing_rating,
        "rating": quote.rating,
    }


def _forget(tx: Transaction) -> None:
    """Delete snapshots of repricings that can no longer be undone; a few with every batch."""
    oldest, last_kept = tx.first(OLDEST_SNAPSHOTS), tx.first(LAST_KEPT_REPRICING, kept=KEPT_REPRICINGS)
    if oldest is not None and last_kept is not None and oldest <= last_kept:
        until = tx.first(LAST_SNAPSHOT_TO_FORGET, id=oldest, most=FORGOTTEN_AT_ONCE)
        tx.run(FORGET_SNAPSHOTS, id=oldest, until=2**62 if until is None else int(until))


# Undo a repricing: the rule set before it is active again, and the prices that it changed are restored.

_FIND = """
    SELECT id, job_id, from_version, to_version, state, looked_at, changed, unpriced, started_at, ended_at
      FROM repricings
"""
FIND_REPRICING = sql(_FIND + " WHERE id = :id")
LIST_REPRICINGS = sql(_FIND + " ORDER BY started_at DESC, id DESC LIMIT :limit")
TAKE_REPRICING_BACK = sql(
    "UPDATE repricings SET state = 'reverting' WHERE id = :id AND state IN ('running', 'completed')"
)
END_TAKING_BACK = sql(
    "UPDATE repricings SET state = 'reverted', ended_at = {now} WHERE id = :id AND state = 'reverting'"
)
COUNT_SNAPSHOTS = sql("SELECT count(*) FROM repricing_snapshots WHERE repricing_id = :id")
READ_SNAPSHOTS = sql("""
    SELECT id, old_version, old_price, old_ratio, old_pricing_rating, old_rating, changed_at FROM repricing_snapshots
     WHERE repricing_id = :repricing_id AND id > :after
     ORDER BY id LIMIT :limit
""")
LOCK_REPRICED_STONES = sql("""
    SELECT id, updated_at, feed FROM diamonds
     WHERE id >= :first AND id <= :last AND ruleset_version = :version
     ORDER BY id
    {for_update}
""")
RESTORE_STONE = sql("""
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
    """The price of a stone before a repricing, and when that changed it."""

    id: int
    old_version: int
    old_price: Any
    old_ratio: Any
    old_pricing_rating: int | None
    old_rating: int
    changed_at: int


@dataclass(frozen=True)
class SnapshotBatch:
    """The next stones to restore."""

    repricing: RepricingReport
    snapshots: Sequence[Snapshot]


def undo_repricing(tx: Transaction, repricing_id: str) -> Activated:
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
    if tx.run(TAKE_REPRICING_BACK, id=it.id) != 1:
        raise StateError(
            f"repricing {it.id} is {it.state}; only one that is running or completed can be taken back"
        )
    return moved


def find_repricing(tx: Transaction, repricing_id: str) -> RepricingReport:
    rows = tx.all(FIND_REPRICING, _report, id=repricing_id)
    if not rows:
        raise NotFoundError(
            f"there is no repricing {repricing_id}; `stepfast diamonds rules repricings` shows them"
        )
    return rows[0]


def list_repricings(tx: Transaction, *, limit: int = 50) -> list[RepricingReport]:
    return tx.all(LIST_REPRICINGS, _report, limit=limit)


def _report(*row: Any) -> RepricingReport:
    *facts, started_at, ended_at = row
    times = [moment(int(started_at)), None if ended_at is None else moment(int(ended_at))]
    return RepricingReport(*[*facts, *times])


def snapshots_of(tx: Transaction, repricing_id: str) -> int:
    return int(tx.first(COUNT_SNAPSHOTS, id=repricing_id))


def next_snapshots(tx: Transaction, repricing_id: str, after: int, limit: int) -> SnapshotBatch:
    it = find_repricing(tx, repricing_id)
    return SnapshotBatch(
        it, tx.all(READ_SNAPSHOTS, Snapshot, repricing_id=repricing_id, after=after, limit=limit)
    )


def restore_batch(tx: Transaction, it: SnapshotBatch) -> None:
    """Restore the stones that were not written since the repricing."""
    version = it.repricing.to_version
    first, last = it.snapshots[0].id, it.snapshots[-1].id
    found = tx.rows(LOCK_REPRICED_STONES, first=first, last=last, version=version)
    now = {row[0]: (int(row[1]), str(row[2])) for row in found}
    same = [old for old in it.snapshots if old.id in now and was_last_to_write(old, now[old.id][0])]
    tx.run_many(RESTORE_STONE, [_restored_columns(old, version) for old in same])
    for feed in sorted({now[old.id][1] for old in same}):
        bump_version(tx, feed)


def was_last_to_write(old: Snapshot, updated_at: int) -> bool:
    """Whether the repricing was the last to write the stone. An equal price proves nothing: its cut may be another."""
    return updated_at == old.changed_at


def _restored_columns(old: Snapshot, version: int) -> dict[str, Any]:
    return {
        "id": old.id,
        "version": version,
        "before": old.old_version,
        "price": str(stored(old.old_price)),
        "ratio": str(old.old_ratio),
        "pricing_rating": old.old_pricing_rating,
        "rating": old.old_rating,
    }


def end_taking_back(tx: Transaction, repricing_id: str) -> None:
    tx.run(END_TAKING_BACK, id=repricing_id)


# What a rule set would change, before it is activated. Looks at every stone, and writes nothing.

DRY_RUN_BATCH: Final = 5_000
NOTHING: Final = Decimal("0.00")


class PriceChange(NamedTuple):
    """A stone whose price would change."""

    feed: str
    supplier_stone_id: str
    feed_price: Decimal
    before: Decimal
    after: Decimal

    @property
    def percent(self) -> Decimal:
        return rounded((self.after - self.before) / self.before * 100)


@dataclass
class DryRun:
    """Counts and sums over all stones that are not deleted."""

    version: int
    stones: int = 0
    dearer: int = 0
    cheaper: int = 0
    rated_anew: int = 0
    unpriced: int = 0  # no rule of the set is for them
    before: Decimal = NOTHING  # the sum of all prices
    after: Decimal = NOTHING
    examples: tuple[PriceChange, ...] = ()  # those that change most, relatively

    @property
    def changed(self) -> int:
        return self.dearer + self.cheaper

    def add(self, it: PricedStone, quote: Quote | None) -> PriceChange | None:
        self.stones += 1
        self.before += it.price_model_price
        if quote is None:
            self.unpriced += 1
            self.after += it.price_model_price
            return None
        self.after += quote.price_model_price
        self.rated_anew += quote.rating != it.rating
        self.dearer += quote.price_model_price > it.price_model_price
        self.cheaper += quote.price_model_price < it.price_model_price
        if quote.price_model_price == it.price_model_price:
            return None
        return PriceChange(
            it.feed, it.supplier_stone_id, it.feed_price, it.price_model_price, quote.price_model_price
        )


def dry_run(
    tx: Transaction, rules: RuleSet, *, examples: int = 5, told: Callable[[int], None] = lambda _: None
) -> DryRun:
    """Price all stones by `rules`; `told` is called with how many are done."""
    found = DryRun(rules.version)
    after = 0
    while rows := read_all(tx, after, DRY_RUN_BATCH):
        changed = filter(None, [found.add(it, quoted(it, rules)) for it in rows])
        found.examples = tuple(
            nlargest(
                examples, (*found.examples, *changed), key=lambda it: (abs(it.percent), it.supplier_stone_id)
            )
        )
        after = rows[-1].id
        told(found.stones)
    return found
