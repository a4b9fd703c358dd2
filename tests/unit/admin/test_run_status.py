"""Why a run does not advance: every state and every cause has its sentence, and the command that helps."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepfast.admin.run_reports import ErrorGroup, group_errors
from stepfast.admin.run_status import JobFacts, Pace, Reason, RunFacts, clock_time, why
from stepfast.runs.run import RunState

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
BUSY = JobFacts(queue="sync", ready=3, running=2)
FETCHING = RunFacts(
    id="r1",
    feed="catalogue",
    state=RunState.FETCHING,
    phase=RunState.FETCHING,
    now=NOW,
    moved_at=NOW - timedelta(seconds=4),
    partitions=30,
    completed=10,
    open=20,
    jobs=BUSY,
    workers=2,
)


def facts(state: RunState | None = None, **changes: Any) -> RunFacts:
    moved: dict[str, Any] = {} if state is None else {"state": state, "phase": changes.pop("phase", state)}
    return replace(FETCHING, **moved, **changes)


def jobs(**changes: Any) -> JobFacts:
    """Jobs of which none runs and none could."""
    return replace(JobFacts(queue="sync"), **changes)


def test_a_run_that_advances_says_so() -> None:
    assert why(FETCHING) == [
        Reason(
            "it advances: 10 of 30 partitions ended, 2 jobs at work; it last moved 4 s ago",
            "stepfast runs watch r1",
        )
    ]


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (RunState.PLANNING, "its partitions are being found"),
        (RunState.APPLYING, "raw rows become target rows, 1,200 rows to go"),
        (RunState.SWEEPING, "rows that are gone are looked for"),
    ],
)
def test_every_part_of_its_life_has_its_words(state: RunState, told: str) -> None:
    (reason,) = why(facts(state, pending=1_200))

    assert reason.sentence.startswith(f"it advances: {told}; ")


def test_no_worker_is_alive() -> None:
    assert why(facts(workers=0, jobs=jobs(ready=4))) == [
        Reason("no worker is alive for queue sync", "stepfast worker MODULE:APP --queues sync")
    ]
    assert (
        why(facts(workers=0, jobs=JobFacts(queue="default", ready=4)))[0].command
        == "stepfast worker MODULE:APP"
    )
    assert why(facts(workers=0, jobs=JobFacts(ready=4)))[0].sentence == "no worker is alive"


def test_a_worker_that_nobody_sees_any_more_but_that_works_is_no_cause() -> None:
    """It is stopping: what it runs, it ends."""
    assert why(facts(workers=0))[0].sentence.startswith("it advances")


def test_its_queue_is_paused() -> None:
    note = "the account is locked"
    paused = facts(queue_paused_at=NOW, queue_paused_by="alice", queue_note=note, workers=0)
    by_hand = facts(queue_paused_at=NOW, workers=0)
    since = f"since {clock_time(NOW)}"

    assert why(paused) == [
        Reason(f"queue sync is paused by alice {since} ({note})", "stepfast queues resume sync")
    ]
    assert why(by_hand)[0].sentence == f"queue sync is paused {since}"


def test_its_source_is_in_trouble() -> None:
    until = NOW + timedelta(minutes=2)
    troubled = facts(feed_paused_until=until, pause_reason="ThrottledError: 429")

    assert why(troubled) == [
        Reason(
            "the source is in trouble: feed catalogue waits until 2026-05-01 12:02:00 UTC: ThrottledError: 429"
        )
    ]
    assert why(facts(feed_paused_until=NOW - timedelta(seconds=1)))[0].sentence.startswith("it advances")


def test_its_jobs_wait_for_another_try() -> None:
    waiting = jobs(scheduled=2, next_at=NOW + timedelta(minutes=1), error="ValueError: no JSON")

    assert why(facts(jobs=waiting)) == [
        Reason(
            "2 jobs of it wait for another try, the next at 2026-05-01 12:01:00 UTC after: ValueError: no JSON",
            "stepfast jobs list --queue sync",
        )
    ]


def test_its_jobs_are_held_by_a_limit() -> None:
    assert why(facts(jobs=jobs(held=1, held_by="rate:source"))) == [
        Reason("1 job of it is held by limit rate:source", "stepfast limits list")
    ]


def test_a_silent_worker_holds_its_jobs() -> None:
    (reason,) = why(facts(jobs=replace(BUSY, abandoned=3)))

    assert reason.sentence.startswith("3 jobs of it are held by a worker that is silent")
    assert reason.command == "stepfast workers list"


def test_partitions_that_no_job_reads() -> None:
    (reason,) = why(facts(orphans=("partition-3", "partition-7")))

    assert reason.sentence.startswith("no job reads partition-3, partition-7;")
    assert reason.command == "stepfast runs resume r1"


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (
            jobs(dead=1, dead_error="KeyError: 'id'"),
            "the job that moved it on is dead: KeyError: 'id'; a worker",
        ),
        (jobs(), "no job of it is left; a worker"),
    ],
)
def test_the_job_that_moved_it_is_dead_or_gone(left: JobFacts, told: str) -> None:
    (reason,) = why(facts(RunState.PLANNING, jobs=left))

    assert reason.sentence.startswith(told)
    assert reason.command == "stepfast runs resume r1"


def test_its_sweep_is_held() -> None:
    held = facts(
        RunState.SWEEPING, sweep_held="900 of 1,000 rows would go", jobs=jobs(scheduled=1, next_at=NOW)
    )

    assert why(held) == [
        Reason(
            "its sweep is held until somebody approves it: 900 of 1,000 rows would go",
            'stepfast sweeps approve r1 --reason "…"',
        ),
        Reason("or keep the rows", 'stepfast sweeps decline r1 --reason "…"'),
    ]


def test_a_run_that_stands_still_says_for_how_long_and_why() -> None:
    still = facts(RunState.STALLED, phase=RunState.FETCHING, moved_at=NOW - timedelta(hours=3))

    assert why(still) == [
        Reason("nothing has moved it for 3 h; it stopped while fetching", "stepfast runs resume r1")
    ]
    first, second = why(replace(still, workers=0, jobs=jobs(ready=1)))
    assert (first.command, second.sentence) == (None, "no worker is alive for queue sync")


def test_partitions_that_failed_so_far_can_be_retried_at_once() -> None:
    going = facts(failed=2, errors=(ErrorGroup("ValueError: bad page", ("partition-1", "partition-4")),))

    advances, failed, error = why(going)

    assert advances.sentence.startswith("it advances: 12 of 30 partitions ended")
    assert (failed.sentence[:27], failed.command) == ("2 partitions failed so far:", "stepfast runs retry r1")
    assert error == Reason("partition-1, partition-4: ValueError: bad page")


def test_a_failed_run_names_its_errors_and_both_ways_on() -> None:
    groups = tuple(
        ErrorGroup(f"error {it}", tuple(f"partition-{it * 10 + more}" for more in range(7)))
        for it in range(5)
    )

    told = why(facts(RunState.FAILED, failed=35, errors=groups))

    assert told[0] == Reason(
        "35 of 30 partitions failed, so nothing was consolidated and the watermark stays",
        "stepfast runs retry r1",
    )
    assert (
        told[1].sentence
        == "partition-0, partition-1, partition-2, partition-3, partition-4 and 2 more: error 0"
    )
    assert told[4] == Reason("and 2 other errors", "stepfast partitions list --run r1 --failed")
    assert told[5].command == "stepfast runs consolidate r1 --force"


def test_a_plan_that_gave_up() -> None:
    assert why(facts(RunState.FAILED, planned=False, jobs=jobs(dead=1, dead_error="OSError: no route"))) == [
        Reason("planning gave up: OSError: no route", "stepfast runs retry r1")
    ]


def test_a_consolidation_that_gave_up() -> None:
    assert why(facts(RunState.FAILED, reason="consolidation gave up: no such table")) == [
        Reason(
            "everything was read, but what came after it gave up: consolidation gave up: no such table",
            "stepfast runs consolidate r1",
        )
    ]


def test_a_run_of_poor_quality() -> None:
    told = why(facts(RunState.FAILED_QUALITY, quarantined=400, reason="400 of 1,000 rows"))

    assert told[0] == Reason(
        "too many rows ended in quarantine: 400 of 1,000 rows",
        "stepfast quarantine list --feed catalogue",
    )
    assert [it.command for it in told[1:]] == [
        "stepfast quarantine replay --feed catalogue",
        "stepfast runs consolidate r1",
        "stepfast runs consolidate r1 --force",
    ]


def test_a_cancelled_run() -> None:
    assert why(facts(RunState.CANCELLED, reason="Cancelled: wrong account")) == [
        Reason("it was cancelled: Cancelled: wrong account", "stepfast runs resume r1")
    ]


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.FAILED_QUALITY, RunState.CANCELLED])
def test_a_run_that_was_overtaken_says_by_whom(state: RunState) -> None:
    assert why(facts(state, newer="r2"))[-1].sentence.startswith(
        "run r2 of the feed is newer, so this one stays"
    )
    last = why(facts(state, newer="r2", newer_active=True))[-1]
    assert last.sentence.startswith("run r2 of the feed is active, so this one stays")
    assert last.command == "stepfast runs show r2"


def test_a_run_that_has_completed_tells_what_is_owed() -> None:
    assert why(facts(RunState.COMPLETED)) == [Reason("it has completed")]
    assert why(facts(RunState.COMPLETED, unverified=1, debts=1))[1:] == [
        Reason("1 partition could not be shown to be complete"),
        Reason(
            "the next full or incremental run reads what is owed (1 open debt)",
            "stepfast debts list --feed catalogue",
        ),
    ]
    partial, owed = why(facts(RunState.PUBLISHED_PARTIAL, debts=2))
    assert "published in part, by force" in partial.sentence
    assert "reads what is owed (2 open debts)" in owed.sentence


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.PUBLISHED_PARTIAL])
def test_nothing_is_promised_about_debts_that_no_run_reads(state: RunState) -> None:
    def told(**debts: Any) -> str:
        return " | ".join(it.sentence for it in why(facts(state, unverified=1, **debts)))

    assert "nothing is owed: later runs have read it, or a person closed the debts" in told()
    assert "2 debts of the feed were given up after 3 tries" in told(debts=2, given_up=2)
    assert "run reads what is owed (" not in told(debts=2, given_up=2)
    assert "run reads what is owed (1 open debt)" in told(debts=3, given_up=2)
    assert "nothing is owed for what it did not read" in told(debts=3, owes=False)
    assert "run reads what is owed (" not in told(debts=3, owes=False)


@pytest.mark.parametrize("state", RunState)
def test_every_state_has_an_answer(state: RunState) -> None:
    assert why(facts(state, phase=RunState.FETCHING))


def test_errors_that_differ_in_values_only_are_one_group() -> None:
    found = group_errors(
        [
            (0, "ValueError: page 17 is empty"),
            (1, "KeyError: 'id'\nmore of it"),
            (2, "ValueError: page 4 is empty"),
            (3, None),
        ]
    )

    assert found == (
        ErrorGroup("ValueError: page 17 is empty", ("partition-0", "partition-2")),
        ErrorGroup("KeyError: 'id'", ("partition-1",)),
        ErrorGroup("no error was kept", ("partition-3",)),
    )


def test_a_pace_is_that_of_the_last_half_minute() -> None:
    pace = Pace()

    assert pace.add(0.0, 0, 0) == (0.0, 0.0)
    assert pace.add(10.0, 1_000, 10) == (100.0, 1.0)
    pace.add(20.0, 1_000, 10)
    assert pace.add(50.0, 1_000, 10) == (0.0, 0.0)
    assert pace.add(51.0, 900, 10) == (0.0, 0.0)
