"""Send an event by hand, and write down who did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.admin.audit import Actor, record, whoever

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.steps.events import Sent
    from stepfast.steps.sending import SendEvent


def send_event(tx: Transaction, event: SendEvent, *, by: Actor | None = None) -> Sent:
    """Send it. One that was sent before changes nothing, and is not written down."""
    sent = event.send(tx)
    if not sent.repeated:
        record(tx, by or whoever(), "event.send", event.name, detail={"job_id": sent.job_id, "id": sent.id})
    return sent
