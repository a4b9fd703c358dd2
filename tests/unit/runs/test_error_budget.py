"""The error budget: how many bad rows fail a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stepfast.runs.lifecycle import budgeted_rows, overspent


def declared(share: float, limit: int | None = None) -> Any:
    return SimpleNamespace(error_budget=share, error_limit=limit)


@pytest.mark.parametrize(
    ("share", "rows", "bad", "fine"),
    [
        (0.05, 1_000, 50, True),
        (0.05, 1_000, 51, False),
        (0, 100, 0, True),
        (0, 100, 1, False),
        (1, 100, 100, True),
        (0.05, 0, 0, True),
    ],
)
def test_a_share_of_the_rows_may_be_bad(share: float, rows: int, bad: int, *, fine: bool) -> None:
    assert (overspent(declared(share), rows, bad) is None) is fine


@pytest.mark.parametrize(
    ("rows", "bad", "fine"),
    [(4, 1, True), (4, 3, False), (1, 1, False), (100, 10, True), (100, 11, False)],
)
def test_a_few_bad_rows_do_not_stop_a_small_run_unless_they_are_most_of_it(
    rows: int, bad: int, *, fine: bool
) -> None:
    assert (overspent(declared(0.05), rows, bad) is None) is fine
    assert overspent(declared(0), rows, bad) is not None


def test_a_limit_holds_whatever_the_share() -> None:
    assert overspent(declared(1, 10), 1_000_000, 10) is None
    assert (
        overspent(declared(1, 10), 1_000_000, 11)
        == "11 rows are in quarantine, more than the error limit of 10"
    )


def test_the_verdict_says_the_numbers() -> None:
    verdict = overspent(declared(0.05), 2_000, 150)

    assert verdict == "150 of 2,000 rows are in quarantine, more than the error budget of 5.0%"


def test_rows_that_earlier_runs_left_count_where_they_are_more() -> None:
    run = SimpleNamespace(seen=10, rejected=2, applied=50, quarantined=1)

    assert budgeted_rows(cast("Any", run)) == 51
    run.seen = 100
    assert budgeted_rows(cast("Any", run)) == 102
