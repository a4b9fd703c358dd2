"""The watermark: when it moves, which run moves it, and that no gap lies between two windows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.clock import instant, moment
from stepfast.database.database import persist
from stepfast.errors import ConfigurationError, NotFoundError, StateError, StepfastError
from stepfast.runs import watermark
from stepfast.runs.partitioning.partitioners import Fixed
from stepfast.runs.run import FeedRow, create_run, find_feed, find_run
from stepfast.runs.window import Window
from stepfast.testing import drain
from tests.support import rows
from tests.support.engine import together
from tests.support.failing_runs import work_until_idle
from tests.support.feeds import Catalogue, Shop, prepare, target
from tests.support.run_facts import begin, run_of

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.partitioners import Listed
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.run import Run

MINUTE = timedelta(minutes=1)
MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)


def catalogue(app: Stepfast, shop: Shop | None = None, **settings: Any) -> Shop:
    shop = Shop.with_items(40) if shop is None else shop
    app.feed(Catalogue(shop, **settings))
    prepare(app)
    return shop


def synced(app: Stepfast, **request: Any) -> Run:
    """A run, to its end."""
    run = begin(app, **request)
    drain(app)
    return run_of(app, run.id)


def feed_row(app: Stepfast, feed: str = "catalogue") -> FeedRow:
    with app.reading() as tx:
        return find_feed(tx, feed)


def made_run(app: Stepfast, window: Window, feed: str = "catalogue", **changes: Any) -> Run:
    """A run that is about to be completed; not the active one, so that there may be several."""
    with app.transaction() as tx:
        run = create_run(tx, feed, "backfill", window, watermark=None)
        return replace(find_run(tx, run.id), **{"kind": "incremental", **changes})


def advance(app: Stepfast, run: Run, feed: str = "catalogue") -> int | None:
    return persist(app.database, lambda tx: watermark.advance_watermark(tx, app.feeds.get(feed), run))


def test_the_watermark_is_the_end_of_the_window_and_not_the_time_of_completion(app: Stepfast) -> None:
    """What changed while the run was reading is older than its completion, and would never be read. (F8)"""
    catalogue(app, settle="60s")

    run = synced(app)

    assert run.state == "completed"
    assert run.watermark_after == run.window_to == feed_row(app).watermark
    assert run.ended_at is not None
    assert run.window_to <= run.started_at - 59_000_000 < run.ended_at


def test_what_changes_in_a_page_that_was_read_before_is_read_by_the_next_run(app: Stepfast) -> None:
    """(F8)"""
    shop = catalogue(app, lookback="0s")

    def change_once(what: str, _: Range, cursor: Cursor | None) -> None:
        if what == "page" and cursor is not None and cursor.offset > 0 and shop.items["d00000"]["price"] == 0:
            shop.put("d00000", 7)

    shop.before = change_once
    synced(app)
    second = synced(app)

    assert second.kind == "incremental"
    assert target(app) == shop.prices()


def test_the_watermark_moves_with_the_completion_of_the_run_or_not_at_all(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(F10)"""
    catalogue(app, attempts_consolidation=1)

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(watermark, "_export", broken)
    run = begin(app)
    drain(app, raise_errors=False)

    assert run_of(app, run.id).state != "completed"
    assert feed_row(app).watermark is None


@pytest.mark.parametrize(
    "changes",
    [{"kind": "backfill"}, {"kind": "verify"}, {"scope": "partial"}, {"forced": 1}],
    ids=["backfill", "verify", "partial", "forced"],
)
def test_a_run_that_read_only_a_part_never_moves_the_watermark(
    app: Stepfast, changes: dict[str, Any]
) -> None:
    """Its gaps would never be read. (F9)"""
    catalogue(app)
    run = made_run(app, Window(None, MIDNIGHT), **changes)

    assert advance(app, run) is None
    assert feed_row(app).watermark is None


def test_a_capped_run_never_moves_the_watermark(app: Stepfast) -> None:
    """(F9)"""
    catalogue(app)

    run = synced(app, kind="full", most_rows=5)

    assert (run.state, run.scope, run.watermark_after) == ("completed", "partial", None)
    assert feed_row(app).watermark is None


@pytest.mark.idempotency
def test_an_older_run_that_ends_last_does_not_take_the_watermark_back(app: Stepfast) -> None:
    """(F11)"""
    catalogue(app)
    older, newer = (made_run(app, Window(None, MIDNIGHT + n * MINUTE)) for n in (0, 5))

    assert advance(app, newer) == newer.window_to
    assert advance(app, older) == newer.window_to

    row = feed_row(app)
    assert (row.watermark, row.version) == (newer.window_to, 2)


def test_who_decided_about_another_watermark_moves_nothing(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(F11)"""
    catalogue(app)
    first, second = (made_run(app, Window(None, MIDNIGHT + n * MINUTE)) for n in (0, 5))
    before = feed_row(app)
    advance(app, first)
    monkeypatch.setattr(watermark, "lock_feed", lambda *_: before)

    with pytest.raises(StateError, match="moved by somebody else"):
        advance(app, second)

    assert feed_row(app).watermark == first.window_to


def test_every_feed_has_a_watermark_of_its_own(app: Stepfast) -> None:
    """(F11)"""
    catalogue(app)
    app.feed(Catalogue(Shop(), name="other"))

    synced(app)

    assert feed_row(app).watermark is not None
    assert feed_row(app, "other").watermark is None


def test_the_lookback_moves_the_next_window_and_never_the_watermark(app: Stepfast) -> None:
    """(F13)"""
    catalogue(app, lookback="10m")
    first = synced(app)

    second = synced(app)

    assert first.watermark_after is not None
    assert second.window_from == first.watermark_after - 600_000_000
    assert second.watermark_before == first.watermark_after
    assert second.watermark_after == second.window_to


def test_the_next_window_begins_at_least_as_long_before_as_the_last_run_took(app: Stepfast) -> None:
    """A page that was read early in a long run is as old as the run is long. (F13)"""
    catalogue(app, lookback="0s")
    first = made_run(app, Window(None, MIDNIGHT))
    advance(app, replace(first, started_at=rows.now(app) - 3_600_000_000))

    second = synced(app)

    assert second.window_from is not None
    assert instant(MIDNIGHT) - second.window_from >= 3_600_000_000


@pytest.mark.parametrize("ahead", [-90, 90])
def test_the_window_is_cut_on_the_clock_of_the_source(app: Stepfast, ahead: int) -> None:
    """(F13)"""

    class Skewed(Catalogue):
        def now(self) -> datetime:
            return datetime.now(UTC) + timedelta(seconds=ahead)

    app.feed(Skewed(Shop.with_items(5), settle="10s"))
    prepare(app)

    run = synced(app)

    expected = run.started_at + (ahead - 10) * 1_000_000
    assert abs(run.window_to - expected) < 5_000_000
    assert run.watermark_after == run.window_to


def test_every_request_of_a_run_asks_for_the_same_window(app: Stepfast) -> None:
    """A window that moves with the clock reads rows outside of it, and skips rows inside. (F14)"""
    asked = []

    class Watched(Catalogue):
        async def count(self, part: Range, window: Window, /) -> int:
            asked.append(window)
            return await super().count(part, window)

        async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Any:
            asked.append(window)
            return await super().fetch(part, window, cursor)

    app.feed(Watched(Shop.with_items(60)))
    prepare(app)
    synced(app)
    asked.clear()

    run = synced(app)

    assert run.window_from is not None
    assert set(asked) == {run.window}
    assert len(asked) > 4


def test_a_run_that_finds_nothing_completes_and_moves_the_watermark(app: Stepfast) -> None:
    """Else its windows would grow from run to run. (F15)"""
    catalogue(app, Shop())

    first = synced(app)
    second = synced(app)

    assert (first.state, second.state) == ("completed", "completed")
    assert first.watermark_after is not None
    assert second.watermark_after is not None
    assert second.watermark_after >= first.watermark_after


def test_an_empty_plan_of_a_window_that_is_not_empty_passes_for_no_reading(app: Stepfast) -> None:
    """Otherwise the watermark would move over everything, and a sweep would strike every row. (F15)"""

    class Nothing(Catalogue):
        async def plan(self, _: Window, /) -> list[Range]:
            return []

    app.feed(Nothing(Shop(), partitioner=None))
    prepare(app)

    with pytest.raises(StepfastError, match="the plan is empty: nobody would read what changed since ever"):
        app.runs.plan("catalogue")
    run = app.runs.start("catalogue")
    work_until_idle(app)

    (reason, *_) = app.runs.show(run.id).why
    assert app.runs.show(run.id).run.state == "failed"
    assert "the plan is empty" in reason.sentence
    assert "answer at least one range, such as Range()" in reason.sentence
    assert feed_row(app).watermark is None


def test_a_partitioner_that_finds_no_partition_fails_the_plan_too(app: Stepfast) -> None:
    class Vanished(Fixed):
        def start(self, *_: object) -> Listed:
            return self._listed((), None)

    app.feed(Catalogue(Shop(), partitioner=Vanished(["EU"])))
    prepare(app)
    run = app.runs.start("catalogue")
    work_until_idle(app)

    assert "the plan is empty" in app.runs.show(run.id).why[0].sentence
    assert feed_row(app).watermark is None


def test_a_run_that_began_behind_a_watermark_that_was_set_back_does_not_skip_what_lies_between(
    app: Stepfast,
) -> None:
    catalogue(app)
    advance(app, made_run(app, Window(None, MIDNIGHT)))
    late = made_run(app, Window(MIDNIGHT, MIDNIGHT + MINUTE))
    app.operator.by("alice", reason="read again").set_watermark("catalogue", MIDNIGHT - MINUTE, force=True)

    assert advance(app, late) is None
    assert feed_row(app).watermark == instant(MIDNIGHT - MINUTE)


def test_an_operator_may_move_it_with_a_reason(app: Stepfast) -> None:
    catalogue(app)
    first = synced(app)
    assert first.watermark_after is not None
    back = moment(first.watermark_after) - timedelta(hours=1)
    operator = app.operator.by("alice", reason="the source lost an hour")

    with pytest.raises(StateError, match="--force"):
        operator.set_watermark("catalogue", back)
    moved = operator.set_watermark("catalogue", back, force=True)

    assert "reads again" in moved.consequence
    assert (feed_row(app).watermark, feed_row(app).version) == (instant(back), 2)
    entry = app.operator.audit(what="watermark.set")[0]
    assert (entry.who, entry.why, entry.subject) == ("alice", "the source lost an hour", "catalogue")
    assert entry.detail is not None
    assert entry.detail["after"] == back.isoformat()
    assert synced(app).window_from == instant(back) - 15 * 60 * 1_000_000


def test_it_is_not_moved_without_a_reason_into_the_future_or_to_where_it_is(app: Stepfast) -> None:
    catalogue(app)
    synced(app)
    operator = app.operator.by("alice", reason="why not")
    here = moment(feed_row(app).watermark or 0)

    with pytest.raises(ConfigurationError, match="say why"):
        app.operator.by("alice").set_watermark("catalogue", MIDNIGHT, force=True)
    with pytest.raises(StateError, match="future"):
        operator.set_watermark("catalogue", datetime.now(UTC) + timedelta(days=1), force=True)
    with pytest.raises(StateError, match="already"):
        operator.set_watermark("catalogue", here, force=True)
    with pytest.raises(NotFoundError, match="never run"):
        operator.set_watermark("catalog", MIDNIGHT)

    assert feed_row(app).version == 1
    assert app.operator.audit(what="watermark.set") == []


def test_it_is_not_moved_while_a_run_is_active(app: Stepfast) -> None:
    catalogue(app)
    synced(app)
    run = begin(app)

    with pytest.raises(StateError, match=run.id):
        app.operator.by("alice", reason="now").set_watermark("catalogue", MIDNIGHT, force=True)

    assert feed_row(app).version == 1


def test_a_run_that_starts_while_it_is_moved_begins_at_the_new_one_or_keeps_it_where_it_is(
    app: Stepfast,
) -> None:
    catalogue(app)
    synced(app)
    before = feed_row(app).watermark
    operator = app.operator.by("alice", reason="again")

    moved, run = together(
        [lambda: operator.set_watermark("catalogue", MIDNIGHT, force=True), lambda: begin(app)]
    )

    if isinstance(moved, StateError):
        assert (run.watermark_before, feed_row(app).watermark) == (before, before)
    else:
        assert (run.watermark_before, feed_row(app).watermark) == (instant(MIDNIGHT), instant(MIDNIGHT))


def test_a_feed_that_never_ran_may_get_a_first_watermark_by_force(app: Stepfast) -> None:
    catalogue(app)
    moved = app.operator.by("alice", reason="taken over").set_watermark("catalogue", MIDNIGHT, force=True)

    run = synced(app)

    assert moved.before is None
    assert (run.kind, run.watermark_before) == ("incremental", instant(MIDNIGHT))


@pytest.mark.parametrize("force", [False, True])
def test_a_feed_that_nobody_knows_gets_no_watermark(app: Stepfast, force: bool) -> None:  # noqa: FBT001
    catalogue(app)
    operator = app.operator.by("alice", reason="taken over")

    with pytest.raises(NotFoundError, match=r"feed 'catalog' has never run here.*known: catalogue"):
        operator.set_watermark("catalog", MIDNIGHT, force=force)

    assert rows.count(app, "stepfast_feed") == 0


def test_what_lies_before_a_watermark_that_was_set_forward_is_said_to_be_skipped(app: Stepfast) -> None:
    catalogue(app)
    advance(app, made_run(app, Window(None, MIDNIGHT)))

    moved = app.operator.by("alice", reason="known").set_watermark("catalogue", MIDNIGHT + MINUTE)

    assert "no incremental run reads" in moved.consequence


def test_watermarks_are_reported_with_their_age_and_debts(app: Stepfast) -> None:
    catalogue(app, settle="60s")
    run = synced(app)

    found = app.operator.watermarks()[0]

    assert (found.feed, found.last_run, found.version, found.open_debts) == ("catalogue", run.id, 1, 0)
    assert found.last_run_completed_at is not None
    assert found.age is not None
    assert found.age >= MINUTE
