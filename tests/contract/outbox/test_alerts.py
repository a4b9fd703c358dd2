"""Alerts: one notification per cause and quiet time, repetitions are counted, and dead jobs raise them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest

from stepfast import Retry, Step
from stepfast.admin.outbox import AlertReport, list_alerts
from stepfast.errors import ArgumentsError, ConfigurationError
from stepfast.jobs.outcome import Bury
from stepfast.notifications.settings import NotificationSettings
from stepfast.outbox import alerts
from stepfast.outbox.destinations import prune_outbox
from stepfast.worker import relay as worker_relay
from stepfast.worker.relay import Relay, alert_about_dead_jobs
from tests.support import rows
from tests.support.engine import commit_step, register_work, take, together
from tests.support.mail_receiver import PASSWORD, MailReceiver, receiving_mail

if TYPE_CHECKING:
    from stepfast import Stepfast

HOUR = 3_600 * rows.SECOND


@pytest.fixture
def box() -> Iterator[MailReceiver]:
    with receiving_mail() as found:
        yield found


def settings(*boxes: MailReceiver) -> NotificationSettings:
    return NotificationSettings(alert_urls=tuple(it.url for it in boxes))


def relayed(app: Stepfast, *boxes: MailReceiver) -> None:
    Relay(app.database, settings(*boxes)).drain()


def let_pass(app: Stepfast, span: int) -> None:
    """Let time pass for alerts: move all of their instants into the past."""
    rows.change(
        app,
        "UPDATE stepfast_alert SET quiet_until = quiet_until - :span, notify_at = notify_at - :span,"
        " notified_at = notified_at - :span, first_at = first_at - :span, last_at = last_at - :span",
        span=span,
    )


def listed(app: Stepfast) -> list[AlertReport]:
    with app.reading() as tx:
        return list_alerts(tx)


def bury(app: Stepfast, error: str = "OSError: no answer") -> str:
    job = register_work(app).enqueue()
    commit_step(app, take(app), Bury(f"{error} at 10:30", error))
    return job.id


# Told once


def test_an_alert_becomes_a_mail_and_no_other(app: Stepfast, box: MailReceiver) -> None:
    app.alert("run r-7 failed", "Consolidation skipped", "3 of 12 workers failed.", severity="warning")

    relayed(app, box)
    relayed(app, box)

    assert box.subjects == ["Consolidation skipped"]
    assert "3 of 12 workers failed." in box.text()
    assert "Cause: run r-7 failed" in box.text()
    (row,) = rows.query(app, "SELECT id FROM stepfast_outbox")
    assert f"Alert: {row['id']}" in box.text()


def test_a_step_may_raise_one_with_its_commit(app: Stepfast, box: MailReceiver) -> None:
    app._notifications = settings(box)

    @app.job()
    def check(step: Step) -> None:
        step.alert("disk", "The disk is full", cooldown="10m")

    check.enqueue()
    with app.worker():
        rows.eventually(lambda: box.mails)

    assert box.subjects == ["The disk is full"]
    assert rows.query(app, "SELECT quiet_for FROM stepfast_alert") == [{"quiet_for": HOUR // 6}]


def test_one_cause_is_told_once_in_its_quiet_time_and_counted_meanwhile(
    app: Stepfast, box: MailReceiver
) -> None:
    for _ in range(3):
        app.alert("disk", "The disk is full")
        relayed(app, box)
    assert box.subjects == ["The disk is full"]
    assert "Raised" not in box.text()
    (alert,) = listed(app)
    assert (alert.state, alert.raised, alert.untold) == ("quiet", 3, 2)

    let_pass(app, HOUR - 60 * rows.SECOND)
    relayed(app, box)
    assert len(box.mails) == 1
    let_pass(app, 60 * rows.SECOND)
    app.alert("disk", "The disk is full")
    relayed(app, box)

    assert len(box.mails) == 2
    assert "Raised 3 times since" in box.text()
    assert "4 times in all" in box.text()
    assert [it.state for it in listed(app)] == ["sent"]


def test_what_was_raised_in_the_quiet_time_is_told_at_its_end_even_if_nothing_follows(
    app: Stepfast, box: MailReceiver
) -> None:
    app.alert("disk", "The disk is full")
    relayed(app, box)
    app.alert("disk", "The disk is full again")

    let_pass(app, HOUR)
    relayed(app, box)
    let_pass(app, HOUR)
    relayed(app, box)

    assert box.subjects == ["The disk is full", "The disk is full again"]


def test_causes_do_not_quieten_each_other(app: Stepfast, box: MailReceiver) -> None:
    for cause in ("disk", "memory"):
        app.alert(cause, f"No {cause}")

    relayed(app, box)

    assert sorted(box.subjects) == ["No disk", "No memory"]


def test_the_quiet_time_may_be_chosen(app: Stepfast, box: MailReceiver) -> None:
    app.alert("disk", "The disk is full", cooldown="10m")
    relayed(app, box)
    app.alert("disk", "The disk is full", cooldown="10m")

    let_pass(app, HOUR // 6)
    relayed(app, box)

    assert len(box.mails) == 2


def test_many_who_raise_one_cause_at_once_are_all_counted_and_told_once(
    app: Stepfast, another_app: Callable[[], Stepfast], box: MailReceiver
) -> None:
    apps = [another_app() for _ in range(4)]

    outcomes = together([partial(it.alert, "disk", "The disk is full") for it in apps])
    relayed(app, box)

    assert outcomes == [None] * 4
    assert rows.query(app, "SELECT raised, untold FROM stepfast_alert") == [{"raised": 4, "untold": 0}]
    assert len(box.mails) == 1
    assert "Raised 4 times" in box.text()


def test_of_two_relays_that_tell_at_once_one_does(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    for n in range(5):
        app.alert(f"cause {n}", "Title")
    apps = [another_app() for _ in range(3)]

    def tell(one: Stepfast) -> list[str]:
        with one.transaction() as tx:
            return alerts.stage_alerts(tx, ["a place"], timedelta(hours=1))

    told = together([partial(tell, it) for it in apps])

    assert tell(app) == []
    assert sorted(cause for found in told for cause in found) == [f"cause {n}" for n in range(5)]
    assert rows.count(app, "stepfast_outbox") == 5


# Where it goes


def test_every_place_gets_it_and_one_that_fails_does_not_repeat_it_to_the_others(
    app: Stepfast, box: MailReceiver
) -> None:
    with receiving_mail() as broken:
        broken.refuse = True
        app.alert("disk", "The disk is full")
        relayed(app, box, broken)
        assert (len(box.mails), len(broken.mails)) == (1, 0)
        (alert,) = listed(app)
        assert (alert.state, "Sending email" in str(alert.last_error)) == ("waiting", True)

        broken.refuse = False
        rows.change(app, "UPDATE stepfast_outbox SET due_at = 1")
        relayed(app, box, broken)

    assert (len(box.mails), len(broken.mails)) == (1, 1)
    assert [it.state for it in listed(app)] == ["sent"]


def test_one_that_cannot_be_delivered_is_visible_and_can_be_retried(app: Stepfast, box: MailReceiver) -> None:
    box.refuse = True
    app.alert("disk", "The disk is full")
    Relay(app.database, replace(settings(box), outbox_attempts=1)).drain()
    assert [it.state for it in listed(app)] == ["dead"]
    assert rows.count(app, "stepfast_alert") == 1  # that it died is no alert of its own

    box.refuse = False
    (message,) = app.operator.messages()
    app.operator.retry_message(message.id)
    relayed(app, box)

    assert box.subjects == ["The disk is full"]
    assert [it.state for it in listed(app)] == ["sent"]


def test_with_nowhere_to_go_it_is_recorded_and_told_when_there_is(app: Stepfast, box: MailReceiver) -> None:
    app.alert("disk", "The disk is full")
    relayed(app)
    (alert,) = listed(app)
    assert (alert.state, alert.title, alert.raised) == ("unsent", "The disk is full", 1)

    relayed(app, box)

    assert box.subjects == ["The disk is full"]


def test_what_nobody_could_tell_for_a_day_is_only_listed_until_it_is_raised_again(
    app: Stepfast, box: MailReceiver
) -> None:
    app.alert("disk", "The disk is full")
    let_pass(app, 25 * HOUR)
    relayed(app, box)
    assert box.mails == []
    assert [it.state for it in listed(app)] == ["unsent"]

    app.alert("disk", "The disk is full")
    relayed(app, box)

    assert len(box.mails) == 1


@pytest.mark.only_on("sqlite")
def test_a_worker_refuses_to_start_with_a_place_that_nobody_can_read(app: Stepfast) -> None:
    app._notifications = NotificationSettings(alert_urls=("nonsense://hunter2",))

    with pytest.raises(ConfigurationError, match=r"STEPFAST_ALERT_URLS: number 1 \(nonsense://…\)"):
        app.worker()


def test_neither_rows_nor_lists_know_the_password(app: Stepfast, box: MailReceiver) -> None:
    box.refuse = True
    app.alert("disk", "The disk is full")
    relayed(app, box)

    said = (
        str(rows.query(app, "SELECT * FROM stepfast_outbox"))
        + str(listed(app))
        + str(app.operator.messages())
    )
    assert "mailto://ops:****@127.0.0.1" in said
    assert PASSWORD not in said


def test_a_cause_may_be_as_long_as_it_likes(app: Stepfast) -> None:
    for end in ("a", "b"):
        app.alert("x" * 500 + end, "Title")

    assert len(listed(app)) == 2
    assert {len(it.cause) for it in listed(app)} == {alerts.LONGEST_CAUSE - 1}


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"severity": "fatal"}, "'info', 'warning', 'failure'"),
        ({"cause": " "}, "cause=' '"),
        ({"title": ""}, "title=''"),
        ({"title": None}, "title=None"),
    ],
)
def test_what_says_nothing_is_refused(app: Stepfast, options: dict[str, object], word: str) -> None:
    said: dict[str, object] = {"cause": "cause", "title": "Title", **options}

    with pytest.raises(ArgumentsError, match=word):
        app.alert(**said)  # type: ignore[arg-type]

    assert listed(app) == []


def test_causes_that_came_to_rest_are_forgotten(app: Stepfast, box: MailReceiver) -> None:
    app.alert("old", "Title")
    relayed(app, box)
    app.alert("never told", "Title")
    let_pass(app, 8 * 24 * HOUR)
    app.alert("long quiet", "Title", cooldown="30d")
    relayed(app, box)
    rows.change(app, "UPDATE stepfast_alert SET last_at = 1 WHERE id = 'long quiet'")

    with app.transaction() as tx:
        prune_outbox(tx, 7 * rows.DAY, 100)

    assert [it.cause for it in listed(app)] == ["long quiet"]


# Deaths


def test_a_job_that_dies_raises_an_alert(app: Stepfast, box: MailReceiver) -> None:
    app._notifications = settings(box)

    @app.job(name="invoice", retry=Retry(attempts=1))
    def invoice() -> None:
        raise OSError("the printer is on fire")

    with app.worker():
        rows.eventually(lambda: rows.count(app, "stepfast_bookmark"))
        job = invoice.enqueue()
        rows.eventually(lambda: box.mails)

    assert box.subjects == ["Job invoice died"]
    assert "the printer is on fire" in box.text()
    assert f"stepfast jobs show {job.id}" in box.text()


def test_deaths_of_one_cause_are_one_alert(app: Stepfast) -> None:
    relay = Relay(app.database, settings())
    relay.drain()
    for _ in range(3):
        bury(app)
    bury(app, "KeyError: 'a'")

    relay.look()

    found = {it.cause: it.raised for it in listed(app)}
    assert found == {"job died: work: OSError: no answer": 3, "job died: work: KeyError: 'a'": 1}


def test_a_death_is_noticed_once_by_however_many(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    with app.transaction() as tx:
        alert_about_dead_jobs(tx)
    for _ in range(5):
        bury(app)
    apps = [another_app() for _ in range(3)]

    def notice(one: Stepfast) -> int:
        with one.transaction() as tx:
            found = alert_about_dead_jobs(tx)
        return 0 if found is None else found.jobs

    counts = together([partial(notice, it) for it in apps])
    again = notice(app)

    assert (sorted(counts), again) == ([0, 0, 5], 0)
    assert [it.raised for it in listed(app)] == [5]


def test_a_death_that_is_committed_after_a_younger_one_is_noticed(app: Stepfast) -> None:
    with app.transaction() as tx:
        alert_about_dead_jobs(tx)
    bury(app)
    with app.transaction() as tx:
        alert_about_dead_jobs(tx)  # the bookmark stands behind it now
    late = bury(app)
    rows.change(
        app,
        "UPDATE stepfast_archive SET finished_at = finished_at - :span WHERE id = :id",
        span=60 * rows.SECOND,
        id=late,
    )

    with app.transaction() as tx:
        found = alert_about_dead_jobs(tx)

    assert found is not None
    assert found.jobs == 1


def test_a_job_that_is_revived_and_dies_again_is_noticed_again(app: Stepfast) -> None:
    with app.transaction() as tx:
        alert_about_dead_jobs(tx)
    job_id = bury(app)
    with app.transaction() as tx:
        alert_about_dead_jobs(tx)
    app.operator.retry(job_id)
    commit_step(app, take(app), Bury("again", "OSError: no answer"))

    with app.transaction() as tx:
        alert_about_dead_jobs(tx)

    assert [it.raised for it in listed(app)] == [2]


def test_deaths_before_the_first_look_are_history(app: Stepfast) -> None:
    bury(app)
    rows.change(app, "UPDATE stepfast_archive SET finished_at = finished_at - :span", span=rows.HOUR)

    Relay(app.database, settings()).drain()

    assert listed(app) == []


def test_many_deaths_are_noticed_in_batches(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_relay, "DEAD_JOBS_BATCH", 2)
    relay = Relay(app.database, settings())
    relay.drain()
    for _ in range(5):
        bury(app)

    relay.look()

    assert [it.raised for it in listed(app)] == [5]


def test_what_was_noticed_is_forgotten_when_the_bookmark_is_far_behind_it(app: Stepfast) -> None:
    with app.transaction() as tx:
        alert_about_dead_jobs(tx)
    bury(app)
    with app.transaction() as tx:
        alert_about_dead_jobs(tx)
    assert rows.count(app, "stepfast_death") == 1
    for table in ("stepfast_death", "stepfast_archive"):
        rows.change(app, f"UPDATE {table} SET finished_at = finished_at - :span", span=rows.HOUR)

    with app.transaction() as tx:
        alert_about_dead_jobs(tx)

    assert rows.count(app, "stepfast_death") == 0
    assert [it.raised for it in listed(app)] == [1]


def test_deaths_may_be_left_alone(app: Stepfast) -> None:
    relay = Relay(app.database, replace(settings(), alert_deaths=False))
    relay.drain()
    bury(app)

    relay.drain()

    assert listed(app) == []
