"""Runs that are killed while they plan and read: a plain one, one with a debt, one that fails, one that is announced
over a broker, and one whose partition is divided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.runs.broker import Broker
from stepfast.runs.feed import Page
from stepfast.runs.paging.paginators import Offset
from stepfast.runs.partitioning.dimension import Dimension
from stepfast.runs.partitioning.partitioners import Fixed, Heatmap
from tests.crash.recorded_run import RunCase
from tests.support import rows
from tests.support.broker import staged
from tests.support.feeds import Catalogue, Shop, price_ranges, target
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
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.run import Run
    from stepfast.runs.window import Window

HIDDEN = "d00001"
GROWN = 1_050
HALVES = Heatmap(
    Dimension("price", 0, 1_000, 1), target=9, least_rows=5, at_once=1
)  # planned in several steps


class Hiding(Catalogue):
    """Counts a row that it never shows."""

    paging = Offset(passes=1)
    partitioner = Fixed(price_ranges())

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        page = await super().fetch(part, window, cursor)
        return Page([it for it in page.items if it["id"] != HIDDEN])


class Endless(Catalogue):
    """Has more rows wherever it is asked."""

    partitioner = Fixed(price_ranges())

    async def fetch(self, _: Range, __: Window, cursor: Cursor, /) -> Page:
        return Page([{"id": f"n{cursor.offset + n:05}", "price": 1} for n in range(cursor.limit)])


class Dense(Catalogue):
    page_size = 600
    partitioner = Heatmap(Dimension("price", 0, 1_000, 1), target=700, least_rows=300, at_once=2)


class Past(Broker):
    """Head starts end at once: a worker without a message takes ready jobs."""

    @property
    def head_start_micros(self) -> int:
        return -1


class Announced(Catalogue):
    transport = Past("memory://of-nobody")
    partitioner = Fixed(price_ranges(500))


def begin_and_grow(app: Stepfast, shop: Shop) -> Run:
    """Plan a run; then let the source get more rows than expected."""
    run = begin(app)
    lease = SingleThreadedWorker(app).until(kind="catalogue.page")
    rows.change(app, "UPDATE stepfast_job SET state = 'ready', owner = NULL WHERE id = :id", id=lease.job_id)
    for number in range(GROWN):
        shop.put(f"n{number:05}", number % 240)
    return run


def announced(app: Stepfast, run: Run, shop: Shop) -> None:
    """Every page and the consolidation were announced once: with the commit that made them ready, or not at all."""
    check_complete(app, run.id, shop)
    ids = [it["id"] for it in staged(app)]
    requests = sum(it["requests"] for it in partitions(app, run.id))
    assert len(set(ids)) == len(ids) == requests
    assert len(staged(app, "CONSOLIDATE")) == 1


def in_debt(app: Stepfast, run: Run, shop: Shop) -> None:
    found = run_of(app, run.id)
    assert (found.state, found.unverified, found.completed) == ("completed", 1, 1)
    assert [it["tries"] for it in rows.query(app, "SELECT tries FROM stepfast_debt")] == [0]
    assert set(target(app)) == set(raw(app)) == set(shop.prices()) - {HIDDEN}
    assert consolidations(app, run.id) == 1
    check_counters(app, run.id)


def failed(app: Stepfast, run: Run, _: Shop) -> None:
    found = run_of(app, run.id)
    assert (found.state, found.failed, found.completed) == ("failed", 1, 0)
    assert rows.count(app, "stepfast_alert") == 1
    assert (consolidations(app, run.id), target(app), rows.count(app, "stepfast_job")) == (0, {}, 0)
    check_counters(app, run.id)


def divided(app: Stepfast, run: Run, shop: Shop) -> None:
    assert [it["state"] for it in partitions(app, run.id)].count("split") == 1
    check_complete(app, run.id, shop)
    assert target(app) == shop.prices()


CASES = {
    it.name: it
    for it in [
        RunCase("plain", lambda shop: Catalogue(shop, partitioner=HALVES), shop=lambda: Shop.with_items(16)),
        RunCase("debt", Hiding, shop=lambda: Shop.with_items(12), check=in_debt, about=("stepfast_debt",)),
        RunCase("failure", Endless, check=failed, about=("stepfast_alert",)),
        RunCase(
            "announced",
            Announced,
            shop=lambda: Shop.with_items(16),
            check=announced,
            about=("INSERT INTO stepfast_outbox",),
        ),
        RunCase(
            "division",
            Dense,
            begin=begin_and_grow,
            check=divided,
            about=("UPDATE stepfast_partition\n       SET frontier",),
        ),
    ]
}
