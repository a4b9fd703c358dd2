"""A session: its links, and the conversation on them: attach, flow, transfer, disposition, detach."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

from stepfast.testing.service_bus.faults import Moment
from stepfast.testing.service_bus.link import Arrived, Inward, Link, Outward, address
from stepfast.testing.service_bus.message import parse, sections, unpack
from stepfast.testing.service_bus.queue import Outcome, Queue
from stepfast.testing.service_bus.refusals import RefusedError, UnansweredError, rejected, too_large
from stepfast.testing.service_bus.values import MANY_IN_ONE, Code, Described, UInt, ULong, fields

if TYPE_CHECKING:
    from stepfast.testing.service_bus.broker import Broker, Permitted, Service

WINDOW: Final = UInt(0x7FFFFFFF)
FEW: Final = 500  # credit below which a sender gets new
LARGEST: Final = ULong(262_144)
RECEIVER: Final = True  # the role of a receiver in attach and disposition


class Wire(Protocol):
    """The connection that a session is part of."""

    broker: Broker
    permitted: Permitted
    largest_frame: int

    def send(self, channel: int, code: Code, values: list[Any], payload: bytes = b"") -> None: ...

    def later(self, delay: timedelta, action: Callable[[], None]) -> None: ...


class Session:
    def __init__(self, connection: Wire, channel: int) -> None:
        self.connection = connection
        self.channel = channel
        self._links: dict[int, Link] = {}
        self._sent = 0
        self._held: dict[int, tuple[Queue, UUID]] = {}  # deliveries that the client has not settled
        self._handlers: dict[int, Callable[[list[Any], bytes], None]] = {
            Code.ATTACH: self._attach,
            Code.FLOW: self._flow,
            Code.TRANSFER: self._transfer,
            Code.DISPOSITION: self._disposition,
            Code.DETACH: self._detach,
        }

    def handle(self, code: int, given: list[Any], payload: bytes) -> None:
        with suppress(UnansweredError):
            self._handlers[code](fields(given, 14), payload)

    @property
    def largest_frame(self) -> int:
        return self.connection.largest_frame

    def send(self, code: Code, values: list[Any], payload: bytes = b"") -> None:
        self.connection.send(self.channel, code, values, payload)

    def send_flow(self, link: Link, credit: int, *, drained: bool = False) -> None:
        window = [UInt(0), WINDOW, UInt(self._sent), WINDOW]
        self.send(Code.FLOW, [*window, UInt(link.handle), UInt(link.count), UInt(credit), None, drained])

    def number(self, link: Outward, token: UUID | None) -> int:
        """The id of the next delivery; with a token we wait for its settlement."""
        delivery, self._sent = self._sent, self._sent + 1
        if token is not None and isinstance(link.node, Queue):
            self._held[delivery] = link.node, token
        return delivery

    def close(self) -> None:
        for link in list(self._links.values()):
            self._forget(link)

    # -- links

    def _attach(self, given: list[Any], _: bytes) -> None:
        """A client opens a link; it may take a while until we answer."""
        broker = self.connection.broker
        if broker.link_delay and not address_of(given).startswith("$cbs"):
            self.connection.later(broker.link_delay, lambda: self._open_link(given))
        else:
            self._open_link(given)

    def _open_link(self, given: list[Any]) -> None:
        broker, path = self.connection.broker, address_of(given)
        refused: RefusedError | None = None
        node: Queue | Service | None = None
        try:
            broker.faults.meet(Moment.LINK_OPENED, path)
            node = broker.node(path, self.connection.permitted)
        except RefusedError as error:
            refused = error
        except UnansweredError:
            return
        outward = given[2] is RECEIVER
        link = Outward(self, given, node) if outward else Inward(self, given, node)
        largest = ULong(node.settings.largest) if isinstance(node, Queue) else LARGEST
        first = UInt(0) if outward else None
        settling, ends = [given[3], given[4]], [given[5], given[6]]
        answer = [link.name, UInt(link.handle), not outward, *settling, *ends, None, None, first, largest]
        self.send(Code.ATTACH, answer)
        if refused is not None:
            self.send(Code.DETACH, [UInt(link.handle), True, refused.described()])
            return
        self._links[link.handle] = link
        if isinstance(link, Inward):
            link.grant()
        elif isinstance(node, Queue):
            node.join(link)

    def _detach(self, given: list[Any], _: bytes) -> None:
        if (link := self._links.get(given[0])) is not None:
            self._forget(link)
            self.send(Code.DETACH, [UInt(link.handle), True])

    def _forget(self, link: Link) -> None:
        """What its receiver holds stays held, as in the service: only settling or time ends a lock."""
        self._links.pop(link.handle, None)
        if isinstance(link, Outward) and isinstance(link.node, Queue):
            link.node.leave(link)

    def _flow(self, given: list[Any], _: bytes) -> None:
        link = self._links.get(given[4]) if given[4] is not None else None
        if not isinstance(link, Outward):
            return
        link.credit = (given[5] or 0) + (given[6] or 0) - link.count
        if isinstance(link.node, Queue):
            link.node.deliver()
        else:
            link.send_answers()
        if given[8]:  # drain: what is not used up now is gone
            link.count += max(0, link.credit)
            link.credit = 0
            self.send_flow(link, 0, drained=True)

    # -- what clients send

    def _transfer(self, given: list[Any], payload: bytes) -> None:
        link = self._links.get(given[0])
        if not isinstance(link, Inward) or (arrived := link.take(given, payload)) is None:
            return
        try:
            self._accept(link, arrived)
            state = Described(Code.ACCEPTED, [])
        except RefusedError as error:
            state = rejected(error)
        if not arrived.settled:
            delivery = UInt(arrived.delivery)
            self.send(Code.DISPOSITION, [RECEIVER, delivery, delivery, True, state])
        if link.credit < FEW:
            link.grant()

    def _accept(self, link: Inward, arrived: Arrived) -> None:
        if not isinstance(link.node, Queue):
            self._answer(link, arrived.payload)
            return
        faults, queue, size = self.connection.broker.faults, link.node, len(arrived.payload)
        faults.meet(Moment.MESSAGE_ARRIVED, queue.name)
        if size > queue.settings.largest:
            raise too_large(size, queue.settings.largest)
        whole = arrived.format == MANY_IN_ONE
        for message in unpack(arrived.payload) if whole else [parse(arrived.payload)]:
            queue.store(message)
        faults.meet(Moment.MESSAGE_STORED, queue.name)

    def _answer(self, link: Inward, request: bytes) -> None:
        """Over the link that leads back to the address which the request names, or that comes from the same node."""
        if link.node is None or isinstance(link.node, Queue):
            return
        back = [it for it in self._links.values() if isinstance(it, Outward)]
        wanted = reply_address(request)
        way = next((it for it in back if wanted and it.reply_to == wanted), None)
        way = way or next((it for it in back if it.address == link.address), None)
        answer = link.node(request, self.connection.permitted)
        if way is not None:
            way.answer(answer)

    # -- how clients settle what they received

    def _disposition(self, given: list[Any], _: bytes) -> None:
        role, first, last, settled, state = given[:5]
        if role is not RECEIVER or state is None:
            return
        for delivery in range(first, (first if last is None else last) + 1):
            queue, token = self._held.pop(delivery, (None, None))
            if queue is None or token is None:
                continue
            confirmed = self._settle(queue, token, state)
            if not settled:  # the client waits for our word
                self.send(Code.DISPOSITION, [not RECEIVER, UInt(delivery), UInt(delivery), True, confirmed])

    def _settle(self, queue: Queue, token: UUID, state: Described) -> Described:
        """Returns the outcome to confirm: the same without an error, or a rejection that says why not."""
        outcome, notes = reading(state)
        try:
            self.connection.broker.faults.meet(Moment.SETTLEMENT_ARRIVED, queue.name)
            queue.settle(token, outcome, notes)
            self.connection.broker.faults.meet(Moment.SETTLEMENT_DONE, queue.name)
        except RefusedError as error:
            return rejected(error)
        return Described(state.code, state.value if state.code == Code.MODIFIED else [])


def reading(state: Described) -> tuple[Outcome, dict[Any, Any] | None]:
    """What a client means by the state of a disposition, and the properties that it adds."""
    given = fields(list(state.value or []), 3)
    match state.code:
        case Code.ACCEPTED:
            return Outcome.COMPLETED, None
        case Code.RELEASED:
            return Outcome.RELEASED, None
        case Code.MODIFIED:  # its second field: undeliverable here
            return (Outcome.DEFERRED if given[1] else Outcome.ABANDONED), given[2]
        case _:
            error = fields(list(given[0].value), 3) if given[0] is not None else [None] * 3
            return Outcome.DEAD_LETTERED, error[2]


def address_of(attach: list[Any]) -> str:
    return address(attach[5] if attach[2] is RECEIVER else attach[6])


def reply_address(request: bytes) -> str:
    found: list[Any] = next((it.value for it, _ in sections(request) if it.code == Code.PROPERTIES), [])
    return str(fields(found, 5)[4] or "")
