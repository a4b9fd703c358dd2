"""Faults that a test orders: at a moment of the next exchange, so many times, in one queue or in any.

And the errors of the emulator, with the conditions that clients know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from stepfast_emulators.service_bus.amqp import Code, Described, Symbol


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
class PlannedFault:
    moment: Moment
    action: Callable[[], Exception]
    times: int
    queue: str  # empty: any


class Faults:
    """The faults that are still to strike, in the order in which they were added."""

    def __init__(self) -> None:
        self._waiting: list[PlannedFault] = []

    def add(
        self, moment: Moment, action: Callable[[], Exception], *, times: int = 1, queue: str = ""
    ) -> None:
        self._waiting.append(PlannedFault(moment, action, times, queue.lower()))

    def clear(self) -> None:
        self._waiting.clear()

    def left(self) -> int:
        """How many faults have not struck yet: a test that ends with some has not tested them."""
        return sum(fault.times for fault in self._waiting)

    def meet(self, moment: Moment, queue: str) -> None:
        """Raise the first fault that waits for this moment of this queue."""
        for fault in self._waiting:
            if fault.moment is moment and fault.queue in {"", queue.lower()}:
                fault.times -= 1
                if not fault.times:
                    self._waiting.remove(fault)
                raise fault.action()


class RefusedError(Exception):
    """Sent to the client as an AMQP error, or as the status of a management operation."""

    def __init__(self, condition: str, text: str, status: int = 400) -> None:
        super().__init__(f"{condition}: {text}")
        self.condition = condition
        self.text = text
        self.status = status

    def described(self) -> Described:
        return Described(Code.ERROR, [Symbol(self.condition), self.text, None])


class CutError(Exception):
    """The connection ends here, without a word."""


class UnansweredError(Exception):
    """The answer is never sent."""


def lock_lost() -> RefusedError:
    text = (
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed "
        "from the queue."
    )
    return RefusedError("com.microsoft:message-lock-lost", text, 410)


def message_not_found(sequence: int) -> RefusedError:
    text = f"The message with the sequence number {sequence} could not be found."
    return RefusedError("com.microsoft:message-not-found", text, 404)


def no_such_queue(path: str) -> RefusedError:
    return RefusedError("amqp:not-found", f"The messaging entity '{path}' could not be found.", 404)


def unauthorized(path: str) -> RefusedError:
    text = f"Unauthorized access. 'Send' or 'Listen' claims are required for '{path}'."
    return RefusedError("amqp:unauthorized-access", text, 401)


def no_sessions(path: str) -> RefusedError:
    text = (
        f"A sessionful message receiver cannot be created on '{path}', which does not require sessions: "
        "the emulator knows none."
    )
    return RefusedError("amqp:not-allowed", text)


def too_large(size: int, largest: int) -> RefusedError:
    text = f"The received message ({size} bytes) exceeds the limit ({largest} bytes) of the link."
    return RefusedError("amqp:link:message-size-exceeded", text)


def queue_full(name: str) -> RefusedError:
    return RefusedError(
        "amqp:resource-limit-exceeded", f"The size of the queue {name} exceeds its quota.", 403
    )


def server_busy() -> RefusedError:
    text = "The request was terminated because the namespace is being throttled. Error code: 50009."
    return RefusedError("com.microsoft:server-busy", text, 503)


def rejected(error: RefusedError) -> Described:
    """The outcome of a delivery that was refused."""
    return Described(Code.REJECTED, [error.described()])


def not_implemented(what: Any) -> RefusedError:
    return RefusedError("amqp:not-implemented", f"The emulator does not know {what}.", 501)
