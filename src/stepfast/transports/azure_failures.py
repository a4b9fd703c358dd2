"""What Azure's libraries raise about storage, as our three sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from stepfast.transports.failures import (
    DeliveryLostError,
    TransportRefusedError,
    TransportUnavailableError,
)

if TYPE_CHECKING:
    from azure.core.exceptions import AzureError

    from stepfast.transports.contract import Delivery

# Each of them: the message is gone, or somebody received it after us.
LOST: Final = {"MessageNotFound", "PopReceiptMismatch"}
LATER: Final = {408, 429}
UNSIGNED: Final = (
    "AzureSigningError"  # the account's key is no key; each library has a class of its own for it
)
LONGEST: Final = 300


@contextmanager
def told_as_ours(transport: str, place: str, delivery: Delivery | None = None) -> Iterator[None]:
    """Inside it, what the library raises becomes one of ours; `place` is named in it."""
    from azure.core.exceptions import AzureError

    try:
        yield
    except AzureError as error:
        if delivery is not None and code_of(error) in LOST:
            raise DeliveryLostError(transport, delivery.queue, delivery.id) from error
        kind = TransportUnavailableError if is_passing(error) else TransportRefusedError
        raise kind(transport, f"{place}: {_first_line(error)}") from error
    except (TimeoutError, ConnectionError) as error:
        raise TransportUnavailableError(transport, f"{place}: {type(error).__name__} {error}") from error


def is_passing(error: AzureError) -> bool:
    """Whether it may go well later: no answer, no token yet, too busy. Everything else needs a person."""
    if type(error).__name__ == UNSIGNED:
        return False
    status = getattr(error, "status_code", None)
    return status is None or status in LATER or status >= 500  # noqa: PLR2004 - the server's own trouble


def _first_line(error: AzureError) -> str:
    text = str(getattr(error, "message", None) or error).strip()
    return f"{code_of(error) or type(error).__name__}: {text.splitlines()[0] if text else ''}"[:LONGEST]


def code_of(error: AzureError) -> str:
    """Azure's own word for it: an enumeration where the library knows the word, else a text."""
    found = getattr(error, "error_code", None)
    return str(getattr(found, "value", found) or "")
