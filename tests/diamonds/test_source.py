"""Each habit of the real API that breaks naive clients, by its number in the list of quirks, and what we make of it.

What needs a whole run is in test_feed.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Bounds, ConfigurationError, Range, ThrottledError, Window
from stepfast_diamonds.client import BadAnswerError
from stepfast_diamonds.heatmap import nivoda_heatmap, preview
from stepfast_diamonds.mapping import identity_of
from stepfast_diamonds.pace import GIVEN_BACK_EVERY, SECOND, SLOWEST, Pace, PaceInDatabase, PaceInMemory
from stepfast_diamonds.query import BASE, LARGEST_INT, diamond_query
from stepfast_diamonds.schema import prepare
from stepfast_diamonds.simulator import Simulator
from tests.diamonds.asking import Asking, settings_for, truth

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast_diamonds.settings import Price

PRICE: Price = "dollar_per_carat"
EITHER: tuple[Price, ...] = ("dollar_value", PRICE)
FULL = SECOND // 25


@pytest.fixture(scope="module")
def polite() -> Iterator[Simulator]:
    with Simulator("2k", seed=7, faults="none", speed=0) as sim:
        yield sim


@pytest.fixture
def asking(polite: Simulator) -> Asking:
    return Asking(polite)


def prices(low: int | None, high: int | None) -> Range:
    return Range.of({PRICE: Bounds(low, high)})


def ask_too_often(asking: Asking) -> None:
    for _ in range(10):
        asking.count()


def test_b01_no_more_than_fifty_are_asked_for(asking: Asking) -> None:
    assert len(asking.page(limit=200)) == 50
    assert len(asking.page(limit=30)) == 30


def test_b02_how_many_there_are_is_counted_and_never_read_from_a_page(asking: Asking) -> None:
    assert asking.count() == len(truth(asking.sim)) > 1_000


def test_b03_a_short_page_is_given_on_as_it_is() -> None:
    with Simulator("1k", seed=7, faults="none,short_page_prob=1", speed=0) as sim:
        assert 25 <= len(Asking(sim).page()) < 30


def test_b04_what_comes_past_the_end_are_stones_like_others() -> None:
    with Simulator("1k", seed=7, faults="none,overrun_pages=2", speed=0) as sim:
        asking = Asking(sim)

        assert set(asking.ids(offset=asking.count() + 3)) <= set(truth(sim))


def test_b05_an_inverted_range_cannot_be_asked_for() -> None:
    with pytest.raises(ConfigurationError, match="inverted"):
        prices(900, 100)


def test_b06_counts_of_partitions_add_up_to_no_less_than_the_whole(asking: Asking) -> None:
    parts = [asking.count(prices(low, high)) for low, high in pairwise((0, 500, 1_000, 3_000, None))]

    assert asking.count() <= sum(parts) <= asking.count() * 1.01


def test_b06_a_price_that_loses_stones_is_told() -> None:
    """Of the price itself two in a hundred are never found: planning says that they are in no partition."""
    with Simulator("1k", seed=7, faults="none,dollar_value_loss=0.0207", speed=0) as sim:
        settings = settings_for(sim)
        plans = {
            by: preview(settings, nivoda_heatmap(lab_grown=False, by=by), lab_grown=False).plan()
            for by in EITHER
        }

    assert plans["dollar_value"].misses_rows
    assert not plans[PRICE].misses_rows


@pytest.mark.parametrize("compare", ["decimal", "rounded"])
def test_b07_no_stone_falls_between_two_neighbours(compare: str) -> None:
    with Simulator("1k", seed=7, faults=f"none,compare={compare}", speed=0) as sim:
        asking = Asking(sim)
        found: set[str] = set()
        for low, high in pairwise((0, 500, 777, 1_001, 1_500, 3_000, None)):
            part = prices(low, high)
            for offset in range(0, asking.count(part), 50):
                found.update(asking.ids(part, offset=offset, limit=50))

        assert found == set(truth(sim))


def test_b07_bounds_are_whole_and_the_last_has_no_end() -> None:
    asked = diamond_query(BASE, Range.of({PRICE: Bounds(0.5, 99.5)}), None)

    assert asked[PRICE] == {"from": 0, "to": 100}
    assert diamond_query(BASE, prices(100, None), None)[PRICE] == {"from": 100, "to": LARGEST_INT}


def test_b08_certificate_numbers_are_never_asked_for() -> None:
    with pytest.raises(ConfigurationError, match="cannot be asked for a range of 'certificate_numbers'"):
        diamond_query(BASE, Range.of(certificate_numbers=["1"]), None)


def test_b09_stones_with_a_picture_or_a_film_are_found(asking: Asking) -> None:
    found = asking.page(limit=50) + asking.page(offset=50, limit=50)
    media = {(it["diamond"]["image"] is None, it["diamond"]["video"] is None) for it in found}

    assert {(True, False), (False, True)} & media
    assert (BASE["has_image"], BASE["has_v360"]) == (True, True)


def test_b10_a_price_outside_of_what_was_asked_for_is_no_error() -> None:
    with Simulator("1k", seed=7, faults="none,markup_pct=100", speed=0) as sim:
        asking = Asking(sim)
        part = Range.of(dollar_value=Bounds(0, 1_000))

        assert len(asking.page(part)) == 30


def test_b11_stones_that_share_a_place_are_asked_for_in_an_order_that_never_changes() -> None:
    with Simulator("1k", seed=7, faults="none,unstable_ties=true", speed=0) as sim:
        created = {it.id: it.created_at for it in sim.oracle().values()}
        there = [created[it] for it in Asking(sim).ids(limit=50)]
        back = [created[it] for it in Asking(sim).ids(limit=50, descending=True)]

    assert there == sorted(there)
    assert back == sorted(back, reverse=True)


def test_b12_a_stone_that_is_held_or_sold_is_not_found(asking: Asking) -> None:
    gone = asking.ids(limit=2)
    asking.sim.mutate("hold", ids=gone[:1])
    asking.sim.mutate("delete", ids=gone[1:])

    assert not set(gone) & set(asking.ids(limit=50))


def test_b13_the_firewall_is_left_alone_by_everybody_at_once() -> None:
    with Simulator("1k", seed=7, faults="none,requests_per_s=5,burst=5", speed=0) as sim:
        asking = Asking(sim)
        with pytest.raises(ThrottledError, match="firewall") as met:
            ask_too_often(asking)
        asked = sim.statistics()["requests"]
        with pytest.raises(ThrottledError, match="left alone") as told:
            asking.count()

        assert met.value.retry_after == timedelta(seconds=60)
        assert isinstance(told.value.retry_after, timedelta)
        assert told.value.retry_after > timedelta(seconds=55)
        assert sim.statistics()["requests"] == asked, "it was not asked again"


def test_b13_other_processes_and_feeds_leave_it_alone_as_well(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    prepare(app)
    with Simulator("1k", seed=7, faults="none,requests_per_s=5,burst=5,limit_answer=429", speed=0) as sim:
        mine, theirs = Asking(sim, app), Asking(sim, another_app())
        with pytest.raises(ThrottledError, match="429"):
            ask_too_often(mine)
        asked = sim.statistics()["requests"]
        with pytest.raises(ThrottledError, match="left alone"):
            theirs.count()

        assert sim.statistics()["requests"] == asked


def test_b13_each_throttle_halves_the_pace_and_quiet_time_gives_it_back() -> None:
    once = Pace().slowed(0, FULL, SECOND)
    same = once.slowed(SECOND // 2, FULL, SECOND)
    twice = once.slowed(2 * SECOND, FULL, SECOND)
    often = once
    for number in range(20):
        often = often.slowed(number * 3 * SECOND, FULL, SECOND)

    assert (once.gap, once.quiet_until) == (2 * FULL, SECOND)
    assert same.gap == once.gap, "those that were under way met the same one"
    assert twice.gap == 4 * FULL
    assert often.gap == SLOWEST
    assert once.gap_at(SECOND + GIVEN_BACK_EVERY, FULL) == int(SECOND / 15), (
        "12.5 a second, and a tenth of 25"
    )
    assert once.gap_at(SECOND + 5 * GIVEN_BACK_EVERY, FULL) == 0


def test_b13_while_it_is_slow_every_request_takes_its_place_in_one_stream(app: Stepfast) -> None:
    prepare(app)
    for kept in (PaceInMemory(), PaceInDatabase(app, "https://nivoda.example.com")):
        waits: list[int] = []
        kept.change(lambda pace, now: pace.slowed(now, FULL, 0))

        def take(pace: Pace, now: int, waits: list[int] = waits) -> Pace:
            after, wait = pace.slot(now, FULL)
            waits.append(now + wait)
            return after

        for _ in range(4):
            kept.change(take)

        assert [later - sooner for sooner, later in pairwise(waits)] == [2 * FULL] * 3


def test_b14_an_answer_that_takes_its_time_is_waited_for() -> None:
    with Simulator("1k", seed=7, faults="none,latency_ms=60", speed=0) as sim:
        assert Asking(sim).count() == 821


def test_b15_a_page_with_values_that_failed_is_asked_for_once_more() -> None:
    with Simulator("1k", seed=7, faults="none,enum_error_prob=1", speed=0) as sim:
        asking = Asking(sim)
        with pytest.raises(BadAnswerError, match="asked for once more"):
            asking.page()
        taken = Asking(sim).page(attempt=2)  # by another process, which knows nothing of the first

        assert len(taken) == 30
        assert None in taken, "what still fails is a hole"


def test_b15_a_value_that_fails_only_once_is_not_lost() -> None:
    with Simulator("1k", seed=7, faults="none,enum_error_prob=1", speed=0) as sim:
        asking = Asking(sim)
        with pytest.raises(BadAnswerError):
            asking.page()
        sim.turn(enum_error_prob=0)

        taken = asking.page(attempt=2)
        assert None not in [it["diamond"]["certificate"]["clarity"] for it in taken]


def test_b15_a_field_that_always_fails_is_not_doubted_for_ever() -> None:
    with Simulator("1k", seed=7, faults="none,enum_error_prob=1,sticky_items=true", speed=0) as sim:
        asking = Asking(sim)
        doubted = 0
        for offset in range(0, 800, 30):
            try:
                asking.page(offset=offset)
            except BadAnswerError:
                doubted += 1
                asking.page(offset=offset, attempt=2)

        assert 3 <= doubted <= 6


def test_b15_half_a_page_is_none() -> None:
    with Simulator("1k", seed=7, faults="none,partial_prob=1", speed=0) as sim:
        asking = Asking(sim)
        for _ in range(3):
            with pytest.raises(BadAnswerError, match="a part of the page only"):
                asking.page()


def test_b15_who_is_not_let_in_any_more_logs_in_once() -> None:
    with Simulator("1k", seed=7, faults="none", speed=0) as sim:
        asking = Asking(sim)
        asking.count()
        sim.revoke_tokens()

        assert asking.count() == 821
        assert sim.statistics()["logins"] == 2


def test_b16_dirty_values_reach_the_mapping_as_they_are() -> None:
    with Simulator("2k", seed=7, faults="none,dirty=true", speed=0) as sim:
        asking = Asking(sim)
        found = [it for offset in range(0, 1_500, 50) for it in asking.page(offset=offset, limit=50)]

    assert {"90%", "100%", "Yes", None} <= {it["diamond"]["eyeClean"] for it in found}
    assert "null" in {it["diamond"]["certificate"]["girdle"] for it in found}


def test_b17_staging_is_another_address_with_another_catalogue() -> None:
    with Simulator("1k", seed=1, faults="none") as one, Simulator("1k", seed=2, faults="none") as other:
        assert not set(Asking(one).ids()) & set(Asking(other).ids())


def test_b18_a_stone_is_its_diamond_and_not_its_certificate(asking: Asking) -> None:
    found = [it for offset in range(0, 1_600, 50) for it in asking.page(offset=offset, limit=50)]
    numbers = [it["diamond"]["certificate"]["certNumber"] for it in found]

    assert len(set(numbers)) < len(found) == len({identity_of(it) for it in found})
    assert {it["id"] for it in found} == {f"DIAMOND/{identity_of(it)}" for it in found}


def test_b19_deep_offsets_are_asked_for() -> None:
    with Simulator("50k", seed=7, faults="none", speed=0) as sim:
        asking = Asking(sim)
        count = asking.count()

        assert count > 40_000
        assert len(asking.page(offset=count - 10)) == 10


# Windows, clocks, and answers of other types


def test_a_window_has_a_beginning_and_never_an_end(asking: Asking) -> None:
    sim = asking.sim
    since = sim.now + timedelta(seconds=10)
    sim.advance("1m")
    changed = {it.id for it in sim.mutate("price", count=20)} & set(truth(sim))
    window = Window(since, since + timedelta(seconds=1))

    assert set(asking.ids(window=window)) == changed
    assert diamond_query(BASE, Range(), window)["updated"] == {
        "from": since.isoformat().replace("+00:00", "Z")
    }
    assert "updated" not in diamond_query(BASE, Range(), Window(None, since))


def test_the_clock_is_the_sources_own() -> None:
    with Simulator("1k", seed=7, faults="none,clock_skew_s=90") as sim:
        shown = Asking(sim).run(lambda it: it.now(lab_grown=False))

        assert shown is not None
        assert shown - datetime.now(UTC) == pytest.approx(timedelta(seconds=90), abs=timedelta(seconds=3))


def test_the_base_query_is_that_of_the_catalogue() -> None:
    assert len(BASE["shapes"]) == 17
    assert BASE["sizes"] == [{"from": 0.4, "to": 15.01}]
    assert BASE["availability"] == ["AVAILABLE"]
    assert BASE["excludeFairPoorCuts"] is BASE["hide_memo"] is True
    asked = diamond_query(BASE, Range.of(carats=Bounds(0.5, 1), color=["D", "E"], shapes=["ROUND"]), None)
    assert asked["sizes"] == [{"from": 0.5, "to": 1.0}]
    assert (asked["color"], asked["shapes"]) == (["D", "E"], ["ROUND"])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"diamonds_by_query": []}, "instead of a list of stones"),
        ({"diamonds_by_query": {"items": None}}, "instead of a list of stones"),
        ({"diamonds_by_query": {"items": {}}}, "instead of a list of stones"),
        ({"diamonds_by_query": {"items": ["x"]}}, "instead of a stone"),
    ],
)
def test_a_page_of_other_types_is_refused(
    asking: Asking, monkeypatch: pytest.MonkeyPatch, data: Any, words: str
) -> None:
    _answering(asking, monkeypatch, data)

    with pytest.raises(BadAnswerError, match=words):
        asking.page()


def test_a_page_that_is_longer_than_was_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with Simulator("100", faults="none", speed=0) as sim:
        asking = Asking(sim)
        _answering(asking, monkeypatch, {"diamonds_by_query": {"items": [None] * 31}})

        with pytest.raises(BadAnswerError, match="31 stones where 30 were asked for"):
            asking.page()


@pytest.mark.parametrize("count", ["7", -1, True, 1.5, [7]])
def test_a_count_that_is_no_number_is_refused(
    asking: Asking, monkeypatch: pytest.MonkeyPatch, count: Any
) -> None:
    _answering(asking, monkeypatch, {"diamonds_by_query_count": count})

    with pytest.raises(BadAnswerError, match="no number of stones"):
        asking.count()


def _answering(asking: Asking, monkeypatch: pytest.MonkeyPatch, data: Any) -> None:
    from stepfast_diamonds.client import NivodaAnswer

    async def ask(*_: object, **__: object) -> NivodaAnswer:
        await asyncio.sleep(0)
        return NivodaAnswer(data, (), None)

    monkeypatch.setattr(asking.source._client, "ask", ask)
