"""The views `run_metadata`, `worker_runs` and `partition_progress` answer the queries of the operators' documents."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.clock import moment, new_id
from stepfast.errors import DatabaseError
from stepfast.jobs.outcome import Again
from stepfast.runs.feed import Page, Row
from stepfast.runs.paging.paginators import Keyset
from stepfast.runs.partition import (
    ADVANCE_PARTITION,
    NewPartition,
    PartitionState,
    end_partition,
    insert_partitions,
    partitions_of,
)
from stepfast.runs.partitioning.partitioners import Fixed
from stepfast.runs.partitioning.ranges import Bounds, Range
from stepfast.runs.plan import COUNT_NEW_PARTITIONS
from stepfast.runs.run import RunState, create_run, end_run, find_run, move_run
from stepfast.runs.window import Window
from stepfast.testing import drain
from tests.support import rows
from tests.support import run_queries as queries
from tests.support.engine import ALICE, commit_step, register_work, take
from tests.support.feeds import Catalogue, Shop, prepare, price_ranges

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partition import Partition

COLUMNS = {
    "run_metadata": [
        "run_id",
        "run_type",
        "expected_workers",
        "completed_workers",
        "failed_workers",
        "watermark_before",
        "watermark_after",
        "started_at",
        "completed_at",
    ],
    "worker_runs": [
        "id",
        "run_id",
        "partition_id",
        "worker_id",
        "status",
        "records_processed",
        "error_message",
        "work_item_payload",
        "started_at",
        "completed_at",
    ],
    "partition_progress": [
        "run_id",
        "partition_id",
        "next_offset",
        "completed",
        "created_at",
        "updated_at",
    ],
}
FROM, TO = datetime(2024, 1, 15, 2, tzinfo=UTC), datetime(2024, 1, 16, 2, tzinfo=UTC)


@dataclass(frozen=True)
class Story:
    """Writes the rows of a run, from its beginning to the point that a test looks at."""

    app: Stepfast
    id: str

    def plan(self, partitions: int, job_id: str | None = None) -> Story:
        """Write the partitions; none of them has been read."""
        new = [
            NewPartition(
                id=new_id(),
                job_id=job_id or new_id(),
                range=Range.of(price=Bounds(100 * it, 100 * it + 100)),
                window=Window(FROM, TO),
                name=f"price {it}",
            )
            for it in range(partitions)
        ]
        with self.app.transaction() as tx:
            insert_partitions(tx, self.id, new)
            tx.run(COUNT_NEW_PARTITIONS, id=self.id, more=partitions, rows=0)
            assert move_run(tx, find_run(tx, self.id), RunState.FETCHING)
        return self

    def read(self, number: int, to: int, state: PartitionState = PartitionState.RUNNING) -> Story:
        """A page of 30 rows, which may be the last."""
        partition = self.partition(number)
        with self.app.transaction() as tx:
            matched = tx.run(
                ADVANCE_PARTITION,
                id=partition.id,
                epoch=partition.epoch,
                seq=partition.seq,
                paging="{}",
                next_offset=to,
                fresh=30,
                rejected=0,
                worker_id="worker-1",
                target=state.value,
                counted=None,
                error="nobody can tell whether it is complete" if state == "done_unverified" else None,
                ends=int(state is not PartitionState.RUNNING),
            )
        assert matched == 1
        return self

    def end(self, number: int, state: PartitionState, error: str | None = None) -> Story:
        with self.app.transaction() as tx:
            assert end_partition(tx, self.partition(number), state, error)
        return self

    def move(self, state: RunState) -> Story:
        with self.app.transaction() as tx:
            run = find_run(tx, self.id)
            moved = move_run(tx, run, state) if state is RunState.APPLYING else end_run(tx, run, state)
            assert moved
            if state is RunState.COMPLETED:
                tx.execute(
                    "UPDATE stepfast_run SET completed_at = ended_at, watermark_after = window_to WHERE id = :id",
                    {"id": self.id},
                )
        return self

    def partition(self, number: int) -> Partition:
        with self.app.database.reading() as tx:
            return partitions_of(tx, self.id)[number]

    def one(self, view: str) -> rows.Row:
        (row,) = rows.query(self.app, f"SELECT * FROM {view} WHERE run_id = :id", id=self.id)
        return row

    def workers(self) -> dict[str, rows.Row]:
        found = rows.query(self.app, "SELECT * FROM worker_runs WHERE run_id = :id", id=self.id)
        return {row["partition_id"]: row for row in found}


def begin(
    app: Stepfast, name: str = queries.ABC123, window: Window | None = None, feed: str = "catalogue"
) -> Story:
    """A run that has just been started, under a name of the documents."""
    with app.transaction() as tx:
        run = create_run(tx, feed, "full", window or Window(None, TO), watermark=None)
        tx.execute("UPDATE stepfast_run SET id = :name WHERE id = :id", {"name": name, "id": run.id})
    return Story(app, name)


def instant(value: Any) -> datetime:
    """What the three drivers return for a timestamp, as one thing."""
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    assert isinstance(at, datetime)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def age(app: Stepfast, story: Story, number: int, seconds: int) -> None:
    """Let the partition not have moved for so long."""
    rows.change(
        app,
        "UPDATE stepfast_partition SET updated_at = updated_at - :ago WHERE id = :id",
        ago=seconds * rows.SECOND,
        id=story.partition(number).id,
    )


# Columns and types


@pytest.mark.parametrize("view", COLUMNS)
def test_the_columns_are_those_of_the_documents_in_order(app: Stepfast, view: str) -> None:
    begin(app).plan(1).read(0, 30)

    (row,) = rows.query(app, f"SELECT * FROM {view}")

    assert list(row) == COLUMNS[view]


TYPES = {
    "run_metadata": "text text integer integer integer instant instant instant instant",
    "worker_runs": "text text text text text integer text json instant instant",
    "partition_progress": "text text integer boolean instant instant",
}
WORDS = {
    "postgresql": {
        "text": {"text"},
        "integer": {"integer"},
        "boolean": {"boolean"},
        "json": {"jsonb"},
        "instant": {"timestamp with time zone"},
    },
    "mariadb": {
        "text": {"varchar", "longtext"},
        "integer": {"int", "bigint"},
        "boolean": {"int"},
        "json": {"varchar", "longtext"},
        "instant": {"datetime"},
    },
}


@pytest.mark.only_on("postgresql", "mariadb")
@pytest.mark.parametrize("view", COLUMNS)
def test_the_columns_have_the_types_of_the_documents(app: Stepfast, view: str) -> None:
    found = rows.query(
        app,
        "SELECT column_name AS name, data_type AS type, datetime_precision AS grain FROM information_schema.columns"
        " WHERE table_name = :view AND table_schema IN ('public', :name)",
        view=view,
        name=app.database.url.rpartition("/")[2],
    )

    words = WORDS[app.database.dialect.name]
    types = {row["name"]: row["type"] for row in found}
    assert list(types) == COLUMNS[view]
    for name, wanted in zip(COLUMNS[view], TYPES[view].split(), strict=True):
        assert types[name] in words[wanted], name
    assert {row["grain"] for row in found} == {None, 6}


def test_instants_keep_what_the_database_can_show(app: Stepfast) -> None:
    story = begin(app)
    rows.change(app, "UPDATE stepfast_run SET started_at = 1705370400123456")

    shown = instant(story.one("run_metadata")["started_at"])

    grain = timedelta(milliseconds=1 if app.database.dialect.name == "sqlite" else 0)
    assert abs(shown.astimezone(UTC) - moment(1705370400123456)) <= grain


# The life of a run


def facts(story: Story) -> tuple[Any, ...]:
    row = story.one("run_metadata")
    return (
        row["expected_workers"],
        row["completed_workers"],
        row["failed_workers"],
        row["completed_at"] is not None,
        row["watermark_after"] is not None,
    )


def status(story: Story) -> str:
    """The status that the documents make of these columns."""
    row = story.one("run_metadata")
    if row["completed_at"] is not None:
        return "completed"
    if row["failed_workers"] > 0:
        return "failed"
    return "in_progress" if row["completed_workers"] < row["expected_workers"] else "consolidating"


def test_a_run_that_was_just_created_has_done_nothing_and_expects_a_worker(app: Stepfast) -> None:
    story = begin(app)

    assert facts(story) == (1, 0, 0, False, False)
    assert status(story) == "in_progress"


def test_a_run_whose_partitions_are_read_is_in_progress(app: Stepfast) -> None:
    story = begin(app).plan(3).read(0, 30, PartitionState.DONE).read(1, 30)

    assert facts(story) == (3, 1, 0, False, False)
    assert status(story) == "in_progress"


def test_a_run_whose_consolidation_was_skipped_has_failed(app: Stepfast) -> None:
    story = begin(app).plan(2).read(0, 30, PartitionState.DONE).end(1, PartitionState.FAILED, "HTTP 500")
    story.move(RunState.FAILED)

    assert facts(story) == (2, 1, 1, False, False)
    assert status(story) == "failed"


def test_a_run_whose_partitions_are_all_read_is_consolidating(app: Stepfast) -> None:
    story = begin(app).plan(2).read(0, 30, PartitionState.DONE).read(1, 30, PartitionState.DONE_UNVERIFIED)
    story.move(RunState.APPLYING)

    assert facts(story) == (2, 2, 0, False, False)
    assert status(story) == "consolidating"


def test_a_completed_run_says_when_and_up_to_when(app: Stepfast) -> None:
    story = begin(app).plan(1).read(0, 30, PartitionState.DONE)
    story.move(RunState.APPLYING).move(RunState.COMPLETED)

    row = story.one("run_metadata")
    assert facts(story) == (1, 1, 0, True, True)
    assert status(story) == "completed"
    assert instant(row["watermark_after"]) == TO
    assert instant(row["completed_at"]) >= instant(row["started_at"])


@pytest.mark.parametrize(
    "how",
    [RunState.FAILED, RunState.FAILED_QUALITY, RunState.CANCELLED, RunState.PUBLISHED_PARTIAL],
)
def test_a_run_that_ended_otherwise_never_looks_as_if_it_were_going_on(app: Stepfast, how: RunState) -> None:
    story = begin(app).plan(1).read(0, 30, PartitionState.DONE).move(RunState.APPLYING).move(how)

    assert facts(story) == (1, 1, 1, False, False)
    assert status(story) == "failed"


def test_a_run_whose_planning_gave_up_has_failed(app: Stepfast) -> None:
    story = begin(app).move(RunState.FAILED)

    assert status(story) == "failed"


def test_an_empty_window_is_consolidated_and_completed(app: Stepfast) -> None:
    story = begin(app).plan(0)
    assert (facts(story), status(story)) == ((0, 0, 0, False, False), "consolidating")

    story.move(RunState.APPLYING).move(RunState.COMPLETED)
    assert status(story) == "completed"


def test_a_run_that_stalled_while_it_was_planned_still_expects_a_worker(app: Stepfast) -> None:
    story = begin(app)
    rows.change(app, "UPDATE stepfast_run SET state = 'stalled', stalled_in = 'planning'")

    assert facts(story)[0] == 1


def test_a_partition_that_was_split_counts_by_its_pieces(app: Stepfast) -> None:
    story = begin(app).plan(3).read(0, 30).end(0, PartitionState.SPLIT)
    for number in (1, 2):
        story.read(number, 30, PartitionState.DONE)

    assert facts(story)[:3] == (2, 2, 0)
    assert sorted(story.workers()) == ["partition-1", "partition-2"]
    progress = rows.query(app, "SELECT partition_id FROM partition_progress")
    assert sorted(row["partition_id"] for row in progress) == ["partition-1", "partition-2"]


@pytest.mark.parametrize(("begins", "word"), [(None, "full"), (FROM, "incremental")])
def test_a_run_that_reads_everything_is_full_and_others_are_incremental(
    app: Stepfast, begins: datetime | None, word: str
) -> None:
    assert begin(app, window=Window(begins, TO)).one("run_metadata")["run_type"] == word


def test_a_run_that_maps_again_is_incremental_and_expects_nobody(app: Stepfast) -> None:
    app.feed(Catalogue(Shop.with_items(10)))
    prepare(app)

    story = Story(app, app.runs.remap("catalogue").id)

    assert (story.one("run_metadata")["run_type"], facts(story)[:3]) == ("incremental", (0, 0, 0))


def test_the_watermark_before_is_that_of_the_last_run(app: Stepfast) -> None:
    story = begin(app)
    assert story.one("run_metadata")["watermark_before"] is None

    rows.change(app, "UPDATE stepfast_run SET watermark_before = :at", at=int(FROM.timestamp()) * rows.SECOND)

    assert instant(story.one("run_metadata")["watermark_before"]) == FROM


# Workers, which are partitions


def test_nobody_works_on_a_partition_that_nobody_has_begun(app: Stepfast) -> None:
    story = begin(app).plan(2).read(0, 30)

    assert list(story.workers()) == ["partition-0"]


def test_a_worker_is_running_completed_or_failed(app: Stepfast) -> None:
    story = begin(app).plan(5).read(0, 30).read(1, 30, PartitionState.DONE)
    story.read(2, 30, PartitionState.DONE_UNVERIFIED)
    story.end(3, PartitionState.FAILED, "HTTP 500").end(4, PartitionState.CANCELLED)

    found = story.workers()

    assert [found[f"partition-{it}"]["status"] for it in range(5)] == [
        "running",
        "completed",
        "completed",
        "failed",
        "failed",
    ]
    assert [found[f"partition-{it}"]["completed_at"] is not None for it in range(5)] == [
        False,
        True,
        True,
        True,
        True,
    ]


def test_a_worker_says_how_many_rows_it_has_read_and_who_it_is(app: Stepfast) -> None:
    story = begin(app).plan(1).read(0, 27).read(0, 54)

    row = story.workers()["partition-0"]

    assert (row["records_processed"], row["worker_id"], row["error_message"]) == (60, "worker-1", None)
    assert row["id"] == story.partition(0).id


def test_a_worker_that_failed_or_was_stopped_says_why(app: Stepfast) -> None:
    story = begin(app).plan(2).end(0, PartitionState.FAILED, "HTTP 500").end(1, PartitionState.CANCELLED)

    found = story.workers()

    assert [found[f"partition-{it}"]["error_message"] for it in (0, 1)] == ["HTTP 500", "cancelled"]
    assert {row["worker_id"] for row in found.values()} == {"unknown"}


def test_a_worker_at_its_first_page_is_the_one_that_holds_the_lease(app: Stepfast) -> None:
    rows.add_worker(app, ALICE, worker_id="alice")
    job = register_work(app).enqueue()
    story = begin(app).plan(1, job.id)
    assert story.workers() == {}

    held = take(app, ALICE)

    row = story.workers()["partition-0"]
    assert (row["status"], row["worker_id"], row["error_message"]) == ("running", "alice", None)

    commit_step(app, held, Again(timedelta(0), "HTTP 502", "HTTP …"))
    story.read(0, 30)
    row = story.workers()["partition-0"]
    assert (row["worker_id"], row["error_message"]) == ("worker-1", "HTTP 502")


def test_a_worker_that_waits_for_its_source_says_so(app: Stepfast) -> None:
    story = begin(app).plan(1).read(0, 30)
    rows.change(
        app, "UPDATE stepfast_partition SET troubled_at = updated_at + 1, last_error = 'outage: HTTP 503'"
    )
    assert story.workers()["partition-0"]["error_message"] == "outage: HTTP 503"

    rows.change(app, "UPDATE stepfast_partition SET updated_at = updated_at + 2")
    assert story.workers()["partition-0"]["error_message"] is None


def test_the_work_item_is_the_range_and_the_window(app: Stepfast) -> None:
    story = begin(app).plan(2).read(1, 30)

    found = story.workers()["partition-1"]["work_item_payload"]

    item = json.loads(found) if isinstance(found, str) else found
    assert item["range"] == story.partition(1).range.to_json()
    assert [instant(item["window"][it]) for it in ("from", "to")] == [FROM, TO]


def test_a_range_with_a_nul_character_does_not_hide_the_others(app: Stepfast) -> None:
    story = begin(app).plan(2).read(0, 30).read(1, 30)
    rows.change(
        app,
        "UPDATE stepfast_partition SET span = :span WHERE id = :id",
        span='{"items":["a\\u0000b"]}',
        id=story.partition(0).id,
    )

    assert len(story.workers()) == 2


def test_every_partition_has_one_worker_also_after_a_retry(app: Stepfast) -> None:
    story = begin(app).plan(2).read(0, 30).end(0, PartitionState.FAILED, "HTTP 500")
    rows.change(
        app, "UPDATE stepfast_partition SET state = 'ready', epoch = epoch + 1 WHERE state = 'failed'"
    )

    row = story.workers()["partition-0"]
    assert (row["status"], row["error_message"], row["completed_at"]) == ("running", None, None)
    doubled = rows.query(
        app, "SELECT run_id, partition_id FROM worker_runs GROUP BY run_id, partition_id HAVING count(*) > 1"
    )
    assert doubled == []


# Progress


def test_progress_begins_at_zero_with_the_plan(app: Stepfast) -> None:
    begin(app).plan(1)

    (row,) = rows.query(app, "SELECT * FROM partition_progress")

    assert (row["run_id"], row["partition_id"], row["next_offset"], row["completed"]) == (
        "abc123",
        "partition-0",
        0,
        False,
    )
    assert instant(row["created_at"]) <= instant(row["updated_at"])


def test_progress_is_completed_by_a_last_page_and_by_nothing_else(app: Stepfast) -> None:
    story = begin(app).plan(5).read(0, 30).read(1, 30, PartitionState.DONE)
    story.read(2, 57, PartitionState.DONE_UNVERIFIED)
    story.end(3, PartitionState.FAILED, "HTTP 500").end(4, PartitionState.CANCELLED)

    found = rows.query(app, "SELECT * FROM partition_progress ORDER BY partition_id")

    assert [(row["next_offset"], bool(row["completed"])) for row in found] == [
        (30, False),
        (30, True),
        (57, True),
        (0, False),
        (0, False),
    ]


@pytest.mark.only_on("postgresql")
def test_a_number_that_the_documents_have_no_room_for_hides_nothing(app: Stepfast) -> None:
    story = begin(app).plan(1).read(0, 30)
    rows.change(app, "UPDATE stepfast_partition SET next_offset = 5000000000, seen = 5000000000")

    assert story.one("partition_progress")["next_offset"] == 2147483647
    assert story.one("worker_runs")["records_processed"] == 2147483647


# The queries of the documents, verbatim


@pytest.mark.parametrize("text", queries.EVERYWHERE)
def test_a_query_of_the_documents_runs_on_every_database(app: Stepfast, text: str) -> None:
    rows.query(app, text)


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("text", queries.ON_POSTGRESQL)
def test_a_query_of_the_documents_runs_on_postgresql_with_runs_and_without(app: Stepfast, text: str) -> None:
    assert rows.query(app, text) == []

    begin(app).plan(2).read(0, 30).read(1, 30, PartitionState.DONE)

    rows.query(app, text)


def test_the_documents_find_the_progress_of_a_run(app: Stepfast) -> None:
    begin(app, feed="another").plan(1)
    begin(app, queries.YOUR_RUN_ID).plan(2).read(0, 30, PartitionState.DONE)

    progress = rows.query(app, queries.PROGRESS_OF_A_RUN)
    completed = rows.query(app, queries.COMPLETED_OF_A_RUN)

    assert sorted(row["partition_id"] for row in progress) == ["partition-0", "partition-1"]
    assert [(row["partition_id"], row["next_offset"]) for row in completed] == [("partition-0", 30)]


def test_the_documents_find_active_partitions_the_latest_first(app: Stepfast) -> None:
    story = begin(app).plan(3).read(0, 30, PartitionState.DONE).read(1, 30).read(2, 30)
    age(app, story, 2, 60)

    found = rows.query(app, queries.ACTIVE_PARTITIONS)

    assert [row["partition_id"] for row in found] == ["partition-1", "partition-2"]


@pytest.mark.only_on("postgresql")
def test_the_documents_find_partitions_that_are_stuck(app: Stepfast) -> None:
    story = begin(app).plan(3).read(0, 30, PartitionState.DONE).read(1, 30)
    age(app, story, 0, 601)
    age(app, story, 1, 601)
    age(app, story, 2, 590)

    found = rows.query(app, queries.STUCK_PARTITIONS)

    assert [row["partition_id"] for row in found] == ["partition-1"]


def test_the_documents_find_runs_that_are_not_complete(app: Stepfast) -> None:
    begin(app, "done").plan(0).move(RunState.APPLYING).move(RunState.COMPLETED)
    begin(app).plan(2).read(0, 30, PartitionState.DONE)

    assert rows.query(app, queries.COMPLETION_OF_RUNS) == [
        {"run_id": "abc123", "completed_workers": 1, "expected_workers": 2, "failed_workers": 0}
    ]


def test_the_documents_find_a_partition_by_its_name(app: Stepfast) -> None:
    begin(app).plan(2)

    named = queries.ONE_PARTITION.replace("stuck-partition", "partition-1")

    assert rows.query(app, queries.ONE_PARTITION) == []
    assert [row["partition_id"] for row in rows.query(app, named)] == ["partition-1"]


def test_the_documents_find_the_last_successful_run(app: Stepfast) -> None:
    for name, ended in (
        ("first", RunState.COMPLETED),
        ("second", RunState.COMPLETED),
        ("third", RunState.FAILED),
    ):
        begin(app, name).plan(0).move(RunState.APPLYING).move(ended)
        rows.change(app, "UPDATE stepfast_run SET completed_at = completed_at - 5000000 WHERE id = 'first'")

    (row,) = rows.query(app, queries.LAST_SUCCESSFUL_RUN)

    assert (row["run_id"], instant(row["watermark_after"])) == ("second", TO)


@pytest.mark.only_on("postgresql")
def test_the_documents_tell_the_status_of_a_run_through_its_life(app: Stepfast) -> None:
    told = []

    def look() -> None:
        (row,) = rows.query(app, queries.STATUS_OF_A_RUN)
        told.append((row["progress"], row["status"]))
        assert 0 <= row["duration_minutes"] < 1

    story = begin(app)
    look()
    story.plan(2).read(0, 30, PartitionState.DONE)
    look()
    story.read(1, 30, PartitionState.DONE).move(RunState.APPLYING)
    look()
    story.move(RunState.COMPLETED)
    look()

    assert told == [
        ("0/1", "in_progress"),
        ("1/2", "in_progress"),
        ("2/2", "consolidating"),
        ("2/2", "completed"),
    ]


def test_the_documents_break_a_run_down_by_workers_and_partitions(app: Stepfast) -> None:
    story = begin(app).plan(3).read(0, 30, PartitionState.DONE).read(1, 30)
    story.end(1, PartitionState.FAILED, "HTTP 500")

    workers = rows.query(app, queries.WORKERS_OF_A_RUN)
    partitions = rows.query(app, queries.PARTITIONS_OF_A_RUN)

    assert [
        (row["partition_id"], row["status"], row["records_processed"], row["error_message"])
        for row in workers
    ] == [("partition-0", "completed", 30, None), ("partition-1", "failed", 30, "HTTP 500")]
    assert [(row["partition_id"], row["next_offset"], bool(row["completed"])) for row in partitions] == [
        ("partition-0", 30, True),
        ("partition-1", 30, False),
        ("partition-2", 0, False),
    ]


@pytest.mark.only_on("postgresql")
def test_the_documents_find_active_runs_and_how_long_they_have_taken(app: Stepfast) -> None:
    begin(app, "done").plan(0).move(RunState.APPLYING).move(RunState.COMPLETED)
    begin(app).plan(1)
    rows.change(app, "UPDATE stepfast_run SET started_at = started_at - :hour", hour=rows.HOUR)

    (row,) = rows.query(app, queries.ACTIVE_RUNS)

    assert (row["run_id"], row["completed_workers"], row["expected_workers"]) == ("abc123", 0, 1)
    assert timedelta(hours=1) <= row["elapsed"] < timedelta(hours=1, minutes=1)


@pytest.mark.only_on("postgresql")
def test_the_documents_find_the_runs_of_a_day(app: Stepfast) -> None:
    begin(app, "old").plan(0).move(RunState.APPLYING).move(RunState.COMPLETED)
    rows.change(app, "UPDATE stepfast_run SET started_at = started_at - :day", day=rows.DAY + rows.SECOND)
    begin(app, "failed").plan(1).end(0, PartitionState.FAILED, "HTTP 500").move(RunState.FAILED)
    begin(app, "completed").plan(0).move(RunState.APPLYING).move(RunState.COMPLETED)
    begin(app).plan(1)

    found = rows.query(app, queries.RECENT_RUNS)

    assert [(row["run_id"], row["progress"], row["status"]) for row in found] == [
        ("abc123", "0/1", "in_progress"),
        ("completed", "0/0", "completed"),
        ("failed", "0/1", "failed"),
    ]


def test_the_documents_find_what_failed_and_what_was_open_then(app: Stepfast) -> None:
    story = begin(app).plan(3).read(0, 30, PartitionState.DONE).read(1, 30)
    story.end(1, PartitionState.FAILED, "HTTP 500").end(2, PartitionState.FAILED, "HTTP 502")
    story.move(RunState.FAILED)

    failed = rows.query(app, queries.FAILED_WORKERS)
    open_then = rows.query(app, queries.OPEN_AT_FAILURE)

    assert {(row["partition_id"], row["records_processed"], row["error_message"]) for row in failed} == {
        ("partition-1", 30, "HTTP 500"),
        ("partition-2", 0, "HTTP 502"),
    }
    assert all(row["started_at"] is not None and row["completed_at"] is not None for row in failed)
    assert {(row["partition_id"], row["next_offset"]) for row in open_then} == {
        ("partition-1", 30),
        ("partition-2", 0),
    }


@pytest.mark.only_on("postgresql", "mariadb")
@pytest.mark.parametrize("hours", [-11, 9])
def test_a_session_in_another_time_zone_compares_right_with_now(app: Stepfast, hours: int) -> None:
    begin(app).plan(1).read(0, 30)
    name = app.database.dialect.name
    connection = app.database.connect()
    connection.execute(
        f"SET TIME ZONE INTERVAL '{hours:+03d}:00'"
        if name == "postgresql"
        else f"SET time_zone = '{hours:+03d}:00'"
    )

    counts = [
        connection.execute(
            f"SELECT count(*) FROM {view} WHERE {column} BETWEEN NOW() - INTERVAL '1' HOUR AND NOW() + INTERVAL '1' HOUR"
        ).fetchall()[0][0]
        for view, column in (
            ("run_metadata", "started_at"),
            ("worker_runs", "started_at"),
            ("partition_progress", "updated_at"),
        )
    ]
    payload = connection.execute("SELECT work_item_payload FROM worker_runs").fetchall()[0][0]
    connection.close()

    assert counts == [1, 1, 1]
    assert "2024-01-16T02:00:00" in str(payload)


# A real run, from its start to its end


class Told(Catalogue):
    """Looks at the views while it is read and mapped."""

    def __init__(self, shop: Shop, app: Stepfast) -> None:
        super().__init__(shop, attempts_page=1)
        self.app = app
        self.broken = True
        self.seen: list[str] = []

    def look(self) -> None:
        (row,) = rows.query(self.app, "SELECT run_id FROM run_metadata")
        word = status(Story(self.app, row["run_id"]))
        if not self.seen or self.seen[-1] != word:
            self.seen.append(word)

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        if self.broken and part.bounds("price").from_ == 750 and cursor.offset:
            raise ValueError("no JSON")
        self.look()
        return await super().fetch(part, window, cursor)

    def map(self, item: Any, /) -> Row:
        self.look()
        return super().map(item)


def test_a_real_run_fails_is_retried_and_completes_in_the_words_of_the_documents(app: Stepfast) -> None:
    feed = app.feed(Told(Shop.with_items(60), app))
    prepare(app)
    run = app.runs.start("catalogue")
    story = Story(app, run.id)
    words = [status(story)]

    drain(app, raise_errors=False)
    words += [*feed.seen, status(story)]
    failed = story.workers()["partition-3"]
    assert (failed["status"], failed["records_processed"]) == ("failed", 10)
    assert "no JSON" in failed["error_message"]
    assert facts(story) == (4, 3, 1, False, False)

    feed.broken, feed.seen = False, []
    app.runs.retry(run.id)
    words.append(status(story))
    drain(app)
    words += [*feed.seen, status(story)]

    # Others may be read when the one has failed: what counts is the order of the words.
    assert [word for word, _ in groupby(words)] == [
        "in_progress",
        "failed",
        "in_progress",  # retried
        "consolidating",  # while rows are mapped
        "completed",
    ]
    assert facts(story) == (4, 4, 0, True, True)
    workers = story.workers()
    assert sum(row["records_processed"] for row in workers.values()) >= 60
    assert {row["status"] for row in workers.values()} == {"completed"}
    assert {row["error_message"] for row in workers.values()} == {None}
    assert "unknown" not in {row["worker_id"] for row in workers.values()}
    progress = rows.query(app, "SELECT * FROM partition_progress")
    assert len(progress) == 4
    assert all(row["completed"] and row["next_offset"] > 0 for row in progress)


def test_a_finished_partition_has_progressed_to_its_total(app: Stepfast) -> None:
    """Pages overlap by a few rows: the last one asked for begins before the end."""
    app.feed(Catalogue(Shop.with_items(100)))
    prepare(app)
    app.runs.start("catalogue")
    drain(app)

    counted = {
        f"partition-{it['number']}": it["counted"]
        for it in rows.query(app, "SELECT * FROM stepfast_partition")
    }
    progress = rows.query(app, "SELECT * FROM partition_progress")

    assert {row["partition_id"]: row["next_offset"] for row in progress} == counted
    assert sum(counted.values()) == 103


class Nameless(Catalogue):
    def identify(self, item: Any, /) -> str:
        if item["id"] == "d00003":
            raise KeyError("id")
        return super().identify(item)


def test_rows_that_cannot_be_identified_are_among_the_rows_of_a_finished_partition(app: Stepfast) -> None:
    app.feed(Nameless(Shop.with_items(25), partitioner=Fixed(price_ranges()), error_budget=1.0))
    prepare(app)
    app.runs.start("catalogue")
    drain(app)

    (row,) = rows.query(app, "SELECT * FROM partition_progress")

    assert (bool(row["completed"]), row["next_offset"]) == (True, 25)


class Keyed(Catalogue):
    """Pages by key: there is no offset."""

    paging = Keyset()

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        found = [it for it in self.shop.select(part, window) if it["id"] > (cursor.after or "")]
        page = found[: cursor.limit]
        return Page(page, next=page[-1]["id"] if page else None)


def test_where_pages_have_no_offset_progress_is_the_rows_that_were_read(app: Stepfast) -> None:
    app.feed(Keyed(Shop.with_items(100)))
    prepare(app)
    story = Story(app, app.runs.start("catalogue").id)
    drain(app)

    workers = story.workers()
    progress = rows.query(app, "SELECT * FROM partition_progress")

    assert status(story) == "completed"
    assert {row["partition_id"]: row["next_offset"] for row in progress} == {
        name: row["records_processed"] for name, row in workers.items()
    }
    assert all(row["next_offset"] >= 25 for row in progress)


# Read-only


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (
            "run_metadata",
            "INSERT INTO run_metadata (run_id, run_type, expected_workers) VALUES ('x', 'full', 1)",
        ),
        ("run_metadata", "UPDATE run_metadata SET completed_workers = completed_workers + 1"),
        ("run_metadata", "DELETE FROM run_metadata"),
        (
            "worker_runs",
            "INSERT INTO worker_runs (id, run_id, partition_id, worker_id, status) VALUES ('x', 'x', 'x', 'x', 'x')",
        ),
        ("worker_runs", "UPDATE worker_runs SET status = 'running' WHERE status = 'failed'"),
        ("worker_runs", "DELETE FROM worker_runs"),
        ("partition_progress", "INSERT INTO partition_progress (run_id, partition_id) VALUES ('x', 'x')"),
        ("partition_progress", "UPDATE partition_progress SET next_offset = 0"),
        ("partition_progress", "UPDATE partition_progress SET run_id = 'x'"),
        ("partition_progress", "DELETE FROM partition_progress"),
    ],
)
def test_writing_to_a_view_fails_clearly(app: Stepfast, view: str, text: str) -> None:
    story = begin(app).plan(1).read(0, 30)

    with pytest.raises(DatabaseError, match=view):
        rows.change(app, text)

    assert (facts(story)[:3], len(story.workers())) == ((1, 0, 0), 1)
    assert story.one("partition_progress")["next_offset"] == 30
