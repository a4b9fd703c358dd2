"""A run can be followed in the log of its workers, at the default level, by its id, its trace and its partitions' ids."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from stepfast.runs.feed import Page
from stepfast.runs.partitioning.partitioners import Fixed
from stepfast.telemetry import LEVELS
from tests.support import rows
from tests.support.events import hearing, named
from tests.support.failing_runs import (
    broken_at,
    catalogue,
    failed_run,
    partition,
    run_row,
    run_steps,
    work_until_idle,
)
from tests.support.feeds import Catalogue, Shop, prepare, price_ranges

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.feed import Row
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.window import Window
    from tests.support.events import Told

FIRST, SECOND = (it.name for it in price_ranges(250, 500, 750)[:2])


def story_of(told: Told) -> list[str]:
    """The events of a run that a worker logs without being asked for more, in their order."""
    about_runs = ("run.", "partition.", "partitions.", "consolidation.")
    return [name for name, _ in told if name.startswith(about_runs) and LEVELS[name] >= logging.INFO]


def trace_of(run_id: str) -> str:
    return run_id.replace("-", "")


def test_a_run_is_told_from_its_start_to_its_end(app: Stepfast) -> None:
    catalogue(app)

    with hearing() as told:
        run = app.runs.start("catalogue")
        work_until_idle(app)

    assert story_of(told) == [
        "run.started",
        "run.planned",
        *["partition.ended"] * 4,
        "consolidation.started",
        "consolidation.ended",
        "run.completed",
    ]
    for name in story_of(told):
        for facts in named(told, name):
            assert (facts["feed"], facts["run_id"], facts["trace_id"]) == (
                "catalogue",
                run.id,
                trace_of(run.id),
            )
    (started,) = named(told, "run.started")
    assert (started["run_kind"], started["window_from"]) == ("full", None)
    (planned,) = named(told, "run.planned")
    assert (planned["partitions"], planned["debts"]) == (4, 0)
    ends = named(told, "partition.ended")
    assert {it["partition_id"] for it in ends} == {f"partition-{number}" for number in range(4)}
    assert [it["ended"] for it in ends] == [1, 2, 3, 4]
    assert sum(int(str(it["rows"])) for it in ends) == 103  # rows on a common bound are read by both
    (completed,) = named(told, "run.completed")
    counts = {name: completed[name] for name in ("partitions", "completed", "rows", "applied", "quarantined")}
    assert counts == {"partitions": 4, "completed": 4, "rows": 103, "applied": 100, "quarantined": 0}


def test_the_ends_of_many_partitions_are_told_together(app: Stepfast) -> None:
    catalogue(app, items=60, partitioner=Fixed(price_ranges(*range(10, 1_000, 10))))

    with hearing() as told:
        app.runs.start("catalogue")
        work_until_idle(app)

    assert named(told, "partition.ended") == []
    ends = named(told, "partitions.ended")
    assert len(ends) == 50
    assert [it["ended"] for it in ends] == list(range(2, 101, 2))
    assert {it["partitions"] for it in ends} == {100}


def test_a_failed_run_says_why_in_the_order_in_which_it_failed(app: Stepfast) -> None:
    shop = catalogue(app)

    with hearing() as told:
        run = failed_run(app, shop, SECOND)

    (partition_failed,) = named(told, "partition.failed")
    (run_failed,) = named(told, "run.failed")
    names = [name for name, _ in told]
    assert names.index("partition.failed") < names.index("run.failed")
    assert partition_failed["partition_id"] == "partition-1"
    assert partition_failed["range"] == SECOND
    assert partition_failed["error"] == f"PermanentError: {SECOND} cannot be read"
    assert partition_failed["rows"] == 17
    assert partition_failed["trace_id"] == run_failed["trace_id"] == trace_of(run.id)
    assert run_failed["error"] == "1 of 4 partitions failed"
    assert (run_failed["partitions"], run_failed["completed"], run_failed["failed"]) == (4, 3, 1)


class Endless(Catalogue):
    """New rows, whatever is asked for."""

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:  # noqa: ARG002 - it ignores them
        return Page([{"id": f"n{cursor.offset + n:06}", "price": 1} for n in range(cursor.limit)])


def test_a_partition_that_fails_by_its_own_decision_is_told_as_well(app: Stepfast) -> None:
    """The job of such a partition is done: no watchdog finds it dead."""
    app.feed(Endless(Shop.with_items(30), partitioner=Fixed(price_ranges())))
    prepare(app)

    with hearing() as told:
        run = app.runs.start("catalogue")
        work_until_idle(app)

    (failed,) = named(told, "partition.failed")
    assert (failed["run_id"], failed["partition_id"]) == (run.id, "partition-0")
    assert "rows read where the source counts 30" in str(failed["error"])


def test_steps_of_a_partition_are_logged_under_its_id(app: Stepfast) -> None:
    shop = catalogue(app)

    with hearing() as told:
        failed_run(app, shop, SECOND)

    ids = {
        it["partition_id"] for name, it in told if name.startswith(("step.", "job.")) and "partition_id" in it
    }
    assert ids == {f"partition-{number}" for number in range(4)}
    (died,) = named(told, "job.died")
    assert died["partition_id"] == "partition-1"


def test_a_partition_that_gets_another_job_is_told_under_its_id(app: Stepfast) -> None:
    catalogue(app)
    run = app.runs.start("catalogue")
    run_steps(app, 1)
    rows.change(app, "DELETE FROM stepfast_job WHERE id = :id", id=partition(app, run.id, 2)["job_id"])

    with hearing() as told:
        work_until_idle(app)

    (resumed,) = named(told, "run.resumed")
    assert (resumed["partition_id"], resumed["note"]) == ("partition-2", "resumed")
    assert resumed["trace_id"] == trace_of(run.id)


class Unpriced(Catalogue):
    def map(self, item: Any, /) -> Row:
        if item["id"] == "d00003":
            raise ValueError("no price")
        return super().map(item)


def test_rows_in_quarantine_are_told_with_the_trace_of_their_run(app: Stepfast) -> None:
    app.feed(Unpriced(Shop.with_items(100)))
    prepare(app)

    with hearing() as told:
        run = app.runs.start("catalogue")
        work_until_idle(app)

    (refused,) = named(told, "rows.quarantined")
    assert refused == {"feed": "catalogue", "run_id": run.id, "trace_id": trace_of(run.id), "rows": 1}
    (completed,) = named(told, "run.completed")
    assert (completed["applied"], completed["quarantined"]) == (99, 1)


def test_a_forced_publication_is_told(app: Stepfast) -> None:
    shop = catalogue(app)
    run = failed_run(app, shop, SECOND)

    with hearing() as told:
        app.runs.consolidate(run.id, force=True)
        work_until_idle(app)

    (published,) = named(told, "run.published")
    assert (published["run_id"], published["completed"], published["failed"]) == (run.id, 3, 1)
    assert run_row(app, run.id).state == "published_partial"


def test_a_remap_is_told_from_its_start(app: Stepfast) -> None:
    catalogue(app)
    app.runs.start("catalogue")
    work_until_idle(app)

    with hearing() as told:
        run = app.runs.remap("catalogue")
        work_until_idle(app)

    assert story_of(told) == ["run.started", "consolidation.started", "consolidation.ended", "run.completed"]
    assert {it["run_id"] for it in named(told, "run.started")} == {run.id}


def test_a_plan_that_gives_up_fails_its_run_with_the_reason(app: Stepfast) -> None:
    shop = catalogue(app, partitioner=Fixed(price_ranges(250, 500, 750), counted=True))
    shop.before = broken_at(("count", FIRST, None))

    with hearing() as told:
        app.runs.start("catalogue")
        work_until_idle(app)

    assert story_of(told) == ["run.started", "run.failed"]
    (failed,) = named(told, "run.failed")
    assert str(failed["error"]).startswith("planning gave up: ")
