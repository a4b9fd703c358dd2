"""The states that a message may pass through."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class MessageState(StrEnum):
    WAITING = "waiting"  # stands in the line of its destination
    SENT = "sent"  # the receiver has it; forgotten after the retention time
    DEAD = "dead"  # given up; waits for an operator


TRANSITIONS: Final[dict[MessageState, dict[MessageState, str]]] = {
    MessageState.WAITING: {
        MessageState.WAITING: "fail, and try again later",
        MessageState.SENT: "the receiver has it",
        MessageState.DEAD: "give up",
    },
    MessageState.SENT: {},
    MessageState.DEAD: {MessageState.WAITING: "retry"},
}
