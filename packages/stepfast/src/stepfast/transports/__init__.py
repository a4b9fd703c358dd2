"""Queues of others: what carries messages to our workers and between them.

Public are the names below; each is loaded when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

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

_MODULES: Final = {
    "stepfast.transports.blob": ("BlobChangedError", "BlobStore", "address_of"),
    "stepfast.transports.memory": ("MemoryBroker", "MemoryTransport"),
    "stepfast.transports.open": ("Link", "TransportSettings", "open_transport", "transport_settings"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'stepfast.transports' has no attribute {name!r}")
    home = (module for module, names in _MODULES.items() if name in names)
    return getattr(import_module(next(home, "stepfast.transports.contract")), name)
