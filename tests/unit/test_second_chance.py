"""What is worn out gets its second chance, however much of what we refused lies in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.tasks import second_chance
from holdfast.tasks.holding import Holding
from holdfast.tasks.second_chance import give_second_chance
from holdfast.tasks.storing import Stored
from holdfast.transports.checking import TOO_OFTEN
from holdfast.transports.contract import MOST_AT_ONCE, Outgoing
from holdfast.transports.memory import MemoryTransport

if TYPE_CHECKING:
    import pytest

    from holdfast.tasks.holding import Held

HOLD = timedelta(minutes=1)
QUEUE = "south-tasks"


async def letters(transport: MemoryTransport, reason: str, count: int) -> None:
    await transport.send(QUEUE, [Outgoing(id=f"{reason}-{n}", body="{}") for n in range(count)])
    while found := await transport.receive(QUEUE, at_most=MOST_AT_ONCE, wait=timedelta(0), hold=HOLD):
        for it in found:
            await transport.dead_letter(it, reason)


class Scene:
    """A queue with letters, and a store that takes all of them or breaks."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.seen: list[str] = []
        self.failure = failure

    async def store(self, held: Sequence[Held]) -> dict[Held, Stored]:
        if self.failure is not None:
            raise self.failure
        self.seen += [it.delivery.id for it in held]
        return {it: Stored("job", created=True, task_id="1", task_type="ok") for it in held}

    async def run(self, refused: int, worn_out: int) -> tuple[int | None, int]:
        """How many are left aside, and how many of them could be taken at once."""
        async with MemoryTransport() as transport:
            await transport.ensure(QUEUE)
            await letters(transport, "refused", refused)
            await letters(transport, TOO_OFTEN, worn_out)
            holding = Holding(transport, HOLD)
            try:
                await give_second_chance(transport, holding, QUEUE, self.store)
            except ConnectionError:
                assert self.failure is not None
            free = await transport.dead_letters(QUEUE, at_most=MOST_AT_ONCE, hold=HOLD)
            assert len(holding) == 0
            return (await transport.depth(QUEUE)).dead, len(free)


def test_what_we_refused_hides_nothing_behind_it_and_stays() -> None:
    scene = Scene()

    left = asyncio.run(scene.run(refused=300, worn_out=40))

    assert len(set(scene.seen)) == len(scene.seen) == 40
    assert left == (300, MOST_AT_ONCE)


def test_a_pass_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_chance, "MOST", 64)
    scene = Scene()

    asyncio.run(scene.run(refused=100, worn_out=1))

    assert scene.seen == []


def test_what_could_not_be_stored_is_given_back() -> None:
    assert asyncio.run(Scene(ConnectionError()).run(refused=3, worn_out=5)) == (8, 8)
