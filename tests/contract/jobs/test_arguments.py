"""Arguments given by position, with options or for later are stored under the handler's parameter names."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Job, Step
from stepfast.errors import ArgumentsError, ConfigurationError
from stepfast.job import OPTIONS, EnqueueOptions, PlainJob, StepJob
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Stepfast


def shipping(app: Stepfast) -> Job[..., str]:
    @app.job()
    def ship(step: Step, order_id: str, copies: int = 1) -> str:
        return f"{step.number} {order_id * copies}"

    return ship


def payload(app: Stepfast, job_id: str) -> Any:
    row = rows.live(app, job_id)
    assert row is not None
    return json.loads(row["payload"])


def test_arguments_may_be_given_by_position(app: Stepfast) -> None:
    ship = shipping(app)

    both, first = ship.enqueue("A-17", 2), ship.enqueue("A-18")

    assert payload(app, both.id) == {"order_id": "A-17", "copies": 2}
    assert payload(app, first.id) == {"order_id": "A-18"}


def test_options_may_be_chosen_first(app: Stepfast) -> None:
    ship = shipping(app)

    with app.transaction() as tx:
        job = ship.with_options(tx=tx, key="A-17", priority=7, delay="1h").enqueue("A-17", 2)
        inside = tx.query("SELECT state FROM stepfast_job WHERE id = :id", {"id": job.id})

    row = rows.live(app, job.id)
    assert row is not None
    assert inside == [{"state": "scheduled"}]
    assert (row["unique_key"], row["priority"]) == ("A-17", 7)
    assert payload(app, job.id) == {"order_id": "A-17", "copies": 2}


def test_options_may_be_chosen_first_where_it_is_awaited(app: Stepfast) -> None:
    job = asyncio.run(shipping(app).with_options(priority=7).enqueue_async("A-17"))

    assert payload(app, job.id) == {"order_id": "A-17"}


def test_many_may_be_prepared(app: Stepfast) -> None:
    ship = shipping(app)

    jobs = ship.enqueue_many(
        [ship.with_args("A-17"), {"order_id": "A-18", "copies": 3}, ship.with_args("A-19", 2)]
    )

    assert [payload(app, it.id) for it in jobs] == [
        {"order_id": "A-17"},
        {"order_id": "A-18", "copies": 3},
        {"order_id": "A-19", "copies": 2},
    ]


def test_a_call_of_another_job_is_refused(app: Stepfast) -> None:
    ship = shipping(app)
    other = app.job(name="other")(lambda: None)

    with pytest.raises(ConfigurationError, match="enqueue_many of 'ship' was given a 'other'"):
        ship.enqueue_many([other.with_args()])  # type: ignore[list-item]

    assert rows.count(app, "stepfast_job") == 0


@pytest.mark.parametrize(
    ("args", "given", "problem"),
    [
        (("A-17", 2, 3), {}, "3 were given; the handler takes: order_id, copies"),
        (("A-17",), {"order_id": "A-18"}, "'order_id' was given twice"),
        ((17,), {}, "Expected `str`"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    app: Stepfast, args: tuple[Any, ...], given: dict[str, Any], problem: str
) -> None:
    ship = shipping(app)

    for enqueue in (ship.enqueue, ship.with_options(delay="1h").enqueue, ship.with_args):
        with pytest.raises(ArgumentsError, match=problem):
            enqueue(*args, **given)

    assert rows.count(app, "stepfast_job") == 0


@pytest.mark.only_on("sqlite")
def test_a_job_is_called_as_its_handler_is(app: Stepfast) -> None:
    plain = app.job(name="plain")(lambda n: n + 1)

    assert plain(1) == 2
    assert isinstance(plain, PlainJob)
    assert isinstance(shipping(app), StepJob)


@pytest.mark.only_on("sqlite")
def test_every_option_is_known_to_type_checkers(app: Stepfast) -> None:
    """Each has an overload in which it is required: else a call with it alone would be an error."""
    from typing import get_overloads

    for ways in (Job.enqueue, Job.enqueue_async):
        overloads = [it.__annotations__ for it in get_overloads(ways)]
        assert {name for it in overloads for name in it} - {"args", "kwargs", "rest", "return"} == OPTIONS

    assert set(EnqueueOptions.__annotations__) == OPTIONS
    assert OPTIONS.isdisjoint(shipping(app).kind.arguments.names)
