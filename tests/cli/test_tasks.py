"""`holdfast tasks` and `holdfast config`: hand a task in, see what became of it, know what is in force."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.database.database import persist
from holdfast.tasks.acceptance import Origin, accept
from holdfast.tasks.envelope import read
from holdfast.testing import drain
from holdfast.transports.database import DatabaseTransport
from tests import rows

if TYPE_CHECKING:
    from holdfast import Holdfast
    from holdfast.testing.azurite import Azurite
    from tests.cli.conftest import Cli

NAMES = ("CLIENT_ID", "TASK_DATA", "SUPABASE_URL", "HOLDFAST_TRANSPORT", "AZURE_STORAGE_CONNECTION_STRING")


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, "HOLDFAST_DATABASE_URL"):
        monkeypatch.setenv(name, "")


def stored(app: Holdfast, task_type: str, task_id: str = "t-1", client: str = "default") -> str:
    text = json.dumps({"task_id": task_id, "task_type": task_type, "webhook_url": "https://a.example/?key=1"})
    return persist(app.database, lambda tx: accept(tx, Origin(client, "memory"), read(text))).job_id


def test_a_task_is_sent_to_the_clients_queue(cli: Cli, app: Holdfast) -> None:
    said = cli("tasks", "send", "ingest", "--payload", '{"a": 1}', "--id", "t-1", "--client", "south")

    assert said == "task t-1 is in queue south-tasks (database)\n"
    transport = DatabaseTransport(app.database)

    async def look() -> Any:
        from datetime import timedelta

        return await transport.receive("south-tasks", at_most=5, wait=timedelta(0), hold=timedelta(seconds=1))

    (message,) = asyncio.run(look())
    assert json.loads(message.body) == {
        "schema_version": 1,
        "task_id": "t-1",
        "task_type": "ingest",
        "payload": {"a": 1},
    }


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--payload", "nonsense"), "payload: it is no JSON"),
        (("--payload", "[1]"), "payload is no object"),
        (("--webhook-url", "ftp://a"), "webhook_url"),
        (("--id", " "), "task_id"),
    ],
)
def test_what_no_worker_would_take_is_not_sent(cli: Cli, words: tuple[str, ...], complaint: str) -> None:
    assert complaint in cli("tasks", "send", "ingest", *words, code=1)


@pytest.mark.only_on("sqlite")
def test_a_container_that_was_handed_no_task_does_not_poll(cli: Cli) -> None:
    assert "TASK_DATA is set and empty" in cli("tasks", "work", "nowhere:app", code=1)


def test_tasks_are_listed_with_what_became_of_them(cli: Cli, app: Holdfast) -> None:
    @app.task("good")
    def good() -> str:
        return "done"

    stored(app, "good", "t-1")
    stored(app, "good", "t-2", client="south")
    drain(app, limit=1)

    states = sorted(it["state"] for it in cli.json("tasks", "list"))
    assert states == ["done", "ready"]
    assert [it["task_id"] for it in cli.json("tasks", "list", "--client", "south")] == ["t-2"]
    assert len(cli.json("tasks", "list", "--state", "done")) == 1
    assert "t-2" in cli("tasks", "list")


def test_a_task_is_shown_by_its_id_or_its_jobs(cli: Cli, app: Holdfast) -> None:
    @app.task("good")
    def good() -> str:
        return "well done"

    job_id = stored(app, "good")
    drain(app)

    said = cli("tasks", "show", "t-1")
    assert "well done" in said
    assert "waiting to https://a.example/" in said
    assert "key=1" not in said
    assert cli.json("tasks", "show", job_id)["task"]["task_id"] == "t-1"
    assert "there is no task" in cli("tasks", "show", "t-9", code=1)


def test_the_settings_in_force_are_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_ID", "southhaven")

    found = {it["variable"]: it for it in cli.json("config")}

    assert (found["CLIENT_ID"]["value"], found["CLIENT_ID"]["source"]) == ("southhaven", "environment")
    assert found["HOLDFAST_DATABASE_URL"]["source"] == "given"
    assert "southhaven" in cli("config")


def test_settings_that_cannot_work_are_shown_and_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_ID", "South")

    assert "CLIENT_ID" in cli("config", code=1)


@pytest.mark.only_on("sqlite")
def test_the_doctor_looks_at_broker_and_blobs(
    cli: Cli, azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIENT_ID", "doctor")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)

    missing = {it["name"]: it for it in cli.json("doctor")["findings"]}
    assert missing["broker"]["level"] == "warn"
    assert missing["blobs"]["level"] == "ok"

    cli("tasks", "send", "ingest")
    found = {it["name"]: it for it in cli.json("doctor")["findings"]}
    assert "storage-queue lets us in; doctor-tasks has 1 message" in found["broker"]["found"]

    wrong = azurite.connection_string.replace("AccountKey=", "AccountKey=AAAA")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", wrong)
    refused = {it["name"]: it for it in cli.json("doctor", code=1)["findings"]}
    assert refused["blobs"]["level"] == "fail"
    assert "AAAA" not in str(refused)


def test_a_receiver_that_was_told_on_this_database_is_shown(cli: Cli, app: Holdfast) -> None:
    stored(app, "any")
    rows.change(
        app,
        "INSERT INTO holdfast_received (id, task_id, client, task_type, status, received_at, body) "
        "VALUES ('w-1', 't-1', 'default', 'any', 'completed', 1, '{}')",
    )

    assert "completed at 1970-01-01" in cli("tasks", "show", "t-1")
