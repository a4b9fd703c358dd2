"""HTTP/1.1 with keep-alive, as much as a GraphQL API needs, by hand on asyncio.

A web framework would spend more time on a count than the count takes, and would not let us break a connection, say
nothing for two minutes, or end a body in the middle.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from stepfast_diamonds.simulator.service import Reply, Request

if TYPE_CHECKING:
    from stepfast_diamonds.simulator.service import Service


LONGEST_HEAD: Final = 65_536
LONGEST_BODY: Final = 4_000_000
_BREAK: Final = struct.pack("ii", 1, 0)  # close with a reset instead of a farewell


class BadRequest(Exception):  # noqa: N818 - a status with a sentence
    """What came was not HTTP as we speak it."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Connection(asyncio.Protocol):
    """One client: requests are answered in order, one at a time."""

    def __init__(self, service: Service, open_: set[Connection]) -> None:
        self._service = service
        self._open = open_
        self._received = bytearray()
        self._reply: Reply | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last = False  # the client wants no more after this one
        self._address = ""
        self._full = False  # what was written waits for the client
        self._waiting = False  # a long body waits for room

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what a TCP server makes
        self._transport = transport
        self._address = str(transport.get_extra_info("peername")[0])
        self._open.add(self)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._open.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._reply is not None:
            self._service.finished(self._reply)

    def close(self) -> None:
        self._transport.abort()

    def _go_on(self) -> None:
        """Answer what has arrived completely, unless an answer is still under way."""
        while self._reply is None and not self._transport.is_closing():
            try:
                request = self._next()
            except BadRequest as error:
                self._last = True
                self._begin(Reply(error.status, str(error).encode(), "text/plain; charset=utf-8"))
                return
            if request is None:
                return
            self._begin(self._service.handle(request))

    def _begin(self, reply: Reply) -> None:
        self._reply = reply
        if reply.delay:
            self._timer = asyncio.get_running_loop().call_later(reply.delay, self._finish_later)
        else:
            self._finish()

    def _finish_later(self) -> None:
        self._timer = None
        self._finish()
        self._go_on()

    def _finish(self) -> None:
        reply = self._reply
        if reply is None:
            return
        if reply.parts is None:
            self._reply = None
        self._service.finished(reply)
        match reply.fate:
            case "reset":
                self._transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, _BREAK
                )
                self._transport.abort()
            case "hang":
                self._transport.abort()
            case _:
                head = _head(reply, self._service.world.clock.now(), last=self._last)
                self._transport.write(head + reply.body)
                if reply.parts is not None:
                    self._send_part()
                elif self._last:
                    self._transport.close()

    def _send_part(self) -> None:
        """One part of a long body; the next follows when this one has left, and others were served."""
        if self._reply is None or self._transport.is_closing():
            return
        part = self._service.next_part(self._reply)
        self._transport.write(b"%x\r\n%b\r\n" % (len(part), part) if part else b"0\r\n\r\n")
        if part:
            self._waiting = True
            if not self._full:
                self.resume_writing()
            return
        self._reply = None
        if self._last:
            self._transport.close()
        self._go_on()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._waiting:
            self._waiting = False
            asyncio.get_running_loop().call_soon(self._send_part)

    def _next(self) -> Request | None:
        """The next request, taken out of what has arrived; None if it is not all here."""
        received = self._received
        end = received.find(b"\r\n\r\n")
        if end < 0:
            if len(received) > LONGEST_HEAD:
                raise BadRequest(431, "the head of the request is too long")
            return None
        first, *lines = received[:end].decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004 - method, target, version
            raise BadRequest(400, "this is not HTTP/1.1")
        headers = {}
        for line in lines:
            name, sign, value = line.partition(":")
            if not sign:
                raise BadRequest(400, "a header has no colon")
            headers[name.lower()] = value.strip()
        length = _length(headers)
        body_end = end + 4 + length
        if len(received) < body_end:
            if headers.get("expect", "").lower() == "100-continue":
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return None
        body = bytes(received[end + 4 : body_end])
        del received[:body_end]
        asked = headers.get("connection", "").lower()
        self._last = asked == "close" or (words[2] == "HTTP/1.0" and asked != "keep-alive")
        return Request(words[0], words[1], headers, body, self._address)


@lru_cache(maxsize=4)
def _date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


def _length(headers: dict[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise BadRequest(411, "send the body with a Content-Length")
    text = headers.get("content-length", "0")
    if not text.isdecimal():
        raise BadRequest(400, "Content-Length is not a number")
    if int(text) > LONGEST_BODY:
        raise BadRequest(413, "the body is too long")
    return int(text)


def _head(reply: Reply, now: int, *, last: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
        f"Date: {_date(now // 1_000_000)}",
        f"Content-Type: {reply.content_type}",
        "Transfer-Encoding: chunked" if reply.parts is not None else f"Content-Length: {len(reply.body)}",
        *[f"{name}: {value}" for name, value in reply.headers.items()],
        "Connection: close" if last else "Connection: keep-alive",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
