"""`stepfast tasks` and `stepfast config`: send a task, follow it, show the settings in force."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from typer.testing import CliRunner

from stepfast.cli.command import app as commands
from stepfast.database.database import persist
from stepfast.notifications.webhook import new_secret
from stepfast.runs.broker import Broker
from stepfast.tasks.envelope import read
from stepfast.tasks.store import Origin, accept_task
from stepfast.testing import drain
from stepfast.transports.contract import Outgoing
from stepfast.transports.database import DatabaseTransport
from tests.support import rows
from tests.support.broker import brokered

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.tasks.receiver import TaskReceiver
    from stepfast.testing.azurite import Azurite
    from tests.support.command_line import Cli

NAMES = ("CLIENT_ID", "TASK_DATA", "SUPABASE_URL", "STEPFAST_TRANSPORT", "AZURE_STORAGE_CONNECTION_STRING")


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, "STEPFAST_DATABASE_URL"):
        monkeypatch.setenv(name, "")


def stored(app: Stepfast, task_type: str, task_id: str = "t-1", client: str = "default") -> str:
    text = json.dumps({"task_id": task_id, "task_type": task_type, "webhook_url": "https://a.example/?key=1"})
    return persist(app.database, lambda tx: accept_task(tx, Origin(client, "memory"), read(text))).job_id


def test_a_task_is_sent_to_the_clients_queue(cli: Cli, app: Stepfast) -> None:
    said = cli("tasks", "send", "ingest", "--payload", '{"a": 1}', "--id", "t-1", "--client", "south")

    assert said == "task t-1 is in queue south-tasks (database)\n"
    transport = DatabaseTransport(app.database)

    async def look() -> Any:
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
        (("--client", "a_b"), "client 'a_b': its queue is called"),
        (("--client", "a" * 51), "at most 50 characters"),
    ],
)
def test_what_no_worker_would_take_is_not_sent(cli: Cli, words: tuple[str, ...], complaint: str) -> None:
    assert complaint in cli("tasks", "send", "ingest", *words, code=1)


@pytest.mark.only_on("sqlite")
def test_a_container_that_was_handed_no_task_does_not_poll(cli: Cli) -> None:
    assert "TASK_DATA is set and empty" in cli("tasks", "work", "nowhere:app", code=1)


def test_tasks_are_listed_with_what_became_of_them(cli: Cli, app: Stepfast) -> None:
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


def test_tasks_of_two_clients_are_not_mixed(cli: Cli, app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    for client in ("alpha", "beta"):
        stored(app, "any", "7", client)
        told = f"('w-{client}', '7', '{client}', 'any', '{client}', 1, '{{}}')"
        rows.change(
            app,
            f"INSERT INTO stepfast_received (id, task_id, client, task_type, status, received_at, body) VALUES {told}",
        )
    rows.change(app, "UPDATE stepfast_task SET received_at = 1 WHERE client = 'alpha'")

    assert len(cli.json("tasks", "list")) == 2
    assert cli.json("tasks", "show", "7")["task"]["client"] == "beta"
    assert [it["status"] for it in cli.json("tasks", "show", "7")["received"]] == ["beta"]

    monkeypatch.setenv("CLIENT_ID", "alpha")
    assert [it["client"] for it in cli.json("tasks", "list")] == ["alpha"]
    found = cli.json("tasks", "show", "7")
    assert (found["task"]["client"], [it["status"] for it in found["received"]]) == ("alpha", ["alpha"])
    assert cli.json("tasks", "show", "7", "--client", "beta")["task"]["client"] == "beta"
    assert "no tasks of client gamma" in cli("tasks", "list", "--client", "gamma")
    assert "no task '7' of client 'gamma'" in cli("tasks", "show", "7", "--client", "gamma", code=1)


def test_a_task_is_shown_by_its_id_or_its_jobs(cli: Cli, app: Stepfast) -> None:
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
    assert found["STEPFAST_DATABASE_URL"]["source"] == "given"
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


async def one_waits_and_one_was_put_aside(transport: DatabaseTransport, first: str, second: str) -> None:
    for queue in (first, second):
        await transport.ensure(queue)
        await transport.send(queue, [Outgoing(id="m-1", body="{}")])
    moment = timedelta(seconds=5)
    (found,) = await transport.receive(second, at_most=1, wait=moment, hold=moment)
    await transport.dead_letter(found, "UnknownType")


@pytest.mark.only_on("sqlite")
def test_the_doctor_looks_at_the_queues_of_an_apps_feeds(
    cli: Cli, app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokered(app, transport=Broker("database://", "pages", "ends"))
    monkeypatch.setitem(sys.modules, "shop_for_the_doctor", SimpleNamespace(app=app))
    transport = DatabaseTransport(app.database)

    def found(target: str) -> list[tuple[str, str, str]]:
        findings = cli.json("doctor", "--app", target)["findings"]
        return [(it["name"], it["level"], it["found"]) for it in findings if it["name"] in {"broker", "app"}]

    assert [it[:2] for it in found("shop_for_the_doctor:app")] == [
        ("broker", "warn")
    ] * 2  # no such queues yet
    asyncio.run(one_waits_and_one_was_put_aside(transport, "pages", "ends"))
    assert found("shop_for_the_doctor:app") == [
        ("broker", "ok", "database lets us in; pages has 1 message"),
        ("broker", "warn", "database lets us in; ends has 0 messages, and 1 message put aside"),
    ]
    ((name, level, said),) = found("nobody_wrote_it:app")  # everything else is looked at all the same
    assert (name, level, "no module 'nobody_wrote_it'" in said) == ("app", "warn", True)


@pytest.mark.only_on("sqlite")
def test_without_an_app_the_environment_names_the_broker_of_the_feeds(
    cli: Cli, app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPFAST_TRANSPORT", "database://")
    rows.change(app, "INSERT INTO stepfast_feed (id) VALUES ('catalogue')")
    for queue in ("work-items", "consolidate"):
        asyncio.run(DatabaseTransport(app.database).ensure(queue))

    def found() -> list[tuple[str, str]]:
        return [(it["level"], it["found"]) for it in cli.json("doctor")["findings"] if it["name"] == "broker"]

    of_runs = [("ok", f"database lets us in; {it} has 0 messages") for it in ("work-items", "consolidate")]
    assert found() == of_runs  # nobody misses a queue of tasks
    monkeypatch.setenv("CLIENT_ID", "south")
    *others, (level, said) = found()
    assert (others, level, "south-tasks" in said) == (of_runs, "warn", True)


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(("secrets", "noted"), [("", True), ("none", False)])
def test_a_missing_secret_is_noted_and_no_problem(
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    secrets: str,
    noted: bool,  # noqa: FBT001 - a case
) -> None:
    monkeypatch.setenv("STEPFAST_WEBHOOK_SECRETS", secrets)

    result = CliRunner().invoke(commands, ["--database-url", cli.url, "config"])

    assert (result.exit_code, "STEPFAST_WEBHOOK_SECRETS is not set" in result.stderr) == (0, noted)


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("words", [("doctor",), ("tasks", "send", "ingest")])
def test_what_azure_logs_is_not_printed_beside_what_we_say(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(logging.getLogger("azure"), "handlers", [])

    cli(*words)

    assert logging.getLogger("azure").handlers


def test_a_receiver_that_was_told_on_this_database_is_shown(cli: Cli, app: Stepfast) -> None:
    stored(app, "any")
    rows.change(
        app,
        "INSERT INTO stepfast_received (id, task_id, client, task_type, status, received_at, body) "
        "VALUES ('w-1', 't-1', 'default', 'any', 'completed', 1, '{}')",
    )

    assert "completed at 1970-01-01" in cli("tasks", "show", "t-1")


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    ("words", "believed"), [((), "ours"), (("--host-name", "partner.example"), "theirs")]
)
def test_the_receiver_believes_its_own_secrets_and_names_the_others(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], believed: str
) -> None:
    secrets = {"ours": new_secret(), "theirs": new_secret()}
    monkeypatch.setenv(
        "STEPFAST_WEBHOOK_SECRETS",
        f"{secrets['ours']} partner.example={secrets['theirs']} x.example={new_secret()}",
    )
    served: list[TaskReceiver] = []
    monkeypatch.setattr(uvicorn, "run", lambda receiver, **_: served.append(receiver))
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    result = CliRunner().invoke(commands, ["--database-url", app.database.url, "tasks", "receiver", *words])

    assert served[0]._secrets == [secrets[believed]]
    assert "x.example" in result.stderr
    assert "are not believed here" in result.stderr
    assert "whsec_" not in result.output
