"""What happened in production to the system that came before this one, each told as it was told, and what happens now.

The source is the simulator over HTTP; two processes take turns, and a test decides who does what next (`worlds`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
import pytest

from stepfast.notifications.settings import NotificationSettings
from stepfast.runs import plan
from stepfast.testing import clock, drain
from stepfast.worker.relay import Relay
from stepfast_diamonds import feed as mapping_feed
from stepfast_diamonds.feed import LABGROWN, NATURAL, nivoda
from stepfast_diamonds.heatmap import DEAREST, nivoda_heatmap
from stepfast_diamonds.mapping import map_offer
from stepfast_diamonds.schema import prepare
from stepfast_diamonds.simulator import Simulator
from tests.diamonds.asking import KEY, settings_for
from tests.diamonds.worlds import World, micros_of, small_heatmap
from tests.support import rows
from tests.support.run_facts import check_counters, consolidations, pages, partitions, run_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast
    from stepfast.admin.run_reports import RunReport
    from tests.diamonds.world_process import Process


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    with World(database_url) as it:
        yield it


def until(world: World, reached: Callable[[], object], steps: int = 400) -> None:
    """Work until something is so."""
    for _ in range(steps):
        if reached():
            return
        world.work(1)
    raise AssertionError("it never came to that")


def begin_fetching(world: World, feed: str = NATURAL, kind: Any = None) -> str:
    """A run whose first page is written."""
    run = world.start(feed, kind)
    until(world, lambda: sum(it["got"] > 0 for it in pages(world.app, run)) >= 1)
    return run


def held_page(process: Process) -> list[str]:
    """The process has read a page and not written it; returns the ids on it."""
    for _ in range(200):
        assert process.read()
        assert process.held is not None
        lease, thought = process.held
        effect: Any = thought.effects[0] if thought.effects else None
        if lease.kind.endswith(".page") and getattr(effect, "observations", None):
            return [it.item_id for it in effect.observations]
        process.write()
    raise AssertionError("no page came")


def fail_one_partition(world: World) -> tuple[RunReport, int]:
    """A run with one partition that failed after its first page, and its number; all others were read."""
    run = begin_fetching(world)
    broken = next(it for it in partitions(world.app, run) if it["seen"])
    with world.trouble(partial_prob=1):
        while rows.live(world.app, broken["job_id"]) is not None:
            rows.change(
                world.app,
                "UPDATE stepfast_job SET state = 'ready', ready_at = 1 WHERE id = :id",
                id=broken["job_id"],
            )  # it is the next
            assert world.processes[0].step()
    world.settle()
    report = world.report(run)
    assert (report.state, report.failed) == ("failed", 1)
    return report, broken["number"]


# Pages and partitions


def test_a_message_that_comes_twice_is_not_taken_for_the_last_page(world: World) -> None:
    """The guard's skip said `hasMore: false`: the partition was "completed" early. (F2, F20)"""
    run = begin_fetching(world)
    late = world.processes[0]
    held_page(late)
    world.bury(late)
    world.work(3)
    before = [(it["state"], it["seq"], it["seen"]) for it in partitions(world.app, run)]

    late.write()

    assert [(it["state"], it["seq"], it["seen"]) for it in partitions(world.app, run)] == before
    world.settle()
    check_counters(world.app, run)
    world.check_equal()


def test_counters_are_what_they_count_after_failures_and_retries(world: World) -> None:
    """Three failed were counted where there were two rows: five tries of a page had counted five times. (F3)"""
    run, number = fail_one_partition(world)
    check_counters(world.app, run.id)

    world.app.runs.retry(run.id)
    check_counters(world.app, run.id)
    assert world.report(run.id).failed == 0
    world.settle()

    check_counters(world.app, run.id)
    assert partitions(world.app, run.id)[number]["state"] == "done"
    assert world.report(run.id).state == "completed"


@pytest.mark.parametrize("stones", ["20", "40", "53"])
def test_a_partition_ends_whether_its_last_page_is_full_or_not(database_url: str, stones: str) -> None:
    """`completePartition(newOffset)` was compared with the old offset: only an empty last page ended anything. (F5)"""
    with World(database_url, profile=stones) as world:
        run = world.sync()

        assert {it["state"] for it in partitions(world.app, run.id)} == {"done"}
        assert (run.state, run.completed) == ("completed", run.partitions)
        world.check_equal()


def test_a_retry_goes_on_where_the_partition_stopped(world: World) -> None:
    """The tool sent the first page again, the guard skipped it: "running at 0 %" for ever. (F20)"""
    run, number = fail_one_partition(world)
    stopped = partitions(world.app, run.id)[number]
    assert stopped["next_offset"] > 0

    world.app.runs.retry(run.id)
    world.settle()

    again = [
        it for it in pages(world.app, run.id) if it["partition_id"] == stopped["id"] and it["epoch"] == 1
    ]
    offsets = [it["request_offset"] for it in again if it["request_offset"] is not None]
    assert offsets[0] == stopped["next_offset"]
    assert world.report(run.id).state == "completed"
    world.check_equal()


def test_a_page_beyond_the_end_brings_no_row_and_no_end_before_the_end(database_url: str) -> None:
    """89,850 of 51,906: a cap at the estimate stopped that, and cut off what had grown meanwhile. (F17, F18)"""
    with World(database_url, faults="none,index_lag_s=0,overrun_pages=40") as world:
        run = begin_fetching(world)
        world.sim.mutate("insert", count=60)  # more than half again
        world.settle()

        assert world.report(run).state == "completed"
        assert world.report(run).requests < 120
        world.sync()
        world.check_equal()


def test_a_short_page_ends_nothing(database_url: str) -> None:
    """35 of 40 came, and a partition of 36,413 stones was closed. (F16)"""
    with World(database_url, faults="none,index_lag_s=2,short_page_prob=1") as world:
        run = world.sync()

        assert all(it["got"] < 20 for it in pages(world.app, run.id))
        assert (run.state, run.unverified) == ("completed", 0)
        world.check_equal()


def test_a_worker_that_dies_between_progress_and_the_next_page_loses_neither(world: World) -> None:
    """Progress was stored, the next message never sent; the one before it was skipped as done. Never fixed. (F1, F4)"""
    run = begin_fetching(world)
    for number, phase in enumerate(["before", "after"] * 3, start=1):
        world.kill(world.processes[0], f"{phase} commit", 1 + number % 2)
        check_counters(world.app, run)
    world.settle()

    assert world.report(run).state == "completed"
    assert {it["state"] for it in partitions(world.app, run)} == {"done"}
    world.check_equal()


# Ranges


def test_no_price_falls_between_two_partitions(database_url: str) -> None:
    """`[a, b-1]` and `[b, c-1]`: what cost b-0.5 was in neither; so was what cost more than the scan. (F24, F25)

    The partitions are those of the heatmap that the feed has; only they are smaller, as the catalogue is.
    """
    shipped = {"partitioner": nivoda_heatmap(lab_grown=False, target=45, fewest=2)}
    with World(database_url, feed=shipped) as world:
        first = world.sync()
        bounds = sorted(
            {
                at
                for it in partitions(world.app, first.id)
                for at in _bounds(it["span"])
                if at is not None and 0 < at < DEAREST["dollar_per_carat"]
            }
        )
        stones = world.living()
        for place, at in enumerate(bounds):
            for shift, stone in zip((-0.5, 0, 0.5), stones[3 * place :], strict=False):
                world.price([stone], at + shift)
        world.price(stones[-2:], 9 * DEAREST["dollar_per_carat"])
        world.let_pass(60)

        run = world.sync(kind="full")

        assert bounds
        assert (run.state, run.unverified) == ("completed", 0)
        world.check_equal()


def _bounds(span: str) -> list[float | None]:
    found = json.loads(span).get("dollar_per_carat")
    return [None, None] if found is None else [found.get("from"), found.get("to")]


def test_a_price_whose_counts_are_wrong_is_noticed_and_the_other_one_is_not(database_url: str) -> None:
    """Of 437,849 stones the ranges of `dollar_value` counted 428,771, and no alert was raised. (F24)"""
    by_value = {"partitioner": small_heatmap("dollar_value")}
    with World(database_url, faults="none,index_lag_s=0,dollar_value_loss=0.1", feed=by_value) as world:
        world.sync()

        titles = [it["title"] for it in rows.query(world.app, "SELECT title FROM stepfast_alert")]
        assert len(titles) == 1
        assert set(world.shown()) < set(world.truth())

        world.feed = {}
        for it in list(world.processes):
            world.bury(it)
        world.sync(kind="full")
        assert rows.count(world.app, "stepfast_alert") == 1
        world.check_equal()


def test_a_crowd_at_one_price_is_divided_and_no_partition_is_empty_beside_a_huge_one(
    database_url: str,
) -> None:
    """Splitting in proportion made empty partitions beside huge ones, and inverted ranges that brought others. (F26)"""
    with World(database_url, profile="150") as world:
        world.price(world.living()[:100], 150.4)
        world.let_pass(10)
        run = world.sync()

        sizes = [it["seen"] for it in partitions(world.app, run.id) if it["state"] == "done"]
        assert max(sizes) <= 1.5 * 45
        assert len(sizes) >= 3
        for it in partitions(world.app, run.id):
            low, high = _bounds(it["span"])
            assert low is None or high is None or low < high
        world.check_equal()


# Runs


def test_a_failed_partition_neither_holds_everything_back_nor_is_forgotten(world: World) -> None:
    """One of thirty held all fresh prices back; so 70 % were taken for all, and up to 30 % of the updates lost. (F9, F36)"""
    run, number = fail_one_partition(world)
    assert world.shown() == {}

    world.app.runs.consolidate(run.id, force=True)
    world.settle()

    forced = world.report(run.id)
    assert forced.state == "published_partial"
    assert (forced.watermark_after, world.watermark()) == (None, None)
    assert 0 < len(world.shown()) < len(world.truth())
    world.check_covered(NATURAL, world.at)
    following = world.sync()
    assert following.state == "completed"
    world.check_equal()
    assert number in range(run.partitions)


def test_a_failed_run_is_told_although_the_mail_provider_refuses(world: World) -> None:
    """The provider's rate limit dropped the mails, and the error was ignored. (F40)"""
    from tests.support.mail_receiver import receiving_mail

    fail_one_partition(world)
    with receiving_mail() as box:
        relay = Relay(world.app.database, NotificationSettings(alert_urls=(box.url,)))
        box.refuse = True
        relay.drain()
        refused = list(box.subjects)
        box.refuse = False
        world.let_pass(3_600)
        relay.drain()

    assert refused == []
    assert box.subjects == ["Consolidation Skipped"]


def test_what_changes_while_a_run_reads_and_consolidates_is_read_by_the_next(world: World) -> None:
    """The watermark was the time of completion, which came twenty minutes after the page had been read. (F8)"""
    run = begin_fetching(world)
    read = {it["item_id"] for it in rows.query(world.app, "SELECT item_id FROM stepfast_raw")}
    changed = sorted(read)[:3]
    world.sim.mutate("price", ids=changed)
    until(world, lambda: run_of(world.app, run).state == "applying")
    world.let_pass(20 * 60)
    world.settle()
    first = world.report(run)
    assert first.watermark_after == first.window_to
    assert world.watermark() == micros_of(first.window_to)

    second = world.sync()

    assert second.kind == "incremental"
    assert second.window_from is not None
    assert second.window_from <= first.window_to
    world.check_equal()


def test_two_feeds_at_the_same_time_keep_their_rows_apart(database_url: str) -> None:
    """The consolidator of one claimed the raw rows of the other, and stamped the wrong feed on them. (F12, F32)"""
    with World(database_url, profile="60+60-labgrown") as world:
        runs = [world.start(NATURAL), world.start(LABGROWN)]
        world.settle()

        assert [world.report(it).state for it in runs] == ["completed", "completed"]
        for feed in (NATURAL, LABGROWN):
            world.check_equal(feed)
        assert not set(world.table(NATURAL)) & set(world.table(LABGROWN))


def test_nobody_asks_the_source_for_a_cancelled_run(world: World) -> None:
    """Workers went on for hours. (F39)"""
    run = begin_fetching(world)
    for it in world.processes:
        held_page(it)
    world.app.runs.cancel(run)
    asked = world.sim.statistics()["requests"]
    known = rows.count(world.app, "stepfast_raw")

    for it in world.processes:
        it.write()
    world.settle()

    assert world.sim.statistics()["requests"] == asked
    assert rows.count(world.app, "stepfast_raw") == known
    world.app.runs.resume(run)
    world.settle()
    assert world.report(run).state == "completed"
    world.check_equal()


def test_a_run_that_nobody_works_on_does_not_run_for_ever(world: World) -> None:
    """A job was purged by hand; the run showed "running" until somebody looked. (F38)"""
    run = begin_fetching(world)
    rows.change(world.app, "DELETE FROM stepfast_job")

    world.settle()

    assert world.report(run).state == "completed"
    world.check_equal()


# Consolidation


def test_two_who_consolidate_at_once_apply_every_row_once(database_url: str) -> None:
    """SKIP LOCKED outside of a transaction: both replicas worked on the same rows. (F30, F31)"""
    with World(database_url, feed={"batch": 10, "chunk": 5}) as world:
        run = world.start()
        until(world, lambda: run_of(world.app, run).state == "applying")
        for _ in range(100):
            for it in world.processes:
                it.read()  # both have read before either has written
            for it in world.processes:
                it.write()
            if not rows.count(world.app, "stepfast_job"):
                break
        world.settle()

        report = world.report(run)
        assert (report.state, report.applied) == ("completed", len(world.truth()))
        assert consolidations(world.app, run) == 1
        world.check_equal()


def test_rows_can_be_mapped_again_without_asking_for_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The payload was nulled once it was consolidated: a mended mapper had nothing to map. (F35)"""

    def wrong(*given: Any, **named: Any) -> Any:
        return msgspec.structs.replace(map_offer(*given, **named), color="Z")

    monkeypatch.setattr(mapping_feed, "map_offer", wrong)
    world.sync()
    assert {it["color"] for it in world.shown().values()} == {"Z"}
    monkeypatch.undo()
    asked = world.sim.statistics()["requests"]

    run = world.app.runs.remap(NATURAL)
    world.settle()

    assert world.report(run.id).state == "completed"
    assert world.sim.statistics()["requests"] == asked
    world.check_equal()


def test_whatever_changes_about_a_stone_is_applied(world: World) -> None:
    """Rows were written only if the price or `source_updated_at` differed, which is always NULL. Never fixed. (F34)"""
    world.sync()
    recertified = world.living()[:5]
    before = {it: world.shown()[it]["certificate_number"] for it in recertified}
    world.let_pass(60)
    world.sim.mutate("recertificate", ids=recertified)
    world.let_pass(60)

    world.sync()

    after = world.shown()
    assert [it for it in recertified if after[it]["certificate_number"] != before[it]]
    world.check_covered(NATURAL, world.at)


def test_a_stone_that_was_sold_does_not_stay_on_sale(world: World) -> None:
    """`softDeleteDiamond` had no caller. Never fixed. (F37)"""
    world.sync()
    sold = world.living()[:3]
    world.let_pass(60)
    world.sim.mutate("hold", ids=sold[:2])
    world.sim.mutate("delete", ids=sold[2:])
    gone: list[int] = []
    for _ in range(2):
        world.let_pass(60)
        world.sync()
        world.let_pass(60)
        gone.append(world.sync(kind="full").gone)

    assert gone == [0, 3]
    world.check_equal()


# The source's patience


def test_a_run_logs_in_once_however_many_pages_it_reads(database_url: str) -> None:
    """One adapter, and one login, per message. (F45)"""
    settings = {"page_size": 20, "secret_key": KEY}
    with World(database_url, settings=settings, faults="none,logins_per_minute=2") as world:
        run = world.sync()

        assert run.requests > 20
        assert world.sim.statistics()["logins"] == 1


def test_both_feeds_with_many_workers_stay_below_the_limit_of_the_source(app: Stepfast) -> None:
    """Thirty workers, then two feeds at once: the firewall answered 403 to all. (F44)

    Ours and the source's clock stand still while they work: at one instant the source takes 30 requests, of which 10
    at the same time, and the limits give 20 and 8. How fast this machine is does not matter.
    """
    source = "requests_per_s=200,burst=30,concurrency=10,limit_answer=waf,latency_ms=50,latency_spread=0"
    few = {"settle": "0s", "ahead_at_most": "1h", "partitioner": small_heatmap(target=15)}
    with (
        clock(app) as time,
        Simulator("150+150-labgrown", seed=7, faults=f"none,{source}", speed=0, start=time.freeze()) as sim,
        patch.object(
            plan, "LONGEST_WAIT", timedelta(0)
        ),  # a count that has to wait is asked at a later instant
    ):
        prepare(app)
        settings = settings_for(sim, rate=200, concurrency=8, page_size=20)
        nivoda(app, settings=settings, natural=few, labgrown=few)
        runs = [app.runs.start(it) for it in (NATURAL, LABGROWN)]
        for _ in range(60):
            drain(app, concurrency=30, raise_errors=False)
            told = Counter(sim.statistics())
            if told["status 403"] or all(run_of(app, it.id).ended_at for it in runs):
                break
            time.advance("1s")
            sim.advance(1)

    assert told["status 403"] == told["status 429"] == 0
    assert told["status 200"] == told["requests"] > 100
    assert {run_of(app, it.id).state for it in runs} == {"completed"}
