"""A failing source pauses its feed for all workers without spending attempts; the run goes on when the source answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from stepfast import AuthError, OutageError, Rate, ThrottledError
from stepfast.clock import moment
from stepfast.errors import UnreachableError
from stepfast.jobs.enqueue import enqueue
from stepfast.jobs.state import NewJob
from stepfast.runs import breaker
from stepfast.runs.breaker import LONGEST_PAUSE, EndPause, SourceError, SourceErrorKind, own_wait, pause_for
from stepfast.runs.partitioning.partitioners import Fixed
from stepfast.testing import clock, drain
from tests.support import rows
from tests.support.events import Told, hearing, named
from tests.support.feeds import Catalogue, Shop, prepare, price_ranges, target
from tests.support.run_facts import begin, check_complete, check_counters, partitions, run_of
from tests.support.single_threaded_worker import SingleThreadedWorker

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.feed import Page
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.window import Window

HALF_AN_HOUR = timedelta(minutes=30)


def refusal(status: int, **headers: str) -> httpx.HTTPStatusError:
    """What a feed that uses httpx meets."""
    request = httpx.Request("GET", "https://source.example/items")
    response = httpx.Response(
        status, headers={name.replace("_", "-"): value for name, value in headers.items()}, request=request
    )
    return httpx.HTTPStatusError(f"answered {status}", request=request, response=response)


@dataclass
class Troubled:
    """The source is in trouble for a span of the database's time, from the first request on."""

    app: Stepfast
    error: Exception
    lasts: timedelta = HALF_AN_HOUR
    only: str | None = None  # a partition; None: all
    met: list[datetime] = field(default_factory=list)  # when it was asked in vain
    answered: list[datetime] = field(default_factory=list)

    def __call__(self, _what: str, part: Range, _cursor: Cursor | None) -> None:
        now = moment(rows.now(self.app))
        if self.only is not None and part.name != self.only:
            return
        if not self.met or now < self.met[0] + self.lasts:
            self.met.append(now)
            raise self.error
        self.answered.append(now)


def reading(
    app: Stepfast, shop: Shop | None = None, feed: type[Catalogue] = Catalogue, **settings: Any
) -> Shop:
    shop = shop or Shop.with_items(40)
    app.feed(feed(shop, **settings))
    prepare(app)
    return shop


def feed_row(app: Stepfast) -> rows.Row:
    return rows.query(app, "SELECT * FROM stepfast_feed")[0]


def titles(app: Stepfast) -> list[str]:
    return [str(it["title"]) for it in rows.query(app, "SELECT title FROM stepfast_alert ORDER BY id")]


def failures(app: Stepfast) -> int:
    """Attempts that any job has spent."""
    both = "(SELECT failures FROM stepfast_job UNION ALL SELECT failures FROM stepfast_archive) jobs"
    return int(rows.query(app, f"SELECT sum(failures) AS n FROM {both}")[0]["n"])


TROUBLES: dict[str, Exception] = {
    "429": refusal(429),
    "429 with a time": refusal(429, Retry_After="90"),
    "403": refusal(403),
    "503": refusal(503),
    "no connection": httpx.ConnectError("no route to host"),
    "no answer": TimeoutError(),
    "throttled": ThrottledError("slow down", retry_after="2m"),
    "outage": OutageError("maintenance"),
    "auth": AuthError("the token was revoked"),
}


@pytest.mark.parametrize("error", TROUBLES.values(), ids=TROUBLES)
def test_half_an_hour_of_trouble_costs_no_attempt_and_the_run_comes_to_its_end(
    app: Stepfast, error: Exception
) -> None:
    """(T16, F39, F53)"""
    shop = reading(app)
    run = begin(app)
    shop.before = trouble = Troubled(app, error)

    drain(app, with_scheduled=True, concurrency=4)

    check_complete(app, run.id, shop)
    assert target(app) == shop.prices()
    assert failures(app) == 0
    assert trouble.met[-1] - trouble.met[0] > timedelta(minutes=10)
    assert len(trouble.met) < 40  # four partitions, half an hour
    row = feed_row(app)
    assert (row["troubles"], row["paused_until"], row["pause_reason"], row["probe"]) == (0, None, None, None)


def test_planning_waits_for_its_source_too(app: Stepfast) -> None:
    """(T16, F27)"""
    shop = reading(app, partitioner=Fixed(price_ranges(500), counted=True))
    shop.before = Troubled(app, refusal(503))
    run = begin(app)

    drain(app, with_scheduled=True)

    check_complete(app, run.id, shop)
    assert failures(app) == 0


def test_a_run_by_the_calendar_waits_for_the_clock_of_its_source(app: Stepfast) -> None:
    """A minute's outage does not cost a day. (F15)"""
    asked: list[int] = []

    class Timed(Catalogue):
        def now(self) -> datetime:
            asked.append(1)
            if len(asked) < 4:
                raise OutageError("not yet")
            return moment(rows.now(app))

    shop = reading(app, feed=Timed)
    with app.transaction() as tx:
        enqueue(tx, NewJob(id="tick", queue="default", kind="catalogue.start", payload="{}"))

    drain(app, with_scheduled=True)

    assert len(asked) == 4
    assert target(app) == shop.prices()
    assert failures(app) == 0


async def until(fact: Callable[[], bool]) -> None:
    while not fact():  # noqa: ASYNC110 - it is in the database
        await asyncio.sleep(0.01)


def overlapping(app: Stepfast, breaks: int, told: Told) -> type[Catalogue]:
    """A feed whose first requests break off once another one, asked for at the same time, was answered and committed."""

    def reported() -> int:
        return len(named(told, "source.unanswered")) + len(named(told, "source.troubled"))

    class Overlapping(Catalogue):
        asked = 0

        async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
            self.asked += 1
            number = self.asked
            if number <= breaks:
                await until(lambda: rows.count(app, "stepfast_page", "request_offset IS NOT NULL") > 0)
                raise httpx.ReadError("broke off")
            if number > breaks + 1:  # one answer is enough until then
                await until(lambda: reported() >= breaks)
            return await super().fetch(part, window, cursor)

    return Overlapping


@pytest.mark.parametrize(("breaks", "paused"), [(1, 0), (2, 1)])
def test_the_first_request_that_breaks_off_while_another_is_answered_pauses_nobody_else(
    app: Stepfast, breaks: int, paused: int
) -> None:
    with hearing() as told:
        shop = reading(app, feed=overlapping(app, breaks, told))
        run = begin(app)
        drain(app, with_scheduled=True, concurrency=4)

    check_complete(app, run.id, shop)
    assert failures(app) == 0
    assert (len(named(told, "source.unanswered")), len(named(told, "source.troubled"))) == (1, paused)


# Everybody waits


def test_who_comes_during_the_pause_does_not_ask(app: Stepfast) -> None:
    """One partition meets the throttle, the other three spare the source. (F53)"""
    shop = reading(app)
    run = begin(app)
    worker = SingleThreadedWorker(app)
    worker.step()
    shop.before = Troubled(app, refusal(429, Retry_After="60"))

    for _ in range(4):
        assert worker.step() is not None

    assert len(shop.requests) == 1
    assert rows.count(app, "stepfast_job", "state = 'scheduled'") == 4
    assert all(
        it["ready_at"] > rows.now(app) + 50 * rows.SECOND
        for it in rows.query(app, "SELECT ready_at FROM stepfast_job")
    )
    assert [it["state"] for it in partitions(app, run.id)] == ["ready"] * 4


def test_when_the_pause_is_over_one_asks_first_and_not_the_one_who_met_it(app: Stepfast) -> None:
    """A question that the source cannot answer must not keep the others from asking."""
    shop = reading(app)
    begin(app)
    worker = SingleThreadedWorker(app)
    worker.step()
    shop.before = Troubled(app, refusal(429, Retry_After="60"))
    for _ in range(4):
        worker.step()

    with clock(app) as time:
        time.freeze(moment(feed_row(app)["paused_until"]))
        rows.change(app, "UPDATE stepfast_job SET state = 'ready', ready_at = 1 WHERE state = 'scheduled'")
        for _ in range(4):
            worker.step()

    assert len(shop.requests) == 2, "only one of four has asked again"
    assert shop.requests[1][1] != shop.requests[0][1]


def test_many_who_meet_the_same_trouble_count_as_one(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    """Otherwise four processes would turn a second into eight."""
    workers, shop = processes(app, another_app, 4)
    shop.before = Troubled(app, refusal(429, Retry_After="30"))
    thoughts = [(it, lease, it.run_handler(lease)) for it in workers if (lease := it.claim()) is not None]
    assert len(shop.requests) == 4

    for worker, lease, thought in thoughts:
        worker.commit(lease, thought)

    row = feed_row(app)
    assert row["troubles"] == 1
    assert row["paused_until"] - rows.now(app) <= 32 * rows.SECOND


def test_the_longest_of_several_waits_that_the_source_asks_for_is_kept(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    workers, shop = processes(app, another_app, 2)
    waits = iter(["10", "120"])
    shop.before = lambda *_: _raise(refusal(429, Retry_After=next(waits)))
    thoughts = [(it, lease, it.run_handler(lease)) for it in workers if (lease := it.claim()) is not None]

    for worker, lease, thought in thoughts:
        worker.commit(lease, thought)

    assert feed_row(app)["paused_until"] - rows.now(app) > 110 * rows.SECOND


def processes(
    app: Stepfast, another_app: Callable[[], Stepfast], count: int
) -> tuple[list[SingleThreadedWorker], Shop]:
    """So many processes that read one run, each with what it remembers itself."""
    shop = reading(app)
    begin(app)
    first = SingleThreadedWorker(app)
    first.step()
    others = [another_app() for _ in range(count - 1)]
    for it in others:
        it.feed(Catalogue(shop))
    return [first, *(SingleThreadedWorker(it, f"lone {number}") for number, it in enumerate(others))], shop


def test_who_works_beside_the_one_who_met_it_knows_before_it_is_written(app: Stepfast) -> None:
    shop = reading(app)
    begin(app)
    worker = SingleThreadedWorker(app)
    worker.step()
    shop.before = Troubled(app, refusal(503))
    first, second = worker.claim(), worker.claim()
    assert first is not None
    assert second is not None

    thoughts = [worker.run_handler(first), worker.run_handler(second)]

    assert len(shop.requests) == 1
    assert [type(it.ending).__name__ for it in thoughts] == ["Snooze", "Snooze"]


def _raise(error: Exception) -> None:
    raise error


def test_a_source_that_says_when_to_come_back_is_not_asked_before(app: Stepfast) -> None:
    shop = reading(app)
    run = begin(app)
    shop.before = trouble = Troubled(app, refusal(429, Retry_After="600"), timedelta(seconds=1))

    drain(app, with_scheduled=True)

    check_complete(app, run.id, shop)
    assert len(trouble.met) == 1
    assert trouble.answered[0] - trouble.met[0] >= timedelta(seconds=600)


def test_a_good_answer_does_not_end_a_pause_that_began_after_its_request(
    app: Stepfast, another_app: Callable[[], Stepfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "BELIEVED", 0.0)
    (one, other), shop = processes(app, another_app, 2)
    rows.change(app, "UPDATE stepfast_feed SET troubles = 1, paused_until = 1, troubled_at = 1")
    good, bad = one.claim(), other.claim()
    assert good is not None
    assert bad is not None
    well = one.run_handler(good)
    assert any(isinstance(it, EndPause) for it in well.effects)
    shop.before = lambda *_: _raise(refusal(503))
    other.commit(bad, other.run_handler(bad))

    one.commit(good, well)

    row = feed_row(app)
    assert row["troubles"] == 2
    assert row["paused_until"] > rows.now(app)


def test_a_good_answer_ends_the_pause_for_everybody(
    app: Stepfast, another_app: Callable[[], Stepfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "BELIEVED", 0.0)
    (one, other), shop = processes(app, another_app, 2)
    rows.change(app, "UPDATE stepfast_feed SET troubles = 5, paused_until = 1, troubled_at = 1")

    one.step()
    other.step()

    assert len(shop.requests) == 2
    assert feed_row(app)["troubles"] == 0


# What waiting does not cure


@pytest.mark.parametrize(
    "error", [ValueError("not JSON"), refusal(404), KeyError("items")], ids=["data", "404", "bug"]
)
def test_a_bad_page_spends_attempts_and_pauses_nobody(app: Stepfast, error: Exception) -> None:
    shop = reading(app)
    run = begin(app)
    shop.before = Troubled(app, error, timedelta(days=1), only=price_ranges(250, 500, 750)[1].name)

    drain(app, with_scheduled=True, raise_errors=False)

    assert run_of(app, run.id).state == "failed"
    assert failures(app) == 5
    assert feed_row(app)["troubles"] == 0
    assert titles(app) == ["Consolidation Skipped"]


def test_a_wait_has_an_end_and_says_what_for(app: Stepfast) -> None:
    """(rule 15)"""
    shop = reading(app, wait_at_most="3h")
    run = begin(app)
    shop.before = trouble = Troubled(app, refusal(503), timedelta(days=9))

    drain(app, with_scheduled=True, raise_errors=False)

    found = run_of(app, run.id)
    assert (found.state, found.failed) == ("failed", 4)
    errors = [it["last_error"] for it in partitions(app, run.id)]
    assert all("waited for the source for 3 h" in it and "answered 503" in it for it in errors)
    assert trouble.met[-1] - trouble.met[0] < timedelta(hours=4)
    check_counters(app, run.id)


def test_a_plan_does_not_wait_for_ever_either(app: Stepfast) -> None:
    """(rule 15)"""
    shop = reading(app, partitioner=Fixed(price_ranges(500), counted=True), wait_at_most="2h")
    shop.before = Troubled(app, refusal(503), timedelta(days=9))
    run = begin(app)

    drain(app, with_scheduled=True, raise_errors=False)

    found = run_of(app, run.id)
    assert found.state == "failed"
    assert "waited for the source for 2 h" in str(found.reason)


def test_a_page_that_the_source_cannot_answer_fails_while_the_others_are_read(app: Stepfast) -> None:
    """A 500 for one request is no outage if the source answers all others."""
    shop = reading(app, Shop.with_items(400), limits=[Rate(1, per="1s", name="source")])
    run = begin(app)
    bad = price_ranges(250, 500, 750)[1].name
    shop.before = trouble = Troubled(app, refusal(500), timedelta(days=9), only=bad)

    drain(app, with_scheduled=True, raise_errors=False)

    found = run_of(app, run.id)
    assert (found.state, found.failed, found.completed) == ("failed", 1, 3)
    assert timedelta(minutes=15) < trouble.met[-1] - trouble.met[0] < timedelta(minutes=40)
    assert [it["last_error"] for it in partitions(app, run.id) if it["state"] == "failed"] == [
        "HTTPStatusError: answered 500"
    ]
    assert len(trouble.met) < 30


def test_a_source_that_hangs_is_away(app: Stepfast) -> None:
    """It costs no attempt: nothing is wrong with the request. (F39)"""

    class Hanging(Catalogue):
        hangs = True

        async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
            if self.hangs:
                type(self).hangs = False
                await asyncio.sleep(60)
            return await super().fetch(part, window, cursor)

    shop = reading(app, feed=Hanging, timeout="300ms")
    run = begin(app)

    drain(app, with_scheduled=True)

    check_complete(app, run.id, shop)
    assert failures(app) == 0


def test_plain_functions_that_hang_hold_up_neither_the_worker_nor_other_feeds(app: Stepfast) -> None:
    """More of them than asyncio has threads: each has a thread of its own, and no other call waits for it."""
    released, stuck = threading.Event(), threading.Semaphore(0)

    def hang(*_: object) -> Page:
        stuck.release()
        released.wait(60)
        raise OSError("it was released")

    parts = Fixed(price_ranges(*range(50, 1_000, 50)))
    app.feed(Catalogue(Shop.with_items(40), name="hanging", fetch=hang, partitioner=parts, timeout="3s"))
    shop = reading(app)
    hanging = app.runs.start("hanging")
    try:
        with app.worker(concurrency=20):
            assert all(stuck.acquire(timeout=30) for _ in range(12))
            run = begin(app)
            rows.eventually(lambda: run_of(app, run.id).state == "completed")
            rows.eventually(lambda: rows.count(app, "stepfast_feed", "id = 'hanging' AND troubles > 0") == 1)
    finally:
        released.set()

    assert target(app) == shop.prices()
    assert run_of(app, hanging.id).state == "fetching"
    assert failures(app) == 0


def test_a_database_without_a_free_connection_costs_no_attempt(app: Stepfast) -> None:
    """Waiting for a connection is no failure of the page. (F54)"""
    shop = reading(app)
    run = begin(app)
    outage = UnreachableError("too many connections")
    outage.origin = app.database.origin
    shop.before = Troubled(app, outage, timedelta(seconds=30))

    drain(app, with_scheduled=True)

    check_complete(app, run.id, shop)
    assert failures(app) == 0
    assert feed_row(app)["troubles"] == 0


# People


def test_a_source_that_does_not_let_us_in_is_told_at_once(app: Stepfast) -> None:
    shop = reading(app)
    begin(app)
    worker = SingleThreadedWorker(app)
    worker.step()
    shop.before = Troubled(app, refusal(401))

    worker.step()

    assert titles(app) == ["Source in trouble"]
    (found,) = rows.query(app, "SELECT body, severity FROM stepfast_alert")
    assert "renew the credentials" in found["body"]
    assert "answered 401" in found["body"]


def test_a_short_trouble_is_told_to_nobody(app: Stepfast) -> None:
    shop = reading(app)
    begin(app)
    shop.before = Troubled(app, refusal(503), timedelta(minutes=2))

    drain(app, with_scheduled=True)

    assert titles(app) == []


def test_a_long_trouble_is_told_once_not_once_per_try(app: Stepfast) -> None:
    shop = reading(app)
    begin(app)
    shop.before = Troubled(app, refusal(503))

    drain(app, with_scheduled=True)

    assert titles(app) == ["Source in trouble"]
    assert rows.query(app, "SELECT raised FROM stepfast_alert")[0]["raised"] == 1


# How long


def test_the_pause_doubles_up_to_five_minutes() -> None:
    outage = SourceError(SourceErrorKind.OUTAGE)

    spans = [pause_for(outage, troubles, 1.0).total_seconds() for troubles in range(11)]

    assert spans == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_the_pause_is_never_shorter_than_the_source_asks_for() -> None:
    asked = SourceError(SourceErrorKind.THROTTLE, timedelta(hours=1))

    assert all(pause_for(asked, 0, dice / 10) >= timedelta(hours=1) for dice in range(10))


def test_pauses_differ_so_that_not_all_come_back_at_once() -> None:
    outage = SourceError(SourceErrorKind.OUTAGE)

    assert pause_for(outage, 20, 0.0) < pause_for(outage, 20, 0.9) <= LONGEST_PAUSE


def test_who_meets_trouble_alone_asks_more_and_more_seldom() -> None:
    second = timedelta(seconds=1)

    assert own_wait(second, timedelta(0)) == second
    assert own_wait(second, timedelta(seconds=200)) == timedelta(seconds=100)
    assert own_wait(second, timedelta(hours=9)) == LONGEST_PAUSE


def test_a_partition_waits_a_day_if_the_feed_says_nothing_else(app: Stepfast) -> None:
    reading(app)

    assert app.feeds.get("catalogue").wait_at_most == timedelta(days=1)
