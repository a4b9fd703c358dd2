"""A periodic thread: when it calls its duties, what it reports, and that it stops at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.errors import UnreachableError
from stepfast.worker import periodic
from stepfast.worker.periodic import NEVER, Outage, Periodic
from tests.support import rows
from tests.support.events import hearing, named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic, "AWAY", 0.01)
    monkeypatch.setattr(periodic, "FAILED", 0.01)


class Script:
    """A duty that answers with these values, one after the other, and with the last one from then on."""

    def __init__(self, *answers: float | Exception) -> None:
        self._answers = list(answers)
        self.calls: list[float] = []  # when

    def __call__(self) -> float:
        self.calls.append(time.monotonic())
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def run() -> Iterator[Callable[..., Periodic]]:
    started: list[Periodic] = []

    def start(*duties: Callable[[], float], **options: Any) -> Periodic:
        thread = Periodic("counting", "w-1", **options)
        for duty in duties:
            thread.add(duty)
        thread.start()
        started.append(thread)
        return thread

    yield start
    for thread in started:
        thread.stop()


def test_a_duty_is_called_after_the_pause_that_it_returned(run: Callable[..., Periodic]) -> None:
    duty = Script(0.05, NEVER)

    run(duty)

    rows.eventually(lambda: len(duty.calls) == 2)
    assert duty.calls[1] - duty.calls[0] >= 0.05


def test_duties_have_pauses_of_their_own_and_are_called_in_their_order(run: Callable[..., Periodic]) -> None:
    often, rarely = Script(0.01), Script(60.0)

    run(often, rarely)

    rows.eventually(lambda: len(often.calls) > 3)
    assert len(rarely.calls) == 1
    assert often.calls[0] <= rarely.calls[0]


def test_duties_with_the_pause_of_the_first_one_are_called_at_every_beat(
    run: Callable[..., Periodic],
) -> None:
    def slow() -> float:
        time.sleep(0.02)
        return 0.05

    beat, last = Script(0.05), Script(0.05)

    run(beat, slow, last)

    rows.eventually(lambda: len(last.calls) >= 4)
    assert len(beat.calls) - len(last.calls) <= 1


def test_the_first_duty_sets_the_beat_of_the_others(run: Callable[..., Periodic]) -> None:
    beat, restless = Script(0.1), Script(0.0)

    run(beat, restless)

    rows.eventually(lambda: len(restless.calls) == 3)
    assert len(beat.calls) == 3


@pytest.mark.usefixtures("impatient")
def test_an_outage_is_reported_once_and_its_end_as_well(run: Callable[..., Periodic]) -> None:
    duty = Script(UnreachableError("gone"), UnreachableError("gone"), UnreachableError("gone"), 0.01)

    with hearing() as told:
        run(duty)
        rows.eventually(lambda: len(duty.calls) > 5)

    ours = [(event, facts["note"]) for event, facts in told if facts.get("worker_id") == "w-1"]
    assert ours == [("database.lost", "counting waits"), ("database.recovered", "counting goes on")], told


@pytest.mark.usefixtures("impatient")
def test_each_outage_is_reported(run: Callable[..., Periodic]) -> None:
    duty = Script(UnreachableError("gone"), 0.0, UnreachableError("gone"), NEVER)

    with hearing() as told:
        run(duty)
        rows.eventually(lambda: len(named(told, "database.recovered")) == 2)

    assert len(named(told, "database.lost")) == 2


def test_while_the_database_is_away_no_other_duty_asks_for_it(run: Callable[..., Periodic]) -> None:
    first, second = Script(UnreachableError("gone")), Script(NEVER)

    thread = run(first, second)
    rows.eventually(lambda: first.calls)
    thread.stop()

    assert second.calls == []


@pytest.mark.usefixtures("impatient")
def test_an_outage_that_one_duty_meets_is_over_when_that_duty_gets_an_answer(
    run: Callable[..., Periodic],
) -> None:
    sound, broken = Script(0.01), Script(*[UnreachableError("gone")] * 5, NEVER)

    with hearing() as told:
        run(sound, broken)
        rows.eventually(lambda: named(told, "database.recovered"))

    assert len(broken.calls) == 6
    assert len(named(told, "database.lost")) == 1


@pytest.mark.usefixtures("impatient")
def test_a_duty_that_fails_keeps_no_other_duty_from_its_work(run: Callable[..., Periodic]) -> None:
    broken, sound = Script(ZeroDivisionError("a bug of ours")), Script(0.01)

    with hearing() as told:
        run(broken, sound)
        rows.eventually(lambda: len(sound.calls) > 3 and len(broken.calls) > 3)

    assert {it["note"] for it in named(told, "worker.failed")} == {"counting"}


def test_a_wake_up_ends_the_pause_of_the_first_duty_only(run: Callable[..., Periodic]) -> None:
    first, second = Script(NEVER), Script(NEVER)
    thread = run(first, second)
    rows.eventually(lambda: second.calls)

    thread.wake()

    rows.eventually(lambda: len(first.calls) == 2)
    assert len(second.calls) == 1


def test_a_duty_that_is_woken_all_the_time_rests_in_between() -> None:
    duty = Script(NEVER)
    thread = Periodic("counting")
    thread.rest = 0.05
    thread.add(duty)
    thread.start()

    while len(duty.calls) < 4:
        thread.wake()
        time.sleep(0.001)
    thread.stop()

    pauses = [after - before for before, after in zip(duty.calls, duty.calls[1:], strict=False)]
    assert min(pauses) >= 0.05


def test_it_stops_at_once_in_the_middle_of_a_pause(run: Callable[..., Periodic]) -> None:
    duty = Script(60.0)
    thread = run(duty)
    rows.eventually(lambda: duty.calls)

    began = time.monotonic()
    thread.stop()

    assert time.monotonic() - began < 1.0
    assert len(duty.calls) == 1


def test_a_last_call_comes_after_the_stop(run: Callable[..., Periodic]) -> None:
    stopped: list[bool] = []

    def duty() -> float:
        stopped.append(thread.stopping.is_set())
        return NEVER

    thread = run(duty, last_call=True)
    rows.eventually(lambda: stopped)

    thread.stop()

    assert stopped == [False, True]


def test_what_was_never_started_can_be_stopped() -> None:
    thread = Periodic("counting")
    thread.add(Script(NEVER))

    thread.stop()

    assert thread.stopping.is_set()


def test_an_outage_lasts_until_the_database_has_answered() -> None:
    outage = Outage("claiming")

    with hearing() as told:
        outage.end()
        outage.begin(UnreachableError("gone"))
        outage.begin(UnreachableError("gone"))
        assert outage.lasts
        outage.end()
        outage.end()

    assert (len(named(told, "database.lost")), len(named(told, "database.recovered"))) == (1, 1)
    assert not outage.lasts
