"""The simulated catalogue has the published distribution."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.errors import ConfigurationError
from stepfast_diamonds.simulator.profile import (
    LABGROWN_PER_CARAT,
    NATURAL_PER_CARAT,
    NATURAL_VALUE,
    PROFILES,
    Part,
    parse_profile,
    quotas,
    sample,
)


def spread(values: list[float], bins: dict[int, int]) -> dict[int, float]:
    """The share of the values below each bound and not below the one before."""
    shares, low = {}, 0.0
    for high in bins:
        shares[high] = sum(low <= it < high for it in values) / len(values)
        low = high
    return shares


def expected(bins: dict[int, int]) -> dict[int, float]:
    return {bound: count / sum(bins.values()) for bound, count in bins.items()}


@pytest.mark.parametrize("stones", [1_000, 50_000])
def test_natural_stones_have_the_published_density_by_price_per_carat(stones: int) -> None:
    prices, carats = sample(Part(stones, labgrown=False), Random(1))

    found = spread([price / weight for price, weight in zip(prices, carats, strict=True)], NATURAL_PER_CARAT)

    assert found == pytest.approx(expected(NATURAL_PER_CARAT), abs=0.012 if stones == 1_000 else 0.001)


def test_natural_stones_have_the_published_density_by_price() -> None:
    prices, _ = sample(Part(50_000, labgrown=False), Random(1))

    found = spread([it / 100 for it in prices], NATURAL_VALUE)

    assert found == pytest.approx(expected(NATURAL_VALUE), abs=0.01)


def test_the_lab_grown_heap_is_where_it_is_known_to_be() -> None:
    prices, carats = sample(Part(90_400, labgrown=True), Random(1))
    per_carat = [price / weight for price, weight in zip(prices, carats, strict=True)]

    assert spread(per_carat, LABGROWN_PER_CARAT) == pytest.approx(expected(LABGROWN_PER_CARAT), abs=0.001)
    assert sum(it < 250 for it in per_carat) / len(per_carat) == pytest.approx(770 / 904, abs=0.001)
    single = max(sum(dollar <= it < dollar + 1 for it in per_carat) for dollar in (99, 149))
    assert single * 10 > 20_000, "a single dollar holds tens of thousands of a whole feed"


def test_every_stone_can_be_weighed_and_paid() -> None:
    for labgrown in (False, True):
        prices, carats = sample(Part(5_000, labgrown=labgrown), Random(2))
        assert all(40 <= it <= 1501 for it in carats)
        assert min(prices) > 500


def test_the_same_dice_make_the_same_stones() -> None:
    part = Part(500, labgrown=False)

    assert sample(part, Random(4)) == sample(part, Random(4)) != sample(part, Random(5))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=30), st.integers(0, 1_000))
def test_quotas_add_up_and_are_near(shares: list[float], total: int) -> None:
    counts = quotas(shares, total)

    assert sum(counts) == total
    assert all(
        abs(count - share * total / sum(shares)) <= 1.000001
        for count, share in zip(counts, shares, strict=True)
    )


def test_profiles_are_read() -> None:
    assert [parse_profile(it) for it in PROFILES] == [
        (Part(1_000, labgrown=False),),
        (Part(50_000, labgrown=False),),
        (Part(500_000, labgrown=False),),
        (Part(900_000, labgrown=True),),
    ]
    assert parse_profile("7+2k-labgrown") == (Part(7, labgrown=False), Part(2_000, labgrown=True))


@pytest.mark.parametrize("text", ["", "many", "5x", "0", "1k+", "11m", "-5"])
def test_a_profile_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="profile"):
        parse_profile(text)
