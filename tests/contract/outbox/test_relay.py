"""The relay sends each message at least once under one id, in order per destination; failures stay visible."""

from __future__ import annotations

import json
import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Stepfast
from stepfast.database.connection import Connection
from stepfast.database.database import persist as real_persist
from stepfast.errors import DestinationLostError, UnknownCommitError, UnreachableError
from stepfast.notifications.settings import NotificationSettings
from stepfast.notifications.webhook import Delivered, Failed
from stepfast.outbox import destinations as protocol
from stepfast.outbox import destinations as verdict
from stepfast.outbox.messages import Message, stage
from stepfast.worker import periodic
from stepfast.worker import relay as worker_relay
from stepfast.worker.relay import Attempt, DirectSender, Relay, deliver, next_or_leave, record, take_heads
from tests.support import rows
from tests.support.events import hearing, named
from tests.support.http_receiver import SECRET, SETTINGS, Answer, Received, receiving_http

if TYPE_CHECKING:
    from stepfast.outbox.destinations import DueMessage, ServedDestination
    from tests.support.http_receiver import HttpReceiver

NOW = timedelta(0)


def relayed(app: Stepfast, settings: NotificationSettings = SETTINGS) -> int:
    return Relay(app.database, settings).drain()


def send(app: Stepfast, receiver: HttpReceiver, *numbers: int, path: str = "/hook") -> list[str]:
    return [app.send_webhook(receiver.url(path), data=n).id for n in numbers]


def message(app: Stepfast, message_id: str) -> rows.Row:
    (row,) = rows.query(app, "SELECT * FROM stepfast_outbox WHERE id = :id", id=message_id)
    return row


def states(app: Stepfast) -> list[str]:
    return [row["state"] for row in rows.query(app, "SELECT state FROM stepfast_outbox ORDER BY seq")]


def make_due(app: Stepfast) -> None:
    """Let the time of the next try come."""
    assert rows.change(app, "UPDATE stepfast_outbox SET due_at = 1 WHERE state = 'waiting'")


def taken(app: Stepfast) -> tuple[ServedDestination, DueMessage]:
    """As a relay takes the only line that waits."""
    with app.transaction() as tx:
        ((served, first),) = take_heads(tx, [it.id for it in protocol.due_destinations(tx, 10)])
    return served, first


def expire(app: Stepfast) -> None:
    """Let the lease of a destination run out."""
    assert rows.change(app, "UPDATE stepfast_destination SET leased_until = 1")


# In order


def test_messages_of_a_destination_arrive_in_the_order_of_their_staging(
    app: Stepfast, receiver: HttpReceiver
) -> None:
    ids = send(app, receiver, *range(20))

    relayed(app)

    assert receiver.bodies == list(range(20))
    assert receiver.ids == ids


def test_the_head_of_the_line_holds_up_those_behind_it_and_nobody_else(
    app: Stepfast, receiver: HttpReceiver
) -> None:
    receiver.answer = lambda it: Answer(503 if it.path == "/broken" and len(receiver.received) < 5 else 204)
    send(app, receiver, 1, 2, 3, path="/broken")
    send(app, receiver, 7, 8, path="/fine")

    relayed(app)
    assert sorted(receiver.bodies) == [1, 7, 8]
    assert states(app) == ["waiting"] * 3 + ["sent"] * 2
    make_due(app)
    relayed(app)
    make_due(app)
    relayed(app)

    assert [it.json for it in receiver.received if it.path == "/broken"] == [1, 1, 1, 2, 3]
    assert states(app) == ["sent"] * 5


def test_the_same_host_may_be_several_destinations(app: Stepfast, receiver: HttpReceiver) -> None:
    for path in ("/a", "/b", "/a?tenant=1"):
        send(app, receiver, 1, path=path)

    assert relayed(app) == 3


def test_a_message_that_fails_waits_longer_each_time(app: Stepfast, receiver: HttpReceiver) -> None:
    receiver.answer = lambda _: Answer(500, b"out of paper")
    (message_id,) = send(app, receiver, 1)
    waits = []

    for _ in range(3):
        relayed(app)
        row = message(app, message_id)
        waits.append((row["due_at"] - rows.now(app)) / rows.SECOND)
        make_due(app)

    assert 1 < waits[0] <= 5
    assert 6 < waits[1] <= 15
    assert 20 < waits[2] <= 45
    assert (row["state"], row["attempts"]) == ("waiting", 3)
    assert row["last_error"] == "HTTP 500; it said: out of paper"
    assert len(set(receiver.ids)) == 1


def test_a_message_that_is_not_due_is_left_alone(app: Stepfast, receiver: HttpReceiver) -> None:
    receiver.fail(1)
    send(app, receiver, 1, 2)
    relayed(app)

    assert relayed(app) == 0
    assert receiver.bodies == [1]


def test_what_is_staged_while_its_destination_is_served_follows_at_once(
    app: Stepfast, receiver: HttpReceiver
) -> None:
    def stage_another() -> None:
        if len(receiver.received) < 4:
            send(app, receiver, len(receiver.received))

    receiver.answer = lambda _: Answer(before=stage_another)
    send(app, receiver, 0)

    assert relayed(app) == 1
    assert receiver.bodies == [0, 1, 2, 3]


def test_after_a_long_turn_others_get_a_chance(
    app: Stepfast, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_relay, "IN_A_ROW", 2)
    send(app, receiver, 1, 2, 3, 4, 5)

    assert relayed(app) == 3
    assert receiver.bodies == [1, 2, 3, 4, 5]


# What ends a message


def test_what_the_receiver_wants_no_more_of_is_dead_at_once_and_the_next_one_goes(
    app: Stepfast, receiver: HttpReceiver
) -> None:
    receiver.fail(1, 410)
    dead, sent = send(app, receiver, 1, 2)

    relayed(app)

    assert (message(app, dead)["state"], message(app, sent)["state"]) == ("dead", "sent")
    assert "HTTP 410" in message(app, dead)["last_error"]
    assert message(app, dead)["ended_at"] is not None


def test_a_refusal_is_tried_five_times(app: Stepfast, receiver: HttpReceiver) -> None:
    receiver.answer = lambda it: Answer(404 if it.json == 1 else 204)
    dead, _ = send(app, receiver, 1, 2)

    for _ in range(4):
        relayed(app)
        make_due(app)
    relayed(app)

    assert receiver.bodies == [1] * 5 + [2]
    row = message(app, dead)
    assert (row["state"], row["attempts"]) == ("dead", 5)
    assert "gave up after 5 tries" in row["last_error"]


def test_an_outage_is_waited_out_until_the_message_is_too_old(app: Stepfast, receiver: HttpReceiver) -> None:
    receiver.answer = lambda _: Answer(500)
    (message_id,) = send(app, receiver, 1)
    rows.change(app, "UPDATE stepfast_outbox SET since_at = since_at - :age", age=4 * rows.DAY)

    relayed(app)

    row = message(app, message_id)
    assert (row["state"], row["attempts"]) == ("dead", 1)
    assert "at an age of 96 h" in row["last_error"]


def test_a_throttle_is_respected(app: Stepfast, receiver: HttpReceiver) -> None:
    receiver.fail(1, 429, Retry_After="600")
    (message_id,) = send(app, receiver, 1)

    relayed(app)

    wait = (message(app, message_id)["due_at"] - rows.now(app)) / rows.SECOND
    assert 590 < wait <= 600


def test_a_redirect_ends_in_a_sentence(app: Stepfast, receiver: HttpReceiver) -> None:
    receiver.answer = lambda _: Answer(302, headers={"Location": receiver.url("/other")})
    (message_id,) = send(app, receiver, 1)

    relayed(app)

    assert states(app) == ["waiting"]
    assert "redirects are not followed" in message(app, message_id)["last_error"]
    assert [it.path for it in receiver.received] == ["/hook"]


def test_an_address_behind_the_wall_is_never_reached(app: Stepfast, receiver: HttpReceiver) -> None:
    (message_id,) = send(app, receiver, 1)

    Relay(app.database, replace(SETTINGS, webhook_allow=())).drain()

    assert receiver.received == []
    assert "STEPFAST_WEBHOOK_ALLOW" in message(app, message_id)["last_error"]


def test_an_alert_about_a_refused_host_does_not_name_the_addresses_behind_it(
    app: Stepfast, receiver: HttpReceiver
) -> None:
    message_id = app.send_webhook(f"http://localhost:{receiver.port}/hook", data=1).id
    settings = replace(SETTINGS, webhook_allow=(), outbox_attempts=1)

    Relay(app.database, settings).drain()

    (alert,) = app.operator.alerts()
    assert "localhost leads to an inner address, which is not public" in alert.body
    assert "127.0.0.1" not in alert.title + alert.body
    assert "127.0.0.1" in message(app, message_id)["last_error"]


def test_a_channel_that_nobody_knows_fails_visibly(app: Stepfast) -> None:
    with app.transaction() as tx:
        stage(tx, Message(id="m", channel="pigeon", destination="d", address="a", body="{}"))

    relayed(app)

    assert "knows no channel 'pigeon'" in message(app, "m")["last_error"]


def test_a_dead_webhook_raises_an_alert(app: Stepfast, receiver: HttpReceiver) -> None:
    receiver.answer = lambda _: Answer(410)
    _, second = send(app, receiver, 1, 2, path="/hook?token=hunter2")

    relayed(app)

    (alert,) = rows.query(app, "SELECT * FROM stepfast_alert")
    assert alert["raised"] == 2
    assert f"http://127.0.0.1:{receiver.port}/hook?… died" in alert["title"]
    assert f"stepfast outbox retry {second}" in alert["body"]
    assert "hunter2" not in json.dumps(alert, default=str)


# At least once, under one id


def test_what_was_sent_and_not_recorded_is_sent_again_under_the_same_id(
    app: Stepfast, receiver: HttpReceiver
) -> None:
    (message_id,) = send(app, receiver, 1)
    _, first = taken(app)
    assert deliver(first, SETTINGS) == Delivered()  # and then its process is killed
    expire(app)

    relayed(app)

    assert receiver.ids == [message_id, message_id]
    assert (message(app, message_id)["state"], message(app, message_id)["attempts"]) == ("sent", 1)


def test_a_relay_that_was_replaced_records_nothing(app: Stepfast, receiver: HttpReceiver) -> None:
    message_id, following = send(app, receiver, 1, 2)
    served, first = taken(app)
    expire(app)
    successor, again = taken(app)

    for attempt in (Attempt(1), Attempt(0, Failed("late"), verdict.TryAgain(NOW))):
        with pytest.raises(DestinationLostError), app.transaction() as tx:
            record(tx, served, [first], attempt)
    with app.transaction() as tx:
        protocol.renew_destinations(tx, [served])
        protocol.release_destination(tx, served)

    assert again.id == first.id
    assert (message(app, message_id)["state"], message(app, message_id)["attempts"]) == ("waiting", 0)
    with app.transaction() as tx:
        record(tx, successor, [again], Attempt(1))
        (following_one,) = next_or_leave(tx, successor, DirectSender(SETTINGS))
    assert following_one.id == following


def test_a_destination_that_somebody_serves_is_left_to_him(app: Stepfast, receiver: HttpReceiver) -> None:
    send(app, receiver, 1)
    taken(app)

    assert relayed(app) == 0
    assert receiver.received == []


def test_two_who_take_at_once_do_not_both_get_it(
    app: Stepfast, another_app: Callable[[], Stepfast], receiver: HttpReceiver
) -> None:
    from tests.support.engine import together

    for path in ("/a", "/b", "/c"):
        send(app, receiver, 1, path=path)
    apps = [another_app() for _ in range(4)]

    def take(one: Stepfast) -> list[str]:
        with one.database.looking() as tx:
            names = [it.id for it in protocol.due_destinations(tx, 10)]
        with one.transaction() as tx:
            return [served.id for served, _ in take_heads(tx, names)]

    got = together([partial(take, it) for it in apps])

    # One that a neighbour had locked in that moment is left for the next look.
    everything = [it for found in (*got, take(app)) for it in found]
    assert len(everything) == len(set(everything)) == 3


def test_a_try_that_takes_long_keeps_its_destination(app: Stepfast, receiver: HttpReceiver) -> None:
    over = threading.Event()
    receiver.answer = lambda _: Answer(before=lambda: over.wait(20))
    send(app, receiver, 1)
    relay = Relay(app.database, SETTINGS)
    relay.look()
    rows.eventually(lambda: receiver.received)
    (serving,) = relay._serving()
    expire(app)

    serving.renewed = 0.0
    relay.look()
    leased_until = rows.query(app, "SELECT leased_until FROM stepfast_destination")[0]["leased_until"]
    over.set()
    serving.join(20)

    assert leased_until > rows.now(app)
    assert states(app) == ["sent"]


def test_a_try_that_hangs_loses_its_destination(app: Stepfast, receiver: HttpReceiver) -> None:
    over = threading.Event()
    receiver.answer = lambda _: Answer(before=lambda: over.wait(20))
    send(app, receiver, 1)
    relay = Relay(app.database, SETTINGS)
    relay.look()
    rows.eventually(lambda: receiver.received)
    (serving,) = relay._serving()
    expire(app)

    serving.renewed = 0.0
    serving.since -= worker_relay.HUNG_AFTER
    relay._renew_leases()
    leased_until = rows.query(app, "SELECT leased_until FROM stepfast_destination")[0]["leased_until"]
    over.set()
    serving.join(20)

    assert leased_until == 1


def test_a_commit_whose_answer_was_lost_is_not_sent_again(
    app: Stepfast, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[Any] = []
    lost: list[Any] = []
    real_record = worker_relay.record

    def record(*arguments: Any, **options: Any) -> Any:
        recorded.append(arguments)
        return real_record(*arguments, **options)

    def persist(*arguments: Any, **options: Any) -> Any:
        answer = real_persist(*arguments, **options)
        if recorded and not lost:
            lost.append(answer)
            raise UnknownCommitError("the connection broke during COMMIT")
        return answer

    monkeypatch.setattr(worker_relay, "record", record)
    monkeypatch.setattr(worker_relay, "persist", persist)
    monkeypatch.setattr(worker_relay, "RETRY", 0.0)
    send(app, receiver, 1, 2)

    relayed(app)

    assert receiver.bodies == [1, 2]
    assert [row["attempts"] for row in rows.query(app, "SELECT attempts FROM stepfast_outbox")] == [1, 1]


def test_nothing_is_sent_inside_a_transaction(
    app: Stepfast, another_app: Callable[[], Stepfast], receiver: HttpReceiver
) -> None:
    observer = another_app()

    def look() -> None:
        """A lock, or SQLite's one writer, that is held while a message is sent would block here."""
        rows.change(observer, "UPDATE stepfast_outbox SET headers = '{}'")
        rows.change(observer, "UPDATE stepfast_destination SET leased_until = leased_until + 1")

    receiver.answer = lambda _: Answer(before=look)
    send(app, receiver, 1, 2)

    relayed(app)

    assert states(app) == ["sent", "sent"]


def test_two_relays_lose_nothing_and_keep_the_order_whatever_fails(
    app: Stepfast,
    another_app: Callable[[], Stepfast],
    receiver: HttpReceiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verdict, "FIRST", timedelta(milliseconds=5))
    monkeypatch.setattr(verdict, "FACTOR", 1.0)
    monkeypatch.setattr(worker_relay, "LOOK", 0.02)
    monkeypatch.setattr(worker_relay, "IN_A_ROW", 3)
    inside: dict[str, int] = defaultdict(int)
    together_once = []
    lock = threading.Lock()

    def answer(it: Received) -> Answer:
        with lock:
            inside[it.path] += 1
            together_once.append(inside[it.path])
            failing = len(receiver.received) % 4 == 0

        def leave() -> None:
            with lock:
                inside[it.path] -= 1

        return Answer(500 if failing else 204, before=leave)

    receiver.answer = answer
    paths = ("/a", "/b", "/c")
    expected: dict[str, list[str]] = {path: [] for path in paths}
    for n in range(15):
        for path in paths:
            expected[path] += send(app, receiver, n, path=path)

    relays = [Relay(another_app().database, SETTINGS) for _ in range(2)]
    for relay in relays:
        relay.start()
    rows.eventually(lambda: rows.count(app, "stepfast_outbox", "state <> 'sent'") == 0, 60)
    for relay in relays:
        relay.stop()

    assert max(together_once) == 1
    assert len(receiver.received) > 45
    for path in paths:
        arrived = [it.id for it in receiver.received if it.path == path]
        assert list(dict.fromkeys(arrived)) == expected[path]


# A worker's part


def test_a_worker_sends_at_once_what_its_own_process_staged(
    app: Stepfast, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_relay, "LOOK", 1_000.0)
    app._notifications = SETTINGS

    with app.worker():
        rows.eventually(lambda: rows.count(app, "stepfast_bookmark"))  # it has looked, and sleeps
        send(app, receiver, 1)
        rows.eventually(lambda: states(app) == ["sent"])


@pytest.mark.only_on("postgresql")
def test_a_worker_hears_of_what_another_process_staged(
    app: Stepfast,
    another_app: Callable[[], Stepfast],
    receiver: HttpReceiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_relay, "LOOK", 1_000.0)
    app._notifications = SETTINGS

    with app.worker() as worker:
        rows.eventually(lambda: worker._wakeups.heard and rows.count(app, "stepfast_bookmark"))
        send(another_app(), receiver, 1)
        rows.eventually(lambda: states(app) == ["sent"])


def test_a_worker_finds_what_nobody_told_it(app: Stepfast, receiver: HttpReceiver) -> None:
    app._notifications = SETTINGS
    url, now = receiver.url(), rows.now(app)

    with app.worker():
        rows.change(
            app,
            "INSERT INTO stepfast_outbox (id, channel, destination, address, body) VALUES ('m', 'webhook', 'd', :url, '7')",
            url=url,
        )
        rows.eventually(lambda: states(app) == ["sent"])

    assert receiver.bodies == [7]
    assert message(app, "m")["created_at"] >= now


def test_a_worker_may_be_told_not_to_send(app: Stepfast, receiver: HttpReceiver) -> None:
    app._notifications = replace(SETTINGS, outbox_relay=False)

    with app.worker() as worker:
        assert [type(it).__name__ for it in worker._services if isinstance(it, Relay)] == []
    send(app, receiver, 1)

    assert receiver.received == []


def test_an_idle_relay_asks_one_question(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_relay, "LOOK", 0.05)
    relay = Relay(app.database, SETTINGS)
    real, looks = Relay.look, []

    def look(it: Relay) -> int:
        looks.append(len(asked))
        return real(it)

    asked: list[str] = []
    monkeypatch.setattr(Relay, "look", look)
    relay.start()
    rows.eventually(lambda: len(looks) > 1)  # the first look is followed by the pruning, once a minute
    monkeypatch.setattr(
        Connection,
        "watch",
        staticmethod(lambda phase, text: asked.append(text) if phase == "before" else None),
    )
    rows.eventually(lambda: len(looks) > 6)
    relay.stop()

    assert {after - before for before, after in pairwise(looks[2:])} == {1}
    assert {text.strip()[:6] for text in asked} == {"SELECT"}


def test_a_worker_that_stops_lets_a_try_end_and_records_it(app: Stepfast, receiver: HttpReceiver) -> None:
    app._notifications = SETTINGS
    over = threading.Event()
    receiver.answer = lambda _: Answer(before=lambda: over.wait(20))
    send(app, receiver, 1, 2)

    worker = app.worker()
    worker.start()
    rows.eventually(lambda: receiver.received)
    worker.ask_to_stop()
    over.set()
    worker.stop()

    assert states(app)[0] == "sent"
    assert rows.count(app, "stepfast_destination", "leased_until > 1 AND fence = 0") == 1


def test_the_relay_goes_on_after_the_database_was_away(
    app: Stepfast, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_relay, "LOOK", 0.02)
    relay = Relay(app.database, SETTINGS)
    real, failing = Relay.look, threading.Event()
    failing.set()
    tried = threading.Event()

    def look(it: Relay) -> int:
        if failing.is_set():
            tried.set()
            raise UnknownCommitError("away")
        return real(it)

    monkeypatch.setattr(Relay, "look", look)
    relay.start()
    assert tried.wait(20)
    send(app, receiver, 1)
    failing.clear()
    rows.eventually(lambda: states(app) == ["sent"])
    relay.stop()


def test_the_relay_reports_once_that_the_database_is_away_and_once_that_it_is_back(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic, "AWAY", 0.01)
    monkeypatch.setattr(worker_relay, "LOOK", 0.01)
    looks: list[int] = []

    def look(_: Relay) -> int:
        looks.append(1)
        if len(looks) < 4:
            raise UnreachableError("gone")
        return 0

    def tidy(_: Relay) -> float:
        if len(looks) < 4:
            raise UnreachableError("gone")  # it is away for both duties of the thread
        return periodic.NEVER

    monkeypatch.setattr(Relay, "look", look)
    monkeypatch.setattr(Relay, "_tidy", tidy)
    relay = Relay(app.database, SETTINGS)
    with hearing() as told:
        relay.start()
        rows.eventually(lambda: len(looks) > 5)
        relay.stop()

    (lost,) = named(told, "database.lost")
    (recovered,) = named(told, "database.recovered")
    assert (lost["note"], recovered["note"]) == ("relay waits", "relay goes on")


# What is said


def test_no_secret_and_no_body_is_logged(
    app: Stepfast, receiver: HttpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    receiver.answer = lambda it: Answer({1: 500, 2: 410}.get(it.json["n"], 204), b"you said hunter3")
    for n in (1, 2, 3):
        app.send_webhook(receiver.url(f"/{n}?token=hunter2"), data={"n": n, "card": "hunter4"})

    relayed(app)

    said = [record.event for record in caplog.records if hasattr(record, "event")]
    assert {"message.sent", "message.failed", "message.died"} <= set(said)
    text = caplog.text + json.dumps([vars(it) for it in caplog.records], default=str)
    for secret in ("hunter", SECRET.removeprefix("whsec_")):
        assert secret not in text


def test_an_event_follows_the_message(
    app: Stepfast, receiver: HttpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "stepfast")
    (message_id,) = send(app, receiver, 1)

    relayed(app)

    (sent,) = (it for it in caplog.records if getattr(it, "event", "") == "message.sent")
    facts = vars(sent)["facts"]
    assert facts["message_id"] == message_id
    assert (facts["channel"], facts["attempt"], facts["address"]) == ("webhook", 1, receiver.url())
    assert facts["trace_id"] == message_id.replace("-", "")


def test_a_second_receiver_is_not_disturbed(app: Stepfast, receiver: HttpReceiver) -> None:
    """A receiver that hangs holds up its own line only."""
    over = threading.Event()
    receiver.answer = lambda _: Answer(before=lambda: over.wait(20))
    with receiving_http() as other, closing(Stepfast(app.database.url)) as elsewhere:
        send(app, receiver, 1)
        send(app, other, 7)
        relay = Relay(elsewhere.database, SETTINGS)
        relay.look()
        rows.eventually(lambda: other.received and receiver.received)
        over.set()
        for it in relay._serving():
            it.join(20)

    assert states(app) == ["sent", "sent"]


# The doctor


def findings(app: Stepfast) -> dict[str, str]:
    names = {"outbox", "dead messages", "alerts"}
    return {it.name: it.found for it in app.operator.doctor() if it.name in names}


def test_the_doctor_is_silent_while_everything_gets_through(app: Stepfast, receiver: HttpReceiver) -> None:
    receiver.fail(1)
    send(app, receiver, 1, 2)
    rows.change(app, "UPDATE stepfast_outbox SET due_at = 1 WHERE body = '2'")  # behind a head that waits
    relayed(app)

    assert findings(app) == {}


def test_the_doctor_finds_what_does_not_get_through(app: Stepfast, receiver: HttpReceiver) -> None:
    receiver.answer = lambda _: Answer(410)
    send(app, receiver, 1)
    relayed(app)
    send(app, receiver, 2, 3)
    rows.change(app, "UPDATE stepfast_outbox SET due_at = 1")
    rows.change(app, "UPDATE stepfast_alert SET notify_at = 1")

    assert findings(app) == {
        "outbox": "1 destination should have been served by now, and nobody does",
        "dead messages": "1 message given up",
        "alerts": "1 alert that nobody was told",
    }


def test_what_no_worker_here_can_send_waits_and_the_doctor_says_why(
    app: Stepfast, receiver: HttpReceiver
) -> None:
    send(app, receiver, 1)
    unable = NotificationSettings(webhook_allow=("127.0.0.1",))  # no secret: nothing may leave unsigned

    for _ in range(15):
        relayed(app, unable)
        rows.change(app, "UPDATE stepfast_outbox SET due_at = 1")

    (waiting,) = rows.query(app, "SELECT state, attempts, last_error FROM stepfast_outbox")
    assert (waiting["state"], waiting["attempts"]) == ("waiting", 0)
    assert "STEPFAST_WEBHOOK_SECRETS" in waiting["last_error"]
    assert any("cannot be sent by the workers as they are set up" in it.found for it in app.operator.doctor())
