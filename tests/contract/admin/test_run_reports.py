"""Reports about runs: finding a run, stuck partitions, why a run does not advance, its progress."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Rate, ThrottledError
from stepfast.errors import NotFoundError, StateError
from stepfast.runs.consolidation import ShardPhase
from stepfast.runs.debts import open_debt
from stepfast.runs.feed import Sweep
from stepfast.runs.partition import find_partition
from stepfast.runs.partitioning.dimension import Dimension
from stepfast.runs.partitioning.partitioners import Fixed, Heatmap
from stepfast.runs.run import find_run
from stepfast.testing import drain
from tests.support import consolidation, engine, rows
from tests.support.failing_runs import (
    broken_at,
    catalogue,
    failed_run,
    partition,
    partitions,
    run_row,
    run_steps,
    work_until_idle,
)
from tests.support.feeds import Catalogue, Shop, prepare, price_ranges

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepfast import Stepfast
    from stepfast.database.connection import Transaction
    from stepfast.runs.feed import Row
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.window import Window

FIRST, SECOND, THIRD, FOURTH = (it.name for it in price_ranges(250, 500, 750))


def reasons(app: Stepfast, run_id: str) -> list[str]:
    return [it.sentence for it in app.runs.show(run_id).why]


# Which run


def test_a_run_is_named_by_its_id_its_beginning_its_feed_or_latest(app: Stepfast) -> None:
    catalogue(app)
    app.feed(Catalogue(Shop(), name="other", table="item"))
    first = app.runs.start("catalogue")
    second = app.runs.start("other")

    assert {app.runs.show(name).run.id for name in (first.id, first.id[:-1], "catalogue")} == {first.id}
    assert {app.runs.show(name).run.id for name in (second.id, "other", "latest")} == {second.id}
    with pytest.raises(StateError, match=r"is the beginning of several runs: .*; give more of it"):
        app.runs.show(first.id[:4])
    with pytest.raises(NotFoundError, match="there is no run 'zzz'"):
        app.runs.show("zzz")


def test_without_runs_nothing_is_the_latest(app: Stepfast) -> None:
    with pytest.raises(NotFoundError, match="there are no runs; begin one with: stepfast runs start FEED"):
        app.runs.show("latest")


def test_runs_are_listed_newest_first(app: Stepfast) -> None:
    shop = catalogue(app)
    first = failed_run(app, shop, SECOND)
    second = app.runs.start("catalogue")

    assert [it.id for it in app.runs.list()] == [second.id, first.id]
    assert [it.id for it in app.runs.list(active=True)] == [second.id]
    assert [it.id for it in app.runs.list(limit=1)] == [second.id]
    assert app.runs.list(feed="other") == []


# What is stuck


def test_a_partition_that_waits_its_turn_is_not_stuck(app: Stepfast) -> None:
    """Neither is one that waits for another try. Stuck is what no job reads, or a worker that is gone. (F47)"""
    catalogue(app)
    run = app.runs.start("catalogue")
    run_steps(app, 1)
    assert app.runs.partitions(run.id, stuck=True) == []
    jobs = [str(row["job_id"]) for row in partitions(app, run.id)]
    rows.change(app, "UPDATE stepfast_job SET state = 'scheduled' WHERE id = :id", id=jobs[0])
    rows.add_worker(app, engine.ALICE)
    rows.add_worker(app, engine.BOB, worker_id="bob", alive_for=-1)
    for job_id, owner in ((jobs[1], engine.ALICE), (jobs[2], engine.BOB)):
        rows.change(
            app,
            "UPDATE stepfast_job SET state = 'leased', owner = :owner, fence = :owner WHERE id = :id",
            id=job_id,
            owner=owner,
        )
    rows.change(app, "DELETE FROM stepfast_job WHERE id = :id", id=jobs[3])

    found = app.runs.partitions("catalogue", stuck=True)

    assert [(it.number, it.job_state) for it in found] == [(2, "leased"), (3, None)]
    assert [it.stuck for it in app.runs.partitions(run.id)] == [False, False, True, True]


def test_partitions_that_failed_are_listed_with_their_errors(app: Stepfast) -> None:
    shop = catalogue(app)
    run = failed_run(app, shop, SECOND)

    (found,) = app.runs.partitions(failed=True)

    assert (found.run_id, found.partition_id, found.name, found.state) == (
        run.id,
        "partition-1",
        SECOND,
        "failed",
    )
    assert (found.seen, found.expected, found.last_error) == (
        17,
        26,
        f"PermanentError: {SECOND} cannot be read",
    )


def test_a_partition_that_is_tried_again_shows_the_error_of_its_last_try(app: Stepfast) -> None:
    shop = catalogue(app)

    def fail(what: str, part: Range, _: object) -> None:
        if (what, part.name) == ("page", SECOND):
            raise ValueError("a bad page")

    shop.before = fail
    run = app.runs.start("catalogue")
    while not rows.count(app, "stepfast_job", "failures > 0"):
        run_steps(app, 1)

    found = {it.partition_id: it.last_error for it in app.runs.partitions(run.id)}

    assert found["partition-1"] == "ValueError: a bad page"
    assert {found[f"partition-{number}"] for number in (0, 2, 3)} == {None}
    shop.before = lambda *_: None
    rows.change(app, "UPDATE stepfast_job SET ready_at = 0 WHERE state = 'scheduled'")
    work_until_idle(app)
    assert {it.last_error for it in app.runs.partitions(run.id)} == {None}


def test_a_partition_whose_source_is_in_trouble_shows_what_it_waits_for(app: Stepfast) -> None:
    shop = catalogue(app)

    def throttle(*_: Any) -> None:
        raise ThrottledError("slow down", retry_after=3600)

    run = app.runs.start("catalogue")
    run_steps(app, 1)
    shop.before = throttle
    run_steps(app, 1)

    errors = [it.last_error for it in app.runs.partitions(run.id) if it.last_error is not None]

    assert len(errors) == 1
    assert "slow down" in errors[0]


# Why


def test_a_run_without_a_worker_waits_for_one(app: Stepfast) -> None:
    catalogue(app, queue="sync")
    run = app.runs.start("catalogue")

    (reason,) = app.runs.show(run.id).why

    assert reason.sentence == "no worker is alive for queue sync"
    rows.add_worker(app, engine.ALICE)
    assert reasons(app, run.id)[0].startswith("it advances: its partitions are being found")
    rows.change(app, "UPDATE stepfast_worker SET queues = 'mail,default'")
    assert reasons(app, run.id) == ["no worker is alive for queue sync"]


def test_a_run_in_a_paused_queue_waits_for_its_operator(app: Stepfast) -> None:
    catalogue(app)
    run = app.runs.start("catalogue")
    app.operator.by("alice").pause("default", "the account is locked")

    (reason,) = reasons(app, run.id)
    assert re.fullmatch(
        r"queue default is paused by alice since [\d-]+ [\d:]+ UTC \(the account is locked\)", reason
    )
    app.operator.by("bob").resume("default")
    app.operator.by("carol").pause("default")
    assert "is paused by carol since" in reasons(app, run.id)[0]


def test_a_run_whose_source_is_in_trouble_says_until_when(app: Stepfast) -> None:
    catalogue(app)
    run = app.runs.start("catalogue")
    rows.add_worker(app, engine.ALICE)
    rows.change(
        app,
        "UPDATE stepfast_feed SET troubles = 1, paused_until = :until, pause_reason = 'throttled'",
        until=rows.now(app) + rows.HOUR,
    )

    (told,) = reasons(app, run.id)

    assert told.startswith("the source is in trouble: feed catalogue waits until ")
    assert told.endswith(": throttled")


def test_a_run_that_waits_for_another_try_says_when_and_after_what(app: Stepfast) -> None:
    shop = catalogue(app)

    def fail(*_: Any) -> None:
        raise ValueError("a bad page")

    shop.before = fail
    run = app.runs.start("catalogue")
    run_steps(app, 5)
    rows.add_worker(app, engine.ALICE)

    (told,) = reasons(app, run.id)

    assert told.startswith("4 jobs of it wait for another try, the next at ")
    assert told.endswith("after: ValueError: a bad page")


def test_a_run_that_a_limit_holds_names_it(app: Stepfast) -> None:
    catalogue(app, limits=[Rate(1, per="1h", name="source")])
    run = app.runs.start("catalogue")
    with app.worker():
        rows.eventually(lambda: rows.count(app, "stepfast_job", "state = 'held'"))
        told = reasons(app, run.id)

    assert any(
        it.startswith(("1 job of it is held by limit", "4 jobs of it are held by limit")) for it in told
    ), told
    assert "source" in told[-1]


def test_a_failed_run_groups_its_errors(app: Stepfast) -> None:
    shop = catalogue(app)
    run = failed_run(app, shop, FIRST, SECOND, FOURTH)

    detail = app.runs.show(run.id)

    assert detail.states == {"done": 1, "failed": 3}
    (group,) = detail.errors
    assert group.partitions == ("partition-0", "partition-1", "partition-3")
    assert "PermanentError" in group.error
    assert [it.command for it in detail.why] == [
        f"stepfast runs retry {run.id}",
        None,
        f"stepfast runs consolidate {run.id} --force",
    ]


def test_a_plan_that_gave_up_tells_its_error(app: Stepfast) -> None:
    shop = catalogue(app, partitioner=Fixed(price_ranges(500), counted=True))
    shop.before = broken_at(("count", "price 0..500", None))
    run = app.runs.start("catalogue")
    work_until_idle(app)

    assert reasons(app, run.id) == ["planning gave up: PermanentError: price 0..500 cannot be read"]


def test_a_failed_run_that_was_overtaken_names_the_newer_one(app: Stepfast) -> None:
    """It has ended, so it is not shown as active for ever. (F47)"""
    shop = catalogue(app)
    old = failed_run(app, shop, SECOND)
    assert old.ended_at is not None
    new = app.runs.start("catalogue")

    detail = app.runs.show(old.id)

    assert (detail.newer, detail.why[-1].command) == (new.id, f"stepfast runs show {new.id}")
    assert "is active" in detail.why[-1].sentence


def test_a_partition_that_lost_its_job_is_named(app: Stepfast) -> None:
    catalogue(app)
    run = app.runs.start("catalogue")
    run_steps(app, 1)
    rows.add_worker(app, engine.ALICE)
    rows.change(app, "DELETE FROM stepfast_job WHERE id = :id", id=partition(app, run.id, 2)["job_id"])

    assert reasons(app, run.id)[0].startswith("no job reads partition-2; ")


# How far


def test_a_look_tells_how_far_each_partition_is(app: Stepfast) -> None:
    catalogue(app)
    run = app.runs.start("catalogue")
    assert (app.runs.look(run.id).rows, app.runs.look(run.id).expected) == (0, None)
    run_steps(app, 10)

    look = app.runs.look("latest")

    assert (look.state, look.partitions, look.ended) == ("fetching", 4, False)
    assert look.rows == sum(it.seen for it in look.changed) > 0
    assert look.requests == 9
    assert len(look.changed) == 4


def test_whoever_watches_sees_every_partition_end_and_then_the_run(app: Stepfast) -> None:
    catalogue(app)
    run = app.runs.start("catalogue")

    with app.worker():
        seen = list(app.runs.watch(run.id))

    last = seen[-1]
    assert (last.state, last.succeeded, last.completed, last.rows) == ("completed", True, 4, 103)
    assert last.applied == 100
    ends = {it.number: it.state for look in seen for it in look.changed}
    assert ends == dict.fromkeys(range(4), "done")
    assert last.seconds_left is None


def test_whoever_looks_again_is_told_only_what_is_new(app: Stepfast) -> None:
    from stepfast.admin.run_status import RunObserver

    catalogue(app)
    run = app.runs.start("catalogue")
    run_steps(app, 1)
    observer = RunObserver(app.database, run.id)
    assert len(observer.look().changed) == 4

    assert observer.look().changed == ()
    run_steps(app, 1)
    assert len(observer.look().changed) == 1


# What it would cost


def test_a_plan_is_made_without_starting_anything(app: Stepfast) -> None:
    shop = catalogue(app)

    plan = app.runs.plan("catalogue")

    assert (plan.kind, plan.scope, plan.rows, len(plan.partitions)) == ("full", "complete", 103, 4)
    assert [it.rows for it in plan.partitions] == [26, 26, 26, 25]
    assert (plan.requests.counts, plan.requests.unknown) == (8, 0)
    assert FIRST.removeprefix("price ").replace("..", " .. ") in plan.drawing
    assert app.runs.list() == []
    assert rows.count(app, "stepfast_job") == 0
    run = app.runs.start("catalogue")
    before = len(shop.requests)
    work_until_idle(app)
    asked = len(shop.requests) - before
    assert run_row(app, run.id).state == "completed"
    assert abs(asked - plan.requests.requests) <= len(plan.partitions)


@pytest.mark.parametrize("items", [100, 30, 3])
def test_a_plan_forecasts_the_requests_of_its_run(app: Stepfast, items: int) -> None:
    """Also those at the end of a partition, which bring nothing new."""
    shop = catalogue(app, items=items)

    plan = app.runs.plan("catalogue")
    shop.requests.clear()
    app.runs.start("catalogue")
    work_until_idle(app)

    asked = Counter(what for what, _, _ in shop.requests)
    assert plan.requests.pages == asked["page"]
    assert plan.requests.counts == asked["count"]


def test_a_trial_says_what_it_leaves_out(app: Stepfast) -> None:
    catalogue(app)

    plan = app.runs.plan("catalogue", max_rows=30)

    assert (plan.scope, len(plan.partitions), plan.rows) == ("partial", 1, 26)
    assert "it leaves out" in plan.summary


def test_a_density_map_is_planned_and_drawn(app: Stepfast) -> None:
    catalogue(app, items=400, partitioner=Heatmap(Dimension("price", 0, 1_000), target=100))

    plan = app.runs.plan("catalogue", "full")

    assert len(plan.partitions) >= 3
    assert plan.baseline == 400
    assert plan.requests.planning > 0


def test_a_plan_counts_the_debts_that_it_would_pay(app: Stepfast) -> None:
    shop = catalogue(app)
    run = app.runs.start("catalogue")
    work_until_idle(app)
    with app.transaction() as tx:
        found = find_partition(tx, str(partition(app, run.id, 1)["id"]))
        assert found is not None
        open_debt(tx, find_run(tx, run.id), found)
    shop.put("new", 300)

    plan = app.runs.plan("catalogue")

    assert (plan.kind, plan.debts) == ("incremental", 1)
    assert plan.window_from is not None
    assert plan.window_to - plan.window_from >= timedelta(minutes=15)


# How long its pages took, and what its workers do


def test_a_run_shows_its_slowest_page_and_how_long_most_of_them_took(app: Stepfast) -> None:
    catalogue(app)
    run = app.runs.start("catalogue")
    assert app.runs.show(run.id).pages is None
    work_until_idle(app)
    read = rows.query(
        app, "SELECT * FROM stepfast_page WHERE request_offset IS NOT NULL ORDER BY partition_id, seq"
    )
    for took, page in enumerate(read, 1):
        rows.change(
            app,
            "UPDATE stepfast_page SET milliseconds = :took WHERE partition_id = :id AND seq = :seq",
            took=took * 1000,
            id=page["partition_id"],
            seq=page["seq"],
        )
    rows.change(app, "UPDATE stepfast_page SET milliseconds = 999000 WHERE request_offset IS NULL")

    pages = app.runs.show(run.id).pages

    assert pages is not None
    assert pages.pages == len(read) == 24
    assert (pages.slowest_seconds, pages.p95_seconds) == (24.0, 23.0)
    last = read[-1]
    numbers = {row["id"]: row["number"] for row in partitions(app, run.id)}
    assert pages.slowest_partition == f"partition-{numbers[last['partition_id']]}"
    assert pages.slowest_offset == last["request_offset"]


def test_of_twenty_pages_the_slowest_one_is_left_out_of_the_95_percent(app: Stepfast) -> None:
    catalogue(app)
    run = app.runs.start("catalogue")
    run_steps(app, 1)
    first = partition(app, run.id, 0)["id"]
    for seq in range(20):
        rows.change(
            app,
            "INSERT INTO stepfast_page (partition_id, epoch, seq, pass, request_offset, got, fresh, rejected, milliseconds,"
            " decision, worker_id, fence, at) VALUES (:id, 0, :seq, 1, :seq, 1, 1, 0, :took, 'x', 'w', 1, 1)",
            id=first,
            seq=seq,
            took=(seq + 1) * 100,
        )

    pages = app.runs.show(run.id).pages

    assert pages is not None
    assert (pages.pages, pages.p95_seconds, pages.slowest_seconds) == (20, 1.9, 2.0)


class Watched(Catalogue):
    """Asks for the phase of its run while it is planned, loads its rules, and maps."""

    app: Stepfast
    seen: list[str | None]

    def look(self) -> None:
        self.seen.append(self.app.runs.show("catalogue").phase)

    async def count(self, part: Range, window: Window, /) -> int:
        self.look()
        return await super().count(part, window)

    def mapping(self, tx: Transaction, run_id: str | None, /) -> Callable[[Any], Row]:
        self.look()
        return super().mapping(tx, run_id)

    def map(self, item: Any, /) -> Row:
        self.look()
        return super().map(item)


def test_a_run_names_its_phase_in_the_words_of_the_documents(app: Stepfast, tmp_path: Path) -> None:
    seen: list[str | None] = []
    plan = Fixed(price_ranges(), counted=True)
    export = (tmp_path / "watermark.json").as_uri()
    app.feed(Watched(Shop.with_items(3), app=app, seen=seen, partitioner=plan, export=export, sweep=Sweep()))
    prepare(app)
    run = app.runs.start("catalogue")

    while run_row(app, run.id).ended_at is None:
        run_steps(app, 1)
        seen.append(app.runs.show(run.id).phase)

    assert list(dict.fromkeys(seen)) == [
        "planning",
        "fetching",
        "validating",
        "loading rules",
        "mapping",
        "sweeping",
        "watermark",
    ]
    (_, waits) = app.runs.show(run.id).why
    assert waits.sentence == "its watermark is not exported yet"
    drain(app, relay=True)
    detail = app.runs.show(run.id)
    assert (detail.phase, len(detail.why)) == (None, 1)


def test_a_batch_that_is_being_written_is_upserted_and_marked(app: Stepfast) -> None:
    declared = consolidation.catalogue(app, batch=5, chunk=5, shards=1)
    run = consolidation.fetched(app, declared, consolidation.items(8))
    consolidation.play(app, declared)  # the division
    seen: list[str | None] = []

    consolidation.play(app, declared, between=lambda: seen.append(app.runs.show(run.id).phase))
    seen.append(app.runs.show(run.id).phase)
    consolidation.play(app, declared, between=lambda: seen.append(app.runs.show(run.id).phase))

    assert seen == ["upserting and marking", "mapping", "upserting and marking"]


def test_of_fast_batches_of_a_shard_only_some_are_noted(app: Stepfast) -> None:
    """A note is a transaction of its own."""
    noted: dict[str, float] = {}
    first, second, late = (
        ShardPhase(app.database, "shard", 1, is_first=number == 0, noted=noted) for number in range(3)
    )
    due = [first.is_due]
    first.note("mapping")
    due.append(second.is_due)
    noted["shard"] -= 2.0

    assert [*due, late.is_due] == [True, False, True]


def test_shards_in_different_phases_are_counted(app: Stepfast) -> None:
    declared = consolidation.catalogue(app, batch=5, chunk=5, shards=3)
    run = consolidation.fetched(app, declared, consolidation.items(15))
    consolidation.play(app, declared)
    rows.change(app, "UPDATE stepfast_job SET state = 'leased', progress_note = 'mapping'")
    rows.change(app, "UPDATE stepfast_job SET progress_note = NULL WHERE id LIKE '%.2'")

    assert app.runs.show(run.id).phase == "loading rules (1 shard), mapping (2 shards)"
