"""`stepfast audit`, and the entries that other commands write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.jobs_in_every_state import died, expire, greeting, leased

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast
    from tests.support.command_line import Cli

ENTRY = {"id", "at", "ended_at", "who", "what", "subject", "why", "touched", "detail"}


def cancel(app: Stepfast) -> tuple[str, ...]:
    return "jobs", "cancel", greeting(app).enqueue().id


def retry(app: Stepfast) -> tuple[str, ...]:
    return "jobs", "retry", died(app, greeting(app))


def retry_a_letter(app: Stepfast) -> tuple[str, ...]:
    return "dead-letters", "retry", died(app, greeting(app))


def retry_letters(app: Stepfast) -> tuple[str, ...]:
    died(app, greeting(app))
    return "dead-letters", "retry", "--all"


def purge_a_letter(app: Stepfast) -> tuple[str, ...]:
    return "dead-letters", "purge", died(app, greeting(app)), "--yes"


def purge_letters(app: Stepfast) -> tuple[str, ...]:
    died(app, greeting(app))
    return "dead-letters", "purge", "--all", "--yes"


def pause(app: Stepfast) -> tuple[str, ...]:
    greeting(app).enqueue()
    return "queues", "pause", "default"


def resume(app: Stepfast) -> tuple[str, ...]:
    app.operator.by("carol").pause("default")
    return "queues", "resume", "default"


def reset(app: Stepfast) -> tuple[str, ...]:
    greeting(app).enqueue()
    expire(app, leased(app)[0])
    return "leases", "reset"


@pytest.mark.parametrize(
    ("arrange", "what"),
    [
        (cancel, "job.cancel"),
        (retry, "job.retry"),
        (retry_a_letter, "dead-letters.retry"),
        (retry_letters, "dead-letters.retry"),
        (purge_a_letter, "dead-letters.purge"),
        (purge_letters, "dead-letters.purge"),
        (pause, "queue.pause"),
        (resume, "queue.resume"),
        (reset, "leases.reset"),
    ],
)
def test_a_command_says_who_gave_it_and_why(
    cli: Cli, app: Stepfast, arrange: Callable[[Stepfast], tuple[str, ...]], what: str
) -> None:
    cli(*arrange(app), "--by", "alice", "--reason", "it was time")

    (entry,) = cli.json("audit", "list", "--who", "alice")
    assert set(entry) == ENTRY
    assert (entry["what"], entry["why"], entry["touched"]) == (what, "it was time", 1)
    assert entry["at"].endswith("Z")


def test_the_note_of_a_pause_is_its_reason(cli: Cli) -> None:
    cli("queues", "pause", "mail", "--note", "stocktaking")

    assert [it["why"] for it in cli.json("audit", "list")] == ["stocktaking"]
    assert cli.json("queues", "list")[0]["note"] == "stocktaking"


def test_a_pause_may_have_a_reason_besides_its_note(cli: Cli) -> None:
    cli("queues", "pause", "mail", "--note", "back at noon", "--reason", "the provider is down")

    (entry,) = cli.json("audit", "list")
    assert (entry["why"], entry["detail"]) == ("the provider is down", {"note": "back at noon"})
    assert cli.json("queues", "list")[0]["note"] == "back at noon"


def test_who_is_taken_from_the_environment_unless_it_is_said(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPFAST_OPERATOR", "night shift")
    cli("queues", "pause", "mail")
    cli("queues", "resume", "mail", "--by", "carol")

    assert [it["who"] for it in cli.json("audit", "list")] == ["carol", "night shift"]


def test_the_list_is_paged_and_can_be_narrowed(cli: Cli) -> None:
    for queue in ("a", "b", "c"):
        cli("queues", "pause", queue, "--by", f"operator {queue}")

    (newest,) = cli.json("audit", "list", "--limit", "1")
    rest = cli.json("audit", "list", "--before", newest["id"])

    assert [newest["subject"], *(it["subject"] for it in rest)] == ["c", "b", "a"]
    assert [it["who"] for it in cli.json("audit", "list", "--subject", "b")] == ["operator b"]
    assert len(cli.json("audit", "list", "--what", "queue.pause", "--since", "1h")) == 3
    assert "is not a duration" in cli("audit", "list", "--since", "often", code=2)
    assert cli.json("audit", "list", "--what", "queue.resume") == []
    text = cli("audit", "list")
    assert all(words in text for words in ("operator a", "queue.pause"))
    assert cli("audit", "list", "--who", "nobody") == "nobody has done anything that matches\n"
    assert "no audit entry" in cli("audit", "list", "--before", "nothing", code=1)
