"""The mapping of everything that the simulated API answers, dirty values included."""

from __future__ import annotations

from collections import Counter

from stepfast_diamonds.mapping import SELECTION, RejectedError, map_offer
from stepfast_diamonds.rules import default_rules
from stepfast_diamonds.simulator import Simulator
from tests.diamonds.nivoda import Client

QUERY = f"""
query($token: String!, $offset: Int) {{
  as(token: $token) {{ diamonds_by_query(offset: $offset, limit: 50) {{ items {{ {SELECTION} }} total_count }} }}
}}
"""


def test_every_stone_of_the_simulator_is_mapped_and_priced_or_lacks_a_picture() -> None:
    refused: Counter[str] = Counter()
    prices: dict[str, int] = {}
    with Simulator("1k", seed=7, faults="none") as sim, Client(sim) as client:
        offset = 0
        while items := client.ask(QUERY, token=client.token, offset=offset)["data"]["as"][
            "diamonds_by_query"
        ]["items"]:
            for item in items:
                try:
                    stone = map_offer(item, "nivoda-natural", lab_grown=False)
                except RejectedError as error:
                    refused[error.code] += 1
                else:
                    prices[stone.supplier_stone_id] = int(stone.feed_price * 100)
                    assert default_rules().quote(stone).price_model_price > stone.feed_price
            offset += len(items)
        truth = {name: it.price for name, it in sim.oracle().items()}

    assert set(refused) <= {"no image", "no video"}
    assert len(prices) + sum(refused.values()) == len(truth)
    assert prices == {name: price for name, price in truth.items() if name in prices}
    assert len(prices) > 0.7 * len(truth)
