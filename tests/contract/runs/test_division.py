"""A partition with far more rows than planned is divided, and each of its rows stays covered by a partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.runs.feed import Page
from stepfast.runs.partitioning.dimension import Dimension
from stepfast.runs.partitioning.partitioners import Fixed, Heatmap
from stepfast.runs.partitioning.ranges import ITEMS, Bounds, Range, gap
from stepfast.testing import crash_at, drain
from tests.contract.runs.test_plan import span
from tests.support import rows
from tests.support.feeds import Catalogue, Shop, prepare, price_ranges, target
from tests.support.run_facts import begin, check_complete, check_counters, partitions, run_of
from tests.support.single_threaded_worker import SingleThreadedWorker

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.run import Run
    from stepfast.runs.window import Window

PAGE = "catalogue.page"
HEATMAP = Heatmap(Dimension("price", 0, 1_000, 1, above=True), target=600, least_rows=300, at_once=2)


def planned(app: Stepfast, **settings: Any) -> tuple[Shop, Run]:
    """A run is planned; then one of its partitions gets more rows than expected."""
    shop = Shop.with_items(20)
    app.feed(Catalogue(shop, **({"partitioner": HEATMAP, "page_size": 400} | settings)))
    prepare(app)
    run = begin(app)
    worker = SingleThreadedWorker(app)
    lease = worker.until(kind=PAGE)
    rows.change(app, "UPDATE stepfast_job SET state = 'ready', owner = NULL WHERE id = :id", id=lease.job_id)
    for number in range(1_100):
        shop.put(f"n{number:05}", number % 240)
    return shop, run


def test_a_partition_that_outgrew_its_plan_is_divided_and_its_pieces_are_read(app: Stepfast) -> None:
    """Each piece has the window of the whole; the run counts the pieces, and not what they replace. (F26, F28, F14)"""
    shop, run = planned(app)
    before = run_of(app, run.id)

    SingleThreadedWorker(app).finish()

    after = run_of(app, run.id)
    found = partitions(app, run.id)
    parents = [it for it in found if it["state"] == "split"]
    pieces = [it for it in found if it["parent"]]
    assert len(parents) == 1
    assert len(pieces) > 1
    assert {it["parent"] for it in pieces} == {parents[0]["id"]}
    assert gap(span(parents[0]), [span(it) for it in pieces]) is None
    assert {(it["window_from"], it["window_to"]) for it in found} == {(run.window_from, run.window_to)}
    assert after.partitions == before.partitions - 1 + len(pieces)
    assert after.completed == after.partitions
    assert after.estimate == sum(it["estimate"] for it in found if it["state"] != "split")
    check_complete(app, run.id, shop)
    assert target(app) == shop.prices()


class SizedShop(Shop):
    """Its items have a size, too."""

    def select(self, part: Range, window: Window) -> list[dict[str, Any]]:
        everything = super().select(Range(), window)
        return [it for it in everything if part.contains({"price": it["price"], "size": it["size"]})]


def test_a_value_that_a_sample_found_too_dense_is_divided_by_its_own_job(app: Stepfast) -> None:
    """Planning asks for no more counts than the sample allows; the division asks for its own. (F26)"""
    shop = SizedShop()
    for number in range(1_500):
        shop.put(f"n{number:05}", 7 if number < 1_200 else number % 20, size=number % 100)
    partitioner = Heatmap(
        Dimension("price", 0, 20), Dimension("size", 0, 100), target=300, least_rows=100, at_once=4, sample=10
    )
    app.feed(Catalogue(shop, partitioner=partitioner, page_size=400))
    prepare(app)
    run = begin(app)
    SingleThreadedWorker(app).until(kind=PAGE)

    planning = [it for it in shop.requests if it[0] == "count"]
    (dense,) = [it for it in partitions(app, run.id) if it["frontier"] is not None]
    assert len(planning) <= 10
    assert dense["estimate"] > 1_100
    rows.change(app, "UPDATE stepfast_job SET state = 'ready', owner = NULL WHERE state = 'leased'")
    SingleThreadedWorker(app).finish()

    found = partitions(app, run.id)
    pieces = [it for it in found if it["parent"] == dense["id"]]
    assert len(pieces) > 2
    assert gap(span(dense).with_part("size", Bounds(0, 100)), [span(it) for it in pieces]) is None
    assert run_of(app, run.id).estimate == sum(it["estimate"] for it in found if it["state"] != "split")
    check_complete(app, run.id, shop)
    assert target(app) == shop.prices()


@pytest.mark.parametrize("nth", [2, 3])
def test_a_crash_while_a_partition_is_divided_loses_and_doubles_nothing(app: Stepfast, nth: int) -> None:
    """How far the division is, is stored; its last commit writes all pieces with their jobs. (F26, F27)"""
    shop, run = planned(app)

    with crash_at(app, "before commit", nth=nth):
        drain(app)
    parts = partitions(app, run.id)
    assert all(
        (it["state"] == "split") == any(other["parent"] == it["id"] for other in parts) for it in parts
    )
    check_counters(app, run.id)
    drain(app)

    check_complete(app, run.id, shop)


def test_a_division_that_two_workers_finish_is_written_once(app: Stepfast) -> None:
    """(F2, F4)"""
    shop, run = planned(app)
    worker = SingleThreadedWorker(app)
    while not rows.count(app, "stepfast_partition", "frontier IS NOT NULL"):
        worker.step()
    while True:
        lease = worker.claim()
        assert lease is not None
        thought = worker.run_handler(lease)
        if "split" in str(thought.ending):
            break
        worker.commit(lease, thought)
    rows.change(app, "UPDATE stepfast_job SET fence = 1 WHERE id = :id", id=lease.job_id)
    stolen = lease._replace(fence=1)

    other = worker.run_handler(stolen)
    worker.commit(stolen, other)
    pieces = len(partitions(app, run.id))
    rows.change(
        app,
        "INSERT INTO stepfast_job (id, kind, payload, state, fence) VALUES ('late', :kind, :payload, 'leased', 7)",
        kind=PAGE,
        payload=lease.payload,
    )
    worker.commit(lease._replace(job_id="late", fence=7), thought)

    assert len(partitions(app, run.id)) == pieces
    worker.finish()
    check_complete(app, run.id, shop)


def test_what_cannot_be_divided_is_read_whole(app: Stepfast) -> None:
    """(F26)"""
    shop, run = planned(app, partitioner=Fixed(price_ranges(500), counted=True))

    SingleThreadedWorker(app).finish()

    assert {it["state"] for it in partitions(app, run.id)} == {"done"}
    check_complete(app, run.id, shop)


class Regional(Catalogue):
    """Items of two regions, planned as one partition."""

    page_size = 600
    partitioner = Fixed([["EU", "UK"]], counted=True)

    async def count(self, part: Range, _: Window, /) -> int:
        return len(self.inside(part))

    async def fetch(self, part: Range, _: Window, cursor: Cursor, /) -> Page:
        return Page(self.inside(part)[cursor.offset : cursor.offset + cursor.limit])

    def inside(self, part: Range) -> list[dict[str, Any]]:
        return [it for it in self.shop.items.values() if part.contains({ITEMS: it["region"]})]


def test_a_partition_may_be_divided_with_its_first_request(app: Stepfast) -> None:
    """Nothing of it was read yet, and its pieces were counted at once. (F26)"""
    shop = Shop()
    shop.put("first", 1, region="EU")
    app.feed(Regional(shop))
    prepare(app)
    run = begin(app)
    worker = SingleThreadedWorker(app)
    worker.step()
    for number in range(1_010):
        shop.put(f"n{number:05}", number, region="UK" if number % 2 else "EU")

    worker.step()

    assert [it["state"] for it in partitions(app, run.id)] == ["split", "ready", "ready"]
    worker.finish()
    check_complete(app, run.id, shop)


class Plain(Catalogue):
    """The same feed after a deployment that divides nothing."""

    partitioner = None
    page_size = 400

    def plan(self, _: Window, /) -> list[Range]:
        return price_ranges()


def test_a_division_that_another_deployment_began_ends_with_a_whole_partition(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    shop, run = planned(app)
    worker = SingleThreadedWorker(app)
    while not rows.count(app, "stepfast_partition", "frontier IS NOT NULL"):
        worker.step()
    deployed = another_app()
    deployed.feed(Plain(shop))

    SingleThreadedWorker(deployed).finish()

    assert not rows.count(app, "stepfast_partition", "frontier IS NOT NULL")
    assert {it["state"] for it in partitions(app, run.id)} == {"done"}
    check_complete(app, run.id, shop)


def test_a_partition_that_grew_a_little_is_not_divided(app: Stepfast) -> None:
    shop = Shop.with_items(20)
    app.feed(Catalogue(shop, partitioner=HEATMAP, page_size=400))
    prepare(app)
    run = begin(app)
    worker = SingleThreadedWorker(app)
    worker.step()
    for number in range(60):
        shop.put(f"n{number:05}", number % 240)

    worker.finish()

    assert {it["state"] for it in partitions(app, run.id)} == {"done"}
    check_complete(app, run.id, shop)
