"""A step's commit is one transaction: effects, outcome and continuation are all there, or none of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Continue, Done, JobState, Reject, Snooze, Stepfast, Upsert
from stepfast.config import MAX_PAYLOAD
from stepfast.database.connection import Connection, Transaction
from stepfast.errors import (
    AnswerError,
    ConstraintError,
    ContentionError,
    DatabaseError,
    LeaseLostError,
    PoisonedTransactionError,
    UnknownCommitError,
    UnreachableError,
)
from stepfast.jobs.commit import CommitState, commit_states, finish_many
from stepfast.jobs.outcome import Again, Bury, Call, GiveBack, Stop
from stepfast.jobs.state import TRANSITIONS
from stepfast.suspects import CRASH_GROUP
from tests.support import rows
from tests.support.engine import (
    ALICE,
    BOB,
    claim,
    commit_step,
    drain,
    register_work,
    take,
    wait_until_somebody_waits,
)

if TYPE_CHECKING:
    from stepfast.jobs.lease import Lease
    from stepfast.jobs.outcome import Ending

pytestmark = pytest.mark.usefixtures("ledger")

INSERT = "INSERT INTO ledger (id, amount) VALUES (:id, :amount)"


class TheirError(Exception):
    """An effect's own."""


def booked(app: Stepfast) -> dict[str, int]:
    return {row["id"]: row["amount"] for row in rows.query(app, "SELECT id, amount FROM ledger")}


def book(entry: str, amount: int = 1) -> Call:
    return Call(lambda tx: tx.execute(INSERT, {"id": entry, "amount": amount}))


# All or nothing


def test_effects_and_outcome_are_committed_together(app: Stepfast) -> None:
    job = register_work(app).enqueue()

    commit_step(
        app, take(app), Done({"total": 2}), book("a"), Upsert("ledger", ["id"], [{"id": "b", "amount": 2}])
    )

    row = rows.ended(app, job.id)
    assert row is not None
    assert (row["state"], json.loads(row["result"]), row["finished_at"] >= row["created_at"]) == (
        "done",
        {"total": 2},
        True,
    )
    assert rows.live(app, job.id) is None
    assert booked(app) == {"a": 1, "b": 2}


def test_a_continuation_is_committed_with_the_effects_of_its_page(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    first = take(app)

    commit_step(app, first, Continue({"page": 2}), book("page 1"))

    row = rows.live(app, job.id)
    assert row is not None
    assert (row["state"], row["step"], json.loads(row["cursor_json"])) == ("ready", 1, {"page": 2})
    assert booked(app) == {"page 1": 1}
    second = take(app)
    assert (second.step, second.cursor) == (1, '{"page":2}')


def test_a_continuation_has_attempts_of_its_own(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    commit_step(app, take(app), Again(timedelta(0), "error", "error"))
    commit_step(app, take(app), Continue(1))

    row = rows.live(app, job.id)
    assert row is not None
    assert (row["failures"], row["crashes"]) == (0, 0)


def test_a_later_continuation_waits(app: Stepfast) -> None:
    job = register_work(app).enqueue()

    commit_step(app, take(app), Continue(1, delay="1h"))

    row = rows.live(app, job.id)
    assert row is not None
    assert row["state"] == "scheduled"
    assert row["ready_at"] > rows.now(app) + 3500 * rows.SECOND


@pytest.mark.parametrize("stay", [True, False], ids=["stay", "leave"])
def test_a_cancelled_job_that_is_revived_goes_on_behind_the_step_it_committed(
    app: Stepfast,
    stay: bool,  # noqa: FBT001 - a parameter
) -> None:
    job = register_work(app).enqueue()
    commit_step(app, take(app), Again(timedelta(0), "error", "error"))
    held = take(app)
    app.operator.cancel(job.id)

    commit_step(app, held, Continue({"page": 2}), book("page 1"), stay=stay)

    assert (rows.state(app, job.id), booked(app)) == ("cancelled", {"page 1": 1})
    with app.transaction() as tx:
        assert commit_states(tx, [held]) == {job.id: CommitState.COMMITTED}
    assert app.operator.retry(job.id) is JobState.READY
    revived = take(app)
    assert (revived.step, revived.cursor, revived.attempt) == (1, '{"page":2}', 1)


def test_a_cancelled_job_that_is_revived_runs_a_snoozed_step_again(app: Stepfast) -> None:
    """As it would have without the cancel: a snooze says that the same step runs again."""
    job = register_work(app).enqueue()
    held = take(app)
    app.operator.cancel(job.id)

    commit_step(app, held, Snooze("1m"), book("a"))

    app.operator.retry(job.id)
    revived = take(app)
    assert (revived.step, revived.cursor, booked(app)) == (0, None, {"a": 1})


@pytest.mark.parametrize(
    ("ending", "what"),
    [(Done("x" * MAX_PAYLOAD), "result"), (Continue("x" * MAX_PAYLOAD), "cursor")],
    ids=["result", "cursor"],
)
def test_an_answer_that_is_too_large_is_refused_with_its_effects(
    app: Stepfast, ending: Ending, what: str
) -> None:
    register_work(app).enqueue()
    held = take(app)

    with pytest.raises(AnswerError, match=rf"the {what} takes 1,048,578 bytes, at most 1,048,576"):
        commit_step(app, held, ending, book("a"))

    assert (booked(app), rows.state(app, held.job_id)) == ({}, "leased")


@pytest.mark.parametrize(
    "answer", [Done("x" * MAX_PAYLOAD), Continue("x" * MAX_PAYLOAD)], ids=["result", "cursor"]
)
def test_an_answer_that_is_too_large_is_a_dead_letter_at_once(app: Stepfast, answer: Any) -> None:
    job = app.job(name="much")(lambda: answer).enqueue()

    drain(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert (row["state"], row["failures"]) == ("dead", 1)
    assert "at most 1,048,576 are stored" in row["last_error"]


def test_the_largest_answer_fits(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    commit_step(app, take(app), Continue("x" * (MAX_PAYLOAD - 2)))

    commit_step(app, take(app), Done("x" * (MAX_PAYLOAD - 2)))

    assert rows.state(app, job.id) == "done"


def test_a_try_that_costs_nothing_leaves_a_suspect_suspect(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    rows.change(app, "UPDATE stepfast_job SET error_group = :crash", crash=CRASH_GROUP)

    commit_step(app, take(app), Again(timedelta(seconds=1), "throttled", "throttled", charged=False))

    row = rows.live(app, job.id)
    assert row is not None
    assert (row["error_group"], row["last_error"]) == (CRASH_GROUP, "throttled")


@pytest.mark.parametrize(
    "ending",
    [
        Snooze(0),
        Again(timedelta(0), "throttled", "throttled", charged=False),
        GiveBack(),
    ],
    ids=["snoozed", "throttled", "given back"],
)
def test_a_suspect_that_may_run_again_at_once_is_still_a_suspect(app: Stepfast, ending: Ending) -> None:
    job = register_work(app).enqueue()
    rows.change(app, "UPDATE stepfast_job SET error_group = :crash", crash=CRASH_GROUP)

    commit_step(app, take(app), ending)

    assert rows.state(app, job.id) == "suspect"
    assert JobState.SUSPECT in TRANSITIONS[JobState.LEASED]
    assert claim(app) == []


def test_a_suspect_that_failed_by_itself_is_an_ordinary_job(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    rows.change(app, "UPDATE stepfast_job SET error_group = :crash", crash=CRASH_GROUP)

    commit_step(app, take(app), Again(timedelta(0), "error", "error"))

    row = rows.live(app, job.id)
    assert row is not None
    assert (row["state"], row["error_group"]) == ("ready", "error")


@pytest.mark.parametrize("ending", [Done(1), Continue(2), Snooze("1m")], ids=repr)
def test_an_effect_that_raises_leaves_neither_effects_nor_outcome(app: Stepfast, ending: Ending) -> None:
    register_work(app).enqueue()
    held = take(app)
    before = rows.live(app, held.job_id)

    def fail(_: Transaction) -> None:
        raise TheirError

    with pytest.raises(TheirError):
        commit_step(app, held, ending, book("a"), Call(fail))

    assert booked(app) == {}
    assert rows.live(app, held.job_id) == before
    assert rows.ended(app, held.job_id) is None


def test_effects_run_only_under_the_fence(app: Stepfast) -> None:
    register_work(app).enqueue()
    held = take(app)
    rows.change(app, "UPDATE stepfast_job SET fence = fence + 1")

    with pytest.raises(LeaseLostError):
        commit_step(app, held, Done(), book("a"))

    assert booked(app) == {}


@pytest.mark.only_on("mariadb")
def test_nothing_is_left_when_the_fence_moves_while_effects_run(app: Stepfast) -> None:
    """Where effects come before the outcome, what one of them does to the job's row is found out by its guard."""
    register_work(app).enqueue()
    held = take(app)

    with pytest.raises(LeaseLostError):
        commit_step(
            app,
            held,
            Done(),
            book("a"),
            Call(lambda tx: tx.execute("UPDATE stepfast_job SET fence = fence + 1")),
        )

    assert booked(app) == {}


@pytest.mark.only_on("sqlite", "postgresql")
def test_an_effect_comes_after_the_outcome_and_cannot_undo_it(app: Stepfast) -> None:
    register_work(app).enqueue()
    held = take(app)

    commit_step(app, held, Done(), Call(lambda tx: tx.execute("UPDATE stepfast_job SET fence = fence + 1")))

    assert rows.state(app, held.job_id) == "done"


def test_jobs_that_an_effect_asks_for_exist_when_the_step_is_committed(app: Stepfast) -> None:
    work = register_work(app)
    work.enqueue()

    commit_step(
        app,
        take(app),
        Done(),
        Call(lambda tx: work.enqueue(n=2, tx=tx)),
        Call(lambda tx: work.enqueue_many([{"n": 3}, {"n": 4}], tx=tx)),
    )

    found = rows.query(app, "SELECT payload FROM stepfast_job ORDER BY id")
    assert [json.loads(row["payload"]) for row in found] == [{"n": 2}, {"n": 3}, {"n": 4}]


def test_jobs_that_an_effect_asks_for_are_gone_with_the_step(app: Stepfast) -> None:
    work = register_work(app)
    work.enqueue()
    held = take(app)

    def fail(_: Transaction) -> None:
        raise TheirError

    with pytest.raises(TheirError):
        commit_step(app, held, Done(), Call(lambda tx: work.enqueue(n=2, tx=tx, key="k")), Call(fail))

    assert rows.count(app, "stepfast_job") == 1


def test_results_of_every_json_shape_are_kept(app: Stepfast) -> None:
    results: list[Any] = [0, False, "", [], {}, {"a": [1, None, "ü🙂"]}, "50%"]
    jobs = register_work(app).enqueue_many([{"n": n} for n in range(len(results))])

    for held, result in zip(claim(app, limit=100), results, strict=True):
        commit_step(app, held, Done(result))

    kept = [rows.ended(app, job.id) for job in jobs]
    assert [json.loads(row["result"]) for row in kept if row] == results


def test_no_result_is_null(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    commit_step(app, take(app), Done())

    row = rows.ended(app, job.id)
    assert row is not None
    assert row["result"] is None


def test_a_step_that_ends_early_gives_its_lease_away(app: Stepfast) -> None:
    endings: list[Ending] = [Again(timedelta(0), "e", "e"), Continue(1), Snooze("1m"), GiveBack()]
    register_work(app).enqueue_many([{"n": n} for n in range(len(endings))])

    for held, ending in zip(claim(app, limit=10), endings, strict=True):
        commit_step(app, held, ending)

    left = rows.query(app, "SELECT owner, leased_by, lease_until FROM stepfast_job")
    assert left == [{"owner": None, "leased_by": None, "lease_until": None}] * len(endings)


@pytest.mark.parametrize(
    ("ending", "state", "error"),
    [
        (Reject("no such order"), "dead", "Rejected: no such order"),
        (Bury("ValueError: 3", "ValueError: …"), "dead", "ValueError: 3"),
        (Stop("cancelled by an operator"), "cancelled", "cancelled by an operator"),
    ],
    ids=["Reject", "Bury", "Stop"],
)
def test_an_end_without_success_says_why(app: Stepfast, ending: Ending, state: str, error: str) -> None:
    job = register_work(app).enqueue()

    commit_step(app, take(app), ending)

    row = rows.ended(app, job.id)
    assert row is not None
    assert (row["state"], row["last_error"], row["finished_at"] > 0) == (state, error, True)
    assert rows.live(app, job.id) is None


# Rule 2: what was swallowed cannot be committed


def test_a_swallowed_constraint_error_cannot_be_committed(app: Stepfast) -> None:
    rows.change(app, INSERT, id="taken", amount=1)
    register_work(app).enqueue()
    held = take(app)

    def swallow(tx: Transaction) -> None:
        with pytest.raises(ConstraintError):
            tx.execute(INSERT, {"id": "taken", "amount": 2})

    with pytest.raises(PoisonedTransactionError, match=r"tx.savepoint\(\)"):
        commit_step(app, held, Done(), book("before"), Call(swallow))

    assert booked(app) == {"taken": 1}
    assert rows.state(app, held.job_id) == "leased"


def test_after_a_swallowed_error_no_other_statement_runs(app: Stepfast) -> None:
    seen: list[Exception] = []

    def stubborn() -> None:
        with app.transaction() as tx:
            for text in ("INSERT INTO no_such_table VALUES (1)", "SELECT 1", "DELETE FROM ledger"):
                try:
                    tx.execute(text)
                except DatabaseError as error:
                    seen.append(error)

    with pytest.raises(PoisonedTransactionError):
        stubborn()

    assert [type(it) for it in seen] == [DatabaseError, PoisonedTransactionError, PoisonedTransactionError]


def test_a_mistake_in_the_parameters_poisons_too(app: Stepfast) -> None:
    def forgetful() -> None:
        with app.transaction() as tx:
            tx.execute(INSERT, {"id": "a", "amount": 1})
            with pytest.raises(Exception, match="amount"):
                tx.execute(INSERT, {"id": "b"})

    with pytest.raises(PoisonedTransactionError):
        forgetful()

    assert booked(app) == {}


def test_a_bulk_statement_that_fails_poisons_too(app: Stepfast) -> None:
    def careless() -> None:
        with app.transaction() as tx, pytest.raises(ConstraintError):
            tx.execute_many(INSERT, [{"id": "a", "amount": 1}, {"id": "a", "amount": 2}])

    with pytest.raises(PoisonedTransactionError):
        careless()

    assert booked(app) == {}


def test_a_savepoint_heals(app: Stepfast) -> None:
    rows.change(app, INSERT, id="taken", amount=1)
    job = register_work(app).enqueue()

    def attempt(tx: Transaction) -> None:
        with pytest.raises(ConstraintError), tx.savepoint():
            tx.execute_many(INSERT, [{"id": "undone", "amount": 2}, {"id": "taken", "amount": 2}])
        with tx.savepoint():
            tx.execute(INSERT, {"id": "kept", "amount": 3})

    commit_step(app, take(app), Done(), book("before"), Call(attempt), book("after"))

    assert booked(app) == {"taken": 1, "before": 1, "kept": 3, "after": 1}
    assert rows.state(app, job.id) == "done"


def test_savepoints_nest(app: Stepfast) -> None:
    def give_up(tx: Transaction) -> None:
        with tx.savepoint():
            tx.execute(INSERT, {"id": "outer", "amount": 1})
            with pytest.raises(ConstraintError), tx.savepoint():
                tx.execute(INSERT, {"id": "outer", "amount": 2})
            tx.execute(INSERT, {"id": "inner", "amount": 1})
            raise TheirError

    with app.transaction() as tx:
        with pytest.raises(TheirError):
            give_up(tx)
        tx.execute(INSERT, {"id": "kept", "amount": 1})

    assert booked(app) == {"kept": 1}


def test_an_error_swallowed_inside_a_savepoint_cannot_be_released(app: Stepfast) -> None:
    def swallow() -> None:
        with app.transaction() as tx, tx.savepoint(), pytest.raises(DatabaseError):
            tx.execute("INSERT INTO no_such_table VALUES (1)")

    with pytest.raises(PoisonedTransactionError):
        swallow()


@pytest.mark.parametrize(
    "text",
    [
        "COMMIT",
        " rollback ",
        "BEGIN",
        "START TRANSACTION",
        "SAVEPOINT mine",
        "/* now */ COMMIT",
        "-- now\nCOMMIT",
    ],
)
def test_ending_the_transaction_is_not_the_effects_business(app: Stepfast, text: str) -> None:
    register_work(app).enqueue()
    held = take(app)

    with pytest.raises(DatabaseError):
        commit_step(app, held, Done(), book("a"), Call(lambda tx: tx.execute(text)))

    assert booked(app) == {}
    assert rows.state(app, held.job_id) == "leased"


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1; COMMIT",
        "SELECT ';'; -- a comment\n END",
        "SELECT 1;;prepare transaction 'later'",
        "DO $$ BEGIN COMMIT; END $$",  # refused by the server itself
    ],
)
def test_a_commit_hidden_behind_another_statement_is_refused(app: Stepfast, text: str) -> None:
    register_work(app).enqueue()
    held = take(app)

    with pytest.raises(DatabaseError):
        commit_step(app, held, Done(), book("before"), Call(lambda tx: tx.execute(text)), book("after"))

    assert booked(app) == {}
    assert rows.state(app, held.job_id) == "leased"


@pytest.mark.only_on("postgresql")
def test_the_words_of_a_function_s_body_are_its_own(app: Stepfast) -> None:
    with app.transaction() as tx:
        tx.execute(
            "CREATE FUNCTION twice(n INTEGER) RETURNS INTEGER LANGUAGE plpgsql AS $body$ BEGIN RETURN 2 * n; END $body$"
        )

        assert tx.query("SELECT twice(4) AS n, '; COMMIT' AS said") == [{"n": 8, "said": "; COMMIT"}]


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE extra (id INTEGER)",
        "ALTER TABLE ledger ADD COLUMN note VARCHAR(10)",
        "DROP TABLE ledger",
        "TRUNCATE ledger",
        "LOCK TABLES ledger WRITE",
        "/* a comment */ CREATE TABLE extra (id INTEGER)",
        "SET autocommit = 1",
    ],
)
def test_a_statement_that_commits_by_itself_is_refused(app: Stepfast, text: str) -> None:
    register_work(app).enqueue()
    held = take(app)

    with pytest.raises(DatabaseError):
        commit_step(app, held, Done(), book("a"), Call(lambda tx: tx.execute(text)))

    assert booked(app) == {}
    assert rows.state(app, held.job_id) == "leased"


@pytest.mark.only_on("mariadb")
def test_the_refusal_says_where_it_may_run(app: Stepfast) -> None:
    with pytest.raises(DatabaseError, match=r"app\.database\.connect\(\)"), app.transaction() as tx:
        tx.execute("CREATE TABLE extra (id INTEGER)")

    with closing(app.database.connect()) as connection:
        connection.execute("CREATE TABLE extra (id INTEGER)")
    assert rows.count(app, "extra") == 0


@pytest.mark.only_on("mariadb")
def test_a_commit_by_ddl_that_slipped_through_stops_everything_after_it(app: Stepfast) -> None:
    """A stored procedure can hide one: what follows must not run outside the transaction."""
    connection = app.database.connect()
    connection.execute("CREATE OR REPLACE PROCEDURE hidden() BEGIN CREATE TABLE extra (id INTEGER); END")
    connection.close()
    register_work(app).enqueue()
    held = take(app)

    with pytest.raises(PoisonedTransactionError):
        commit_step(app, held, Done(), Call(lambda tx: tx.execute("CALL hidden()")), book("after"))

    assert booked(app) == {}
    assert rows.state(app, held.job_id) == "leased"


@pytest.mark.only_on("sqlite", "postgresql")
def test_ddl_is_part_of_the_transaction_where_the_database_can(app: Stepfast) -> None:
    register_work(app).enqueue()
    held = take(app)

    def fail(_: Transaction) -> None:
        raise TheirError

    with pytest.raises(TheirError):
        commit_step(
            app, held, Done(), Call(lambda tx: tx.execute("CREATE TABLE extra (id INTEGER)")), Call(fail)
        )

    with pytest.raises(DatabaseError):
        rows.query(app, "SELECT * FROM extra")


def deadlock(app: Stepfast, tx: Transaction) -> None:
    """Make `tx` the victim of a deadlock: it holds `a` and wants `b`, the other holds `b`, wants `a` and weighs more."""
    holds_b = threading.Event()

    def other_side() -> None:
        with app.transaction() as other:
            for n in range(50):
                other.execute(INSERT, {"id": f"weight {n}", "amount": 0})
            other.execute("UPDATE ledger SET amount = amount + 10 WHERE id = 'b'")
            holds_b.set()
            other.execute("UPDATE ledger SET amount = amount + 10 WHERE id = 'a'")

    tx.execute("UPDATE ledger SET amount = amount + 1 WHERE id = 'a'")
    thread = threading.Thread(target=other_side)
    thread.start()
    assert holds_b.wait(10)
    wait_until_somebody_waits(app)
    try:
        tx.execute("UPDATE ledger SET amount = amount + 1 WHERE id = 'b'")
    finally:
        if tx.dialect.name == "mariadb":
            thread.join()


@pytest.mark.only_on("mariadb")
def test_a_swallowed_deadlock_cannot_be_committed(app: Stepfast) -> None:
    """The server has forgotten the whole transaction, fence included; what followed would be committed alone."""
    rows.change(app, INSERT, id="a", amount=0)
    rows.change(app, INSERT, id="b", amount=0)
    register_work(app).enqueue()
    held = take(app)

    def swallow(tx: Transaction) -> None:
        with pytest.raises(ContentionError):
            deadlock(app, tx)

    with pytest.raises(DatabaseError):
        commit_step(app, held, Done(), Call(swallow), book("after"))

    assert {entry: amount for entry, amount in booked(app).items() if entry in {"a", "b", "after"}} == {
        "a": 10,
        "b": 10,
    }
    assert rows.state(app, held.job_id) == "leased"


@pytest.mark.only_on("mariadb")
def test_no_savepoint_heals_a_deadlock(app: Stepfast) -> None:
    rows.change(app, INSERT, id="a", amount=0)
    rows.change(app, INSERT, id="b", amount=0)

    def attempt() -> None:
        with app.transaction() as tx:
            with pytest.raises(ContentionError), tx.savepoint():
                deadlock(app, tx)
            tx.execute(INSERT, {"id": "after", "amount": 1})

    with pytest.raises(DatabaseError):
        attempt()

    assert "after" not in booked(app)


@pytest.mark.only_on("mariadb")
def test_a_swallowed_deadlock_asks_for_the_whole_transaction_again(app: Stepfast) -> None:
    """A deadlock is no failure of the job: the effects are applied again, and no attempt is charged."""
    rows.change(app, INSERT, id="a", amount=0)
    rows.change(app, INSERT, id="b", amount=0)

    def swallow() -> None:
        with app.transaction() as tx, pytest.raises(ContentionError):
            deadlock(app, tx)

    with pytest.raises(ContentionError):
        swallow()


# Rule 8: acknowledged in a batch, each under its own fence


@pytest.mark.parametrize("results", [True, False], ids=["with results", "without results"])
def test_a_batch_with_some_fences_lost_archives_exactly_the_others(app: Stepfast, results: bool) -> None:  # noqa: FBT001 - a fact
    register_work(app).enqueue_many([{"n": n} for n in range(10)])
    held = [*claim(app, limit=5), *claim(app, limit=5)]
    lost = {held[1].job_id, held[7].job_id, held[8].job_id}
    for job_id in lost:
        rows.change(app, "UPDATE stepfast_job SET fence = fence + 1 WHERE id = :id", id=job_id)

    with app.transaction() as tx:
        mine = finish_many(tx, held, {it.job_id: f'{{"n":"{it.job_id}"}}' for it in held if results})

    kept = {it.job_id for it in held} - lost
    assert set(mine) == kept
    archived = rows.query(app, "SELECT id, state, result FROM stepfast_archive")
    found = {row["id"]: row["result"] and json.loads(row["result"]) for row in archived}
    assert found == {it: {"n": it} if results else None for it in kept}
    left = rows.query(app, "SELECT id, state FROM stepfast_job")
    assert {row["id"] for row in left} == lost
    assert {row["state"] for row in left} == {"leased"}


def test_a_batch_with_every_fence_lost_archives_nothing(app: Stepfast) -> None:
    register_work(app).enqueue_many([{"n": n} for n in range(3)])
    held = claim(app, limit=3)
    rows.change(app, "UPDATE stepfast_job SET fence = fence + 1")

    with app.transaction() as tx:
        mine = finish_many(tx, held)

    assert mine == []
    assert (rows.count(app, "stepfast_job"), rows.count(app, "stepfast_archive")) == (3, 0)


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_job_that_is_taken_over_during_the_batch_is_not_archived(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    """Two statements with the fence in both would archive two and delete one at READ COMMITTED."""
    register_work(app).enqueue_many([{"n": n} for n in range(2)])
    held = claim(app, limit=2)
    outcome: list[list[str]] = []

    def acknowledge_both() -> None:
        with another_app().transaction() as tx:
            outcome.append(finish_many(tx, held))

    thread = threading.Thread(target=acknowledge_both)
    with app.transaction() as tx:
        tx.execute("UPDATE stepfast_job SET fence = fence + 1 WHERE id = :id", {"id": held[0].job_id})
        thread.start()
        wait_until_somebody_waits(app)
    thread.join()

    assert outcome == [[held[1].job_id]]
    assert rows.state(app, held[0].job_id) == "leased"
    assert rows.state(app, held[1].job_id) == "done"


def test_the_archive_tolerates_an_id_that_is_there(app: Stepfast) -> None:
    """A job that came twice by some other way must not fail for ever at its end: it keeps its first ending."""
    job = register_work(app).enqueue(n=1)
    commit_step(app, take(app), Done({"first": True}))
    rows.change(app, f"INSERT INTO stepfast_job (id, kind, payload) VALUES ('{job.id}', 'work', '{{}}')")

    commit_step(app, take(app), Done({"second": True}))

    row = rows.ended(app, job.id)
    assert row is not None
    assert json.loads(row["result"]) == {"first": True}
    assert rows.live(app, job.id) is None


# Rule 6: an unknown commit is decided by the fences


def break_commit(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Break the connection before or after the server gets the next COMMIT; either way no answer comes."""
    left = [1]

    def cut(moment: str, text: str) -> None:
        if (moment, text) == (when, "COMMIT") and left:
            left.clear()
            raise UnreachableError("the line went dead")

    monkeypatch.setattr(Connection, "watch", staticmethod(cut))


def fate(app: Stepfast, held: Lease) -> CommitState:
    with app.transaction() as tx:
        return commit_states(tx, [held])[held.job_id]


LASTING: list[Ending] = [
    Done({"kept": 1}),
    Continue({"page": 2}),
    Snooze("1m"),
    Again(timedelta(minutes=1), "error", "error"),
    Again(timedelta(minutes=1), "error", "error", charged=False),
    Bury("error", "error"),
    Reject("bad"),
    Stop("cancelled"),
    GiveBack(),
]


@pytest.mark.parametrize("ending", LASTING, ids=repr)
def test_a_commit_that_happened_although_nobody_said_so_is_found(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch, ending: Ending
) -> None:
    register_work(app).enqueue()
    held = take(app)

    break_commit(monkeypatch, "after")
    with pytest.raises(UnknownCommitError):
        commit_step(app, held, ending)

    assert fate(app, held) is CommitState.COMMITTED
    assert rows.state(app, held.job_id) != "leased"


@pytest.mark.parametrize("ending", LASTING, ids=repr)
def test_a_commit_that_never_happened_may_be_tried_again(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch, ending: Ending
) -> None:
    register_work(app).enqueue()
    held = take(app)

    break_commit(monkeypatch, "before")
    with pytest.raises(UnknownCommitError):
        commit_step(app, held, ending)

    assert fate(app, held) is CommitState.OPEN
    commit_step(app, held, ending)
    assert fate(app, held) is CommitState.COMMITTED


def test_a_continuation_that_stayed_is_found_committed_by_the_fence_it_consumed(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    held = take(app)

    new_fence = commit_step(app, held, Continue(2), stay=True)

    row = rows.live(app, job.id)
    assert row is not None
    assert (row["state"], row["fence"], row["committed_fence"]) == ("leased", new_fence, held.fence)
    assert new_fence != held.fence
    assert fate(app, held) is CommitState.COMMITTED


def test_a_step_that_somebody_else_has_is_superseded(app: Stepfast) -> None:
    register_work(app).enqueue()
    old = take(app, ALICE)
    commit_step(app, old, GiveBack())
    new = take(app, BOB)
    commit_step(app, new, Again(timedelta(0), "error", "error"))

    assert fate(app, old) is CommitState.SUPERSEDED
    assert fate(app, new) is CommitState.COMMITTED


def test_a_step_that_somebody_else_ended_is_superseded(app: Stepfast) -> None:
    register_work(app).enqueue()
    old = take(app, ALICE)
    rows.change(app, "UPDATE stepfast_job SET state = 'ready', fence = 5, owner = NULL")
    commit_step(app, take(app, BOB), Done())

    assert fate(app, old) is CommitState.SUPERSEDED


def test_a_job_that_is_nowhere_is_superseded(app: Stepfast) -> None:
    register_work(app).enqueue()
    held = take(app)
    rows.change(app, "DELETE FROM stepfast_job")

    assert fate(app, held) is CommitState.SUPERSEDED


@pytest.mark.only_on("postgresql", "mariadb")
def test_deciding_waits_for_a_ghost_that_may_still_commit(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    register_work(app).enqueue()
    held = take(app)
    found: list[CommitState] = []
    decider = another_app()
    thread = threading.Thread(target=lambda: found.append(fate(decider, held)))

    with app.transaction() as ghost:
        finish_many(ghost, [held])
        thread.start()
        wait_until_somebody_waits(app)
    thread.join()

    assert found == [CommitState.COMMITTED]


@pytest.mark.only_on("postgresql")
def test_a_commit_that_the_server_turned_into_a_rollback_is_not_believed(app: Stepfast) -> None:
    def lie() -> None:
        with app.transaction() as tx:
            tx.execute(INSERT, {"id": "a", "amount": 1})
            with pytest.raises(ConstraintError):
                tx.execute(INSERT, {"id": "a", "amount": 1})
            tx._poison = None  # as if we had not noticed

    with pytest.raises(PoisonedTransactionError, match="ROLLBACK"):
        lie()


# Staying with the worker


def test_a_continuation_stays_when_nobody_has_a_reason_against_it(app: Stepfast) -> None:
    work = register_work(app)
    job = work.enqueue(priority=3)
    held = take(app)
    work.enqueue(priority=3)

    fence = commit_step(app, held, Continue({"page": 2}), book("page 1"), stay=True)

    row = rows.live(app, job.id)
    assert row is not None
    assert (row["state"], row["owner"], row["fence"], row["step"]) == ("leased", ALICE, fence, 1)
    assert booked(app) == {"page 1": 1}


def paused(app: Stepfast) -> None:
    rows.change(app, "INSERT INTO stepfast_queue (id, paused_at) VALUES ('default', 1)")


def more_urgent(app: Stepfast) -> None:
    register_work(app).enqueue(priority=1)


@pytest.mark.parametrize("reason", [paused, more_urgent])
def test_a_continuation_does_not_stay_in_the_way(app: Stepfast, reason: Callable[[Stepfast], None]) -> None:
    job = register_work(app).enqueue()
    held = take(app)
    reason(app)

    fence = commit_step(app, held, Continue(2), stay=True)

    row = rows.live(app, job.id)
    assert row is not None
    assert (fence, row["state"], row["owner"], row["step"]) == (None, "ready", None, 1)


@pytest.mark.parametrize(
    "ending",
    [Continue(2), Continue(2, delay="1h"), Snooze("1h"), Again(timedelta(0), "e", "e"), GiveBack()],
    ids=repr,
)
@pytest.mark.parametrize("stay", [False, True])
def test_a_job_that_was_asked_to_stop_does_not_live_on(app: Stepfast, ending: Ending, stay: bool) -> None:  # noqa: FBT001 - a parameter
    job = register_work(app).enqueue()
    held = take(app)
    rows.change(app, "UPDATE stepfast_job SET cancel_at = 1")

    commit_step(app, held, ending, stay=stay)

    assert rows.state(app, job.id) == "cancelled"


def test_a_job_that_was_done_before_it_heard_that_it_should_stop_is_done(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    held = take(app)
    rows.change(app, "UPDATE stepfast_job SET cancel_at = 1")

    commit_step(app, held, Done())

    assert rows.state(app, job.id) == "done"
