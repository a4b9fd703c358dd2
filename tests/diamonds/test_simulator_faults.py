"""Faults of the simulated API, as a client meets them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from stepfast_diamonds.simulator import Simulator
from tests.diamonds.nivoda import SEARCH, Client

COUNT = "{ diamonds_by_query_count }"


def page_with(faults: str) -> tuple[httpx.Response, list[Any]]:
    """One page of fifty, under these faults."""
    with Simulator("1k", faults=f"none,{faults}", speed=0) as sim, Client(sim) as client:
        answer = client.post(SEARCH.replace("girdle", "girdle comments"), token=client.token)
    return answer, answer.json()["data"]["as"]["diamonds_by_query"]["items"]


def test_a_server_may_say_nothing_until_the_client_gives_up() -> None:
    with Simulator("1k", faults="none", speed=0) as sim, Client(sim) as client:
        sim.turn(hang_prob=1, hang_s=30)
        client.http.timeout = httpx.Timeout(0.2)

        with pytest.raises(httpx.ReadTimeout):
            client.post(COUNT)
        assert sim.statistics()["hang"] == 1


def test_a_hang_ends_without_an_answer() -> None:
    with Simulator("1k", faults="none", speed=0) as sim, Client(sim) as client:
        sim.turn(hang_prob=1, hang_s=0.05)

        with pytest.raises(httpx.RemoteProtocolError):
            client.post(COUNT)


def test_a_connection_may_break_after_the_answer_was_made() -> None:
    hold = "mutation($t: String!, $id: ID!) { as(token: $t) { create_hold(ProductId: $id, ProductType: Diamond) { id } } }"
    with Simulator("1k", faults="none", speed=0) as sim, Client(sim) as client:
        stone = next(it for it in sim.oracle().values() if it.availability == "AVAILABLE")
        sim.turn(reset_prob=1)

        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            client.post(hold, t=client.token, id=stone.id)

        assert sim.oracle()[stone.id].availability == "HOLD", "it was done, and nobody was told"


def test_gateways_fail_with_their_own_pages() -> None:
    with Simulator("1k", faults="none", speed=0) as sim, Client(sim) as client:
        sim.turn(gateway_prob=1)
        answers = [client.post(COUNT) for _ in range(30)]

    assert {it.status_code for it in answers} == {502, 503, 504}
    assert all(it.headers["Content-Type"].startswith("text/html") for it in answers)


def test_a_page_of_html_may_come_with_status_200() -> None:
    with Simulator("1k", faults="none", speed=0) as sim, Client(sim) as client:
        sim.turn(html_prob=1)
        answer = client.post(COUNT)

    assert answer.status_code == 200
    assert answer.text.startswith("<!DOCTYPE html>")


def test_json_may_end_in_the_middle() -> None:
    with Simulator("1k", faults="none", speed=0) as sim, Client(sim) as client:
        sim.turn(truncated_prob=1)
        answer = client.post(SEARCH, token=client.token)

    assert answer.status_code == 200
    with pytest.raises(ValueError, match=r"(?i)unterminated|expecting"):
        answer.json()


def test_half_of_the_data_may_come_with_errors_beside_it() -> None:
    answer, items = page_with("partial_prob=1")

    assert answer.status_code == 200
    assert len(items) == 25
    assert answer.json()["errors"][0]["path"] == ["as", "diamonds_by_query", "items"]


def test_items_may_be_null() -> None:
    answer, items = page_with("null_item_prob=0.5")

    assert 5 < items.count(None) < 45
    assert len(answer.json()["errors"]) == items.count(None)


def test_one_item_may_come_twice() -> None:
    _, items = page_with("duplicate_prob=1")

    assert len(items) == 50
    assert len({it["id"] for it in items}) == 49


def test_a_value_may_be_one_that_no_schema_knows() -> None:
    _, items = page_with("unknown_enum_prob=0.5")

    assert {"QUITE_NEW"} < {it["diamond"]["certificate"]["cut"] for it in items}


def test_a_certificate_may_be_missing() -> None:
    _, items = page_with("no_certificate_prob=0.5")

    assert {it["diamond"]["certificate"] is None for it in items} == {True, False}


def test_a_number_may_be_a_text() -> None:
    _, items = page_with("text_number_prob=0.5")

    assert {type(it["price"]) for it in items} == {
        type(it["diamond"]["certificate"]["carats"]) for it in items
    } - {float} | {int}


def test_a_comment_may_have_a_megabyte() -> None:
    answer, items = page_with("huge_comment_prob=0.1")

    assert {len(it["diamond"]["certificate"]["comments"] or "") for it in items} == {0, 1_000_000}
    assert len(answer.content) > 1_000_000


def test_the_same_stones_are_spoilt_every_time_if_that_is_wanted() -> None:
    def spoilt(client: Client) -> list[bool]:
        items = client.ask(SEARCH, token=client.token)["data"]["as"]["diamonds_by_query"]["items"]
        return [it is None for it in items]

    with Simulator("1k", faults="none,null_item_prob=0.3", speed=0) as sim, Client(sim) as client:
        changing = spoilt(client) != spoilt(client)
        sim.turn(sticky_items=True)

        assert changing
        assert spoilt(client) == spoilt(client) != [False] * 50


def test_too_many_at_once_are_refused() -> None:
    faults = "none,concurrency=3,limit_answer=429,latency_ms=300,latency_spread=0"
    with Simulator("1k", faults=faults, speed=0) as sim, Client(sim) as client:
        headers = {"Authorization": f"Bearer {client.token}"}
        with ThreadPoolExecutor(6) as pool:
            first = [pool.submit(client.post, COUNT, headers) for _ in range(6)]
            found = sorted(it.result().status_code for it in first)
        again = client.post(COUNT, headers).status_code

    assert found == [200] * 3 + [429] * 3
    assert again == 200, "who is answered makes room"


def test_a_client_that_leaves_makes_room() -> None:
    with Simulator("1k", faults="none,concurrency=1,limit_answer=429", speed=0) as sim, Client(sim) as client:
        headers = {"Authorization": f"Bearer {client.token}"}
        sim.turn(latency_ms=60_000, latency_spread=0)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(sim.url, json={"query": COUNT}, headers=headers, timeout=0.3)
        sim.turn(latency_ms=0)

        eventually(lambda: client.post(COUNT, headers).status_code == 200)


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_rough_source_answers_most_of_the_time() -> None:
    with Simulator("1k", faults="rough", seed=5, speed=0) as sim, Client(sim) as client:
        fine = 0
        for n in range(200):
            try:
                fine += "data" in client.post(SEARCH, token=client.token, offset=n).json()
            except (httpx.HTTPError, ValueError):
                continue

        assert 150 < fine < 200
        assert sim.statistics()["requests"] == 201
