"""Settings of programs and workers: defaults, the environment, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepfast.config import WorkerSettings, database_url, default_worker_id, worker_settings
from stepfast.errors import ConfigurationError


def test_the_url_that_was_given_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_DATABASE_URL", "postgresql://from-environment")

    assert database_url("sqlite:///given.db") == "sqlite:///given.db"
    assert database_url(None) == "postgresql://from-environment"


@pytest.mark.parametrize("value", [None, ""])
def test_without_any_url_a_file_in_the_working_folder_is_used(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv("STEPFAST_DATABASE_URL", raising=False)
    else:
        monkeypatch.setenv("STEPFAST_DATABASE_URL", value)

    assert database_url(None) == "sqlite:///stepfast.db"


def test_what_nobody_sets_stays_at_its_default() -> None:
    settings = worker_settings(worker_id="w")

    assert settings == WorkerSettings(worker_id="w")
    assert (settings.lease, settings.renew_at, settings.crash_limit) == (timedelta(seconds=10), 50, 3)


def test_worker_ids_are_unique_and_fit_the_view() -> None:
    ids = {default_worker_id() for _ in range(50)}

    assert len(ids) == 50
    assert all(len(it) <= 100 for it in ids)


@pytest.mark.parametrize(
    ("given", "queues"),
    [
        ("mail", ("mail",)),
        ("mail, express ,", ("mail", "express")),
        (["a", " b "], ("a", "b")),
        ((), ()),
        ("", ()),
        ("*", ()),
        (["*"], ()),
    ],
)
def test_queues_are_read_from_a_list_or_a_text(given: Any, queues: tuple[str, ...]) -> None:
    assert worker_settings(queues=given).queues == queues


@pytest.mark.parametrize(("wrong", "meant"), [("queue", "queues"), ("concurency", "concurrency")])
def test_an_option_that_does_not_exist_is_refused_with_the_one_that_was_meant(wrong: str, meant: str) -> None:
    options: dict[str, Any] = {wrong: "mail"}

    with pytest.raises(
        TypeError, match=rf"worker\(\) got an unexpected .*'{wrong}'; did you mean '{meant}'\?"
    ):
        worker_settings(**options)


def test_durations_are_read_as_people_write_them() -> None:
    settings = worker_settings(lease="30s", poll_interval="50ms", grace=5, retention=timedelta(days=1))

    assert (settings.lease, settings.poll_interval, settings.grace, settings.retention) == (
        timedelta(seconds=30),
        timedelta(milliseconds=50),
        timedelta(seconds=5),
        timedelta(days=1),
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"concurrency": 0}, "concurrency=0: must lie between 1 and 10000"),
        ({"concurrency": 10_001}, "concurrency=10001"),
        ({"renew_at": 0}, "renew_at=0"),
        ({"renew_at": 95}, "renew_at=95"),
        ({"batch": 0}, "batch=0"),
        ({"crash_limit": 0}, "crash_limit=0"),
        ({"lease": "500ms"}, "lease: below 1 s"),
        ({"lease": "soon"}, "lease: 'soon'"),
        ({"grace": -1}, "grace: -1 is negative"),
        ({"poll_interval": "x"}, "poll_interval: 'x'"),
        ({"poll_interval": 0}, "poll_interval: below 1 ms"),
        ({"worker_id": "w" * 101}, "worker_id: 101 characters; at most 100"),
        ({"worker_id": 7}, "worker_id=7: give a text"),
        ({"concurrency": "3"}, "concurrency='3': must be a whole number between 1 and 10000"),
        ({"concurrency": True}, "concurrency=True: must be a whole number"),
        ({"batch": 2.5}, r"batch=2\.5: must be a whole number"),
        ({"crash_limit": float("nan")}, "crash_limit=nan: must be a whole number"),
        ({"lease": float("nan")}, "lease: nan is not a duration"),
        ({"queues": "no such queue"}, r"queue 'no such queue': use 1 to 120 letters"),
        ({"queues": "-mail"}, "queue '-mail'"),
        ({"queues": [3]}, "queue 3: use"),
        ({"queues": 3}, "queues=3: give a list of names"),
        (
            {"queues": "mail.*"},
            r"queues: 'mail\.\*' names no queue: a worker serves queues by their whole names",
        ),
        ({"queues": "mail,*"}, r"queues: '\*' is all queues; leave the other names out"),
        ({"max_memory": "9" * 400 + "GB"}, r"^max_memory='9{49}: no machine has so many bytes$"),
        ({"max_memory": 2**61}, "no machine has so many bytes"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        worker_settings(**options)
