"""How the edges of a new job begin, by the states of its parents."""

from __future__ import annotations

import pytest

from stepfast.errors import ConfigurationError, CycleError, NotFoundError
from stepfast.jobs.archive import FailedParent
from stepfast.jobs.dependencies import After, EdgeStates, OnDead, judge_edges, read_after


@pytest.mark.parametrize("on_dead", ["wait", "fail", "run"])
def test_a_parent_that_lives_is_waited_for_and_one_that_is_done_is_not(on_dead: OnDead) -> None:
    standing = {"lives": "live", "is done": "done"}

    assert judge_edges(standing, After(("lives", "is done"), on_dead)) == EdgeStates(
        {"lives": "open", "is done": "met"}
    )


@pytest.mark.parametrize("state", ["dead", "cancelled"])
@pytest.mark.parametrize(
    ("on_dead", "edge", "waits"), [("wait", "open", True), ("fail", "broken", True), ("run", "met", False)]
)
def test_a_parent_that_died_is_met_as_the_policy_says(
    state: str, on_dead: OnDead, edge: str, *, waits: bool
) -> None:
    verdict = judge_edges({"p": state}, After(("p",), on_dead))

    assert verdict.states == {"p": edge}
    assert verdict.waits == waits
    assert verdict.broken == (FailedParent("p", state) if on_dead == "fail" else None)


def test_a_parent_that_nobody_knows_cannot_be_waited_for() -> None:
    with pytest.raises(NotFoundError, match="there is no job p"):
        judge_edges({}, After(("p",), "wait"))

    assert judge_edges({}, After(("p",), "run")).states == {"p": "met"}
    assert judge_edges({}, After(("p",), "fail")).broken == FailedParent("p", "unknown")


def test_a_child_that_fails_names_its_first_parent_that_died() -> None:
    verdict = judge_edges({"a": "live", "b": "cancelled", "c": "dead"}, After(("a", "b", "c"), "fail"))

    assert verdict.broken is not None
    assert verdict.broken.reason == "DependencyFailed: job b, which it comes after, was cancelled"


class Job:
    id = "a"


def test_after_takes_jobs_and_ids_once_each() -> None:
    assert read_after(None, "run") is None
    assert read_after([], "run") is None
    assert read_after("a", "wait") == After(("a",), "wait")
    assert read_after(Job(), "fail") == After(("a",), "fail")
    assert read_after([Job(), "b", "a"], "run") == After(("a", "b"), "run")


@pytest.mark.parametrize(
    ("after", "on_dead", "problem"),
    [("a", "skip", "on_dead='skip': use"), ([3], "wait", "after=3: give jobs"), ("", "wait", "after=''")],
)
def test_what_nobody_can_wait_for_is_refused_in_words(after: str, on_dead: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        read_after(after, on_dead)


def test_a_cycle_is_told_with_all_its_jobs() -> None:
    assert str(CycleError(["a", "b", "a"])) == "these jobs would wait for each other: a after b after a"
