"""A job waits for an event without a worker; the event, or the timeout, resumes it exactly once."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Done, Event, Reject, Retry, Step, Stepfast, Wait
from stepfast.admin import jobs as actions
from stepfast.errors import AnswerError, ConfigurationError
from stepfast.jobs import events
from stepfast.jobs.outcome import Continue
from stepfast.jobs.wait import event_in
from stepfast.testing import clock, drain, inline
from tests.support import rows
from tests.support.engine import BOB, claim, commit_step, register_work, take, together

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Job, Transaction
    from stepfast.jobs.events import Sent

NAME = "payment:42"


def paying(app: Stepfast, seen: list[Any], *, name: str = NAME) -> Job[..., Any]:
    """A job that waits once, and keeps the event that it gets."""

    @app.job(retry=Retry(attempts=2, first="0ms"))
    def pay(step: Step) -> Wait | str:
        if step.cursor is None:
            return Wait(name, timeout="1h", cursor={"order": 42})
        seen.append((step.cursor, step.event, step.waited_for))
        return "paid" if step.event else "late"

    return pay


def waiting(app: Stepfast, name: str = NAME) -> str:
    """A job that waits, as a worker would have left it."""
    job_id = register_work(app).enqueue().id
    commit_step(app, take(app), Wait(name, timeout="1h", cursor=7))
    return job_id


def test_an_event_wakes_the_job_that_waits_for_it(app: Stepfast) -> None:
    seen: list[Any] = []
    job = paying(app, seen).enqueue()
    drain(app)
    row = rows.live(app, job.id)
    assert row is not None
    assert (row["state"], row["owner"]) == ("scheduled", None)

    sent = app.events.send(NAME, {"amount": 12.5}, id="bank-1")
    drain(app)

    assert (sent.job_id, sent.kept) == (job.id, False)
    ((cursor, event, name),) = seen
    assert (cursor, name) == ({"order": 42}, NAME)
    assert isinstance(event, Event)
    assert (event.name, event.id, event.payload) == (NAME, "bank-1", {"amount": 12.5})
    assert app.operator.job(job.id).result == "paid"
    assert not rows.count(app, "stepfast_wait")


def test_when_the_time_is_over_first_the_job_goes_on_without_it(app: Stepfast) -> None:
    seen: list[Any] = []
    job = paying(app, seen).enqueue()

    with clock(app) as time:
        drain(app)
        time.advance("59m")
        drain(app)
        assert seen == []
        time.advance("2m")
        drain(app)

    assert seen == [({"order": 42}, None, NAME)]
    assert app.operator.job(job.id).result == "late"
    assert app.events.send(NAME).kept, "nobody waits any more"


def test_an_event_that_comes_first_is_kept_for_the_wait(app: Stepfast) -> None:
    seen: list[Any] = []
    assert app.events.send(NAME, "early").kept

    paying(app, seen).enqueue()
    drain(app)

    assert [event.payload for _, event, _ in seen] == ["early"]
    assert not rows.count(app, "stepfast_event")


def test_what_was_kept_long_enough_is_not_delivered(app: Stepfast) -> None:
    seen: list[Any] = []
    with clock(app) as time:
        app.events.send(NAME, "old", keep="10m")
        time.advance("11m")
        paying(app, seen).enqueue()
        drain(app)

    assert seen == []


def test_an_event_for_nobody_may_be_dropped_at_once(app: Stepfast) -> None:
    sent = app.events.send(NAME, keep=0)

    assert (sent.job_id, sent.kept) == (None, False)
    assert not rows.count(app, "stepfast_event")


def test_each_event_goes_to_one_wait_the_oldest_first(app: Stepfast) -> None:
    first, second = waiting(app), waiting(app)

    assert [app.events.send(NAME).job_id for _ in range(3)] == [first, second, None]


def test_events_that_are_kept_are_delivered_in_their_order(app: Stepfast) -> None:
    for n in (1, 2):
        app.events.send(NAME, n)
    seen: list[Any] = []

    @app.job()
    def listen(step: Step) -> Wait | None:
        if step.event is not None:
            seen.append(step.event.payload)
        return Wait(NAME, timeout="1h", cursor=step.number) if step.number < 2 else None

    listen.enqueue()
    drain(app)

    assert seen == [1, 2]


def test_the_same_id_again_changes_nothing(app: Stepfast) -> None:
    job_id = waiting(app)

    assert app.events.send(NAME, id="bank-1").job_id == job_id
    again = app.events.send(NAME, id="bank-1")

    assert (again.repeated, again.kept, again.job_id) == (True, False, None)
    assert not rows.count(app, "stepfast_event")


def test_a_failing_step_finds_the_event_again_when_it_is_tried_again(app: Stepfast) -> None:
    seen: list[Any] = []

    @app.job(retry=Retry(attempts=3, first="0ms"))
    def pay(step: Step) -> Wait | None:
        if step.number == 0:
            return Wait(NAME, timeout="1h")
        seen.append(step.event and step.event.payload)
        if step.attempt == 1:
            raise ConnectionError("the bank is busy")
        return None

    job = pay.enqueue()
    app.events.send(NAME, "money")
    with clock(app):
        drain(app, with_scheduled=True, raise_errors=False)

    assert seen == ["money", "money"]
    assert rows.state(app, job.id) == "done"


def test_a_dead_letter_keeps_its_event_for_its_next_life(app: Stepfast) -> None:
    job_id = waiting(app)
    app.events.send(NAME, "money")
    commit_step(app, take(app), Reject("not today"))

    app.operator.retry(job_id)

    event = event_in(take(app).cursor)
    assert event is not None
    assert event.payload == "money"


@pytest.mark.parametrize("end", ["cancelled", "hastened", "replaced"])
def test_a_job_that_waits_no_more_takes_no_event(app: Stepfast, end: str) -> None:
    work = register_work(app)
    job_id = work.enqueue(key="one").id
    commit_step(app, take(app), Wait(NAME, timeout="1h"))
    match end:
        case "cancelled":
            assert app.operator.cancel(job_id) == "cancelled"
        case "hastened":
            app.operator.retry(job_id)
        case _:
            work.enqueue(key="one", n=2, delay="1h", on_duplicate="replace")

    sent = app.events.send(NAME, "money")

    assert (sent.job_id, sent.kept) == (None, True)
    assert not rows.count(app, "stepfast_wait"), "its row is gone with the first look"


def test_a_running_step_that_was_asked_to_stop_does_not_begin_to_wait(app: Stepfast) -> None:
    job_id = register_work(app).enqueue().id
    lease = take(app)
    with app.transaction() as tx:
        actions.cancel(tx, job_id)

    commit_step(app, lease, Wait(NAME, timeout="1h"))

    assert rows.state(app, job_id) == "cancelled"
    assert not rows.count(app, "stepfast_wait")


def test_an_owner_that_was_replaced_cannot_begin_to_wait(app: Stepfast) -> None:
    register_work(app).enqueue()
    stale = take(app)
    commit_step(app, stale, Continue(1))
    claim(app, BOB)

    with pytest.raises(Exception, match="no longer current"):
        commit_step(app, stale, Wait(NAME, timeout="1h"))

    assert not rows.count(app, "stepfast_wait")


def test_an_event_and_a_wait_of_the_same_moment_never_miss_each_other(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    work = register_work(app)
    other = another_app()
    for n in range(15):
        work.enqueue()
        lease, name = take(app), f"race:{n}"

        def begin(lease: Any = lease, name: str = name) -> None:
            commit_step(app, lease, Wait(name, timeout="1h"))

        def send(name: str = name) -> Sent:
            return other.events.send(name, "now")

        assert together([begin, send])[1].id

        row = rows.live(app, lease.job_id)
        assert row is not None
        assert row["state"] == "ready", f"round {n}: the event and the wait missed each other"
        assert not rows.count(app, "stepfast_event")
        commit_step(app, take(app), Done())


def test_many_senders_and_many_waits_find_each_other_once(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    ids = [waiting(app) for _ in range(6)]
    senders = [another_app() for _ in range(3)]

    def send_two(sender: Stepfast) -> list[str | None]:
        return [sender.events.send(NAME).job_id for _ in range(2)]

    sent = together([partial(send_two, it) for it in senders])

    assert Counter(job_id for found in sent for job_id in found) == Counter(ids)


def test_what_a_transaction_sends_is_sent_when_it_commits(app: Stepfast) -> None:
    job_id = waiting(app)

    def change_of_mind(tx: Transaction) -> None:
        app.events.send(NAME, tx=tx)
        raise KeyError

    with pytest.raises(KeyError), app.transaction() as tx:
        change_of_mind(tx)
    assert rows.state(app, job_id) == "scheduled"

    with app.transaction() as tx:
        assert app.events.send(NAME, tx=tx).job_id == job_id
    assert rows.state(app, job_id) == "ready"


@pytest.mark.only_on("sqlite")
def test_an_event_is_sent_on_a_lent_connection(app: Stepfast, database_url: str) -> None:
    job_id = waiting(app)

    with closing(sqlite3.connect(database_url.removeprefix("sqlite:///"), isolation_level=None)) as lent:
        lent.execute("BEGIN IMMEDIATE")
        app.events.send(NAME, tx=lent)
        lent.execute("ROLLBACK")
        lent.execute("BEGIN IMMEDIATE")
        app.events.send(NAME, tx=lent)
        lent.execute("COMMIT")

    assert rows.state(app, job_id) == "ready"


@pytest.mark.usefixtures("ledger")
def test_a_step_sends_events_with_its_commit_or_not_at_all(app: Stepfast) -> None:
    waiter = waiting(app)

    @app.job(queue="other", retry=Retry(attempts=1))
    def tell(step: Step, *, fail: bool) -> None:
        step.send_event(NAME, "from a step")
        step.effect(lambda tx: _fail(tx) if fail else None)

    tell.enqueue(fail=True)
    drain(app, queues=["other"], raise_errors=False)
    assert rows.state(app, waiter) == "scheduled"

    tell.enqueue(fail=False)
    drain(app, queues=["other"])
    assert rows.state(app, waiter) == "ready"


def _fail(_: Transaction) -> None:
    raise RuntimeError("no")


def test_a_worker_that_is_idle_hears_of_an_event_at_once(app: Stepfast) -> None:
    seen: list[Any] = []
    pay = paying(app, seen)
    with app.worker():
        job = pay.enqueue()
        rows.eventually(lambda: rows.count(app, "stepfast_wait"))
        app.events.send(NAME, "live")
        assert job.wait(timeout="10s").result == "paid"


def test_inline_an_event_is_answered_when_it_was_sent(app: Stepfast) -> None:
    seen: list[Any] = []
    pay = paying(app, seen)
    with inline(app):
        job = pay.enqueue()
        assert seen == []
        app.events.send(NAME, "inline")

    assert seen[0][1].payload == "inline"
    assert rows.state(app, job.id) == "done"


def test_a_job_says_what_it_waits_for_and_until_when(app: Stepfast) -> None:
    job_id = waiting(app)

    detail = app.operator.job(job_id)
    assert (detail.waits_for, detail.cursor) == (NAME, 7)
    (listed,) = app.operator.waits()
    assert (listed.event, listed.job_id, listed.waits_until) == (NAME, job_id, detail.job.ready_at)

    app.events.send(NAME)
    assert app.operator.job(job_id).waits_for is None
    assert app.operator.waits() == []


def test_what_is_over_is_forgotten_and_what_is_not_stays(app: Stepfast) -> None:
    with clock(app) as time:
        app.events.send("old", keep="10m")
        app.events.send("young", keep="1d")
        waiting(app, "patient")
        time.advance("3630s")
        with app.transaction() as tx:
            assert events.any_old_events(tx)
            events.forget_old_events(tx, 100)
            assert not events.any_old_events(tx)
        assert [it.event for it in app.operator.kept_events()] == ["young"]
        assert rows.count(app, "stepfast_wait") == 1

        time.advance("2m")
        with app.transaction() as tx:
            events.forget_old_events(tx, 100)
        assert rows.count(app, "stepfast_wait") == 0
        left = {row["id"] for row in rows.query(app, "SELECT id FROM stepfast_event_name")}
        assert "young" in left
        assert "old" not in left


def test_an_event_that_was_kept_beside_a_wait_is_brought_to_it(app: Stepfast) -> None:
    """As a sender leaves it whose transaction looks at the past."""
    job_id = waiting(app)
    with app.transaction() as tx:
        tx.run(events.KEEP_EVENT, name=NAME, event_id="e", keep=rows.HOUR, payload='"missed"')

    with app.transaction() as tx:
        assert events.missed_events(tx) == [NAME]
        assert events.deliver_kept(tx, NAME) == 1

    assert rows.state(app, job_id) == "ready"
    assert not rows.count(app, "stepfast_event")


def test_bad_names_times_and_cursors_are_refused_in_words(app: Stepfast) -> None:
    for name in ("", "x" * 161, "ends in a space ", "nul\0", 42):
        with pytest.raises(ConfigurationError, match="event"):
            app.events.send(name)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="timeout=0"):
        Wait(NAME, timeout=0)
    with pytest.raises(AnswerError, match="cannot be stored"):
        app.events.send(NAME, object())
    register_work(app).enqueue()
    with pytest.raises(AnswerError, match="which is ours"):
        commit_step(app, take(app), Continue({"stepfast.wait": {"name": "x"}, "cursor": 1}))


def test_no_thread_and_no_lease_is_held_while_many_jobs_wait(app: Stepfast) -> None:
    seen: list[Any] = []

    @app.job()
    async def wait(step: Step, n: int) -> Wait | None:
        if step.number == 0:
            return Wait(f"n:{n}", timeout="1h")
        seen.append(n)
        return None

    wait.enqueue_many([{"n": n} for n in range(60)])
    drain(app)
    assert rows.count(app, "stepfast_wait") == 60
    assert rows.count(app, "stepfast_job", "state = 'leased'") == 0
    before = threading.active_count()
    for n in range(60):
        app.events.send(f"n:{n}")
    drain(app)

    assert sorted(seen) == list(range(60))
    assert threading.active_count() <= before + 1
