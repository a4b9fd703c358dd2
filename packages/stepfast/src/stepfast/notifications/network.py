"""The connection of a webhook: to an address that was checked, and with one deadline for everything.

It imports httpcore, which needs an extra, so it is imported only where a webhook is sent.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import httpcore

from stepfast.errors import AddressRefusedError
from stepfast.notifications.addresses import Allowed, permitted, resolve

if TYPE_CHECKING:
    import ssl

    SocketOption = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]


CONNECTING: Final = 5.0  # seconds for the name, and for each address


class Deadline:
    """The moment at which one try is over, however little is missing."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def left(self, most: float | None = None) -> float:
        """Seconds that one operation may take from now; raises when none are left."""
        rest = self._until - time.monotonic()
        if rest <= 0:
            raise TimeoutError("the time for one try is over")
        return rest if most is None else min(rest, most)


class Stream(httpcore.NetworkStream):
    """A socket that keeps to the deadline."""

    def __init__(self, raw: socket.socket, deadline: Deadline) -> None:
        self._socket = raw
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _raised_as(httpcore.ReadTimeout, httpcore.ReadError):
            self._socket.settimeout(self._deadline.left(timeout))
            return self._socket.recv(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with _raised_as(httpcore.WriteTimeout, httpcore.WriteError):
            while buffer:
                self._socket.settimeout(self._deadline.left(timeout))
                buffer = buffer[self._socket.send(buffer) :]

    def close(self) -> None:
        self._socket.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        with _raised_as(httpcore.ConnectTimeout, httpcore.ConnectError):
            try:
                self._socket.settimeout(self._deadline.left(timeout))
                return Stream(
                    ssl_context.wrap_socket(self._socket, server_hostname=server_hostname), self._deadline
                )
            except BaseException:
                self.close()
                raise

    def get_extra_info(self, info: str) -> Any:
        return self._socket if info == "socket" else None


class CheckedNetwork(httpcore.NetworkBackend):
    """Resolves a name once, and connects to one of its addresses that may be reached."""

    def __init__(self, allowed: Allowed, deadline: Deadline) -> None:
        self._allowed = allowed
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore.NetworkStream:
        del local_address, socket_options  # not used by our pools
        with _raised_as(httpcore.ConnectTimeout, httpcore.ConnectError):
            found = resolve(host, port, self._deadline.left(timeout))
        addresses = permitted(host, found, self._allowed)
        if not addresses:
            raise AddressRefusedError(host, found)
        with _raised_as(httpcore.ConnectTimeout, httpcore.ConnectError):
            return Stream(self._connected(addresses, port, timeout), self._deadline)

    def _connected(self, addresses: list[str], port: int, timeout: float | None) -> socket.socket:
        """A connection to the first address that answers. By number: the name is not resolved again."""
        problem: OSError | None = None
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            raw = socket.socket(family, socket.SOCK_STREAM)
            try:
                raw.settimeout(self._deadline.left(timeout))
                raw.connect((address, port))
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                raw.close()
                problem = error
            except BaseException:
                raw.close()
                raise
            else:
                return raw
        raise problem or OSError("no address")


@contextmanager
def _raised_as(late: Callable[[str], Exception], other: Callable[[str], Exception]) -> Iterator[None]:
    """Raise errors of a socket as those of httpcore."""
    try:
        yield
    except TimeoutError as error:
        raise late(str(error)) from error
    except OSError as error:
        raise other(str(error)) from error
