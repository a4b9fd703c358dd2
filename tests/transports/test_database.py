"""Queues in the database beyond conformance: many ends in one transaction, waiting without polling, outages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from stepfast import Stepfast
from stepfast.clock import new_id
from stepfast.transports import database
from stepfast.transports import database as message_rows
from stepfast.transports.contract import DeliveryLostError, Outgoing, TransportUnavailableError
from stepfast.transports.database import DatabaseTransport
from tests.support import rows

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

HOLD = timedelta(seconds=30)
AT_ONCE = timedelta(0)


@pytest.fixture
def app(database_url: str) -> Iterator[Stepfast]:
    with closing(Stepfast(database_url)) as app:
        yield app


def messages(count: int) -> list[Outgoing]:
    return [Outgoing(id=new_id(), body="{}") for _ in range(count)]


async def test_ends_that_come_together_are_committed_together(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = message_rows.complete_messages

    def counted(tx: Transaction, receipts: Sequence[message_rows.Receipt]) -> list[bool]:
        sizes.append(len(receipts))
        return real(tx, receipts)

    monkeypatch.setattr(message_rows, "complete_messages", counted)
    async with DatabaseTransport(app.database) as transport:
        await transport.ensure("q")
        await transport.send("q", messages(50))
        found = await transport.receive("q", at_most=50, wait=AT_ONCE, hold=HOLD)
        rows.change(app, "UPDATE stepfast_message SET visible_at = 1 WHERE id = :id", id=found[7].receipt.id)

        ended = await asyncio.gather(*map(transport.complete, found), return_exceptions=True)

        assert [at for at, it in enumerate(ended) if isinstance(it, DeliveryLostError)] == [7]
        assert sum(sizes) == 50
        assert len(sizes) <= 3


async def test_who_asked_for_an_end_is_told_when_the_database_fails(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> list[bool]:
        raise TransportUnavailableError("database", "away")

    async with DatabaseTransport(app.database) as transport:
        await transport.ensure("q")
        await transport.send("q", messages(3))
        found = await transport.receive("q", at_most=3, wait=AT_ONCE, hold=HOLD)
        with monkeypatch.context() as patch:
            patch.setattr(message_rows, "complete_messages", fails)
            ended = await asyncio.gather(*map(transport.complete, found), return_exceptions=True)

        assert [type(it) for it in ended] == [TransportUnavailableError] * 3
        await asyncio.gather(*map(transport.complete, found))


async def test_a_receive_in_the_same_process_is_woken_by_the_send(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "FIRST_PAUSE", 60.0)  # it would not look again by itself
    monkeypatch.setattr(database, "LONGEST_PAUSE", 60.0)
    async with DatabaseTransport(app.database) as here, DatabaseTransport(app.database) as there:
        await here.ensure("q")
        waiting = asyncio.create_task(there.receive("q", at_most=1, wait=timedelta(minutes=1), hold=HOLD))
        await asyncio.sleep(0.2)

        await here.send("q", messages(1))

        assert len(await asyncio.wait_for(waiting, 10)) == 1


async def test_old_messages_are_removed_while_others_are_received(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PRUNED_EVERY", -1.0)
    monkeypatch.setattr(database, "PRUNED_AT_ONCE", 2)
    async with DatabaseTransport(app.database) as transport:
        await transport.ensure("q")
        await transport.send("q", messages(5))
        for it in await transport.receive("q", at_most=5, wait=AT_ONCE, hold=HOLD):
            await transport.complete(it)
        rows.change(app, "UPDATE stepfast_message SET until_at = 1 WHERE state = 'done'")

        await transport.receive("q", at_most=1, wait=AT_ONCE, hold=HOLD)

        assert rows.count(app, "stepfast_message") == 0
