"""Documents for others, kept where a URL says: staged like every message, written by the relay, the newest one wins.

What a URL may begin with is one table here; another place is another line in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

import msgspec

from stepfast.clock import new_id
from stepfast.errors import ConfigurationError
from stepfast.notifications.webhook import Delivered, Delivery, Failed, Patience
from stepfast.outbox.alerts import Alert, alert
from stepfast.outbox.messages import EXPORT, Message, destination_of
from stepfast.telemetry import current_trace
from stepfast.telemetry.masking import without_secrets
from stepfast.transports.blob import Address, Blob, BlobChangedError, BlobStore, address_of
from stepfast.transports.contract import TransportRefusedError, TransportUnavailableError
from stepfast.transports.open import TransportSettings, transport_settings

if TYPE_CHECKING:
    from stepfast.outbox.destinations import Outgoing


# Replace a file by a newer one: whoever reads it finds the whole old or the whole new text, also after a power cut.
#
# Beside the file stands a small one that says whose it is and which version was written last, or was about to be. It is
# locked while the file is replaced, so that somebody who was paused cannot put an older text over a newer one.

MARK: Final = ".stepfast"  # what the name of the small one ends with


def write_file(name: str, text: str, owner: str, version: int, made_at: int) -> Delivery:
    """Write it, unless what is there is newer. An owner that began anew, with a new database, comes later."""
    path = Path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_name(f".{path.name}{MARK}")) as mark:
            last = _read(mark)
            if last and last["owner"] != owner:
                return Failed(
                    f"{path} is written for {last['owner']}; give {owner} a file of its own, or remove {mark.name}",
                    Patience.LITTLE,
                )
            if last and version < last["version"] and made_at <= last["made_at"]:
                return Delivered()  # a newer one is there
            # The mark first: who comes late is refused from now on, and a try that dies here is repeated.
            _put(mark, msgspec.json.encode({"owner": owner, "version": version, "made_at": made_at}))
            _replace(path, text)
    except OSError as error:
        return Failed(f"{path}: {error.strerror or error}")
    return Delivered()


class Mark:
    """The small file, open and locked."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.name = str(path)
        self.descriptor = descriptor


@contextmanager
def _locked(path: Path) -> Iterator[Mark]:
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield Mark(path, descriptor)
    finally:
        os.close(descriptor)  # and with it the lock


def _read(mark: Mark) -> dict[str, Any] | None:
    """Whose it is; None before the first, and if a power cut left half a mark."""
    try:
        found = msgspec.json.decode(os.pread(mark.descriptor, 4096, 0))
        return {
            "owner": str(found["owner"]),
            "version": int(found["version"]),
            "made_at": int(found["made_at"]),
        }
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None


def _put(mark: Mark, text: bytes) -> None:
    os.ftruncate(mark.descriptor, 0)
    os.pwrite(mark.descriptor, text, 0)
    os.fsync(mark.descriptor)


def _replace(path: Path, text: str) -> None:
    """The text gets to the disk under another name, then takes the place of the old one."""
    other = path.with_name(f".{path.name}.new")
    with other.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    other.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # else the new name may be forgotten
    finally:
        os.close(folder)


LONGEST_URL: Final = 1_000


@dataclass(frozen=True)
class Document:
    """What is written, and which of several writings it is."""

    text: str
    owner: str  # who else writes there is refused
    version: int  # counts the writings of its owner
    made_at: int  # on the database's clock: tells an owner that began anew from one that comes late


def problem_of_export(url: object) -> str | None:
    """Why nothing can be exported there; None if it can."""
    if not isinstance(url, str) or not url.strip():
        return "a text such as 'file:///var/lib/app/watermark.json'"
    if len(url) > LONGEST_URL or "\0" in url:
        return f"a URL of at most {LONGEST_URL:,} characters"
    scheme = urlsplit(url).scheme
    if scheme not in PLACES:
        known = ", ".join(f"{it}:" for it in PLACES)
        return f"begins with {scheme + ':' if scheme else 'no scheme'}; it may begin with {known} (write 'file:///var/lib/app/watermark.json')"
    return PLACES[scheme].problem_of(url)


def export_message(address: str, text: str, *, owner: str, version: int, made_at: int) -> Message:
    """The message that has a document written."""
    if (problem := problem_of_export(address)) is not None:
        raise ConfigurationError(f"export={without_secrets(str(address))!r:.200}: {problem}")
    return Message(
        id=new_id(),
        channel=EXPORT,
        destination=destination_of(EXPORT, urlsplit(address).path.rpartition("/")[2], address),
        address=address,
        body=text,
        headers={"owner": owner, "version": str(version), "made-at": str(made_at)},
        trace=current_trace(),
    )


def write(message: Outgoing) -> Delivery:
    """Write one document, unless a newer one is there."""
    place = PLACES.get(urlsplit(message.address).scheme)
    if place is None:
        return Failed(f"this worker cannot write to {message.address}", Patience.FREE)
    return place.write(message.address, _document(message.body, message.headers))


def lost_export(message: Outgoing, failed: Failed) -> Alert:
    """What a person is told, from the first try on: others read a document that is out of date."""
    return alert(
        f"export failed: {message.destination}",
        "Export Failed",
        f"{message.headers.get('owner', 'A document')} could not be written to {message.address}: {failed.reason}\n"
        "The database is right; who reads the document reads an older one.\n"
        "It is tried again by itself.\n\n"
        f"Look at it:   stepfast outbox show {message.id}\n"
        f"Try it now:   stepfast outbox retry {message.id}",
    )


def _document(body: str, headers: Mapping[str, str]) -> Document:
    return Document(body, headers["owner"], int(headers["version"]), int(headers["made-at"]))


def _problem_of_file(url: str) -> str | None:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        return f"names the host {parts.hostname or ''!r}; a file has three slashes: file:///var/lib/app/watermark.json"
    path = unquote(parts.path)
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        return "is no absolute path of a file; write 'file:///var/lib/app/watermark.json'"
    if parts.query or parts.fragment:
        return "has a ? or # in it; write them as %3F and %23"
    return None


def _write_file(url: str, document: Document) -> Delivery:
    return write_file(
        unquote(urlsplit(url).path), document.text, document.owner, document.version, document.made_at
    )


def _problem_of_blob(url: str) -> str | None:
    from stepfast.transports.blob import problem_of_blob

    return problem_of_blob(url)


def _write_blob(url: str, document: Document) -> Delivery:
    from stepfast.outbox.exports import MarkBlobs as Mark
    from stepfast.outbox.exports import write_blob

    return write_blob(url, document.text, Mark(document.owner, document.version, document.made_at))


@dataclass(frozen=True)
class Place:
    """A kind of place to write to."""

    problem_of: Callable[[str], str | None]
    write: Callable[[str, Document], Delivery]


PLACES: Final[dict[str, Place]] = {
    "file": Place(_problem_of_file, _write_file),
    "azblob": Place(_problem_of_blob, _write_blob),
}


# Replace a blob by a newer document: whoever reads it finds the whole old or the whole new text.
#
# Whose it is and which version it is stands in the blob's metadata, written with it. A write names the version it
# replaces, so that somebody who was paused cannot put an older text over a newer one.

RACES: Final = 5  # that one try may lose; afterwards it is tried again later
OWNER, VERSION, MADE_AT = "stepfast_owner", "stepfast_version", "stepfast_made_at"


@dataclass(frozen=True)
class MarkBlobs:
    """Whose document it is, and which of several writings."""

    owner: str
    version: int
    made_at: int


def write_blob(url: str, text: str, mark: MarkBlobs, settings: TransportSettings | None = None) -> Delivery:
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


def _write(store: BlobStore, address: Address, content: bytes, mark: MarkBlobs) -> Delivery:
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
            _put_blobs(store, address, there, content, metadata)
        except BlobChangedError:
            continue  # look again: the other one may be newer
        return Delivered()
    return Failed(f"{address}: others write it all the time")


def _put_blobs(
    store: BlobStore, address: Address, there: Blob | None, content: bytes, metadata: Mapping[str, str]
) -> None:
    if there is None:
        store.create(address, content, metadata)
    else:
        store.replace(address, content, there.etag, metadata)


def _last(metadata: Mapping[str, str]) -> MarkBlobs | None:
    """Owner, version and time of what is there; None if a person put it there, or another program."""
    try:
        return MarkBlobs(unquote(metadata[OWNER]), int(metadata[VERSION]), int(metadata[MADE_AT]))
    except (KeyError, ValueError):
        return None
