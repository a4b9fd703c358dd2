"""A TCP proxy in front of a server that breaks connections at a chosen moment.

    with Proxy(server.site.port) as proxy:
        open_database(through(url, proxy.port))
        proxy.cut(Cut(after=b"INSERT INTO ledger", at=b"COMMIT", answered=True))

It reads no protocol: a statement is found by its text, so it must travel as text (no prepared statements).
"""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

Look = Callable[[bytes], bool]

CHUNK = 65_536
SO_ATTACH_FILTER = 26
RETURN_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)  # one BPF instruction: keep zero bytes of every packet


@dataclass(frozen=True, kw_only=True)
class Cut:
    """When to break the connection on which `after` and then `at` were sent; once."""

    after: bytes
    at: bytes
    answered: (
        bool  # the server gets `at` and answers it, but the client never hears; or the server never gets it
    )
    silent: bool = False  # without a goodbye: packets vanish, as when a cable is pulled


class Proxy:
    """Forwards everything to `port`, until told otherwise."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._pairs: list[Pair] = []
        self._cut: Cut | None = None
        self._pulled = False
        self.refuse_next = 0  # so many connections, then it is served again
        self.happened = threading.Event()  # the cut was made
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        for pair in self._connections():
            pair.close()

    def cut(self, cut: Cut) -> None:
        """Arm it."""
        self.happened.clear()
        self._cut = cut

    def silence(self) -> int:
        """Let all packets of the connections that are open now vanish; new ones are served. Returns how many."""
        pairs = self._connections()
        for pair in pairs:
            pair.silence()
        return len(pairs)

    def lead_to(self, port: int) -> None:
        """Forward new connections to another server; those that are open stay where they are."""
        self._server_port = port

    def pull(self) -> None:
        """Break all connections and refuse new ones, until `plug`."""
        self._pulled = True
        for pair in self._connections():
            pair.close()

    def plug(self) -> None:
        self._pulled = False

    def taken(self, cut: Cut) -> bool:
        """Whether the caller is the one to make this cut."""
        with self._lock:
            mine = self._cut is cut
            if mine:
                self._cut = None
        return mine

    def armed(self) -> Cut | None:
        return self._cut

    def _connections(self) -> list[Pair]:
        with self._lock:
            self._pairs = [pair for pair in self._pairs if not pair.closed]
            return list(self._pairs)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            if self._pulled or self.refuse_next:
                self.refuse_next = max(0, self.refuse_next - 1)
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                client.close()
                continue
            pair = Pair(self, client, server)
            with self._lock:
                self._pairs.append(pair)
            pair.start()


@dataclass(eq=False)
class Pair:
    """One client's connection, and ours to the server on its behalf."""

    proxy: Proxy
    client: socket.socket
    server: socket.socket
    closed: bool = False
    _marked: bool = False  # the text after which to cut has passed
    _answer: Cut | None = field(default=None, init=False)  # cut when the server answers

    def start(self) -> None:
        for source, target, look in (
            (self.client, self.server, self._asked),
            (self.server, self.client, self._answered),
        ):
            threading.Thread(
                target=self._forward, args=(source, target, look), name="proxy-pair", daemon=True
            ).start()

    def silence(self) -> None:
        """Drop what arrives from either side before TCP sees it: nothing is acknowledged, nobody is told."""
        for end in (self.client, self.server):
            _drop_everything(end)

    def close(self) -> None:
        self.closed = True
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _forward(self, source: socket.socket, target: socket.socket, look: Look) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                if not look(data):
                    return  # cut
                target.sendall(data)
        self.close()

    def _asked(self, data: bytes) -> bool:
        """Whether to pass on what the client says."""
        cut = self.proxy.armed()
        if cut is None:
            return True
        self._marked = self._marked or cut.after in data
        if not self._marked or cut.at not in data or not self.proxy.taken(cut):
            return True
        if cut.answered:
            self._answer = cut
            return True
        self._make(cut)
        return False

    def _answered(self, _: bytes) -> bool:
        """Whether to pass on what the server says."""
        if self._answer is None:
            return True
        self._make(self._answer)
        return False

    def _make(self, cut: Cut) -> None:
        if cut.silent:
            self.silence()
        else:
            self.close()
        self.proxy.happened.set()


def through(url: str, port: int) -> str:
    """The same URL by way of the proxy at `port`."""
    before, _, rest = url.rpartition(":")
    return f"{before}:{port}/{rest.partition('/')[2]}"


def _drop_everything(end: socket.socket) -> None:
    program = ctypes.create_string_buffer(RETURN_NOTHING)
    filters = struct.pack("HL", 1, ctypes.addressof(program))
    with suppress(OSError):  # closed meanwhile
        end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filters)
