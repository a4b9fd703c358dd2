"""`crash_at` and `kill_worker`: a process dies at a chosen point, and each effect is there once all the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from stepfast import Continue, Job, Retry, Step, Stepfast
from stepfast.errors import ConfigurationError
from stepfast.testing import POINTS, Crashed, clock, crash_at, drain, enqueued, kill_worker
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Transaction

pytestmark = pytest.mark.usefixtures("ledger")


def booking(app: Stepfast, calls: list[int] | None = None) -> Job[..., Continue | None]:
    """Two pages, each with a row that would stand there twice if it were written twice, or be refused."""

    @app.job()
    def book(step: Step, account: str) -> Continue | None:
        if calls is not None:
            calls.append(step.number)
        step.effect(Add(account, 1))
        return Continue(1) if step.number == 0 else None

    return book


class Add:
    """Not idempotent, on purpose."""

    def __init__(self, account: str, amount: int) -> None:
        self.row = {"id": account, "amount": amount}

    def apply(self, tx: Transaction, /) -> None:
        tx.execute("UPDATE ledger SET amount = amount + :amount WHERE id = :id", self.row)


def open_account(app: Stepfast, name: str = "a") -> None:
    rows.change(app, "INSERT INTO ledger VALUES (:id, 0)", id=name)


def balance(app: Stepfast, name: str = "a") -> int:
    return int(rows.query(app, "SELECT amount FROM ledger WHERE id = :id", id=name)[0]["amount"])


TWICE = [point for point in POINTS if not point.endswith("claim")]  # the second page stays with its worker


@pytest.mark.parametrize(("point", "nth"), [*((it, 1) for it in POINTS), *((it, 2) for it in TWICE)])
def test_effects_are_there_once_wherever_the_process_dies(app: Stepfast, point: str, nth: int) -> None:
    book = booking(app)
    open_account(app)
    job = book.enqueue(account="a")

    with crash_at(app, point, nth=nth) as crash:
        drain(app)

    assert crash.happened
    assert rows.state(app, job.id) == ("done" if (point, nth) == ("after commit", 2) else at_rest(point))
    drain(app)
    assert balance(app) == 2
    assert rows.state(app, job.id) == "done"


def at_rest(point: str) -> str:
    """What the database knows of the job when its worker has died there."""
    return "ready" if point == "before claim" else "leased"


@pytest.mark.parametrize(
    ("point", "runs"),
    [
        ("before claim", 2),
        ("before handler", 2),
        ("after handler", 3),
        ("before commit", 3),
        ("after commit", 2),
    ],
)
def test_only_what_was_not_committed_is_run_again(app: Stepfast, point: str, runs: int) -> None:
    calls: list[int] = []
    book = booking(app, calls)
    open_account(app)
    book.enqueue(account="a")

    with crash_at(app, point):
        drain(app)
    drain(app)

    assert len(calls) == runs
    assert balance(app) == 2


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_process_is_no_different(app: Stepfast, point: str) -> None:
    book = booking(app)
    open_account(app)
    job = book.enqueue(account="a")

    kill_worker(app, point)

    assert rows.state(app, job.id) == at_rest(point)
    assert drain(app).done == 1
    assert balance(app) == 2


def test_jobs_that_are_acknowledged_together_die_together(app: Stepfast) -> None:
    @app.job()
    def work(n: int) -> None: ...

    work.enqueue_many([{"n": n} for n in range(5)])
    with crash_at(app, "before commit"):
        drain(app, concurrency=5)

    assert rows.count(app, "stepfast_archive") == 0
    assert drain(app).done == 5


def test_a_crash_is_charged_to_the_job_that_was_alone(app: Stepfast) -> None:
    book = booking(app)
    open_account(app)
    book.enqueue(account="a")

    with crash_at(app, "before commit"):
        drain(app)

    assert [it.attempt for it in drain(app).runs] == [2, 1]


def test_a_job_that_dies_three_times_is_a_dead_letter(app: Stepfast) -> None:
    book = booking(app)
    open_account(app)
    job = book.enqueue(account="a")

    for _ in range(3):
        with crash_at(app, "after handler"):
            drain(app)
    report = drain(app, raise_errors=False)

    assert report.dead == 1
    assert "killed its worker 3 times" in str(report.job(job.id).error)
    assert balance(app) == 0


def test_a_failure_that_was_not_written_is_not_charged_as_one(app: Stepfast) -> None:
    @app.job(retry=Retry(attempts=2, first="1h"))
    def work() -> None:
        raise ValueError("no")

    job = work.enqueue()
    with crash_at(app, "before commit"):
        drain(app)

    assert rows.live(app, job.id) is not None
    found = drain(app, raise_errors=False).job(job.id)
    assert (found.failures, found.crashes) == (1, 1)


# Points


def test_any_statement_can_be_a_point(app: Stepfast) -> None:
    book = booking(app)
    open_account(app)
    book.enqueue(account="a")

    with crash_at(app, "after update  LEDGER set amount"):
        drain(app)

    assert balance(app) == 0
    drain(app)
    assert balance(app) == 2


def test_a_point_that_never_comes_is_a_failure_that_says_what_came(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    work.enqueue()
    with (
        pytest.raises(AssertionError, match=r"before effects was not passed.*before handler \(1 times\)"),
        crash_at(app, "before effects"),
    ):
        drain(app)

    assert rows.count(app, "stepfast_archive") == 1


def test_a_point_need_not_come(app: Stepfast) -> None:
    with crash_at(app, "before effects", required=False) as crash:
        drain(app)

    assert not crash.happened


@pytest.mark.parametrize("wrong", ["", "commit", "during commit", "before", "before  "])
def test_a_point_that_nobody_understands_is_refused(app: Stepfast, wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="'before' or 'after'"), crash_at(app, wrong):
        pass


def test_a_child_that_never_comes_to_its_point_is_a_failure(app: Stepfast) -> None:
    with pytest.raises(AssertionError, match="never came there"):
        kill_worker(app, "before effects")


# The caller's own code


@pytest.mark.parametrize(("point", "there"), [("before commit", 0), ("after commit", 1)])
def test_rows_and_enqueue_of_the_caller_are_there_together_or_not_at_all(
    app: Stepfast, point: str, there: int
) -> None:
    book = booking(app)
    reached: list[str] = []

    with crash_at(app, point):
        with app.transaction() as tx:
            tx.execute("INSERT INTO ledger VALUES ('a', 0)")
            book.enqueue(account="a", tx=tx)
        reached.append("after the transaction")

    assert reached == []
    assert (rows.count(app, "ledger"), len(enqueued(app))) == (there, there)


def test_code_that_catches_everything_does_not_survive(app: Stepfast) -> None:
    book = booking(app)

    def stubborn() -> None:
        try:
            book.enqueue(account="a")
        except Exception:  # noqa: BLE001 - that is the point
            book.enqueue(account="b")

    with crash_at(app, "before commit"):
        stubborn()

    assert enqueued(app) == []


def test_the_dead_do_not_clean_up(app: Stepfast) -> None:
    """Whatever still runs in its `finally` blocks reaches no database."""

    def careful() -> None:
        try:
            rows.change(app, "INSERT INTO ledger VALUES ('a', 0)")
        finally:
            rows.change(app, "INSERT INTO ledger VALUES ('b', 0)")

    with crash_at(app, "before commit"):
        careful()

    assert rows.count(app, "ledger") == 0


def test_what_a_handler_writes_beside_its_step_dies_with_it(app: Stepfast) -> None:
    @app.job()
    def work() -> None:
        with app.transaction() as tx:
            tx.execute("INSERT INTO ledger VALUES ('beside', 0)")

    work.enqueue()
    with crash_at(app, "before insert into ledger"):
        drain(app)
    assert rows.count(app, "ledger") == 0

    drain(app)
    assert rows.count(app, "ledger") == 1


def test_another_error_inside_the_block_is_raised(app: Stepfast) -> None:
    with pytest.raises(ZeroDivisionError), crash_at(app, "before commit"):
        _ = 1 / 0

    assert drain(app).jobs == ()


# Afterwards


def test_a_machine_that_is_lost_is_believed_until_its_lease_has_run_out(app: Stepfast) -> None:
    book = booking(app)
    open_account(app)
    book.enqueue(account="a")

    with clock(app) as time:
        with crash_at(app, "before commit", machine_lost=True):
            drain(app)
        assert drain(app).jobs == ()

        time.advance("11s")
        assert drain(app).done == 1
    assert balance(app) == 2


def test_the_clock_may_be_moved_inside_and_stays_moved(app: Stepfast) -> None:
    book = booking(app)
    open_account(app)
    book.enqueue(account="a", delay="1h")

    with clock(app) as time:
        with crash_at(app, "before commit"):
            drain(app, with_scheduled=True)
        assert drain(app).done == 1
        assert (time.now() - enqueued(app, ended=True)[0].created_at).total_seconds() >= 3600
    assert balance(app) == 2


def test_the_application_is_itself_again(app: Stepfast) -> None:
    book = booking(app)
    open_account(app)
    database, kinds = app.database, app.kinds
    before = set(threading.enumerate())
    book.enqueue(account="a")

    with crash_at(app, "after claim"):
        drain(app)

    assert app.database is database
    assert app.kinds is kinds
    assert set(threading.enumerate()) <= before


def test_a_crash_happens_in_an_async_test_too(app: Stepfast) -> None:
    @app.job()
    async def book(step: Step) -> None:
        await asyncio.sleep(0)
        step.effect(Add("a", 1))

    async def test(point: str) -> None:
        book.enqueue()
        with crash_at(app, point):
            await drain(app)
        assert (await drain(app)).done == 1

    open_account(app)
    for n, point in enumerate(["after handler", "before commit"], start=1):
        asyncio.run(test(point))
        assert balance(app) == n


def test_a_worker_that_lives_beside_it_is_not_harmed(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    other = another_app()
    with other.worker(queues="elsewhere"):
        book = booking(app)
        open_account(app)
        book.enqueue(account="a")
        with crash_at(app, "before commit"):
            drain(app)

        assert drain(app).done == 1
        assert [it.running for it in app.operator.workers()] == [True]
    assert rows.count(app, "stepfast_worker", "state = 'dead'") == 1


def test_a_crash_is_not_an_error_that_a_handler_could_mean() -> None:
    assert not issubclass(Crashed, Exception)
