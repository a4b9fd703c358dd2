"""A page commits its rows, its ledger entry, the cursor and the next step in one transaction, under the fence of the step."""

from __future__ import annotations

import asyncio
import json
import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.errors import LeaseLostError
from stepfast.jobs.outcome import Again, Continue, Done
from stepfast.runs.partitioning.partitioners import Fixed
from stepfast.testing import crash_at, drain
from tests.support import rows
from tests.support.feeds import Catalogue, Shop, prepare, price_ranges, target
from tests.support.run_facts import (
    begin,
    check_complete,
    check_counters,
    consolidations,
    pages,
    partitions,
    raw,
    run_of,
)
from tests.support.single_threaded_worker import Answer, SingleThreadedWorker

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast
    from stepfast.jobs.lease import Lease
    from stepfast.runs.feed import Page
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.window import Window

PAGE = "catalogue.page"
ONE = Fixed(price_ranges())
AGAIN = """
    INSERT INTO stepfast_job (id, kind, payload)
    SELECT CONCAT('again-', :n), kind, payload FROM stepfast_job WHERE kind = 'catalogue.page'
"""
AGAIN_ON_SQLITE = AGAIN.replace("CONCAT('again-', :n)", "'again-' || :n")


def reading(
    app: Stepfast, shop: Shop | None = None, feed: type[Catalogue] = Catalogue, **settings: Any
) -> Shop:
    shop = shop or Shop.with_items(30)
    app.feed(feed(shop, **settings))
    prepare(app)
    return shop


def everything(app: Stepfast) -> dict[str, list[rows.Row]]:
    """All that a page could have changed."""
    tables = ("run", "partition", "page", "seen", "raw", "quarantine", "debt")
    return {it: rows.query(app, f"SELECT * FROM stepfast_{it}") for it in tables}


def deliver_again(app: Stepfast, number: int = 1) -> None:
    """Another delivery of the one page job there is: with one partition, its payload is the same for all steps."""
    text = AGAIN_ON_SQLITE if app.database.dialect.name == "sqlite" else AGAIN
    rows.change(app, text, n=number)


def taken(worker: SingleThreadedWorker, kind: str = PAGE) -> Lease:
    lease = worker.claim()
    assert lease is not None
    assert lease.kind == kind
    return lease


# One commit


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("after update stepfast_partition set seq = seq + 1", 1),
        ("after insert into stepfast_page", 3),
        ("after insert into stepfast_raw", 1),
        ("before commit", 3),
        ("after commit", 3),
    ],
)
def test_a_page_without_its_continuation_cannot_be(app: Stepfast, point: str, nth: int) -> None:
    """Nor a continuation without its page: wherever the process dies, the next page will be read. (F1, T1)"""
    shop = reading(app, partitioner=ONE)
    run = begin(app)

    with crash_at(app, point, nth=nth):
        drain(app)

    (job,) = rows.query(app, "SELECT kind, step FROM stepfast_job")
    written = partitions(app, run.id)
    if job["kind"] == PAGE:
        assert job["step"] == written[0]["seq"] == len(pages(app, run.id))
    check_counters(app, run.id)
    drain(app)
    check_complete(app, run.id, shop)
    assert target(app) == shop.prices()


@pytest.mark.idempotency
@pytest.mark.parametrize(
    "point", ["after update stepfast_run set completed", "before commit", "after commit"]
)
def test_the_last_page_ends_its_partition_in_the_same_statement(app: Stepfast, point: str) -> None:
    """Cursor and end are moved together, and with them the run. (F5, F41)"""
    shop = reading(app, partitioner=ONE)
    run = begin(app)
    worker = SingleThreadedWorker(app)
    last_page(app, worker)

    with crash_at(app, point):
        drain(app)

    (it,) = partitions(app, run.id)
    assert it["seq"] == len(pages(app, run.id))
    ended = point == "after commit"
    assert (it["state"], it["ended_at"] is not None) == (("done", True) if ended else ("running", False))
    assert (run_of(app, run.id).state, consolidations(app, run.id)) == (
        ("applying", 1) if ended else ("fetching", 0)
    )
    drain(app)
    check_complete(app, run.id, shop)


def last_page(app: Stepfast, worker: SingleThreadedWorker) -> None:
    """Read on until the next page will be the last."""
    while True:
        lease = worker.claim()
        assert lease is not None
        thought = worker.run_handler(lease)
        if lease.kind == PAGE and isinstance(thought.ending, Done):
            rows.change(
                app, "UPDATE stepfast_job SET state = 'ready', owner = NULL WHERE id = :id", id=lease.job_id
            )
            return
        worker.commit(lease, thought)


# One owner


def test_the_page_of_an_owner_who_was_replaced_is_refused_whole(app: Stepfast) -> None:
    """It was read, and its answer is older than what another has written since. (F4, T3)"""
    shop = reading(app, partitioner=ONE)
    begin(app)
    zombie, successor = SingleThreadedWorker(app, "zombie"), SingleThreadedWorker(app, "successor")
    zombie.step()  # plans
    zombie.step()  # counts
    lease = taken(zombie)
    thought = zombie.run_handler(lease)

    successor.declare_others_dead()
    shop.put("d00001", 999)
    again = taken(successor)
    assert (again.job_id, again.step) == (lease.job_id, lease.step)
    successor.commit(again, successor.run_handler(again))
    before = everything(app)
    with pytest.raises(LeaseLostError):
        zombie.commit(lease, thought)

    assert everything(app) == before
    assert raw(app)["d00001"] == 999
    assert {it["worker_id"] for it in before["page"]} == {"zombie", "successor"}


@pytest.mark.idempotency
def test_a_page_that_two_jobs_have_read_is_written_once(app: Stepfast) -> None:
    """Without any fence between them: the request's own number decides. (F4, T2)"""
    shop = reading(app, partitioner=ONE)
    run = begin(app)
    worker = SingleThreadedWorker(app)
    worker.step()
    worker.step()
    deliver_again(app)
    one, other = taken(worker), taken(worker)
    thoughts = [worker.run_handler(it) for it in (one, other)]

    worker.commit(one, thoughts[0])
    before = everything(app)
    refused = worker.commit(other, thoughts[1])

    assert isinstance(refused, Again)
    assert not refused.charged
    assert "moved on by somebody else" in refused.error
    assert everything(app) == before
    worker.finish()
    check_complete(app, run.id, shop)


@pytest.mark.idempotency
def test_an_answer_that_comes_after_a_restart_changes_nothing(app: Stepfast) -> None:
    """(F20, F38)"""
    reading(app, partitioner=ONE)
    run = begin(app)
    worker = SingleThreadedWorker(app)
    worker.step()
    worker.step()
    lease = taken(worker)
    thought = worker.run_handler(lease)
    rows.change(app, "UPDATE stepfast_partition SET epoch = epoch + 1")
    before = everything(app)

    worker.commit(lease, thought)
    worker.finish()

    assert everything(app) == before
    assert run_of(app, run.id).state == "fetching"
    assert rows.ended(app, lease.job_id)["state"] == "done"  # type: ignore[index]


# Deliveries


@pytest.mark.idempotency
@pytest.mark.parametrize("when", ["running", "done", "completed"])
def test_a_delivery_that_comes_again_ends_nothing(app: Stepfast, when: str) -> None:
    """Neither the partition nor the run, whenever it comes. (F2, F3, T2)"""
    shop = reading(app, partitioner=ONE)
    run = begin(app)
    worker = SingleThreadedWorker(app)
    worker.step()
    deliver_again(app)
    if when != "running":
        last = "catalogue.consolidate"
        rows.change(app, "UPDATE stepfast_job SET state = 'scheduled', ready_at = 9 WHERE id LIKE 'again%'")
        lease = worker.until(kind=last)
        if when == "done":
            rows.change(app, "UPDATE stepfast_job SET state = 'ready' WHERE id LIKE 'again%'")
            stale = taken(worker)
            before = everything(app)
            worker.commit(stale, worker.run_handler(stale))
            assert everything(app) == before
        worker.commit(lease, worker.run_handler(lease))
    worker.finish()

    check_complete(app, run.id, shop)
    assert rows.ended(app, "again-1")["state"] == "done"  # type: ignore[index]
    assert target(app) == shop.prices()


@pytest.mark.idempotency
@pytest.mark.parametrize("seed", range(2))
def test_messages_may_come_twice_in_any_order_and_between_any_others(app: Stepfast, seed: int) -> None:
    """Three workers, each step read by one and committed when chance says so. (T2, F2, F3, F4)"""
    dice = random.Random(seed)
    shop = reading(app, Shop.with_items(16), partitioner=Fixed(price_ranges(500)))
    run = begin(app)
    workers = [SingleThreadedWorker(app, f"worker {number}") for number in range(3)]
    workers[0].step()
    for number, it in enumerate(rows.query(app, "SELECT payload FROM stepfast_job")):
        rows.change(
            app,
            "INSERT INTO stepfast_job (id, kind, payload) VALUES (:id, :kind, :payload)",
            id=f"again-{number}",
            kind=PAGE,
            payload=it["payload"],
        )
    waiting: list[tuple[SingleThreadedWorker, Lease, Answer]] = []
    while True:
        worker = dice.choice(workers)
        rows.change(
            app,
            "UPDATE stepfast_job SET state = 'ready', ready_at = :at WHERE state = 'scheduled'",
            at=dice.randrange(9),
        )
        lease = worker.claim() if len(waiting) < 4 else None
        if lease is not None:
            waiting.append((worker, lease, worker.run_handler(lease)))
        elif waiting:
            owner, held, thought = waiting.pop(dice.randrange(len(waiting)))
            owner.commit(held, thought)
        else:
            break

    check_complete(app, run.id, shop)
    assert target(app) == shop.prices()


def test_the_ledger_says_who_read_each_page(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    """Two processes take turns; what one of them remembers of the partition is not what the other has left. (F55)"""
    shop = reading(app, partitioner=ONE)
    run = begin(app)
    elsewhere = another_app()
    elsewhere.feed(Catalogue(shop, partitioner=ONE))
    workers = [SingleThreadedWorker(app, "alice"), SingleThreadedWorker(elsewhere, "bob")]
    workers[0].step()

    fences = []
    for turn in range(6):
        lease = taken(workers[turn % 2])
        fences.append(lease.fence)
        workers[turn % 2].commit(lease, workers[turn % 2].run_handler(lease))

    found = pages(app, run.id)
    assert [it["worker_id"] for it in found] == ["alice", "bob"] * 3
    assert [it["fence"] for it in found] == fences
    assert [it["request_offset"] for it in found][:3] == [None, 0, 7]
    assert all(it["milliseconds"] >= 0 and it["at"] > 0 for it in found)


def test_a_partition_names_the_worker_that_read_it_last(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    """Not the first one for all its pages: in the row, in the view of the documents and in the list. (F55)"""
    shop = reading(app, partitioner=ONE)
    run = begin(app)
    elsewhere = another_app()
    elsewhere.feed(Catalogue(shop, partitioner=ONE))
    workers = [SingleThreadedWorker(app, "alice"), SingleThreadedWorker(elsewhere, "bob")]
    workers[0].step()

    for turn in range(4):
        worker = workers[turn % 2]
        lease = taken(worker)
        worker.commit(lease, worker.run_handler(lease))

        (row,) = partitions(app, run.id)
        (shown,) = rows.query(app, "SELECT worker_id FROM worker_runs WHERE run_id = :id", id=run.id)
        (listed,) = app.runs.partitions(run.id)
        assert row["worker_id"] == shown["worker_id"] == listed.worker_id == worker.name


def test_tries_are_kept_when_a_partition_is_read_again(app: Stepfast) -> None:
    """The key of the ledger includes the epoch, so earlier entries stay. (F46, F6)"""
    shop = reading(app, partitioner=ONE)
    run = begin(app)
    worker = SingleThreadedWorker(app)
    for _ in range(3):
        worker.step()
    first = pages(app, run.id)
    (part,) = partitions(app, run.id)
    rows.change(app, "UPDATE stepfast_partition SET epoch = 1")
    rows.change(
        app,
        "INSERT INTO stepfast_job (id, kind, payload) VALUES ('second', :kind, :payload)",
        kind=PAGE,
        payload=json.dumps({"row_id": part["id"], "epoch": 1}),
    )

    worker.finish()

    assert [it for it in pages(app, run.id) if it["epoch"] == 0] == first
    check_complete(app, run.id, shop)


# Messages that nobody understands


def test_a_page_of_a_partition_that_does_not_exist_is_a_dead_letter_with_its_reason(app: Stepfast) -> None:
    """It is not acknowledged as done: its sender meant something by it. (F48)"""
    reading(app)
    rows.change(
        app,
        "INSERT INTO stepfast_job (id, kind, payload) VALUES ('lost', :kind, :payload)",
        kind=PAGE,
        payload='{"row_id": "nowhere", "epoch": 0}',
    )
    SingleThreadedWorker(app).finish()

    ended = rows.ended(app, "lost")
    assert ended is not None
    assert ended["state"] == "dead"
    assert "there is no partition in row nowhere" in ended["last_error"]


@pytest.mark.parametrize("payload", ['{"row_id": "p"}', '{"row_id": "p", "epoch": "x"}', '{"page": 1}'])
def test_a_message_of_another_version_is_a_dead_letter_with_its_reason(app: Stepfast, payload: str) -> None:
    """A field that is missing is not a page that was read. (F48)"""
    reading(app)
    rows.change(
        app,
        "INSERT INTO stepfast_job (id, kind, payload) VALUES ('odd', :kind, :payload)",
        kind=PAGE,
        payload=payload,
    )
    SingleThreadedWorker(app).finish()

    ended = rows.ended(app, "odd")
    assert ended is not None
    assert ended["state"] == "dead"
    assert "ArgumentsError" in ended["last_error"]


# Failures


class Failing(Catalogue):
    """Fails at some requests."""

    failures: set[int]
    asked = 0

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        self.asked += 1
        if self.asked in self.failures:
            raise OSError("no answer")
        return await super().fetch(part, window, cursor)


def test_a_page_that_fails_and_then_succeeds_was_never_counted_as_failed(app: Stepfast) -> None:
    """A try is not a partition: four of them fail, the fifth is read. (F3, F6, F38)"""
    shop = reading(app, feed=Failing, failures={2, 3, 4, 5}, partitioner=ONE)
    run = begin(app)
    worker = SingleThreadedWorker(app)
    worker.finish()

    assert run_of(app, run.id).failed == 0
    check_complete(app, run.id, shop)
    assert len([it for it in shop.requests if it[0] == "page"]) == len(
        [it for it in pages(app, run.id) if it["request_offset"] is not None]
    )


def test_a_request_is_tried_again_as_a_step_and_never_inside_one(app: Stepfast) -> None:
    """One owner of retries, and no sleep under a lease. (F7, F53)"""
    reading(app, feed=Failing, failures={1}, partitioner=ONE)
    begin(app)
    worker = SingleThreadedWorker(app)
    worker.step()
    worker.step()

    lease = taken(worker)
    ending = worker.commit(lease, worker.run_handler(lease))

    assert isinstance(ending, Again)
    assert ending.charged
    feed = app.feeds.get("catalogue").feed
    assert isinstance(feed, Failing)
    assert feed.asked == 1
    assert rows.live(app, lease.job_id)["failures"] == 1  # type: ignore[index]


class Hanging(Catalogue):
    """The first page never comes."""

    hung = 0

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        self.hung += 1
        if self.hung == 1:
            await asyncio.sleep(60)
        return await super().fetch(part, window, cursor)


def test_a_page_that_never_comes_is_given_up_at_its_deadline_and_asked_for_again(app: Stepfast) -> None:
    """The deadline of a request is the step's own, however long a lease is renewed. (F7)"""
    shop = reading(app, feed=Hanging, timeout="200ms", partitioner=ONE)
    run = begin(app)

    began = time.monotonic()
    drain(app, with_scheduled=True)

    assert time.monotonic() - began < 10
    feed = app.feeds.get("catalogue").feed
    assert isinstance(feed, Hanging)
    assert feed.hung == 1 + len([it for it in shop.requests if it[0] == "page"])
    check_complete(app, run.id, shop)


def test_a_partition_is_a_chain_of_short_steps_with_one_request_each(app: Stepfast) -> None:
    """One job reads all pages of a partition: nobody has to find out that its next page has no job. (F7, F23)"""
    shop = reading(app)
    run = begin(app)

    report = drain(app, concurrency=4)

    steps = report.of(PAGE).runs
    assert len(steps) == len(shop.requests) == len(pages(app, run.id))
    assert {it.job_id for it in steps} == {it["job_id"] for it in partitions(app, run.id)}
    assert {it["epoch"] for it in partitions(app, run.id)} == {0}
    assert app.kinds.get(PAGE).timeout == timedelta(seconds=55)
    check_complete(app, run.id, shop)


def test_a_step_goes_on_where_the_last_commit_says(app: Stepfast) -> None:
    reading(app, partitioner=ONE)
    begin(app)
    worker = SingleThreadedWorker(app)
    worker.step()

    for number in range(3):
        lease = taken(worker)
        thought = worker.run_handler(lease)
        assert isinstance(thought.ending, Continue)
        assert (lease.step, thought.ending.cursor[0]) == (number, number + 1)
        worker.commit(lease, thought)
