"""Exports: documents that are kept in a file or a blob, staged like every message, written by the relay; the newest wins.

A reader finds the whole old or the whole new text. Beside each document stands a mark: whose it is, and which version.
It is compared before a write, so that a relay that was paused cannot put an older text over a newer one. A file without a
mark is not ours, and is left alone; so is whatever is reached through a symbolic link. The mark also has a digest of the
text: a document that a person has changed is noticed, and an alert names the command that works.

Which addresses this process may write to is decided in `worker/permissions.py`: a row of the outbox is not believed.

The schemes that a URL may begin with are one table here; another target is another line in it.
"""

from __future__ import annotations

import glob
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote, urlsplit

import msgspec

from stepfast.clock import new_id
from stepfast.errors import ConfigurationError
from stepfast.notifications.webhook import Delivered, Delivery, Failed, Patience
from stepfast.outbox.alerts import Alert, alert
from stepfast.outbox.messages import EXPORT, Message, destination_of
from stepfast.telemetry import current_trace
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from stepfast.outbox.destinations import DueMessage
    from stepfast.transports.blob import Address, Blob, BlobStore
    from stepfast.transports.open import TransportSettings


LONGEST_URL: Final = 1_000
FEED: Final = "feed "  # how the owner of a watermark's document begins
LONGEST_DOCUMENT: Final = 65_536  # bytes of one that others wrote


@dataclass(frozen=True)
class Mark:
    """Whose document it is, and which of several versions."""

    owner: str  # other owners may not write there
    version: int  # counts the versions of its owner
    made_at: int  # on the database's clock: tells an owner that began anew from one that comes late

    def is_older_than(self, last: Mark) -> bool:
        """Whether it must not replace the last one. An owner that began anew, with a new database, comes later."""
        return self.version < last.version and self.made_at <= last.made_at


def problem_of_export(url: object) -> str | None:
    """Why nothing can be exported there; None if it can."""
    if not isinstance(url, str) or not url.strip():
        return "a text such as 'file:///var/lib/app/watermark.json'"
    if len(url) > LONGEST_URL or "\0" in url:
        return f"a URL of at most {LONGEST_URL:,} characters"
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        return f"cannot be read as a URL ({error})"
    if scheme not in TARGETS:
        known = ", ".join(f"{it}:" for it in TARGETS)
        return f"begins with {scheme + ':' if scheme else 'no scheme'}; it may begin with {known} (write 'file:///var/lib/app/watermark.json')"
    return TARGETS[scheme].problem_of(url)


def export_message(address: str, text: str, *, owner: str, version: int, made_at: int) -> Message:
    """The message that has a document written."""
    if (problem := problem_of_export(address)) is not None:
        raise ConfigurationError(f"export={without_secrets(str(address))!r:.200}: {problem}")
    return Message(
        id=new_id(),
        channel=EXPORT,
        destination=export_destination(address),
        address=address,
        body=text,
        headers={"owner": owner, "version": str(version), "made-at": str(made_at)},
        trace=current_trace(),
    )


def export_destination(address: str) -> str:
    """In whose line the documents for this address stand."""
    return destination_of(EXPORT, urlsplit(address).path.rpartition("/")[2], address)


def write(message: DueMessage) -> Delivery:
    """Write one document, unless a newer one is there."""
    target = TARGETS.get(urlsplit(message.address).scheme)
    if target is None:
        return Failed(f"this worker cannot write to {message.address}", Patience.FREE)
    headers = message.headers
    mark = Mark(headers["owner"], int(headers["version"]), int(headers["made-at"]))
    return target.write(message.address, message.body, mark)


def lost_export(message: DueMessage, failed: Failed) -> Alert:
    """The alert about a failed export, from the first try on: others read a document that is out of date."""
    return alert(
        f"export failed: {message.destination}",
        "Export Failed",
        f"{message.headers.get('owner', 'A document')} could not be written to {message.address}: {failed.reason}\n"
        "The database is right; who reads the document reads an older one.\n"
        "It is tried again by itself.\n\n"
        f"Look at it:   stepfast outbox show {message.id}\n"
        f"Try it now:   stepfast outbox retry {message.id}",
    )


# Documents that a person, or another program, has written in our place. They are copies: what they say moves nothing.


def written_by_others(url: str) -> str | None:
    """The document, if others wrote it; None: it is ours, there is none, or it cannot be read from here."""
    target = TARGETS.get(urlsplit(url).scheme)
    try:
        return None if target is None else target.written_by_others(url)
    except Exception:  # noqa: BLE001 - an export that fails raises its own alert
        return None


def instant_of(text: str) -> datetime | None:
    """The watermark that a document names."""
    try:
        at = datetime.fromisoformat(msgspec.json.decode(text)["lastUpdatedAt"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None
    return None if at.tzinfo is None else at


def edited_sentence(feed: str, address: str, text: str) -> str:
    """What a changed document means, and the command that does what was meant. Of the text only the instant is shown."""
    at = instant_of(text)
    names = "" if at is None else f" (it names {at.isoformat()})"
    to = "TIME" if at is None else at.isoformat().replace("+00:00", "Z")
    return (
        f"{address} was written by hand or by another program{names}. It is a copy: that moves nothing, and the next export "
        f'replaces it. To move the watermark: stepfast watermark set {feed} --to {to} --reason "…" (back only with --force)'
    )


def edited_document(feed: str, address: str, text: str) -> Alert:
    """The alert about a document that was changed by hand."""
    return alert(
        f"feed:{feed}:watermark-edited",
        "Watermark document edited",
        f"Feed: {feed}\n{edited_sentence(feed, address, text)}",
        severity="warning",
    )


def replaced_document(message: DueMessage, text: str) -> Alert:
    """The alert about a document that was changed by hand, and has been replaced."""
    return edited_document(message.headers["owner"].removeprefix(FEED), message.address, text)


def owner_of_feed(feed: str) -> str:
    return f"{FEED}{feed}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()


# Files. The mark is a small file beside the document, locked while that is replaced.

MARK_FILE: Final = ".stepfast"  # what the name of the small one ends with
NEW_FILE: Final = ".new"  # and the name of one that is being written
READ_FILE: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would not answer


def _problem_of_file(url: str) -> str | None:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        return f"names the host {parts.hostname or ''!r}; a file has three slashes: file:///var/lib/app/watermark.json"
    path = unquote(parts.path)
    if not path.startswith("/") or path.endswith("/") or "\0" in path or ".." in path.split("/"):
        return "is no absolute path of a file; write 'file:///var/lib/app/watermark.json'"
    if parts.query or parts.fragment:
        return "has a ? or # in it; write them as %3F and %23"
    return None


def write_file(url: str, text: str, mark: Mark) -> Delivery:
    """Write a file, unless a newer one is there; it is whole also after a power cut."""
    path = path_of(url)
    mark_path = path.with_name(f".{path.name}{MARK_FILE}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if (problem := _problem_of_place(path, mark_path)) is not None:
            return Failed(problem, Patience.LITTLE)
        with _locked(mark_path) as descriptor:
            last = _read_mark(descriptor)
            if last is not None and last.owner != mark.owner:
                return Failed(
                    f"{path} is written for {last.owner}; give {mark.owner} a file of its own, or remove {mark_path}",
                    Patience.LITTLE,
                )
            if last is not None and mark.is_older_than(last):
                return Delivered()  # a newer one is there
            ours = _read_digests(descriptor)
            foreign = (
                _foreign_text(path, ours) if ours else None
            )  # without a mark a person let it be replaced
            # The mark first: from now on a late writer is refused, and a try that dies here is repeated.
            _write_mark(descriptor, mark, [_digest(text), *ours[:1]])
            _replace(path, text)
    except OSError as error:
        return Failed(f"{path}: {error.strerror or error}")
    return Delivered(replaced=foreign)


def _file_by_others(url: str) -> str | None:
    import fcntl

    path = path_of(url)
    try:
        descriptor = os.open(path.with_name(f".{path.name}{MARK_FILE}"), READ_FILE)
    except FileNotFoundError:
        return _foreign_text(path, ())
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # not between a mark and its document
        return _foreign_text(path, _read_digests(descriptor))
    finally:
        os.close(descriptor)


def _foreign_text(path: Path, ours: Sequence[str]) -> str | None:
    """The text of a document that has none of these digests; None if it has, or if there is none."""
    try:
        descriptor = os.open(path, READ_FILE)
    except FileNotFoundError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        text = os.read(descriptor, LONGEST_DOCUMENT).decode(errors="replace")
    finally:
        os.close(descriptor)
    return None if _digest(text) in ours else text


def path_of(url: str) -> Path:
    """The file that a file:// URL names."""
    return Path(unquote(urlsplit(url).path))


def _problem_of_place(path: Path, mark_path: Path) -> str | None:
    """Why nothing is written here: what has the name of the document or of its mark is not ours. None if nothing is wrong."""
    document, mark = _found(path), _found(mark_path)
    for name, found in ((path, document), (mark_path, mark)):
        if found is not None and stat.S_ISLNK(found.st_mode):
            return f"{name} is a symbolic link, and nothing is written through links; remove it, or export to the file it leads to"
        if found is not None and not stat.S_ISREG(found.st_mode):
            return f"{name} is no file; remove it, or export to another name"
    if mark is not None and mark.st_nlink > 1:
        return f"{mark_path} has a second name (a hard link); remove it"
    if document is not None and mark is None:
        return f"{path} was not written by Stepfast, and is left alone; move it away, or let it be replaced: touch {mark_path}"
    return None


def _found(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)  # and with it the lock


def _read_mark(descriptor: int) -> Mark | None:
    """The mark of the document that is there; None before the first, and if a power cut left half a mark.

    An empty one is a person's word that the document may be replaced.
    """
    try:
        found = msgspec.json.decode(os.pread(descriptor, 4096, 0))
        return Mark(str(found["owner"]), int(found["version"]), int(found["made_at"]))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None


def _read_digests(descriptor: int) -> list[str]:
    """Digests of what we wrote last, and before that: a power cut may have left the older one in place."""
    try:
        found = msgspec.json.decode(os.pread(descriptor, 4096, 0))["digests"]
        return [str(digest) for digest in found]
    except (msgspec.DecodeError, KeyError, TypeError):
        return []


def _write_mark(descriptor: int, mark: Mark, digests: list[str]) -> None:
    text = msgspec.json.encode(
        {"owner": mark.owner, "version": mark.version, "made_at": mark.made_at, "digests": digests}
    )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text, 0)
    os.fsync(descriptor)


def _replace(path: Path, text: str) -> None:
    """Write the text to the disk under another name, then let it take the place of the old one. The caller has the lock."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*{NEW_FILE}"):  # of a writer that was killed
        leftover.unlink()
    other = path.with_name(f".{path.name}.{secrets.token_hex(8)}{NEW_FILE}")
    # O_EXCL: the name is new, so it is no link that somebody has put there.
    descriptor = os.open(other, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        other.replace(path)
    except BaseException:
        other.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # else the new name may be forgotten
    finally:
        os.close(folder)


# Blobs. The mark is the metadata of the blob, written with it; a write names the version of the blob that it replaces.

RACES: Final = 5  # that one try may lose; afterwards it is tried again later
OWNER, VERSION, MADE_AT = "stepfast_owner", "stepfast_version", "stepfast_made_at"
DIGEST: Final = "stepfast_digest"


def _problem_of_blob(url: str) -> str | None:
    from stepfast.transports.blob import problem_of_blob

    return problem_of_blob(url)


def write_blob(url: str, text: str, mark: Mark, settings: TransportSettings | None = None) -> Delivery:
    """Write a blob, unless a newer one is there."""
    from stepfast.transports.blob import BlobStore, address_of
    from stepfast.transports.contract import TransportRefusedError, TransportUnavailableError
    from stepfast.transports.open import transport_settings

    try:
        address = address_of(url)
        with BlobStore(settings or transport_settings()) as store:
            return _write_newest(store, address, (text + "\n").encode(), mark)
    except ConfigurationError as error:
        return Failed(str(error), Patience.FREE)  # another worker may have what this one lacks
    except TransportUnavailableError as error:
        return Failed(str(error))
    except TransportRefusedError as error:
        return Failed(str(error), Patience.LITTLE)


def _write_newest(store: BlobStore, address: Address, content: bytes, mark: Mark) -> Delivery:
    from stepfast.transports.blob import BlobChangedError

    metadata = {
        OWNER: quote(mark.owner),
        VERSION: str(mark.version),
        MADE_AT: str(mark.made_at),
        DIGEST: _digest(content.decode()),
    }
    for _ in range(RACES):
        there = store.look(address)
        last = None if there is None else _mark_of(there.metadata)
        if last is not None and last.owner != mark.owner:
            return Failed(
                f"{address} is written for {last.owner}; give {mark.owner} a blob of its own, or remove that one",
                Patience.LITTLE,
            )
        if last is not None and mark.is_older_than(last):
            return Delivered()  # a newer one is there
        foreign = _foreign_content(store, address)
        try:
            _put_blob(store, address, there, content, metadata)
        except BlobChangedError:
            continue  # look again: the other one may be newer
        return Delivered(replaced=foreign)
    return Failed(f"{address}: others write it all the time")


def _put_blob(
    store: BlobStore, address: Address, there: Blob | None, content: bytes, metadata: Mapping[str, str]
) -> None:
    if there is None:
        store.create(address, content, metadata)
    else:
        store.replace(address, content, there.etag, metadata)


def _mark_of(metadata: Mapping[str, str]) -> Mark | None:
    """The mark of the blob that is there; None if a person put it there, or another program."""
    try:
        return Mark(unquote(metadata[OWNER]), int(metadata[VERSION]), int(metadata[MADE_AT]))
    except (KeyError, ValueError):
        return None


def _blob_by_others(url: str) -> str | None:
    from stepfast.transports.blob import BlobStore, address_of
    from stepfast.transports.open import transport_settings

    with BlobStore(transport_settings()) as store:
        return _foreign_content(store, address_of(url))


def _foreign_content(store: BlobStore, address: Address) -> str | None:
    """What others have written; an upload of theirs has no metadata of ours, or the digest of another text."""
    there = store.look(address)
    if there is None:
        return None
    if there.size > LONGEST_DOCUMENT:
        return ""  # whatever it says
    blob = store.read(address)
    if blob is None:
        return None
    text = blob.content.decode(errors="replace")
    return None if blob.metadata.get(DIGEST) == _digest(text) else text


@dataclass(frozen=True)
class ExportTarget:
    """A kind of place to write documents to."""

    problem_of: Callable[[str], str | None]
    write: Callable[[str, str, Mark], Delivery]  # URL and text
    written_by_others: Callable[[str], str | None]


TARGETS: Final[dict[str, ExportTarget]] = {
    "file": ExportTarget(_problem_of_file, write_file, _file_by_others),
    "azblob": ExportTarget(_problem_of_blob, write_blob, _blob_by_others),
}
