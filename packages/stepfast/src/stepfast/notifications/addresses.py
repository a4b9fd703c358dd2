"""Which addresses a webhook may reach: those of the world, and not those of the machines behind our own walls.

A URL comes from a customer. Its name may lead to this very machine, to a neighbour, or to the place where a cloud hands
out credentials. So the addresses that the name has right now are checked, and the connection is made to one of exactly
these: asking for the name a second time could bring another answer.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stepfast.errors import ConfigurationError
from stepfast.telemetry.masking import without_secrets

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Not private by the standards, and not public either; Python's own lists differ from version to version.
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
LONGEST_NAME: Final = 253  # characters of a host, as DNS has it
_BEFORE_HOST: Final = re.compile(r"(?<![^\s,])[^\s,]+@")
_NETWORK: Final = re.compile(r"[\[\]0-9a-fA-F.:]+/\d+")


@dataclass(frozen=True)
class Allowed:
    """Hosts and networks that webhooks may reach although they are not public."""

    hosts: frozenset[str]
    networks: tuple[Network, ...]

    @classmethod
    def read(cls, given: Sequence[str]) -> Allowed:
        """Read names (`hooks.internal`, `*.internal`), addresses and networks (`10.1.0.0/16`)."""
        hosts: set[str] = set()
        networks: list[Network] = []
        for text in given:
            if text == "*":
                raise ConfigurationError(
                    "webhook_allow: '*' alone is too much to allow by a slip; write *.internal, or 0.0.0.0/0 and ::/0 for every address"
                )
            if len(text) > LONGEST_NAME:
                raise ConfigurationError(
                    f"webhook_allow: an entry has {len(text):,} characters; the name of a host has at most {LONGEST_NAME}"
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
        """Whether this name may lead to any address."""
        name = name.lower().rstrip(".")
        return name in self.hosts or any(f"*.{name.split('.', n)[-1]}" in self.hosts for n in _dots(name))

    def address(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self.networks)


def shown(text: str) -> str:
    """Entries as they may be shown, also if one is a URL with a password."""
    return without_secrets(_BEFORE_HOST.sub("***@", text))


def _why(text: str, error: ValueError) -> str:
    """The error of Python, which quotes the text: only where that is a network by its shape."""
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
        except Exception as error:  # noqa: BLE001 - a host may be written in any way, and a thread has no caller
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
    """The addresses of a host that a webhook may be sent to."""
    if allowed.host(host):
        return list(addresses)
    return [it for it in addresses if (known := _read(it)) and (is_public(known) or allowed.address(known))]


def is_public(address: Address) -> bool:
    """Whether an address is public: not of this machine, this network, a group, and not unassigned."""
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
