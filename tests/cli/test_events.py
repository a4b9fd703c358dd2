"""`stepfast events` and `stepfast encryption`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepfast import Wait
from stepfast.encryption import key_id
from stepfast.jobs.commit import commit
from tests.support import rows
from tests.support.jobs_in_every_state import greeting, leased

if TYPE_CHECKING:
    from stepfast import Stepfast
    from tests.support.command_line import Cli

pytestmark = pytest.mark.sampled

KEY, OTHER = "the old key that nobody can guess: 40+", "the new key that nobody can guess: 40+"


def waiting(app: Stepfast, name: str = "payment:42") -> str:
    greeting(app).enqueue()
    (lease,) = leased(app)
    with app.transaction() as tx:
        commit(tx, lease, Wait(name, timeout="1h"))
    return lease.job_id


def test_an_event_is_sent_and_written_down(cli: Cli, app: Stepfast) -> None:
    job_id = waiting(app)
    assert "payment:42" in cli("events", "waits")
    assert "waits for" in cli("jobs", "show", job_id)
    assert cli.json("jobs", "show", job_id)["waits_for"] == "payment:42"

    said = cli(
        "events", "send", "payment:42", "--payload", '{"amount": 3}', "--by", "alice", "--reason", "paid"
    )

    assert said == f"job {job_id} has it\n"
    assert rows.state(app, job_id) == "ready"
    assert cli.json("events", "waits") == []
    (entry,) = app.operator.audit()
    assert (entry.who, entry.what, entry.subject, entry.why) == ("alice", "event.send", "payment:42", "paid")


def test_an_event_for_nobody_is_kept_and_listed(cli: Cli, app: Stepfast) -> None:
    app.migrate()
    assert "it is kept" in cli("events", "send", "early", "--payload", "[1]", "--id", "e1")
    assert "nothing happened now" in cli("events", "send", "early", "--id", "e1")
    assert "it is gone" in cli("events", "send", "other", "--keep", "0")

    (kept,) = cli.json("events", "list")
    assert (kept["event"], kept["id"], kept["payload"]) == ("early", "e1", [1])
    assert "early" in cli("events", "list")


@pytest.mark.parametrize(
    "words", [("", "--payload", "1"), ("x", "--payload", "{no"), ("x", "--keep", "soon")]
)
def test_what_is_typed_wrong_is_told(cli: Cli, words: tuple[str, ...]) -> None:
    cli("events", "send", *words, code=2)


def test_encrypted_jobs_are_shown_with_the_key_only(
    cli: Cli, app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPFAST_SECRET_KEY", KEY)

    @app.job(encrypted=True)
    def pay(card: str) -> None: ...

    job_id = pay.enqueue(card="4111").id

    assert cli.json("jobs", "show", job_id)["payload"] == "encrypted"
    assert cli.json("jobs", "show", job_id, "--decrypt")["payload"] == {"card": "4111"}
    assert cli.json("encryption", "list") == [
        {"key": key_id(KEY), "documents": 1, "here": True, "seals": True}
    ]
    monkeypatch.setenv("STEPFAST_SECRET_KEY", OTHER)
    assert "needs key" in cli("jobs", "show", job_id, "--decrypt", code=1)
    cli("encryption", "rotate", code=1)
    monkeypatch.setenv("STEPFAST_SECRET_KEY", f"{OTHER},{KEY}")
    assert f"key {key_id(OTHER)}: 1 rows encrypted anew" in cli("encryption", "rotate")
    assert key_id(OTHER) in cli("encryption", "list")
    monkeypatch.delenv("STEPFAST_SECRET_KEY")
    assert "STEPFAST_SECRET_KEY is not set" in cli("encryption", "rotate", code=1)
