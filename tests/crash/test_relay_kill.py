"""A worker dies or freezes while it sends: every message arrives at least once, under one id, in order."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest

from tests.support import rows
from tests.support.http_receiver import SECRET, Answer

if TYPE_CHECKING:
    from tests.crash.workers import Fleet
    from tests.support.http_receiver import HttpReceiver


@pytest.fixture(autouse=True)
def _may_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_WEBHOOK_SECRETS", SECRET)
    monkeypatch.setenv("STEPFAST_WEBHOOK_ALLOW", "127.0.0.1")


def stage(fleet: Fleet, receiver: HttpReceiver, count: int = 3) -> list[str]:
    return [fleet.app.send_webhook(receiver.url(), data=n).id for n in range(count)]


def messages(fleet: Fleet) -> list[tuple[str, int]]:
    found = rows.query(fleet.app, "SELECT state, attempts FROM stepfast_outbox ORDER BY seq")
    return [(row["state"], row["attempts"]) for row in found]


def expire(fleet: Fleet) -> None:
    """Let the lease of the destination run out."""
    assert rows.change(fleet.app, "UPDATE stepfast_destination SET leased_until = 1")


def first_occurrences(receiver: HttpReceiver) -> list[str]:
    return list(dict.fromkeys(receiver.ids))


def test_a_worker_that_is_killed_while_it_sends_is_followed_by_another(
    fleet: Fleet, receiver: HttpReceiver
) -> None:
    ids = stage(fleet, receiver)
    killed, go_on = threading.Event(), threading.Event()
    receiver.answer = lambda _: Answer(before=lambda: killed.is_set() or go_on.wait(30))
    victim = fleet.worker()
    rows.eventually(lambda: receiver.received)

    victim.kill()
    killed.set()
    go_on.set()
    fleet.worker()
    rows.eventually(lambda: messages(fleet) == [("sent", 1)] * 3, 40)  # by itself, when the lease has run out

    assert receiver.ids == [ids[0], *ids]


def test_what_was_answered_and_not_recorded_is_sent_again(fleet: Fleet, receiver: HttpReceiver) -> None:
    ids = stage(fleet, receiver)
    answering, recording = threading.Event(), threading.Event()

    def before() -> None:
        if not answering.is_set():
            answering.set()
            recording.wait(30)  # until nobody can record

    receiver.answer = lambda _: Answer(before=before)
    victim = fleet.worker()
    assert answering.wait(30)

    with fleet.app.transaction() as tx:  # holds the row, and SQLite's one writer
        tx.execute("UPDATE stepfast_destination SET leased_until = leased_until + 1")
        recording.set()
        rows.eventually(lambda: receiver.answered)
        victim.kill()
    expire(fleet)
    fleet.worker()
    rows.eventually(lambda: messages(fleet) == [("sent", 1)] * 3)

    assert receiver.ids == [ids[0], *ids]


def test_a_worker_that_froze_while_it_sent_records_nothing_when_it_thaws(
    fleet: Fleet, receiver: HttpReceiver
) -> None:
    ids = stage(fleet, receiver)
    first, thaw = threading.Event(), threading.Event()

    def before() -> None:
        if not first.is_set():
            first.set()
            thaw.wait(60)

    receiver.answer = lambda _: Answer(before=before)
    victim = fleet.worker()
    assert first.wait(30)

    victim.signal(signal.SIGSTOP)
    expire(fleet)
    fleet.worker()
    rows.eventually(lambda: messages(fleet) == [("sent", 1)] * 3)
    thaw.set()
    victim.signal(signal.SIGCONT)
    victim.says("message.refused")

    assert messages(fleet) == [("sent", 1)] * 3
    assert first_occurrences(receiver) == ids
    assert receiver.ids == [ids[0], *ids]


def test_four_workers_two_of_which_die_lose_nothing_and_keep_the_order(
    fleet: Fleet, receiver: HttpReceiver
) -> None:
    expected: dict[str, list[str]] = {path: [] for path in ("/a", "/b", "/c")}
    for n in range(20):
        for path, ids in expected.items():
            ids.append(fleet.app.send_webhook(receiver.url(path), data=n).id)
    receiver.answer = lambda _: Answer(500 if len(receiver.received) % 7 == 0 else 204)
    workers = [fleet.worker() for _ in range(4)]
    rows.eventually(lambda: len(receiver.received) > 5)

    for victim in workers[:2]:
        victim.kill()

    def hurry() -> bool:
        rows.change(fleet.app, "UPDATE stepfast_outbox SET due_at = 1 WHERE state = 'waiting'")
        return rows.count(fleet.app, "stepfast_outbox", "state <> 'sent'") == 0

    rows.eventually(hurry, 60)

    for path, ids in expected.items():
        assert list(dict.fromkeys(it.id for it in receiver.received if it.path == path)) == ids
