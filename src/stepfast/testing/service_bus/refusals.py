"""What the broker says when it will not do something: the conditions that the clients know."""

from __future__ import annotations

from typing import Any

from stepfast.testing.service_bus.values import Code, Described, Symbol


class RefusedError(Exception):
    """Told to the client as an AMQP error, or as the status of a management operation."""

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
