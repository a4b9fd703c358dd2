"""A broker's dead letters become ours: one list, one way to retry.

A message about work that the database knows is only removed: the job decides about itself, and whoever retries it does
that here. Everything else is written down first, and removed at the broker afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from stepfast.database.database import persist
from stepfast.outbox.alerts import alert, raise_alert
from stepfast.telemetry import happened
from stepfast.transports.contract import MOST_AT_ONCE, Delivery, Transport
from stepfast.transports.dead_messages import keep
from stepfast.transports.failures import DeliveryLostError

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database

HOLD: Final = timedelta(minutes=1)
MOST: Final = 50  # lots in one pass: a flood of them must not keep us from the living

# Which of them are about work that the database knows.
Known = Callable[["Transaction", Sequence[Delivery]], Sequence[bool]]


@dataclass(frozen=True)
class Reconciled:
    """What became of the letters that were found."""

    kept: int = 0
    removed: int = 0


async def reconcile(
    transport: Transport, database: Database, url: str, queue: str, known: Known
) -> Reconciled:
    """Empty the dead letters of one queue into our list."""
    total = Reconciled()
    for _ in range(MOST):
        letters = await transport.dead_letters(queue, at_most=MOST_AT_ONCE, hold=HOLD)
        if not letters:
            break
        write = partial(_write_down, letters=letters, transport=transport.name, url=url, known=known)
        kept = await asyncio.to_thread(persist, database, write)
        for letter in letters:
            try:
                await transport.complete(letter)
            except DeliveryLostError:
                continue  # it comes again, and is known by then
        total = Reconciled(total.kept + kept, total.removed + len(letters) - kept)
    if total != Reconciled():
        happened(
            "dead-letters.reconciled",
            transport=transport.name,
            queue=queue,
            kept=total.kept,
            removed=total.removed,
        )
    return total


def _write_down(tx: Transaction, letters: Sequence[Delivery], transport: str, url: str, known: Known) -> int:
    strangers = _strangers(tx, letters, known)
    for it in strangers:
        keep(tx, it, transport=transport, address=url)
    if strangers:
        queue = strangers[0].queue
        raise_alert(
            tx,
            alert(
                f"broker dead letters: {transport}:{queue}",
                "Messages In The Dead Letter Queue",
                f"{len(strangers)} messages of the queue {queue} ({transport}) were put aside: {strangers[0].dead_reason}\n\n"
                "Look at them:   stepfast dead-letters list\n"
                "Send them again:   stepfast dead-letters retry ID",
            ),
        )
    return len(strangers)


def _strangers(tx: Transaction, letters: Sequence[Delivery], known: Known) -> Sequence[Delivery]:
    return [it for it, ours in zip(letters, known(tx, letters), strict=True) if not ours]
