"""Planning is a chain of steps; its last one writes all partitions and their jobs, or none."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Concurrency, Rate
from stepfast.runs.feed import Page
from stepfast.runs.partitioning.dimension import Dimension
from stepfast.runs.partitioning.partitioners import Fixed, Heatmap
from stepfast.runs.partitioning.ranges import Bounds, Range, gap
from stepfast.testing import crash_at, drain
from stepfast.worker.admission import Admission
from tests.support import rows
from tests.support.failing_runs import work_until_idle
from tests.support.feeds import HIGHEST, Catalogue, Shop, prepare, price_ranges, target
from tests.support.run_facts import (
    begin,
    check_complete,
    check_counters,
    consolidations,
    partitions,
    raw,
    run_of,
)
from tests.support.single_threaded_worker import SingleThreadedWorker

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.partitioners import Listed
    from stepfast.runs.window import Window

COUNTED = Fixed(price_ranges(*range(100, HIGHEST, 100)), counted=True)  # ten ranges, three in a step


def reading(
    app: Stepfast, shop: Shop | None = None, feed: type[Catalogue] = Catalogue, **settings: Any
) -> Shop:
    shop = shop or Shop.with_items(40)
    app.feed(feed(shop, **settings))
    prepare(app)
    return shop


ON_BOUNDS = 2  # items that two counted ranges share; where those were joined, they are counted twice


def counts(shop: Shop) -> list[str]:
    return [name for what, name, _ in shop.requests if what == "count"]


# A chain of steps


def test_a_plan_takes_many_short_steps_and_asks_for_nothing_twice(app: Stepfast) -> None:
    """(F27, F7)"""
    shop = reading(app, partitioner=COUNTED)
    begin(app)
    worker = SingleThreadedWorker(app)

    for _ in range(4):
        lease = worker.step()
        assert lease is not None
        assert lease.kind == "catalogue.plan"
        assert rows.count(app, "stepfast_partition") in (0, 10)

    assert sorted(counts(shop)) == sorted(it.name for it in COUNTED.ranges)
    assert rows.count(app, "stepfast_partition") == rows.count(app, "stepfast_job") == 10


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        ([Rate(1_000, per="1s")], 3),
        ([Rate(1, per="1m")], 1),  # there is no other place within a second
        ([Rate(1_000, per="1s"), Concurrency(2)], 2),
    ],
    ids=["fast", "slow", "narrow"],
)
def test_a_step_of_a_limited_plan_asks_for_as_many_as_its_limits_have_places_for(
    app: Stepfast, limits: list[Any], asked: int
) -> None:
    shop = reading(app, partitioner=COUNTED, limits=limits)
    begin(app)
    worker = SingleThreadedWorker(app)
    lease = worker.claim()
    assert lease is not None
    assert Admission(app.database, app.kinds).admit([lease]) == [lease]

    worker.commit(lease, worker.run_handler(lease))

    assert sorted(counts(shop)) == sorted(it.name for it in COUNTED.ranges[:asked])


def test_while_the_source_is_in_trouble_one_range_is_asked_for_after_the_other(app: Stepfast) -> None:
    """Of three counts one fails three times as often, and takes the others along."""
    shop = reading(app, partitioner=COUNTED)
    begin(app)
    rows.change(app, "UPDATE stepfast_feed SET troubles = 1")
    worker = SingleThreadedWorker(app)

    worker.step()
    assert len(counts(shop)) == 1
    rows.change(app, "UPDATE stepfast_feed SET troubles = 0")
    worker.step()
    assert len(counts(shop)) == 4


@pytest.mark.parametrize(
    ("point", "nth", "again"),
    [("before commit", 2, 3), ("after commit", 3, 0), ("before commit", 4, 1)],
)
def test_a_crash_between_the_steps_of_a_plan_costs_one_of_them(
    app: Stepfast, point: str, nth: int, again: int
) -> None:
    """What was counted is stored. (F27)"""
    shop = reading(app, partitioner=COUNTED)
    run = begin(app)
    with crash_at(app, point, nth=nth):
        drain(app)

    worker = SingleThreadedWorker(app)
    worker.declare_others_dead()
    page = worker.until(kind="catalogue.page")

    assert len(counts(shop)) == len(COUNTED.ranges) + again
    worker.commit(page, worker.run_handler(page))
    worker.finish()
    check_complete(app, run.id, shop)


def test_a_plan_whose_end_was_not_committed_left_nothing(app: Stepfast) -> None:
    """Neither partitions without jobs nor jobs without partitions. (F27, F41)"""
    shop = reading(app)
    run = begin(app)

    with crash_at(app, "after insert into stepfast_partition"):
        drain(app)

    assert rows.count(app, "stepfast_partition") == 0
    assert [it["kind"] for it in rows.query(app, "SELECT kind FROM stepfast_job")] == ["catalogue.plan"]
    drain(app)
    check_complete(app, run.id, shop)


def test_every_partition_is_there_with_its_job_before_a_page_is_read(app: Stepfast) -> None:
    """So no partition can be lost before a worker knows of it. (F27)"""
    shop = reading(app)
    run = begin(app)
    worker = SingleThreadedWorker(app)

    worker.step()

    found = partitions(app, run.id)
    assert [it["name"] for it in found] == [it.name for it in price_ranges(250, 500, 750)]
    assert {it["job_id"] for it in found} == {
        it["id"] for it in rows.query(app, "SELECT id FROM stepfast_job")
    }
    assert not shop.requests
    assert run_of(app, run.id).state == "fetching"


@pytest.mark.parametrize("partitioner", [COUNTED, Fixed(price_ranges(500))], ids=["counting", "ending"])
def test_a_plan_that_somebody_restarted_is_not_written(app: Stepfast, partitioner: Fixed) -> None:
    """(F20)"""
    reading(app, partitioner=partitioner)
    run = begin(app)
    worker = SingleThreadedWorker(app)
    lease = worker.claim()
    assert lease is not None
    thought = worker.run_handler(lease)
    rows.change(app, "UPDATE stepfast_run SET epoch = 1 WHERE id = :id", id=run.id)

    worker.commit(lease, thought)
    worker.finish()

    assert rows.count(app, "stepfast_partition") == 0
    found = run_of(app, run.id)
    assert (found.state, found.frontier) == ("planning", None)


@pytest.mark.idempotency
def test_a_plan_that_comes_twice_writes_its_partitions_once(app: Stepfast) -> None:
    """(F2, T2)"""
    shop = reading(app)
    run = begin(app)
    worker = SingleThreadedWorker(app)
    rows.change(
        app, "INSERT INTO stepfast_job (id, kind, payload) SELECT 'again', kind, payload FROM stepfast_job"
    )
    first, second = worker.claim(), worker.claim()
    assert first is not None
    assert second is not None
    thoughts = [worker.run_handler(first), worker.run_handler(second)]

    worker.commit(first, thoughts[0])
    worker.commit(second, thoughts[1])
    worker.finish()

    assert len(partitions(app, run.id)) == 4
    check_complete(app, run.id, shop)


def test_a_plan_that_is_no_plan_fails_with_a_sentence(app: Stepfast) -> None:
    class Odd(Catalogue):
        partitioner = None

        def plan(self, _: Window, /) -> list[Range]:
            return ["everything"]  # type: ignore[list-item]

    reading(app, feed=Odd)
    begin(app)

    with pytest.raises(Exception, match=r"plan\(\) answers a list of stepfast.Range"):
        drain(app)


# What there is to read


class Still(Catalogue):
    """A source whose clock stands still: the window of the second run is empty."""

    lookback = timedelta(0)

    def now(self) -> datetime:
        return datetime(2026, 11, 1, tzinfo=UTC)


def test_an_empty_window_is_a_run_that_completes_and_asks_for_nothing(app: Stepfast) -> None:
    """(F15)"""
    shop = reading(app, feed=Still)
    begin(app)
    drain(app)
    # The lookback is at least what the last run took: let that be nothing.
    rows.change(app, "UPDATE stepfast_feed SET last_took = 0")
    shop.requests.clear()

    run = begin(app)
    drain(app)

    ended = run_of(app, run.id)
    assert run.window.is_empty
    assert (ended.state, ended.partitions, ended.watermark_after) == ("completed", 0, run.window_to)
    assert not shop.requests
    assert target(app) == shop.prices()


def test_a_plan_without_partitions_fails_and_the_feed_is_free(app: Stepfast) -> None:
    """The run does not wait for partitions that will never end, nor count as a reading of everything. (F15)"""

    class Nothing(Catalogue):
        partitioner = None

        def plan(self, _: Window, /) -> list[Range]:
            return []

    reading(app, Shop(), feed=Nothing)
    run = begin(app)
    work_until_idle(app)

    assert run_of(app, run.id).state == "failed"
    assert consolidations(app, run.id) == 0
    assert begin(app).id != run.id


def test_a_source_without_rows_completes(app: Stepfast) -> None:
    """(F15)"""
    shop = reading(app, Shop())
    run = begin(app)
    drain(app)

    check_complete(app, run.id, shop)


class Weighed(Catalogue):
    """Items have a weight besides their price."""

    page_size = 50

    async def count(self, part: Range, _: Window, /) -> int:
        self.shop.requests.append(("count", part.name, None))
        return len(self.inside(part))

    async def fetch(self, part: Range, _: Window, cursor: Cursor, /) -> Page:
        self.shop.requests.append(("page", part.name, cursor.offset))
        return Page(self.inside(part)[cursor.offset : cursor.offset + cursor.limit])

    def inside(self, part: Range) -> list[dict[str, Any]]:
        return [
            it
            for it in self.shop.items.values()
            if part.contains({"price": it["price"], "weight": it["weight"]})
        ]


def span(partition: rows.Row) -> Range:
    return Range.from_json(json.loads(partition["span"]))


def heavy_shop() -> Shop:
    """Half of the items have one price; some have prices outside of the expected bounds."""
    shop = Shop()
    for number in range(120):
        price = 100 if number % 2 else number * 7
        shop.put(f"d{number:03}", price, datetime(2026, 1, 1, tzinfo=UTC), weight=number)
    shop.put("dear", 10**9, weight=5)
    shop.put("odd", 249.5, weight=6)  # type: ignore[arg-type]
    return shop


HEATMAP = Heatmap(
    Dimension("price", 0, 1_000, 1, above=True),
    Dimension("weight", 0, 200, 1, below=True, above=True),
    target=20,
    least_rows=5,
)


def test_partitions_tile_everything_and_a_dense_price_is_cut_by_weight(app: Stepfast) -> None:
    """Also above the highest price that was expected, and between whole prices. (F24, F25, F26, T19)"""
    shop = reading(app, heavy_shop(), feed=Weighed, partitioner=HEATMAP)
    run = begin(app)
    drain(app)

    found = partitions(app, run.id)
    assert gap(Range.of(price=Bounds(0, None)), [span(it) for it in found]) is None
    assert any("weight" in it["name"] for it in found)
    assert max(it["estimate"] for it in found) <= 40
    assert run_of(app, run.id).scope == "complete"
    assert raw(app) == shop.prices()
    check_counters(app, run.id)


def test_estimates_are_what_the_source_counted(app: Stepfast) -> None:
    """No partition is thought to hold its share of a neighbour. (F26)"""
    shop = reading(app, heavy_shop(), feed=Weighed, partitioner=HEATMAP)
    run = begin(app)
    drain(app)

    feed = app.feeds.get("catalogue").feed
    assert isinstance(feed, Weighed)
    for it in partitions(app, run.id):
        real = len(feed.inside(span(it)))
        assert real == it["counted"] == it["seen"]
        assert real <= it["estimate"] <= real + ON_BOUNDS
    assert len(shop.prices()) <= run_of(app, run.id).estimate


def test_the_next_run_counts_the_partitions_of_the_last_one_again(app: Stepfast) -> None:
    shop = reading(app, heavy_shop(), feed=Weighed, partitioner=HEATMAP)
    first = begin(app, kind="full")
    drain(app)
    names = {it["name"] for it in partitions(app, first.id)}
    shop.requests.clear()

    second = begin(app, kind="full")
    drain(app)

    assert {it["name"] for it in partitions(app, second.id)} == names
    check_complete(app, second.id, shop)


@pytest.mark.parametrize(
    "partitioner", [COUNTED, Fixed(price_ranges(250, 500, 750))], ids=["counted", "plain"]
)
def test_a_capped_run_is_partial_and_moves_no_watermark(app: Stepfast, partitioner: Fixed) -> None:
    """However complete it looks. (F29)"""
    shop = reading(app, partitioner=partitioner)
    run = begin(app, most_rows=10)
    drain(app)

    ended = run_of(app, run.id)
    assert (ended.state, ended.scope, ended.watermark_after) == ("completed", "partial", None)
    assert rows.query(app, "SELECT watermark FROM stepfast_feed")[0]["watermark"] is None
    assert raw(app).items() <= shop.prices().items()
    assert begin(app).kind == "full"


@pytest.mark.parametrize(
    "partitioner", [COUNTED, Fixed(price_ranges(250, 500, 750))], ids=["counted", "plain"]
)
def test_a_trial_reads_what_its_plan_says(app: Stepfast, partitioner: Fixed) -> None:
    """A partition without a count may hold any number of rows: it is the last of the trial."""
    reading(app, partitioner=partitioner)

    plan = app.runs.plan("catalogue", max_rows=30)
    run = begin(app, most_rows=30)
    drain(app)

    assert [it["name"] for it in partitions(app, run.id)] == [it.name for it in plan.partitions]
    assert len(plan.partitions) == (6 if partitioner is COUNTED else 1)
    assert plan.scope == run_of(app, run.id).scope == "partial"
    assert ("nobody has counted" in plan.summary) == (partitioner is not COUNTED)


def test_a_trial_of_one_partition_is_planned_as_partial(app: Stepfast) -> None:
    reading(app, partitioner=Fixed([Range()]))

    assert app.runs.plan("catalogue", max_rows=30).scope == "partial"


def test_a_plan_with_a_gap_is_partial(app: Stepfast) -> None:
    """It reads what it names, and does not pass for everything. (F24, F29)"""

    class Gaping(Fixed):
        def start(self, *_: object) -> Listed:
            return self._listed(self.ranges, Range.of(price=Bounds(0, HIGHEST)))

    low, high = price_ranges(500)
    reading(app, partitioner=Gaping([low, Range.of(price=Bounds(700, HIGHEST))]))
    run = begin(app)
    drain(app)

    assert high.name not in [it["name"] for it in partitions(app, run.id)]
    assert (run_of(app, run.id).scope, run_of(app, run.id).watermark_after) == ("partial", None)


def test_cuts_that_share_a_bound_lose_nothing_between_them() -> None:
    """What the tests above rest on: neighbours meet. (F24)"""
    for one, following in pairwise(price_ranges(250, 500, 750)):
        assert one.bounds("price").to == following.bounds("price").from_
