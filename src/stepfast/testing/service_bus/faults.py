"""What goes wrong on purpose: at a moment of the next exchange, once or several times, in one queue or in any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from stepfast.testing.service_bus.refusals import CutError, RefusedError, UnansweredError, server_busy


class Moment(StrEnum):
    """Where a fault can strike."""

    LINK_OPENED = "link-opened"  # a client wants to send or to receive; nothing was answered
    MESSAGE_ARRIVED = "message-arrived"  # sent, not stored
    MESSAGE_STORED = "message-stored"  # stored, not acknowledged
    SETTLEMENT_ARRIVED = "settlement-arrived"  # completed, abandoned, … by a receiver; nothing was done
    SETTLEMENT_DONE = "settlement-done"  # done, not confirmed
    REQUEST_ARRIVED = "request-arrived"  # a lock to renew, a message to peek at, …; nothing was done
    REQUEST_DONE = "request-done"  # done, not answered


def cut() -> Exception:
    """End the connection without a word."""
    return CutError()


def silence() -> Exception:
    """Never answer; the connection stays."""
    return UnansweredError()


def refuse(condition: str, text: str = "Refused by the test.", status: int = 400) -> Exception:
    """Answer with an error of AMQP, such as `amqp:internal-error`."""
    return RefusedError(condition, text, status)


def busy() -> Exception:
    """Answer that the namespace is being throttled."""
    return server_busy()


@dataclass(slots=True)
class Fault:
    moment: Moment
    action: Callable[[], Exception]
    times: int
    queue: str  # empty: any


class Faults:
    """Those that are still to strike, in the order in which they were added."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []

    def add(
        self, moment: Moment, action: Callable[[], Exception], *, times: int = 1, queue: str = ""
    ) -> None:
        self._waiting.append(Fault(moment, action, times, queue.lower()))

    def clear(self) -> None:
        self._waiting.clear()

    def left(self) -> int:
        """How many have not struck yet: a test that ends with some has not tested them."""
        return sum(fault.times for fault in self._waiting)

    def meet(self, moment: Moment, queue: str) -> None:
        """Strike here if one waits for this."""
        for fault in self._waiting:
            if fault.moment is moment and fault.queue in {"", queue.lower()}:
                fault.times -= 1
                if not fault.times:
                    self._waiting.remove(fault)
                raise fault.action()
