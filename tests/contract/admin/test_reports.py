"""Reports for operators agree with the tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from stepfast import Continue, Done, Stepfast
from stepfast.admin.dead_letters import Filter, failure_groups, list_dead_letters, show_dead_letter
from stepfast.admin.jobs import list_jobs, show_job
from stepfast.admin.statistics import kind_statistics
from stepfast.admin.workers import list_leases, list_queues, list_workers
from stepfast.clock import moment
from stepfast.errors import NotFoundError
from stepfast.jobs.commit import commit
from stepfast.jobs.outcome import Again, Stop
from stepfast.jobs.state import ENDED, LIVE, JobState
from stepfast.jobs.step import Report, write_reports
from tests.support.jobs_in_every_state import died, ended, greeting, leased
from tests.support.rows import HOUR, SECOND, change, now, query


def test_jobs_are_listed_newest_first_whether_they_live_or_have_ended(app: Stepfast) -> None:
    greet = greeting(app)
    oldest = greet.enqueue().id
    ended(app)
    middle = greet.enqueue(delay="1h").id
    newest = greet.enqueue().id

    with app.database.reading() as tx:
        jobs = list_jobs(tx)

    assert [(job.id, job.state) for job in jobs] == [
        (newest, JobState.READY),
        (middle, JobState.SCHEDULED),
        (oldest, JobState.DONE),
    ]


def test_a_list_can_be_narrowed_by_state_kind_and_queue(app: Stepfast) -> None:
    greet = greeting(app)
    waiting = greet.enqueue(queue="mail").id
    greet.enqueue(queue="calls")
    dead = died(app, greet)

    with app.database.reading() as tx:
        assert [job.id for job in list_jobs(tx, queue="mail")] == [waiting]
        assert [job.id for job in list_jobs(tx, ENDED)] == [dead]
        assert len(list_jobs(tx, LIVE)) == 2
        assert [job.id for job in list_jobs(tx, {JobState.READY, JobState.DEAD}, queue="default")] == [dead]
        assert len(list_jobs(tx, kind="greet")) == 3
        assert list_jobs(tx, kind="other") == []


def test_the_next_page_begins_behind_the_last_id_of_the_page_before(app: Stepfast) -> None:
    greet = greeting(app)
    ids = [greet.enqueue().id for _ in range(5)]
    ended(app)

    with app.database.reading() as tx:
        first = list_jobs(tx, limit=2)
        second = list_jobs(tx, limit=2, before=first[-1].id)
        third = list_jobs(tx, limit=2, before=second[-1].id)

    assert [job.id for job in (*first, *second, *third)] == ids[::-1]


def test_a_job_is_shown_with_everything_that_is_stored_about_it(app: Stepfast) -> None:
    job_id = greeting(app).enqueue(name="Ada", key="ada", priority=7).id
    (lease,) = leased(app)
    with app.transaction() as tx:
        commit(tx, lease, Again(timedelta(0), "OSError: no answer", "OSError: …"))
    (lease,) = leased(app, worker_id="bob")
    with app.transaction() as tx:
        write_reports(
            tx, [_said(lease, "first"), _said(lease, "second"), Report(lease, 33, "a third", None, None)]
        )

    with app.database.reading() as tx:
        shown = show_job(tx, job_id)

    assert shown.job.state is JobState.LEASED
    assert (shown.job.key, shown.job.priority, shown.job.kind, shown.job.queue) == (
        "ada",
        7,
        "greet",
        "default",
    )
    assert (shown.job.attempts, shown.job.failures, shown.job.crashes) == (2, 1, 0)
    assert (shown.job.progress, shown.job.progress_note) == (33, "a third")
    assert shown.job.locked_by == "bob"
    assert shown.job.locked_until is not None
    assert shown.job.locked_until > moment(now(app))
    assert (shown.job.last_error, shown.job.error_group) == ("OSError: no answer", "OSError: …")
    assert shown.payload == {"name": "Ada"}
    assert [(line.level, line.message) for line in shown.logs] == [("info", "first"), ("info", "second")]
    assert abs(shown.job.created_at - datetime.now(UTC)) < timedelta(minutes=1)


def test_a_note_holds_until_there_is_another(app: Stepfast) -> None:
    job_id = greeting(app).enqueue().id
    (lease,) = leased(app)

    with app.transaction() as tx:
        write_reports(tx, [Report(lease, 33, "a third", None, None), Report(lease, 34, None, None, None)])

    with app.database.reading() as tx:
        shown = show_job(tx, job_id)
    assert (shown.job.progress, shown.job.progress_note) == (34, "a third")


def test_only_the_newest_log_lines_are_shown_when_there_are_many(app: Stepfast) -> None:
    job_id = greeting(app).enqueue().id
    (lease,) = leased(app)
    with app.transaction() as tx:
        write_reports(tx, [_said(lease, str(n)) for n in range(5)])

    with app.database.reading() as tx:
        shown = show_job(tx, job_id, logs=2)

    assert [line.message for line in shown.logs] == ["3", "4"]


def test_a_job_that_is_done_is_shown_with_its_result_and_counts_the_try_that_succeeded(app: Stepfast) -> None:
    greeting(app).enqueue()
    (lease,) = leased(app)
    with app.transaction() as tx:
        commit(tx, lease, Continue({"page": 2}))
    job_id = ended(app, Done({"sent": 1}))

    with app.database.reading() as tx:
        shown = show_job(tx, job_id)

    assert (shown.job.state, shown.job.attempts, shown.job.step) == (JobState.DONE, 1, 1)
    assert (shown.result, shown.cursor) == ({"sent": 1}, {"page": 2})
    assert (shown.job.locked_by, shown.job.locked_until) == (None, None)
    assert shown.job.finished_at is not None


def test_a_dead_job_counts_the_tries_it_had(app: Stepfast) -> None:
    dead = died(app, greeting(app))

    with app.database.reading() as tx:
        shown = show_dead_letter(tx, dead)

    assert (shown.job.state, shown.job.attempts, shown.job.failures) == (JobState.DEAD, 1, 1)


def test_a_job_that_does_not_exist_is_not_found(app: Stepfast) -> None:
    waiting = greeting(app).enqueue().id

    with app.database.reading() as tx:
        with pytest.raises(NotFoundError, match="there is no job nobody"):
            show_job(tx, "nobody")
        with pytest.raises(NotFoundError, match="is no dead letter, it is ready"):
            show_dead_letter(tx, waiting)


def test_dead_letters_are_listed_latest_death_first_and_grouped_by_error(app: Stepfast) -> None:
    greet = greeting(app)
    first, second, third = (
        died(app, greet, "OSError: …"),
        died(app, greet, "KeyError: …"),
        died(app, greet, "OSError: …"),
    )
    for order, dead in enumerate((first, second, third)):
        change(
            app, "UPDATE stepfast_archive SET finished_at = :at WHERE id = :id", at=order * SECOND, id=dead
        )
    greet.enqueue()
    ended(app, Stop("no longer wanted"))

    with app.database.reading() as tx:
        letters = list_dead_letters(tx)
        os_errors = list_dead_letters(tx, Filter(error_group="OSError: …"), limit=1)
        groups = failure_groups(tx)
        some = failure_groups(tx, Filter(error_group="KeyError: …"))

    assert [letter.id for letter in letters] == [third, second, first]
    assert [letter.id for letter in os_errors] == [third]
    assert [(group.kind, group.error_group, group.count) for group in groups] == [
        ("greet", "OSError: …", 2),
        ("greet", "KeyError: …", 1),
    ]
    assert (groups[0].first_at, groups[0].last_at, groups[0].newest_id) == (
        moment(0),
        moment(2 * SECOND),
        third,
    )
    assert [group.error_group for group in some] == ["KeyError: …"]


def test_statistics_tell_how_many_jobs_of_a_kind_succeeded_and_how_long_they_took(app: Stepfast) -> None:
    greet = greeting(app)
    done = [greet.enqueue().id, greet.enqueue().id]
    for _ in done:
        ended(app)
    died(app, greet)
    long_ago = died(app, greet)
    at = now(app)
    for job_id, seconds in zip(done, (1, 3), strict=True):
        change(
            app,
            "UPDATE stepfast_archive SET ready_at = :ready, leased_at = :leased, finished_at = :finished WHERE id = :id",
            ready=at - 10 * SECOND,
            leased=at - 8 * SECOND,
            finished=at - (8 - seconds) * SECOND,
            id=job_id,
        )
    change(app, "UPDATE stepfast_archive SET finished_at = :at WHERE id = :id", at=at - 2 * HOUR, id=long_ago)

    with app.database.reading() as tx:
        (greets,) = kind_statistics(tx, timedelta(hours=1))

    assert (greets.kind, greets.done, greets.dead, greets.cancelled) == ("greet", 2, 1, 0)
    assert greets.success_rate == pytest.approx(2 / 3)
    assert (greets.average_seconds, greets.longest_seconds, greets.average_wait_seconds) == (2.0, 3.0, 2.0)


def test_statistics_tell_the_median_and_the_slow_ones(app: Stepfast) -> None:
    greet = greeting(app)
    done = [it.id for it in greet.enqueue_many([{}] * 20)]
    for _ in done:
        ended(app)
    died(app, greet)
    mail = greeting(app, name="mail")
    mail.enqueue()
    ended(app)
    at = now(app)
    for seconds, job_id in enumerate(done, start=1):
        change(
            app,
            "UPDATE stepfast_archive SET leased_at = :leased, finished_at = :at WHERE id = :id",
            leased=at - seconds * SECOND,
            at=at,
            id=job_id,
        )
    change(app, "UPDATE stepfast_archive SET leased_at = 1 WHERE state = 'dead'")

    with app.database.reading() as tx:
        greets, mails = kind_statistics(tx, timedelta(hours=1))
        (only,) = kind_statistics(tx, timedelta(hours=1), "mail")

    assert (greets.median_seconds, greets.p95_seconds, greets.longest_seconds) == (10.0, 19.0, 20.0)
    assert mails.median_seconds == mails.p95_seconds == mails.longest_seconds
    assert only == mails


def test_statistics_tell_what_jobs_failed_of_and_what_became_of_them(app: Stepfast) -> None:
    greet = greeting(app)
    again = Again(timedelta(hours=1), "OSError: no answer", "OSError: no answer")
    for _ in range(2):
        died(app, greet, "OSError: no answer")
    newest = died(app, greet, "KeyError: 'a'")
    long_ago = died(app, greet, "MemoryError")
    retried = [greet.enqueue().id, greet.enqueue().id]
    for _ in retried:
        (lease,) = leased(app)
        with app.transaction() as tx:
            commit(tx, lease, again)
    change(
        app,
        "UPDATE stepfast_job SET state = 'ready', ready_at = 1 WHERE id = :id AND state = 'scheduled'",
        id=retried[0],
    )
    ended(app)
    change(app, "UPDATE stepfast_archive SET finished_at = 1 WHERE id = :id", id=long_ago)

    with app.database.reading() as tx:
        (greets,) = kind_statistics(tx, timedelta(hours=1))

    assert [(it.error_group, it.dead, it.retrying, it.recovered) for it in greets.failures] == [
        ("OSError: no answer", 2, 1, 1),
        ("KeyError: 'a'", 1, 0, 0),
    ]
    assert greets.failures[1].newest_id == newest
    assert greets.success_rate == 1 / 4


def test_a_kind_that_only_fails_so_far_is_told_of(app: Stepfast) -> None:
    greeting(app).enqueue()
    (lease,) = leased(app)
    with app.transaction() as tx:
        commit(tx, lease, Again(timedelta(hours=1), "OSError: no", "OSError: no"))

    with app.database.reading() as tx:
        (greets,) = kind_statistics(tx, timedelta(hours=1))

    assert (greets.done, greets.dead, greets.success_rate, greets.median_seconds) == (0, 0, None, None)
    assert [it.retrying for it in greets.failures] == [1]


def test_reports_read_the_tables_and_not_the_view(app: Stepfast) -> None:
    greeting(app).enqueue()
    change_nothing = query(app, "SELECT count(*) AS n FROM processing_jobs")
    connection = app.database.connect()
    connection.execute("DROP VIEW processing_jobs")
    connection.close()

    with app.database.reading() as tx:
        assert len(list_jobs(tx)) == change_nothing[0]["n"] == 1
        list_queues(tx), list_leases(tx), list_workers(tx), list_dead_letters(tx)


def _said(lease: object, message: str) -> Report:
    return Report(lease, None, None, "info", message)  # type: ignore[arg-type]
