"""A link: using an async transport from threads."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from stepfast.clock import new_id
from stepfast.transports.contract import Outgoing, TransportRefusedError, TransportUnavailableError
from stepfast.transports.memory import MemoryTransport
from stepfast.transports.open import Link
from tests.support import rows

HOLD = timedelta(seconds=30)


def message() -> Outgoing:
    return Outgoing(id=new_id(), body="{}")


def test_a_thread_sends_and_receives() -> None:
    transport = MemoryTransport()
    with Link(transport) as link:
        link.wait_for(transport.ensure("q"))
        link.wait_for(transport.send("q", [message()]))
        found = link.wait_for(transport.receive("q", at_most=1, wait=HOLD, hold=HOLD))
        link.wait_for(transport.complete(found[0]))

        assert link.wait_for(transport.depth("q")).ready == 0


def test_many_threads_share_one_link() -> None:
    transport = MemoryTransport()
    with Link(transport) as link, ThreadPoolExecutor(8) as pool:
        link.wait_for(transport.ensure("q"))
        list(pool.map(lambda _: link.wait_for(transport.send("q", [message()])), range(50)))

        assert link.wait_for(transport.depth("q")).ready == 50


def test_a_broker_that_does_not_answer_in_time_is_unavailable() -> None:
    transport = MemoryTransport()
    with Link(transport, patience=timedelta(seconds=0.1)) as link:
        link.wait_for(transport.ensure("q"))
        began = time.monotonic()

        with pytest.raises(TransportUnavailableError, match="no answer within 100 ms"):
            link.wait_for(transport.receive("q", at_most=1, wait=HOLD, hold=HOLD))

        assert time.monotonic() - began < 5
        link.wait_for(transport.send("q", [message()]))
        assert link.wait_for(transport.depth("q")).ready == 1  # the receive that was given up takes nothing


def test_an_error_comes_back_as_it_was() -> None:
    transport = MemoryTransport()
    with Link(transport) as link, pytest.raises(TransportRefusedError, match="no queue 'nowhere'"):
        link.wait_for(transport.send("nowhere", [message()]))


def test_a_timeout_of_the_call_itself_is_not_the_deadline() -> None:
    async def call() -> None:
        raise TimeoutError("its own")

    with Link(MemoryTransport()) as link, pytest.raises(TimeoutError, match="its own"):
        link.wait_for(call())


def test_a_broker_that_is_away_at_the_start_leaves_no_thread() -> None:
    transport = MemoryTransport()
    transport.broker.away = True
    before = set(threading.enumerate())  # one that another test left is ending, perhaps

    with pytest.raises(TransportUnavailableError):
        Link(transport).open()

    rows.eventually(
        lambda: not [it for it in set(threading.enumerate()) - before if it.name.startswith("link-")]
    )


def test_closing_gives_back_what_is_held() -> None:
    transport = MemoryTransport()
    with Link(transport) as link:
        link.wait_for(transport.ensure("q"))
        link.wait_for(transport.send("q", [message()]))
        link.wait_for(transport.receive("q", at_most=1, wait=HOLD, hold=HOLD))

    assert asyncio.run(transport.depth("q")).ready == 1


def test_a_closed_link_says_so() -> None:
    transport = MemoryTransport()
    link = Link(transport)
    link.open()
    link.close()
    link.close()

    with pytest.raises(TransportUnavailableError, match="closed"):
        link.wait_for(transport.depth("q"))


def test_a_call_that_waits_when_the_link_is_closed_is_told() -> None:
    transport = MemoryTransport()
    link = Link(transport)
    link.open()
    link.wait_for(transport.ensure("q"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(
            link.wait_for, transport.receive("q", at_most=1, wait=HOLD, hold=HOLD), timedelta(seconds=30)
        )
        place = transport.broker.find("q")
        while not place.waiting:
            time.sleep(0.001)
        link.close()

        with pytest.raises(TransportUnavailableError, match="closed"):
            waiting.result(5)
