"""The connection of a client: bytes to frames, the handshake, its sessions, and their links."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote, urlparse
from uuid import UUID, uuid4

from stepfast_emulators.service_bus.amqp import (
    MANY_IN_ONE,
    Array,
    Code,
    Described,
    MalformedError,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
    decode,
    described,
    fields,
)
from stepfast_emulators.service_bus.faults import (
    CutError,
    Moment,
    RefusedError,
    UnansweredError,
    no_sessions,
    rejected,
    too_large,
)
from stepfast_emulators.service_bus.message import parse, sections, unpack
from stepfast_emulators.service_bus.queue import Outcome, Queue

if TYPE_CHECKING:
    from stepfast_emulators.service_bus.broker import Broker, Permitted, Service


log = logging.getLogger(__name__)
AMQP, SASL = 0, 1  # kinds of frames
FRAME_HEAD: Final = struct.Struct(">IBBH")  # size, where the body begins (in words), kind, channel
PROTOCOL_HEADER: Final = b"AMQP"
LARGEST_FRAME: Final = 65_536
CHANNELS: Final = UShort(4_999)
IDLE: Final = UInt(120_000)  # milliseconds after which clients must say something
MECHANISMS: Final = Array(map(Symbol, ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")))
WINDOW: Final = UInt(0x7FFFFFFF)
LOW_CREDIT: Final = 500  # credit below which a sender gets new
LARGEST_MESSAGE: Final = ULong(262_144)
RECEIVER: Final = True  # the role of a receiver in attach and disposition
SENDER_CREDIT: Final = 1_000  # transfers that a sender may have under way
FILTERS: Final = (
    7  # where a source has its filters; only outcomes and capabilities follow, which are optional
)
SESSION_FILTER: Final = "com.microsoft:session-filter"
PRESETTLED: Final = 1  # settle mode of a sender: what is sent is gone
FRAME_OVERHEAD: Final = 64  # bytes of a transfer frame beside the payload, at most


def frame_of(channel: int, code: Code, values: list[Any], payload: bytes = b"", kind: int = AMQP) -> bytes:
    """A frame with one performative, and what follows it."""
    body = described(code, values) + payload
    return FRAME_HEAD.pack(len(body) + FRAME_HEAD.size, 2, kind, channel) + body


class Connection(asyncio.Protocol):
    """Reads and writes frames, and hands them to sessions. `everyone` are all connections of the emulator."""

    def __init__(self, broker: Broker, everyone: set[Connection]) -> None:
        self.broker = broker
        self.permitted: Permitted = set()
        self.largest_frame = 512
        self._everyone = everyone
        self._buffer = b""
        self._sessions: dict[int, Session] = {}
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.TimerHandle] = set()

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._everyone.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._everyone.discard(self)
        for waiting in self._waiting:
            waiting.cancel()
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while (whole := self._next()) is not None:
                self._handle(whole)
        except CutError:
            self.cut()
        except (MalformedError, KeyError, IndexError, TypeError, AttributeError) as error:
            log.warning(
                "closing a connection that does not speak AMQP as we know it: %r", error, exc_info=True
            )
            refused = RefusedError("amqp:decode-error", repr(error))
            self.send(0, Code.CLOSE, [refused.described()])
            self._transport.close()

    # -- frames

    def send(
        self, channel: int, code: Code, values: list[Any], payload: bytes = b"", kind: int = AMQP
    ) -> None:
        self.write(frame_of(channel, code, values, payload, kind))

    def write(self, frames: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(frames)

    def cut(self) -> None:
        """End the connection as a broken network does."""
        self._transport.abort()

    def later(self, delay: timedelta, action: Callable[[], None]) -> None:
        """Do `action` after a while, unless the connection ends before."""

        def act() -> None:
            self._waiting.discard(handle)
            try:
                action()
            except CutError:
                self.cut()

        handle = self._loop.call_later(delay.total_seconds(), act)
        self._waiting.add(handle)

    def _next(self) -> bytes | None:
        """The next greeting or frame, if all of it is here."""
        if len(self._buffer) < FRAME_HEAD.size or self._transport.is_closing():
            return None
        greets = self._buffer.startswith(PROTOCOL_HEADER)
        size = FRAME_HEAD.size if greets else FRAME_HEAD.unpack_from(self._buffer)[0]
        if not FRAME_HEAD.size <= size <= LARGEST_FRAME:
            raise MalformedError(f"a frame of {size} bytes")
        if len(self._buffer) < size:
            return None
        whole, self._buffer = self._buffer[:size], self._buffer[size:]
        return whole

    def _handle(self, whole: bytes) -> None:
        if whole.startswith(PROTOCOL_HEADER):
            self._greet(protocol=whole[4])
            return
        size, words, kind, channel = FRAME_HEAD.unpack_from(whole)
        if size <= words * 4:
            return  # an empty frame: the client lives
        frame, end = decode(whole, words * 4)
        if not isinstance(frame, Described):
            raise MalformedError("a frame holds a performative")
        if kind == SASL:
            if frame.code == Code.SASL_INIT:  # clients show their tokens to $cbs
                self.send(0, Code.SASL_OUTCOME, [UByte(0)], kind=SASL)
            return
        self._perform(channel, frame, whole[end:])

    def _greet(self, protocol: int) -> None:
        self._transport.write(PROTOCOL_HEADER + bytes((protocol, 1, 0, 0)))
        if protocol:
            self.send(0, Code.SASL_MECHANISMS, [MECHANISMS], kind=SASL)

    def _perform(self, channel: int, frame: Described, payload: bytes) -> None:
        match frame.code:
            case Code.OPEN:
                self._open(fields(frame.value, 5))
            case Code.CLOSE:
                self.send(0, Code.CLOSE, [])
                self._transport.close()
            case Code.BEGIN:
                self._sessions[channel] = Session(self, channel)
                self.send(channel, Code.BEGIN, [UShort(channel), UInt(0), WINDOW, WINDOW, UInt(255)])
            case Code.END:
                if (ended := self._sessions.pop(channel, None)) is not None:
                    ended.close()
                    self.send(channel, Code.END, [])
            case code:
                if (session := self._sessions.get(channel)) is not None:
                    session.handle(code, frame.value, payload)

    def _open(self, given: list[Any]) -> None:
        self.largest_frame = min(given[2] or LARGEST_FRAME, LARGEST_FRAME)
        self.send(0, Code.OPEN, ["stepfast-emulator", None, UInt(LARGEST_FRAME), CHANNELS, IDLE])
        if idle := given[4]:
            self._keep_alive(timedelta(milliseconds=idle) / 2)

    def _keep_alive(self, every: timedelta) -> None:
        """Send an empty frame every so often: a client hangs up after its idle time."""
        if not self._transport.is_closing():
            self._transport.write(FRAME_HEAD.pack(FRAME_HEAD.size, 2, AMQP, 0))
            self.later(every, lambda: self._keep_alive(every))


class Session:
    """The links of a session, and the frames on them: attach, flow, transfer, disposition, detach."""

    def __init__(self, connection: Connection, channel: int) -> None:
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

    def number(self, link: ReceiverLink, token: UUID | None) -> int:
        """The id of the next delivery; with a token its settlement is awaited."""
        delivery, self._sent = self._sent, self._sent + 1
        if token is not None and isinstance(link.node, Queue):
            self._held[delivery] = link.node, token
        return delivery

    def close(self) -> None:
        for link in list(self._links.values()):
            self._forget(link)

    # -- links

    def _attach(self, given: list[Any], _: bytes) -> None:
        """A client opens a link; the answer may be delayed."""
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
            if wants_session(given):
                log.warning("a client asks for a session of %s, and the emulator knows none", path)
                raise no_sessions(path)
        except RefusedError as error:
            refused = error
        except UnansweredError:
            return
        outward = given[2] is RECEIVER
        link = ReceiverLink(self, given, node) if outward else SenderLink(self, given, node)
        largest = ULong(node.settings.largest) if isinstance(node, Queue) else LARGEST_MESSAGE
        first = UInt(0) if outward else None
        settling, ends = [given[3], given[4]], [without_filters(given[5]), given[6]]
        answer = [link.name, UInt(link.handle), not outward, *settling, *ends, None, None, first, largest]
        if refused is not None:
            # In one piece: the SDK for JavaScript takes a link that is not refused within a millisecond for open.
            refusal = [UInt(link.handle), True, refused.described()]
            opened = frame_of(self.channel, Code.ATTACH, answer)
            self.connection.write(opened + frame_of(self.channel, Code.DETACH, refusal))
            return
        self.send(Code.ATTACH, answer)
        self._links[link.handle] = link
        if isinstance(link, SenderLink):
            link.grant()
        elif isinstance(node, Queue):
            node.join(link)

    def _detach(self, given: list[Any], _: bytes) -> None:
        if (link := self._links.get(given[0])) is not None:
            self._forget(link)
            self.send(Code.DETACH, [UInt(link.handle), True])

    def _forget(self, link: Link) -> None:
        """Forget a link. Messages that its receiver holds stay held, as in the service: only settling or time ends a lock."""
        self._links.pop(link.handle, None)
        if isinstance(link, ReceiverLink) and isinstance(link.node, Queue):
            link.node.leave(link)

    def _flow(self, given: list[Any], _: bytes) -> None:
        link = self._links.get(given[4]) if given[4] is not None else None
        if not isinstance(link, ReceiverLink):
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
        if not isinstance(link, SenderLink) or (arrived := link.take(given, payload)) is None:
            return
        try:
            self._accept(link, arrived)
            state = Described(Code.ACCEPTED, [])
        except RefusedError as error:
            state = rejected(error)
        if not arrived.settled:
            delivery = UInt(arrived.delivery)
            self.send(Code.DISPOSITION, [RECEIVER, delivery, delivery, True, state])
        if link.credit < LOW_CREDIT:
            link.grant()

    def _accept(self, link: SenderLink, arrived: IncomingTransfer) -> None:
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

    def _answer(self, link: SenderLink, request: bytes) -> None:
        """Answer a request over the link to its reply address, or else over the one from the same node."""
        if link.node is None or isinstance(link.node, Queue):
            return
        back = [it for it in self._links.values() if isinstance(it, ReceiverLink)]
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
        """Settle a message; returns the outcome to confirm, or a rejection that says why not."""
        outcome, notes = outcome_of(state)
        try:
            self.connection.broker.faults.meet(Moment.SETTLEMENT_ARRIVED, queue.name)
            queue.settle(token, outcome, notes)
            self.connection.broker.faults.meet(Moment.SETTLEMENT_DONE, queue.name)
        except RefusedError as error:
            return rejected(error)
        return Described(state.code, state.value if state.code == Code.MODIFIED else [])


def outcome_of(state: Described) -> tuple[Outcome, dict[Any, Any] | None]:
    """The outcome that the state of a disposition stands for, and the properties that it adds."""
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
    return terminus_address(attach[5] if attach[2] is RECEIVER else attach[6])


def wants_session(attach: list[Any]) -> bool:
    """Whether a client asks for the messages of one session: by a filter of its source."""
    source = attach[5]
    filters = (
        fields(list(source.value), FILTERS + 1)[FILTERS]
        if attach[2] is RECEIVER and source is not None
        else None
    )
    return isinstance(filters, dict) and SESSION_FILTER in map(str, filters)


def without_filters(source: Described | None) -> Described | None:
    """The source as we serve it: a filter that is in the answer would be one that we heed."""
    return None if source is None else Described(source.code, list(source.value)[:FILTERS])


def reply_address(request: bytes) -> str:
    found: list[Any] = next((it.value for it, _ in sections(request) if it.code == Code.PROPERTIES), [])
    return str(fields(found, 5)[4] or "")


class Link:
    """One end of a link, by credit: what senders and receivers have in common."""

    def __init__(self, session: Session, attach: list[Any], node: Queue | Service | None) -> None:
        self.session = session
        self.name: str = attach[0]
        self.handle: int = attach[1]
        self.node = node
        self.credit = 0
        self.count = 0  # of deliveries so far

    def close(self) -> None:
        """The link is gone; messages that its receiver holds stay held."""


class SenderLink(Link):
    """The end of a link on which a client sends."""

    def __init__(self, session: Session, attach: list[Any], node: Queue | Service | None) -> None:
        super().__init__(session, attach, node)
        self.address = terminus_address(attach[6])
        self._partial: IncomingTransfer | None = None

    def grant(self) -> None:
        self.credit = SENDER_CREDIT
        self.session.send_flow(self, SENDER_CREDIT)

    def take(self, transfer: list[Any], payload: bytes) -> IncomingTransfer | None:
        """Take a frame of a transfer; returns the transfer when it is whole."""
        partial = self._partial or IncomingTransfer(transfer[1], transfer[3] or 0, settled=bool(transfer[4]))
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
class IncomingTransfer:
    """A transfer from a client."""

    delivery: int
    format: int
    settled: bool
    payload: bytes = b""


class ReceiverLink(Link):
    """The end of a link on which a client receives."""

    def __init__(self, session: Session, attach: list[Any], node: Queue | Service | None) -> None:
        super().__init__(session, attach, node)
        self.address = terminus_address(attach[5])
        self.reply_to = terminus_address(attach[6])
        self.takes_for_good = attach[3] == PRESETTLED
        self._answers: deque[bytes] = deque()

    def deliver(self, payload: bytes, tag: bytes, token: UUID | None) -> None:
        """Send a message, in as many frames as it needs."""
        delivery = self.session.number(self, token)
        self.credit -= 1
        self.count += 1
        room = self.session.largest_frame - FRAME_OVERHEAD
        fields = [UInt(self.handle), UInt(delivery), tag, UInt(0), token is None]
        for at in range(0, max(1, len(payload)), room):
            more = at + room < len(payload)
            self.session.send(Code.TRANSFER, [*fields, more], payload[at : at + room])

    def answer(self, payload: bytes) -> None:
        """Send the answer of a service, as soon as there is credit."""
        self._answers.append(payload)
        self.send_answers()

    def send_answers(self) -> None:
        while self._answers and self.credit > 0:
            self.deliver(self._answers.popleft(), uuid4().bytes, None)


def terminus_address(terminus: Any) -> str:
    """The address of a source or a target: a path, with or without a host before it."""
    text = str(terminus.value[0]) if terminus is not None and terminus.value and terminus.value[0] else ""
    return unquote(urlparse(text).path if "://" in text else text).strip("/")
