"""A run is started once, with a fixed window and the job that plans it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.clock import instant, moment
from stepfast.errors import ConfigurationError, OutageError, StateError, StepfastError
from stepfast.runs import start
from stepfast.runs.feed import Page
from stepfast.runs.partitioning.partitioners import Fixed
from stepfast.testing import crash_at, drain
from tests.support import rows
from tests.support.engine import together
from tests.support.events import hearing, named
from tests.support.feeds import Catalogue, Shop, prepare, price_ranges, target
from tests.support.run_facts import begin, check_complete, raw, run_of

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.run import Run
    from stepfast.runs.window import Window

SETTLE = timedelta(seconds=120)
ONE = Fixed(price_ranges())


def reading(
    app: Stepfast, shop: Shop | None = None, feed: type[Catalogue] = Catalogue, **settings: Any
) -> Shop:
    """An application with a catalogue."""
    shop = shop or Shop.with_items(40)
    app.feed(feed(shop, **settings))
    prepare(app)
    return shop


def tick(app: Stepfast, feed: str = "catalogue") -> None:
    """What its schedule does."""
    rows.change(
        app,
        "INSERT INTO stepfast_job (id, kind, payload) VALUES (:id, :kind, '{}')",
        id=f"tick-{rows.now(app)}",
        kind=f"{feed}.start",
    )


# One at a time


def test_t15_cron_and_a_person_who_start_at_the_same_time_get_one_run(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    """(T15, F11, F12)"""
    shop = reading(app)
    other = another_app()
    other.feed(Catalogue(shop))

    found = together([lambda: begin(app), lambda: begin(other)])

    started = [it for it in found if not isinstance(it, Exception)]
    (refused,) = [it for it in found if isinstance(it, Exception)]
    assert isinstance(refused, StateError)
    assert f"feed catalogue has an active run {started[0].id} (planning)" in str(refused)
    assert rows.count(app, "stepfast_run") == rows.count(app, "stepfast_job") == 1


def test_t15_a_tick_while_a_run_is_active_has_nothing_to_do(app: Stepfast) -> None:
    """(T15, F12)"""
    shop = reading(app)
    run = begin(app)

    tick(app)
    drain(app)

    assert rows.count(app, "stepfast_run") == 1
    check_complete(app, run.id, shop)


def test_a_tick_that_fails_is_not_taken_for_an_active_run(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error says what it is; it is not guessed to mean that a run is there already. (F46)"""
    reading(app)

    def broken(*_: object) -> None:
        raise ConfigurationError("no such column")

    monkeypatch.setattr(start, "start_run", broken)
    tick(app)
    report = drain(app, raise_errors=False)

    assert report.of("catalogue.start").failed == 1
    assert "no such column" in str(report.errors[0])


def test_the_next_run_may_start_when_the_last_one_has_ended(app: Stepfast) -> None:
    reading(app)
    first = begin(app)
    drain(app)

    second = begin(app)

    assert (first.kind, second.kind) == ("full", "incremental")
    assert run_of(app, first.id).state == "completed"


def test_a_backfill_runs_beside_an_active_run_and_moves_nothing(app: Stepfast) -> None:
    shop = reading(app)
    drain_until_completed(app)
    watermark = rows.query(app, "SELECT watermark FROM stepfast_feed")[0]["watermark"]

    active = begin(app)
    backfill = begin(app, kind="backfill", from_=datetime(2026, 1, 1, tzinfo=UTC))
    drain(app)

    assert {run_of(app, it.id).state for it in (active, backfill)} == {"completed"}
    assert run_of(app, backfill.id).watermark_after is None
    assert run_of(app, active.id).watermark_after >= watermark
    assert target(app) == shop.prices()


def test_only_a_backfill_has_a_window_of_its_own(app: Stepfast) -> None:
    reading(app)

    with pytest.raises(ConfigurationError, match="only a backfill has a window of its own"):
        begin(app, from_=datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(ConfigurationError, match="a run of 0 rows reads nothing"):
        begin(app, most_rows=0)


@pytest.mark.parametrize(("point", "there"), [("before commit", 0), ("after commit", 1)])
def test_a_run_without_the_job_that_plans_it_cannot_be(app: Stepfast, point: str, there: int) -> None:
    """(F27, F41)"""
    reading(app)

    with crash_at(app, point):
        begin(app)

    assert (rows.count(app, "stepfast_run"), rows.count(app, "stepfast_job")) == (there, there)


def test_feeds_that_call_their_items_alike_share_nothing(app: Stepfast) -> None:
    """Rows are those of a feed, whichever run reads them. (F12, F32)"""
    one, other = Shop.with_items(12), Shop.with_items(12, highest=500)
    app.feed(Catalogue(one, name="one"))
    app.feed(Catalogue(other, name="other", table="item"))
    prepare(app)

    runs = [begin(app, "one"), begin(app, "other")]
    drain(app)

    assert raw(app, "one") == one.prices()
    assert raw(app, "other") == other.prices()
    assert [run_of(app, it.id).seen for it in runs] == [12 + on_bounds(it) for it in (one, other)]


# Its window


class Recording(Catalogue):
    """Notes the window of every request, and has a clock of its own."""

    windows: list[Window]
    ahead = timedelta(0)

    async def count(self, part: Range, window: Window, /) -> int:
        self.windows.append(window)
        return await super().count(part, window)

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        self.windows.append(window)
        return await super().fetch(part, window, cursor)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@pytest.mark.parametrize("ahead", [timedelta(seconds=-90), timedelta(0), timedelta(seconds=90)], ids=str)
def test_every_request_of_a_run_has_the_same_window_on_the_sources_clock(
    app: Stepfast, ahead: timedelta
) -> None:
    """(F14, F13, T6)"""
    shop = Shop.with_items(40)
    feed = app.feed(Recording(shop, windows=[], ahead=ahead, settle=SETTLE))
    prepare(app)

    begun = datetime.now(UTC)
    run = begin(app)
    drain(app)

    assert set(feed.windows) == {run.window} == {run_of(app, run.id).window}
    assert len(feed.windows) == len(shop.requests)
    assert abs(run.window.to - (begun + ahead - SETTLE)) < timedelta(seconds=10)
    (known,) = rows.query(app, "SELECT skew FROM stepfast_feed")
    assert abs(timedelta(microseconds=known["skew"]) - ahead) < timedelta(seconds=10)
    newest = rows.query(app, "SELECT max(observed_at) AS at FROM stepfast_raw")[0]["at"]
    assert abs(moment(newest) - (begun + ahead)) < timedelta(seconds=20)


def test_a_source_whose_clock_is_far_ahead_begins_no_run(app: Stepfast) -> None:
    """Its watermark would lie in the future, and nothing that changes until then would ever be read. (F13)"""
    feed = app.feed(Recording(Shop.with_items(5), windows=[], ahead=timedelta(hours=3)))
    prepare(app)
    told = r"its clock is 3 h ahead of the database's, more than 15 min; no run begins"

    with pytest.raises(OutageError, match=told):
        begin(app)
    with pytest.raises(StepfastError, match=f"^feed catalogue: nothing was begun: {told}"):
        app.runs.start("catalogue")
    with pytest.raises(StepfastError, match=told):
        app.runs.plan("catalogue")
    assert (rows.count(app, "stepfast_run"), rows.count(app, "stepfast_feed", "watermark IS NOT NULL")) == (
        0,
        0,
    )

    feed.ahead = timedelta(minutes=14)
    assert drain_until_completed(app).window.to > datetime.now(UTC)


def test_a_run_by_the_calendar_waits_until_the_clock_of_its_source_is_right(app: Stepfast) -> None:
    """A wrong Date once costs a moment, and neither a day nor an attempt."""
    shown = iter([timedelta(hours=5), timedelta(hours=5), timedelta(0)])

    class Confused(Catalogue):
        def now(self) -> datetime:
            return moment(rows.now(app)) + next(shown)

    shop = reading(app, feed=Confused)
    tick(app)
    with hearing() as told:
        drain(app, with_scheduled=True)

    met = named(told, "source.troubled")
    assert target(app) == shop.prices()
    assert len(met) == 2
    assert "5 h ahead" in str(met[0]["error"])
    assert rows.query(app, "SELECT watermark FROM stepfast_feed")[0]["watermark"] <= rows.now(app) + rows.HOUR
    assert rows.count(app, "stepfast_archive", "failures > 0") == 0


def test_a_feed_may_say_how_far_ahead_its_source_is(app: Stepfast) -> None:
    app.feed(Recording(Shop.with_items(5), windows=[], ahead=timedelta(hours=3), ahead_at_most="4h"))
    prepare(app)

    assert drain_until_completed(app).window.to > datetime.now(UTC) + timedelta(hours=2)


def test_a_clock_that_is_behind_loses_nothing(app: Stepfast) -> None:
    """The window ends early; the next one reads the rest."""
    feed = app.feed(Recording(Shop.with_items(5), windows=[], ahead=timedelta(hours=-3)))
    prepare(app)
    drain_until_completed(app)
    feed.shop.put("new", 7)

    feed.ahead = timedelta(0)
    drain_until_completed(app)

    assert target(app) == feed.shop.prices()


def test_an_incremental_run_begins_before_the_watermark_and_leaves_it_alone(app: Stepfast) -> None:
    """(F8, F13)"""
    reading(app, lookback="15m")
    first = drain_until_completed(app)

    second = begin(app)

    assert second.watermark_before == first.window_to == run_of(app, first.id).watermark_after
    assert second.window_from == first.window_to - 15 * 60 * rows.SECOND
    assert rows.query(app, "SELECT watermark FROM stepfast_feed")[0]["watermark"] == first.window_to


def test_a_clock_that_is_no_clock_is_refused(app: Stepfast) -> None:
    feed = reading_with_clock(app, datetime(2026, 11, 15, 12))  # noqa: DTZ001 - the mistake that this is about

    with pytest.raises(ConfigurationError, match="time zone"):
        begin(app, feed)


@pytest.mark.parametrize("late", [0, 1])
def test_what_changes_while_a_run_reads_is_read_by_the_next_one(app: Stepfast, late: int) -> None:
    """Also at the very instant at which the window ends, and on a page that was read already. (F8, T6)"""
    shop = reading(app, partitioner=ONE)
    run = begin(app)

    def change(what: str, _: Range, cursor: Cursor | None) -> None:
        if what == "page" and cursor is not None and cursor.offset > 0:
            shop.put("d00000", 7, moment(run.window_to + late))  # its page has been read

    shop.before = change
    drain(app)
    assert raw(app)["d00000"] == 0

    drain_until_completed(app)

    assert target(app)["d00000"] == raw(app)["d00000"] == 7


class Late(Catalogue):
    """A source that shows a change only a while after it happened, and whose clock a test sets."""

    shown = datetime(2026, 11, 1, tzinfo=UTC)
    lag = timedelta(0)

    def now(self) -> datetime:
        return self.shown

    async def count(self, part: Range, window: Window, /) -> int:
        return len(self._visible(part, window))

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        return Page(self._visible(part, window)[cursor.offset : cursor.offset + cursor.limit])

    def _visible(self, part: Range, window: Window) -> list[dict[str, Any]]:
        found = self.shop.select(part, window)
        return [it for it in found if datetime.fromisoformat(it["updated"]) + self.lag <= self.shown]


@pytest.mark.parametrize(
    ("lag", "age"), [(0, 0), (0, 120), (100, 60), (100, 119), (100, 121), (300, 119), (300, 290)]
)
def test_a_change_that_the_source_shows_late_is_read_all_the_same(app: Stepfast, lag: int, age: int) -> None:
    """The settle delay waits for it, and the lookback comes back for it. (F13, F8, T6)"""
    feed = app.feed(Late(Shop.with_items(6), settle=SETTLE, lag=timedelta(seconds=lag), partitioner=ONE))
    prepare(app)
    feed.shop.put("late", 77, feed.shown - timedelta(seconds=age))
    drain_until_completed(app)

    feed.shown += timedelta(minutes=10)
    drain_until_completed(app)

    assert target(app) == feed.shop.prices()


def reading_with_clock(app: Stepfast, shown: datetime) -> str:
    class Odd(Catalogue):
        name = "odd"

        def now(self) -> datetime:
            return shown

    app.feed(Odd(Shop()))
    return "odd"


def drain_until_completed(app: Stepfast) -> Run:
    run = begin(app)
    drain(app)
    assert run_of(app, run.id).state == "completed"
    return run


def on_bounds(shop: Shop) -> int:
    """Items that two partitions share, because their price is a bound of both."""
    return sum(price in (250, 500, 750) for price in shop.prices().values())


def test_instants_are_kept_to_the_microsecond(app: Stepfast) -> None:
    reading(app)
    run = begin(app)

    assert instant(run.window.to) == run.window_to
