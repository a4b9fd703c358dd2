"""A held message is given back as a new message only while it is surely ours, and only once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.clock import new_id
from stepfast.tasks import held_messages as module
from stepfast.tasks.held_messages import DEATHS, FIRST_SENT, HeldMessages, deaths_before, sent_anew
from stepfast.transports.contract import Delivery, Outgoing, TransportUnavailableError
from stepfast.transports.memory import MemoryBroker, MemoryTransport

if TYPE_CHECKING:
    from stepfast.tasks.held_messages import HeldMessage

HOLD = timedelta(minutes=1)
QUEUE = "south-tasks"
NO_WAIT = timedelta(0)


class Faulty(MemoryTransport):
    """Does not answer so many times; `lost` answers get lost after the broker has done what was asked."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.away = {"send": 0, "renew": 0, "complete": 0}
        self.lost = {"send": 0, "complete": 0}
        self.sends = 0

    def _ask(self, what: str) -> None:
        if self.away[what]:
            self.away[what] -= 1
            raise TransportUnavailableError("memory", "it does not answer")

    def _answer(self, what: str) -> None:
        if self.lost[what]:
            self.lost[what] -= 1
            raise TransportUnavailableError("memory", "its answer was lost")

    async def send(self, queue: str, messages: Sequence[Outgoing]) -> None:
        self._ask("send")
        await super().send(queue, messages)
        self.sends += 1
        self._answer("send")

    async def renew(self, delivery: Delivery, hold: timedelta) -> Delivery:
        self._ask("renew")
        return await super().renew(delivery, hold)

    async def complete(self, delivery: Delivery) -> None:
        self._ask("complete")
        await super().complete(delivery)
        self._answer("complete")


class Scene:
    """A message that we hold, delivered so many times."""

    def __init__(self, attempt: int = 2, *, body: str = "{}", **properties: Any) -> None:
        self.broker = MemoryBroker()
        self.transport = Faulty(self.broker)
        self.other = MemoryTransport(self.broker)
        self.holding = HeldMessages(self.transport, HOLD, deaths_count=True)
        self.attempt, self.body, self.properties = attempt, body, properties

    def run(self, act: Callable[[HeldMessage], Awaitable[bool]]) -> bool:
        return asyncio.run(self._run(act))

    async def _run(self, act: Callable[[HeldMessage], Awaitable[bool]]) -> bool:
        await self.other.ensure(QUEUE)
        message = Outgoing(id="m-1", body=self.body, properties=self.properties, subject="task")
        await self.other.send(QUEUE, [message])
        for _ in range(self.attempt - 1):
            self.broker.expire((await self._receive(self.other))[0])
        (found,) = await self._receive(self.transport)
        self.transport.sends = 0
        return await act(self.holding.take(found))

    async def _receive(self, transport: MemoryTransport) -> list[Delivery]:
        return await transport.receive(QUEUE, at_most=10, wait=NO_WAIT, hold=HOLD)

    def give_back(self) -> bool:
        return self.run(self.holding.give_back)

    def left(self) -> list[tuple[bool, int]]:
        """What others can take now: whether it is the old message, and how often it was delivered by then."""
        return [(it.id == "m-1", it.attempt) for it in asyncio.run(self._receive(self.other))]


OLD, NEW = True, False


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.0)


def test_the_first_time_it_is_released() -> None:
    scene = Scene(attempt=1)

    assert scene.give_back()
    assert scene.left() == [(OLD, 2)]


def test_then_it_goes_as_a_new_message() -> None:
    scene = Scene(attempt=2)

    assert scene.give_back()
    assert scene.left() == [(NEW, 1)]
    assert len(scene.holding) == 0


@pytest.mark.parametrize(("most", "goes_as"), [(2, (NEW, 1)), (3, (OLD, 2))])
def test_a_stop_is_never_followed_by_a_last_delivery(most: int, goes_as: tuple[bool, int]) -> None:
    scene = Scene(attempt=1)
    scene.transport.abilities = replace(scene.transport.abilities, most_deliveries=most)

    assert scene.give_back()
    assert scene.left() == [goes_as]


def test_while_the_broker_does_not_say_that_it_is_ours_nothing_is_sent() -> None:
    scene = Scene()
    scene.transport.away["renew"] = 1

    assert scene.give_back()
    assert (scene.transport.sends, scene.left()) == (0, [(OLD, 3)])


def test_what_another_holds_is_left_to_him() -> None:
    scene = Scene()

    async def late(held: HeldMessage) -> bool:
        scene.broker.expire(held.delivery)
        (his,) = await scene.other.receive(QUEUE, at_most=1, wait=NO_WAIT, hold=HOLD)
        given = await scene.holding.give_back(held)
        await scene.other.complete(his)
        return given

    assert not scene.run(late)
    assert (scene.transport.sends, scene.left()) == (0, [])


def test_what_cannot_be_sent_is_released() -> None:
    scene = Scene()
    scene.transport.away["send"] = 1

    assert scene.give_back()
    assert scene.left() == [(OLD, 3)]


def test_what_no_broker_takes_from_us_is_released_as_well() -> None:
    """Others may send what we may not: something larger, or with properties of other kinds."""
    scene = Scene()
    scene.transport.abilities = replace(scene.transport.abilities, largest_body=1)

    assert scene.give_back()
    assert scene.left() == [(OLD, 3)]


def test_a_send_whose_answer_was_lost_leaves_both() -> None:
    scene = Scene()
    scene.transport.lost["send"] = 1

    assert scene.give_back()
    assert sorted(scene.left()) == [(NEW, 1), (OLD, 3)]


def test_a_removal_that_is_not_answered_is_tried_again_and_nothing_is_sent_twice() -> None:
    scene = Scene()
    scene.transport.away["complete"] = 3

    assert scene.give_back()
    assert (scene.transport.sends, scene.left()) == (1, [(NEW, 1)])


def test_a_removal_whose_answer_was_lost_is_no_trouble() -> None:
    scene = Scene()
    scene.transport.lost["complete"] = 1
    scene.give_back()

    assert (scene.transport.sends, scene.left()) == (1, [(NEW, 1)])
    assert len(scene.holding) == 0


def test_what_was_ended_meanwhile_is_not_given_back() -> None:
    scene = Scene()

    async def ended(held: HeldMessage) -> bool:
        completed, given = await asyncio.gather(scene.holding.complete(held), scene.holding.give_back(held))
        assert completed
        return given

    assert not scene.run(ended)
    assert (scene.transport.sends, scene.left()) == (0, [])


@pytest.mark.parametrize(
    ("attempt", "before", "after"), [(1, 0, 0), (2, 0, 0), (3, 0, 1), (4, 0, 2), (2, 2, 2), (3, 2, 3)]
)
def test_deaths_go_on_counting_in_the_new_message(attempt: int, before: int, after: int) -> None:
    counted: dict[str, Any] = {DEATHS: before} if before else {}
    scene = Scene(attempt, **counted)
    seen: list[Delivery] = []

    async def look(held: HeldMessage) -> bool:
        seen.append(held.delivery)
        return True

    scene.run(look)
    anew = sent_anew(seen[0])

    assert anew.properties[DEATHS] == after
    assert seen[0].sent_at is not None
    assert anew.properties[FIRST_SENT] == seen[0].sent_at.isoformat()
    again = replace(seen[0], properties=anew.properties, sent_at=None)
    assert sent_anew(again).properties[FIRST_SENT] == anew.properties[FIRST_SENT]


@pytest.mark.parametrize("value", [None, "3", -1, 1.5, [1]])
def test_a_count_that_nobody_could_have_written_counts_nothing(value: Any) -> None:
    scene = Scene()
    seen: list[Delivery] = []

    async def look(held: HeldMessage) -> bool:
        seen.append(replace(held.delivery, properties={DEATHS: value}))
        return True

    scene.run(look)

    assert deaths_before(seen[0]) == 0


def test_a_new_message_has_an_id_of_its_own_each_time() -> None:
    """Where duplicates are detected, the same id again would be dropped silently."""
    seen: list[Delivery] = []

    async def look(held: HeldMessage) -> bool:
        seen.append(held.delivery)
        return True

    Scene().run(look)

    assert len({seen[0].id, sent_anew(seen[0]).id, sent_anew(seen[0]).id, new_id()}) == 4
