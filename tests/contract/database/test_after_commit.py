"""Events of a transaction are told when it is committed: once, and not at all if it never is."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from stepfast import DuplicateKeyError, Step
from stepfast.database.connection import Connection, Transaction
from stepfast.database.database import persist
from stepfast.errors import ContentionError, UnknownCommitError, UnreachableError
from stepfast.jobs.rescue import declare_dead
from stepfast.telemetry import when_committed
from tests.support import rows
from tests.support.engine import drain, make_silent, register_work
from tests.support.events import hearing, named

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast
    from tests.support.events import Told


def names(told: Told) -> list[object]:
    return [facts["jobs"] for facts in named(told, "jobs.promoted")]


def tell(tx: Transaction, number: int) -> None:
    when_committed(tx, "jobs.promoted", jobs=number)


def tell_and_fail(tx: Transaction, number: int) -> None:
    tell(tx, number)
    raise ValueError("no")


def test_an_event_is_told_after_the_commit(app: Stepfast) -> None:
    with hearing() as told:
        with app.transaction() as tx:
            tell(tx, 1)
            assert not told
        assert names(told) == [1]


def test_an_event_of_a_transaction_that_is_rolled_back_is_not_told(app: Stepfast) -> None:
    with hearing() as told, pytest.raises(ValueError, match="no"), app.transaction() as tx:
        tell_and_fail(tx, 1)

    assert not names(told)


def test_an_event_of_a_savepoint_that_is_undone_is_not_told(app: Stepfast) -> None:
    with hearing() as told, app.transaction() as tx:
        tell(tx, 1)
        with pytest.raises(ValueError, match="no"), tx.savepoint():
            tell_and_fail(tx, 2)
        with tx.savepoint():
            tell(tx, 3)

    assert names(told) == [1, 3]


def test_work_that_is_done_again_after_a_deadlock_is_told_once(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.add_worker(app, 7, worker_id="w-7")
    make_silent(app, 7)
    fail_first_commit(monkeypatch, ContentionError("deadlock"))

    with hearing() as told:
        dead = persist(app.database, lambda tx: declare_dead(tx, me=0, trust_clock=True))

    assert dead == 1
    assert [it["dead_worker_id"] for it in named(told, "worker.declared-dead")] == ["w-7"]


def test_what_is_not_committed_is_not_told(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    rows.add_worker(app, 7, worker_id="w-7")
    make_silent(app, 7)
    fail_first_commit(monkeypatch, UnreachableError("gone"))

    with hearing() as told, pytest.raises((UnreachableError, UnknownCommitError)):
        persist(app.database, lambda tx: declare_dead(tx, me=0, trust_clock=True))

    assert not named(told, "worker.declared-dead")


def test_a_refused_call_is_told_although_its_transaction_is_rolled_back(app: Stepfast) -> None:
    work = register_work(app)
    work.enqueue(key="one")

    with hearing() as told, pytest.raises(DuplicateKeyError):
        work.enqueue(key="one")

    assert len(named(told, "duplicate.refused")) == 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_effects_whose_commit_is_unknown_are_told_once(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The fences tell whether it took place: if it did, so does the event; if not, the next try tells it."""

    @app.job()
    def work(step: Step) -> None:
        step.effect(lambda tx: tell(tx, 1))

    work.enqueue()
    fail_first_commit(monkeypatch, UnreachableError("gone"), moment, thread="stepfast-commit")

    with hearing() as told:
        drain(app)

    assert len(named(told, "commit.unknown")) == 1
    assert names(told).count(1) == 1


def fail_first_commit(
    monkeypatch: pytest.MonkeyPatch, error: Exception, moment: str = "before", thread: str = ""
) -> None:
    failed: list[str] = []

    def watch(phase: str, text: str) -> None:
        mine = threading.current_thread().name.startswith(thread)
        if (phase, text) == (moment, "COMMIT") and mine and not failed:
            failed.append(text)
            raise error

    hook: Callable[[str, str], None] = watch
    monkeypatch.setattr(Connection, "watch", staticmethod(hook))
