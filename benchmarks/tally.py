"""A piece of memory that processes share: how many jobs have started, and when.

Jobs write it in their first line, so that every system is watched the same way and at the same small price.
Standard library only: it is imported in the peers' environments too.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

_HEAD = struct.Struct("<Qdd")  # jobs started, when the first did, when the last did
_MOMENT = struct.Struct("<d")


class Tally:
    """Moments are seconds of the monotonic clock, which all processes of a machine share."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    @classmethod
    def create(cls, path: Path, moments: int = 0) -> Tally:
        path.write_bytes(bytes(_HEAD.size + moments * _MOMENT.size))
        return cls(path)

    def start(self) -> None:
        """Count a job that starts."""
        now = time.monotonic()
        count, first, _ = _HEAD.unpack_from(self._memory)
        _HEAD.pack_into(self._memory, 0, count + 1, first or now, now)

    def note(self, number: int) -> None:
        """Record the moment of a numbered event."""
        _MOMENT.pack_into(self._memory, _HEAD.size + number * _MOMENT.size, time.monotonic())

    @property
    def count(self) -> int:
        return int(_HEAD.unpack_from(self._memory)[0])

    @property
    def first(self) -> float:
        return float(_HEAD.unpack_from(self._memory)[1])

    @property
    def last(self) -> float:
        return float(_HEAD.unpack_from(self._memory)[2])

    def moments(self) -> list[float]:
        """The recorded moments; zero where there is none."""
        tail = self._memory[_HEAD.size :]
        return [float(it[0]) for it in _MOMENT.iter_unpack(tail)]
