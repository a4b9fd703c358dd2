"""The step that a handler gets: what it knows, reports and raises."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stepfast import LeaseLostError, Step, StepCancelled, Upsert
from stepfast.errors import ConfigurationError
from stepfast.jobs.lease import Lease
from stepfast.jobs.outcome import Call, Snooze
from stepfast.jobs.step import Halt, Report

LEASE = Lease("id-1", "work", "mail", 3, 5, 2, 1, 1, '{"page":2}', None, "{}", 7)


class Notes:
    """Where the reports of a step go."""

    def __init__(self) -> None:
        self.taken: list[Report] = []

    def put(self, report: Report, /) -> None:
        self.taken.append(report)

    def results_of_parents(self, job_id: str, /) -> dict[str, Any]:
        return {f"parent of {job_id}": 3}


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def step(notes: Notes) -> Step:
    return Step(LEASE, notes, "w-1")


def test_a_step_knows_what_its_parents_answered(step: Step) -> None:
    assert step.parents == {"parent of id-1": 3}
    assert step.parents is step.parents, "asked once"


def test_a_step_says_where_it_stands(step: Step) -> None:
    assert (step.job_id, step.kind, step.queue, step.number) == ("id-1", "work", "mail", 2)
    assert (step.attempt, step.cursor) == (3, {"page": 2})


def test_the_idempotency_key_is_the_same_for_every_try_of_a_step(step: Step, notes: Notes) -> None:
    another_try = Step(LEASE._replace(failures=2, fence=8), notes, "w-2")

    assert step.idempotency_key == another_try.idempotency_key == "id-1:2"


def test_progress_and_log_are_handed_over(step: Step, notes: Notes) -> None:
    step.progress(33.4, "n" * 600)
    step.log("m" * 9_000, level="warning level")

    progress, line = notes.taken
    assert (progress.percent, len(progress.note or "")) == (33, 500)
    assert (len(line.message or ""), line.level) == (8_000, "warning le")


@pytest.mark.parametrize("percent", [-1, 100.5, float("nan")])
def test_progress_outside_a_percentage_is_refused(step: Step, percent: float) -> None:
    with pytest.raises(ConfigurationError, match="between 0 and 100"):
        step.progress(percent)


@pytest.mark.parametrize(
    ("why", "error"),
    [
        (Halt.REPLACED, LeaseLostError),
        (Halt.CANCELLED, StepCancelled),
        (Halt.TIMED_OUT, StepCancelled),
        (Halt.SHUTDOWN, StepCancelled),
    ],
)
def test_a_step_that_should_stop_raises_at_its_next_word(
    step: Step, notes: Notes, why: Halt, error: type[Exception]
) -> None:
    step.halt(why)

    for word in (step.check, lambda: step.progress(1), lambda: step.log("x"), lambda: step.wait(10)):
        with pytest.raises(error):
            word()
    assert step.halted is why
    assert notes.taken == []


def test_the_first_reason_to_stop_stays(step: Step) -> None:
    step.halt(Halt.CANCELLED)
    step.halt(Halt.SHUTDOWN)

    assert step.halted is Halt.CANCELLED


def test_waiting_ends_as_soon_as_the_step_should_stop(step: Step) -> None:
    waiting = threading.Event()
    ended: list[Any] = []

    def wait() -> None:
        waiting.set()
        try:
            step.wait(30)
        except StepCancelled as error:
            ended.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait(10)
    step.halt(Halt.CANCELLED)
    thread.join(10)

    assert ended == ["job id-1: cancelled"]


def test_effects_are_kept_in_the_order_of_their_attaching(step: Step) -> None:
    def change(_: object) -> None: ...

    effect = Upsert("ledger", ["id"], [{"id": 1}])
    step.upsert("ledger", iter([{"id": 1}]), key="id")
    step.upsert("ledger", [{"a": 1, "b": 2}], key=["a", "b"])
    step.effect(change)
    step.effect(effect)

    assert step.effects == [
        Upsert("ledger", ("id",), ({"id": 1},)),
        Upsert("ledger", ("a", "b"), ({"a": 1, "b": 2},)),
        Call(change),
        effect,
    ]


def test_a_snooze_is_checked_where_it_is_made() -> None:
    with pytest.raises(ConfigurationError, match="Snooze"):
        Snooze("soon")


def test_a_step_knows_the_trace_of_its_job(step: Step, notes: Notes) -> None:
    stored = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    of_a_request = Step(LEASE._replace(trace=stored), notes, "w-1")

    assert of_a_request.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert len(step.trace_id) == 32


def test_a_step_takes_names_for_what_it_works_on(step: Step) -> None:
    step.annotate(run_id="r-7", page=3)
    step.annotate(page=4)

    assert step.annotations == {"run_id": "r-7", "page": 4}
    with pytest.raises(ConfigurationError, match=r"job_id=…\): Stepfast says that itself"):
        step.annotate(job_id="mine")
    with pytest.raises(ConfigurationError, match="at most 20 names"):
        step.annotate(**{f"name_{n}": n for n in range(20)})
    assert step.annotations == {"run_id": "r-7", "page": 4}
