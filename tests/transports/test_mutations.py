"""The conformance suite bites: with a guard taken out of an adapter, one of its tests fails."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.transports import azure as azure_failures
from stepfast.transports import memory, storage_queue
from stepfast.transports import storage_queue as storage_queue_format
from stepfast.transports.contract import TransportError
from stepfast.transports.memory import MemoryBroker, MemoryTransport
from stepfast.transports.storage_queue import StorageQueueTransport, delivery_of
from tests.transports import test_conformance as suite

if TYPE_CHECKING:
    from stepfast.transports.contract import Delivery, Outgoing
    from tests.transports.brokers import Broker

Break = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutation:
    name: str
    on: str
    break_it: Break
    noticed_by: Callable[..., Awaitable[None]]
    arguments: tuple[object, ...] = ()


def replacing(place: Any, name: str, instead: Any) -> Break:
    return lambda patch: patch.setattr(place, name, instead)


def _whoever_shows_a_receipt(self: MemoryTransport, delivery: Delivery) -> Any:
    self.broker.place(delivery.queue)
    return delivery.receipt.shelf, delivery.receipt.shelf.kept[delivery.receipt.number]


def _stored_twice(self: MemoryBroker, queue: str, message: Outgoing) -> None:
    self.place(queue).seen.clear()
    _store(self, queue, message)


_store = MemoryBroker.store
_renew = StorageQueueTransport.renew


async def _with_the_old_receipt(self: StorageQueueTransport, delivery: Delivery, hold: timedelta) -> Delivery:
    return replace(await _renew(self, delivery, hold), receipt=delivery.receipt)


async def _lost_without_a_word(self: StorageQueueTransport, delivery: Delivery, *_: str) -> None:
    await self.complete(delivery)


async def _no_farewell(self: Any) -> None:
    self._held.clear()


MUTATIONS = [
    Mutation(
        "any receipt will do", "memory", replacing(MemoryTransport, "_mine", _whoever_shows_a_receipt),
        suite.test_a_late_holder_is_refused,
    ),
    Mutation(
        "ids are not remembered", "memory", replacing(MemoryBroker, "store", _stored_twice), suite.test_the_same_id_twice
    ),
    Mutation(
        "nothing is given back", "memory", replacing(MemoryTransport, "close", _no_farewell),
        suite.test_closing_gives_back_what_is_held,
    ),
    Mutation(
        "sizes are not looked at", "memory", replacing(memory, "check_messages", lambda *_: None),
        suite.test_a_message_that_is_too_large_is_refused_before_anything_is_sent,
    ),
    Mutation(
        "the old receipt is kept after a renewal", "storage-queue",
        replacing(StorageQueueTransport, "renew", _with_the_old_receipt), suite.test_a_renewed_message_is_held_for_longer,
    ),
    Mutation(
        "a lost message is an error like others", "storage-queue", replacing(azure_failures, "LOST", set()),
        suite.test_a_completed_message_never_comes_back,
    ),
    Mutation(
        "a dead letter is removed only", "storage-queue", replacing(StorageQueueTransport, "dead_letter", _lost_without_a_word),
        suite.test_a_dead_letter_says_why,
    ),
    Mutation(
        "nobody counts deliveries", "storage-queue",
        replacing(storage_queue, "delivery_of", lambda *given: replace(delivery_of(*given), attempt=1)),
        suite.test_a_message_that_nobody_ends_is_put_aside,
    ),
    Mutation(
        "what XML cannot carry is sent as it is", "storage-queue",
        replacing(storage_queue_format, "_SPOILT", re.compile("(?!)")),
        suite.test_every_text_arrives_as_it_was, ("line\r\nline\x01\x0b\x7f\ufffe",),
    ),
    Mutation(
        "a time to come is sent at once", "storage-queue", replacing(storage_queue, "delay", lambda _: 0),
        suite.test_a_scheduled_message_comes_at_its_time,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("broker", "mutation"),
    [(it.on, it) for it in MUTATIONS],
    indirect=["broker"],
    ids=[it.name for it in MUTATIONS],
)
def test_a_broken_guard_is_noticed(
    mutation: Mutation, broker: Broker, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation.break_it(monkeypatch)
    monkeypatch.setattr(suite, "PATIENCE", timedelta(seconds=3))

    with pytest.raises((AssertionError, pytest.fail.Exception, TransportError, LookupError, TimeoutError)):
        runner.run(asyncio.wait_for(mutation.noticed_by(broker, *mutation.arguments), 10))
