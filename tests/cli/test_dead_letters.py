"""`stepfast dead-letters`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from stepfast.database.database import persist
from stepfast.transports.contract import Delivery
from stepfast.transports.dead_messages import keep_dead_message
from tests.support import rows
from tests.support.jobs_in_every_state import died, greeting

if TYPE_CHECKING:
    from stepfast import Stepfast
    from tests.support.command_line import Cli


def test_dead_letters_are_listed_and_counted_by_error(cli: Cli, app: Stepfast) -> None:
    greet = greeting(app)
    dead = [died(app, greet, "OSError: no answer") for _ in range(2)]
    died(app, greet, "KeyError: 'a'")

    assert {it["id"] for it in cli.json("dead-letters", "list", "--error", "OSError: no answer")} == set(dead)
    first, _ = cli.json("dead-letters", "list", "--by-error")
    assert set(first) == {"kind", "error_group", "count", "first_at", "last_at", "newest_id"}
    assert (first["kind"], first["error_group"], first["count"]) == ("greet", "OSError: no answer", 2)
    assert "KeyError" in cli("dead-letters", "list", "--by-error")
    assert dead[0] in cli("dead-letters", "list")
    assert cli("dead-letters", "list", "--kind", "other") == "no dead letters\n"


def test_one_dead_letter_is_shown(cli: Cli, app: Stepfast) -> None:
    greet = greeting(app)
    dead, waiting = died(app, greet), greet.enqueue().id

    assert cli.json("dead-letters", "show", dead)["last_error"] == "OSError: no answer"
    assert "is no dead letter" in cli("dead-letters", "show", waiting, code=1)


def test_one_those_that_match_or_all_are_retried(cli: Cli, app: Stepfast) -> None:
    greet = greeting(app)
    one, other, rest = died(app, greet), died(app, greet, "KeyError"), died(app, greet)

    assert cli("dead-letters", "retry", one) == "1 dead letter is ready to be tried again\n"
    assert cli.json("dead-letters", "retry", "--error", "KeyError") == {"retried": 1, "refused": 0}
    assert (rows.state(app, other), rows.state(app, rest)) == ("ready", "dead")
    assert cli.json("dead-letters", "retry", "--all") == {"retried": 1, "refused": 0}
    assert cli("dead-letters", "retry", "--all") == "0 dead letters are ready to be tried again\n"
    assert "no ended job" in cli("dead-letters", "retry", one, code=1)


def put_aside(
    app: Stepfast, message_id: str, reason: str = "UnknownType", body: str = '{"type": "HELLO"}'
) -> str:
    """A message that a broker put aside; returns its id in our list."""
    sent = datetime(2026, 1, 1, tzinfo=UTC)
    letter = Delivery(
        id=message_id,
        body=body,
        queue="work-items",
        attempt=5,
        held_until=sent,
        sent_at=sent,
        subject="HELLO",
        properties={"runId": "r"},
        dead_reason=reason,
        dead_detail="nobody knows it",
    )
    return persist(
        app.database,
        lambda tx: keep_dead_message(tx, letter, transport="service-bus", address="service-bus://"),
    )


def test_messages_of_a_broker_are_in_the_same_list(cli: Cli, app: Stepfast) -> None:
    job, message = died(app, greeting(app)), put_aside(app, "hello")

    text = cli("dead-letters", "list")
    job_row, message_row = cli.json("dead-letters", "list")
    shown = cli.json("dead-letters", "show", message)

    assert all(it in text for it in (job, message, "service-bus:work-items", "UnknownType: nobody knows it"))
    assert (job_row["id"], message_row["id"]) == (job, message)
    assert (message_row["origin"], message_row["message_id"]) == ("service-bus:work-items", "hello")
    assert "body" not in message_row
    assert (shown["body"], shown["properties"]) == ('{"type": "HELLO"}', {"runId": "r"})
    assert '{"type": "HELLO"}' in cli("dead-letters", "show", message)
    secret = put_aside(app, "secret", body='{"type": "HELLO", "password": "a b"}')
    assert cli.json("dead-letters", "show", secret)["body"] == '{"type":"HELLO","password":"***"}'
    assert cli.json("dead-letters", "list", "--kind", "other") == []


def test_one_command_retries_jobs_and_messages(cli: Cli, app: Stepfast) -> None:
    died(app, greeting(app))
    one, other = put_aside(app, "a"), put_aside(app, "b:retry-1", "another")

    assert cli("dead-letters", "retry", one) == "1 dead letter is ready to be tried again\n"
    assert cli.json("dead-letters", "retry", "--all") == {"retried": 2, "refused": 0}
    sent = [
        json.loads(it["headers"])
        for it in rows.query(app, "SELECT headers FROM stepfast_outbox ORDER BY seq")
    ]
    assert [it["message-id"] for it in sent] == ["a:retry-1", "b:retry-2"]
    assert "no ended job" in cli("dead-letters", "retry", other, code=1)


def test_one_command_purges_jobs_and_messages(cli: Cli, app: Stepfast) -> None:
    died(app, greeting(app))
    one = put_aside(app, "a")
    put_aside(app, "b")

    assert cli("dead-letters", "purge", one, "--yes") == "1 dead letter deleted\n"
    assert cli("dead-letters", "purge", "--all", "--yes") == "2 dead letters deleted\n"
    assert rows.count(app, "stepfast_dead_message") == rows.count(app, "stepfast_outbox") == 0


def test_letters_whose_keys_are_taken_are_counted(cli: Cli, app: Stepfast) -> None:
    greet = greeting(app)
    died(app, greet, key="once")
    greet.enqueue(key="once")

    assert cli.json("dead-letters", "retry", "--all") == {"retried": 0, "refused": 1}


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("action", ["retry", "purge"])
@pytest.mark.parametrize(
    "which", [(), ("an-id", "--all"), ("an-id", "--kind", "greet"), ("--kind", "greet", "--all")]
)
def test_which_ones_must_be_said_in_exactly_one_way(cli: Cli, action: str, which: tuple[str, ...]) -> None:
    assert "say which ones" in cli("dead-letters", action, *which, code=2)


def test_purging_asks_first(cli: Cli, app: Stepfast) -> None:
    greet = greeting(app)
    one, spared = died(app, greet), died(app, greet, "KeyError")

    cli("dead-letters", "purge", "--all", answer="n\n", code=1)
    assert rows.state(app, one) == "dead"
    cli("dead-letters", "purge", "--all", answer="", code=1)
    assert rows.state(app, one) == "dead"

    assert "1 dead letter deleted" in cli(
        "dead-letters", "purge", "--error", "OSError: no answer", answer="y\n"
    )
    assert (rows.state(app, one), rows.state(app, spared)) == (None, "dead")
    assert cli.json("dead-letters", "purge", spared, "--yes") == {"purged": 1}
    assert rows.state(app, spared) is None
    assert cli("dead-letters", "purge", "--all") == "0 dead letters deleted\n"  # nothing to ask about
