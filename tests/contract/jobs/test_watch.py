"""Watching a job: every log line once, changes of state and progress, and its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Retry, Step, WaitTimeoutError
from stepfast.database.connection import Connection, Transaction
from stepfast.database.statement import sql
from stepfast.errors import NotFoundError, UnreachableError
from stepfast.jobs.commit import commit
from stepfast.jobs.outcome import Bury, Done
from stepfast.jobs.step import Report, write_reports
from stepfast.results import watch as watching
from stepfast.results.outcome import PLAIN_READER
from stepfast.results.watch import Ended, Logged, Observer, Progressed, StateChanged, Update
from tests.support import rows
from tests.support.jobs_in_every_state import died, ended, greeting, leased

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepfast import Stepfast
    from stepfast.jobs.lease import Lease

PATIENCE = 20
SAY = sql("""
    INSERT INTO stepfast_log (job_id, at, level, step, message) VALUES (:id, {now}, 'info', 0, :message)
""")


def observer(app: Stepfast, job_id: str, *, beyond_death: bool = False) -> Observer:
    return Observer(app.database, job_id, None, lambda _: PLAIN_READER, beyond_death=beyond_death)


def say(tx: Transaction, job_id: str, message: str) -> None:
    tx.run(SAY, id=job_id, message=message)


def messages(updates: Iterable[Update]) -> list[str]:
    return [it.message for it in updates if isinstance(it, Logged)]


def report(app: Stepfast, lease: Lease, *, percent: int | None = None, message: str | None = None) -> None:
    level = None if message is None else "info"
    with app.transaction() as tx:
        write_reports(tx, [Report(lease, percent, f"{percent} done" if percent else None, level, message)])


def test_a_job_is_watched_from_its_enqueue_to_its_end(app: Stepfast) -> None:
    job_id = greeting(app).enqueue().id
    watch = observer(app, job_id)

    seen = watch.look()
    (lease,) = leased(app)
    report(app, lease, message="hello")
    report(app, lease, percent=33)
    seen += watch.look()
    assert not watch.look(), "nothing happened"
    report(app, lease, message="bye")
    with app.transaction() as tx:
        commit(tx, lease, Done({"rows": 3}))
    *seen_last, end = watch.look()

    assert [type(it) for it in seen] == [StateChanged, StateChanged, Logged, Progressed]
    assert [it.state for it in seen if isinstance(it, StateChanged)] == ["ready", "leased"]
    assert messages([*seen, *seen_last]) == ["hello", "bye"]
    assert Progressed(33, "33 done") in seen
    assert isinstance(end, Ended)
    assert (end.outcome.state, end.outcome.result) == ("done", {"rows": 3})
    assert watch.over


def test_a_job_is_watched_through_its_retries(app: Stepfast) -> None:
    @app.job(retry=Retry(attempts=3, first="1ms"))
    def flaky(step: Step) -> str:
        step.log(f"try {step.attempt}")
        if step.attempt < 3:
            raise OSError("not yet")
        return "ok"

    job = flaky.enqueue()
    with app.worker():
        *updates, end = job.watch(PATIENCE)

    assert [it for it in messages(updates) if it.startswith("try")] == ["try 1", "try 2", "try 3"]
    assert isinstance(end, Ended)
    assert end.outcome.result == "ok"


def test_a_job_can_be_watched_by_a_coroutine(app: Stepfast) -> None:
    @app.job()
    def talk(step: Step) -> int:
        for number in range(50):
            step.log(str(number))
        return 50

    async def watch(job_id: str) -> list[Update]:
        return [update async for update in app.watch(job_id, PATIENCE)]

    job = talk.enqueue()
    with app.worker():
        *updates, end = asyncio.run(watch(job.id))

    assert messages(updates) == [str(number) for number in range(50)]
    assert isinstance(end, Ended)
    assert end.outcome.result == 50


def test_a_long_log_is_read_to_its_end_and_every_line_once(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MOST", 7)
    job_id = died(app, greeting(app))
    with app.transaction() as tx:
        for number in range(20):
            say(tx, job_id, str(number))

    assert messages(app.watch(job_id)) == [str(number) for number in range(20)]


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_line_that_is_committed_after_a_later_one_is_not_missed(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LATE_LOOK", 0.0)
    job_id = greeting(app).enqueue().id
    watch = observer(app, job_id)

    with app.transaction() as slow:
        say(slow, job_id, "first")  # has the smaller id
        with app.transaction() as quick:
            say(quick, job_id, "second")
        before = watch.look()
    after = watch.look()

    assert messages(before) == ["second"]
    assert messages(after) == ["first"]
    assert messages(watch.look()) == []


@pytest.mark.only_on("postgresql", "mariadb")
def test_the_last_look_finds_the_late_lines_too(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LATE_LOOK", 3_600.0)
    job_id = greeting(app).enqueue().id
    watch = observer(app, job_id)
    watch.look()
    with app.transaction() as slow:
        say(slow, job_id, "first")
        with app.transaction() as quick:
            say(quick, job_id, "second")
        assert messages(watch.look()) == ["second"]
    ended(app)

    assert messages(watch.look()) == ["first"]
    assert watch.over


def test_lines_that_are_settled_are_not_asked_for_again(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LATE_LOOK", 0.0)
    monkeypatch.setattr(watching, "SETTLED_AFTER", 0.0)
    job_id = greeting(app).enqueue().id
    watch = observer(app, job_id)
    with app.transaction() as tx:
        for number in range(5):
            say(tx, job_id, str(number))

    assert len(messages(watch.look())) == 5
    assert messages(watch.look()) == []
    assert watch._log._read == set()
    assert not watch._log._recent


def test_no_line_is_lost_when_the_connection_breaks_between_two_statements(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MOST", 2)
    job_id = greeting(app).enqueue().id
    with app.transaction() as tx:
        for number in range(6):
            say(tx, job_id, str(number))
    watch = observer(app, job_id)
    left = [2]  # reads of the log that succeed

    def cut(phase: str, text: str) -> None:
        if phase == "before" and "FROM stepfast_log" in text and "LIMIT" in text:
            left[0] -= 1
            if left[0] < 0:
                raise UnreachableError("cut")

    Connection.watch = staticmethod(cut)
    try:
        assert watch.look() == []
    finally:
        Connection.watch = None

    assert messages(watch.look()) == ["0", "1", "2", "3", "4", "5"]


def test_who_watches_beyond_death_sees_the_next_life(app: Stepfast) -> None:
    job_id = died(app, greeting(app))
    watch = observer(app, job_id, beyond_death=True)

    first = watch.look()
    app.operator.retry(job_id)
    (lease,) = leased(app)
    second = watch.look()
    with app.transaction() as tx:
        commit(tx, lease, Done())
    third = watch.look()

    states = [it.state for it in (*first, *second) if isinstance(it, StateChanged)]
    assert states == ["dead", "leased"]
    assert isinstance(third[-1], Ended)


@pytest.mark.parametrize(("ending", "state"), [(None, "done"), (Bury("no", "no"), "dead")])
def test_a_job_that_has_ended_is_told_at_once(app: Stepfast, ending: Any, state: str) -> None:
    greeting(app).enqueue()
    job_id = ended(app, ending)

    (end,) = app.watch(job_id)

    assert isinstance(end, Ended)
    assert end.outcome.state == state


def test_who_watches_too_long_is_told_in_which_state_the_job_is(app: Stepfast) -> None:
    watch = greeting(app).enqueue().watch("50ms")

    with pytest.raises(WaitTimeoutError, match="is still ready after"):
        list(watch)


def test_a_job_that_nobody_knows_cannot_be_watched(app: Stepfast) -> None:
    with pytest.raises(NotFoundError, match="there is no job nobody"):
        list(app.watch("nobody"))


def test_a_job_that_is_purged_while_it_is_watched_is_an_error(app: Stepfast) -> None:
    job_id = greeting(app).enqueue().id
    watch = observer(app, job_id)
    watch.look()
    rows.change(app, "DELETE FROM stepfast_job")

    with pytest.raises(NotFoundError):
        watch.look()
