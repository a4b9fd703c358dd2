"""`with_retry`: how often it retries, how long it waits, and which errors it raises at once."""

from __future__ import annotations

import asyncio
import time

import pytest

from stepfast import ConfigurationError, PermanentError, with_retry


class Unsteady:
    """Fails so many times, then answers."""

    def __init__(self, failures: int, error: type[Exception] = ConnectionError) -> None:
        self.failures = failures
        self.error = error
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error(f"attempt {self.calls}")
        return "connected"

    async def later(self) -> str:
        await asyncio.sleep(0)
        return self()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited, without waiting them."""
    found: list[float] = []
    pause = asyncio.sleep

    async def asleep(seconds: float) -> None:
        if seconds:
            found.append(seconds)
        await pause(0)

    monkeypatch.setattr(time, "sleep", found.append)
    monkeypatch.setattr(asyncio, "sleep", asleep)
    return found


def test_three_attempts_with_one_and_two_seconds_between_them(waits: list[float]) -> None:
    source = Unsteady(2)

    assert with_retry(source) == "connected"

    assert source.calls == 3
    assert waits == [1.0, 2.0]


def test_a_coroutine_function_is_awaited_and_tried_as_often(waits: list[float]) -> None:
    source = Unsteady(2)

    async def connect() -> str:
        return await with_retry(source.later)

    assert asyncio.run(connect()) == "connected"
    assert waits == [1.0, 2.0]


def test_a_plain_function_that_answers_a_coroutine_is_awaited_too(waits: list[float]) -> None:
    source = Unsteady(1)

    async def connect() -> str:
        return await with_retry(lambda: asyncio.ensure_future(source.later()))

    assert asyncio.run(connect()) == "connected"
    assert source.calls == 2
    assert waits == [1.0]


def test_the_last_error_is_raised_as_it_is(waits: list[float]) -> None:
    source = Unsteady(5)

    with pytest.raises(ConnectionError, match="attempt 3"):
        with_retry(source)

    assert source.calls == 3
    assert waits == [1.0, 2.0]


def test_on_retry_is_told_of_every_attempt_after_which_there_is_another(waits: list[float]) -> None:
    told: list[tuple[str, int]] = []

    with pytest.raises(ConnectionError):
        with_retry(Unsteady(5), on_retry=lambda error, attempt: told.append((str(error), attempt)))

    assert told == [("attempt 1", 1), ("attempt 2", 2)]
    assert len(waits) == len(told)


def test_attempts_delay_and_factor_can_be_chosen(waits: list[float]) -> None:
    assert with_retry(Unsteady(3), attempts=4, delay="100ms", factor=3) == "connected"

    assert waits == pytest.approx([0.1, 0.3, 0.9])


@pytest.mark.usefixtures("waits")
def test_what_no_retry_can_help_is_raised_at_once() -> None:
    source = Unsteady(1, PermanentError)

    with pytest.raises(PermanentError):
        with_retry(source)

    assert source.calls == 1


@pytest.mark.usefixtures("waits")
def test_only_the_errors_that_were_named_are_tried_again() -> None:
    source = Unsteady(1, ValueError)

    with pytest.raises(ValueError, match="attempt 1"):
        with_retry(source, only=ConnectionError)

    assert source.calls == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"attempts": 0}, "at least once"),
        ({"attempts": True}, "at least once"),
        ({"attempts": "3"}, "attempts='3'.: a whole number"),
        ({"attempts": 2.5}, "a whole number"),
        ({"factor": "2"}, "waits must not shrink"),
        ({"factor": 0.5}, "must not shrink"),
        ({"delay": "soon"}, "not a duration"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_called(
    options: dict[str, object], sentence: str
) -> None:
    source = Unsteady(0)

    with pytest.raises(ConfigurationError, match=sentence):
        with_retry(source, **options)  # type: ignore[call-overload]

    assert source.calls == 0
