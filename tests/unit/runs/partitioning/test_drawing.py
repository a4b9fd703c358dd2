"""The drawing of a plan shows every partition, and every problem."""

from __future__ import annotations

import re

import pytest

from stepfast.runs.partitioning.contract import capped
from stepfast.runs.partitioning.dimension import Dimension, prices
from stepfast.runs.partitioning.heatmap import describe_plan, draw
from stepfast.runs.partitioning.partitioners import Fixed, Heatmap, KeyRanges
from tests.support.paged_source import LAB_GROWN, NATURAL, PRICE, Density, explore

CARATS = Dimension("carats", 0, 30, 0.01)


def drawn(heatmap: Heatmap, source: Density, **how: int) -> list[str]:
    return draw(explore(heatmap, source, heatmap.start())[-1], **how).splitlines()


@pytest.mark.parametrize("lines", [1, 12, 24, 1_000])
def test_every_partition_stands_on_one_line(lines: int) -> None:
    headline, dimension, *rows = drawn(Heatmap(prices(PRICE)), Density(NATURAL), lines=lines)

    assert headline.startswith("437,")
    assert "rows in 146 partitions of 2," in headline
    assert dimension == PRICE
    assert (
        len(rows) == min(lines, 146) or (lines == 24 and len(rows) == 21) or (lines == 12 and len(rows) == 12)
    )
    assert sum(int(re.findall(r"(\d+) partition", it)[0]) for it in rows) == 146


def test_the_bar_is_longest_where_the_rows_are_densest() -> None:
    rows = drawn(Heatmap(prices(PRICE)), Density(NATURAL))[2:]

    lengths = [it.count("█") for it in rows]
    densest = lengths.index(max(lengths))
    assert re.search(r"(\d+) \.\. (\d+)", rows[densest])
    assert lengths[-1] == 0
    assert lengths[densest:] == sorted(lengths[densest:], reverse=True)


def test_no_line_is_wider_than_the_terminal() -> None:
    for width in (72, 80, 120):
        assert (
            max(len(it) for it in drawn(Heatmap(prices(PRICE)), Density(NATURAL), width=width)[1:]) <= width
        )


def test_a_second_dimension_and_what_is_too_dense_are_named() -> None:
    divided = drawn(Heatmap(prices(PRICE), CARATS, at_once=100), Density(LAB_GROWN))
    dense = drawn(Heatmap(prices(PRICE), at_once=100), Density(LAB_GROWN))

    assert any(it.endswith("by carats") for it in divided)
    assert "too dense to be divided" in dense[0]
    assert any(it.endswith("dense") for it in dense)


def test_a_plan_in_the_making_can_be_drawn_at_every_step() -> None:
    heatmap = Heatmap(prices(PRICE), target=30_000)
    steps = explore(heatmap, Density(NATURAL), heatmap.start())

    assert [draw(it).startswith("planning: ") for it in steps] == [True] * (len(steps) - 1) + [False]
    assert "not counted" in draw(steps[0])


def test_lists_and_keys_are_drawn_too() -> None:
    shops = Fixed(["EU", "US"], counted=True).start().learn({"items EU": 20, "items US": 3_000})

    assert draw(shops).splitlines()[0] == "3,020 rows in 2 partitions of 20 to 3,000; 2 counts"
    assert [it.split()[0] for it in draw(shops).splitlines()[2:]] == ["EU", "US"]
    assert len(draw(KeyRanges.hexadecimal("uuid", 5).start()).splitlines()) == 7


def test_the_sentence_says_what_is_missing() -> None:
    heatmap = Heatmap(prices(PRICE), target=30_000)
    plan = explore(heatmap, Density(NATURAL), heatmap.start())[-1].plan()

    assert "partial: it leaves out dollar_per_carat" in describe_plan(capped(plan, 40_000))
    assert "in no partition" in describe_plan(capped(plan, 40_000))
    assert "partial" not in describe_plan(plan)
