"""Do the broker and the blob storage let us in? Asked only where the environment names them."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from holdfast.admin.doctor.finding import Finding, fail, ok, warn
from holdfast.errors import HoldfastError
from holdfast.transports.failures import TransportRefusedError
from holdfast.transports.link import Link
from holdfast.transports.opening import TransportSettings, open_transport, transport_settings
from holdfast.wording import counted

if TYPE_CHECKING:
    from holdfast.database.database import Database

PATIENCE: Final = timedelta(seconds=10)
CURE: Final = "check the connection string or the identity's roles, the network, and that the broker runs"


def look(database: Database) -> list[Finding]:
    """What the environment names, as a worker would reach it."""
    settings = transport_settings(database=database)
    return [*_broker(settings), *_blobs(settings)]


def _broker(settings: TransportSettings) -> list[Finding]:
    url = _named(settings)
    if url is None:
        return []
    queue = f"{os.environ.get('CLIENT_ID', '').strip() or 'default'}-tasks"
    try:
        with Link(open_transport(url, settings), PATIENCE) as link:
            name = link.transport.name
            try:
                depth = link.wait_for(link.transport.depth(queue))
            except TransportRefusedError as error:
                return [
                    warn("broker", f"{name}: {error}", "a worker of tasks creates its queue, where it may")
                ]
    except HoldfastError as error:
        return [fail("broker", str(error).partition("\n")[0], CURE)]
    said = f"{name} lets us in; {queue} has {counted(depth.ready, 'message')}"
    if depth.dead:
        aside = f"{said}, and {counted(depth.dead, 'message')} put aside"
        return [warn("broker", aside, "holdfast dead-letters list; the broker has the reasons, too")]
    return [ok("broker", said)]


def _named(settings: TransportSettings) -> str | None:
    if named := os.environ.get("HOLDFAST_TRANSPORT", "").strip():
        return named
    if settings.storage_connection_string or settings.storage_account:
        return "storage-queue://"
    if settings.service_bus_connection_string or settings.service_bus_namespace:
        return "service-bus://"
    return None


def _blobs(settings: TransportSettings) -> list[Finding]:
    if not settings.storage_connection_string and not settings.storage_account:
        return []
    from holdfast.transports.blob import BlobStore

    try:
        with BlobStore(settings) as store:
            store.check()
    except HoldfastError as error:
        return [fail("blobs", str(error).partition("\n")[0], CURE)]
    return [ok("blobs", "blob storage lets us in")]
