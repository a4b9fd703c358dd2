"""Credentials and tokens appear in no log, error, row, audit entry or output, even if the source repeats them."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from stepfast.cli.command import app as commands
from stepfast.errors import StepfastError
from stepfast.testing import drain
from stepfast_diamonds import client
from stepfast_diamonds.client import NivodaAnswer, read_answer
from stepfast_diamonds.feed import LABGROWN, NATURAL, nivoda
from stepfast_diamonds.schema import prepare
from stepfast_diamonds.simulator import Simulator
from tests.diamonds.asking import KEY, settings_for

if TYPE_CHECKING:
    from stepfast import Stepfast

LOOKS = (
    ("runs", "list"),
    ("runs", "show", NATURAL),
    ("runs", "show", LABGROWN),
    ("partitions", "list", "--run", NATURAL),
    ("jobs", "list", "--limit", "500"),
    ("dead-letters", "list"),
    ("quarantine", "list"),
    ("alerts", "list"),
    ("audit",),
    ("limits", "list"),
)


def gossip(monkeypatch: pytest.MonkeyPatch, secrets: list[str]) -> None:
    """The source repeats all it knows, in one of three answers, and in one of ten so that a partition fails."""
    number = count(1)

    def told(status: int, headers: Any, body: bytes, hide: Any) -> NivodaAnswer:
        here = next(number)
        said = f"Internal error for {' and '.join(secrets)}"
        if token := _token_in(body):
            secrets.append(token)
        elif here % 10 == 0:
            return read_answer(400, {}, json.dumps({"errors": [{"message": said}]}).encode(), hide)
        elif here % 3 == 0:
            return read_answer(
                200, {}, json.dumps({"data": None, "errors": [{"message": said}]}).encode(), hide
            )
        return read_answer(status, headers, body, hide)

    monkeypatch.setattr(client, "read_answer", told)


def _token_in(body: bytes) -> str | None:
    found = (json.loads(body).get("data") or {}).get("authenticate") or {}
    return (found.get("username_and_password") or {}).get("token")


def started(app: Stepfast, feed: str) -> None:
    """Of such a source not every request is answered."""
    for _ in range(5):
        with suppress(StepfastError):
            app.runs.start(feed)
            return


@pytest.mark.only_on("sqlite")
def test_no_secret_is_found_anywhere_after_a_run_that_met_everything(
    app: Stepfast, database_url: str, caplog: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    prepare(app)
    with Simulator("100+40-labgrown", seed=7, faults="none,no_certificate_prob=0.02") as sim:
        secrets = [sim.username, sim.password, KEY]
        gossip(monkeypatch, secrets)
        nivoda(
            app,
            settings=settings_for(sim, secret_key=KEY),
            natural={"settle": "0s"},
            labgrown={"settle": "0s"},
        )
        for feed in (NATURAL, LABGROWN):
            started(app, feed)
            drain(app, with_scheduled=True, raise_errors=False, concurrency=4, timeout="60s")
            sim.revoke_tokens()
        app.runs.by("somebody", reason="to see what is written").retry(NATURAL)
        drain(app, with_scheduled=True, raise_errors=False, concurrency=4, timeout="60s")
    environment = {"NIVODA_URL": sim.url, "NIVODA_USERNAME": sim.username, "NIVODA_PASSWORD": sim.password}
    shown = [
        CliRunner().invoke(commands, ["--database-url", database_url, *words], env={"COLUMNS": "500"}).output
        for words in LOOKS
    ]
    gone = CliRunner().invoke(commands, ["diamonds", "heatmap", NATURAL], env=environment)
    app.close()
    file = Path(database_url.removeprefix("sqlite:///"))
    stored = b"".join(it.read_bytes() for it in file.parent.glob(f"{file.name}*")).decode("utf8", "replace")

    seen = {
        "log": caplog.text,
        "output": "".join(capsys.readouterr()),
        "database": stored,
        "commands": "\n".join(shown) + gone.output + str(gone.exception),
    }
    assert len(secrets) > 4, "several tokens"
    assert "Internal error for *** and ***" in seen["database"], "the source was quoted"
    assert "Internal error for *** and ***" in seen["commands"]
    assert [(where, it) for where, text in seen.items() for it in secrets if it in text] == []
