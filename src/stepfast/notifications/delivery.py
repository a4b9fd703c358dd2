"""What became of one try to deliver a message."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum


class Patience(Enum):
    """How long it is worth trying."""

    FULL = "full"  # an outage, a throttle: it may pass
    LITTLE = "little"  # the receiver does not want it as it is, or we may not send it; a few more tries
    NONE = "none"  # it asked us to stop
    FREE = "free"  # nothing was sent, and it is not the message's fault: it waits, and no try is counted


@dataclass(frozen=True)
class Delivered:
    """The receiver has it."""


@dataclass(frozen=True)
class Failed:
    """It has not, as far as we know: the answer may have been lost. Sent again, under the same id."""

    reason: str  # fit for logs: no payload, no secret
    patience: Patience = Patience.FULL
    not_before: timedelta | None = None  # as the receiver asked
    answer: str = ""  # how the receiver's words began; kept with the message, not logged


Delivery = Delivered | Failed
