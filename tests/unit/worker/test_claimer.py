"""How many jobs a worker claims, and how often it asks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.jobs.lease import Lease
from stepfast.worker.claimer import MARGIN, UNHINTED_AFTER_WAKE, UNHINTED_EVERY, Hint
from stepfast.worker.leases import demand

few = settings(max_examples=80, deadline=None, database=None)


def leases(*places: tuple[int, int]) -> list[Lease]:
    """Leases of these (priority, ready_at), as a claim returns them."""
    return [
        Lease("id", "kind", "queue", priority, ready_at, 0, 0, 0, None, None, "{}", 1)
        for priority, ready_at in places
    ]


def test_a_worker_that_knows_nothing_takes_what_it_can_start() -> None:
    now = demand(slots=10, average=0.0, batch=500)

    assert [now.want(held) for held in (0, 4, 9, 10)] == [10, 6, 1, 0]


def test_slow_handlers_get_what_can_start_at_once() -> None:
    now = demand(slots=10, average=5.0, batch=500)

    assert [now.want(held) for held in (0, 9, 10, 50)] == [10, 1, 0, 0]


def test_fast_handlers_get_a_batch_ahead_and_ask_again_when_half_of_it_is_gone() -> None:
    now = demand(slots=10, average=0.0001, batch=500)

    assert now.most == 1010
    assert now.want(0) == 500
    assert now.want(510) == 500
    assert now.want(511) == 0


def test_no_slots_left_means_no_appetite() -> None:
    assert demand(slots=0, average=0.0, batch=500).want(0) == 0


@few
@given(
    slots=st.integers(0, 1000),
    average=st.floats(0, 1000),
    batch=st.integers(1, 5000),
    held=st.integers(0, 20_000),
)
def test_appetite_stays_within_its_bounds(slots: int, average: float, batch: int, held: int) -> None:
    now = demand(slots, average, batch)

    want = now.want(held)

    assert 0 <= want <= batch
    assert held + want <= max(held, slots + 2 * batch)
    if held > now.low_water:
        assert want == 0


@few
@given(average=st.floats(0.000_001, 1000), batch=st.integers(1, 5000), slots=st.integers(1, 1000))
def test_what_a_crash_may_leave_behind_is_a_fifth_of_a_second_of_work(
    average: float, batch: int, slots: int
) -> None:
    ahead = demand(slots, average, batch).most - slots

    assert ahead * average / slots <= 0.2 + 1e-6


def test_the_first_claim_has_no_hint() -> None:
    assert Hint().start(now=100.0) is None


def test_a_full_claim_teaches_where_to_start() -> None:
    hint = Hint()

    hint.learn(leases((5, 9_000_000), (5, 9_000_001)), limit=2, now=100.0, hinted=False)

    assert hint.start(now=100.1) == (5, 9_000_000 - MARGIN)


def test_a_claim_that_came_back_short_forgets_the_hint() -> None:
    hint = Hint()
    hint.learn(leases((5, 1), (5, 2)), 2, 100.0, hinted=False)

    hint.learn(leases((5, 3)), 2, 100.1, hinted=True)

    assert hint.start(100.2) is None


def test_a_claim_over_two_priorities_gives_no_hint() -> None:
    hint = Hint()

    hint.learn(leases((5, 1), (4, 2)), 2, 100.0, hinted=False)

    assert hint.start(100.1) is None


def test_the_whole_queue_is_asked_once_a_second_in_any_case() -> None:
    hint = Hint()
    hint.learn(leases((5, 1), (5, 2)), 2, 100.0, hinted=False)

    hint.learn(leases((5, 3), (5, 4)), 2, 100.0 + UNHINTED_EVERY / 2, hinted=True)

    assert hint.start(100.0 + UNHINTED_EVERY - 0.01) is not None
    assert hint.start(100.001 + UNHINTED_EVERY) is None


def test_a_wake_up_asks_the_whole_queue_soon_because_it_may_mean_more_urgent_work() -> None:
    hint = Hint()
    hint.learn(leases((5, 1), (5, 2)), 2, 100.0, hinted=False)
    hint.woken = True

    assert hint.start(100.0 + UNHINTED_AFTER_WAKE / 2) is not None
    assert hint.start(100.001 + UNHINTED_AFTER_WAKE) is None


def test_a_claim_without_a_hint_answers_the_wake_up() -> None:
    hint = Hint(woken=True)

    hint.learn(leases((5, 1), (5, 2)), 2, 100.0, hinted=False)

    assert not hint.woken
    assert hint.start(100.2) == (5, 1 - MARGIN)


@pytest.mark.parametrize("hinted", [False, True])
def test_an_empty_claim_teaches_nothing(hinted: bool) -> None:  # noqa: FBT001 - a parameter
    hint = Hint()

    hint.learn([], 10, 100.0, hinted=hinted)

    assert hint.start(100.1) is None
