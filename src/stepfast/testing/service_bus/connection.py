"""A connection of a client: bytes to frames, the handshake, and the sessions."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from stepfast.testing.service_bus.codec import MalformedError, decode, described
from stepfast.testing.service_bus.refusals import CutError, RefusedError
from stepfast.testing.service_bus.session import WINDOW, Session
from stepfast.testing.service_bus.values import Array, Code, Described, Symbol, UByte, UInt, UShort, fields

if TYPE_CHECKING:
    from stepfast.testing.service_bus.broker import Broker, Permitted

HEAD: Final = struct.Struct(">IBBH")  # size, where the body begins (in words), kind, channel
AMQP, SASL = 0, 1  # kinds of frames
GREETING: Final = b"AMQP"
LARGEST_FRAME: Final = 65_536
CHANNELS: Final = UShort(4_999)
IDLE: Final = UInt(120_000)  # milliseconds after which clients must say something
MECHANISMS: Final = Array(map(Symbol, ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")))

log = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
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
        if not self._transport.is_closing():
            body = described(code, values) + payload
            self._transport.write(HEAD.pack(len(body) + HEAD.size, 2, kind, channel) + body)

    def cut(self) -> None:
        """End it as a broken network does."""
        self._transport.abort()

    def later(self, delay: timedelta, action: Callable[[], None]) -> None:
        """Do it after a while, unless the connection ends before."""

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
        if len(self._buffer) < HEAD.size or self._transport.is_closing():
            return None
        greets = self._buffer.startswith(GREETING)
        size = HEAD.size if greets else HEAD.unpack_from(self._buffer)[0]
        if not HEAD.size <= size <= LARGEST_FRAME:
            raise MalformedError(f"a frame of {size} bytes")
        if len(self._buffer) < size:
            return None
        whole, self._buffer = self._buffer[:size], self._buffer[size:]
        return whole

    def _handle(self, whole: bytes) -> None:
        if whole.startswith(GREETING):
            self._greet(protocol=whole[4])
            return
        size, words, kind, channel = HEAD.unpack_from(whole)
        if size <= words * 4:
            return  # an empty frame: the client lives
        frame, end = decode(whole, words * 4)
        if not isinstance(frame, Described):
            raise MalformedError("a frame holds a performative")
        if kind == SASL:
            if frame.code == Code.SASL_INIT:  # who they are is shown to $cbs
                self.send(0, Code.SASL_OUTCOME, [UByte(0)], kind=SASL)
            return
        self._perform(channel, frame, whole[end:])

    def _greet(self, protocol: int) -> None:
        self._transport.write(GREETING + bytes((protocol, 1, 0, 0)))
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
        """A client hangs up when it hears nothing for as long as it said."""
        if not self._transport.is_closing():
            self._transport.write(HEAD.pack(HEAD.size, 2, AMQP, 0))
            self.later(every, lambda: self._keep_alive(every))
