"""The findings of the doctor, from the facts in the tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepfast.admin.doctor.finding import Finding, Level, fail, healthy, listed, ok, warn
from stepfast.admin.doctor.work import Facts, judge_work
from stepfast.admin.workers import QueueReport, WorkerReport
from stepfast.clock import counted, moment
from stepfast.jobs.dead_letters import FailureGroup

NOW = moment(1_700_000_000_000_000)
ALICE = WorkerReport(
    worker_id="alice",
    running=True,
    state="alive",
    host="host",
    pid=1,
    guardian_pid=None,
    incarnation=1,
    queues=("*",),
    concurrency=10,
    active_jobs=2,
    active_job_ids=("a", "b"),
    lease_seconds=10.0,
    started_at=NOW,
    beat_at=NOW,
    alive_until=NOW,
    ended_at=None,
)
MAIL = QueueReport("mail", 0, 0, 0, 0, 0, 0, 0, None, None, None)


def look(name: str, **facts: Any) -> Finding | None:
    found = [it for it in judge_work(Facts(**facts)) if it.name == name]
    assert len(found) <= 1
    return found[0] if found else None


def level(name: str, **facts: Any) -> Level | None:
    found = look(name, **facts)
    return found.level if found else None


def test_everything_is_fine_when_nothing_is_there() -> None:
    assert {it.level for it in judge_work(Facts())} == {Level.OK}


def test_everything_is_fine_when_work_is_being_done() -> None:
    busy = replace(MAIL, ready=3, leased=2, oldest_ready_seconds=2.0)

    assert {it.level for it in judge_work(Facts(workers=[ALICE], queues=[busy], leases=2))} == {Level.OK}


def test_no_worker_is_a_failure_only_if_jobs_wait() -> None:
    waiting = replace(MAIL, ready=1)

    assert level("workers") is Level.OK
    assert level("workers", queues=[waiting]) is Level.FAIL
    assert level("workers", overdue=1) is Level.FAIL
    assert level("workers", queues=[replace(waiting, paused_at=NOW)]) is Level.OK
    assert level("workers", queues=[waiting], workers=[replace(ALICE, running=False)]) is Level.FAIL


def test_a_silent_worker_is_named_and_the_cure_depends_on_who_is_left() -> None:
    silent = replace(ALICE, worker_id="silent", running=False)

    alone = look("silent workers", workers=[silent])
    together = look("silent workers", workers=[silent, ALICE])

    assert alone is not None
    assert together is not None
    assert "silent" in alone.found
    assert "leases reset" in str(alone.cure)
    assert "leases reset" not in str(together.cure)


def test_two_workers_of_one_name_are_noticed() -> None:
    assert level("worker ids", workers=[ALICE]) is None
    assert level("worker ids", workers=[ALICE, replace(ALICE, incarnation=2)]) is Level.WARN
    assert level("worker ids", workers=[ALICE, replace(ALICE, running=False)]) is None


@pytest.mark.parametrize(
    ("seconds", "expected"), [(2.0, Level.WARN), (5.0, None), (300.0, None), (1800.0, Level.WARN)]
)
def test_a_lease_that_is_very_short_or_very_long_is_warned_about(
    seconds: float, expected: Level | None
) -> None:
    assert level("lease", workers=[replace(ALICE, lease_seconds=seconds)]) is expected


def test_full_slots_are_worth_a_warning_only_if_jobs_wait() -> None:
    full = replace(ALICE, active_jobs=10)
    waiting = replace(MAIL, ready=1)

    assert level("slots", workers=[full], queues=[waiting]) is Level.WARN
    assert level("slots", workers=[full]) is None
    assert level("slots", workers=[full, ALICE], queues=[waiting]) is None


def test_a_paused_queue_with_waiting_jobs_is_named() -> None:
    paused = replace(MAIL, scheduled=1, paused_at=NOW)

    found = look("paused queues", queues=[paused])

    assert found is not None
    assert (found.level, "mail" in found.found) == (Level.WARN, True)
    assert level("paused queues", queues=[replace(paused, scheduled=0)]) is None


def test_a_queue_that_no_running_worker_serves_is_a_failure() -> None:
    ready = [replace(MAIL, suspect=1)]
    elsewhere = replace(ALICE, queues=("calls",))

    assert level("unserved queues", queues=ready, workers=[elsewhere]) is Level.FAIL
    assert level("unserved queues", queues=ready, workers=[elsewhere, ALICE]) is None
    assert level("unserved queues", queues=ready, workers=[replace(ALICE, queues=("calls", "mail"))]) is None
    assert level("unserved queues", queues=[replace(MAIL, scheduled=1)], workers=[elsewhere]) is None


def test_a_job_that_waits_for_long_is_a_backlog() -> None:
    late = [replace(MAIL, ready=1, oldest_ready_seconds=3600.0)]

    assert level("backlog", queues=late, workers=[ALICE]) is Level.WARN
    assert level("backlog", queues=late) is None  # no worker is the bigger problem
    assert level("backlog", queues=[replace(late[0], oldest_ready_seconds=60.0)], workers=[ALICE]) is None


def test_kinds_without_a_handler_are_named() -> None:
    found = look("unknown kinds", unknown_kinds=[("fax", 2), ("telex", 1)])

    assert found is not None
    assert "fax (2 jobs), telex (1 job)" in found.found


def test_expired_leases_are_a_failure_when_nobody_is_there_to_reset_them() -> None:
    assert level("leases", expired_leases=1) is Level.FAIL
    assert level("leases", expired_leases=1, workers=[ALICE]) is Level.WARN
    assert level("leases", leases=1) is Level.OK


def test_suspects_scheduled_jobs_and_dead_letters_that_wait_are_noticed() -> None:
    group = FailureGroup("greet", "OSError: …", 2, NOW, NOW, "id")

    assert level("suspects", suspect_seconds=61.0) is Level.WARN
    assert level("suspects", suspect_seconds=1.0) is None
    assert level("scheduled jobs", overdue=1, overdue_seconds=31.0) is Level.FAIL
    assert level("scheduled jobs", overdue=1, overdue_seconds=1.0) is None
    found = look("dead letters", dead=[group, replace(group, count=1)])
    assert found is not None
    assert found.found.startswith("3 dead letters; most often (2) greet: OSError")


def test_dead_letters_are_as_many_as_the_list_shows_and_those_of_overtaken_runs_need_nobody() -> None:
    group = FailureGroup("greet", "OSError: …", 2, NOW, NOW, "id")

    both = look("dead letters", dead=[group], broker_letters=1)
    assert both is not None
    assert both.found.startswith("3 dead letters, 1 of them from brokers; most often (2) greet")
    alone = look("dead letters", broker_letters=1)
    assert alone is not None
    assert (alone.level, alone.found) == (Level.WARN, "1 dead letter, 1 of them from brokers")
    assert level("dead letters", dead=[group], overtaken=2) is Level.OK
    assert level("dead letters", dead=[group], overtaken=1) is Level.WARN
    assert level("dead letters", dead=[group], overtaken=2, broker_letters=1) is Level.WARN


def test_only_a_failure_is_an_illness() -> None:
    assert healthy([ok("a", "b"), warn("a", "b", "c")])
    assert not healthy([ok("a", "b"), fail("a", "b", "c")])


def test_numbers_and_names_are_spoken() -> None:
    assert (counted(1, "job"), counted(2_000, "job")) == ("1 job", "2,000 jobs")
    assert listed(["a", "b", "c"], most=2) == "a, b and 1 more"


def test_jobs_that_wait_for_the_dead_are_named_with_one_of_them() -> None:
    found = look("dependants", wait_for_dead=2, dead_parent="p-1")

    assert found is not None
    assert found.level is Level.WARN
    assert "2 jobs wait for one that died or was cancelled, such as p-1" in str(found)
    assert look("dependants") is None


def test_jobs_that_wait_for_what_has_ended_are_a_failure_with_a_repair() -> None:
    found = look("stranded jobs", stranded=["p-1", "p-2"])

    assert found is not None
    assert found.level is Level.FAIL
    assert "2 jobs ended: p-1, p-2" in found.found
    assert found.cure == "stepfast doctor --repair"
    assert look("stranded jobs") is None
