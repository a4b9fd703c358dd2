"""Guards of the adapters in memory and for Storage Queue, each taken away once, and noticed by the conformance suite."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepfast.transports.memory import MemoryBroker
from stepfast.transports.storage_queue import StorageQueueTransport, delivery_of
from tests.mutations.mutation import Mutation, replacing
from tests.transports import test_conformance as suite

if TYPE_CHECKING:
    from datetime import timedelta

    from stepfast.transports.contract import Delivery, Outgoing
    from stepfast.transports.memory import MemoryTransport


def _whoever_shows_a_receipt(self: MemoryTransport, delivery: Delivery) -> Any:
    self.broker.find(delivery.queue)
    return delivery.receipt.shelf, delivery.receipt.shelf.kept[delivery.receipt.number]


_store = MemoryBroker.store
_renew = StorageQueueTransport.renew


def _stored_twice(self: MemoryBroker, queue: str, message: Outgoing) -> None:
    self.find(queue).seen.clear()
    _store(self, queue, message)


async def _with_the_old_receipt(self: StorageQueueTransport, delivery: Delivery, hold: timedelta) -> Delivery:
    return replace(await _renew(self, delivery, hold), receipt=delivery.receipt)


async def _lost_without_a_word(self: StorageQueueTransport, delivery: Delivery, *_: str) -> None:
    await self.complete(delivery)


async def _no_farewell(self: Any) -> None:
    self._held.clear()


MUTATIONS = {  # by the broker that they break
    "memory": [
        Mutation(
            "any receipt will do",
            replacing("stepfast.transports.memory:MemoryTransport._mine", _whoever_shows_a_receipt),
            suite.test_a_late_holder_is_refused,
        ),
        Mutation(
            "ids are not remembered",
            replacing("stepfast.transports.memory:MemoryBroker.store", _stored_twice),
            suite.test_the_same_id_twice,
        ),
        Mutation(
            "nothing is given back",
            replacing("stepfast.transports.memory:MemoryTransport.close", _no_farewell),
            suite.test_closing_gives_back_what_is_held,
        ),
        Mutation(
            "sizes are not looked at",
            replacing("stepfast.transports.memory:check_messages", lambda *_: None),
            suite.test_a_message_that_is_too_large_is_refused_before_anything_is_sent,
        ),
    ],
    "storage-queue": [
        Mutation(
            "the old receipt is kept after a renewal",
            replacing("stepfast.transports.storage_queue:StorageQueueTransport.renew", _with_the_old_receipt),
            suite.test_a_renewed_message_is_held_for_longer,
        ),
        Mutation(
            "a lost message is an error like others",
            replacing("stepfast.transports.azure:LOST", set()),
            suite.test_a_completed_message_never_comes_back,
        ),
        Mutation(
            "a dead letter is removed only",
            replacing(
                "stepfast.transports.storage_queue:StorageQueueTransport.dead_letter", _lost_without_a_word
            ),
            suite.test_a_dead_letter_says_why,
        ),
        Mutation(
            "nobody counts deliveries",
            replacing(
                "stepfast.transports.storage_queue:delivery_of",
                lambda *given: replace(delivery_of(*given), attempt=1),
            ),
            suite.test_a_message_that_nobody_ends_is_put_aside,
        ),
        Mutation(
            "what XML cannot carry is sent as it is",
            replacing("stepfast.transports.storage_queue:_SPOILT", re.compile("(?!)")),
            suite.test_every_text_arrives_as_it_was,
            {"body": "line\r\nline\x01\x0b\x7f\ufffe"},
        ),
        Mutation(
            "a time to come is sent at once",
            replacing("stepfast.transports.storage_queue:delay", lambda _: 0),
            suite.test_a_scheduled_message_comes_at_its_time,
        ),
    ],
}
