"""Acceptance tests of a catalogue sync, with the simulator and its oracle: those that need a source like Nivoda.

The numbers are those of the list that they are from. The others are told where their part is tested: grep for `T3`.
"""

from __future__ import annotations

import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stepfast_diamonds.feed import LABGROWN, NATURAL, nivoda
from stepfast_diamonds.heatmap import nivoda_heatmap
from stepfast_diamonds.schema import prepare
from stepfast_diamonds.simulator import Simulator
from tests.crash.workers import Fleet
from tests.diamonds.asking import KEY, settings_for
from tests.diamonds.test_incidents import begin_fetching, fail_one_partition, held_page, until
from tests.diamonds.worlds import SECOND, World
from tests.support import rows
from tests.support.run_facts import partitions, run_of

if TYPE_CHECKING:
    from stepfast import Stepfast

HALF_AN_HOUR = 1_800


@pytest.mark.parametrize("per_second", [0.01, 0.05, 0.2])
def test_t5_stones_that_leave_take_no_others_with_them(database_url: str, per_second: float) -> None:
    """Each has just been read, so that all behind it move up; what a verified partition covers is all there."""
    with World(database_url, profile="150", faults="none,index_lag_s=0", feed={"settle": "0s"}) as world:
        run = world.start()
        due, left = 0.9, 0
        while not run_of(world.app, run).ended_at:
            began = world.at
            world.work(1)
            due += per_second * (world.at - began) / SECOND
            read = rows.query(world.app, "SELECT item_id FROM stepfast_raw ORDER BY observed_at, item_id")
            living = set(world.truth())
            behind = [it["item_id"] for it in read if it["item_id"] in living]
            while due >= 1 and behind:
                due, left = due - 1, left + 1
                world.sim.mutate("delete" if left % 3 == 0 else "hold", ids=[behind.pop()])
        world.check()

        report = world.report(run)
        assert report.state == "completed"
        assert (report.gone, rows.count(world.app, "diamonds", "deleted_at IS NOT NULL")) == (0, 0)
        assert report.unverified == rows.count(world.app, "stepfast_debt")
        assert left >= 1


@pytest.mark.parametrize("skew", [-90, 0, 90])
@pytest.mark.parametrize("lag", [0, 300])
def test_t6_whatever_changes_around_a_run_is_in_the_table_after_the_next(
    database_url: str, skew: int, lag: int
) -> None:
    """Before its window ends, at that very instant, while it reads, and while it consolidates."""
    faults = f"none,index_lag_s={lag},clock_skew_s={skew}"
    with World(database_url, faults=faults, feed={"settle": "120s", "lookback": "15m"}) as world:
        world.let_pass(0.7)  # a whole second: the source tells no fractions
        world.let_pass(600)
        world.sync()
        stones = iter(world.living())

        def change() -> None:
            world.sim.mutate("price", ids=[next(stones), next(stones)])

        world.let_pass(600)
        change()
        world.let_pass(1)
        at = world.sim.now
        change()
        world.let_pass(120)
        run = world.start()
        assert world.report(run).window_to == at
        while not run_of(world.app, run).ended_at:
            world.work(4)
            change()
        change()
        world.let_pass(600)

        world.sync()

        world.check_equal()


def test_t7_what_was_forced_is_owed_until_it_is_read(database_url: str) -> None:
    with World(database_url) as world:
        run, _ = fail_one_partition(world)
        world.app.runs.consolidate(run.id, force=True)
        world.settle()
        assert world.watermark() is None
        assert len(world.owed(NATURAL)) > 0

        world.let_pass(60)
        assert world.sync().state == "completed"
        assert world.owed(NATURAL) == set()
        world.check_equal()


def test_t10_a_retry_at_once_is_not_taken_for_the_message_that_failed(database_url: str) -> None:
    """A broker that remembers ids for ten minutes drops what it knows: a retry has an id of its own."""
    with World(database_url) as world:
        run, number = fail_one_partition(world)
        known = {it["id"] for it in rows.query(world.app, "SELECT id FROM stepfast_archive")}

        world.app.runs.retry(run.id)

        assert partitions(world.app, run.id)[number]["job_id"] not in known
        world.settle()
        assert world.report(run.id).state == "completed"
        world.check_equal()


def test_t13_an_older_page_of_a_backfill_does_not_undo_what_was_read_since(database_url: str) -> None:
    """It was asked for before a stone changed, and is written after the next run has read the change."""
    with World(database_url) as world:
        world.sync()
        world.let_pass(60)
        backfill = world.start(NATURAL, "backfill", from_=None, to=world.sim.now - timedelta(seconds=30))
        late = world.processes[0]
        read = held_page(late)
        world.let_pass(60)
        world.sim.mutate("price", ids=read[:3])
        world.let_pass(60)
        run = world.start()
        for _ in range(300):
            if run_of(world.app, run).ended_at or not world.processes[1].step():
                break
        assert world.report(run).state == "completed"
        world.check_equal()

        late.write()
        world.settle()

        assert world.report(backfill).state == "completed"
        world.check_equal()


def test_t14_rules_that_change_during_a_run_are_for_the_next_one(database_url: str) -> None:
    """All rows of a run have one version; then a repricing brings all of them to the newest."""
    with World(database_url, feed={"batch": 20, "chunk": 10}) as world:
        run = world.start()
        until(world, lambda: world.report(run).applied > 0)
        version = world.new_rules(25)
        until(world, lambda: run_of(world.app, run).state != "applying")  # all of it is published

        assert {it["ruleset_version"] for it in world.shown().values()} == {1}
        world.check_equal()

        world.settle()

        assert {it["ruleset_version"] for it in world.shown().values()} == {version}
        world.check_equal()


@pytest.mark.parametrize(
    "trouble",
    [
        {"gateway_prob": 1},
        {"requests_per_s": 0.0001, "burst": 1, "limit_answer": "429"},
        {"requests_per_s": 0.0001, "burst": 1, "limit_answer": "waf"},
    ],
    ids=["outage", "429", "403"],
)
def test_t16_half_an_hour_of_trouble_costs_no_attempt(database_url: str, trouble: dict[str, Any]) -> None:
    with World(database_url) as world:
        run = begin_fetching(world)
        began, asked = world.at, world.sim.statistics()["requests"]
        with world.trouble(**trouble):
            while world.at - began < HALF_AN_HOUR * SECOND:
                world.work(1)
            asked = world.sim.statistics()["requests"] - asked
        world.sim._service.world.throttle = type(world.sim._service.world.throttle)()
        world.settle()

        assert world.report(run).state == "completed"
        assert asked < 60, "it was left alone"
        assert rows.count(world.app, "stepfast_archive", "failures > 0 OR state <> 'done'") == 0
        world.check_equal()


@pytest.mark.parametrize("how", ["expiry", "revocation"])
def test_t17_twenty_processes_whose_token_ends_log_in_once(database_url: str, how: str) -> None:
    with World(
        database_url,
        settings={"page_size": 20, "secret_key": KEY},
        faults="none,index_lag_s=0,token_lifetime_s=3600",
        processes_at_once=20,
    ) as world:
        world.start()
        until(world, lambda: rows.count(world.app, "stepfast_page") > 5)
        for it in world.processes:
            it.read()  # each has asked with the first token
        assert world.sim.statistics()["logins"] == 1

        if how == "expiry":
            world.let_pass(3_600)
        else:
            world.sim.revoke_tokens()
        world.settle()

        assert world.sim.statistics()["logins"] == 2
        world.check_equal()


@pytest.mark.only_on("sqlite")
def test_t18_a_worker_that_is_told_to_stop_leaves_no_lease_and_the_next_goes_on_at_once(
    app: Stepfast, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Simulator("1k", seed=7, faults="none,latency_ms=5") as sim:
        asks = {
            "URL": sim.url,
            "USERNAME": sim.username,
            "PASSWORD": sim.password,
            "RATE": "0",
            "CONCURRENCY": "0",
        }
        for name, value in asks.items():
            monkeypatch.setenv(f"NIVODA_{name}", value)
        prepare(app)
        nivoda(app, settings=settings_for(sim), natural={"settle": "0s"})
        fleet = Fleet(app, tmp_path, database_url, target="tests.diamonds.process:app")
        try:
            run = app.runs.start(NATURAL)
            first = fleet.worker(concurrency=4)
            rows.eventually(lambda: rows.count(app, "stepfast_page") > 10)
            first.signal(signal.SIGTERM)
            first.ended()
            left, written = (
                rows.count(app, "stepfast_job", "state = 'leased'"),
                rows.count(app, "stepfast_page"),
            )
            second = fleet.worker(concurrency=4)
            second.says("worker.started")
            began = time.monotonic()
            rows.eventually(lambda: rows.count(app, "stepfast_page") > written)
            waited = time.monotonic() - began
        finally:
            fleet.close()

    assert run_of(app, run.id).ended_at is None
    assert left == 0
    assert waited < 1


def test_t19_lab_grown_stones_that_share_a_price_are_divided_evenly(app: Stepfast) -> None:
    """Most of them cost less than 250 dollars per carat, and single dollars hold many times a partition."""
    target = 150
    with Simulator("4k-labgrown", seed=7, faults="none", speed=0) as sim:
        prepare(app)
        heatmap = nivoda_heatmap(lab_grown=True, target=target, fewest=1, sample=None)
        nivoda(app, settings=settings_for(sim), labgrown={"settle": "0s", "partitioner": heatmap})

        plan = app.runs.plan(LABGROWN, "full")

    sizes = [it.rows for it in plan.partitions]
    assert all(it is not None and abs(it - target) <= 0.2 * target for it in sizes)
