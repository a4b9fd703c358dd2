"""Runs that are killed while they sweep, map rows again, or replay quarantined rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepfast.admin import quarantine, sweeps
from stepfast.runs import raw_rows as remapping
from stepfast.runs import sweep as sweeping
from stepfast.runs import sweep_rows as gone
from stepfast.runs.feed import Sweep
from stepfast.runs.sweep_rows import is_held, sweep_state
from tests.crash.recorded_run import RunCase
from tests.support import rows
from tests.support.feeds import Catalogue, Confirming, Shop, target
from tests.support.run_facts import begin, check_counters, run_of
from tests.support.single_threaded_worker import SingleThreadedWorker

if TYPE_CHECKING:
    import pytest

    from stepfast import Stepfast
    from stepfast.runs.feed import Row
    from stepfast.runs.run import Run

ITEMS = 24
LOST = [3, 4, 11, 12, 13]  # a batch and a half
GONE_BEFORE = "d00020"
MOVING = "d00006"  # there, and on no page
REFUSED = ("d00001", "d00002", "d00010")
NAMELESS = "d00005"
SWEPT = ("catalogue.sweep", "UPDATE stepfast_run SET frontier")


@dataclass
class Mended(Shop):
    """A shop, and whether the feed that reads it has been mended."""

    mended: bool = False


class Doubling(Catalogue):
    """Its prices are twice what they were, once it is mended."""

    shop: Mended

    def map(self, item: Any, /) -> Row:
        row = super().map(item)
        return {**row, "price": row["price"] * 2} if self.shop.mended else row


class Fussy(Catalogue):
    """Takes some rows only after it is mended; of one it does not even see the name before."""

    shop: Mended
    error_budget = 1
    batch = 2
    chunk = 1

    def identify(self, item: Any, /) -> str:
        if item["id"] == NAMELESS and not self.shop.mended:
            return ""
        return super().identify(item)

    def map(self, item: Any, /) -> Row:
        if item["id"] in REFUSED and not self.shop.mended:
            raise ValueError("not that one")
        return super().map(item)


def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little things are done in several steps, as large ones are."""
    for module in (gone, sweeping):
        monkeypatch.setattr(module, "STRETCH", 9)
    for module in (gone, sweeping, sweeps, quarantine):
        monkeypatch.setattr(module, "BATCH", 3)
    monkeypatch.setattr(sweeping, "STRETCHES", 2)
    monkeypatch.setattr(remapping, "LOT", 10)


def mended_shop() -> Mended:
    shop = Mended()
    shop.items = Shop.with_items(ITEMS).items
    return shop


def swept_feed(**settings: Any) -> Any:
    return lambda shop: Catalogue(shop, sweep=Sweep(**settings))


def synced(app: Stepfast, **request: Any) -> Run:
    """A run, to its end, or until it waits for a person."""
    run = begin(app, **request)
    work_on(SingleThreadedWorker(app, "earlier"))
    return run_of(app, run.id)


def work_on(worker: SingleThreadedWorker) -> None:
    """Do whatever is ready."""
    while worker.step() is not None:
        pass


def lose(shop: Shop, numbers: Iterable[int] = tuple(LOST)) -> None:
    for number in numbers:
        shop.remove(f"d{number:05}")


def begin_after_a_loss(app: Stepfast, shop: Shop) -> Run:
    """Everything is in the target when the source loses some of it."""
    synced(app)
    lose(shop)
    return begin(app, kind="full")


def begin_after_a_strike(app: Stepfast, shop: Shop) -> Run:
    """Like `begin_after_a_loss`, after one strike; one more row was gone so long ago that it is forgotten."""
    synced(app)
    lose(shop)
    shop.remove(GONE_BEFORE)
    synced(app, kind="full")
    for text in (
        "UPDATE stepfast_raw SET gone_at = 1, strikes = 2 WHERE item_id = :id",
        "UPDATE item SET deleted_at = 1 WHERE id = :id",
    ):
        rows.change(app, text, id=GONE_BEFORE)
    return begin(app, kind="full")


def begin_after_a_strike_and_a_move(app: Stepfast, shop: Shop) -> Run:
    """Like `begin_after_a_strike`, and one of the missed rows still exists at the source."""
    synced(app)
    shop.hidden.add(MOVING)
    return begin_after_a_strike(app, shop)


def mend(app: Stepfast, shop: Shop) -> Run:
    """A run comes to its end; then the feed is mended."""
    assert isinstance(shop, Mended)
    run = synced(app)
    shop.mended = True
    return run


def begin_remap(app: Stepfast, shop: Shop) -> Run:
    mend(app, shop)
    return run_of(app, app.runs.remap("catalogue").id)


def begin_replay(app: Stepfast, shop: Shop) -> Run:
    run = mend(app, shop)
    assert app.operator.quarantine.replay() == len(REFUSED) + 1
    return run


def struck(app: Stepfast, run: Run, shop: Shop) -> None:
    """Each lost row has one strike, and none is gone."""
    check_swept(app, run, struck=len(LOST))
    assert rows.count(app, "stepfast_raw", "strikes = 1 AND gone_at IS NULL") == len(LOST)
    assert rows.count(app, "stepfast_raw", "strikes <> 0") == len(LOST)
    assert len(target(app)) == len(shop.prices()) + len(LOST)


def gone_now(app: Stepfast, run: Run, shop: Shop) -> None:
    check_swept(app, run, struck=len(LOST), gone=len(LOST))
    assert target(app) == shop.prices()
    assert rows.count(app, "stepfast_raw", "strikes = 2 AND gone_at IS NOT NULL") == len(LOST)
    assert rows.count(app, "stepfast_raw") == ITEMS - 1, "one is forgotten"
    assert rows.count(app, "item", "deleted_at IS NOT NULL") == len(LOST) + 1


def gone_unless_still_there(app: Stepfast, run: Run, shop: Shop) -> None:
    gone_now(app, run, shop)
    state = sweep_state(run_of(app, run.id))
    assert state is not None
    assert state.still_there == 1
    assert rows.count(app, "stepfast_raw", "strikes = 1 AND gone_at IS NULL") == 1


def held(app: Stepfast, run: Run, _: Shop) -> None:
    """No row has a strike, and one alert was raised."""
    found = run_of(app, run.id)
    assert is_held(found)
    assert (found.gone, found.watermark_after, found.reason) == (
        0,
        None,
        "5 of 24 rows would go (20.8%), more than 5.0%",
    )
    assert rows.count(app, "stepfast_alert") == 1
    assert len(target(app)) == ITEMS
    assert rows.count(app, "stepfast_raw", "strikes > 0 OR gone_at IS NOT NULL") == 0
    assert [it["state"] for it in rows.query(app, "SELECT state FROM stepfast_job")] == ["scheduled"]


def check_swept(app: Stepfast, run: Run, *, struck: int, gone: int = 0) -> None:
    found = run_of(app, run.id)
    state = sweep_state(found)
    assert state is not None
    assert (found.state, found.gone, state.phase, state.struck) == ("completed", gone, "done", struck)
    assert found.watermark_after == run.window_to
    assert not rows.count(app, "stepfast_job")
    check_counters(app, run.id)


def remapped(app: Stepfast, run: Run, shop: Shop) -> None:
    found = run_of(app, run.id)
    assert (found.state, found.seen, found.applied, found.partitions) == ("completed", ITEMS, ITEMS, 0)
    assert found.watermark_after is None
    assert target(app) == {name: price * 2 for name, price in shop.prices().items()}
    assert not rows.count(app, "stepfast_raw", "pending <> 0")
    assert not rows.count(app, "stepfast_job")


def replayed(app: Stepfast, _: Run, shop: Shop) -> None:
    assert target(app) == shop.prices()
    entries = rows.query(app, "SELECT state FROM stepfast_quarantine")
    assert [it["state"] for it in entries] == ["replayed"] * (len(REFUSED) + 1)
    assert not rows.count(app, "stepfast_raw", "pending <> 0")
    assert rows.count(app, "stepfast_raw") == ITEMS
    assert not rows.count(app, "stepfast_job")


def of_items() -> Shop:
    return Shop.with_items(ITEMS)


CASES = {
    it.name: it
    for it in [
        RunCase(
            "first strike",
            swept_feed(fuse=0.5),
            of_items,
            begin_after_a_loss,
            struck,
            about=SWEPT,
        ),
        RunCase(
            "second strike",
            swept_feed(fuse=0.5, keep="1d"),
            of_items,
            begin_after_a_strike,
            gone_now,
            about=("SET strikes = strikes + 1", "DELETE FROM stepfast_raw"),
        ),
        RunCase(
            "second strike, asked",
            lambda shop: Confirming(shop, sweep=Sweep(fuse=0.5, keep="1d"), confirm_lot=2),
            of_items,
            begin_after_a_strike_and_a_move,
            gone_unless_still_there,
            about=("SELECT item_id, strikes FROM stepfast_raw",),
        ),
        RunCase(
            "fuse",
            swept_feed(strikes=1, fuse=0.05),
            of_items,
            begin_after_a_loss,
            held,
            about=("stepfast_alert",),
            recover=work_on,
        ),
        RunCase(
            "remap",
            Doubling,
            mended_shop,
            begin_remap,
            remapped,
            about=("UPDATE stepfast_raw SET pending = 1, applied_hash = NULL",),
        ),
        RunCase("replay", Fussy, mended_shop, begin_replay, replayed, about=("catalogue.replay",)),
    ]
}
