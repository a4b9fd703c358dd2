"""Worn-out messages are received again from the dead-letter queue, however many refused ones lie before them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from stepfast import Stepfast
from stepfast.tasks import intake as intakes
from stepfast.tasks.envelope import queue_of
from stepfast.tasks.intake import Intake, IntakeSettings
from stepfast.tasks.store import StoredMessage
from stepfast.transports.contract import MOST_AT_ONCE, TOO_OFTEN, Delivery, Outgoing
from stepfast.transports.memory import MemoryTransport
from tests.support.events import hearing, named

if TYPE_CHECKING:
    import pytest

    from stepfast.tasks.held_messages import HeldMessage

HOLD = timedelta(minutes=1)
CLIENT = "south"
QUEUE = queue_of(CLIENT)


async def letters(transport: MemoryTransport, reason: str, count: int) -> None:
    await transport.send(QUEUE, [Outgoing(id=f"{reason}-{n}", body="{}") for n in range(count)])
    while found := await transport.receive(QUEUE, at_most=MOST_AT_ONCE, wait=timedelta(0), hold=HOLD):
        for it in found:
            await transport.dead_letter(it, reason)


class Counting(MemoryTransport):
    """Knows how many pages of letters were asked for; asks its intake to stop after so many."""

    intake: Intake
    last: int | None = None
    pages = 0

    async def dead_letters(self, queue: str, *, at_most: int, hold: timedelta) -> list[Delivery]:
        self.pages += 1
        if self.pages == self.last:
            self.intake._stopping.set()
        return await super().dead_letters(queue, at_most=at_most, hold=hold)


class Storing(Intake):
    """Stores nothing: it takes all letters or breaks."""

    scene: Scene

    async def _store(self, messages: Sequence[HeldMessage]) -> list[tuple[HeldMessage, StoredMessage]]:
        return await self.scene.store(messages)


class Scene:
    """A queue with letters, and an intake that recovers them."""

    def __init__(self, failure: Exception | None = None, *, stops_after: int | None = None) -> None:
        self.seen: list[str] = []
        self.failure = failure
        self.hold, self.takes = HOLD, 0.0  # seconds to store a page
        self.stops_after = stops_after
        self.pages = 0

    async def store(self, messages: Sequence[HeldMessage]) -> list[tuple[HeldMessage, StoredMessage]]:
        if self.failure is not None:
            raise self.failure
        await asyncio.sleep(self.takes)
        self.seen += [message.delivery.id for message in messages]
        return [(it, StoredMessage("job", created=True, task_id="1", task_type="ok")) for it in messages]

    def run(self, refused: int, worn_out: int) -> tuple[int | None, int]:
        """How many are left aside, and how many of them could be taken at once."""
        transport = Counting()
        settings = IntakeSettings(client=CLIENT, acknowledge="stored", hold=self.hold)
        intake = Storing(Stepfast("sqlite:///never-opened.db"), transport, settings, ended=lambda: None)
        intake.scene, transport.intake, transport.last = self, intake, self.stops_after
        try:
            return intake._loop.run_until_complete(self._run(intake, transport, refused, worn_out))
        finally:
            intake._loop.close()

    async def _run(
        self, intake: Intake, transport: Counting, refused: int, worn_out: int
    ) -> tuple[int | None, int]:
        await transport.ensure(QUEUE)
        await letters(transport, "refused", refused)
        await letters(transport, TOO_OFTEN, worn_out)
        try:
            await intake.recover_dead_letters()
        except ConnectionError:
            assert self.failure is not None
        self.pages = transport.pages
        free = await transport.dead_letters(QUEUE, at_most=MOST_AT_ONCE, hold=HOLD)
        return (await transport.depth(QUEUE)).dead, len(free)


def test_what_we_refused_hides_nothing_behind_it_and_stays() -> None:
    scene = Scene()

    left = scene.run(refused=300, worn_out=40)

    assert len(set(scene.seen)) == len(scene.seen) == 40
    assert left == (300, MOST_AT_ONCE)


def test_a_pass_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intakes, "MOST_LETTERS", 64)
    scene = Scene()

    with hearing() as told:
        scene.run(refused=100, worn_out=1)

    assert scene.seen == []
    assert named(told, "letters.skipped") == [
        {"queue": QUEUE, "looked_at": 64}
    ]  # nobody is left behind in silence


def test_who_is_asked_to_stop_looks_at_no_other_page_and_gives_back_what_he_holds() -> None:
    scene = Scene(stops_after=1)

    with hearing() as told:
        left = scene.run(refused=100, worn_out=1)

    assert scene.pages == 1
    assert left == (101, MOST_AT_ONCE)
    assert named(told, "letters.skipped") == []


def test_what_could_not_be_stored_is_given_back() -> None:
    assert Scene(ConnectionError()).run(refused=3, worn_out=5) == (8, 8)


def test_what_was_passed_stays_ours_for_as_long_as_the_pass_takes() -> None:
    scene = Scene()
    scene.hold, scene.takes = timedelta(seconds=0.3), 0.6

    left = scene.run(refused=MOST_AT_ONCE, worn_out=1)

    assert scene.pages == 3  # the refused ones, the other, and none
    assert left == (MOST_AT_ONCE, MOST_AT_ONCE)
