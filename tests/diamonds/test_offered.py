"""Whether a stone that no page has shown is still on offer."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast.errors import OutageError
from stepfast_diamonds.client import AnswerProblem, BadAnswerError, NivodaAnswer
from stepfast_diamonds.feed import NivodaFeed
from stepfast_diamonds.simulator import Simulator
from stepfast_diamonds.source import still_offered
from tests.diamonds.asking import Asking, truth

BY_ID = "get_diamond_by_id"
CERTIFICATE = {"shape": "ROUND", "carats": 1.01, "cut": "EX", "labgrown": False}
STONE: dict[str, Any] = {"availability": "AVAILABLE", "image": "https://media.example.net/1"}


def answered(stone: Any = None, *problems: AnswerProblem, **certificate: Any) -> NivodaAnswer:
    offer = {"diamond": {**STONE, **(stone or {}), "certificate": {**CERTIFICATE, **certificate}}}
    return NivodaAnswer({BY_ID: offer}, problems, None)


def lost(*problems: AnswerProblem) -> NivodaAnswer:
    return NivodaAnswer(None, problems, None)


def problem(message: str, *path: str | int) -> AnswerProblem:
    return AnswerProblem(message, None, path)


def test_a_stone_that_a_search_would_find_is_on_offer() -> None:
    assert still_offered(answered(), lab_grown=False)
    assert still_offered(answered(labgrown=True), lab_grown=True)
    assert still_offered(answered({"image": None, "v360": {"url": "https://a.example/360"}}), lab_grown=False)


@pytest.mark.parametrize(
    "answer",
    [
        answered({"availability": "HOLD"}),
        answered({"availability": "SOLD"}),
        answered({"availability": "MEMO"}),
        answered({"availability": "NOT_AVAILABLE"}),
        answered({"availability": "AVAILABLE_ON_REQUEST"}),
        answered({"image": None}),
        answered(labgrown=True),
        answered(shape="KITE"),
        answered(carats=0.39),
        answered(carats="15.02"),
        answered(cut="F"),
        lost(problem("Diamond not found: 7")),
        lost(problem("Diamond not found: 7", BY_ID)),
        lost(problem("this diamond does not exist", "as", BY_ID)),
    ],
)
def test_a_stone_that_no_search_would_find_is_gone(answer: NivodaAnswer) -> None:
    """Whether it exists or not."""
    assert not still_offered(answer, lab_grown=False)


@pytest.mark.parametrize(
    "answer",
    [
        answered({"availability": None}, labgrown=None, shape=None, carats=None, cut=None),
        answered({"image": None}, problem("Upstream request timed out", BY_ID, "diamond", "image")),
        lost(problem("Expected a value of type DiamondQuality", BY_ID, "diamond", "certificate", "cut")),
        lost(problem("certificate not found", "as", BY_ID, "diamond", "certificate")),
    ],
)
def test_what_a_stone_does_not_tell_counts_for_it(answer: NivodaAnswer) -> None:
    assert still_offered(answer, lab_grown=False)


def test_a_source_that_fails_has_said_nothing() -> None:
    with pytest.raises(OutageError):
        still_offered(lost(problem("Internal server error", BY_ID)), lab_grown=False)
    with pytest.raises(BadAnswerError):
        still_offered(lost(), lab_grown=False)
    with pytest.raises(BadAnswerError):
        still_offered(NivodaAnswer({BY_ID: {"diamond": [1]}}, (), None), lab_grown=False)


@pytest.mark.parametrize("style", ["bearer", "as"])
def test_it_is_what_the_base_query_says_for_every_stone(style: str) -> None:
    """Natural ones and others, held, sold, certified anew and deleted."""
    with Simulator("150+50-labgrown", seed=7, faults="none", speed=0) as sim:
        for kind in ("availability", "hold", "delete", "recertificate", "relist", "insert"):
            sim.mutate(kind, count=15)
        every = sorted({it.id for it in sim.changes()} | set(sim.oracle()))

        feed = NivodaFeed.__new__(NivodaFeed)
        feed.lab_grown = False
        asking = Asking(sim, auth=style)
        feed._source = asking.source
        found = asking.run(lambda _: feed.still_there(every))

        assert found == [it for it in every if it in truth(sim)]
        assert 0 < len(found) < len(every)
        assert sim.statistics()["logins"] == 1
