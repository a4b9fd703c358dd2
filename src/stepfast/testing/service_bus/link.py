"""One end of a link: what comes in from a sender, what goes out to a receiver, each by credit."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlparse
from uuid import UUID, uuid4

from stepfast.testing.service_bus.values import Code, UInt

if TYPE_CHECKING:
    from stepfast.testing.service_bus.broker import Service
    from stepfast.testing.service_bus.queue import Queue

CREDIT: Final = 1_000  # transfers that a sender may have under way
SETTLED: Final = 1  # settle mode of a sender: what is sent is gone
FRAME_OVERHEAD: Final = 64  # bytes of a transfer frame beside the payload, at most


class Carrier(Protocol):
    """The session that a link is part of."""

    @property
    def largest_frame(self) -> int: ...

    def number(self, link: Outward, token: UUID | None) -> int: ...

    def send(self, code: Code, values: list[Any], payload: bytes = b"") -> None: ...

    def send_flow(self, link: Link, credit: int, *, drained: bool = False) -> None: ...


class Link:
    """The fields of an attach frame that both kinds need."""

    def __init__(self, session: Carrier, attach: list[Any], node: Queue | Service | None) -> None:
        self.session = session
        self.name: str = attach[0]
        self.handle: int = attach[1]
        self.node = node
        self.credit = 0
        self.count = 0  # of deliveries so far

    def close(self) -> None:
        """The link is gone; what its receiver holds stays held."""


class Inward(Link):
    """A sender of the client is at the other end."""

    def __init__(self, session: Carrier, attach: list[Any], node: Queue | Service | None) -> None:
        super().__init__(session, attach, node)
        self.address = address(attach[6])
        self._partial: Arrived | None = None

    def grant(self) -> None:
        self.credit = CREDIT
        self.session.send_flow(self, CREDIT)

    def take(self, transfer: list[Any], payload: bytes) -> Arrived | None:
        """A transfer may come in several frames; returns it when it is whole."""
        partial = self._partial or Arrived(transfer[1], transfer[3] or 0, settled=bool(transfer[4]))
        partial.payload += payload
        more, aborted = transfer[5], transfer[9]
        if more or aborted:
            self._partial = None if aborted else partial
            return None
        self._partial = None
        self.count += 1
        self.credit -= 1
        return partial


@dataclass(slots=True)
class Arrived:
    """A transfer from a client."""

    delivery: int
    format: int
    settled: bool
    payload: bytes = b""


class Outward(Link):
    """A receiver of the client is at the other end."""

    def __init__(self, session: Carrier, attach: list[Any], node: Queue | Service | None) -> None:
        super().__init__(session, attach, node)
        self.address = address(attach[5])
        self.reply_to = address(attach[6])
        self.takes_for_good = attach[3] == SETTLED
        self._answers: deque[bytes] = deque()

    def deliver(self, payload: bytes, tag: bytes, token: UUID | None) -> None:
        """Send it, in as many frames as it needs."""
        delivery = self.session.number(self, token)
        self.credit -= 1
        self.count += 1
        room = self.session.largest_frame - FRAME_OVERHEAD
        fields = [UInt(self.handle), UInt(delivery), tag, UInt(0), token is None]
        for at in range(0, max(1, len(payload)), room):
            more = at + room < len(payload)
            self.session.send(Code.TRANSFER, [*fields, more], payload[at : at + room])

    def answer(self, payload: bytes) -> None:
        """Of a service; waits for credit."""
        self._answers.append(payload)
        self.send_answers()

    def send_answers(self) -> None:
        while self._answers and self.credit > 0:
            self.deliver(self._answers.popleft(), uuid4().bytes, None)


def address(terminus: Any) -> str:
    """Of a source or a target: a path, with or without a host before it."""
    text = str(terminus.value[0]) if terminus is not None and terminus.value and terminus.value[0] else ""
    return unquote(urlparse(text).path if "://" in text else text).strip("/")
