"""Errors of the Service Bus SDK as our own: unavailable, refused, or delivery lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)

from stepfast.transports.contract import (
    DeliveryLostError,
    TransportError,
    TransportRefusedError,
    TransportUnavailableError,
)

if TYPE_CHECKING:
    from stepfast.transports.contract import Delivery


NAME: Final = "service-bus"
LOST: Final = (MessageLockLostError, MessageAlreadySettled, MessageNotFoundError)
REFUSED: Final = (
    ClientAuthenticationError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)
# ValueError: a link that was closed meanwhile. RuntimeError: the SDK's word for a link that broke.
UNAVAILABLE: Final = (AzureError, OSError, TimeoutError, ValueError, RuntimeError)


@contextmanager
def raised_as_ours(queue: str, delivery: Delivery | None = None) -> Iterator[None]:
    """Raise errors of the SDK as our own; they name the queue, or the message that is lost."""
    try:
        yield
    except TransportError:
        raise
    except LOST as error:
        if delivery is None:
            raise TransportUnavailableError(NAME, f"queue {queue}: {error}") from error
        raise DeliveryLostError(NAME, queue, delivery.id) from error
    except REFUSED as error:
        raise TransportRefusedError(NAME, f"queue {queue}: {_said(error)}") from error
    except UNAVAILABLE as error:
        raise TransportUnavailableError(NAME, f"queue {queue}: {_said(error)}") from error


def may_work_again(error: BaseException) -> bool:
    """Whether the link may be to blame, and not the request."""
    return isinstance(error, UNAVAILABLE) and not isinstance(error, (*LOST, *REFUSED))


def _said(error: Exception) -> str:
    """The error with the reason inside it: about a refused token the SDK says nothing itself."""
    inner = getattr(error, "inner_exception", None)
    told = [str(it).strip() for it in (error, inner) if it is not None]
    return "; ".join(dict.fromkeys(filter(None, told))) or type(error).__name__
