"""Who may write to SQLite next, among the threads of this process."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from stepfast.errors import ConfigurationError, ContentionError

WRITER_DEADLINE: Final = 20.0  # seconds to wait for SQLite's one writer


class Place:
    """A thread's place in the line. Most find nobody before them: an event for each would cost a step 5 µs."""

    __slots__ = ("come", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.come: threading.Event | None = None  # made for who has to wait


class WriterTurn:
    """A lock that is handed from one waiter to the next, urgent ones first, then in the order of asking.

    A plain lock may be taken again at once by the thread that gave it, and starve the others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: Place | None = None
        self._urgent: deque[Place] = deque()
        self._others: deque[Place] = deque()

    @property
    def mine(self) -> bool:
        """Whether this very thread has the turn."""
        holder = self._holder
        return holder is not None and holder.thread == threading.get_ident()

    def take(self, *, urgent: bool) -> None:
        """Wait for the turn. Whoever has it already would wait for itself, and is told so."""
        if self.mine:
            raise ConfigurationError(
                "you are inside a transaction of this thread; pass tx=tx to join it (and never await inside one): "
                "SQLite has one writer at a time, and this one would wait for itself"
            )
        place = Place()
        try:
            with self._lock:
                if self._holder is None:
                    self._holder = place
                    return
                come = place.come = threading.Event()
                (self._urgent if urgent else self._others).append(place)
            in_time = come.wait(WRITER_DEADLINE)
        except BaseException:  # of a signal: nobody may hand the turn to who has left
            self._leave(place)
            raise
        if not in_time:
            self._leave(place)
            raise ContentionError("another thread of this process has been writing for too long")

    def give(self) -> None:
        with self._lock:
            self._pass_on()

    def _leave(self, place: Place) -> None:
        with self._lock:
            if self._holder is place:
                self._pass_on()
            for line in (self._urgent, self._others):
                if place in line:
                    line.remove(place)

    def _pass_on(self) -> None:
        line = self._urgent or self._others
        self._holder = line.popleft() if line else None
        if self._holder is not None and self._holder.come is not None:
            self._holder.come.set()
