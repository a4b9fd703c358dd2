"""Where pages do not overlap, the look for known rows is skipped, and the commit notices if a row was known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepfast import Page, Token
from stepfast.jobs.outcome import Again
from stepfast.runs import page
from stepfast.runs import raw_rows as raw
from stepfast.runs.partitioning.partitioners import Fixed
from tests.contract.runs.test_page_position import Ear
from tests.crash.kill_points import watched
from tests.support import rows
from tests.support.feeds import Catalogue, Shop, prepare, price_ranges
from tests.support.run_facts import begin, check_complete, check_counters, pages, partitions
from tests.support.single_threaded_worker import SingleThreadedWorker

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Cursor, Range, Stepfast, Window


class ByToken(Catalogue):
    """Each page begins with the last rows of the one before it, as often as a source gives rows again."""

    paging = Token()
    again = 0

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        found, first = self.shop.select(part, window), cursor.after or 0
        self.shop.requests.append(("page", part.name, first))
        items = found[max(0, first - self.again) :][: cursor.limit]
        after = first + cursor.limit - (self.again if first else 0)
        return Page(items, next=after if after < len(found) else None)


def reading(app: Stepfast, **settings: object) -> tuple[SingleThreadedWorker, Shop]:
    shop = Shop.with_items(60)
    app.feed(ByToken(shop, **settings))
    prepare(app)
    return SingleThreadedWorker(app), shop


def looks(app: Stepfast, act: Callable[[], object]) -> int:
    """How often the rows of a page were looked up meanwhile."""
    sent: list[tuple[str, str]] = []
    with watched(Ear(sent)):
        act()
    return sent.count(("before", raw.FIND_SEEN.render(app.database.dialect)))


def test_rows_that_are_new_are_written_without_a_look(app: Stepfast) -> None:
    worker, shop = reading(app, partitioner=Fixed(price_ranges()))
    run = begin(app)

    assert looks(app, worker.finish) == 0
    assert sum(it["got"] for it in pages(app, run.id)) == 60
    check_counters(app, run.id)
    check_complete(app, run.id, shop)


def test_a_row_that_comes_again_is_counted_once(app: Stepfast) -> None:
    worker, shop = reading(app, again=2, partitioner=Fixed(price_ranges()))
    run = begin(app)

    worker.finish()

    assert sum(it["got"] for it in pages(app, run.id)) > 60
    assert sum(it["seen"] for it in partitions(app, run.id)) == 60
    check_counters(app, run.id)
    check_complete(app, run.id, shop)


def test_a_page_with_a_row_that_was_read_before_is_judged_again_and_charged_to_nobody(app: Stepfast) -> None:
    worker, _ = reading(app, again=1, partitioner=Fixed(price_ranges()))
    run = begin(app)
    worker.until(kind="catalogue.page")
    rows.change(app, "UPDATE stepfast_job SET state = 'ready', owner = NULL")
    worker.step()  # the count
    worker.step()  # the first page
    before = pages(app, run.id)

    lease = worker.claim()
    assert lease is not None
    refused = worker.commit(lease, worker.run_handler(lease))

    assert isinstance(refused, Again)
    assert not refused.charged
    assert pages(app, run.id) == before
    assert looks(app, worker.finish) > 0
    assert [it["fresh"] for it in pages(app, run.id) if it["got"]][:3] == [10, 9, 9]


@pytest.mark.parametrize("cuts", [(), (200, 400, 600, 800)])
def test_a_source_that_repeats_itself_is_soon_expected_to(app: Stepfast, cuts: tuple[int, ...]) -> None:
    worker, shop = reading(app, again=1, page_size=5, partitioner=Fixed(price_ranges(*cuts)))
    run = begin(app)

    worker.finish()

    asked = [it for it in shop.requests if it[0] == "page"]
    written = [it for it in pages(app, run.id) if it["request_offset"] is not None]
    assert len(asked) - len(written) == min(len(cuts) + 1, page.MOST_REPEATING)
    check_complete(app, run.id, shop)
