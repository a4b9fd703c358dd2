"""How long to wait for a database that does not answer, and when to stop believing that it is the database."""

from __future__ import annotations

import random
import threading
from typing import Final

from stepfast.errors import UnreachableError
from stepfast.telemetry import happened

IN_VAIN: Final = 8  # lost connections in a row, while the heartbeat gets through


class Pause:
    """How long to hold an answer while the database is away or busy."""

    def __init__(self, hurry: threading.Event) -> None:
        self._hurry = hurry
        self._tries = 0
        self._refusals = 0
        self._lost = False

    def in_vain(self, error: Exception, *, healthy: bool) -> bool:
        """Whether it is not the database that is away, but this write that it will not take (a packet too large)."""
        lost = isinstance(error, UnreachableError)
        self._refusals = self._refusals + 1 if lost and healthy else 0
        return self._refusals >= IN_VAIN

    def after(self, error: Exception) -> bool:
        """Wait a little longer each time; False when there is no time left to wait."""
        if self._hurry.is_set():
            happened("database.lost", error=error, note="gave up: this worker is stopping")
            return False
        if self._tries == 0 and isinstance(error, UnreachableError):
            self._lost = True
            happened("database.lost", error=error, note="what was answered waits to be written")
        self._tries += 1
        ceiling = min(1.0, 0.01 * 2 ** min(self._tries, 7))
        self._hurry.wait(random.uniform(ceiling / 2, ceiling))
        return True

    def over(self) -> None:
        """It was written at last."""
        if self._lost:
            happened("database.recovered", note="what was answered is written")
