"""The environment of `stepfast tasks`: problems are reported at once, secrets never."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path

import pytest

import stepfast
from stepfast import Stepfast
from stepfast.errors import ConfigurationError
from stepfast.tasks.settings import TaskSettings, explain, read_env_file, task_settings, variables

STORAGE = "DefaultEndpointsProtocol=https;AccountName=acct;AccountKey=c2VjcmV0"
BUS = "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0"


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("STEPFAST_", "WORKER_", "AZURE_", "SUPABASE", "SERVICEBUS")):
            monkeypatch.delenv(name)
    for name in ("CLIENT_ID", "TASK_DATA"):
        monkeypatch.delenv(name, raising=False)


def given(monkeypatch: pytest.MonkeyPatch, **environment: str) -> TaskSettings:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return task_settings()


def problems(monkeypatch: pytest.MonkeyPatch, **environment: str) -> list[str]:
    with pytest.raises(ConfigurationError) as found:
        given(monkeypatch, **environment)
    first, *rest = str(found.value).splitlines()
    assert first == "the settings cannot work:"
    return [it.strip() for it in rest]


def test_nothing_has_to_be_set() -> None:
    found = task_settings()

    assert (found.client_id, found.task_data, found.chosen_transport) == ("default", None, "database://")
    assert (found.task_timeout, found.chosen_database) == (None, None)


def test_empty_variables_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    found = given(monkeypatch, CLIENT_ID="", TASK_DATA="", WORKER_TASK_TIMEOUT="", SUPABASE_URL="")

    assert (found.client_id, found.task_data, found.task_timeout) == ("default", None, None)


def test_all_problems_are_listed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = problems(
        monkeypatch,
        CLIENT_ID="South_Haven",
        WORKER_TASK_TIMEOUT="soon",
        WORKER_CONCURRENCY="many",
        WORKER_MAX_RETRIES="-1",
        WORKER_ACKNOWLEDGE="sometimes",
        WORKER_GRACE="0",
        STEPFAST_TRANSPORT="rabbitmq://host",
        AZURE_STORAGE_CONNECTION_STRING="hunter2",
        AZURE_SERVICE_BUS_CONNECTION_STRING="hunter2",
        SUPABASE_URL="https://abc.supabase.co",
        STEPFAST_WEBHOOK_TIMEOUT="9h",
        STEPFAST_OUTBOX_ATTEMPTS="some",
        STEPFAST_MAX_CONNECTIONS="all",
        STEPFAST_LOG_LEVEL="loud",
        STEPFAST_LOG_FORMAT="prose",
        STEPFAST_METRICS_PORT="abc",
        STEPFAST_SECRET_KEY="hunter2",
    )

    names = {it.replace(":", " ").replace("=", " ").split()[0] for it in found}
    assert len(found) == len(names) == 17
    assert "hunter2" not in str(found)


def test_an_https_supabase_url_is_told_which_variable_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = problems(monkeypatch, SUPABASE_URL="https://abc.supabase.co")

    assert "STEPFAST_DATABASE_URL" in found
    assert "postgresql://" in found


def test_beside_a_database_url_it_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    found = given(
        monkeypatch, SUPABASE_URL="https://abc.supabase.co", STEPFAST_DATABASE_URL="postgresql://u:p@h/d"
    )

    assert found.chosen_database == "postgresql://u:p@h/d"


@pytest.mark.parametrize(
    ("name", "url", "said"),
    [
        ("STEPFAST_DATABASE_URL", "oracle://me:hunter2@host/name", "no driver for 'oracle'"),
        ("STEPFAST_DATABASE_URL", "postgresql://me:hunter2@host:door/name", "check host and port"),
        ("STEPFAST_DATABASE_URL", "work.db", "not a database URL"),
        ("STEPFAST_DATABASE_URL", "https://abc.supabase.co", "address of a web API"),
        ("SUPABASE_URL", "postgresql://me:hunter2@host:door/name", "check host and port"),
        ("SUPABASE_URL", "abc", "no URL of Supabase"),
    ],
)
def test_a_url_that_leads_to_no_database_is_one_problem_among_others(
    monkeypatch: pytest.MonkeyPatch, name: str, url: str, said: str
) -> None:
    client, database = problems(monkeypatch, CLIENT_ID="South", **{name: url})

    assert client.startswith("CLIENT_ID")
    assert database.startswith(name)
    assert said in database
    assert "hunter2" not in database


@pytest.mark.parametrize("environment", [{}, {"STEPFAST_DATABASE_URL": "sqlite:////mnt/share/work.db"}])
@pytest.mark.parametrize(("kind", "works"), [("cifs", False), ("nfs4", False), ("ext4", True), ("9p", True)])
def test_a_file_on_a_share_is_refused_before_anything_is_written_to_it(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], kind: str, *, works: bool
) -> None:
    monkeypatch.setattr("stepfast.tasks.settings.disk_of", lambda _: kind)

    if works:
        given(monkeypatch, **environment)
    else:
        (problem,) = problems(monkeypatch, **environment)
        assert problem.startswith("STEPFAST_DATABASE_URL: the SQLite file")
        assert f"network file system ({kind})" in problem


def test_a_supabase_url_that_is_a_database_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert given(monkeypatch, SUPABASE_URL="postgresql://u:p@h/d").chosen_database == "postgresql://u:p@h/d"


@pytest.mark.parametrize(
    ("environment", "transport"),
    [
        ({"AZURE_STORAGE_CONNECTION_STRING": STORAGE}, "storage-queue://"),
        ({"AZURE_STORAGE_ACCOUNT": "acct"}, "storage-queue://"),
        ({"AZURE_SERVICE_BUS_CONNECTION_STRING": BUS}, "service-bus://"),
        ({"SERVICEBUS_CONNECTION_STRING": BUS}, "service-bus://"),
        ({"AZURE_SERVICE_BUS_NAMESPACE": "ns"}, "service-bus://"),
        ({"AZURE_STORAGE_ACCOUNT": "acct", "STEPFAST_TRANSPORT": "service-bus://ns"}, "service-bus://ns"),
    ],
)
def test_the_transport_is_the_one_whose_keys_are_there(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], transport: str
) -> None:
    assert given(monkeypatch, **environment).chosen_transport == transport


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1.5", 1.5), ("10m", 600), (" 2h ", 7200)])
def test_a_bare_number_is_seconds(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    assert given(monkeypatch, WORKER_TASK_TIMEOUT=text).task_timeout == timedelta(seconds=seconds)


def test_what_is_in_force_is_shown_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    given(
        monkeypatch,
        CLIENT_ID="southhaven",
        TASK_DATA='{"task_id": "hunter2"}',
        STEPFAST_DATABASE_URL="postgresql://me:hunter2@host/name",
        AZURE_STORAGE_CONNECTION_STRING=STORAGE,
        STEPFAST_WEBHOOK_SECRETS="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        STEPFAST_ALERT_URLS="slack://hunter2",
        STEPFAST_SECRET_KEY="hunter2 and more characters than anybody can guess",
        STEPFAST_LISTEN_URL="postgresql://me:hunter2@host/name",
        STEPFAST_CALLBACK_URL="https://me:hunter2@host/callbacks",
    )

    found = {it.variable: it for it in explain({})}

    assert (found["CLIENT_ID"].value, found["CLIENT_ID"].source) == ("southhaven", "environment")
    assert (found["WORKER_CONCURRENCY"].value, found["WORKER_CONCURRENCY"].source) == ("10", "default")
    assert found["STEPFAST_DATABASE_URL"].value == "postgresql://me:***@host/name"
    everything = str(found)
    assert not [it for it in ("hunter2", "c2VjcmV0", "MfKQ") if it in everything]


def test_a_file_of_variables_fills_what_the_environment_leaves_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLIENT_ID", "mine")
    monkeypatch.setenv("WORKER_CONCURRENCY", "")  # restored by monkeypatch, whatever the file sets
    monkeypatch.setenv("WORKER_GRACE", "")
    (tmp_path / ".env").write_text("CLIENT_ID=theirs\nWORKER_CONCURRENCY=3\n# words\nWORKER_GRACE='9s'\n")

    names = read_env_file(str(tmp_path / ".env"))

    found = task_settings()
    assert names == {"WORKER_CONCURRENCY", "WORKER_GRACE"}
    assert (found.client_id, found.concurrency, found.grace) == ("mine", 3, timedelta(seconds=9))
    with pytest.raises(ConfigurationError, match="there is no file"):
        read_env_file(str(tmp_path / "nowhere"))


def test_every_variable_is_explained() -> None:
    described = TaskSettings.model_fields

    assert all(described[name].description for name in variables())
    assert all(it.meaning for it in explain({}))


def test_every_variable_that_the_code_reads_is_shown() -> None:
    package = Path(stepfast.__file__).parent
    texts = [it.read_text(encoding="utf-8") for it in package.rglob("*.py") if "testing" not in it.parts]
    read = {name for text in texts for name in re.findall(r"\bSTEPFAST_[A-Z_]+[A-Z]\b", text)}

    assert read - {it.variable for it in explain({})} == set()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("STEPFAST_TRANSPORT", STORAGE),
        ("STEPFAST_TRANSPORT", BUS),
        ("STEPFAST_TRANSPORT", "storage-queue://c2VjcmV0@acct"),
        ("STEPFAST_TRANSPORT", "service-bus://ns?key=c2VjcmV0"),
        ("STEPFAST_TRANSPORT", "service-bus://ns;SharedAccessKey=c2VjcmV0"),
        ("STEPFAST_TRANSPORT", "x://[c2VjcmV0@"),
        ("CLIENT_ID", STORAGE),
        ("CLIENT_ID", BUS),
    ],
)
def test_a_key_in_the_wrong_variable_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    (problem,) = problems(monkeypatch, **{name: text})

    assert problem.startswith(name)
    assert "c2VjcmV0" not in problem + str(explain({}))


def test_a_key_in_the_address_of_supabase_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPABASE_URL", "https://x.supabase.co?apikey=c2VjcmV0")

    assert "c2VjcmV0" not in str(explain({}))


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"STEPFAST_TRANSPORT": "service-bus"}, "AZURE_SERVICE_BUS_CONNECTION_STRING"),
        ({"STEPFAST_TRANSPORT": "storage-queue://"}, "AZURE_STORAGE_CONNECTION_STRING"),
        ({"STEPFAST_TRANSPORT": "database://elsewhere"}, "own database"),
        ({"AZURE_STORAGE_ACCOUNT": "My_Account"}, "3 to 24"),
        ({"AZURE_STORAGE_ACCOUNT": "https://acct.example/?sv=1&sig=c2VjcmV0"}, "without keys"),
        ({"AZURE_SERVICE_BUS_NAMESPACE": BUS}, "AZURE_SERVICE_BUS_CONNECTION_STRING"),
        ({"STEPFAST_METRICS_PORT": "65536"}, "0 for any that is free"),
        ({"STEPFAST_METRICS_PORT": "1" * 5_000}, "0 for any that is free"),
        ({"STEPFAST_WEBHOOK_ALLOW": "http://me:c2VjcmV0@host/"}, "neither a host nor a network"),
        ({"WORKER_MAX_RETRIES": "+1"}, "0 to 1000"),
        ({"WORKER_MAX_RETRIES": "1001"}, "0 to 1000"),
        ({"WORKER_TASK_TIMEOUT": "1e3"}, "not a duration"),
        ({"CLIENT_ID": "a" * 51}, "at most 50"),
        ({"CLIENT_ID": "a-" * 49 + "a"}, "at most 50"),
    ],
)
def test_settings_with_which_no_worker_can_start_are_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], said: str
) -> None:
    (problem,) = problems(monkeypatch, **environment)

    assert said in problem
    assert "c2VjcmV0" not in problem + str(explain({}))


def test_the_longest_client_has_a_queue_for_its_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    client = given(monkeypatch, CLIENT_ID="a" * 50).client_id

    assert len(f"{client}-tasks-poison") == 63


def test_one_task_needs_no_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    assert given(monkeypatch, TASK_DATA="{}", STEPFAST_TRANSPORT="service-bus").task_data is not None


@pytest.mark.parametrize(("name", "text"), [("WORKER_MAX_RETRIES", "+1"), ("WORKER_TASK_TIMEOUT", "1e3")])
def test_a_handler_reads_them_as_the_settings_do(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv(name, text)

    with pytest.raises(ConfigurationError, match=name):
        Stepfast("sqlite:///unused.db").task("ingest")(lambda: None)
