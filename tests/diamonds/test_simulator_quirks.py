"""Each habit of the real API that breaks naive clients, by its number in the list of quirks, asked over HTTP."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from stepfast_diamonds.simulator import Simulator
from stepfast_diamonds.simulator.faults import DEFAULT, REAL
from stepfast_diamonds.simulator.profile import NATURAL_PER_CARAT
from tests.diamonds.nivoda import BY_AGE, SEARCH, Client

AVAILABLE = {"availability": ["AVAILABLE"]}


@pytest.fixture(scope="module")
def polite() -> Iterator[Simulator]:
    with Simulator("2k", seed=7, faults="none", speed=0) as sim:
        yield sim


@pytest.fixture
def client(polite: Simulator) -> Iterator[Client]:
    with Client(polite) as it:
        yield it


def test_b1_a_page_has_fifty_items_at_most(client: Client) -> None:
    assert len(client.search(limit=200)["items"]) == 50
    assert len(client.search()["items"]) == 50
    assert len(client.search(limit=7)["items"]) == 7


def test_b2_total_count_is_the_size_of_the_page(client: Client) -> None:
    assert client.search(limit=10)["total_count"] == 10
    assert client.search(offset=1_987, limit=40)["total_count"] == 13
    assert client.count() == 2_000


def test_b3_a_page_in_the_middle_may_be_short() -> None:
    with Simulator("2k", faults="none,short_page_prob=0.3", speed=0) as sim, Client(sim) as client:
        sizes = Counter(len(client.search(offset=n * 50)["items"]) for n in range(40))

    assert sizes[50] > 15
    assert set(sizes) - {50} <= {45, 46, 47, 48, 49}
    assert len(sizes) > 2
    assert DEFAULT.short_page_prob == 0.02


def test_b4_pages_go_on_past_the_count() -> None:
    with Simulator("1k", faults="none,overrun_pages=3", speed=0) as sim, Client(sim) as client:
        every = set(client.walk_to(1_000))
        beyond = [client.ids(offset=1_000 + 50 * n) for n in range(5)]

    assert [len(it) for it in beyond] == [50, 50, 50, 0, 0]
    assert {id_ for page in beyond for id_ in page} <= every


@pytest.mark.parametrize(
    "query",
    [
        {"dollar_per_carat": {"from": 900, "to": 100}},
        {"dollar_value": {"from": 2, "to": 1}},
        {"sizes": [{"from": 3.0, "to": 1.0}]},
    ],
)
def test_b5_an_inverted_range_finds_thirty_unrelated_stones(client: Client, query: dict[str, Any]) -> None:
    found = client.ids(query)

    assert len(set(found)) == 30
    assert client.ids(query, offset=30) == []


def test_b6_counts_of_ranges_do_not_add_up_to_the_whole() -> None:
    bins = [0, *NATURAL_PER_CARAT]
    with Simulator("50k", faults="none", speed=0) as sim, Client(sim) as client:
        parts = [
            client.count({"dollar_per_carat": {"from": low, "to": high - 1}})
            for low, high in itertools.pairwise(bins)
        ]
        whole = client.count()
        sim.turn(dollar_value_loss=0.0207)
        valued = client.count({"dollar_value": {"from": 0, "to": 2_000_000}})

    assert 0.0005 < 1 - sum(parts) / whole < 0.004, "stones lie between two integer bins"
    assert 1 - valued / whole == pytest.approx(0.0207, abs=0.005)


def test_b7_bounds_are_whole_and_prices_are_not(client: Client) -> None:
    fractional = next(it for it in client.sim.oracle().values() if it.price % 100)
    dollars = fractional.price // 100

    below = client.walk({"dollar_value": {"from": 0, "to": dollars}})
    above = client.walk({"dollar_value": {"from": dollars + 1, "to": 10_000_000}})

    assert fractional.id not in {*below, *above}
    assert fractional.id in client.walk({"dollar_value": {"from": dollars, "to": dollars + 1}})


def test_b7_a_server_may_round_instead(client: Client) -> None:
    fractional = next(it for it in client.sim.oracle().values() if it.price % 100 > 50)
    client.sim.turn(compare="rounded")

    found = client.ids(
        {"dollar_value": {"from": fractional.price // 100 + 1, "to": fractional.price // 100 + 1}}
    )

    client.sim.turn(compare="decimal")
    assert fractional.id in found


def test_b8_certificate_numbers_override_every_other_filter(client: Client) -> None:
    sold = next(it for it in client.sim.oracle().values() if it.availability == "SOLD")

    found = client.ids(AVAILABLE | {"labgrown": True, "certificate_numbers": [sold.certificate]})

    assert sold.id in found


def test_b9_image_and_view_together_mean_either(client: Client) -> None:
    image, view = client.count({"has_image": True}), client.count({"has_v360": True})
    either = client.count({"has_image": True, "has_v360": True})
    only_view = client.count({"has_image": False, "has_v360": True})

    assert either == image + only_view > max(image, view)


def test_b10_the_price_that_is_searched_is_not_always_the_price_that_is_shown() -> None:
    with Simulator("1k", faults="none,markup_pct=100", speed=0) as sim, Client(sim) as client:
        stone = min(sim.oracle().values(), key=lambda it: it.price)
        double = stone.price // 50
        query = {"dollar_value": {"from": double - 1, "to": double + 1}}

        assert stone.id not in client.ids(query)
        assert stone.id in client.ids(query | {"search_on_markup_price": True})


def test_b11_ties_change_places_between_two_requests() -> None:
    with Simulator("1k", faults="none,unstable_ties=true", speed=0) as sim, Client(sim) as client:
        one, other = (client.ids(limit=50, order=BY_AGE) for _ in range(2))
        naive = client.walk()
        truth = sim.oracle()
        ages = [truth[it].created_at for it in naive]

    assert one != other
    assert ages == sorted(ages), "the order itself holds"
    assert len(set(naive)) < 1_000, "who walks by offset misses stones"
    assert DEFAULT.unstable_ties


def test_b11_without_the_knob_the_order_is_stable(client: Client) -> None:
    assert client.ids(order=BY_AGE) == client.ids(order=BY_AGE)
    assert len(set(client.walk())) == 2_000


def test_b12_a_sold_stone_leaves_silently() -> None:
    with Simulator("1k", faults="none", speed=0) as sim, Client(sim) as client:
        before = set(client.walk(AVAILABLE))
        gone = sorted(before)[:2]
        sim.mutate("hold", ids=gone[:1])
        sim.mutate("delete", ids=gone[1:])

        assert before - set(client.walk(AVAILABLE)) == set(gone)
        assert set(gone[1:]).isdisjoint(client.walk())


def test_b13_too_many_requests_meet_the_firewall() -> None:
    with Simulator("1k", faults="none,requests_per_s=25", speed=0) as sim, Client(sim) as client:
        answers = [client.post("{ __typename }") for _ in range(30)]
        sim.advance("59s")
        later = client.post("{ __typename }")
        sim.advance("2s")
        again = client.post("{ __typename }")

    assert [it.status_code for it in answers] == [200] * 24 + [403] * 6  # the login was one more
    assert answers[-1].text.startswith("<!DOCTYPE html>")
    assert (later.status_code, again.status_code) == (403, 200)
    assert (DEFAULT.requests_per_s, DEFAULT.burst, DEFAULT.limit_answer) == (25, 25, "waf")


def test_b14_answers_take_their_time() -> None:
    with (
        Simulator("1k", faults="none,latency_ms=60,latency_spread=0.1", speed=0) as sim,
        Client(sim) as client,
    ):
        begun = time.monotonic()
        client.count()
        took = time.monotonic() - begun

    assert took > 0.03
    assert REAL.latency_ms == 150


def test_b15_a_value_that_cannot_be_told_is_null_and_an_error_or_takes_its_item_along() -> None:
    with Simulator("1k", faults="none,enum_error_prob=0.3", speed=0) as sim, Client(sim) as client:
        answer = client.post(SEARCH, token=client.token)
        body = answer.json()

    items = body["data"]["as"]["diamonds_by_query"]["items"]
    nulls = [it for it in items if it is None]
    holes = [
        it
        for it in items
        if it and None in [it["diamond"]["certificate"][name] for name in ("clarity", "floInt")]
    ]
    assert answer.status_code == 200
    assert len(items) == 50
    assert nulls
    assert holes
    assert len(body["errors"]) == len(nulls) + len(holes)
    assert body["errors"][0]["path"][:4] == ["as", "diamonds_by_query", "items", body["errors"][0]["path"][3]]


def test_b15_who_is_not_let_in_is_told_in_words_only(client: Client) -> None:
    said = {
        client.post("{ diamonds_by_query_count }", headers=headers).json()["errors"][0]["message"].lower()
        for headers in ({}, {"Authorization": "Bearer wrong"})
    }

    assert said == {"authentication required", "invalid token"}


def test_b16_the_catalogue_is_dirty() -> None:
    with Simulator("2k", faults="none,dirty=true", speed=0) as sim, Client(sim) as client:
        text = """{ diamonds_by_query(offset: %d) { items { diamond { supplierStockId eyeClean
                 certificate { lab certNumber girdle length floCol f_color } } } } }"""
        found = [
            it["diamond"]
            for n in range(40)
            for it in client.post(
                text % (50 * n), headers={"Authorization": f"Bearer {client.token}"}
            ).json()["data"]["diamonds_by_query"]["items"]
        ]

    papers = [it["certificate"] for it in found]
    assert {"90%", "100%", "Yes", None} <= {it["eyeClean"] for it in found}
    assert {"null", "MED - STK"} <= {it["girdle"] for it in papers}
    assert "0" in {it["length"] for it in papers}
    assert {"B", "BLUE", None} == {it["floCol"] for it in papers}
    assert {"GREY", "Gray", "EVEN", "ORANGE BROWN", "BROWN ORANGE"} & {it["f_color"] for it in papers}
    for it in found:
        if it["certificate"]["lab"] == "NONE":
            assert it["certificate"]["certNumber"] == it["supplierStockId"]


def test_b17_another_seed_is_another_catalogue_as_staging_is() -> None:
    with Simulator("1k", seed=1, faults="none") as one, Simulator("1k", seed=2, faults="none") as other:
        assert set(one.oracle()).isdisjoint(other.oracle())


def test_b18_one_certificate_may_be_offered_by_several_suppliers(client: Client) -> None:
    carriers = Counter(it.certificate for it in client.sim.oracle().values())
    number = next(it for it, count in carriers.items() if count == 2)

    items = client.search({"certificate_numbers": [number]})["items"]

    assert len({it["diamond"]["id"] for it in items}) == 2
    assert {it["id"] for it in items} == {f"DIAMOND/{it['diamond']['id']}" for it in items}
    assert len({it["diamond"]["certificate"]["carats"] for it in items}) == 1


def test_b19_deep_offsets_work() -> None:
    with Simulator("50k", faults="none", speed=0) as sim, Client(sim) as client:
        assert len(client.ids(offset=49_900)) == 50


def test_the_window_of_updates_is_asked_for_and_never_told(client: Client) -> None:
    """There is no cursor to read back: neither stamp is a field."""
    for name in ("updatedAt", "createdAt", "updated_at"):
        refused = client.ask(f"{{ diamonds_by_query {{ items {{ diamond {{ {name} }} }} }} }}")
        assert f'Cannot query field "{name}"' in refused["errors"][0]["message"]
    sim = client.sim
    since = sim.now + timedelta(seconds=10)
    sim.advance("1m")
    changed = {it.id for it in sim.mutate("price", count=5)}

    assert set(client.walk({"updated": {"from": since.isoformat()}})) == changed
