"""Guards of the adapter of Service Bus and of its emulator, each taken away once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stepfast.transports.contract import TransportError
from stepfast.transports.service_bus import ServiceBusTransport
from stepfast_emulators.service_bus import ServiceBusEmulator
from tests.mutations.mutation import Mutation, both, replacing
from tests.transports import test_service_bus
from tests.unit.emulators import test_queue
from tests.unit.transports import test_service_bus_administration

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ONCE = ("sqlite",)  # no database is asked


def on_a_bus(test: Callable[[test_service_bus.Bus], Awaitable[None]]) -> Callable[[], None]:
    """The test, on an emulator of its own."""

    async def run(emulator: ServiceBusEmulator) -> None:
        async with ServiceBusTransport(connection_string=emulator.connection_string) as transport:
            await test(test_service_bus.Bus(emulator, transport))

    def start() -> None:
        with ServiceBusEmulator() as emulator:
            asyncio.run(run(emulator))

    return start


async def _nothing(*_: Any) -> None:
    pass


async def _unopened(links: Any, link: Any) -> Any:
    links._sockets[link] = None
    return link


MUTATIONS = [
    Mutation(
        "a receiver that does not look is sent messages",
        replacing("stepfast.transports.service_bus_links:Links.quieten", _nothing),
        on_a_bus(test_service_bus.test_a_receiver_that_does_not_look_takes_no_messages),
        only_on=ONCE,
    ),
    Mutation(
        "a link is opened at the cost of the wait",
        replacing("stepfast.transports.service_bus_links:Links._opened", _unopened),
        on_a_bus(test_service_bus.test_a_link_that_opens_slowly_is_not_taken_for_an_empty_queue),
        only_on=ONCE,
        or_with=(TransportError,),
    ),
    Mutation(
        "a link that broke is not made again",
        replacing("stepfast.transports.service_bus_links:may_work_again", lambda _: False),
        on_a_bus(test_service_bus.test_a_lost_acknowledgement_does_not_double_a_message),
        only_on=ONCE,
        or_with=(TransportError,),
    ),
    Mutation(
        "every number has 32 bits",
        replacing("stepfast.transports.service_bus:_number", lambda _, value: value),
        on_a_bus(test_service_bus.test_numbers_of_64_bits_arrive_and_larger_ones_are_refused),
        only_on=ONCE,
        or_with=(TransportError,),
    ),
    Mutation(
        "a refusal does not say why",
        replacing("stepfast.transports.service_bus_links:_said", str),
        on_a_bus(test_service_bus.test_a_wrong_key_is_refused_with_the_reason_and_without_the_key),
        only_on=ONCE,
    ),
    Mutation(
        "a lost lock is taken for a broker that is away",
        replacing("stepfast.transports.service_bus_links:LOST", ()),
        on_a_bus(test_service_bus.test_a_lock_that_the_broker_ended_is_lost_though_our_clock_says_otherwise),
        only_on=ONCE,
        or_with=(TransportError,),
    ),
    Mutation(
        "who closes keeps what it holds",
        both(
            replacing("stepfast.transports.service_bus:ServiceBusTransport._give_back", _nothing),
            replacing("tests.transports.test_service_bus:PATIENCE", timedelta(seconds=1)),
        ),
        on_a_bus(test_service_bus.test_closing_does_not_wait_for_what_is_released_later),
        only_on=ONCE,
    ),
    Mutation(
        "who may not administrate asks again and again",
        replacing("stepfast.transports.service_bus_administration:FORBIDDEN", set[int]()),
        test_service_bus_administration.test_whoever_may_not_asks_once,
        {"problem": test_service_bus_administration.said(403)},
        only_on=ONCE,
        or_with=(TransportError,),
    ),
    Mutation(
        "the emulator forgets ids",
        replacing("stepfast_emulators.service_bus.queue:Queue._remember", lambda *_: None),
        test_queue.test_an_id_is_remembered_for_the_window_even_after_the_message_is_gone,
        only_on=ONCE,
    ),
    Mutation(
        "locks of the emulator never expire",
        replacing("stepfast_emulators.service_bus.queue:Queue.expire", lambda *_: None),
        test_queue.test_a_lock_that_expires_gives_the_message_back_to_its_old_place_and_counts,
        only_on=ONCE,
    ),
]
