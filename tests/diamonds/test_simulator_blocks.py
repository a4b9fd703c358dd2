"""The blocks of the index count what a plain list would count, after any changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast_diamonds.simulator import search as module
from stepfast_diamonds.simulator.search import Blocks

KEYS = st.integers(0, 20).map(float)
PAIRS = st.lists(st.tuples(KEYS, KEYS), max_size=30)
BOUNDS = st.tuples(st.integers(-2, 22), st.integers(-2, 22)).map(lambda it: (float(min(it)), float(max(it))))


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """So that thirty rows fill several shelves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_SIZE", 3)
        patch.setattr(module, "SHELF_SIZE", 2)
        yield


def made_of(rows: dict[int, tuple[float, float]]) -> Blocks:
    order = sorted(rows, key=lambda it: rows[it][0])
    return Blocks([rows[it][0] for it in order], order)


def assert_counts(
    blocks: Blocks,
    rows: dict[int, tuple[float, float]],
    first: tuple[float, float],
    second: tuple[float, float],
) -> None:
    naive = [it for it, (key, _) in rows.items() if first[0] <= key <= first[1]]
    both = [it for it in naive if second[0] <= rows[it][1] <= second[1]]

    assert len(blocks) == len(rows)
    assert blocks.count(first) == len(naive)
    assert sorted(blocks.rows(first)) == sorted(naive)
    assert blocks.count_both(first, ("other", lambda it: rows[it][1]), second) == len(both)


@given(PAIRS, BOUNDS, BOUNDS)
def test_blocks_count_ranges_and_rectangles(
    pairs: list[tuple[float, float]], first: tuple[float, float], second: tuple[float, float]
) -> None:
    rows = dict(enumerate(pairs))

    assert_counts(made_of(rows), rows, first, second)


@given(
    PAIRS,
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 200), st.tuples(KEYS, KEYS), st.booleans()), max_size=40
    ),
    BOUNDS,
    BOUNDS,
)
def test_blocks_stay_right_while_rows_come_and_go(
    pairs: list[tuple[float, float]],
    steps: list[tuple[bool, int, tuple[float, float], bool]],
    first: tuple[float, float],
    second: tuple[float, float],
) -> None:
    rows = dict(enumerate(pairs))
    blocks = made_of(rows)
    for number, (comes, place, pair, tells) in enumerate(steps, len(rows)):
        assert_counts(blocks, rows, first, second)  # also fills what blocks keep about second keys
        if comes or not rows:
            rows[number] = pair
            blocks.add(pair[0], number, {"other": pair[1]} if tells else None)
        else:
            row = sorted(rows)[place % len(rows)]
            key, other = rows.pop(row)
            blocks.remove(key, row, {"other": other} if tells else None)

    assert_counts(blocks, rows, first, second)


def test_a_row_that_is_not_there_cannot_be_removed() -> None:
    blocks = made_of({1: (5.0, 0.0), 2: (7.0, 0.0)})

    for key, row in ((5.0, 2), (6.0, 1), (99.0, 1)):
        with pytest.raises(KeyError):
            blocks.remove(key, row)
