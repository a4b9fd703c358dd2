"""The options of isolated handlers: which are refused, memory sizes, and when a process is replaced."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from multiprocessing import current_process
from typing import Any

import pytest

from stepfast import Retry, Stepfast
from stepfast.config import WorkerSettings, size, spoken_size
from stepfast.errors import ConfigurationError, StepCrashed
from stepfast.jobs.kinds import Isolation, checked_isolation
from stepfast.jobs.outcome import Again, Bury
from stepfast.jobs.retry import judge_crash
from stepfast.worker import worker as recycling
from stepfast.worker.isolation import protocol
from stepfast.worker.isolation.step import describe_exit
from stepfast.worker.worker import Wear


def handler(n: int) -> None: ...


class Group:
    @staticmethod
    def inside() -> None: ...


@pytest.mark.parametrize(("function", "name"), [(handler, "handler"), (Group.inside, "Group.inside")])
def test_a_handler_is_found_by_its_module_and_name(function: Any, name: str) -> None:
    found = checked_isolation("work", function, "process", "1.5GB")

    assert found == Isolation(__name__, name, 1_500_000_000)


def test_a_handler_that_nobody_else_can_import_is_refused() -> None:
    def local() -> None: ...

    for function in (local, lambda: None, partial(handler, n=1)):
        with pytest.raises(ConfigurationError, match="at the top of a module"):
            checked_isolation("work", function, "process", None)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"isolation": "thread"}, "use 'process'"),
        ({"memory": "1GB"}, "add isolation='process'"),
        ({"isolation": "process", "memory": "lots"}, "such as '512MB'"),
        ({"isolation": "process", "memory": 0}, "more than nothing"),
    ],
)
def test_options_that_cannot_work_are_refused_in_words(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Stepfast().job(**options)(handler)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (17, 17),
        ("17B", 17),
        ("512MB", 512_000_000),
        ("512 MiB", 512 << 20),
        ("1.5gb", 1_500_000_000),
        ("2kB", 2_000),
    ],
)
def test_sizes_are_read_as_people_write_them(text: int | str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "MB", "12", "12XB", "-1MB", "5iB", True, None, 1.5])
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(ConfigurationError, match="memory="):
        size(text, "memory")


def test_sizes_are_spoken_as_people_write_them() -> None:
    assert [spoken_size(it) for it in (12, 2_500, 512_000_000, 1_500_000_000)] == [
        "12 B",
        "2.5 kB",
        "512 MB",
        "1.5 GB",
    ]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (3, "ended with exit code 3"),
        (-11, "was killed by SIGSEGV"),
        (-9, "was killed by SIGKILL (nobody here did"),
        (-250, "was killed by signal 250"),
        (None, "does not answer any more"),
    ],
)
def test_a_crash_says_how_the_process_went(code: int | None, says: str) -> None:
    assert describe_exit(code).startswith(says)


def test_crashes_are_counted_apart_from_failures() -> None:
    retry = Retry(attempts=1, first="10s", factor=2)

    assert judge_crash(StepCrashed("its process ended with exit code 1"), retry, 1, 3, 1.0) == Again(
        timedelta(seconds=20),
        "StepCrashed: its process ended with exit code 1",
        "StepCrashed: its process ended with exit code …",
        charged=False,
        crashed=True,
    )
    last = judge_crash(StepCrashed("its process ended with exit code 1"), retry, 2, 3, 1.0)
    assert isinstance(last, Bury)
    assert last.crashed
    assert last.error.endswith("it crashed 3 times")


def test_a_worker_is_worn_by_age_and_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = WorkerSettings()
    monkeypatch.setattr(recycling, "resident", lambda: 999)
    old = Wear(replace(settings, max_age=timedelta(minutes=1)), can_recycle=True)
    large = Wear(replace(settings, max_memory=1_000), can_recycle=True)
    neither = Wear(settings, can_recycle=False)

    monkeypatch.setattr(recycling, "resident", lambda: 1_000)
    assert [it.is_over() for it in (old, large, neither)] == [False] * 3
    monkeypatch.setattr(recycling, "resident", lambda: 1_001)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    assert [it.is_over() for it in (old, large, neither)] == [True, True, False]


def test_a_worker_that_is_too_large_from_the_start_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"max_memory=1 MB: this worker holds .* before its first step"
    ):
        Wear(WorkerSettings(max_memory=1_000_000), can_recycle=True)


def test_an_age_that_leaves_no_time_to_work_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_age"):
        WorkerSettings(max_age=timedelta(seconds=59))


def test_no_worker_starts_where_isolated_handlers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_process(), "name", protocol.PROCESS_NAME)

    with pytest.raises(ConfigurationError, match="if __name__"):
        protocol.refuse_worker_inside()
