"""Every state of runs and partitions is documented, and every change of state is an arrow."""

from __future__ import annotations

from typing import TypeVar

import pytest

from stepfast.errors import StateError
from stepfast.runs.partition import (
    ENDED_PARTITION,
    OPEN_PARTITION,
    PARTITION_TRANSITIONS,
    PartitionState,
    require_partition_transition,
)
from stepfast.runs.run import ACTIVE_RUN, ENDED_RUN, RUN_TRANSITIONS, RunState, require_run_transition

S = TypeVar("S", RunState, PartitionState)

# How the operators' documents draw a run, and what its states are called here.
DRAWN = {
    "Created": RunState.PLANNING,
    "WorkersRunning": RunState.FETCHING,
    "Consolidating": RunState.APPLYING,
    "Completed": RunState.COMPLETED,
    "Failed": RunState.FAILED,
}
DRAWN_ARROWS = [
    ("Created", "WorkersRunning"),
    ("WorkersRunning", "Consolidating"),  # ConsolidationCheck: none failed
    ("WorkersRunning", "Failed"),  # ConsolidationSkipped: some failed
    ("Consolidating", "Completed"),
    ("Consolidating", "Failed"),
]


def test_every_state_of_a_run_has_its_arrows() -> None:
    assert set(RUN_TRANSITIONS) == set(RunState)


def test_every_state_of_a_partition_has_its_arrows() -> None:
    assert set(PARTITION_TRANSITIONS) == set(PartitionState)


@pytest.mark.parametrize(("source", "target"), DRAWN_ARROWS)
def test_a_run_moves_as_the_operators_documents_draw_it(source: str, target: str) -> None:
    assert require_run_transition(DRAWN[source], DRAWN[target])


def test_what_the_documents_lack_is_a_state_and_not_a_guess() -> None:
    """A run that failed, was cancelled or stands still is not shown as active for ever."""
    assert {RunState.CANCELLED, RunState.FAILED_QUALITY, RunState.FAILED} <= set(ENDED_RUN)
    assert RunState.STALLED in ACTIVE_RUN
    assert {*ACTIVE_RUN, *ENDED_RUN} == set(RunState)
    assert {*OPEN_PARTITION, *ENDED_PARTITION} == set(PartitionState)


@pytest.mark.parametrize("state", RunState)
def test_every_state_of_a_run_can_be_reached(state: RunState) -> None:
    assert state in _reachable(RUN_TRANSITIONS, RunState.PLANNING)


@pytest.mark.parametrize("state", PartitionState)
def test_every_state_of_a_partition_can_be_reached(state: PartitionState) -> None:
    assert state in _reachable(PARTITION_TRANSITIONS, PartitionState.READY)


@pytest.mark.parametrize("state", ACTIVE_RUN)
def test_every_active_run_can_be_cancelled_and_can_complete(state: RunState) -> None:
    assert require_run_transition(state, RunState.CANCELLED)
    assert RunState.COMPLETED in _reachable(RUN_TRANSITIONS, state)


def test_a_stalled_run_ends_as_it_would_have_ended_in_the_state_that_it_stalled_in() -> None:
    stalls = [state for state, arrows in RUN_TRANSITIONS.items() if RunState.STALLED in arrows]
    ends = {target for state in stalls for target in RUN_TRANSITIONS[state] if target in ENDED_RUN}

    assert ends == {target for target in RUN_TRANSITIONS[RunState.STALLED] if target in ENDED_RUN}


@pytest.mark.parametrize("state", OPEN_PARTITION)
def test_an_open_partition_can_give_up_and_can_be_cancelled(state: PartitionState) -> None:
    assert require_partition_transition(state, PartitionState.FAILED)
    assert require_partition_transition(state, PartitionState.CANCELLED)


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.PUBLISHED_PARTIAL])
def test_a_published_run_is_never_opened_again(state: RunState) -> None:
    assert RUN_TRANSITIONS[state] == {}


def test_a_run_with_nothing_to_fetch_goes_on_and_does_not_wait_for_partitions() -> None:
    assert require_run_transition(RunState.PLANNING, RunState.APPLYING) == "nothing to fetch"


def test_a_run_whose_partitions_failed_is_not_consolidated_unless_somebody_says_so() -> None:
    assert require_run_transition(RunState.FETCHING, RunState.FAILED) == "last partition ended, some failed"
    assert require_run_transition(RunState.FAILED, RunState.APPLYING) == "consolidate, or force"


def test_a_move_without_an_arrow_is_refused() -> None:
    with pytest.raises(StateError, match="a run that is completed cannot become fetching"):
        require_run_transition(RunState.COMPLETED, RunState.FETCHING)
    with pytest.raises(StateError, match="a partition that is done cannot become running"):
        require_partition_transition(PartitionState.DONE, PartitionState.RUNNING)


def _reachable(arrows: dict[S, dict[S, str]], start: S) -> set[S]:
    found, waiting = {start}, [start]
    while waiting:
        following = set(arrows[waiting.pop()]) - found
        found |= following
        waiting += following
    return found
