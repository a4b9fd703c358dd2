"""Refused messages take no capacity from waiting tasks; a full intake says why it takes no more."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Stepfast
from stepfast.notifications.settings import NotificationSettings
from stepfast.tasks import intake as room
from stepfast.tasks.intake import Intake, IntakeSettings
from stepfast.transports.memory import MemoryBroker, MemoryTransport
from tests.support import rows
from tests.support.broker import CLIENT, QUEUE, polling, task_message
from tests.support.broker import TaskQueue as Broker
from tests.support.events import Told, hearing, named

if TYPE_CHECKING:
    from stepfast.transports.contract import Delivery

pytestmark = pytest.mark.only_on("sqlite")  # it is the broker's turn
HOOK = "https://front.example/hook"


@pytest.fixture
def broker() -> Broker:
    return Broker(MemoryBroker())


def done(app: Stepfast) -> int:
    return rows.count(app, "stepfast_archive", "state = 'done'")


def registered(app: Stepfast) -> None:
    @app.task("add")
    def add(n: int) -> int:
        return n + 1


class Endless(MemoryTransport):
    """Whose dead letters never come to an end: one page, and then no answer."""

    pages = 0

    async def dead_letters(self, queue: str, *, at_most: int, hold: timedelta) -> list[Delivery]:
        self.pages += 1
        if self.pages > 1:
            await asyncio.Event().wait()
        return await super().dead_letters(queue, at_most=at_most, hold=hold)


def test_who_looks_through_the_dead_letters_holds_up_no_task_and_no_end(
    app: Stepfast, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MOST_HELD", 4)
    registered(app)
    broker.send(*["garbage"] * 10)
    for it in broker.receive():
        asyncio.run(MemoryTransport(broker.memory).dead_letter(it, "refused"))
    transport = Endless(broker.memory)
    intake = Intake(app, transport, IntakeSettings(client=CLIENT, acknowledge="stored"), ended=lambda: None)

    with app.worker(queues=QUEUE):
        intake.start()
        rows.eventually(lambda: transport.pages == 2)
        broker.send(*(task_message("add", f"t-{n}", n=n) for n in range(8)), first=20)
        rows.eventually(lambda: done(app) == 8)
    intake.leave(timedelta(0))

    assert not intake._thread.is_alive()
    assert len(broker.dead()) == 10  # given back


@pytest.mark.parametrize(
    ("secrets", "warned"),
    [((), True), (("none",), False), (("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",), False)],
)
def test_a_missing_secret_is_told_of_at_the_start(
    database_url: str,
    broker: Broker,
    secrets: tuple[str, ...],
    warned: bool,  # noqa: FBT001 - a case
) -> None:
    app = Stepfast(database_url, notifications=NotificationSettings(webhook_secrets=secrets))
    registered(app)

    told = until_started(app, broker)

    assert [
        "STEPFAST_WEBHOOK_SECRETS is not set" in str(it["note"]) for it in named(told, "intake.warned")
    ] == ([True] if warned else [])
    app.close()


def until_started(app: Stepfast, broker: Broker) -> Told:
    with hearing() as told, polling(app, broker):
        pass
    assert named(told, "intake.started")
    return told


def test_when_webhooks_cannot_leave_the_bound_is_told_of_once(
    app: Stepfast, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MOST_HELD", 3)
    registered(app)
    broker.send(*(task_message("add", f"t-{n}", n=n, webhook_url=HOOK) for n in range(5)))

    with hearing() as told, polling(app, broker, "ended"):
        rows.eventually(lambda: named(told, "intake.filled"))
        rows.eventually(lambda: done(app) == 3)
        depth = broker.depth()

    filled: list[dict[str, Any]] = named(told, "intake.filled")
    assert [(it["queue"], it["held"]) for it in filled] == [(QUEUE, 3)]
    assert (depth.ready, depth.held) == (2, 3)
