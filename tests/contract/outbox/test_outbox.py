"""Messages are staged in the caller's transaction, once per key, and without secrets."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Done, Effect, Retry, Step
from stepfast.errors import ArgumentsError, LeaseLostError
from stepfast.jobs.outcome import Call
from stepfast.notifications.settings import NotificationSettings
from stepfast.notifications.webhook import verify
from stepfast.outbox.alerts import alert
from stepfast.outbox.destinations import prune_outbox
from stepfast.outbox.messages import webhook
from tests.support import rows
from tests.support.engine import claim, commit_step, register_work, take, together
from tests.support.http_receiver import SECRET, SETTINGS

if TYPE_CHECKING:
    from stepfast import Stepfast, Transaction
    from tests.support.http_receiver import HttpReceiver

URL = "https://hooks.example/in?token=abc"


def staged(app: Stepfast) -> list[rows.Row]:
    return rows.query(app, "SELECT * FROM stepfast_outbox ORDER BY seq")


# With a step


def test_a_webhook_arrives_when_its_step_is_committed(app: Stepfast, receiver: HttpReceiver) -> None:
    app._notifications = SETTINGS

    @app.job()
    def pay(step: Step, order: str) -> None:
        step.send_webhook(receiver.url(), type="order.paid", data={"order": order}, headers={"X-Shop": "7"})

    job = pay.enqueue(order="A-17")
    with app.worker():
        rows.eventually(lambda: staged(app) and staged(app)[0]["state"] == "sent")

    (got,) = receiver.received
    (row,) = staged(app)
    assert got.json["type"] == "order.paid"
    assert got.json["data"] == {"order": "A-17"}
    assert got.json["timestamp"].endswith("Z")
    assert got.headers["x-shop"] == "7"
    assert verify(got.body, got.headers, SECRET) == row["id"]
    assert (row["job_id"], row["attempts"], row["last_error"]) == (job.id, 1, None)
    assert row["trace"][3:35] == got.headers["traceparent"][3:35] == job.id.replace("-", "")


def test_without_a_type_the_data_is_the_body(app: Stepfast, receiver: HttpReceiver) -> None:
    app.send_webhook(receiver.url(), data={"task_id": "t-1", "status": "completed"})

    (row,) = staged(app)
    assert json.loads(row["body"]) == {"task_id": "t-1", "status": "completed"}


def test_a_step_that_lost_its_lease_stages_nothing(app: Stepfast) -> None:
    register_work(app).enqueue()
    held = take(app)
    rows.change(app, "UPDATE stepfast_job SET fence = 1")

    with pytest.raises(LeaseLostError):
        commit_step(app, held, Done(), webhook(URL, "{}"))

    assert staged(app) == []


def test_a_step_whose_other_effects_fail_stages_nothing(app: Stepfast) -> None:
    @app.job(retry=Retry(attempts=1))
    def broken(step: Step) -> None:
        step.send_webhook(URL, data=1)
        step.alert("broken", "It broke")
        step.effect(lambda tx: tx.execute("INSERT INTO nowhere VALUES (1)"))

    job = broken.enqueue()
    with app.worker():
        rows.eventually(lambda: rows.state(app, job.id) == "dead")

    assert rows.count(app, "stepfast_outbox", "channel = 'webhook'") == 0
    assert rows.count(app, "stepfast_alert", "id = 'broken'") == 0


def test_a_step_that_fails_before_its_end_stages_nothing(app: Stepfast) -> None:
    @app.job(retry=Retry(attempts=1))
    def broken(step: Step) -> None:
        step.send_webhook(URL, data=1)
        raise ValueError("no")

    job = broken.enqueue()
    with app.worker():
        rows.eventually(lambda: rows.state(app, job.id) == "dead")

    assert staged(app) == []


def test_what_leaves_the_database_is_staged_behind_all_other_effects_in_its_own_order(app: Stepfast) -> None:
    register_work(app).enqueue()
    seen: list[int] = []

    def look(tx: Transaction) -> None:
        seen.append(tx.query("SELECT count(*) AS n FROM stepfast_outbox")[0]["n"])
        seen.append(tx.query("SELECT count(*) AS n FROM stepfast_alert")[0]["n"])

    effects: list[Effect] = [
        alert("b", "B"),
        webhook(URL, "2"),
        alert("a", "A"),
        webhook(URL, "1"),
        Call(look),
    ]
    commit_step(app, take(app), Done(), *effects)

    assert seen == [0, 0]
    assert [row["body"] for row in staged(app)] == ["2", "1"]
    assert rows.count(app, "stepfast_alert") == 2


# With a transaction of one's own


def test_a_message_is_there_when_its_transaction_commits(app: Stepfast) -> None:
    with app.transaction() as tx:
        message = app.send_webhook(URL, data={"n": 1}, tx=tx)
        assert staged(app) == []

    (row,) = staged(app)
    assert (row["id"], row["state"], row["address"]) == (message.id, "waiting", URL)


def test_what_is_rolled_back_was_never_staged(app: Stepfast) -> None:
    def act(tx: Transaction) -> None:
        app.send_webhook(URL, data=1, key="once", tx=tx)
        app.alert("cause", "Title", tx=tx)
        raise KeyError("rolled back")

    with pytest.raises(KeyError), app.transaction() as tx:
        act(tx)

    assert staged(app) == []
    assert rows.count(app, "stepfast_alert") == 0
    assert app.send_webhook(URL, data=1, key="once").created


def test_a_connection_of_the_callers_own_may_be_lent(app: Stepfast) -> None:
    connection = app.database.connect()
    connection.begin("BEGIN IMMEDIATE" if app.database.dialect.name == "sqlite" else "BEGIN")

    app.send_webhook(URL, data=1, tx=connection.raw)
    app.alert("cause", "Title", tx=connection.raw)
    assert staged(app) == []
    connection.execute("COMMIT")
    connection.close()

    assert len(staged(app)) == rows.count(app, "stepfast_alert") == 1


# Once


def test_the_same_cause_is_staged_once_for_a_destination(app: Stepfast) -> None:
    first = app.send_webhook(URL, data={"try": 1}, key="order-17:paid")
    second = app.send_webhook(URL, data={"try": 2}, key="order-17:paid")

    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert [json.loads(row["body"]) for row in staged(app)] == [{"try": 1}]


def test_the_same_cause_may_be_told_to_others(app: Stepfast) -> None:
    made = [app.send_webhook(f"https://{it}.example/", data=1, key="k").created for it in ("a", "b")]

    assert made == [True, True]


def test_without_a_key_everything_is_staged(app: Stepfast) -> None:
    assert app.send_webhook(URL, data=1).id != app.send_webhook(URL, data=1).id
    assert len(staged(app)) == 2


def test_of_many_who_stage_one_cause_at_once_one_does(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    apps = [another_app() for _ in range(4)]

    made = together([partial(it.send_webhook, URL, data=1, key="k") for it in apps])

    assert sorted(it.created for it in made) == [False, False, False, True]
    assert {it.id for it in made} == {staged(app)[0]["id"]}
    assert len(staged(app)) == 1


def test_a_cause_is_remembered_after_it_was_sent(app: Stepfast) -> None:
    first = app.send_webhook(URL, data=1, key="k")
    rows.change(app, "UPDATE stepfast_outbox SET state = 'sent', ended_at = 1")

    assert app.send_webhook(URL, data=1, key="k").id == first.id


def test_an_effect_that_runs_again_after_a_deadlock_keeps_its_id(app: Stepfast) -> None:
    message = webhook(URL, "{}")

    def act(tx: Transaction) -> None:
        message.apply(tx)
        raise KeyError("as if there had been a deadlock")

    with pytest.raises(KeyError), app.transaction() as tx:
        act(tx)
    with app.transaction() as tx:
        message.apply(tx)

    assert [row["id"] for row in staged(app)] == [message.id]


# What is refused


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("https://user:hunter2@hooks.example/", "credentials"),
        ("https://user@hooks.example/", "credentials"),
        ("ftp://hooks.example/", "no http"),
        ("hooks.example/in", "no http"),
        ("https://", "no http"),
        ("https:///path", "no http"),
        ("file:///etc/passwd", "no http"),
        ("https://hooks.example/a b", "spaces"),
        ("https://hooks.example\\@evil.example/", "backslashes"),
        ("https://bücher.example/", "beyond ASCII"),
        ("https://hooks.example/\r\nX: y", "spaces"),
        ("https://hooks.example:99999/", "cannot be read"),
        ("https://hooks.example:0/", "port 0"),
        ("https://[::1/", "cannot be read"),
        ("https://hooks.example/" + "x" * 2_000, "at most 2,000"),
        (17, "a URL is a text"),
    ],
)
def test_a_url_that_cannot_work_is_refused_in_words(app: Stepfast, url: Any, word: str) -> None:
    with pytest.raises(ArgumentsError, match=word) as refused:
        app.send_webhook(url, data=1)

    assert "hunter2" not in str(refused.value)
    assert staged(app) == []


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"data": "x" * 300_000}, "at most 262,144 are sent"),
        ({"data": object()}, "no JSON form"),
        ({"type": "order paid"}, "such as 'order.paid'"),
        ({"type": ""}, "such as 'order.paid'"),
        ({"type": 7}, "such as 'order.paid'"),
        ({"key": ""}, "1 to 128"),
        ({"key": " k"}, "spaces around it"),
        ({"key": "k" * 129}, "1 to 128"),
        ({"key": 7}, "1 to 128"),
        ({"headers": {"Authorization": "Bearer abc"}}, "looks like a credential"),
        ({"headers": {"X-Api-Key": "abc"}}, "looks like a credential"),
        ({"headers": {"Cookie": "abc"}}, "looks like a credential"),
        ({"headers": {"Webhook-Id": "abc"}}, "set by Stepfast"),
        ({"headers": {"Content-Length": "1"}}, "set by Stepfast"),
        ({"headers": {"X-A": "a\r\nX-B: b"}}, "no value that can be sent"),
        ({"headers": {"X A": "a"}}, "no name of a header"),
        ({"headers": {f"X-{n}": "x" * 900 for n in range(10)}}, "more than 8,000"),
    ],
    ids=lambda it: str(it)[:17],
)
def test_what_cannot_be_sent_is_refused_and_not_stored(
    app: Stepfast, options: dict[str, Any], word: str
) -> None:
    with pytest.raises(ArgumentsError, match=word) as refused:
        app.send_webhook(URL, **{"data": 1, **options})

    assert "abc" not in str(refused.value)
    assert staged(app) == []


def test_what_a_handler_cannot_send_makes_it_a_dead_letter_at_once(app: Stepfast) -> None:
    @app.job()
    def send(step: Step) -> None:
        step.send_webhook("ftp://nowhere", data=1)

    job = send.enqueue()
    with app.worker():
        rows.eventually(lambda: rows.state(app, job.id) == "dead")

    ended = rows.ended(app, job.id)
    assert ended is not None
    assert "no http:// or https:// URL" in ended["last_error"]
    assert ended["failures"] == 1


# Retention


def test_what_was_sent_is_forgotten_in_bounded_batches_and_what_died_is_not(app: Stepfast) -> None:
    for state in ("sent", "sent", "sent", "dead", "waiting"):
        message = app.send_webhook(URL, data=state)
        rows.change(
            app,
            "UPDATE stepfast_outbox SET state = :state, created_at = 1, ended_at = 1 WHERE id = :id",
            state=state,
            id=message.id,
        )
    young = app.send_webhook(URL, data="young")
    rows.change(
        app,
        "UPDATE stepfast_outbox SET state = 'sent', ended_at = :now WHERE id = :id",
        now=rows.now(app),
        id=young.id,
    )

    counts = []
    for _ in range(3):
        with app.transaction() as tx:
            counts.append(prune_outbox(tx, rows.DAY, 2))

    assert counts == [2, 1, 0]
    assert sorted(json.loads(row["body"]) for row in staged(app)) == ["dead", "waiting", "young"]


def test_destinations_that_nobody_uses_are_forgotten_and_met_again(
    app: Stepfast, receiver: HttpReceiver
) -> None:
    from stepfast.worker.relay import Relay

    relay = Relay(app.database, SETTINGS)
    app.send_webhook(receiver.url(), data=1)
    relay.drain()
    rows.change(app, "UPDATE stepfast_destination SET leased_until = 1")

    with app.transaction() as tx:
        prune_outbox(tx, rows.DAY, 10)
    assert rows.count(app, "stepfast_destination") == 0
    app.send_webhook(receiver.url(), data=2)
    relay.drain()

    assert receiver.bodies == [1, 2]


# Secrets


def test_no_secret_is_in_any_row(app: Stepfast, receiver: HttpReceiver) -> None:
    from stepfast.worker.relay import Relay

    urls = (
        "json://user:hunter22@127.0.0.1:1/tokenpath",
        "slack://TOKENAAAA/TOKENBBBB/TOKENCCCCCCCCCCCCCCCCCCCC",
    )
    settings = NotificationSettings(
        webhook_secrets=(SECRET,), webhook_allow=("127.0.0.1",), alert_urls=urls[:1]
    )
    receiver.fail(1)
    app.send_webhook(receiver.url(), data=1)
    app.alert("cause", "password=hunter23 was wrong", "mailto://u:hunter24@host refused token=hunter25")

    Relay(app.database, settings).drain()

    text = json.dumps([rows.query(app, f"SELECT * FROM {it}") for it in _tables(app)], default=str)
    assert "cause" in text
    for secret in (SECRET.removeprefix("whsec_"), "hunter2", "tokenpath"):
        assert secret not in text


def _tables(app: Stepfast) -> list[str]:
    look = {
        "sqlite": "SELECT name AS t FROM sqlite_schema WHERE type = 'table' AND name LIKE 'stepfast%'",
        "postgresql": "SELECT tablename AS t FROM pg_tables WHERE schemaname = 'public'",
        "mariadb": "SELECT table_name AS t FROM information_schema.tables WHERE table_schema = database()",
    }[app.database.dialect.name]
    found = [str(row["t"]) for row in rows.query(app, look)]
    assert len(found) > 8
    return found


def test_an_idle_job_claims_nothing_of_the_outbox(app: Stepfast) -> None:
    app.send_webhook(URL, data=1)

    assert claim(app) == []
