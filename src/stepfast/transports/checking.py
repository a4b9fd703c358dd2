"""What no queue would take is refused before it is sent, with a sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from stepfast.clock import instant
from stepfast.transports.failures import TransportRefusedError

if TYPE_CHECKING:
    from stepfast.transports.contract import Abilities, Outgoing

LONGEST_ID: Final = 128  # characters; what Service Bus keeps
LONGEST_NAME: Final = 128
MOST_DELIVERIES: Final = 5  # afterwards a message is put aside, so that one that kills its receivers ends
TOO_OFTEN: Final = "MaxDeliveryCountExceeded"  # the word of Service Bus; all of ours use it
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?")


def check_messages(transport: str, abilities: Abilities, messages: Sequence[Outgoing]) -> None:
    """Raise before anything is sent: half a batch would be worse than none."""
    for it in messages:
        if not it.id or len(it.id) > LONGEST_ID or not it.id.isprintable():
            raise TransportRefusedError(
                transport, f"message id {it.id!r:.150}: 1 to {LONGEST_ID} characters that can be printed"
            )
        if len(it.subject) > LONGEST_ID:
            raise TransportRefusedError(
                transport, f"message {it.id}: a subject has at most {LONGEST_ID} characters"
            )
        if not all(map(_sendable, (it.body, it.subject, *it.properties.values()))):
            raise TransportRefusedError(
                transport, f"message {it.id}: a text with a NUL or with half a character in it cannot be sent"
            )
        if (size := len(it.body.encode())) > abilities.largest_body:
            raise TransportRefusedError(
                transport,
                f"message {it.id}: its body takes {size:,} bytes, at most {abilities.largest_body:,} fit; "
                "keep the data where the receiver can fetch it, and send its address",
            )
        if it.not_before is not None:
            instant(it.not_before, "not_before")  # a naive one is refused
        for name, value in it.properties.items():
            if not isinstance(value, str | int | bool):
                raise TransportRefusedError(
                    transport,
                    f"message {it.id}: property {name!r:.80} must be a text, an integer or a boolean",
                )


def check_queue(transport: str, queue: str) -> None:
    """Names that all of them can have; each may ask for more."""
    if len(queue) > LONGEST_NAME or not _NAME.fullmatch(queue):
        raise TransportRefusedError(
            transport,
            f"queue {queue!r:.150}: a name is 1 to {LONGEST_NAME} letters, digits and . _ / - between them",
        )


def _sendable(value: object) -> bool:
    return not isinstance(value, str) or not re.search("[\0\ud800-\udfff]", value)
