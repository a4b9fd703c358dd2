"""Wake-ups of the claimer when there is work: from this process at once, from PostgreSQL by LISTEN, from SQLite by its file.

A wake-up may get lost: the claimer also looks every poll interval. On MariaDB only this process wakes it.
"""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from stepfast.database.database import GREETING, GREETING_SECONDS, greet
from stepfast.database.drivers import sqlite_path
from stepfast.database.wakeup import CANCEL, CHANNEL, MESSAGES, OUTBOX, FileWatch
from stepfast.errors import DatabaseError, StepfastError
from stepfast.telemetry import happened
from stepfast.worker.vital import VitalParts

if TYPE_CHECKING:
    from stepfast.database.connection import Connection
    from stepfast.database.database import Database


FILE_LOOK: Final = 0.006  # seconds between looks at SQLite's file while idle, and between two wake-ups
RECONNECT: Final = 0.5  # seconds before LISTEN is tried again ...
AWAY: Final = 1.0  # ... and before a database that is away is tried again


class Wakeups:
    """An event that the claimer waits for, and the names of the queues that raised it."""

    def __init__(self, database: Database, vital: VitalParts | None = None) -> None:
        self._database = database
        self.heard = False  # whether other processes are heard; if not, the poll interval must be short
        self.cancelled = threading.Event()  # a running job was asked to stop: the heartbeat waits for it
        self._event = threading.Event()
        self._stop = threading.Event()
        self._idle = threading.Event()  # the claimer waits
        self._bell: tuple[socket.socket, socket.socket] | None = None  # ends the wait of our thread
        self._names: set[str] = set()
        self._vital = vital or VitalParts()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._bell = socket.socketpair()
        self._database.listen(self.wake)
        target = {"postgresql": self._listen, "sqlite": self._watch_file}.get(self._database.dialect.name)
        if target is not None and (self._database.wakes or self._database.dialect.name == "sqlite"):
            self.heard = self._database.dialect.name == "sqlite"
            self._thread = self._vital.thread("wakeups", target)
            self._thread.start()

    def stop(self) -> None:
        self._database.unlisten(self.wake)
        self._stop.set()
        if self._bell is None:
            return
        self._bell[1].send(b"!")
        self._idle.set()
        self._event.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
        for end in self._bell:
            end.close()

    def wake(self, queues: set[str]) -> None:
        """There is work in these queues, or one of the names that are no queue happened."""
        if CANCEL in queues:
            self.cancelled.set()
        if queues := queues - {CANCEL, MESSAGES, OUTBOX}:
            self._names |= queues
            self._event.set()

    def nudge(self) -> None:
        """Let the claimer look now."""
        if not self._event.is_set():
            self._event.set()

    def wait(self, seconds: float) -> tuple[bool, set[str]]:
        """Wait for a wake-up, at most so long; returns whether there was one, and the queues that it named."""
        if not self._event.is_set():
            self._idle.set()
            self._event.wait(seconds)
            self._idle.clear()
        woken = self._event.is_set()
        self._event.clear()
        names, self._names = self._names, set()
        return woken, names

    # PostgreSQL.

    def _listen(self) -> None:
        assert self._bell is not None  # noqa: S101 - made by `start`
        while not self._stop.is_set():
            try:
                connection = self._database.connect_to_listen()
            except DatabaseError:
                self._stop.wait(AWAY)
                continue
            except StepfastError as error:  # a URL that cannot work
                happened("wakeups.unheard", error=error)
                return
            try:
                if connection.pooled:  # it would swallow what it does not understand
                    happened("wakeups.unheard", note="a pooler stands before the database")
                    return
                connection.execute(f"LISTEN {CHANNEL}")
                self.nudge()  # for work that came before
                self._hear(connection.raw, self._bell[0])
            except Exception as error:  # noqa: BLE001 - whatever broke it, we reconnect
                happened("wakeups.lost", error=error)
            finally:
                self.heard = False
                connection.close()
            self._stop.wait(RECONNECT)

    def _hear(self, raw: Any, bell: socket.socket) -> None:
        """Sleep until a notification comes, or `stop` is called; no waking up to ask.

        A URL for LISTEN that differs from the database's own is trusted only when our own greeting was heard there.
        """
        greeting = greet(self._database) if self._database.listen_elsewhere else None
        self.heard = greeting is None
        patience: float | None = None if self.heard else GREETING_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(raw.fileno(), selectors.EVENT_READ)
            selector.register(bell, selectors.EVENT_READ)
            while not self._stop.is_set():
                if not selector.select(patience):
                    patience = None
                    happened("wakeups.unheard", note="STEPFAST_LISTEN_URL leads to another database")
                raw.pgconn.consume_input()
                while (notice := raw.pgconn.notifies()) is not None:
                    word = notice.extra.decode()
                    if not word.startswith(GREETING):
                        self._database.tell(
                            {word}
                        )  # all listeners of this process: also the relay and transports
                    elif word == greeting:
                        self.heard, patience = True, None

    # SQLite.

    def _watch_file(self) -> None:
        assert self._bell is not None  # noqa: S101 - made by `start`
        try:
            watch = FileWatch(sqlite_path(self._database.url) + "-wal")
        except OSError:
            self._look_at_file()
            return
        with watch:
            while watch.wait(self._bell[0]):
                self._event.set()
                self._stop.wait(FILE_LOOK)  # our own writes are heard here, too: a burst is one wake-up

    def _look_at_file(self) -> None:
        """Where the system cannot watch a file: ask SQLite's change counter, while the claimer waits."""
        while not self._stop.is_set():
            try:
                with closing(self._database.connect()) as connection:
                    self._look_until_stopped(connection)
            except DatabaseError:
                self._event.set()  # the claimer meets it as well, and says so
                self._stop.wait(AWAY)

    def _look_until_stopped(self, connection: Connection) -> None:
        seen = None
        while not self._stop.is_set():
            self._idle.wait()
            version = connection.execute("PRAGMA data_version").fetchall()[0][0]
            if version != seen:
                seen = version
                self._event.set()
            self._stop.wait(FILE_LOOK)
