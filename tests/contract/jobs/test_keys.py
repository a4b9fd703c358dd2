"""Unique keys and ids: one job for each, while it is unfinished or for a period, also under concurrent enqueues."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Continue, Done, Job, Stepfast
from stepfast.database.connection import Transaction
from stepfast.errors import ConfigurationError, DuplicateIdError, DuplicateKeyError, LeaseLostError
from stepfast.jobs import keys
from stepfast.jobs.commit import commit
from stepfast.jobs.dead_letters import revive
from stepfast.jobs.debounce import promote_successors
from stepfast.jobs.keys import forget_expired_keys
from stepfast.jobs.outcome import Bury
from tests.support import rows
from tests.support.engine import commit_step, register_work, take, together

if TYPE_CHECKING:
    from stepfast.database.statement import Statement
    from stepfast.jobs.lease import Lease
    from stepfast.results.enqueued_job import EnqueuedJob

CONTENDERS = 8


def app_of(job: Job[..., Any]) -> Stepfast:
    assert isinstance(job.app, Stepfast)
    return job.app


def finish(app: Stepfast) -> str:
    """Take the next job and do it; returns its id."""
    lease = take(app)
    commit_step(app, lease, Done())
    return lease.job_id


def test_a_second_job_with_the_key_is_refused(app: Stepfast) -> None:
    work = register_work(app)
    first = work.enqueue(n=1, key="order:A-17")

    with pytest.raises(DuplicateKeyError) as refusal:
        work.enqueue(n=2, key="order:A-17")

    assert refusal.value.job_id == first.id
    assert "on_duplicate='skip'" in str(refusal.value)
    assert rows.count(app, "stepfast_job") == 1


def test_a_key_that_ends_in_a_space_is_refused(app: Stepfast) -> None:
    """MariaDB compares texts without the spaces at their ends."""
    with pytest.raises(ConfigurationError, match="ends in a space"):
        register_work(app).enqueue(key="order:A-17 ")

    assert rows.count(app, "stepfast_job") == 0


def test_a_skipped_duplicate_answers_with_the_job_that_is_there(app: Stepfast) -> None:
    work = register_work(app)
    first = work.enqueue(n=1, key="k")

    second = work.enqueue(n=2, key="k", on_duplicate="skip")

    assert (second.id, second.created) == (first.id, False)
    row = rows.live(app, first.id)
    assert row is not None
    assert json.loads(row["payload"]) == {"n": 1}


def test_a_replacement_takes_over_payload_and_time(app: Stepfast) -> None:
    work = register_work(app)
    first = work.enqueue(n=1, key="k")

    second = work.enqueue(n=2, key="k", on_duplicate="replace", priority=4, delay="1h", queue="later")

    assert (second.id, second.created) == (first.id, False)
    row = rows.live(app, first.id)
    assert row is not None
    assert json.loads(row["payload"]) == {"n": 2}
    assert (row["state"], row["priority"], row["queue"]) == ("scheduled", 4, "later")
    assert rows.count(app, "stepfast_job") == 1


def test_a_replacement_supersedes_the_one_who_runs_the_old_payload(app: Stepfast) -> None:
    work = register_work(app)
    job = work.enqueue(n=1, key="k")
    old = take(app)

    work.enqueue(n=2, key="k", on_duplicate="replace")

    with pytest.raises(LeaseLostError):
        commit_step(app, old, Done())
    new = take(app)
    assert (new.job_id, json.loads(new.payload), new.attempt) == (job.id, {"n": 2}, 1)
    commit_step(app, new, Done())
    assert rows.state(app, job.id) == "done"


def test_a_replacement_forgets_where_the_old_payload_stood(app: Stepfast) -> None:
    work = register_work(app)
    job = work.enqueue(n=1, key="k")
    commit_step(app, take(app), Continue({"page": 7}))

    work.enqueue(n=2, key="k", on_duplicate="replace")

    row = rows.live(app, job.id)
    assert row is not None
    assert (row["step"], row["cursor_json"], row["committed_fence"]) == (2, None, None)


def test_a_replacement_is_no_repetition_for_services_outside(app: Stepfast) -> None:
    """The pair of job and step is the idempotency key."""
    work = register_work(app)
    work.enqueue(n=1, key="k")
    old = take(app)

    work.enqueue(n=2, key="k", on_duplicate="replace")

    new = take(app)
    assert (old.job_id, old.step) != (new.job_id, new.step)


@pytest.mark.parametrize("choice", ["reject", "skip", "replace"])
def test_the_key_is_free_when_the_job_is_done(app: Stepfast, choice: Any) -> None:
    work = register_work(app)
    work.enqueue(n=1, key="k")
    done = finish(app)

    second = work.enqueue(n=2, key="k", on_duplicate=choice)

    assert second.created
    assert second.id != done


@pytest.mark.parametrize("choice", ["reject", "skip", "replace"])
def test_of_many_who_ask_at_once_one_creates_the_job(
    another_app: Callable[[], Stepfast], choice: Any
) -> None:
    jobs = [register_work(another_app()) for _ in range(CONTENDERS)]

    answers = together(
        [partial(job.enqueue, n=n, key="k", on_duplicate=choice) for n, job in enumerate(jobs)]
    )

    assert rows.count(app_of(jobs[0]), "stepfast_job") == 1
    created = [it for it in answers if not isinstance(it, Exception) and it.created]
    refused = [it for it in answers if isinstance(it, DuplicateKeyError)]
    assert len(created) == 1
    assert len(refused) == (CONTENDERS - 1 if choice == "reject" else 0)
    assert not [it for it in answers if isinstance(it, Exception) and it not in refused]
    assert {it.id for it in answers if not isinstance(it, Exception)} == {created[0].id}


def test_two_batches_that_share_keys_create_each_job_once(another_app: Callable[[], Stepfast]) -> None:
    jobs = [register_work(another_app()) for _ in range(4)]
    keys = [f"order:{n}" for n in range(40)]
    orders = [keys, keys[::-1], keys[20:] + keys[:20], keys]

    answers = together(
        [
            partial(job.enqueue_many, [{"n": n} for n in range(40)], keys=order, on_duplicate="skip")
            for job, order in zip(jobs, orders, strict=True)
        ]
    )

    assert rows.count(app_of(jobs[0]), "stepfast_job") == len(keys)
    assert sum(it.created for answer in answers for it in answer) == len(keys)


def test_a_batch_with_a_held_key_is_refused_as_a_whole(app: Stepfast) -> None:
    work = register_work(app)
    work.enqueue(n=1, key="b")

    with pytest.raises(DuplicateKeyError):
        work.enqueue_many([{"n": 2}, {"n": 3}, {"n": 4}], keys=["a", "b", None])

    assert rows.count(app, "stepfast_job") == 1


def test_a_key_twice_in_one_batch_is_one_job(app: Stepfast) -> None:
    work = register_work(app)

    first, second = work.enqueue_many([{"n": 1}, {"n": 2}], keys=["k", "k"], on_duplicate="skip")

    assert (first.id == second.id, first.created, second.created) == (True, True, False)


def test_keys_that_differ_in_case_or_accent_are_different(app: Stepfast) -> None:
    work = register_work(app)

    made = [work.enqueue(n=1, key=key).created for key in ("k", "K", "ḱ", "k.")]

    assert made == [True] * 4


def test_a_dead_letter_has_released_its_key(app: Stepfast) -> None:
    work = register_work(app)
    dead = work.enqueue(n=1, key="k")
    commit_step(app, take(app), Bury("broken", "broken"))

    second = work.enqueue(n=2, key="k")

    assert rows.state(app, dead.id) == "dead"
    assert second.created


def test_a_dead_letter_is_not_revived_while_its_key_is_taken(app: Stepfast) -> None:
    work = register_work(app)
    dead = work.enqueue(n=1, key="k")
    commit_step(app, take(app), Bury("broken", "broken"))
    holder = work.enqueue(n=2, key="k")

    with pytest.raises(DuplicateKeyError) as refusal, app.transaction() as tx:
        revive(tx, dead.id)
    assert refusal.value.job_id == holder.id
    assert rows.state(app, dead.id) == "dead"

    finish(app)
    with app.transaction() as tx:
        revive(tx, dead.id)
    with pytest.raises(DuplicateKeyError):
        work.enqueue(n=3, key="k")


# Rule 3: the same request arrives again before, during and after the transaction that completes the first.


def by_id(work: Job[..., None]) -> EnqueuedJob[None]:
    return work.enqueue(n=1, id="task-1")


def by_period(work: Job[..., None]) -> EnqueuedJob[None]:
    return work.enqueue(n=1, key="k", unique_for="1h", on_duplicate="skip")


REQUESTS = pytest.mark.parametrize("request_again", [by_id, by_period])


@contextmanager
def completing(app: Stepfast, lease: Lease) -> Iterator[Callable[[], None]]:
    """The transaction that completes the job is open, everything is written, only its COMMIT is missing."""
    written, commit_now, committed = threading.Event(), threading.Event(), threading.Event()

    def complete() -> None:
        with app.transaction() as tx:
            commit(tx, lease, Done())
            written.set()
            assert commit_now.wait(10)
        committed.set()

    def let_it_commit() -> None:
        commit_now.set()
        assert committed.wait(10)

    thread = threading.Thread(target=complete)
    thread.start()
    try:
        assert written.wait(10)
        yield let_it_commit
    finally:
        commit_now.set()
        thread.join()


@REQUESTS
def test_a_duplicate_before_the_end_is_the_same_job(
    app: Stepfast, request_again: Callable[[Job[..., None]], EnqueuedJob[None]]
) -> None:
    work = register_work(app)
    first = request_again(work)

    while_ready = request_again(work)
    take(app)
    while_leased = request_again(work)

    assert first.created
    assert [(it.id, it.created) for it in (while_ready, while_leased)] == [(first.id, False)] * 2
    assert rows.count(app, "stepfast_job") == 1


@REQUESTS
def test_a_duplicate_during_the_completing_transaction_is_not_run_again(
    app: Stepfast,
    another_app: Callable[[], Stepfast],
    request_again: Callable[[Job[..., None]], EnqueuedJob[None]],
) -> None:
    first = request_again(register_work(app))
    duplicate = register_work(another_app())

    with completing(app, take(app)) as let_it_commit, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(request_again, duplicate)
        rows.eventually(lambda: answer.done() or answer.running())
        let_it_commit()
        assert (answer.result(10).id, answer.result().created) == (first.id, False)

    assert rows.state(app, first.id) == "done"
    assert rows.count(app, "stepfast_job") == 0


@pytest.mark.only_on("postgresql", "mariadb")
@REQUESTS
def test_a_duplicate_that_does_not_even_wait_for_the_completing_transaction_is_not_run_again(
    app: Stepfast,
    another_app: Callable[[], Stepfast],
    request_again: Callable[[Job[..., None]], EnqueuedJob[None]],
) -> None:
    first = request_again(register_work(app))
    duplicate = register_work(another_app())

    with completing(app, take(app)):
        again = request_again(duplicate)

    assert (again.id, again.created) == (first.id, False)
    assert rows.state(app, first.id) == "done"
    assert rows.count(app, "stepfast_job") == 0


@REQUESTS
def test_a_duplicate_after_the_end_is_not_run_again(
    app: Stepfast, request_again: Callable[[Job[..., None]], EnqueuedJob[None]]
) -> None:
    work = register_work(app)
    first = request_again(work)
    finish(app)

    again = request_again(work)

    assert (again.id, again.created) == (first.id, False)
    assert rows.count(app, "stepfast_job") == 0


@REQUESTS
def test_a_duplicate_after_its_job_was_pruned_is_not_run_again(
    app: Stepfast, request_again: Callable[[Job[..., None]], EnqueuedJob[None]]
) -> None:
    work = register_work(app)
    first = request_again(work)
    finish(app)
    rows.change(app, "DELETE FROM stepfast_archive")

    again = request_again(work)

    assert (again.id, again.created) == (first.id, False)
    assert rows.count(app, "stepfast_job") == 0


@REQUESTS
def test_of_many_same_requests_at_once_one_is_run(
    another_app: Callable[[], Stepfast], request_again: Callable[[Job[..., None]], EnqueuedJob[None]]
) -> None:
    jobs = [register_work(another_app()) for _ in range(CONTENDERS)]

    answers = together([partial(request_again, job) for job in jobs])

    assert sum(answer.created for answer in answers) == 1
    assert len({answer.id for answer in answers}) == 1
    assert rows.count(app_of(jobs[0]), "stepfast_job") == 1


def test_an_id_whose_key_is_held_is_met_as_the_call_says(app: Stepfast) -> None:
    work = register_work(app)
    holder = work.enqueue(n=1, key="k")

    with pytest.raises(DuplicateKeyError):
        work.enqueue(n=2, id="task-1", key="k")
    skipped = work.enqueue(n=2, id="task-2", key="k", on_duplicate="skip")

    assert (skipped.id, skipped.created) == (holder.id, False)
    assert rows.count(app, "stepfast_job") == 1


def test_an_id_that_was_refused_may_be_tried_again(app: Stepfast) -> None:
    work = register_work(app)
    work.enqueue(n=1, key="k")
    with pytest.raises(DuplicateKeyError):
        work.enqueue(n=2, id="task-1", key="k")
    finish(app)

    again = work.enqueue(n=2, id="task-1", key="k")

    assert (again.id, again.created) == ("task-1", True)


def test_an_id_that_was_refused_in_a_transaction_that_went_on_is_not_remembered(app: Stepfast) -> None:
    work = register_work(app)
    holder = work.enqueue(n=1, key="k")
    with app.transaction() as tx, pytest.raises(DuplicateKeyError) as refusal:
        work.enqueue(n=2, id="task-1", key="k", tx=tx)

    again = work.enqueue(n=2, id="task-1")

    assert refusal.value.job_id == holder.id
    assert (again.id, again.created) == ("task-1", True)
    assert rows.state(app, "task-1") == "ready"


def test_an_id_that_was_skipped_is_not_remembered(app: Stepfast) -> None:
    work = register_work(app)
    holder = work.enqueue(n=1, key="k")
    skipped = work.enqueue(n=2, id="task-1", key="k", on_duplicate="skip")
    finish(app)

    again = work.enqueue(n=2, id="task-1", key="k", on_duplicate="skip")

    assert (skipped.id, skipped.created) == (holder.id, False)
    assert (again.id, again.created) == ("task-1", True)


def test_an_id_whose_payload_another_job_took_over_is_remembered_for_that_job(app: Stepfast) -> None:
    work = register_work(app)
    holder = work.enqueue(n=1, key="k")
    replaced = work.enqueue(n=2, id="task-1", key="k", on_duplicate="replace")
    finish(app)

    again = work.enqueue(n=2, id="task-1", key="k", on_duplicate="replace")

    assert [(it.id, it.created) for it in (replaced, again)] == [(holder.id, False)] * 2
    assert rows.count(app, "stepfast_job") == 0


def test_a_key_that_is_forgotten_while_we_look_is_ours(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, looks = Transaction.first, []

    def forgotten_before(tx: Transaction, statement: Statement, **parameters: Any) -> Any:
        if statement is keys.REMEMBERED_HOLDER:
            looks.append(1)
            if len(looks) == 1:
                tx.execute("DELETE FROM stepfast_key")
        return look(tx, statement, **parameters)

    monkeypatch.setattr(Transaction, "first", forgotten_before)
    work = register_work(app)

    job = work.enqueue(n=1, id="task-1")

    assert (job.created, rows.state(app, "task-1")) == (True, "ready")
    assert [row["id"] for row in rows.query(app, "SELECT id FROM stepfast_key")] == ["id:task-1"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"key": 5}, "a text, not int"),
        ({"key": "a\0b"}, "NUL"),
        ({"key": "\udc80"}, "half a character"),
        ({"id": 5}, "id 5"),
        ({"queue": 5}, "queue 5"),
        ({"priority": "x"}, "priority 'x'"),
        ({"priority": 1.0}, r"priority 1\.0"),
        ({"priority": True}, "priority True"),
        ({"run_at": "2026-01-01"}, "not a datetime"),
        ({"run_at": datetime.max.replace(tzinfo=UTC)}, "beyond the year 9999"),
        ({"delay": "9999999d"}, "beyond the year 9999"),
        ({"key": "k", "unique_for": "9999999d"}, "beyond the year 9999"),
    ],
    ids=repr,
)
def test_options_that_cannot_be_stored_are_refused_in_words(
    app: Stepfast, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        register_work(app).enqueue(**options)

    assert (rows.count(app, "stepfast_job"), rows.count(app, "stepfast_key")) == (0, 0)


def test_one_text_is_not_a_list_of_keys(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match="give a list"):
        register_work(app).enqueue_many([{"n": 1}, {"n": 2}, {"n": 3}], keys="abc")

    assert rows.count(app, "stepfast_job") == 0


def test_an_id_of_a_job_that_came_by_plain_sql_is_known(app: Stepfast) -> None:
    rows.change(app, "INSERT INTO stepfast_job (id, kind, payload) VALUES ('task-1', 'work', '{}')")

    again = register_work(app).enqueue(id="task-1")

    assert (again.id, again.created) == ("task-1", False)
    assert rows.count(app, "stepfast_job") == 1


def test_a_remembered_key_is_refused_until_its_period_is_over(app: Stepfast) -> None:
    work = register_work(app)
    work.enqueue(n=1, key="k", unique_for="1h")
    finish(app)
    with pytest.raises(DuplicateKeyError):
        work.enqueue(n=2, key="k", unique_for="1h")

    rows.change(app, "UPDATE stepfast_key SET until_at = until_at - :hour", hour=rows.HOUR)

    assert work.enqueue(n=2, key="k", unique_for="1h").created


def test_of_many_who_want_a_key_whose_period_is_over_one_gets_it(
    another_app: Callable[[], Stepfast],
) -> None:
    jobs = [register_work(another_app()) for _ in range(CONTENDERS)]
    jobs[0].enqueue(n=0, key="k", unique_for="1h")
    finish(app_of(jobs[0]))
    rows.change(app_of(jobs[0]), "UPDATE stepfast_key SET until_at = 1")

    answers = together(
        [partial(job.enqueue, n=1, key="k", unique_for="1h", on_duplicate="skip") for job in jobs]
    )

    assert sum(answer.created for answer in answers) == 1
    assert rows.count(app_of(jobs[0]), "stepfast_job") == 1


def test_a_remembered_key_can_be_replaced_while_its_job_is_unfinished(app: Stepfast) -> None:
    work = register_work(app)
    first = work.enqueue(n=1, key="k", unique_for="1h")

    again = work.enqueue(n=2, key="k", unique_for="1h", on_duplicate="replace")

    row = rows.live(app, first.id)
    assert row is not None
    assert (again.id, json.loads(row["payload"])) == (first.id, {"n": 2})


def test_a_key_skipped_for_a_live_job_is_remembered_for_that_job(app: Stepfast) -> None:
    work = register_work(app)
    first = work.enqueue(n=1, key="k")
    skipped = work.enqueue(n=2, key="k", unique_for="1h", on_duplicate="skip")
    finish(app)

    later = work.enqueue(n=3, key="k", unique_for="1h", on_duplicate="skip")

    assert skipped.id == later.id == first.id


def test_keys_are_forgotten_only_after_their_time(app: Stepfast) -> None:
    work = register_work(app)
    work.enqueue(n=1, key="kept", unique_for="1h")
    work.enqueue(n=1, key="over", unique_for="1h")
    rows.change(app, "UPDATE stepfast_key SET until_at = 1 WHERE id = 'unique:work over'")

    with app.transaction() as tx:
        forgotten = forget_expired_keys(tx, 100)

    assert forgotten == 1
    assert [row["id"] for row in rows.query(app, "SELECT id FROM stepfast_key")] == ["unique:work kept"]


# Kinds


def send(app: Stepfast) -> Job[..., Any]:
    """Register another kind of job than `work`."""
    return app.job(name="send")(lambda n=0: n)


@pytest.mark.parametrize(
    "options",
    [
        {"on_duplicate": "reject"},
        {"on_duplicate": "skip"},
        {"on_duplicate": "replace"},
        {"on_duplicate": "merge"},
        {"on_duplicate": "skip", "unique_for": "1h"},
        {"on_duplicate": "replace", "unique_per": "1h"},
    ],
    ids=repr,
)
def test_jobs_of_two_kinds_may_have_the_same_key(app: Stepfast, options: dict[str, Any]) -> None:
    first = register_work(app).enqueue(n=1, key="order-17", **options)

    second = send(app).enqueue(n=2, key="order-17", **options)

    assert (first.created, second.created) == (True, True)
    found = rows.query(app, "SELECT kind, payload FROM stepfast_job ORDER BY id")
    assert [(row["kind"], json.loads(row["payload"])) for row in found] == [
        ("work", {"n": 1}),
        ("send", {"n": 2}),
    ]


def test_many_jobs_of_two_kinds_may_have_the_same_keys(app: Stepfast) -> None:
    calls, wanted = [{"n": n} for n in range(3)], ["a", "b", "c"]
    register_work(app).enqueue_many(calls, keys=wanted, on_duplicate="skip")

    answers = send(app).enqueue_many(calls, keys=wanted, on_duplicate="skip")

    assert all(it.created for it in answers)
    assert rows.count(app, "stepfast_job", "kind = 'send'") == 3


def test_a_call_replaces_the_job_of_its_own_kind_only(app: Stepfast) -> None:
    other = send(app)
    mine, theirs = other.enqueue(n=1, key="k"), register_work(app).enqueue(n=2, key="k")

    replaced = other.enqueue(n=3, key="k", on_duplicate="replace")

    stored = {
        row["id"]: json.loads(row["payload"])
        for row in rows.query(app, "SELECT id, payload FROM stepfast_job")
    }
    assert (replaced.id, stored) == (mine.id, {mine.id: {"n": 3}, theirs.id: {"n": 2}})


def test_a_successor_takes_the_key_of_its_own_kind_only(app: Stepfast) -> None:
    work, other = register_work(app), send(app)
    work.enqueue(n=1, key="k")
    running = take(app)
    successor = work.enqueue(n=2, key="k", on_duplicate="merge")
    beside = other.enqueue(n=3, key="k", on_duplicate="merge")
    replaced = other.enqueue(n=4, key="k", on_duplicate="replace")

    commit_step(app, running, Done())
    with app.transaction() as tx:
        assert promote_successors(tx) == 1

    assert (beside.created, replaced.id) == (True, beside.id)
    assert rows.state(app, successor.id) == "ready"


def test_a_dead_letter_is_revived_while_another_kind_has_its_key(app: Stepfast) -> None:
    dead = register_work(app).enqueue(n=1, key="k")
    commit_step(app, take(app), Bury("no", "no"))
    send(app).enqueue(n=2, key="k")

    with app.transaction() as tx:
        revive(tx, dead.id)

    assert rows.state(app, dead.id) == "ready"


@pytest.mark.parametrize("since", ["unfinished", "ended", "pruned"])
def test_the_id_of_another_kinds_job_is_refused_with_that_kind(app: Stepfast, since: str) -> None:
    register_work(app).enqueue(n=1, id="order-17")
    if since != "unfinished":
        finish(app)
    if since == "pruned":
        rows.change(app, "DELETE FROM stepfast_archive")

    with pytest.raises(
        DuplicateIdError, match=r"'order-17' is that of a job of kind 'work'.*send:order-17"
    ) as refusal:
        send(app).enqueue(n=2, id="order-17")

    assert (refusal.value.job_id, refusal.value.kind) == ("order-17", "work")
    assert rows.count(app, "stepfast_job", "kind = 'send'") == 0
    assert not register_work(app).enqueue(n=1, id="order-17").created


def test_the_id_of_another_kinds_job_that_came_by_plain_sql_is_refused(app: Stepfast) -> None:
    rows.change(app, "INSERT INTO stepfast_job (id, kind, payload) VALUES ('order-17', 'work', '{}')")

    with pytest.raises(DuplicateIdError):
        send(app).enqueue(id="order-17")

    assert rows.count(app, "stepfast_key") == 0


def test_of_two_kinds_that_want_one_id_at_once_one_gets_it_and_the_others_are_told(
    another_app: Callable[[], Stepfast],
) -> None:
    apps = [another_app() for _ in range(CONTENDERS)]
    jobs = [make(app) for app, make in zip(apps, [register_work, send] * (CONTENDERS // 2), strict=True)]

    def ask(job: Job[..., Any]) -> tuple[str, bool | str]:
        try:
            return job.kind.name, job.enqueue(n=1, id="order-17").created
        except DuplicateIdError as refusal:
            return job.kind.name, refusal.kind

    answers = together([partial(ask, job) for job in jobs])

    (stored,) = rows.query(apps[0], "SELECT kind FROM stepfast_job")
    winner = stored["kind"]
    half = CONTENDERS // 2
    assert sorted(str(it) for kind, it in answers if kind == winner) == ["False"] * (half - 1) + ["True"]
    assert [it for kind, it in answers if kind != winner] == [winner] * half


def test_the_longest_key_and_the_longest_id_fit(app: Stepfast) -> None:
    work = app.job(name="w" * 120)(lambda n: n)

    by_key = work.enqueue(n=1, key="k" * 128, unique_for="1h")
    by_id = work.enqueue(n=1, id="i" * 120)

    assert (by_key.created, by_id.created) == (True, True)


@pytest.mark.parametrize("key", ["", "k" * 129])
def test_a_key_that_does_not_fit_is_refused_with_its_length(app: Stepfast, key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"not {len(key)}"):
        register_work(app).enqueue(n=1, key=key)


def test_a_period_without_a_key_is_refused(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match="needs a key"):
        register_work(app).enqueue(n=1, unique_for="1h")
