"""A chain of pages remembers its position in memory, and uses it only if its own commit was the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.jobs.outcome import Again, Continue, Done
from stepfast.runs import page
from stepfast.runs.partitioning.partitioners import Fixed
from stepfast.testing import clock
from tests.crash.kill_points import watched
from tests.support import rows
from tests.support.feeds import Catalogue, Shop, prepare, price_ranges
from tests.support.run_facts import begin, check_complete, check_counters, pages
from tests.support.single_threaded_worker import SingleThreadedWorker

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast

PAGE = "catalogue.page"
ONE = Fixed(price_ranges())


class Ear:
    """Hears every statement."""

    def __init__(self, heard: list[tuple[str, str]]) -> None:
        self._heard = heard

    def __call__(self, when: str, text: str) -> None:
        self._heard.append((when, text))


def feed_of(app: Stepfast, shop: Shop) -> SingleThreadedWorker:
    app.feed(Catalogue(shop, partitioner=ONE))
    return SingleThreadedWorker(app, name=f"worker-{id(app)}")


def looks(app: Stepfast, act: Callable[[], object]) -> int:
    """How often the place of a partition was looked up meanwhile."""
    sent: list[tuple[str, str]] = []
    with watched(Ear(sent)):
        act()
    return sent.count(("before", page.FIND_POSITION.render(app.database.dialect)))


def test_a_chain_in_one_process_looks_up_its_place_once(app: Stepfast) -> None:
    shop = Shop.with_items(60)
    worker = feed_of(app, shop)
    prepare(app)
    run = begin(app)
    worker.step()

    count = looks(app, worker.finish)

    assert len(pages(app, run.id)) > 5
    assert count == 1
    check_complete(app, run.id, shop)


def test_another_process_looks_it_up(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    shop = Shop.with_items(60)
    first, second = feed_of(app, shop), feed_of(another_app(), shop)
    prepare(app)
    run = begin(app)
    first.until(kind=PAGE)
    rows.change(app, "UPDATE stepfast_job SET state = 'ready', owner = NULL")
    first.step()
    first.step()

    assert looks(app, second.step) == 1
    assert looks(app, first.step) == 1  # what it remembers was overtaken
    first.finish()
    check_complete(app, run.id, shop)


def test_a_page_that_was_never_committed_is_not_remembered(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    shop = Shop.with_items(60)
    first, second = feed_of(app, shop), feed_of(another_app(), shop)
    prepare(app)
    run = begin(app)
    lost = first.until(kind=PAGE)
    assert isinstance(
        first.run_handler(lost).ending, Continue
    )  # it counts the rows, and its process stands still
    shop.put("d99999", 500)

    second.declare_others_dead()
    second.step()  # counts one row more
    rows.change(
        app, "UPDATE stepfast_worker SET state = 'alive', alive_until = alive_until + 9000000000000000"
    )

    assert looks(app, first.step) == 1
    assert [it["got"] for it in pages(app, run.id)] == [0, 10]
    first.finish()
    check_counters(app, run.id)
    check_complete(app, run.id, shop)


def test_a_partition_that_was_restarted_meanwhile_refuses_the_page(app: Stepfast) -> None:
    shop = Shop.with_items(60)
    worker = feed_of(app, shop)
    prepare(app)
    run = begin(app)
    for _ in range(3):
        worker.step()
    rows.change(app, "UPDATE stepfast_partition SET epoch = epoch + 1")
    before = pages(app, run.id)

    lease = worker.claim()
    assert lease is not None
    refused = worker.commit(lease, worker.run_handler(lease))
    assert isinstance(refused, Again)
    assert not refused.charged
    rows.change(app, "UPDATE stepfast_job SET state = 'ready', ready_at = 1")
    lease = worker.claim()
    assert lease is not None

    assert isinstance(worker.run_handler(lease).ending, Done)
    assert pages(app, run.id) == before


def test_on_a_clock_that_a_test_moves_the_database_is_asked_for_the_time(app: Stepfast) -> None:
    worker = feed_of(app, Shop.with_items(60))
    prepare(app)

    with clock(app):
        begin(app)
        worker.step()
        worker.step()

        assert looks(app, worker.step) == 1


def test_pages_are_observed_in_the_order_in_which_they_were_asked_for(app: Stepfast) -> None:
    """A remembered place knows what time it is: by the clock of its process, from the database's on."""
    worker = feed_of(app, Shop.with_items(60))
    prepare(app)
    began = rows.now(app)
    begin(app)
    for _ in range(8):
        worker.step()
    ended = rows.now(app)

    found = rows.query(app, "SELECT DISTINCT observed_at FROM stepfast_raw ORDER BY observed_at")

    observed = [it["observed_at"] for it in found]
    assert len(observed) > 3
    assert began <= observed[0]
    assert observed[-1] <= ended + rows.SECOND // 100
