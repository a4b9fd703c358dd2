"""The states that a message may pass through, and the channels through which it leaves."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class MessageState(StrEnum):
    WAITING = "waiting"  # stands in the line of its destination
    SENT = "sent"  # the receiver has it; forgotten after the retention time, a hint for workers at once
    DEAD = "dead"  # given up; waits for an operator


class Channel(StrEnum):
    WEBHOOK = "webhook"  # a request to a program
    ALERT = "alert"  # a message to a person
    EXPORT = "export"  # a document for others
    BROKER = "broker"  # a message for a queue of others


TRANSITIONS: Final[dict[MessageState, dict[MessageState, str]]] = {
    MessageState.WAITING: {
        MessageState.WAITING: "fail, and try again later",
        MessageState.SENT: "the receiver has it",
        MessageState.DEAD: "give up",
    },
    MessageState.SENT: {},
    MessageState.DEAD: {MessageState.WAITING: "retry"},
}
