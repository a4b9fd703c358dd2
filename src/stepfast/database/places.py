"""How many connections of the pool may be in use at once; who finds all of them taken waits.

A thread that holds one already gets a second without waiting: it would wait for itself, or for others that do the
same. (Coroutines share their thread, and so this exception.) A connection may come back from another thread than
the one that took it, as the dependencies of a web framework do, so the holder is remembered with it.
"""

from __future__ import annotations

import threading
from typing import Final

from stepfast.errors import UnreachableError

PATIENCE: Final = 30.0  # seconds


class Holder:
    """One thread, and how many connections it has not given back."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = 0


class Places:
    """As many as connections may be in use."""

    def __init__(self, most: int, patience: float = PATIENCE) -> None:
        self._most = most
        self._patience = patience
        self._free = threading.Semaphore(most)
        self._lock = threading.Lock()  # guards what holders hold
        self._here = threading.local()

    def take(self) -> Holder:
        """Wait for a place; whoever gives it back says whose it was."""
        holder: Holder | None = getattr(self._here, "holder", None)
        if holder is None:
            holder = self._here.holder = Holder()
        with self._lock:
            holder.held += 1
            first = holder.held == 1
        if first and not self._free.acquire(timeout=self._patience):
            with self._lock:
                holder.held -= 1
            raise UnreachableError(
                f"all {self._most} connections of this process were in use for {self._patience:g} s: end transactions "
                "sooner, or raise STEPFAST_MAX_CONNECTIONS"
            )
        return holder

    def give(self, holder: Holder) -> None:
        with self._lock:
            holder.held -= 1
            last = holder.held == 0
        if last:
            self._free.release()
