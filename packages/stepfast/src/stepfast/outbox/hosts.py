"""Hosts of webhooks: fair shares of the couriers of a process, whatever a host does.

A receiver chooses how long it lets us wait, and who chooses a URL can choose a thousand of them. So a host gets two
couriers at most, hosts in trouble get half of all couriers together, and two couriers are kept for hosts that answered
lately. A host that did not answer in time waits as a whole: see `postpone_host` in `outbox/destinations.py`.

What is known of hosts is kept in memory: each process finds it out by itself.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final

from stepfast.outbox.messages import WEBHOOK

COURIERS: Final = 8  # destinations that one process serves at once
OF_A_HOST: Final = 2
OF_TROUBLED: Final = COURIERS // 2
OF_UNPROVEN: Final = COURIERS - 2  # hosts in trouble, and hosts that have not answered yet
LATELY: Final = 15 * 60.0  # seconds
REMEMBERED: Final = 10_000  # hosts
FIRST_WAIT: Final = timedelta(
    seconds=15
)  # of a host that did not answer in time; twice as long each time, up to ...
LONGEST_WAIT: Final = timedelta(minutes=5)
_WEBHOOKS: Final = f"{WEBHOOK}:"  # how their destinations begin
_HASH: Final = 25  # characters of a destination behind its name: a colon and the hash of the address


class Standing(Enum):
    """What is known of a destination, by which it gets its share."""

    PROVEN = "proven"  # its host answered lately
    UNPROVEN = "unproven"  # nothing is known of its host
    TROUBLED = "troubled"  # its first message failed, or its host did not answer in time lately


@dataclass(frozen=True)
class DueDestination:
    """A destination whose first message is due."""

    id: str
    failed: bool  # whether that message was tried before, in vain

    @property
    def host(self) -> str:
        return host_of(self.id)


@dataclass(frozen=True)
class HostHistory:
    """How a host answered last."""

    at: float  # of the last answer, or of the last time that there was none
    timeouts: int = 0  # in a row


def host_of(destination: str) -> str:
    """What destinations of one host have in common; those that are no webhooks have nothing in common."""
    is_webhook = destination.startswith(_WEBHOOKS) and len(destination) > len(_WEBHOOKS) + _HASH
    return destination[:-_HASH] if is_webhook else destination


class Hosts:
    """What this process knows of hosts. Safe to share between threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, HostHistory] = OrderedDict()
        self._lock = threading.Lock()

    def answered(self, host: str, now: float) -> None:
        """Remember that a host answered, whatever it said."""
        self._remember(host, HostHistory(now))

    def timed_out(self, host: str, now: float) -> timedelta:
        """Remember that a host did not answer in time; returns how long it is left alone."""
        last = self._known.get(host)
        count = 1 if last is None or now - last.at > LATELY else last.timeouts + 1
        self._remember(host, HostHistory(now, count))
        return min(FIRST_WAIT * (1 << min(count - 1, 10)), LONGEST_WAIT)

    def standing_of(self, destination: DueDestination, now: float) -> Standing:
        last = self._known.get(destination.host)
        lately = last is not None and now - last.at <= LATELY
        if destination.failed or (lately and last is not None and last.timeouts):
            return Standing.TROUBLED
        return Standing.PROVEN if lately or destination.host == destination.id else Standing.UNPROVEN

    def choose(
        self, due: Sequence[DueDestination], served: Iterable[tuple[str, Standing]], now: float
    ) -> list[tuple[str, Standing]]:
        """The destinations that get a courier now, in the order in which they are due, each with its standing.

        `served` are those that have a courier.
        """
        taken = list(served)
        hosts = Counter(host_of(destination) for destination, _ in taken)
        shares = Counter(standing for _, standing in taken)
        chosen: list[tuple[str, Standing]] = []
        for destination in due:
            standing = self.standing_of(destination, now)
            if hosts[destination.host] < OF_A_HOST and _has_room(shares, standing):
                hosts[destination.host] += 1
                shares[standing] += 1
                chosen.append((destination.id, standing))
        return chosen

    def _remember(self, host: str, history: HostHistory) -> None:
        with self._lock:
            self._known[host] = history
            self._known.move_to_end(host)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)


def _has_room(shares: Counter[Standing], standing: Standing) -> bool:
    if shares.total() >= COURIERS:
        return False
    if standing is Standing.PROVEN:
        return True
    if shares[Standing.UNPROVEN] + shares[Standing.TROUBLED] >= OF_UNPROVEN:
        return False
    return standing is Standing.UNPROVEN or shares[Standing.TROUBLED] < OF_TROUBLED
