"""Actions of operators on one job or one queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from stepfast.admin.dead_letters import purge_dead_letter
from stepfast.admin.jobs import cancel, retry, show_job
from stepfast.admin.workers import pause_queue, resume_queue
from stepfast.database.wakeup import CANCEL
from stepfast.errors import ConfigurationError, DuplicateKeyError, LeaseLostError, NotFoundError, StateError
from stepfast.jobs.commit import CommitState, commit, commit_states
from stepfast.jobs.dead_letters import revive
from stepfast.jobs.lease import claim
from stepfast.jobs.outcome import Done, Stop
from stepfast.jobs.state import JobState
from stepfast.suspects import CRASH_GROUP
from tests.support import rows
from tests.support.jobs_in_every_state import died, ended, expire, greeting, leased

if TYPE_CHECKING:
    from stepfast import Step, Stepfast


@pytest.mark.parametrize("state", ["scheduled", "ready", "suspect"])
def test_a_waiting_job_is_cancelled_at_once_and_keeps_the_reason(app: Stepfast, state: str) -> None:
    job_id = greeting(app).enqueue(key="once").id
    rows.change(app, "UPDATE stepfast_job SET state = :state WHERE id = :id", state=state, id=job_id)

    with app.transaction() as tx:
        assert cancel(tx, job_id, "the order was withdrawn") is JobState.CANCELLED

    row = rows.ended(app, job_id)
    assert row is not None
    assert (row["state"], row["error_group"]) == ("cancelled", "Cancelled")
    assert row["last_error"] == "Cancelled: the order was withdrawn"
    assert rows.live(app, job_id) is None
    assert greeting(app, name="again").enqueue(key="once").created  # its key is free


def test_a_leased_job_is_asked_to_stop_and_its_owner_decides(app: Stepfast) -> None:
    job_id = greeting(app).enqueue().id
    (lease,) = leased(app)

    with app.transaction() as tx:
        assert cancel(tx, job_id, "enough") is JobState.LEASED
        assert tx.wakes == {CANCEL}

    with app.database.reading() as tx:
        shown = show_job(tx, job_id)
    assert shown.job.cancel_at is not None
    assert [line.message for line in shown.logs] == ["Cancelled: enough"]
    with app.transaction() as tx:
        commit(tx, lease, Done())  # it was faster
    assert rows.state(app, job_id) == "done"


def test_asking_twice_keeps_the_first_time(app: Stepfast) -> None:
    job_id = greeting(app).enqueue().id
    leased(app)
    with app.transaction() as tx:
        cancel(tx, job_id)
    rows.change(app, "UPDATE stepfast_job SET cancel_at = 5 WHERE id = :id", id=job_id)

    with app.transaction() as tx:
        cancel(tx, job_id)

    row = rows.live(app, job_id)
    assert row is not None
    assert row["cancel_at"] == 5


def test_a_running_handler_is_told_that_it_is_cancelled(app: Stepfast) -> None:
    started = threading.Event()

    @app.job(timeout=None)
    def dig(step: Step) -> None:
        started.set()
        step.wait(60)

    job_id = dig.enqueue().id
    with app.worker():
        assert started.wait(20)
        with app.transaction() as tx:
            cancel(tx, job_id, "enough")

        rows.eventually(lambda: rows.ended(app, job_id))

    row = rows.ended(app, job_id)
    assert row is not None
    assert (row["state"], row["failures"]) == ("cancelled", 0)


def test_cancelling_takes_the_job_from_a_zombie_too(app: Stepfast) -> None:
    job_id = greeting(app).enqueue().id
    (lease,) = leased(app)
    rows.change(app, "UPDATE stepfast_job SET state = 'suspect' WHERE id = :id", id=job_id)

    with app.transaction() as tx:
        cancel(tx, job_id)

    with pytest.raises(LeaseLostError), app.transaction() as tx:
        commit(tx, lease, Done())
    with app.transaction() as tx:
        assert commit_states(tx, [lease]) == {
            job_id: CommitState.SUPERSEDED
        }  # nor does it take the ending for its own
    assert rows.state(app, job_id) == "cancelled"


@pytest.mark.parametrize("ending", ["done", "dead", "cancelled"])
def test_a_job_that_ended_cannot_be_cancelled(app: Stepfast, ending: str) -> None:
    greet = greeting(app)
    if ending == "dead":
        job_id = died(app, greet)
    else:
        greet.enqueue()
        job_id = ended(app, None if ending == "done" else Stop("no"))

    with pytest.raises(StateError, match=f"is {ending}: it has ended"), app.transaction() as tx:
        cancel(tx, job_id)


def test_secrets_in_a_reason_are_not_stored(app: Stepfast) -> None:
    job_id = greeting(app).enqueue().id

    with app.transaction() as tx:
        cancel(tx, job_id, "postgresql://me:hunter2@host/db is down")

    row = rows.ended(app, job_id)
    assert row is not None
    assert "hunter2" not in row["last_error"]


def test_a_dead_or_cancelled_job_is_revived_with_fresh_attempts(app: Stepfast) -> None:
    greet = greeting(app)
    dead = died(app, greet)
    greet.enqueue()
    stopped = ended(app, Stop("no"))

    with app.transaction() as tx:
        assert retry(tx, dead) is JobState.READY
        assert retry(tx, stopped) is JobState.READY
        assert tx.wakes == {"default"}

    for job_id in (dead, stopped):
        row = rows.live(app, job_id)
        assert row is not None
        assert (row["state"], row["failures"], row["crashes"], row["cancel_at"]) == ("ready", 0, 0, None)
        assert rows.ended(app, job_id) is None


def test_who_retries_a_killer_is_told_that_it_is_a_suspect(app: Stepfast) -> None:
    dead = died(app, greeting(app))
    rows.change(app, "UPDATE stepfast_archive SET error_group = :crash", crash=CRASH_GROUP)

    with app.transaction() as tx:
        assert retry(tx, dead) is JobState.SUSPECT

    assert rows.state(app, dead) == "suspect"


def test_a_scheduled_job_runs_now_when_it_is_retried(app: Stepfast) -> None:
    job_id = greeting(app).enqueue(delay="1h").id

    with app.transaction() as tx:
        assert retry(tx, job_id) is JobState.READY
        assert tx.wakes == {"default"}

    with app.transaction() as tx:
        assert [lease.job_id for lease in claim(tx, "default", 1, 1)] == [job_id]


def test_a_scheduled_suspect_that_is_retried_still_runs_alone(app: Stepfast) -> None:
    job_id = greeting(app).enqueue(delay="1h").id
    rows.change(app, "UPDATE stepfast_job SET error_group = :crash", crash=CRASH_GROUP)

    with app.transaction() as tx:
        assert retry(tx, job_id) is JobState.SUSPECT

    assert rows.state(app, job_id) == "suspect"


def test_a_job_that_waits_runs_or_is_done_cannot_be_retried(app: Stepfast) -> None:
    greet = greeting(app)
    greet.enqueue()
    done = ended(app)
    greet.enqueue()
    (lease,) = leased(app)
    waiting = greet.enqueue().id

    for job_id, complaint in ((done, "is done"), (lease.job_id, "is leased"), (waiting, "is ready")):
        with pytest.raises(StateError, match=complaint), app.transaction() as tx:
            retry(tx, job_id)


def test_a_job_that_lives_already_is_not_revived(app: Stepfast) -> None:
    dead = died(app, greeting(app))
    rows.change(app, "INSERT INTO stepfast_job (id, kind, payload) VALUES (:id, 'greet', '{}')", id=dead)

    with pytest.raises(StateError, match="is unfinished"), app.transaction() as tx:
        revive(tx, dead)

    assert rows.ended(app, dead) is not None


def test_a_job_whose_key_is_taken_is_not_revived(app: Stepfast) -> None:
    greet = greeting(app)
    dead = died(app, greet, key="once")
    holder = greet.enqueue(key="once").id

    with pytest.raises(DuplicateKeyError, match=holder), app.transaction() as tx:
        retry(tx, dead)

    assert rows.state(app, dead) == "dead"


@pytest.mark.parametrize("action", [cancel, retry, purge_dead_letter])
def test_nothing_can_be_done_to_a_job_that_does_not_exist(
    app: Stepfast, action: Callable[..., object]
) -> None:
    with pytest.raises(NotFoundError, match="there is no job nobody"), app.transaction() as tx:
        action(tx, "nobody")


def test_only_a_dead_letter_can_be_purged(app: Stepfast) -> None:
    greet = greeting(app)
    dead = died(app, greet)
    greet.enqueue()
    done = ended(app)

    with app.transaction() as tx:
        purge_dead_letter(tx, dead)
    with pytest.raises(StateError, match="is no dead letter, it is done"), app.transaction() as tx:
        purge_dead_letter(tx, done)

    assert rows.state(app, dead) is None
    assert rows.state(app, done) == "done"


def test_nobody_takes_jobs_of_a_paused_queue_until_it_is_resumed(app: Stepfast) -> None:
    job_id = greeting(app, queue="mail").enqueue().id

    with app.transaction() as tx:
        assert pause_queue(tx, "mail", "the relay is down")
    with app.transaction() as tx:
        assert claim(tx, "mail", 1, 1) == []
        assert not pause_queue(tx, "mail", "still down")
    assert rows.query(app, "SELECT note FROM stepfast_queue") == [{"note": "still down"}]

    with app.transaction() as tx:
        assert resume_queue(tx, "mail")
        assert tx.wakes == {"mail"}
        assert [lease.job_id for lease in claim(tx, "mail", 1, 1)] == [job_id]
    with app.transaction() as tx:
        assert not resume_queue(tx, "mail")


def test_a_queue_has_a_name_that_fits(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match="1 to 128 characters"), app.transaction() as tx:
        pause_queue(tx, "m" * 129)


def test_a_cancelled_job_of_a_dead_worker_is_not_run_again(app: Stepfast) -> None:
    from stepfast.admin.workers import reset_leases

    job_id = greeting(app).enqueue().id
    (lease,) = leased(app)
    with app.transaction() as tx:
        cancel(tx, job_id)
    expire(app, lease)

    assert reset_leases(app.database).jobs == 1

    assert rows.state(app, job_id) == "cancelled"
