"""`app.operator` offers what the command line does, under the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.jobs.dead_letters import Filter
from stepfast.jobs.state import JobState
from tests.support import rows
from tests.support.jobs_in_every_state import died, expire, greeting, leased

if TYPE_CHECKING:
    import pytest

    from stepfast import Stepfast


def test_an_operator_looks_at_everything(app: Stepfast) -> None:
    greet = greeting(app)
    dead, waiting, held = died(app, greet), greet.enqueue(delay="1h").id, greet.enqueue().id
    leased(app)
    operator = app.operator

    assert [job.id for job in operator.jobs()] == [held, waiting, dead]
    assert [job.id for job in operator.jobs({JobState.SCHEDULED}, kind="greet", queue="default")] == [waiting]
    assert operator.job(waiting).payload == {}
    assert [job.id for job in operator.dead_letters()] == [dead]
    assert [(group.error_group, group.count) for group in operator.failures(limit=5)] == [
        ("OSError: no answer", 1)
    ]
    assert [queue.queue for queue in operator.queues()] == ["default"]
    assert [worker.worker_id for worker in operator.workers(everyone=True)] == ["alice", "alice"]
    assert [lease.job_id for lease in operator.leases()] == [held]
    assert operator.leases(expired=True) == []
    assert [kind.dead for kind in operator.statistics("1h")] == [1]
    assert "tables" in {finding.name for finding in operator.doctor()}


def test_an_operator_steps_in(app: Stepfast) -> None:
    greet = greeting(app)
    dead = [died(app, greet, "OSError: …"), died(app, greet, "KeyError: …"), died(app, greet, "KeyError: …")]
    waiting = greet.enqueue(delay="1h").id
    operator = app.operator

    assert operator.retry(waiting) is JobState.READY
    (lease,) = leased(app)
    assert lease.job_id == waiting
    expire(app, lease)
    assert operator.reset_leases() == 1
    assert operator.cancel(waiting, "enough") is JobState.CANCELLED
    assert operator.retry_dead_letters(Filter(error_group="OSError: …")).retried == 1
    assert operator.purge_dead_letters() == 2
    assert operator.pause("default", "lunch")
    assert operator.resume("default")
    assert [rows.state(app, job_id) for job_id in dead] == ["ready", None, None]


def test_an_operator_has_schedules_and_runs_in_its_own_name(app: Stepfast) -> None:
    operator = app.operator.by("alice", reason="a quiet week")
    operator.schedules.add("nightly", greeting(app), cron="0 3 * * *")
    operator.schedules.pause("nightly")

    assert operator.runs.list() == []
    assert [(it.who, it.what, it.why) for it in app.operator.audit()] == [
        ("alice", "schedule.pause", "a quiet week"),
        ("alice", "schedule.add", "a quiet week"),
    ]


def test_an_operator_without_a_name_is_the_user_of_the_process(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPFAST_OPERATOR", "night shift")

    assert app.operator.by(reason="tests").pause("mail")
    assert app.operator.send_event("payment:42", {"amount": 3}).kept

    assert [(it.who, it.what, it.why) for it in app.operator.audit()] == [
        ("night shift", "event.send", None),
        ("night shift", "queue.pause", "tests"),
    ]
    assert not app.operator.queue_has_jobs("mail")
