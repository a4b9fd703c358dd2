"""Every action of an operator writes an audit entry (who, what, why) in its own transaction: both are there, or neither."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.admin import dead_letters as dead_letter_actions
from stepfast.admin import jobs as actions
from stepfast.admin.audit import (
    OPERATOR,
    Actor,
    Command,
    Detail,
    actor_or_default,
    any_older,
    list_audit,
    prune,
    record,
)
from stepfast.errors import ConfigurationError, DuplicateKeyError, NotFoundError, StateError, StepfastError
from stepfast.jobs.dead_letters import Filter
from tests.support import rows
from tests.support.jobs_in_every_state import died, ended, expire, greeting, leased

if TYPE_CHECKING:
    from stepfast import Stepfast, Transaction
    from stepfast.admin.audit import AuditEntry
    from stepfast.admin.operator import Operator

ALICE = Actor("alice", "the printer is back")


def entries(app: Stepfast, **asked: Any) -> list[AuditEntry]:
    with app.reading() as tx:
        return list_audit(tx, **asked)


def only(app: Stepfast) -> AuditEntry:
    found = entries(app)
    assert len(found) == 1, found
    return found[0]


# What each action does to a job or queue that it finds; it returns the subject and how many rows it touches.


def cancel_a_waiting_job(app: Stepfast, operator: Operator) -> tuple[str, str, int]:
    job_id = greeting(app).enqueue().id
    operator.cancel(job_id)
    return "job.cancel", job_id, 1


def cancel_a_running_job(app: Stepfast, operator: Operator) -> tuple[str, str, int]:
    greeting(app).enqueue()
    (lease,) = leased(app)
    operator.cancel(lease.job_id)
    return "job.cancel", lease.job_id, 1


def revive_a_job(app: Stepfast, operator: Operator) -> tuple[str, str, int]:
    job_id = died(app, greeting(app))
    operator.retry(job_id)
    return "job.retry", job_id, 1


def hasten_a_job(app: Stepfast, operator: Operator) -> tuple[str, str, int]:
    job_id = greeting(app).enqueue(delay="1h").id
    operator.retry(job_id)
    return "job.retry", job_id, 1


def retry_dead_letters(app: Stepfast, operator: Operator) -> tuple[str, str, int]:
    greet = greeting(app)
    for _ in range(5):
        died(app, greet)
    operator.retry_dead_letters()
    return "dead-letters.retry", "all", 5


def purge_some_dead_letters(app: Stepfast, operator: Operator) -> tuple[str, str, int]:
    greet = greeting(app)
    died(app, greet, "KeyError: …")
    died(app, greet, "OSError: …")
    operator.purge_dead_letters(Filter(kind="greet", error_group="OSError: …"))
    return "dead-letters.purge", "kind=greet error=OSError: …", 1


def pause(app: Stepfast, operator: Operator) -> tuple[str, str, int]:
    del app
    operator.pause("mail")
    return "queue.pause", "mail", 1


def reset_leases(app: Stepfast, operator: Operator) -> tuple[str, str, int]:
    greet = greeting(app)
    greet.enqueue(), greet.enqueue()
    expire(app, leased(app, limit=2)[0])
    operator.reset_leases()
    return "leases.reset", "expired", 2


DEEDS = [
    cancel_a_waiting_job,
    cancel_a_running_job,
    revive_a_job,
    hasten_a_job,
    retry_dead_letters,
    purge_some_dead_letters,
    pause,
    reset_leases,
]


@pytest.mark.parametrize("deed", DEEDS)
def test_an_action_is_written_down_with_who_what_and_why(
    app: Stepfast,
    deed: Callable[[Stepfast, Operator], tuple[str, str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_letter_actions, "BATCH", 2)

    what, subject, touched = deed(app, app.operator.by("alice", reason="the printer is back"))

    entry = only(app)
    assert (entry.who, entry.why) == ("alice", "the printer is back")
    assert (entry.what, entry.subject, entry.touched) == (what, subject, touched)
    assert entry.ended_at is not None
    assert entry.ended_at >= entry.at


def test_resuming_a_queue_is_written_down_and_so_is_a_new_note(app: Stepfast) -> None:
    operator = app.operator.by("bob")
    operator.pause("mail", "lunch")
    operator.pause("mail", "dinner")
    operator.resume("mail")

    assert [(it.what, it.why) for it in reversed(entries(app))] == [
        ("queue.pause", "lunch"),
        ("queue.remark", "dinner"),
        ("queue.resume", None),
    ]


def test_one_dead_letter_is_retried_or_purged_under_its_id(app: Stepfast) -> None:
    greet = greeting(app)
    first, second = died(app, greet), died(app, greet)

    with app.transaction() as tx:
        dead_letter_actions.retry_dead_letter(tx, first, by=ALICE)
    with app.transaction() as tx:
        dead_letter_actions.purge_dead_letter(tx, second, by=ALICE)

    assert [(it.what, it.subject) for it in reversed(entries(app))] == [
        ("dead-letters.retry", first),
        ("dead-letters.purge", second),
    ]


def test_what_is_refused_or_changes_nothing_is_not_written_down(app: Stepfast) -> None:
    greet = greeting(app)
    greet.enqueue()
    done = ended(app)
    twin = died(app, greet, key="taken")
    waiting = greet.enqueue(key="taken").id
    operator = app.operator

    refusals: list[tuple[type[StepfastError], Callable[[], object]]] = [
        (StateError, lambda: operator.cancel(done)),
        (NotFoundError, lambda: operator.cancel("nobody")),
        (StateError, lambda: operator.retry(waiting)),
        (DuplicateKeyError, lambda: operator.retry(twin)),
    ]
    for refusal, act in refusals:
        with pytest.raises(refusal):
            act()
    assert operator.retry_dead_letters().refused == 1
    assert operator.purge_dead_letters(Filter(kind="unheard-of")) == 0
    assert not operator.resume("never paused")
    assert operator.reset_leases() == 0

    assert entries(app) == []


def test_an_action_that_is_rolled_back_leaves_no_row(app: Stepfast) -> None:
    job_id = greeting(app).enqueue().id

    def regret() -> None:
        with app.transaction() as tx:
            actions.cancel(tx, job_id, by=ALICE)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        regret()

    assert rows.state(app, job_id) == "ready"
    assert entries(app) == []


def test_an_action_that_cannot_be_written_down_does_not_happen(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = greeting(app).enqueue().id

    def fail(tx: Transaction, *_: object, **__: object) -> None:
        tx.execute("INSERT INTO no_such_table (id) VALUES (1)")

    monkeypatch.setattr(actions, "record", fail)
    with pytest.raises(StepfastError):
        app.operator.cancel(job_id)

    assert rows.state(app, job_id) == "ready"


def test_a_command_that_stops_in_the_middle_says_how_far_it_came(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    greet = greeting(app)
    for _ in range(5):
        died(app, greet)
    monkeypatch.setattr(dead_letter_actions, "BATCH", 2)

    def lose_patience(done: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dead_letter_actions.purge_dead(app.database, progress=lose_patience, by=ALICE)

    assert (only(app).touched, only(app).ended_at) == (4, None)
    assert rows.count(app, "stepfast_archive") == 1


def test_a_batch_that_is_run_again_after_a_deadlock_is_counted_once(app: Stepfast) -> None:
    from stepfast.errors import ContentionError

    command = Command(app.database, ALICE, "things.done", "all")
    tries = iter([True, False, True, False])

    def batch(tx: Transaction) -> tuple[None, int | None]:
        tx.execute("UPDATE stepfast_queue SET note = 'x'")
        if next(tries):
            raise ContentionError("deadlock")
        return None, 3

    command.run(batch)
    command.run(batch)
    command.end()

    assert only(app).touched == 6


def test_secrets_are_not_written_down(app: Stepfast) -> None:
    actor = Actor("alice", "postgresql://me:hunter2@host/db was down")
    detail: Detail = {"url": "mysql://me:hunter2@host/db", "api_key": "hunter2", "tries": 3, "nothing": None}

    with app.transaction() as tx:
        record(tx, actor, "feed.restart", "token=hunter2", detail=detail)

    entry = only(app)
    assert "hunter2" not in repr(entry)
    assert entry.detail == {"url": "mysql://me:***@host/db", "api_key": "***", "tries": 3}


def test_a_payload_is_not_written_down(app: Stepfast) -> None:
    job_id = greeting(app).enqueue(name="a secret name").id

    app.operator.cancel(job_id)

    assert "a secret name" not in repr(only(app))
    assert only(app).detail == {"state": "cancelled"}


def test_texts_of_any_length_fit(app: Stepfast) -> None:
    with app.transaction() as tx:
        record(tx, Actor("ä" * 500, "w" * 9_000), "x" * 500, "s" * 500)

    entry = only(app)
    assert (len(entry.who), len(entry.what), len(entry.subject), len(entry.why or "")) == (
        200,
        200,
        200,
        2_000,
    )


def test_who_nobody_names_is_the_environments_operator_or_the_user_of_this_host(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OPERATOR, raising=False)
    assert actor_or_default().name == f"{getpass.getuser()}@{socket.gethostname()}"

    monkeypatch.setenv(OPERATOR, "the night shift")
    app.operator.pause("mail")
    app.operator.by("carol").resume("mail")

    assert [it.who for it in entries(app)] == ["carol", "the night shift"]


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.delenv(OPERATOR, raising=False)
    monkeypatch.setattr(getpass, "getuser", nameless)

    assert actor_or_default().name.startswith("uid-")


def test_an_operator_must_have_a_name(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match="say who acts"):
        app.operator.by(" ")


def test_the_list_can_be_narrowed_and_paged(app: Stepfast) -> None:
    for number in range(5):
        who = "alice" if number % 2 else "bob"
        with app.transaction() as tx:
            record(tx, Actor(who), "queue.pause" if number < 3 else "queue.resume", f"q{number}")
    rows.change(app, "UPDATE stepfast_audit SET at = at - :day WHERE subject = 'q0'", day=rows.DAY)

    def subjects(**asked: Any) -> list[str]:
        return [it.subject for it in entries(app, **asked)]

    assert subjects() == ["q4", "q3", "q2", "q1", "q0"]
    assert subjects(who="alice") == ["q3", "q1"]
    assert subjects(what="queue.resume") == ["q4", "q3"]
    assert subjects(subject="q1") == ["q1"]
    assert subjects(since="1h") == ["q4", "q3", "q2", "q1"]
    first = entries(app, limit=2)
    second = entries(app, limit=2, before=first[-1].id)
    assert [it.subject for it in (*first, *second)] == ["q4", "q3", "q2", "q1"]
    with pytest.raises(NotFoundError, match="no audit entry"):
        entries(app, before="nothing")


def test_entries_of_one_instant_are_neither_left_out_nor_repeated_by_paging(app: Stepfast) -> None:
    for number in range(5):
        with app.transaction() as tx:
            record(tx, ALICE, "queue.pause", f"q{number}")
    rows.change(app, "UPDATE stepfast_audit SET at = 5")

    found: list[AuditEntry] = []
    while page := entries(app, limit=2, before=found[-1].id if found else None):
        found += page

    assert sorted(it.subject for it in found) == ["q0", "q1", "q2", "q3", "q4"]


def test_old_entries_are_forgotten_in_batches(app: Stepfast) -> None:
    for number in range(5):
        with app.transaction() as tx:
            record(tx, ALICE, "queue.pause", f"q{number}")
    rows.change(app, "UPDATE stepfast_audit SET at = at - :age WHERE subject <> 'q4'", age=401 * rows.DAY)

    def forget(tx: Transaction) -> int:
        return prune(tx, 400 * rows.DAY, 3)

    with app.reading() as tx:
        assert any_older(tx, 400 * rows.DAY)
    with app.transaction() as tx:
        assert forget(tx) == 3
    with app.transaction() as tx:
        assert forget(tx) == 1
        assert forget(tx) == 0
    with app.reading() as tx:
        assert not any_older(tx, 400 * rows.DAY)
    assert [it.subject for it in entries(app)] == ["q4"]
