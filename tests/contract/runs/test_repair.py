"""Operators repair runs: each action takes effect once, and no row that was read is lost or counted twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import PermanentError
from stepfast.admin.quarantine import Entries
from stepfast.errors import ConfigurationError, StateError, StepfastError, TransientError
from stepfast.runs.feed import Sweep
from stepfast.runs.partitioning.dimension import Dimension
from stepfast.runs.partitioning.partitioners import Fixed, Heatmap
from stepfast.testing import drain
from tests.support import engine, rows
from tests.support.events import hearing, named
from tests.support.failing_runs import (
    broken_at,
    catalogue,
    check_counters,
    commit,
    failed_run,
    give_up,
    last_page_of,
    page_of,
    partition,
    partitions,
    plan_of,
    run_row,
    run_steps,
    work_until_idle,
)
from tests.support.feeds import Catalogue, Shop, prepare, price_ranges, target

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.window import Window

FIRST, SECOND = (it.name for it in price_ranges(250, 500, 750)[:2])
ALL_FOUR = tuple(f"partition-{number}" for number in range(4))


# Retry


def test_a_retry_goes_on_where_the_partition_stopped(app: Stepfast) -> None:
    """The tool does not send the first page again, which the cursor would refuse while it prints success. (F20)"""
    shop = catalogue(app)
    run = failed_run(app, shop, SECOND)
    stopped = partition(app, run.id, 1)
    assert (run.state, stopped["state"], stopped["seen"]) == ("failed", "failed", 17)
    shop.requests.clear()

    done = app.runs.retry(run.id)

    assert (done.run.state, done.was, done.partitions) == ("fetching", "failed", ("partition-1",))
    assert partition(app, run.id, 1)["epoch"] == 1
    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()
    read = [offset for what, name, offset in shop.requests if (what, name) == ("page", SECOND)]
    assert min(it for it in read if it is not None) == stopped["next_offset"] > 0
    assert {name for _, name, _ in shop.requests} == {SECOND}
    check_counters(app, run.id)


def test_the_job_of_a_retry_is_another_one(app: Stepfast) -> None:
    """A broker that knows the old id would drop it silently. The dead letter no longer waits for an operator. (F21, F46)"""
    shop = catalogue(app)
    run = failed_run(app, shop, SECOND)
    old = partition(app, run.id, 1)["job_id"]
    assert rows.state(app, old) == "dead"

    app.runs.retry(run.id)

    new = partition(app, run.id, 1)["job_id"]
    assert new != old
    assert rows.state(app, new) == "ready"
    assert rows.state(app, old) == "cancelled"
    assert "cannot be read" in str((rows.ended(app, old) or {})["last_error"])


def test_a_retry_keeps_what_happened_before(app: Stepfast) -> None:
    """The pages of the first try, its error and its window stay where they were: nothing is deleted. (F46, F51)"""
    shop = catalogue(app)
    run = failed_run(app, shop, SECOND)
    pages = rows.count(app, "stepfast_page")
    before = partition(app, run.id, 1)

    app.runs.by("alice", reason="the source is back").retry(run.id)
    work_until_idle(app)

    now = partition(app, run.id, 1)
    ledger = rows.query(app, "SELECT epoch FROM stepfast_page WHERE partition_id = :id", id=now["id"])
    assert {row["epoch"] for row in ledger} == {0, 1}
    assert rows.count(app, "stepfast_page") > pages
    assert (now["window_from"], now["window_to"]) == (before["window_from"], before["window_to"])
    assert run_row(app, run.id).window_to == run.window_to
    (entry,) = rows.query(app, "SELECT * FROM stepfast_audit WHERE what = 'run.retry'")
    assert (entry["who"], entry["why"], entry["subject"], entry["touched"]) == (
        "alice",
        "the source is back",
        run.id,
        1,
    )


def test_only_the_partitions_that_are_named_are_read_again(app: Stepfast) -> None:
    shop = catalogue(app)
    run = failed_run(app, shop, FIRST, SECOND)
    assert run.failed == 2

    assert app.runs.retry(run.id, ["partition-1"]).partitions == ("partition-1",)
    work_until_idle(app)

    assert run_row(app, run.id).state == "failed"
    check_counters(app, run.id)
    assert app.runs.retry(run.id, [FIRST]).partitions == ("partition-0",)
    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()
    check_counters(app, run.id)


def test_a_retry_does_not_wait_for_the_others(app: Stepfast) -> None:
    """A failed partition of a run that is still read is counted down in the transaction that restarts it. (F3, F38)"""
    shop = catalogue(app)
    shop.before = broken_at(("page", FIRST, 0))
    run = app.runs.start("catalogue")
    with app.worker(concurrency=1):
        rows.eventually(lambda: rows.count(app, "stepfast_archive", "state = 'dead'"))
    shop.before = lambda *_: None
    row = partition(app, run.id, 0)
    rows.change(
        app, "UPDATE stepfast_partition SET state = 'failed' WHERE id = :id AND state <> 'done'", id=row["id"]
    )
    rows.change(app, "UPDATE stepfast_run SET failed = 1, state = 'fetching' WHERE id = :id", id=run.id)

    app.runs.retry(run.id, [0])

    assert run_row(app, run.id).failed == 0
    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()
    check_counters(app, run.id)


def test_from_the_start_means_that_nothing_is_believed(app: Stepfast) -> None:
    shop = catalogue(app)
    run = failed_run(app, shop, SECOND)
    row = partition(app, run.id, 1)
    assert rows.count(app, "stepfast_seen", f"partition_id = '{row['id']}'") == 17
    shop.requests.clear()

    app.runs.retry(run.id, from_start=True)

    now = partition(app, run.id, 1)
    assert (now["paging"], now["next_offset"], now["seen"], now["seq"], now["epoch"]) == (None, 0, 0, 0, 1)
    assert rows.count(app, "stepfast_seen", f"partition_id = '{row['id']}'") == 0
    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"
    assert ("page", SECOND, 0) in shop.requests
    check_counters(app, run.id)


class Boastful(Catalogue):
    """Counts rows in the first range that it never shows."""

    boasts = 5

    async def count(self, part: Range, window: Window, /) -> int:
        return self.shop.count(part, window) + (self.boasts if part.name == FIRST else 0)


def test_what_could_not_be_verified_is_read_anew(app: Stepfast) -> None:
    """Its debt is closed with it; if it cannot be verified again, it is opened again."""
    shop = Shop.with_items(100)
    feed = app.feed(Boastful(shop))
    prepare(app)
    run = failed_run(app, shop, SECOND)
    assert partition(app, run.id, 0)["state"] == "done_unverified"
    assert (run.completed, run.unverified, run.failed) == (3, 1, 1)
    with pytest.raises(StateError, match=r"partition-0 .* is done_unverified: .* with --from-start"):
        app.runs.retry(run.id, [0])

    feed.boasts = 0
    assert app.runs.retry(run.id, from_start=True).partitions == ("partition-0", "partition-1")

    assert rows.count(app, "stepfast_debt", "state = 'open'") == 0
    check_counters(app, run.id)
    work_until_idle(app)
    done = run_row(app, run.id)
    assert (done.state, done.completed, done.unverified) == ("completed", 4, 0)
    check_counters(app, run.id)


def test_a_plan_that_failed_is_planned_again_from_where_it_stood(app: Stepfast) -> None:
    shop = catalogue(app, partitioner=Fixed(price_ranges(250, 500, 750), counted=True))
    last = price_ranges(250, 500, 750)[3].name
    shop.before = broken_at(("count", last, None))
    run = app.runs.start("catalogue")
    work_until_idle(app)
    assert (run_row(app, run.id).state, partitions(app, run.id)) == ("failed", [])
    with pytest.raises(StateError, match="failed before it had partitions"):
        app.runs.consolidate(run.id, force=True)
    shop.before = lambda *_: None
    shop.requests.clear()

    assert app.runs.retry(run.id).run.state == "planning"

    work_until_idle(app)
    assert shop.requests[0] == ("count", last, None)
    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()


def test_the_late_page_of_an_earlier_epoch_changes_nothing(app: Stepfast) -> None:
    """Its worker was asleep while the partition was restarted: two chains would read one partition. (F20)"""
    shop = catalogue(app)
    run = app.runs.start("catalogue")
    run_steps(app, 1)
    row = partition(app, run.id, 1)
    late = page_of(app, row)
    app.runs.cancel(run.id)
    app.runs.resume(run.id)

    with pytest.raises(TransientError, match="moved on by somebody else"):
        commit(app, late)

    now = partition(app, run.id, 1)
    assert (now["seq"], now["epoch"], now["state"]) == (0, 2, "ready")
    assert rows.count(app, "stepfast_page") == 0
    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()


# Two at once


def test_of_two_operators_who_retry_at_once_one_does(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    shop = catalogue(app)
    run = failed_run(app, shop, SECOND)
    others = [another_app(), another_app()]
    for it in others:
        it.feed(Catalogue(shop))

    answers = engine.together([lambda it=it: it.runs.retry(run.id) for it in others])  # type: ignore[misc]

    refused = [it for it in answers if isinstance(it, Exception)]
    assert [type(it) for it in refused] == [StateError]
    assert "no partition of it failed" in str(refused[0])
    assert (partition(app, run.id, 1)["epoch"], run_row(app, run.id).failed) == (1, 0)
    assert rows.count(app, "stepfast_job") == 1
    assert rows.count(app, "stepfast_audit", "what = 'run.retry'") == 1
    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"


@pytest.mark.parametrize("turn", range(3))
def test_a_cancel_meets_the_commit_of_a_page(
    app: Stepfast, another_app: Callable[[], Stepfast], turn: int
) -> None:
    """Whichever comes first, the page is there as a whole or not at all, and neither waits for ever. (F3)"""
    shop = catalogue(app, items=60 + turn)
    run = app.runs.start("catalogue")
    run_steps(app, 1)
    counted = page_of(app, partition(app, run.id, 1))
    commit(app, counted)
    page = page_of(app, partition(app, run.id, 1))
    other = another_app()

    answers = engine.together([lambda: commit(app, page), lambda: other.runs.cancel(run.id)])

    assert not isinstance(answers[1], Exception)
    assert answers[0] is None or isinstance(answers[0], TransientError)
    states = {row["state"] for row in partitions(app, run.id)}
    assert (run_row(app, run.id).state, states) == ("cancelled", {"cancelled"})
    written = rows.count(app, "stepfast_seen")
    assert written == (10 if answers[0] is None else 0)
    app.runs.resume(run.id)
    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()
    check_counters(app, run.id)


def test_a_cancel_and_a_worker_at_full_speed(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    shop = catalogue(app, items=400)
    run = app.runs.start("catalogue")
    other = another_app()
    other.feed(Catalogue(shop))
    with app.worker():
        for _ in range(5):
            rows.eventually(lambda: rows.count(app, "stepfast_page") or run_row(app, run.id).ended_at)
            try:
                other.runs.cancel(run.id)
            except StateError:
                break  # it was faster
            assert all(row["state"] != "running" for row in partitions(app, run.id))
            other.runs.resume(run.id)
        rows.eventually(lambda: run_row(app, run.id).ended_at)

    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()
    check_counters(app, run.id)


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_cancel_does_not_overlook_partitions_that_are_just_being_written(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    """It waits for the plan's commit, finds that there is more than it has locked, and begins again. (F27)"""
    catalogue(app)
    run = app.runs.start("catalogue")
    plan = plan_of(app, run.id)
    other = another_app()

    with ThreadPoolExecutor() as threads:
        with app.transaction() as tx:
            for effect in plan.effects:
                effect.apply(tx)
            cancelling = threads.submit(other.runs.cancel, run.id)
            engine.wait_until_somebody_waits(app)
        done = cancelling.result(rows.PATIENCE)

    assert done.partitions == ALL_FOUR
    assert {row["state"] for row in partitions(app, run.id)} == {"cancelled"}
    assert rows.count(app, "stepfast_job") == 0


@pytest.mark.parametrize("turn", range(3))
def test_a_retry_meets_the_end_of_the_last_partition(
    app: Stepfast, another_app: Callable[[], Stepfast], turn: int
) -> None:
    """Either the run has failed and is reopened, or it has not and goes on: it never ends without the retried one. (F3)"""
    shop = catalogue(app, items=10 + turn)
    run = app.runs.start("catalogue")
    run_steps(app, 1)
    give_up(app, run.id, 0)
    for number in (1, 2):
        commit(app, last_page_of(app, run.id, number))
    outcome = last_page_of(app, run.id, 3)
    other = another_app()
    other.feed(Catalogue(shop))

    answers = engine.together([lambda: commit(app, outcome), lambda: other.runs.retry(run.id)])

    assert [it for it in answers if isinstance(it, Exception)] == []
    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()
    check_counters(app, run.id)


# A run that another one has overtaken


def test_a_run_that_was_overtaken_is_not_reopened_but_owed(app: Stepfast) -> None:
    """Two runs of a feed would move one watermark. What the old one lacks becomes a debt, once. (F11, F12)"""
    shop = catalogue(app)
    old = failed_run(app, shop, SECOND)
    new = app.runs.start("catalogue")

    for _ in range(2):
        with pytest.raises(
            StateError, match=f"run {new.id} of feed catalogue has its place; the range it lacks"
        ):
            app.runs.retry(old.id)

    (debt,) = rows.query(app, "SELECT * FROM stepfast_debt WHERE state = 'open'")
    assert (debt["name"], debt["tries"], debt["run_id"]) == (SECOND, 0, old.id)
    assert run_row(app, old.id).state == "failed"
    (entry,) = rows.query(app, "SELECT * FROM stepfast_audit WHERE what = 'run.owe'")
    assert (entry["subject"], entry["touched"]) == (old.id, 1)
    work_until_idle(app)
    assert run_row(app, new.id).state == "completed"
    assert rows.count(app, "stepfast_debt", "state = 'open'") == 0


def test_what_a_later_run_has_read_is_not_owed(app: Stepfast) -> None:
    shop = catalogue(app)
    old = failed_run(app, shop, SECOND)
    app.runs.start("catalogue")
    work_until_idle(app)

    with pytest.raises(StateError, match="nothing is owed for it"):
        app.runs.retry(old.id)

    assert rows.count(app, "stepfast_debt") == 0


def test_a_backfill_stands_in_nobodys_way(app: Stepfast) -> None:
    shop = catalogue(app)
    shop.before = broken_at(("page", SECOND, 0))
    old = app.runs.start("catalogue", "backfill")
    work_until_idle(app)
    shop.before = lambda *_: None
    app.runs.start("catalogue")
    assert run_row(app, old.id).state == "failed"

    app.runs.retry(old.id)

    work_until_idle(app)
    assert [it.state for it in app.runs.list()] == ["completed", "completed"]


# Consolidate


def test_a_failed_partition_withholds_consolidation_until_it_is_forced(app: Stepfast) -> None:
    """What is there is published; the watermark stays, and what is missing is owed and read by the next run. (F9)"""
    shop = catalogue(app)
    run = failed_run(app, shop, SECOND, offset=0)
    with pytest.raises(StateError, match=r"1 of its 4 partitions are missing; .* --force"):
        app.runs.consolidate(run.id)
    assert target(app) == {}

    done = app.runs.consolidate(run.id, force=True)
    work_until_idle(app)

    assert (done.partitions, done.debts) == (("partition-1",), 1)
    forced = run_row(app, run.id)
    assert (forced.state, forced.completed_at, forced.watermark_after) == ("published_partial", None, None)
    assert forced.ended_at is not None
    missing = {name for name, price in shop.prices().items() if 250 < price < 500}
    assert target(app) == {name: price for name, price in shop.prices().items() if name not in missing}
    (debt,) = rows.query(app, "SELECT * FROM stepfast_debt WHERE state = 'open'")
    assert debt["name"] == SECOND
    assert rows.count(app, "stepfast_feed", "watermark IS NOT NULL") == 0

    again = app.runs.start("catalogue")
    work_until_idle(app)
    assert run_row(app, again.id).state == "completed"
    assert target(app) == shop.prices()
    assert rows.count(app, "stepfast_debt", "state = 'open'") == 0


def test_of_two_who_force_at_once_one_does(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    shop = catalogue(app)
    run = failed_run(app, shop, SECOND)
    others = [another_app(), another_app()]
    for it in others:
        it.feed(Catalogue(shop))

    answers = engine.together([lambda it=it: it.runs.consolidate(run.id, force=True) for it in others])  # type: ignore[misc]

    assert sorted(type(it).__name__ for it in answers) == ["RunRepair", "StateError"]
    assert rows.count(app, "stepfast_job", "kind = 'catalogue.consolidate'") == 1
    assert rows.query(app, "SELECT tries FROM stepfast_debt") == [{"tries": 0}]
    work_until_idle(app)
    assert run_row(app, run.id).state == "published_partial"


class Unmappable(Catalogue):
    """Has a bug that a new version mends."""

    broken = True

    def map(self, item: Any, /) -> dict[str, Any]:
        if self.broken:
            raise ValueError("no such column")
        return {"id": item["id"], "price": item["price"]}


def test_a_run_of_poor_quality_is_published_by_force_only(app: Stepfast) -> None:
    feed = app.feed(Unmappable(Shop.with_items(40)))
    prepare(app)
    run = app.runs.start("catalogue")
    work_until_idle(app)
    assert run_row(app, run.id).state == "failed_quality"
    with pytest.raises(
        StateError, match=r"is failed_quality: .* stepfast quarantine replay --feed catalogue"
    ):
        app.runs.retry(run.id)

    app.runs.consolidate(run.id)
    work_until_idle(app)
    assert run_row(app, run.id).state == "failed_quality"

    app.runs.consolidate(run.id, force=True)
    work_until_idle(app)
    forced = run_row(app, run.id)
    assert (forced.state, forced.forced, forced.watermark_after) == ("published_partial", True, None)
    assert feed.broken


# Cancel and resume


def test_a_cancelled_run_leaves_nothing_that_works_for_it(app: Stepfast) -> None:
    """Its jobs end, its partitions too, and the feed is free for the next run. (F39, F47)"""
    catalogue(app)
    run = app.runs.start("catalogue")
    run_steps(app, 1)

    done = app.runs.by("alice", reason="wrong account").cancel(run.id)

    assert (done.was, done.partitions) == ("fetching", ALL_FOUR)
    assert rows.count(app, "stepfast_job") == 0
    ended = run_row(app, run.id)
    assert (ended.state, ended.reason) == ("cancelled", "Cancelled: wrong account")
    assert ended.ended_at is not None
    assert app.runs.list(active=True) == []
    with pytest.raises(StateError, match="is cancelled: it has ended, there is nothing to cancel"):
        app.runs.cancel(run.id)
    assert rows.count(app, "stepfast_audit", "what = 'run.cancel'") == 1
    app.runs.start("catalogue")


def test_a_step_that_runs_is_told_that_its_run_was_cancelled(app: Stepfast) -> None:
    catalogue(app)
    run = app.runs.start("catalogue")
    run_steps(app, 1)
    rows.add_worker(app, engine.ALICE)
    (taken,) = engine.claim(app)

    app.runs.cancel(run.id)

    assert (rows.live(app, taken.job_id) or {})["cancel_at"] is not None
    assert "Cancelled by an operator" in rows.logs(app, taken.job_id)
    assert rows.count(app, "stepfast_job") == 1


@pytest.mark.parametrize("steps", [0, 1, 9])
def test_a_resumed_run_is_where_it_was(app: Stepfast, steps: int) -> None:
    """Cancelled before its plan, after it, and among its pages."""
    shop = catalogue(app)
    run = app.runs.start("catalogue")
    run_steps(app, steps)
    read = rows.count(app, "stepfast_page")
    app.runs.cancel(run.id)

    done = app.runs.resume(run.id)

    assert done.run.state == ("planning" if steps == 0 else "fetching")
    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()
    assert rows.count(app, "stepfast_page") >= read
    check_counters(app, run.id)


def test_a_consolidation_that_was_cancelled_is_resumed(app: Stepfast) -> None:
    shop = catalogue(app)
    run = app.runs.start("catalogue")
    while run_row(app, run.id).state != "applying":
        run_steps(app, 1)
    app.runs.cancel(run.id)
    assert rows.count(app, "stepfast_job") == 0

    assert app.runs.resume(run.id).run.state == "applying"

    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()


def test_a_resumed_run_does_not_forget_what_had_failed(app: Stepfast) -> None:
    shop = catalogue(app)
    shop.before = broken_at(("page", FIRST, 0))
    run = app.runs.start("catalogue")
    with app.worker(concurrency=1):
        rows.eventually(lambda: rows.count(app, "stepfast_archive", "state = 'dead'"))
    shop.before = lambda *_: None
    if run_row(app, run.id).ended_at is not None:
        pytest.fail("the run ended before it could be cancelled")
    rows.change(
        app, "UPDATE stepfast_partition SET state = 'failed' WHERE run_id = :id AND number = 0", id=run.id
    )
    app.runs.cancel(run.id)

    assert app.runs.resume(run.id).run.failed == 1

    work_until_idle(app)
    assert run_row(app, run.id).state == "failed"
    app.runs.retry(run.id)
    work_until_idle(app)
    assert target(app) == shop.prices()


def test_a_cancelled_run_is_retried_as_a_whole(app: Stepfast) -> None:
    """What was cancelled and what had failed: a run that ended without one of them would lose its rows."""
    shop = catalogue(app)
    run = app.runs.start("catalogue")
    run_steps(app, 6)
    give_up(app, run.id, 2)
    app.runs.cancel(run.id)
    with pytest.raises(StateError, match=r"is cancelled: all of it goes on, or nothing; .* runs resume"):
        app.runs.retry(run.id, [2])

    assert app.runs.retry(run.id).partitions == ALL_FOUR

    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()
    check_counters(app, run.id)


def test_a_stalled_run_goes_on_with_other_jobs_for_those_it_has_lost(app: Stepfast) -> None:
    """As after a restored backup: partitions are open and have no jobs. (F1, F47)"""
    shop = catalogue(app)
    run = app.runs.start("catalogue")
    run_steps(app, 1)
    lost = partition(app, run.id, 2)["job_id"]
    rows.change(app, "DELETE FROM stepfast_job WHERE id = :id", id=lost)
    rows.change(
        app, "UPDATE stepfast_run SET state = 'stalled', stalled_in = 'fetching' WHERE id = :id", id=run.id
    )
    with pytest.raises(StateError, match=r"is stalled: .* stepfast runs resume"):
        app.runs.consolidate(run.id)

    done = app.runs.resume(run.id)

    assert (done.run.state, done.was, done.partitions) == ("fetching", "stalled", ("partition-2",))
    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()


@pytest.mark.parametrize("at", ["planning", "applying"])
def test_a_stalled_run_that_has_lost_its_only_job_gets_another(app: Stepfast, at: str) -> None:
    shop = catalogue(app)
    run = app.runs.start("catalogue")
    while run_row(app, run.id).state != at:
        run_steps(app, 1)
    rows.change(app, "DELETE FROM stepfast_job")
    rows.change(
        app, "UPDATE stepfast_run SET state = 'stalled', stalled_in = :at WHERE id = :id", id=run.id, at=at
    )

    assert app.runs.resume(run.id).run.state == at

    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()


def lose_job(app: Stepfast, run_id: str, number: int) -> None:
    """As after a restored backup: the job of a partition is gone."""
    job_id = partition(app, run_id, number)["job_id"]
    assert rows.change(app, "DELETE FROM stepfast_job WHERE id = :id", id=job_id) == 1


def fetching(app: Stepfast, steps: int = 6) -> str:
    """A run that is being read; no worker is alive."""
    run = app.runs.start("catalogue")
    run_steps(app, steps)
    assert run_row(app, run.id).state == "fetching"
    return run.id


def completes(app: Stepfast, shop: Shop, run_id: str) -> None:
    work_until_idle(app)
    assert run_row(app, run_id).state == "completed"
    assert target(app) == shop.prices()
    check_counters(app, run_id)


@pytest.mark.parametrize("name", ["2", "partition-2", "the id of its row"])
def test_a_partition_whose_job_is_gone_is_retried_by_hand(app: Stepfast, name: str) -> None:
    """`partitions list --stuck` names it, and no worker is alive that would repair it."""
    shop = catalogue(app)
    run_id = fetching(app, steps=10)
    lose_job(app, run_id, 2)
    before = partition(app, run_id, 2)
    assert before["seen"] > 0

    done = app.runs.retry(run_id, [before["id"] if " " in name else name])

    assert (done.run.state, done.partitions) == ("fetching", ("partition-2",))
    now = partition(app, run_id, 2)
    assert (now["epoch"], now["seen"], now["next_offset"]) == (1, before["seen"], before["next_offset"])
    assert rows.state(app, now["job_id"]) == "ready"
    assert app.runs.partitions(run_id, stuck=True) == []
    completes(app, shop, run_id)


def test_a_retry_without_a_name_takes_all_partitions_that_lost_their_job(app: Stepfast) -> None:
    shop = catalogue(app)
    run_id = fetching(app)
    with pytest.raises(StateError, match="no partition of it failed, and none has lost its job"):
        app.runs.retry(run_id)
    lose_job(app, run_id, 1)
    lose_job(app, run_id, 3)

    assert app.runs.retry(run_id).partitions == ("partition-1", "partition-3")

    completes(app, shop, run_id)


def test_the_dead_job_of_an_open_partition_is_answered_by_a_retry(app: Stepfast) -> None:
    """The job gave up, and no worker has noticed: the partition goes on, and its dead letter waits for nobody."""
    shop = catalogue(app)
    shop.before = broken_at(("page", SECOND, 10))
    run_id = app.runs.start("catalogue").id
    job_id = ""
    while rows.state(app, job_id) != "dead":
        run_steps(app, 1)
        job_id = str(next((it["job_id"] for it in partitions(app, run_id) if it["number"] == 1), ""))
    shop.before = lambda *_: None
    assert partition(app, run_id, 1)["state"] == "running"

    app.runs.retry(run_id, [1])

    assert rows.state(app, job_id) == "cancelled"
    completes(app, shop, run_id)


@pytest.mark.parametrize("lost", [True, False])
def test_an_open_partition_is_begun_anew(app: Stepfast, lost: bool) -> None:  # noqa: FBT001
    """Its progress is wrong, and its job is gone or at work: a late page of that job changes nothing. (F20)"""
    shop = catalogue(app)
    run_id = fetching(app, steps=10)
    old = partition(app, run_id, 2)
    assert old["seen"] > 0
    late = page_of(app, old)
    if lost:
        lose_job(app, run_id, 2)

    done = app.runs.retry(run_id, ["partition-2"], from_start=True)

    assert done.partitions == ("partition-2",)
    now = partition(app, run_id, 2)
    assert (now["state"], now["paging"], now["next_offset"], now["seen"], now["epoch"]) == (
        "ready",
        None,
        0,
        0,
        1,
    )
    assert rows.count(app, "stepfast_seen", f"partition_id = '{old['id']}'") == 0
    assert rows.state(app, old["job_id"]) == (None if lost else "cancelled")
    with pytest.raises(TransientError, match=r"partition-2 \(price 500..750\) was moved on"):
        commit(app, late)
    completes(app, shop, run_id)


def test_a_partition_that_a_silent_worker_holds_is_read_by_another_job(app: Stepfast) -> None:
    shop = catalogue(app)
    run_id = fetching(app)
    old = str(partition(app, run_id, 2)["job_id"])
    rows.add_worker(app, engine.BOB, worker_id="bob", alive_for=-1)
    rows.change(
        app,
        "UPDATE stepfast_job SET state = 'leased', owner = :owner, fence = :owner WHERE id = :id",
        id=old,
        owner=engine.BOB,
    )

    assert app.runs.retry(run_id, [2]).partitions == ("partition-2",)

    assert partition(app, run_id, 2)["job_id"] != old
    engine.rescue_all(app)
    completes(app, shop, run_id)


def test_a_partition_that_is_read_is_left_alone_and_the_refusal_says_by_whom(app: Stepfast) -> None:
    catalogue(app)
    run_id = fetching(app)
    jobs = [str(it["job_id"]) for it in partitions(app, run_id)]
    rows.add_worker(app, engine.ALICE, worker_id="alice")
    rows.change(
        app,
        "UPDATE stepfast_job SET state = 'leased', owner = :owner, fence = :owner WHERE id = :id",
        id=jobs[1],
        owner=engine.ALICE,
    )
    rows.change(app, "UPDATE stepfast_job SET state = 'scheduled' WHERE id = :id", id=jobs[2])
    before = partitions(app, run_id)

    for number, told in {
        0: f"its job {jobs[0]} waits for a worker",
        1: rf"worker alice reads it \(job {jobs[1]}\)",
        2: f"its job {jobs[2]} is tried again at 20",
    }.items():
        with pytest.raises(StateError, match=rf"partition-{number} \(.*\) is running: {told}.* --from-start"):
            app.runs.retry(run_id, [number])

    assert partitions(app, run_id) == before
    assert [rows.state(app, job) for job in jobs] == ["ready", "leased", "scheduled", "ready"]


def test_an_active_run_that_lost_jobs_of_partitions_is_resumed(app: Stepfast) -> None:
    """As docs/howto/operate-runs.md says: it need not have stalled."""
    shop = catalogue(app)
    run_id = fetching(app)
    lose_job(app, run_id, 0)
    lose_job(app, run_id, 2)

    done = app.runs.resume(run_id)

    assert (done.run.state, done.was) == ("fetching", "fetching")
    assert done.partitions == ("partition-0", "partition-2")
    completes(app, shop, run_id)


@pytest.mark.parametrize("at", ["planning", "applying", "sweeping"])
def test_an_active_run_that_lost_its_only_job_is_resumed(app: Stepfast, at: str) -> None:
    shop = catalogue(app, sweep=Sweep())
    run = app.runs.start("catalogue")
    while run_row(app, run.id).state != at:
        run_steps(app, 1)
    rows.change(app, "DELETE FROM stepfast_job")

    assert app.runs.resume(run.id).run.state == at

    completes(app, shop, run.id)


def test_a_consolidation_that_lost_some_of_its_shards_is_resumed(app: Stepfast) -> None:
    shop = catalogue(app, batch=10, chunk=10)
    run = app.runs.start("catalogue")
    while rows.count(app, "stepfast_job", f"id LIKE '{run.id}.%'") < 2:
        run_steps(app, 1)
    rows.change(app, "DELETE FROM stepfast_job WHERE id LIKE :shard", shard=f"{run.id}.%.0")

    assert app.runs.resume(run.id).run.state == "applying"

    completes(app, shop, run.id)


@pytest.mark.parametrize("at", ["planning", "fetching", "applying"])
def test_an_active_run_that_lacks_no_job_is_not_resumed(app: Stepfast, at: str) -> None:
    catalogue(app)
    run = app.runs.start("catalogue")
    while run_row(app, run.id).state != at:
        run_steps(app, 1)
    before = rows.query(app, "SELECT id FROM stepfast_job ORDER BY id")

    with pytest.raises(StateError, match=rf"is {at}: it has all its jobs, .* stepfast runs show {run.id}"):
        app.runs.resume(run.id)

    assert rows.query(app, "SELECT id FROM stepfast_job ORDER BY id") == before


def test_a_stalled_run_may_be_retried_or_cancelled_as_well(app: Stepfast) -> None:
    shop = catalogue(app)
    run = failed_run(app, shop, SECOND)
    rows.change(
        app,
        "UPDATE stepfast_run SET state = 'stalled', stalled_in = 'fetching', ended_at = NULL WHERE id = :id",
        id=run.id,
    )

    assert app.runs.retry(run.id).run.state == "fetching"
    rows.change(
        app, "UPDATE stepfast_run SET state = 'stalled', stalled_in = 'fetching' WHERE id = :id", id=run.id
    )
    assert app.runs.cancel(run.id).run.state == "cancelled"

    assert app.runs.resume(run.id).run.state == "fetching"
    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"
    check_counters(app, run.id)


def test_the_end_of_a_failed_run_is_reported_once(app: Stepfast) -> None:
    shop = catalogue(app)
    names = [it.name for it in price_ranges(250, 500, 750)[:2]]

    with hearing() as told:
        run = failed_run(app, shop, *names)

    assert sorted(str(it["partition_id"]) for it in named(told, "partition.failed")) == [
        "partition-0",
        "partition-1",
    ]
    assert [it["run_id"] for it in named(told, "run.failed")] == [run.id]


def test_given_up_debts_are_not_promised_to_the_next_run(app: Stepfast) -> None:
    shop = catalogue(app)
    run = failed_run(app, shop, *(it.name for it in price_ranges(250, 500, 750)[:2]))
    app.runs.consolidate(run.id, force=True)
    work_until_idle(app)
    assert "reads what is owed (2 open debts)" in app.runs.show(run.id).why[1].sentence

    first = rows.query(app, "SELECT min(id) AS id FROM stepfast_debt")[0]["id"]
    rows.change(app, "UPDATE stepfast_debt SET tries = 3 WHERE id = :id", id=first)

    told = [it.sentence for it in app.runs.show(run.id).why]
    assert "reads what is owed (1 open debt)" in told[1]
    assert told[2].startswith("1 debt of the feed was given up after 3 tries")


def test_what_is_said_about_a_run_of_poor_quality_helps(app: Stepfast) -> None:
    feed = app.feed(Unmappable(shop := Shop.with_items(40)))
    prepare(app)
    run = app.runs.start("catalogue")
    work_until_idle(app)
    commands = [it.command for it in app.runs.show(run.id).why]
    assert commands[1:3] == [
        "stepfast quarantine replay --feed catalogue",
        f"stepfast runs consolidate {run.id}",
    ]

    feed.broken = False
    app.operator.quarantine.replay(Entries(feed="catalogue"))
    work_until_idle(app)
    app.runs.consolidate(run.id)
    work_until_idle(app)

    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()


@pytest.mark.parametrize("steps", [0, 1, 2, None], ids=["planning", "planned", "fetching", "applying"])
def test_retry_of_a_cancelled_run_goes_on_or_says_how(app: Stepfast, steps: int | None) -> None:
    shop = catalogue(app, items=10)
    run = app.runs.start("catalogue")
    if steps is None:
        while run_row(app, run.id).state != "applying":
            run_steps(app, 1)
    else:
        run_steps(app, steps)
    app.runs.cancel(run.id)

    if any(it["state"] == "cancelled" for it in partitions(app, run.id)):
        app.runs.retry(run.id)
    else:
        with pytest.raises(StateError, match=f"is cancelled: .*stepfast runs resume {run.id}"):
            app.runs.retry(run.id)
        app.runs.resume(run.id)
    work_until_idle(app)

    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()


def test_a_held_sweep_is_cancelled_and_held_again(app: Stepfast) -> None:
    shop = catalogue(app, sweep=Sweep(strikes=1, fuse=0.0))
    app.runs.start("catalogue", "full")
    work_until_idle(app)
    shop.remove("d00001")
    run = app.runs.start("catalogue", "full")
    work_until_idle(app)
    assert run_row(app, run.id).state == "sweeping"
    told = app.runs.show(run.id).why
    approve = f'stepfast sweeps approve {run.id} --reason "…"'
    assert [it.command for it in told[-2:]] == [approve, f'stepfast sweeps decline {run.id} --reason "…"']
    for refused in (app.runs.retry, app.runs.consolidate, app.runs.resume):
        with pytest.raises(StateError, match=r"its sweep waits for a person; .*stepfast sweeps approve"):
            refused(run.id)
    with pytest.raises(StateError, match=r"\(sweeping\): its sweep waits for a person; .*sweeps approve"):
        app.runs.start("catalogue")
    drain(app, with_scheduled=True, timeout="5s")  # ends, though a held sweep looks again every few minutes
    assert run_row(app, run.id).state == "sweeping"

    app.runs.cancel(run.id)
    assert app.runs.resume(run.id).run.state == "applying"

    work_until_idle(app)
    assert run_row(app, run.id).state == "sweeping"
    assert "its sweep is held until somebody approves it: 1 of 100 rows would go" in [
        it.sentence.partition(" (")[0] for it in app.runs.show(run.id).why
    ]


def test_a_piece_of_a_partition_that_was_split_is_retried_on_its_own(app: Stepfast) -> None:
    """How many partitions there are is never frozen: a run ends when none of them is open. (F28)"""
    shop = catalogue(
        app, items=200, page_size=200, partitioner=Heatmap(Dimension("price", 0, 1_000), target=500)
    )
    run = app.runs.start("catalogue")
    while run_row(app, run.id).state == "planning":
        run_steps(app, 1)
    assert len(partitions(app, run.id)) == 1
    for number in range(1_500):
        shop.put(f"n{number:05}", number % 1_000)
    shop.before = refusing_pieces
    work_until_idle(app)
    split, *pieces = partitions(app, run.id)
    assert (split["state"], {it["state"] for it in pieces}) == ("split", {"failed"})
    assert len(pieces) > 1
    failed = run_row(app, run.id)
    assert (failed.state, failed.partitions, failed.failed) == ("failed", len(pieces), len(pieces))
    with pytest.raises(StateError, match=r"partition-0 .* is split: its pieces are read instead"):
        app.runs.retry(run.id, [0])

    shop.before = lambda *_: None
    app.runs.retry(run.id)

    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()
    check_counters(app, run.id)


def refusing_pieces(what: str, part: Range, cursor: Cursor | None) -> None:
    if what == "page":
        raise PermanentError(f"{part.name} cannot be read at {cursor}")


# What is refused


def test_every_refusal_says_the_state_and_what_to_do(app: Stepfast) -> None:
    shop = catalogue(app)
    run = app.runs.start("catalogue")
    for act in (app.runs.consolidate, app.runs.resume, app.runs.retry):
        with pytest.raises(StateError, match=f"run {run.id} is planning: .* stepfast runs show {run.id}"):
            act(run.id)
    work_until_idle(app)
    for act in (app.runs.consolidate, app.runs.resume, app.runs.retry):
        with pytest.raises(StateError, match=f"run {run.id} is completed: .* stepfast runs start catalogue"):
            act(run.id)
    failed = failed_run(app, shop, SECOND)
    with pytest.raises(
        ConfigurationError, match=r"no partition 'partition-9'; it has partition-0 to partition-3"
    ):
        app.runs.retry(failed.id, ["partition-9"])
    with pytest.raises(StateError, match=r"partition-0 .* is done: it was read"):
        app.runs.retry(failed.id, [0])
    with pytest.raises(StateError, match=r"is failed: .* stepfast runs retry"):
        app.runs.resume(failed.id)
    assert rows.count(app, "stepfast_audit", "what <> 'run.start'") == 0


def test_whoever_has_no_feed_may_look_and_cancel(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    catalogue(app)
    run = app.runs.start("catalogue")
    stranger = another_app()

    assert stranger.runs.show("latest").run.id == run.id
    stranger.runs.cancel("catalogue")
    with pytest.raises(StepfastError, match="no feed 'catalogue'"):
        stranger.runs.resume(run.id)
