"""Documents for others, kept where a URL says: staged like every message, written by the relay, the newest one wins.

What a URL may begin with is one table here; another place is another line in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from stepfast.clock import new_id
from stepfast.errors import ConfigurationError
from stepfast.notifications.delivery import Delivery, Failed, Patience
from stepfast.outbox.alerts import Alert, alert
from stepfast.outbox.files import write_file
from stepfast.outbox.messages import EXPORT, Message, destination_of
from stepfast.telemetry import current_trace
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from stepfast.outbox.relay import Outgoing

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
    from stepfast.transports.blob import problem_of_blob  # most programs write files, if anything

    return problem_of_blob(url)


def _write_blob(url: str, document: Document) -> Delivery:
    from stepfast.outbox.blobs import Mark, write_blob

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
