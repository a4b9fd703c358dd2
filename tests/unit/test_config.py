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
    ],
)
def test_queues_are_read_from_a_list_or_a_text(given: Any, queues: tuple[str, ...]) -> None:
    assert worker_settings(queues=given).queues == queues


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
        ({"worker_id": "w" * 101}, "worker_id: 101 characters; at most 100"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        worker_settings(**options)
