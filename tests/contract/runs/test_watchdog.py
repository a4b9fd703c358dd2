"""The watchdog notices what keeps a run from moving: dead or vanished jobs, missed ends, standstill."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.clock import duration, micros
from stepfast.database.database import persist
from stepfast.errors import ConfigurationError
from stepfast.jobs.archive import archive
from stepfast.runs import watchdog as mending
from stepfast.runs.declaration import declare
from stepfast.runs.feed import Sweep
from stepfast.testing import clock, drain
from stepfast.worker.run_watchdog import RunWatchdog
from tests.support import rows
from tests.support.engine import together
from tests.support.events import hearing, named
from tests.support.feeds import Catalogue, Shop, prepare, target
from tests.support.run_facts import begin, check_complete, check_counters, partitions, run_of
from tests.support.single_threaded_worker import SingleThreadedWorker

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.run import Run
    from stepfast.runs.watchdog import WatchdogAct
    from stepfast.runs.window import Window

NINETY_DAYS = timedelta(days=90)


class Unplannable(Catalogue):
    partitioner = None

    def plan(self, _window: Window, /) -> list[Range]:
        raise KeyError("nothing")


def reading(app: Stepfast, count: int = 40, **settings: Any) -> Shop:
    shop = Shop.with_items(count)
    app.feed(Catalogue(shop, **settings))
    prepare(app)
    return shop


def watchdog(app: Stepfast) -> RunWatchdog:
    return RunWatchdog(app.database, app.feeds, NINETY_DAYS)


def fails(error: Exception, times: int = 1_000, what: str = "page") -> Callable[..., None]:
    """The source fails for one partition, so many times."""
    left = [times]

    def before(asked: str, part: Range, _cursor: Cursor | None) -> None:
        if asked == what and "250" in part.name.partition("..")[0] and left[0] > 0:
            left[0] -= 1
            raise error

    return before


def alerts(app: Stepfast) -> list[str]:
    return [str(it["title"]) for it in rows.query(app, "SELECT title FROM stepfast_alert ORDER BY id")]


def fetching(app: Stepfast) -> Run:
    """A run that has its partitions, and has read nothing."""
    run = begin(app)
    SingleThreadedWorker(app).step()
    assert run_of(app, run.id).state == "fetching"
    return run


def lose(app: Stepfast, where: str = "1 = 1") -> int:
    """Jobs vanish, as with a backup that was restored without them."""
    return rows.change(app, f"DELETE FROM stepfast_job WHERE {where}")


def end(app: Stepfast, job_id: str, state: str, error: str | None = None) -> None:
    """End the job without telling the run."""
    text = "UPDATE stepfast_job SET last_error = :error WHERE id = :id"
    assert rows.change(app, text, id=job_id, error=error) == 1
    persist(app.database, lambda tx: archive(tx, [job_id], state))


def consolidating(app: Stepfast) -> Run:
    """A run whose consolidation was divided into shards, none of them begun."""
    run = begin(app)
    worker = SingleThreadedWorker(app)
    while run_of(app, run.id).shards == 0:
        assert worker.step() is not None
    return run_of(app, run.id)


# Partitions


def test_a_partition_whose_job_gave_up_fails_and_so_does_its_run(app: Stepfast) -> None:
    """It does not hang for ever with a partition that only the dead letters know of. (F38, F39)"""
    shop = reading(app)
    shop.before = fails(ValueError("not a page"))
    run = begin(app)

    drain(app, with_scheduled=True, raise_errors=False)

    found = run_of(app, run.id)
    assert (found.state, found.failed, found.completed) == ("failed", 1, 3)
    assert found.ended_at is not None
    assert [it["last_error"] for it in partitions(app, run.id) if it["state"] == "failed"] == [
        "ValueError: not a page"
    ]
    assert alerts(app) == ["Consolidation Skipped"]
    check_counters(app, run.id)


def test_a_page_that_fails_and_is_tried_again_never_counts_as_failed(app: Stepfast) -> None:
    """A partition that may still succeed is not declared failed after one attempt. (F38, F3)"""
    shop = reading(app)
    shop.before = fails(ValueError("not a page"), times=4)
    run = begin(app)

    drain(app, with_scheduled=True, raise_errors=False)

    check_complete(app, run.id, shop)
    assert target(app) == shop.prices()
    assert run_of(app, run.id).failed == 0
    assert alerts(app) == []


def test_an_open_partition_whose_job_vanished_gets_another_one_at_its_cursor(app: Stepfast) -> None:
    """A lost continuation is found, however it was lost. (F1, F41)"""
    shop = reading(app)
    run = begin(app)
    worker = SingleThreadedWorker(app)
    for _ in range(8):
        worker.step()
    before = {it["id"]: it for it in partitions(app, run.id)}
    assert lose(app) > 0

    assert watchdog(app).look() == sum(it["state"] in ("ready", "running") for it in before.values())

    for it in partitions(app, run.id):
        was = before[it["id"]]
        if was["state"] in ("ready", "running"):
            assert (it["epoch"], it["seq"], it["paging"]) == (was["epoch"] + 1, was["seq"], was["paging"])
            assert rows.live(app, it["job_id"]) is not None
    worker.finish()
    check_complete(app, run.id, shop)


def test_an_open_partition_whose_job_is_done_gets_another_one(app: Stepfast) -> None:
    """(F1)"""
    shop = reading(app)
    run = fetching(app)
    job_id = partitions(app, run.id)[0]["job_id"]
    end(app, job_id, "done")

    drain(app)

    check_complete(app, run.id, shop)


def test_a_partition_whose_job_was_cancelled_has_failed_for_that_reason(app: Stepfast) -> None:
    """(F39)"""
    reading(app)
    run = fetching(app)
    job_id = partitions(app, run.id)[2]["job_id"]
    end(app, job_id, "cancelled", "not today")

    drain(app)

    assert partitions(app, run.id)[2]["last_error"] == f"job {job_id} was cancelled: not today"
    assert run_of(app, run.id).state == "failed"
    check_counters(app, run.id)


def test_a_partition_whose_job_lives_is_left_alone(app: Stepfast) -> None:
    reading(app)
    run = fetching(app)
    before = partitions(app, run.id)

    done = watchdog(app).look()
    acts = [
        persist(
            app.database,
            partial(mending.repair_partition, declared=app.feeds.get("catalogue"), row_id=it["id"]),
        )
        for it in before
    ]

    assert done == 0
    assert acts == [None] * 4
    assert partitions(app, run.id) == before


def test_many_who_notice_the_same_death_count_it_once(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    """(F3)"""
    shop = reading(app)
    run = fetching(app)
    for it in partitions(app, run.id)[:2]:
        end(app, it["job_id"], "dead", "ValueError: no")
    others = [another_app() for _ in range(3)]
    for other in others:
        other.feed(Catalogue(shop))

    done = together([watchdog(it).look for it in (app, *others)])

    assert sum(done) == 2
    found = run_of(app, run.id)
    assert (found.state, found.failed) == ("fetching", 2)
    check_counters(app, run.id)


def test_many_who_miss_the_same_job_ask_for_one(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    """(F1)"""
    shop = reading(app)
    run = fetching(app)
    lose(app)
    others = [another_app() for _ in range(3)]
    for other in others:
        other.feed(Catalogue(shop))

    done = together([watchdog(it).look for it in (app, *others)])

    assert sum(done) == 4
    assert rows.count(app, "stepfast_job") == 4
    assert [it["epoch"] for it in partitions(app, run.id)] == [1] * 4


def test_who_revives_a_job_while_it_is_noticed_to_be_dead_comes_before_or_after(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    """A partition is never failed and read at once."""
    shop = reading(app)
    run = fetching(app)
    ids = [it["job_id"] for it in partitions(app, run.id)]
    for job_id in ids:
        end(app, job_id, "dead", "ValueError: no")
    other = another_app()
    other.feed(Catalogue(shop))

    together([watchdog(app).look, *(partial(other.operator.retry, it) for it in ids)])

    SingleThreadedWorker(app).finish()
    drain(app)
    found = run_of(app, run.id)
    assert found.completed + found.failed == 4
    assert found.state == ("failed" if found.failed else "completed")
    assert rows.count(app, "stepfast_job") == 0
    check_counters(app, run.id)


def test_a_run_of_which_nobody_noticed_that_all_is_read_goes_on(app: Stepfast) -> None:
    """The last one counted its end and crashed before it could tell: the trigger is not lost. (F41)"""
    reading(app)
    run = fetching(app)
    lose(app)
    rows.change(app, "UPDATE stepfast_partition SET state = 'done', ended_at = 1")

    with hearing() as told:
        assert watchdog(app).look() == 1

    assert run_of(app, run.id).state == "applying"
    assert [it["note"] for it in named(told, "run.resumed")] == ["evaluated"]
    drain(app)
    assert run_of(app, run.id).state == "completed"


# The run itself


def test_a_run_that_cannot_be_planned_has_failed_and_somebody_is_told(app: Stepfast) -> None:
    """(F27, F47)"""
    app.feed(Unplannable(Shop()))
    prepare(app)
    run = begin(app)

    drain(app, with_scheduled=True, raise_errors=False)

    found = run_of(app, run.id)
    assert (found.state, found.reason) == ("failed", "planning gave up: KeyError: 'nothing'")
    assert alerts(app) == ["Planning Failed"]


@pytest.mark.parametrize("how", ["vanished", "done"])
def test_a_run_whose_plan_was_lost_is_planned_again(app: Stepfast, how: str) -> None:
    """(F27, F41)"""
    shop = reading(app)
    run = begin(app)
    if how == "vanished":
        lose(app)
    else:
        end(app, str(run_of(app, run.id).job_id), "done")

    drain(app)

    check_complete(app, run.id, shop)


def test_a_consolidation_that_gave_up_fails_the_run_and_tells_why(app: Stepfast) -> None:
    """(F40)"""
    reading(app)
    run = consolidating(app)
    (shard,) = rows.query(app, "SELECT id FROM stepfast_job")
    end(app, shard["id"], "dead", "OperationalError: disk full")

    assert watchdog(app).look() == 1

    found = run_of(app, run.id)
    assert found.state == "failed"
    assert "disk full" in str(found.reason)
    assert found.watermark_after is None
    assert alerts(app) == ["Consolidation Failed"]


def test_a_consolidation_that_was_cancelled_fails_the_run(app: Stepfast) -> None:
    reading(app)
    run = consolidating(app)
    (shard,) = rows.query(app, "SELECT id FROM stepfast_job")
    end(app, shard["id"], "cancelled", "not today")

    assert watchdog(app).look() == 1

    assert "was cancelled: not today" in str(run_of(app, run.id).reason)


def test_shards_that_vanished_are_followed_by_another_round(app: Stepfast) -> None:
    """(F41)"""
    shop = reading(app)
    run = consolidating(app)
    lose(app)

    assert watchdog(app).look() == 1

    assert run_of(app, run.id).shards == 0
    drain(app)
    assert run_of(app, run.id).state == "completed"
    assert target(app) == shop.prices()


def test_a_division_that_vanished_is_asked_for_again(app: Stepfast) -> None:
    """(F41)"""
    shop = reading(app)
    run = begin(app)
    SingleThreadedWorker(app).until(kind="catalogue.consolidate")
    lose(app)

    drain(app)

    assert run_of(app, run.id).state == "completed"
    assert target(app) == shop.prices()


def sweeping(app: Stepfast) -> Run:
    """A run whose sweep is ready and has not begun."""
    run = begin(app)
    worker = SingleThreadedWorker(app)
    while run_of(app, run.id).state != "sweeping":
        assert worker.step() is not None
    return run


def test_a_sweep_that_gave_up_fails_the_run_and_tells_why(app: Stepfast) -> None:
    reading(app, sweep=Sweep())
    run = sweeping(app)
    end(app, str(run_of(app, run.id).job_id), "dead", "OperationalError: disk full")

    assert watchdog(app).look() == 1

    found = run_of(app, run.id)
    assert (found.state, found.reason) == ("failed", "the sweep gave up: OperationalError: disk full")
    assert found.watermark_after is None
    assert alerts(app) == ["Sweep Failed"]


def test_a_sweep_that_vanished_is_asked_for_again(app: Stepfast) -> None:
    """(F41)"""
    reading(app, sweep=Sweep())
    run = sweeping(app)
    lose(app)

    drain(app)

    assert run_of(app, run.id).state == "completed"


def test_a_failed_run_has_ended_and_the_next_one_may_begin(app: Stepfast) -> None:
    """It does not show as active for ever. (F47)"""
    shop = reading(app)
    shop.before = fails(ValueError("no"))
    run = begin(app)
    drain(app, with_scheduled=True, raise_errors=False)
    assert run_of(app, run.id).ended_at is not None
    shop.before = lambda *_: None

    again = begin(app)
    drain(app)

    assert run_of(app, again.id).state == "completed"


# Standstill


def stand_still(app: Stepfast, span: str = "31m") -> None:
    """Let the last movement of everything lie so far back."""
    past = micros(duration(span))
    for table in ("stepfast_run", "stepfast_partition"):
        rows.change(app, f"UPDATE {table} SET updated_at = updated_at - :past", past=past)


def test_a_run_that_nothing_has_moved_for_too_long_is_stalled_and_told_once(app: Stepfast) -> None:
    """(F47)"""
    reading(app)
    run = fetching(app)
    stand_still(app)
    watch = watchdog(app)

    done = [watch.look(), watch.look(), watchdog(app).look()]

    found = run_of(app, run.id)
    assert done == [1, 0, 0]
    assert (found.state, found.stalled_in) == ("stalled", "fetching")
    assert found.ended_at is None
    assert alerts(app) == ["Run stalled"]


def test_a_run_that_moves_is_not_stalled_however_old_its_row_is(app: Stepfast) -> None:
    """Partitions that wait in the queue are not stuck, as long as others move. (F47)"""
    reading(app)
    run = fetching(app)
    stand_still(app)
    SingleThreadedWorker(app).step()  # one page

    assert watchdog(app).look() == 0

    assert run_of(app, run.id).state == "fetching"


def test_a_stalled_run_that_moves_again_is_where_it_was(app: Stepfast) -> None:
    shop = reading(app)
    run = fetching(app)
    stand_still(app)
    watchdog(app).look()
    SingleThreadedWorker(app).step()

    assert watchdog(app).look() == 1

    found = run_of(app, run.id)
    assert (found.state, found.stalled_in, found.reason) == ("fetching", None, None)
    drain(app)
    check_complete(app, run.id, shop)


def test_a_stalled_run_comes_to_its_end_without_anybody_waking_it(app: Stepfast) -> None:
    shop = reading(app)
    run = fetching(app)
    stand_still(app)
    watchdog(app).look()

    SingleThreadedWorker(app).finish()

    assert run_of(app, run.id).state == "completed"
    assert target(app) == shop.prices()


def test_a_run_that_waits_for_its_source_is_not_called_stalled(app: Stepfast) -> None:
    reading(app)
    run = fetching(app)
    stand_still(app)
    rows.change(
        app, "UPDATE stepfast_feed SET troubles = 3, paused_until = :at", at=rows.now(app) + rows.HOUR
    )

    assert watchdog(app).look() == 0

    assert run_of(app, run.id).state == "fetching"


def test_trouble_that_is_long_over_does_not_hide_a_standstill(app: Stepfast) -> None:
    reading(app)
    run = fetching(app)
    stand_still(app)
    rows.change(
        app, "UPDATE stepfast_feed SET troubles = 3, paused_until = :at", at=rows.now(app) - rows.HOUR
    )

    watchdog(app).look()

    assert run_of(app, run.id).state == "stalled"


def test_a_paused_queue_is_named_as_the_reason(app: Stepfast) -> None:
    reading(app)
    run = fetching(app)
    stand_still(app)
    app.operator.pause("default")

    watchdog(app).look()

    assert "queue default is paused" in str(run_of(app, run.id).reason)


# Age


def test_a_watermark_that_is_too_old_is_told_once_in_a_while(app: Stepfast) -> None:
    """(F40)"""
    reading(app, fresh_within="2h")
    begin(app)
    drain(app)
    watch = watchdog(app)
    watch.tidy()
    assert alerts(app) == []

    with clock(app) as time:
        time.advance("3h")
        watch.tidy()
        watch.tidy()
        assert alerts(app) == ["Watermark too old"]
        assert _raised(app) == 1
        time.advance("2h")
        watch.tidy()
        assert _raised(app) == 2


def test_a_feed_that_never_came_to_an_end_is_old_too(app: Stepfast) -> None:
    """(F40)"""
    shop = reading(app, fresh_within="2h")
    shop.before = fails(ValueError("no"))
    begin(app)
    drain(app, with_scheduled=True, raise_errors=False)
    rows.change(app, "UPDATE stepfast_run SET started_at = started_at - :past", past=3 * rows.HOUR)

    watchdog(app).tidy()

    assert "Watermark too old" in alerts(app)


def test_dead_letters_of_a_feed_that_grow_are_told_once_in_a_while(app: Stepfast) -> None:
    shop = reading(app, attempts_page=1)
    shop.before = _always
    for _ in range(3):
        begin(app)
        drain(app, raise_errors=False)
    watch = watchdog(app)

    watch.tidy()
    watch.tidy()

    assert alerts(app).count("Dead letters growing") == 1
    (found,) = rows.query(app, "SELECT body, raised FROM stepfast_alert WHERE title = 'Dead letters growing'")
    assert "Dead letters: 12 new, 12 in all" in found["body"]
    assert found["raised"] == 1


def _always(_what: str, _part: Range, _cursor: Cursor | None) -> None:
    raise ValueError("not a page")


def _raised(app: Stepfast) -> int:
    return int(rows.query(app, "SELECT raised FROM stepfast_alert")[0]["raised"])


# What is left behind


def test_what_a_completed_run_has_seen_is_forgotten(app: Stepfast) -> None:
    reading(app)
    begin(app)
    drain(app)
    assert rows.count(app, "stepfast_seen") >= 40

    watchdog(app).tidy()

    assert rows.count(app, "stepfast_seen") == 0
    assert rows.count(app, "stepfast_raw") == 40


def test_what_a_failed_partition_has_seen_is_kept_until_it_cannot_be_read_on(app: Stepfast) -> None:
    """A retry of the partition anchors its pages by these rows."""
    shop = reading(app, 100)
    shop.before = _after_the_first_page
    run = begin(app)
    drain(app, with_scheduled=True, raise_errors=False)
    assert run_of(app, run.id).state == "failed"
    (kept,) = (it for it in partitions(app, run.id) if it["state"] == "failed")
    assert kept["seen"] > 0

    watchdog(app).tidy()
    assert rows.count(app, "stepfast_seen") == kept["seen"]

    shop.before = lambda *_: None
    begin(app)
    drain(app)
    watchdog(app).tidy()
    assert rows.count(app, "stepfast_seen") == 0


def _after_the_first_page(what: str, part: Range, cursor: Cursor | None) -> None:
    if what == "page" and "250" in part.name.partition("..")[0] and cursor is not None and cursor.offset > 0:
        raise ValueError("not a page")


def test_old_runs_are_forgotten_with_their_ledgers_but_not_the_newest(app: Stepfast) -> None:
    reading(app)
    old = begin(app)
    drain(app)
    newest = begin(app)
    drain(app)
    rows.change(app, "UPDATE stepfast_run SET ended_at = ended_at - :past", past=91 * rows.DAY)

    watchdog(app).tidy()

    assert [it["id"] for it in rows.query(app, "SELECT id FROM stepfast_run")] == [newest.id]
    assert partitions(app, old.id) == []
    ledger = "partition_id NOT IN (SELECT id FROM stepfast_partition)"
    assert rows.count(app, "stepfast_page", ledger) == 0
    assert rows.count(app, "stepfast_page") > 0


def test_runs_that_are_not_old_are_kept(app: Stepfast) -> None:
    reading(app)
    for _ in range(2):
        begin(app)
        drain(app)
    pages = rows.count(app, "stepfast_page")

    watchdog(app).tidy()

    assert rows.count(app, "stepfast_run") == 2
    assert rows.count(app, "stepfast_page") == pages


# Who watches


def test_every_worker_that_knows_the_feed_watches_over_its_runs(app: Stepfast) -> None:
    shop = reading(app)
    run = fetching(app)
    lose(app)

    with app.worker():
        rows.eventually(lambda: run_of(app, run.id).state == "completed")

    assert target(app) == shop.prices()


def test_a_worker_that_does_not_know_the_feed_leaves_its_runs_alone(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    """An older deployment must not decide about what it does not understand."""
    reading(app)
    fetching(app)
    lose(app)

    assert watchdog(another_app()).look() == 0

    assert rows.count(app, "stepfast_job") == 0


def test_one_run_that_cannot_be_mended_does_not_keep_the_others_waiting(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = reading(app)
    app.feed(Catalogue(shop, name="other"))
    first, second = begin(app), begin(app, "other")
    lose(app)
    mend = mending.repair_run

    def stumble(tx: Any, declared: Any, run_id: str) -> WatchdogAct | None:
        if run_id == first.id:
            raise RuntimeError("a bug of ours")
        return mend(tx, declared, run_id)

    monkeypatch.setattr(mending, "repair_run", stumble)

    with pytest.raises(RuntimeError, match="a bug of ours"):
        watchdog(app).look()

    assert rows.live(app, str(run_of(app, second.id).job_id)) is not None


@pytest.mark.parametrize("setting", ["stall_after", "fresh_within"])
def test_a_feed_that_gives_no_time_at_all_is_refused(setting: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{setting}='0s': more than no time at all"):
        declare(Catalogue(Shop(), **{setting: "0s"}))
