"""The comparison at the end of the demo: rows that are missing, doubled, stale, made up or left."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast_diamonds.demo import screen as demo_end
from stepfast_diamonds.demo.comparison import Comparison, Row, compare
from stepfast_diamonds.demo.screen import DemoScreen
from stepfast_diamonds.demo.source import Stone

if TYPE_CHECKING:
    from collections.abc import Sequence

TRUTH = [
    Stone("a", 100_050, 1.01, "7001", "ROUND", "D", "AVAILABLE"),
    Stone("b", 20_000, 0.4, "7002", "ASCHER", "E", "AVAILABLE"),
    Stone("c", 999, 2.5, "7003", "PEAR", "FANCY", "AVAILABLE"),
]
FEED = "nivoda-natural"
SAME = [
    Row(1, "a", "DIAMOND/a", FEED, 1000.5, 1.01, "ROUND", "D", "available", "7001", None),
    Row(2, "b", "DIAMOND/b", FEED, "200.00", "0.40", "ASSCHER", "E", "available", "7002", None),
    Row(3, "c", "DIAMOND/c", FEED, 9.99, 2.5, "PEAR", "FANCY", "available", None, None),
]


def judged(rows: Sequence[Row], changed: Sequence[str] = ()) -> dict[str, int]:
    """What is not as it should be."""
    found = compare(TRUTH, rows, set(changed))
    counts = {
        "missing": found.missing,
        "doubled": found.doubled,
        "stale": found.stale,
        "made up": found.made_up,
        "left": found.left,
    }
    told = {name: count for name, count in counts.items() if count}
    assert found.clean is not bool(told.keys() - {"left"})
    return told


def other(row: Row, **values: Any) -> Row:
    return replace(row, **values)


def test_the_same_stones_are_clean() -> None:
    assert judged(SAME) == {}
    assert compare(TRUTH, SAME, set()) == Comparison(3, 3, 0, 0, 0, 0, 0)


def test_a_stone_that_is_not_in_the_table_is_missing() -> None:
    assert judged(SAME[1:]) == {"missing": 1}


@pytest.mark.parametrize(
    "values",
    [{"price": 1}, {"stone_id": "DIAMOND/a"}, {"feed": "nivoda-labgrown"}],
    ids=["in its feed", "under another identity", "in another feed"],
)
def test_a_stone_that_is_there_twice_is_doubled_and_counted_once(values: dict[str, Any]) -> None:
    assert judged([*SAME, other(SAME[0], id=4, **values)]) == {"doubled": 1}


@pytest.mark.parametrize(
    "values",
    [
        {"price": 1000.51},
        {"carats": "1.02"},
        {"certificate": "7009"},
        {"stale_since": 5},
        {"shape": "OVAL"},
        {"color": "E"},
        {"availability": "on_hold"},
        {"offer_id": "DIAMOND/b2"},
    ],
    ids=str,
)
def test_a_stone_with_other_values_is_stale(values: dict[str, Any]) -> None:
    assert judged([other(SAME[0], **values), *SAME[1:]]) == {"stale": 1}


def test_a_stone_that_was_never_there_is_made_up() -> None:
    assert judged([*SAME, other(SAME[0], id=4, stone_id="z", offer_id="DIAMOND/z")]) == {"made up": 1}


def test_a_stone_to_which_something_happened_has_left() -> None:
    assert judged([*SAME, other(SAME[0], id=4, stone_id="z", offer_id="DIAMOND/z")], ["z"]) == {"left": 1}


def test_figures_that_are_wrong_are_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    demo_end.show_comparison(DemoScreen(), Comparison(3, 2, 1, 0, 0, 0, 0))

    said = capsys.readouterr().out
    assert "WRONG" in said
    assert "the table is not the source" in said


def test_rates_say_where_the_time_went() -> None:
    class Run:
        started_at = datetime(2026, 5, 1, tzinfo=UTC)
        planned_at = started_at + timedelta(seconds=2)
        fetched_at = planned_at + timedelta(seconds=10)
        ended_at = fetched_at + timedelta(seconds=5)
        requests, seen, applied = 1_200, 50_000, 40_000

    run: Any = Run()

    assert demo_end.rates(run) == ("plan 2.0 s; fetch 10.0 s: 5,000 rows/s; consolidate 5.0 s: 8,000 rows/s")
