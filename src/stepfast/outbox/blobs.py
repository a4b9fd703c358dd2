"""Replace a blob by a newer document: whoever reads it finds the whole old or the whole new text.

Whose it is and which version it is stands in the blob's metadata, written with it. A write names the version it
replaces, so that somebody who was paused cannot put an older text over a newer one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from stepfast.errors import ConfigurationError
from stepfast.notifications.delivery import Delivered, Delivery, Failed, Patience
from stepfast.transports.blob import Address, Blob, BlobChangedError, BlobStore, address_of
from stepfast.transports.failures import TransportRefusedError, TransportUnavailableError
from stepfast.transports.opening import TransportSettings, transport_settings

RACES: Final = 5  # that one try may lose; afterwards it is tried again later
OWNER, VERSION, MADE_AT = "stepfast_owner", "stepfast_version", "stepfast_made_at"


@dataclass(frozen=True)
class Mark:
    """Whose document it is, and which of several writings."""

    owner: str
    version: int
    made_at: int


def write_blob(url: str, text: str, mark: Mark, settings: TransportSettings | None = None) -> Delivery:
    """Write it, unless what is there is newer. An owner that began anew, with a new database, comes later."""
    try:
        address = address_of(url)
        with BlobStore(settings or transport_settings()) as store:
            return _write(store, address, (text + "\n").encode(), mark)
    except ConfigurationError as error:
        return Failed(str(error), Patience.FREE)  # another worker may have what this one lacks
    except TransportUnavailableError as error:
        return Failed(str(error))
    except TransportRefusedError as error:
        return Failed(str(error), Patience.LITTLE)


def _write(store: BlobStore, address: Address, content: bytes, mark: Mark) -> Delivery:
    metadata = {OWNER: quote(mark.owner), VERSION: str(mark.version), MADE_AT: str(mark.made_at)}
    for _ in range(RACES):
        there = store.look(address)
        last = None if there is None else _last(there.metadata)
        if last is not None and last.owner != mark.owner:
            return Failed(
                f"{address} is written for {last.owner}; give {mark.owner} a blob of its own, or remove that one",
                Patience.LITTLE,
            )
        if last is not None and mark.version < last.version and mark.made_at <= last.made_at:
            return Delivered()  # a newer one is there
        try:
            _put(store, address, there, content, metadata)
        except BlobChangedError:
            continue  # look again: the other one may be newer
        return Delivered()
    return Failed(f"{address}: others write it all the time")


def _put(
    store: BlobStore, address: Address, there: Blob | None, content: bytes, metadata: Mapping[str, str]
) -> None:
    if there is None:
        store.create(address, content, metadata)
    else:
        store.replace(address, content, there.etag, metadata)


def _last(metadata: Mapping[str, str]) -> Mark | None:
    """Owner, version and time of what is there; None if a person put it there, or another program."""
    try:
        return Mark(unquote(metadata[OWNER]), int(metadata[VERSION]), int(metadata[MADE_AT]))
    except (KeyError, ValueError):
        return None
