"""`stepfast outbox` and `stepfast alerts`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepfast.notifications.webhook import key_of
from stepfast.outbox.messages import MessageState
from tests.support import rows
from tests.support.mail_receiver import PASSWORD, receiving_mail

if TYPE_CHECKING:
    from stepfast import Stepfast
    from tests.support.command_line import Cli

URL = "https://hooks.example/in?token=hunter2"


def message(app: Stepfast, state: str = "waiting", url: str = URL, error: str | None = None) -> str:
    """A message in this state."""
    made = app.send_webhook(url, data={"order": "A-17"}, type="order.paid", headers={"X-Shop": "7"})
    rows.change(
        app,
        "UPDATE stepfast_outbox SET state = :state, last_error = :error, ended_at = :at WHERE id = :id",
        state=state,
        error=error,
        at=None if state == "waiting" else rows.now(app),
        id=made.id,
    )
    return made.id


def state(app: Stepfast, message_id: str) -> str:
    return app.operator.message(message_id).message.state


def test_messages_are_listed_by_state_channel_and_job(cli: Cli, app: Stepfast) -> None:
    waiting, sent, dead = message(app), message(app, "sent"), message(app, "dead", error="HTTP 410")
    rows.change(app, "UPDATE stepfast_outbox SET job_id = 'job-1' WHERE id = :id", id=dead)

    assert [it["id"] for it in cli.json("outbox", "list")] == [dead, sent, waiting]
    assert [it["id"] for it in cli.json("outbox", "list", "--state", "dead")] == [dead]
    assert [it["id"] for it in cli.json("outbox", "list", "--job", "job-1")] == [dead]
    assert cli.json("outbox", "list", "--job", "job-1", "--state", "sent") == []
    assert cli.json("outbox", "list", "--channel", "alert") == []
    assert len(cli.json("outbox", "list", "--limit", "2")) == 2
    assert "HTTP 410" in cli("outbox", "list")
    assert cli("outbox", "list", "--channel", "alert") == "no messages\n"
    assert len(cli.json("outbox", "list", "--channel", "webhook")) == 3
    for command in ("list", "retry", "purge"):
        assert "nope" in cli("outbox", command, "--channel", "nope", code=2)


def test_what_follows_a_question_mark_is_nowhere_shown(cli: Cli, app: Stepfast) -> None:
    one = message(app, "dead", error="HTTP 410")

    for command in (("list",), ("show", one), ("destinations",)):
        assert "hunter2" not in cli("outbox", *command)
        assert "hunter2" not in str(cli.json("outbox", *command))
    assert cli.json("outbox", "show", one)["message"]["address"] == "https://hooks.example/in?…"


def test_one_message_is_shown_with_its_body(cli: Cli, app: Stepfast) -> None:
    one = message(app, "dead", error="HTTP 410")

    shown = cli.json("outbox", "show", one)
    assert set(shown) == {"message", "destination", "key", "trace", "headers", "body", "behind"}
    assert shown["message"]["last_error"] == "HTTP 410"
    assert shown["body"]["data"] == {"order": "A-17"}
    assert shown["headers"] == {"X-Shop": "7"}
    text = cli("outbox", "show", one)
    assert '"type":"order.paid"' in text
    assert '"data":{"order":"A-17"}' in text
    assert "there is no message nobody" in cli("outbox", "show", "nobody", code=1)


def test_a_message_that_waits_for_others_says_so(cli: Cli, app: Stepfast) -> None:
    first, second = message(app, error="HTTP 503"), message(app)
    behind = "stands behind 1 other to the same address, the first of which failed: HTTP 503"

    assert [cli.json("outbox", "show", it)["behind"] for it in (first, second)] == [None, behind]
    assert behind in " ".join(cli("outbox", "show", second).split())


def test_destinations_tell_what_waits_and_why(cli: Cli, app: Stepfast) -> None:
    message(app, error="HTTP 500")
    message(app)
    message(app, "dead", "https://other.example/")
    message(app, "sent", "https://fine.example/")

    first, second = cli.json("outbox", "destinations")
    assert (first["waiting"], first["dead"], first["last_error"]) == (2, 0, "HTTP 500")
    assert (second["waiting"], second["dead"], second["oldest_at"]) == (0, 1, None)
    assert "https://other.example/" in cli("outbox", "destinations")


def test_nothing_to_see_is_said(cli: Cli) -> None:
    assert cli("outbox", "destinations") == "nothing waits, nothing was given up\n"
    assert cli("alerts", "list") == "no alerts\n"


def test_one_those_that_match_or_all_are_retried(cli: Cli, app: Stepfast) -> None:
    one, other, rest = (
        message(app, "dead"),
        message(app, "dead", "https://other.example/"),
        message(app, "dead"),
    )
    there = app.operator.message(other).destination

    assert cli("outbox", "retry", one) == "1 message waits to be sent\n"
    assert cli.json("outbox", "retry", "--destination", there) == {"retried": 1}
    assert [state(app, it) for it in (one, other, rest)] == ["waiting", "waiting", "dead"]
    assert cli.json("outbox", "retry", "--channel", "alert") == {"retried": 0}
    assert cli("outbox", "retry", "--all") == "1 message waits to be sent\n"
    assert cli("outbox", "retry", "--all") == "0 messages wait to be sent\n"


def test_a_retried_message_has_fresh_tries_and_its_old_place(cli: Cli, app: Stepfast) -> None:
    first, second = message(app, "dead", error="HTTP 500"), message(app)
    rows.change(
        app, "UPDATE stepfast_outbox SET attempts = 12, since_at = 1, due_at = 1 WHERE id = :id", id=first
    )

    cli("outbox", "retry", first)

    found = rows.query(app, "SELECT * FROM stepfast_outbox ORDER BY seq")
    assert [row["id"] for row in found] == [first, second]
    assert (found[0]["attempts"], found[0]["ended_at"]) == (0, None)
    assert found[0]["since_at"] > rows.now(app) - rows.HOUR
    assert found[0]["last_error"] == "HTTP 500"  # until it is sent


def test_one_that_waits_for_its_time_is_tried_now(cli: Cli, app: Stepfast) -> None:
    one = message(app)
    assert "needs no retry" in cli("outbox", "retry", one, code=1)
    rows.change(app, "UPDATE stepfast_outbox SET due_at = :at", at=rows.now(app) + rows.HOUR)

    cli("outbox", "retry", one)

    assert rows.query(app, "SELECT due_at FROM stepfast_outbox")[0]["due_at"] <= rows.now(app)


def test_what_was_sent_is_neither_retried_nor_purged(cli: Cli, app: Stepfast) -> None:
    one = message(app, "sent")

    assert "is sent" in cli("outbox", "retry", one, code=1)
    assert "only dead ones are purged" in cli("outbox", "purge", one, "--yes", code=1)
    assert "there is no message nobody" in cli("outbox", "retry", "nobody", code=1)
    assert state(app, one) == MessageState.SENT


def test_purging_asks_first(cli: Cli, app: Stepfast) -> None:
    one, waiting = message(app, "dead"), message(app)

    cli("outbox", "purge", "--all", answer="n\n", code=1)
    assert state(app, one) == "dead"
    assert "1 message deleted" in cli("outbox", "purge", "--all", answer="y\n")
    assert [it.id for it in app.operator.messages()] == [waiting]
    assert cli("outbox", "purge", "--all") == "0 messages deleted\n"  # nothing to ask about
    other = message(app, "dead")
    assert cli.json("outbox", "purge", other, "--yes") == {"purged": 1}


def test_what_an_operator_does_is_written_down(cli: Cli, app: Stepfast) -> None:
    one = message(app, "dead")
    cli("outbox", "retry", one, "--by", "alice", "--reason", "the receiver is back")
    message(app, "dead")
    cli("outbox", "purge", "--all", "--yes", "--by", "bob")

    found = [
        (it["what"], it["who"], it["subject"], it["why"], it["touched"]) for it in cli.json("audit", "list")
    ]
    assert sorted(found) == [
        ("outbox.purge", "bob", "all", None, 1),
        ("outbox.retry", "alice", one, "the receiver is back", 1),
    ]


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("action", ["retry", "purge"])
@pytest.mark.parametrize(
    "which", [(), ("an-id", "--all"), ("an-id", "--channel", "alert"), ("--channel", "alert", "--all")]
)
def test_which_ones_must_be_said_in_exactly_one_way(cli: Cli, action: str, which: tuple[str, ...]) -> None:
    assert "say which ones" in cli("outbox", action, *which, code=2)


@pytest.mark.only_on("sqlite")
def test_a_secret_is_made(cli: Cli) -> None:
    assert len(key_of(cli("outbox", "secret").strip())) == 32
    assert len(key_of(cli.json("outbox", "secret")["secret"])) == 32


# Alerts


def test_alerts_are_listed_by_cause(cli: Cli, app: Stepfast) -> None:
    app.alert("disk", "The disk is full", "Buy another.", severity="warning")
    app.alert("disk", "The disk is full")
    app.alert("memory", "No memory")

    first, second = cli.json("alerts", "list")
    assert {first["cause"], second["cause"]} == {"disk", "memory"}
    disk = first if first["cause"] == "disk" else second
    assert (disk["raised"], disk["untold"], disk["state"], disk["severity"]) == (2, 2, "unsent", "failure")
    assert "disk" in cli("alerts", "list")
    assert len(cli.json("alerts", "list", "--limit", "1")) == 1


@pytest.mark.only_on("sqlite")
def test_a_test_alert_goes_to_every_place(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving_mail() as box:
        monkeypatch.setenv("STEPFAST_ALERT_URLS", f"{box.url} json://ops:{PASSWORD}@127.0.0.1:1")
        said = cli("alerts", "test", code=1)
        found = cli.json("alerts", "test", code=1)
        monkeypatch.setenv("STEPFAST_ALERT_URLS", box.url)
        assert "ok" in cli("alerts", "test")

    assert box.subjects == ["Stepfast test alert"] * 3
    assert [(it["sent"], it["to"].partition(":")[0]) for it in found] == [(True, "mailto"), (False, "json")]
    assert "****" in said
    assert PASSWORD not in said + str(found)


@pytest.mark.only_on("sqlite")
def test_a_test_alert_without_a_place_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPFAST_ALERT_URLS", raising=False)

    assert "STEPFAST_ALERT_URLS is not set" in cli("alerts", "test", code=1)


def test_on_a_narrow_screen_the_state_of_a_message_and_of_an_alert_is_still_read(
    cli: Cli, app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    app.send_webhook("https://hooks.example/" + "in/" * 20, data=1)
    app.alert("job died: " + "send_invoice " * 8, "A job died", "It did.")

    assert "waiting" in cli("outbox", "list")
    shown = cli("alerts", "list")
    assert "job died: send_invoice" in shown
    assert shown.startswith("state")
