"""Calls with the same key become one job: merged, debounced, or the successor of the running one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from stepfast import Continue, Done, Job, Step, Stepfast, Transaction
from stepfast.errors import ArgumentsError, ConfigurationError, DuplicateKeyError
from stepfast.jobs.cancel import cancel_jobs
from stepfast.jobs.dead_letters import revive
from stepfast.jobs.debounce import free_successors, promote_successor, promote_successors
from stepfast.jobs.enqueue import insert_job
from stepfast.jobs.outcome import Again, Bury
from stepfast.jobs.state import NewJob
from stepfast.testing import drain
from tests.support import rows
from tests.support.engine import claim, commit_step, register_work, take, together
from tests.support.engine import drain as work_until_done

CONTENDERS = 8
AGAIN = Again(timedelta(hours=1), "no answer", "no answer")


def collecting(app: Stepfast) -> Job[..., None]:
    """A kind of job whose calls add up."""
    return app.job(merge="append")(collect)


def collect(ids: list[int], label: str = "") -> None:
    """Nothing: these tests play the worker."""


def payload(app: Stepfast, job_id: str) -> Any:
    row = rows.live(app, job_id)
    assert row is not None
    return json.loads(row["payload"])


def go(app: Stepfast) -> int:
    with app.transaction() as tx:
        return promote_successors(tx)


# Merging


def test_a_merged_call_adds_to_the_job_that_waits(app: Stepfast) -> None:
    work = collecting(app)
    first = work.enqueue(ids=[1], label="old", key="k")

    second = work.enqueue(ids=[2, 3], key="k", on_duplicate="merge")
    third = work.enqueue(ids=[], label="new", key="k", on_duplicate="merge")

    assert [(it.id, it.created) for it in (second, third)] == [(first.id, False)] * 2
    assert payload(app, first.id) == {"ids": [1, 2, 3], "label": "new"}
    assert rows.count(app, "stepfast_job") == 1


def test_unless_it_is_told_otherwise_a_job_takes_over_what_the_new_call_gives(app: Stepfast) -> None:
    @app.job()
    def mail(to: str, subject: str = "", body: str = "") -> None: ...

    first = mail.enqueue(to="a", subject="s", key="k", on_duplicate="merge")

    mail.enqueue(to="b", body="text", key="k", on_duplicate="merge")

    assert payload(app, first.id) == {"to": "b", "subject": "s", "body": "text"}


def test_a_function_of_the_users_own_merges(app: Stepfast) -> None:
    def larger(waiting: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        return {"n": max(waiting["n"], new["n"])}

    @app.job(merge=larger)
    def reach(n: int) -> None: ...

    first = reach.enqueue(n=5, key="k")

    reach.enqueue(n=3, key="k", on_duplicate="merge")

    assert payload(app, first.id) == {"n": 5}


@pytest.mark.parametrize(
    ("merge", "sentence"),
    [(lambda *_: None, "return the arguments as a dict"), (lambda *_: {"n": "x"}, "wrong arguments")],
)
def test_a_merge_that_makes_no_arguments_is_refused_and_changes_nothing(
    app: Stepfast, merge: Any, sentence: str
) -> None:
    @app.job(merge=merge)
    def reach(n: int) -> None: ...

    first = reach.enqueue(n=5, key="k")

    with pytest.raises(ArgumentsError, match=sentence):
        reach.enqueue(n=3, key="k", on_duplicate="merge")

    assert payload(app, first.id) == {"n": 5}


def test_a_merge_of_an_unknown_name_is_refused_in_words(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match="'update', 'append' or a function"):
        app.job(merge="add")(collect)  # type: ignore[arg-type]


def test_a_merged_call_keeps_the_time_and_raises_the_priority(app: Stepfast) -> None:
    work = collecting(app)
    first = work.enqueue(ids=[1], key="k", delay="1h")
    before = rows.live(app, first.id)

    work.enqueue(ids=[2], key="k", on_duplicate="merge", priority=4)
    work.enqueue(ids=[3], key="k", on_duplicate="merge", priority=1)

    row = rows.live(app, first.id)
    assert row is not None
    assert before is not None
    assert (row["state"], row["ready_at"], row["priority"]) == ("scheduled", before["ready_at"], 4)


def test_a_call_of_another_kind_is_a_job_of_its_own(app: Stepfast) -> None:
    holder = register_work(app).enqueue(n=1, key="k")

    collected = collecting(app).enqueue(ids=[1], key="k", on_duplicate="merge")
    debounced = collecting(app).enqueue(ids=[2], key="k", debounce="1m", on_duplicate="merge")

    assert (collected.created, debounced.id) == (True, collected.id)
    assert holder.id != collected.id


def test_an_id_is_merged_once(app: Stepfast) -> None:
    work = collecting(app)
    holder = work.enqueue(ids=[1], key="k")

    again = [work.enqueue(ids=[2], key="k", id="task-1", on_duplicate="merge") for _ in range(3)]

    assert [(it.id, it.created) for it in again] == [(holder.id, False)] * 3
    assert payload(app, holder.id)["ids"] == [1, 2]


# The job that runs, and the one that comes after it


def test_a_job_that_runs_gets_one_successor_which_takes_in_all_further_calls(app: Stepfast) -> None:
    work = collecting(app)
    first = work.enqueue(ids=[1], key="k")
    running = take(app)

    second = work.enqueue(ids=[2], key="k", on_duplicate="merge")
    third = work.enqueue(ids=[3], key="k", on_duplicate="merge")

    assert second.created
    assert (third.id, third.created) == (second.id, False)
    assert (go(app), claim(app)) == (0, [])
    commit_step(app, running, Done())
    assert go(app) == 1
    after = take(app)
    assert (after.job_id, json.loads(after.payload)["ids"]) == (second.id, [2, 3])
    commit_step(app, after, Done())
    assert [rows.state(app, it.id) for it in (first, second)] == ["done", "done"]


def test_the_successor_holds_the_key_when_its_turn_has_come(app: Stepfast) -> None:
    work = collecting(app)
    work.enqueue(ids=[1], key="k")
    running = take(app)
    second = work.enqueue(ids=[2], key="k", on_duplicate="merge")
    commit_step(app, running, Done())
    go(app)

    with pytest.raises(DuplicateKeyError) as refusal:
        work.enqueue(ids=[3], key="k")

    assert refusal.value.job_id == second.id
    row = rows.live(app, second.id)
    assert row is not None
    assert (row["unique_key"], row["held_by"], row["state"]) == ("k", None, "ready")


def test_a_job_in_the_middle_of_its_steps_has_begun(app: Stepfast) -> None:
    work = collecting(app)
    first = work.enqueue(ids=[1], key="k")
    commit_step(app, take(app), Continue({"page": 2}))

    second = work.enqueue(ids=[2], key="k", on_duplicate="merge")

    assert second.created
    assert payload(app, first.id)["ids"] == [1]


def test_a_job_that_waits_for_its_next_try_keeps_its_key(app: Stepfast) -> None:
    """No other job can take the key meanwhile, so the retry cannot collide."""
    work = collecting(app)
    first = work.enqueue(ids=[1], key="k")
    running = take(app)
    second = work.enqueue(ids=[2], key="k", on_duplicate="merge")
    commit_step(app, running, AGAIN)

    with pytest.raises(DuplicateKeyError) as refusal:
        work.enqueue(ids=[3], key="k")
    assert (refusal.value.job_id, go(app)) == (first.id, 0)

    rows.make_due(app, first.id)
    commit_step(app, take(app), Done())
    assert go(app) == 1
    assert take(app).job_id == second.id


def test_a_call_that_joins_a_job_between_its_tries_is_another_step_for_services_outside(
    app: Stepfast,
) -> None:
    work = collecting(app)
    first = work.enqueue(ids=[1], key="k")
    before = take(app)
    commit_step(app, before, AGAIN)
    waits_until = rows.live(app, first.id)

    work.enqueue(ids=[2], key="k", on_duplicate="merge")

    row = rows.live(app, first.id)
    assert row is not None
    assert waits_until is not None
    assert (row["step"], row["failures"], row["ready_at"]) == (before.step + 1, 1, waits_until["ready_at"])
    assert payload(app, first.id)["ids"] == [1, 2]


def test_a_job_that_died_is_followed_and_not_revived_while_its_successor_is_unfinished(
    app: Stepfast,
) -> None:
    work = collecting(app)
    dead = work.enqueue(ids=[1], key="k")
    running = take(app)
    second = work.enqueue(ids=[2], key="k", on_duplicate="merge")
    commit_step(app, running, Bury("broken", "broken"))
    assert go(app) == 1

    with pytest.raises(DuplicateKeyError) as refusal, app.transaction() as tx:
        revive(tx, dead.id)
    assert refusal.value.job_id == second.id

    commit_step(app, take(app), Done())
    with app.transaction() as tx:
        revive(tx, dead.id)
    assert rows.state(app, dead.id) == "ready"


def test_a_successor_that_was_cancelled_is_revived_under_the_key_itself(app: Stepfast) -> None:
    work = collecting(app)
    work.enqueue(ids=[1], key="k")
    running = take(app)
    second = work.enqueue(ids=[2], key="k", on_duplicate="merge")
    with app.transaction() as tx:
        cancel_jobs(tx, [second.id], "not needed")

    with pytest.raises(DuplicateKeyError), app.transaction() as tx:
        revive(tx, second.id)
    commit_step(app, running, Done())
    with app.transaction() as tx:
        revive(tx, second.id)

    row = rows.live(app, second.id)
    assert row is not None
    assert row["unique_key"] == "k"


def test_a_key_that_was_taken_meanwhile_is_left_to_its_holder(app: Stepfast) -> None:
    work = collecting(app)
    work.enqueue(ids=[1], key="k")
    running = take(app)
    second = work.enqueue(ids=[2], key="k", on_duplicate="merge")
    commit_step(app, running, Done())
    with app.database.reading() as tx:
        (free,) = free_successors(tx)
    faster = NewJob(id="faster", queue="default", kind="collect", payload='{"ids":[3]}', key="k")
    with app.transaction() as tx:
        insert_job(tx, faster)

    with app.transaction() as tx:
        taken = promote_successor(tx, *free)

    assert (taken, free[0]) == (False, second.id)
    commit_step(app, take(app), Done())
    assert rows.state(app, faster.id) == "done"
    assert go(app) == 1


def test_what_is_asked_last_is_done_last(app: Stepfast) -> None:
    """The job has ended, and its successor is not promoted yet: a new job would overtake it."""
    work = register_work(app)
    work.enqueue(n=1, key="k")
    running = take(app)
    second = work.enqueue(n=2, key="k", on_duplicate="merge")
    commit_step(app, running, Done())

    third = work.enqueue(n=3, key="k", on_duplicate="merge")
    fourth, other = work.enqueue_many([{"n": 4}, {"n": 5}], keys=["k", "other"], on_duplicate="merge")

    assert [(it.id, it.created) for it in (third, fourth)] == [(second.id, False)] * 2
    assert other.created
    assert payload(app, second.id) == {"n": 4}


def test_what_is_asked_last_is_done_last_although_the_job_is_tried_again(app: Stepfast) -> None:
    work = register_work(app)
    first = work.enqueue(n=1, key="k")
    running = take(app)
    second = work.enqueue(n=2, key="k", on_duplicate="merge")
    commit_step(app, running, AGAIN)

    third = work.enqueue(n=3, key="k", on_duplicate="merge")

    assert (third.id, third.created) == (second.id, False)
    assert [payload(app, it.id) for it in (first, second)] == [{"n": 1}, {"n": 3}]


def waiting_for_its_turn(app: Stepfast) -> tuple[Job[..., None], str]:
    """A successor that is not promoted yet although its job has ended."""
    work = collecting(app)
    work.enqueue(ids=[1], key="k")
    running = take(app)
    second = work.enqueue(ids=[2], key="k", on_duplicate="merge")
    commit_step(app, running, Done())
    return work, second.id


def test_a_call_that_skips_or_refuses_finds_the_successor_whose_turn_has_come(app: Stepfast) -> None:
    work, successor = waiting_for_its_turn(app)

    skipped = work.enqueue(ids=[3], key="k", on_duplicate="skip")
    many = work.enqueue_many([{"ids": [4]}, {"ids": [5]}], keys=["k", "other"], on_duplicate="skip")
    with app.transaction() as tx, pytest.raises(DuplicateKeyError) as refusal:
        work.enqueue(ids=[6], key="k", tx=tx)

    assert (skipped.id, skipped.created) == (successor, False)
    assert [(it.id, it.created) for it in many] == [(successor, False), (many[1].id, True)]
    assert refusal.value.job_id == successor
    assert rows.count(app, "stepfast_job") == 2
    assert go(app) == 1
    assert payload(app, successor) == {"ids": [2]}


def test_a_replacement_before_the_successors_turn_is_the_last_that_is_done(app: Stepfast) -> None:
    work, successor = waiting_for_its_turn(app)

    newest = work.enqueue(ids=[3], key="k", on_duplicate="replace")

    assert newest.created
    assert rows.state(app, successor) == "cancelled"
    assert (go(app), payload(app, newest.id)) == (0, {"ids": [3]})


def test_a_replacement_of_a_job_that_runs_replaces_what_waits_behind_it(app: Stepfast) -> None:
    work = collecting(app)
    first = work.enqueue(ids=[1], key="k")
    take(app)
    successor = work.enqueue(ids=[2], key="k", on_duplicate="merge")

    newest = work.enqueue(ids=[3], key="k", on_duplicate="replace")

    assert (newest.id, newest.created) == (first.id, False)
    row = rows.ended(app, successor.id)
    assert row is not None
    assert (row["state"], "newer call" in row["last_error"]) == ("cancelled", True)
    commit_step(app, take(app), Done())
    assert (go(app), rows.count(app, "stepfast_job")) == (0, 0)


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_job_that_runs_can_end_while_a_transaction_that_follows_it_is_open(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    work = collecting(app)
    first = work.enqueue(ids=[1], key="k")
    running = take(app)

    with app.transaction() as tx:
        work.enqueue(ids=[2], key="k", on_duplicate="merge", tx=tx)
        commit_step(another_app(), running, Done())

    assert rows.state(app, first.id) == "done"
    assert go(app) == 1


def test_a_worker_runs_the_successor_when_the_job_before_it_has_ended(app: Stepfast) -> None:
    inside, go_on, seen = threading.Event(), threading.Event(), []

    @app.job(merge="append")
    def gather(ids: list[int]) -> None:
        seen.append(ids)
        inside.set()
        assert go_on.wait(10)

    gather.enqueue(ids=[1], key="k")
    with app.worker():
        assert inside.wait(10)
        for n in (2, 3):
            gather.enqueue(ids=[n], key="k", on_duplicate="merge")
        go_on.set()
        rows.eventually(lambda: rows.count(app, "stepfast_job") == 0)

    assert seen == [[1], [2, 3]]


def test_a_drain_runs_successors_too(app: Stepfast) -> None:
    @app.job(merge="append")
    def gather(ids: list[int]) -> None:
        if ids == [1]:
            gather.enqueue(ids=[2], key="k", on_duplicate="merge")

    gather.enqueue(ids=[1], key="k")

    assert len(drain(app).runs) == 2
    assert rows.count(app, "stepfast_job") == 0


# At the same time


def test_of_many_who_merge_at_once_nothing_is_lost(another_app: Callable[[], Stepfast]) -> None:
    jobs = [collecting(another_app()) for _ in range(CONTENDERS)]

    answers = together(
        [partial(job.enqueue, ids=[n], key="k", on_duplicate="merge") for n, job in enumerate(jobs)]
    )

    app = jobs[0].app
    assert isinstance(app, Stepfast)
    assert sum(it.created for it in answers) == 1
    assert sorted(payload(app, answers[0].id)["ids"]) == list(range(CONTENDERS))


def test_batches_that_share_keys_lose_nothing(another_app: Callable[[], Stepfast]) -> None:
    jobs = [collecting(another_app()) for _ in range(4)]
    keys = [f"order:{n}" for n in range(20)]
    orders = [keys, keys[::-1], keys[10:] + keys[:10], [*keys[:10], *keys[:10]]]

    answers = together(
        [
            partial(
                job.enqueue_many,
                [{"ids": [100 * who + n]} for n in range(20)],
                keys=order,
                on_duplicate="merge",
            )
            for who, (job, order) in enumerate(zip(jobs, orders, strict=True))
        ]
    )

    app = jobs[0].app
    assert isinstance(app, Stepfast)
    found = rows.query(app, "SELECT payload FROM stepfast_job")
    assert len(found) == len(keys)
    assert sum(it.created for answer in answers for it in answer) == len(keys)
    stored = [n for row in found for n in json.loads(row["payload"])["ids"]]
    assert sorted(stored) == [100 * who + n for who in range(4) for n in range(20)]


def insert(tx: Transaction, row: dict[str, Any]) -> None:
    tx.execute("INSERT INTO ledger VALUES (:id, :amount)", row)


@pytest.mark.usefixtures("ledger")
def test_what_joins_while_workers_run_is_done_once(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    """Against claims, ends and each other: every item gets its row, and a second one would be refused."""
    per_caller, running, together_at_once = 15, threading.Lock(), []

    def write(step: Step, ids: list[int]) -> None:
        together_at_once.append(not running.acquire(blocking=False))
        for n in ids:
            row = {"id": f"{n}", "amount": n}
            step.effect(partial(insert, row=row))
        running.release()

    app.job(merge="append")(write)
    callers = [another_app().job(merge="append")(write) for _ in range(3)]

    def call(who: int, job: Job[..., None]) -> None:
        for n in range(per_caller):
            job.enqueue(ids=[100 * who + n], key="k", on_duplicate="merge")

    with app.worker(concurrency=4):
        answers = together([partial(call, who, job) for who, job in enumerate(callers)])
        rows.eventually(lambda: rows.count(app, "stepfast_job") == 0)

    assert answers == [None] * 3
    assert rows.count(app, "stepfast_archive", "state <> 'done'") == 0
    assert rows.count(app, "ledger") == 3 * per_caller
    assert not any(together_at_once)


# Debounce


def waits(app: Stepfast, job_id: str) -> int:
    """For how many seconds from now."""
    row = rows.live(app, job_id)
    assert row is not None
    assert row["state"] in {"scheduled", "held"}
    return round((int(row["ready_at"]) - rows.now(app)) / rows.SECOND)


def test_a_debounced_job_begins_after_the_last_call_with_its_payload(app: Stepfast) -> None:
    work = register_work(app)
    first = work.enqueue(n=1, key="k", debounce="1h")
    rows.change(app, "UPDATE stepfast_job SET ready_at = ready_at - :half", half=rows.HOUR // 2)

    second = work.enqueue(n=2, key="k", debounce="1h")

    assert (second.id, second.created) == (first.id, False)
    assert waits(app, first.id) == pytest.approx(3600, abs=20)
    assert payload(app, first.id) == {"n": 2}


def test_a_debounced_job_waits_at_most_so_long_after_the_first_call(app: Stepfast) -> None:
    work = register_work(app)
    job = work.enqueue(n=1, key="k", debounce="1h", at_most="2h")
    rows.change(
        app, "UPDATE stepfast_job SET created_at = created_at - :past", past=rows.HOUR + rows.HOUR // 2
    )

    work.enqueue(n=2, key="k", debounce="1h", at_most="2h")

    assert waits(app, job.id) == pytest.approx(1800, abs=20)


def test_a_debounced_job_that_was_ready_waits_again(app: Stepfast) -> None:
    work = register_work(app)
    job = work.enqueue(n=1, key="k", debounce="1h")
    rows.make_due(app, job.id)

    work.enqueue(n=2, key="k", debounce="1h")

    assert waits(app, job.id) == pytest.approx(3600, abs=20)
    assert claim(app) == []


def test_debounced_calls_may_be_merged(app: Stepfast) -> None:
    work = collecting(app)
    job = work.enqueue(ids=[1], key="k", debounce="1h", on_duplicate="merge")

    work.enqueue(ids=[2], key="k", debounce="1h", on_duplicate="merge")

    assert payload(app, job.id)["ids"] == [1, 2]


def test_a_debounced_call_does_not_interrupt_the_job_that_runs(app: Stepfast) -> None:
    work = register_work(app)
    work.enqueue(n=1, key="k", debounce="1h")
    rows.change(app, "UPDATE stepfast_job SET state = 'ready', ready_at = 1")
    running = take(app)

    second = work.enqueue(n=2, key="k", debounce="1h")
    third = work.enqueue(n=3, key="k", debounce="1h")

    commit_step(app, running, Done())
    assert (go(app), third.id) == (1, second.id)
    assert (rows.state(app, second.id), payload(app, second.id)) == ("scheduled", {"n": 3})
    assert waits(app, second.id) == pytest.approx(3600, abs=20)


def test_a_debounced_call_does_not_bring_the_next_try_forward(app: Stepfast) -> None:
    work = register_work(app)
    job = work.enqueue(n=1, key="k")
    commit_step(app, take(app), AGAIN)

    work.enqueue(n=2, key="k", debounce="1s")

    assert waits(app, job.id) == pytest.approx(3600, abs=20)
    assert payload(app, job.id) == {"n": 2}


# Windows, and options that contradict each other


def test_a_key_is_remembered_until_its_window_is_over(app: Stepfast) -> None:
    work = register_work(app)
    first = work.enqueue(n=1, key="k", unique_per="1d")
    commit_step(app, take(app), Done())

    again = work.enqueue(n=2, key="k", unique_per="1d", on_duplicate="skip")

    (kept,) = rows.query(app, "SELECT until_at FROM stepfast_key")
    assert (again.id, again.created) == (first.id, False)
    assert kept["until_at"] % rows.DAY == 0
    assert 0 < kept["until_at"] - rows.now(app) <= rows.DAY
    rows.change(app, "UPDATE stepfast_key SET until_at = until_at - :day", day=rows.DAY)
    assert work.enqueue(n=3, key="k", unique_per="1d", on_duplicate="skip").created
    (renewed,) = rows.query(app, "SELECT until_at FROM stepfast_key")
    assert renewed["until_at"] % rows.DAY == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"on_duplicate": "join"}, "'reject', 'skip', 'replace' or 'merge'"),
        ({"key": "k", "on_duplicate": "merge", "unique_for": "1h"}, "merge' or unique_for"),
        ({"key": "k" * 121, "on_duplicate": "merge"}, "1 to 120 characters"),
        ({"key": "(after) k"}, "waiting successors"),
        ({"debounce": "1s"}, "needs a key"),
        ({"key": "k", "at_most": "1s"}, "give debounce"),
        ({"key": "k", "debounce": "2s", "at_most": "1s"}, "shorter than debounce"),
        ({"key": "k", "debounce": "1s", "delay": "1s"}, "debounce or delay"),
        ({"key": "k", "debounce": "1s", "on_duplicate": "skip"}, "'replace' .* or 'merge'"),
        ({"key": "k", "debounce": "1s", "unique_per": "1h"}, "debounce or unique_per"),
        ({"key": "k", "unique_for": "1h", "unique_per": "1h"}, "not both"),
        ({"unique_per": "1h"}, "needs a key"),
        ({"key": "k", "unique_per": 0}, "unique_per=0 is no time at all"),
        ({"key": "k", "unique_for": "0s"}, "unique_for='0s' is no time at all"),
        ({"key": "k", "unique_for": ""}, "unique_for: '' is not a duration"),
        ({"key": "k", "unique_for": False}, "unique_for: False is not a duration"),
    ],
    ids=repr,
)
def test_options_that_contradict_each_other_are_refused_in_words(
    app: Stepfast, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        register_work(app).enqueue(**options)

    assert (rows.count(app, "stepfast_job"), rows.count(app, "stepfast_key")) == (0, 0)


def test_a_batch_with_a_key_too_long_to_join_is_refused(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match="1 to 120 characters"):
        collecting(app).enqueue_many(
            [{"ids": [1]}, {"ids": [2]}], keys=["k", "k" * 125], on_duplicate="merge"
        )

    assert rows.count(app, "stepfast_job") == 0


def test_a_worker_does_what_was_debounced_and_merged(app: Stepfast) -> None:
    seen: list[list[int]] = []

    @app.job(merge="append")
    def gather(ids: list[int]) -> None:
        seen.append(ids)

    for n in range(5):
        gather.enqueue(ids=[n], key="k", debounce="300ms", at_most="5s", on_duplicate="merge")
    work_until_done(app)

    assert [n for ids in seen for n in ids] == [0, 1, 2, 3, 4]
