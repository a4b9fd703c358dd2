"""Replace a file by a newer one: whoever reads it finds the whole old or the whole new text, also after a power cut.

Beside the file stands a small one that says whose it is and which version was written last, or was about to be. It is
locked while the file is replaced, so that somebody who was paused cannot put an older text over a newer one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from stepfast.notifications.delivery import Delivered, Delivery, Failed, Patience

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
