"""Memory of this process: how much it holds, and how a step is kept from holding more.

The limit is RLIMIT_DATA: what the process has made writable for itself, which is where a handler's objects live. Of a
limit of 512 MB, a process with ten threads can use 420 MB for them (each stack counts 8); under RLIMIT_AS it was 12.
"""

from __future__ import annotations

import resource
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stepfast.config import spoken_size
from stepfast.errors import ConfigurationError, MemoryLimitError

if TYPE_CHECKING:
    from collections.abc import Iterator


_STATM: Final = Path("/proc/self/statm")  # size resident shared text lib data dirty, in pages
_RESIDENT: Final = 1
_DATA: Final = 5


def resident() -> int:
    """Bytes that this process has in memory now; its peak where the system does not tell."""
    return _pages(_RESIDENT)


def held() -> int:
    """Bytes that count towards the limit."""
    return _pages(_DATA)


@contextmanager
def limited_memory(limit: int | None) -> Iterator[None]:
    """Let nothing inside allocate beyond `limit` bytes in this process: a MemoryError becomes a MemoryLimitError."""
    if limit is None:
        yield
        return
    before = held()
    if before >= limit:
        raise ConfigurationError(
            f"memory={spoken_size(limit)}: the process holds {spoken_size(before)} before its handler begins; allow more"
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    except MemoryError as error:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))  # first: writing the error takes memory, too
        raise MemoryLimitError(spoken_size(limit), spoken_size(held())) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _pages(column: int) -> int:
    try:
        return int(_STATM.read_bytes().split()[column]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
