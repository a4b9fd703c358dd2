"""The settings of a sweep: which are refused, and when the fuse holds it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepfast.errors import ConfigurationError
from stepfast.runs.declaration import declare
from stepfast.runs.feed import Sweep
from stepfast.runs.sweep_rows import SweepState, read_sweep_state
from stepfast.runs.target import TargetColumn
from tests.unit.runs.test_feed import a_feed


@pytest.mark.parametrize(
    ("going", "living", "reason"),
    [
        (0, 0, None),
        (0, 100, None),
        (2, 100, None),
        (3, 100, "3 of 100 rows would go (3.0%), more than 2.0%"),
        (1, 1, "1 of 1 rows would go (100.0%), more than 2.0%"),
        (20_001, 1_000_000, "20,001 of 1,000,000 rows would go (2.0%), more than 2.0%"),
    ],
)
def test_a_share_of_the_living_rows_may_go(going: int, living: int, reason: str | None) -> None:
    assert Sweep().holds(going, living) == reason


def test_a_number_of_rows_may_go_whatever_the_share() -> None:
    sweep = Sweep(fuse=1, most=10)

    assert sweep.holds(10, 10) is None
    assert sweep.holds(11, 1_000_000) == "11 rows would go, more than 10"
    assert Sweep(most=0).holds(0, 5) is None


def test_a_fuse_of_nothing_asks_about_every_row() -> None:
    assert Sweep(fuse=0).holds(1, 1_000_000) is not None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"column": "deleted at"}, "column"),
        ({"column": None}, "column"),
        ({"strikes": 0}, "strikes"),
        ({"strikes": True}, "strikes"),
        ({"strikes": 1.5}, "strikes"),
        ({"fuse": 2}, "fuse"),
        ({"fuse": "2%"}, "fuse"),
        ({"fuse": True}, "fuse"),
        ({"most": -1}, "most"),
        ({"most": "ten"}, "most"),
        ({"keep": "soon"}, "keep"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_its_name(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Sweep(**settings)


def test_how_long_a_row_is_remembered_is_a_duration_or_for_ever() -> None:
    assert Sweep().keeps is None
    assert Sweep(keep="90d").keeps == timedelta(days=90)


def test_a_feed_says_how_it_sweeps_and_where_it_exports_to() -> None:
    declared = declare(a_feed(sweep=Sweep(), export="file:///var/lib/app/watermark.json"))

    assert declared.sweep == Sweep()
    assert declared.export == "file:///var/lib/app/watermark.json"
    assert declare(a_feed()).sweep is None
    assert declare(a_feed()).export is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"sweep": True}, r"sweep=True: use Sweep\(\)"),
        ({"sweep": Sweep}, r"use Sweep\(\)"),
        ({"sweep": Sweep(), "key": ("id", "shop")}, "sweep needs item_column"),
        ({"export": "watermark.json"}, "no scheme"),
        ({"export": "blob://account/watermark.json"}, "begins with blob:"),
        ({"exports": "file:///x.json"}, "did you mean export"),
    ],
)
def test_a_feed_that_cannot_sweep_or_export_is_refused_when_it_is_declared(
    settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        declare(a_feed(**settings))


def test_a_key_of_several_columns_may_sweep_by_one_of_them() -> None:
    declared = declare(a_feed(sweep=Sweep(), key=("id", "shop"), item_column="id"))

    assert declared.item_column == "id"
    assert "deleted_at" in declared.cleared


def test_the_state_of_a_sweep_is_told_from_the_frontier_of_a_plan() -> None:
    state = SweepState(phase="counting", target=TargetColumn("item", "id", "deleted_at"), strikes=2, before=7)

    assert read_sweep_state(state.text) == state
    assert state.then(phase="held", note="too many").steps == 1
    for other in (None, "{}", '{"type":"heatmap"}', '{"regions": []}', "[]"):
        assert read_sweep_state(other) is None
