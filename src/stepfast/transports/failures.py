"""What a queue of others may answer, in three sentences: not now, never so, no longer yours.

TransportError
├── TransportUnavailableError   nothing is known: try later, with the same ids
├── TransportRefusedError       it will never work so: somebody has to change something
└── DeliveryLostError           another may hold the message by now: go on, the database decides
"""

from __future__ import annotations

from stepfast.errors import StepfastError
from stepfast.telemetry.masking import without_secrets


class TransportError(StepfastError):
    """Base of what queues answer."""

    def __init__(self, transport: str, problem: str) -> None:
        super().__init__(f"{transport}: {without_secrets(problem)}")
        self.transport = transport


class TransportUnavailableError(TransportError):
    """The broker does not answer, or is busy. Nothing is known of what was asked: try later, with the same ids."""


class TransportRefusedError(TransportError):
    """The broker said no, and will say no again: a wrong key, no such queue, a message that is too large."""


class DeliveryLostError(TransportError):
    """The message was held for too long, or was ended before. Go on: whoever has it now asks the database too."""

    def __init__(self, transport: str, queue: str, message_id: str) -> None:
        super().__init__(
            transport, f"message {message_id} of {queue} is no longer held by us; another may have it"
        )
        self.queue = queue
        self.message_id = message_id
