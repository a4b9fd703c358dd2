"""Transports: queues of messages in brokers, in the database or in this process, behind one contract.

    from stepfast.transports import Outgoing, open_transport

    async with open_transport("service-bus://") as transport:
        await transport.send("work-items", [Outgoing(id="1", body="{}")])

The names below are public. They are imported when they are used: a program pays only for the transport that it opens.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepfast.transports.blob import BlobChangedError, BlobStore, address_of
    from stepfast.transports.contract import (
        Abilities,
        Delivery,
        DeliveryLostError,
        Depth,
        Outgoing,
        Transport,
        TransportError,
        TransportRefusedError,
        TransportUnavailableError,
    )
    from stepfast.transports.memory import MemoryBroker, MemoryTransport
    from stepfast.transports.open import Link, TransportSettings, open_transport, transport_settings

__all__ = [
    "Abilities",
    "BlobChangedError",
    "BlobStore",
    "Delivery",
    "DeliveryLostError",
    "Depth",
    "Link",
    "MemoryBroker",
    "MemoryTransport",
    "Outgoing",
    "Transport",
    "TransportError",
    "TransportRefusedError",
    "TransportSettings",
    "TransportUnavailableError",
    "address_of",
    "open_transport",
    "transport_settings",
]

_MODULES = {
    "BlobChangedError": "blob",
    "BlobStore": "blob",
    "Link": "open",
    "MemoryBroker": "memory",
    "MemoryTransport": "memory",
    "TransportSettings": "open",
    "address_of": "blob",
    "open_transport": "open",
    "transport_settings": "open",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'stepfast.transports' has no attribute {name!r}")
    return getattr(import_module(f"stepfast.transports.{_MODULES.get(name, 'contract')}"), name)
