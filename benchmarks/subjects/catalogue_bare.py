"""The limit of requests: the same pages by the bare HTTP client, which discards the answers.

`catalogue_bare PAGES LIMIT`; NIVODA_URL, NIVODA_USERNAME and NIVODA_PASSWORD say whom to ask. Prints pages per second.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from itertools import cycle, islice

import httpx

from stepfast_diamonds.query import BASE, LOGIN, OLDEST_FIRST, SEARCH

LANES = 10  # requests under way
PRICES = [(at, at + 20) for at in range(500, 5_000, 20)]  # where there are many stones


async def ask(pages: int, limit: int) -> float:
    url = os.environ["NIVODA_URL"]
    async with httpx.AsyncClient(timeout=60) as client:
        who = {"username": os.environ["NIVODA_USERNAME"], "password": os.environ["NIVODA_PASSWORD"]}
        answer = await client.post(url, json={"query": LOGIN, "variables": who})
        token = answer.json()["data"]["authenticate"]["username_and_password"]["token"]
        bodies = iter(list(islice(cycle([_body(limit, *it) for it in PRICES]), pages)))
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}

        async def work() -> None:
            for body in bodies:
                (await client.post(url, content=body, headers=headers)).raise_for_status()

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(LANES)))
        return pages / (time.perf_counter() - began)


def _body(limit: int, low: int, high: int) -> bytes:
    query = {**BASE, "labgrown": False, "dollar_per_carat": {"from": low, "to": high}}
    variables = {"query": query, "offset": 0, "limit": limit, "order": OLDEST_FIRST}
    return json.dumps({"query": SEARCH["bearer"], "variables": variables}).encode()


if __name__ == "__main__":
    print(asyncio.run(ask(int(sys.argv[1]), int(sys.argv[2]))))
