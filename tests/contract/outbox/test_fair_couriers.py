"""A host that does not answer holds up its own webhooks, and nobody else's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from stepfast import Stepfast
from stepfast.clock import new_ids
from stepfast.outbox.destinations import WAITS_FOR_HOST, due_destinations
from stepfast.outbox.messages import WEBHOOK, destination_of
from stepfast.worker.relay import Relay
from tests.support import rows
from tests.support.events import hearing, named
from tests.support.http_receiver import SETTINGS, Answer, receiving_http

if TYPE_CHECKING:
    from tests.support.http_receiver import HttpReceiver

WAITING = """
    INSERT INTO stepfast_outbox (id, channel, destination, address, body, state, due_at, last_error)
    VALUES (:id, 'webhook', :destination, 'https://a.example/', '{}', 'waiting', :due_at, :last_error)
"""


@pytest.fixture
def over() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def silent(over: threading.Event) -> Iterator[HttpReceiver]:
    """A receiver that takes requests, and answers none before it is `over`."""
    with receiving_http() as found:
        found.answer = lambda _: Answer(before=lambda: over.wait(60))
        yield found
        over.set()  # before the server waits for its threads


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with receiving_http() as found:
        yield found


def test_many_urls_of_one_host_do_not_hold_up_others(
    app: Stepfast, silent: HttpReceiver, receiver: HttpReceiver, over: threading.Event
) -> None:
    for n in range(40):
        app.send_webhook(silent.url(f"/{n}"), data=n)
    app.send_webhook(receiver.url(), data="good")
    with closing(Stepfast(app.database.url)) as elsewhere:
        relay = Relay(elsewhere.database, SETTINGS)

        relay.look()
        rows.eventually(lambda: receiver.received and len(silent.received) == 2)
        relay.look()

        served = [it.served.id for it in relay._serving()]
        assert sum(f"127.0.0.1:{silent.port}" in it for it in served) <= 2
        over.set()
        for courier in relay._serving():
            courier.stop()
            courier.join(20)


def test_a_host_that_did_not_answer_in_time_waits_as_a_whole(app: Stepfast, silent: HttpReceiver) -> None:
    for n in range(6):
        app.send_webhook(silent.url(f"/{n}"), data=n)
    app.send_webhook(silent.url("/0"), data="behind the first")

    with hearing() as told:
        Relay(app.database, replace(SETTINGS, webhook_timeout=timedelta(seconds=1))).drain()

    assert len(silent.received) == 2
    found = rows.query(app, "SELECT attempts, due_at, last_error, state FROM stepfast_outbox ORDER BY seq")
    assert sorted(row["attempts"] for row in found) == [0, 0, 0, 0, 0, 1, 1]
    assert all(row["state"] == "waiting" and row["due_at"] > rows.now(app) for row in found)
    untried = [row["last_error"] for row in found if not row["attempts"]]
    assert all(error.startswith(f"{WAITS_FOR_HOST} 127.0.0.1:{silent.port}") for error in untried)
    assert {facts["host"] for facts in named(told, "host.postponed")} == {f"127.0.0.1:{silent.port}"}
    assert not [it for it in app.operator.doctor() if it.name == "outbox"]


def test_what_was_postponed_with_its_host_is_sent_afterwards_in_order(
    app: Stepfast, receiver: HttpReceiver, over: threading.Event
) -> None:
    receiver.answer = lambda it: Answer(before=lambda: over.wait(60) if it.path == "/slow" else None)
    app.send_webhook(receiver.url("/slow"), data=0)
    settings = replace(SETTINGS, webhook_timeout=timedelta(seconds=1))
    Relay(app.database, settings).drain()
    over.set()
    for n in range(1, 4):
        app.send_webhook(receiver.url("/slow"), data=n)
    rows.change(app, "UPDATE stepfast_outbox SET due_at = 1 WHERE state = 'waiting'")

    Relay(app.database, settings).drain()

    assert receiver.bodies == [0, 0, 1, 2, 3]
    assert rows.count(app, "stepfast_outbox", "state = 'sent' AND last_error IS NULL") == 4


def test_neither_one_host_nor_many_failures_hide_the_others(app: Stepfast) -> None:
    """Also a destination that somebody wrote by hand, which has no hash."""
    lines: list[tuple[str, int, str | None]] = [("host.example", n, None) for n in range(30)]
    lines += [(f"failed{n}.example", n, "HTTP 500") for n in range(30)]
    lines += [("good.example", 0, None)]
    messages = [
        {
            "id": message_id,
            "destination": destination_of(WEBHOOK, host, f"{host}/{n}"),
            "due_at": at,
            "last_error": error,
        }
        for at, (message_id, (host, n, error)) in enumerate(zip(new_ids(len(lines)), lines, strict=True), 2)
    ]
    by_hand = {"id": "by-hand", "destination": "webhook:x", "due_at": 1, "last_error": None}
    with app.transaction() as tx:
        tx.execute_many(WAITING, [*messages, by_hand])

    with app.reading() as tx:
        found = due_destinations(tx, 5)

    assert [(it.host.partition(":")[2], it.failed) for it in found] == [
        ("x", False),
        *[("host.example", False)] * 2,
        *[(f"failed{n}.example", True) for n in range(5)],
        ("good.example", False),
    ]
