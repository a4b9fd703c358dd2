"""The connection of a webhook: to an address that was looked at, and with one deadline for everything.

Imports httpcore, so it is imported by whoever sends.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpcore

from stepfast.errors import AddressRefusedError, ConfigurationError
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    import ssl

    SocketOption = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]


# Where a webhook may go: out into the world, and not to the machines behind our own walls.
#
# A URL comes from a customer. Its name may lead to this very machine, to a neighbour, or to the place where a cloud hands
# out credentials. So the addresses that the name has right now are looked at, and the connection is made to one of exactly
# these: asking for the name a second time could bring another answer.

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Not private by the books, and not in the world either; Python's own lists differ from version to version.
NOT_PUBLIC: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            "168.63.129.16/32",  # the host under every Azure machine
            "192.0.0.0/24",  # protocols' own; a cloud hands out credentials at 192.0.0.192
            "192.88.99.0/24",  # relays of 6to4
            "fec0::/10",  # sites, as they once were
        ),
    )
)
NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
LAST_32_BITS: Final = 0xFFFF_FFFF
_BEFORE_HOST: Final = re.compile(r"[^\s,]+@")
_NETWORK: Final = re.compile(r"[\[\]0-9a-fA-F.:]+/\d+")


@dataclass(frozen=True)
class Allowed:
    """What may be reached although it is not public."""

    hosts: frozenset[str]
    networks: tuple[Network, ...]

    @classmethod
    def read(cls, given: Sequence[str]) -> Allowed:
        """Names (`hooks.internal`, `*.internal`), addresses and networks (`10.1.0.0/16`)."""
        hosts: set[str] = set()
        networks: list[Network] = []
        for text in given:
            if text == "*":
                raise ConfigurationError(
                    "webhook_allow: '*' alone is too much to allow by a slip; write *.internal, or 0.0.0.0/0 and ::/0 for every address"
                )
            try:
                networks.append(ipaddress.ip_network(text.strip("[]")))
            except ValueError as error:
                if "/" in text or ":" in text:
                    raise ConfigurationError(
                        f"webhook_allow: {shown(text)!r} is neither a host nor a network{_why(text, error)}; "
                        "write hooks.internal, *.internal, 10.1.2.3 or 10.1.0.0/16"
                    ) from None  # what Python says quotes the text
                hosts.add(text.lower().rstrip("."))
        return cls(frozenset(hosts), tuple(networks))

    def host(self, name: str) -> bool:
        """Whether this name may lead anywhere."""
        name = name.lower().rstrip(".")
        return name in self.hosts or any(f"*.{name.split('.', n)[-1]}" in self.hosts for n in _dots(name))

    def address(self, address: Address) -> bool:
        return any(address.version == it.version and address in it for it in self.networks)


def shown(text: str) -> str:
    """Entries as they may be shown, also if one is a URL with somebody's password."""
    return without_secrets(_BEFORE_HOST.sub("***@", text))


def _why(text: str, error: ValueError) -> str:
    """What Python says, which quotes the text: so only where that is a network by its shape."""
    return f" ({error})" if _NETWORK.fullmatch(text) else ""


def _dots(name: str) -> range:
    return range(1, name.count(".") + 1)


def resolve(host: str, port: int, seconds: float) -> list[str]:
    """All addresses of a host, as the system knows them now. Raises `OSError`, also when that takes too long."""
    found: list[str] = []
    problems: list[OSError] = []

    def ask() -> None:
        try:
            for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                if str(place[0]) not in found:
                    found.append(str(place[0]))
        except Exception as error:  # noqa: BLE001 - a host may be written in any way, and nobody else looks here
            problems.append(OSError(str(error)))

    # In a thread, because nothing else limits the time that the system takes.
    thread = threading.Thread(target=ask, name="stepfast-resolve", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    if problems:
        raise problems[0]
    return found


def permitted(host: str, addresses: Sequence[str], allowed: Allowed) -> list[str]:
    """Those of a host's addresses that a webhook may be sent to."""
    if allowed.host(host):
        return list(addresses)
    return [it for it in addresses if (known := _read(it)) and (is_public(known) or allowed.address(known))]


def is_public(address: Address) -> bool:
    """Whether it belongs to somebody in the world: not to this machine, this network, a group, or nobody."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in NAT64:  # how a host without IPv4 reaches the rest of the world
            return is_public(ipaddress.IPv4Address(int(address) & LAST_32_BITS))
        # A gateway on the way may unpack the IPv4 address inside.
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is not None and not is_public(inner):
            return False
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_unspecified
        and not any(address in it for it in NOT_PUBLIC if it.version == address.version)
    )


def _read(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


CONNECTING: Final = 5.0  # seconds for the name, and for each address


class Deadline:
    """When a try is over, however little is missing."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def left(self, most: float | None = None) -> float:
        """How long one operation may take from now."""
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
        with _told_as(httpcore.ReadTimeout, httpcore.ReadError):
            self._socket.settimeout(self._deadline.left(timeout))
            return self._socket.recv(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with _told_as(httpcore.WriteTimeout, httpcore.WriteError):
            while buffer:
                self._socket.settimeout(self._deadline.left(timeout))
                buffer = buffer[self._socket.send(buffer) :]

    def close(self) -> None:
        self._socket.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        with _told_as(httpcore.ConnectTimeout, httpcore.ConnectError):
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


class NetworkNetwork(httpcore.NetworkBackend):
    """Resolves a name once, and connects to one of the addresses that came back and may be reached."""

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
        del local_address, socket_options  # nobody asks for them
        with _told_as(httpcore.ConnectTimeout, httpcore.ConnectError):
            found = resolve(host, port, self._deadline.left(timeout))
        addresses = permitted(host, found, self._allowed)
        if not addresses:
            raise AddressRefusedError(host, found)
        with _told_as(httpcore.ConnectTimeout, httpcore.ConnectError):
            return Stream(self._connected(addresses, port, timeout), self._deadline)

    def _connected(self, addresses: list[str], port: int, timeout: float | None) -> socket.socket:
        """To the first address that answers. By number: the name is never asked for again."""
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
def _told_as(late: Callable[[str], Exception], other: Callable[[str], Exception]) -> Iterator[None]:
    """As httpcore names what may happen on a network."""
    try:
        yield
    except TimeoutError as error:
        raise late(str(error)) from error
    except OSError as error:
        raise other(str(error)) from error
