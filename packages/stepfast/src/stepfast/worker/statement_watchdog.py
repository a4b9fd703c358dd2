"""Statements that the server does not answer: after a lease they are given up, or reported.

A server may hang while its machine still acknowledges packets: its disk stopped, or the virtual machine is frozen. No
limit of the server's ends a statement then, and TCP is content. So a thread of the worker looks for statements of the
engine (heartbeats, claims, reports, the ends of jobs) that have had no answer for a lease, and cuts their connections:
the threads that wait get an `UnreachableError` and connect again, perhaps to a new primary.

A COMMIT may also wait for a synchronous standby, and a statement of the user's may take long. They are cut only if the
server that answers new connections does not know their session any more; a COMMIT that hangs is reported.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from stepfast.database.connection import Transaction
from stepfast.database.dialects import Plans
from stepfast.database.statement import sql
from stepfast.errors import StepfastError
from stepfast.telemetry import happened
from stepfast.worker.vital import VitalParts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.config import WorkerSettings
    from stepfast.database.connection import Connection
    from stepfast.database.database import Database


SHORTEST: Final = (
    5.0  # seconds; with a shorter lease a busy server would lose connections that it is about to answer
)
LOOKS: Final = 4  # in the time after which a statement is given up

SESSIONS = sql("""
    SELECT pid, COALESCE(wait_event, '') FROM pg_stat_activity WHERE CAST(pid AS TEXT) {any_of:pids}
""")


class HangingCommits(NamedTuple):
    """Commits that have had no answer for a lease."""

    since: float  # monotonic
    waits_for: str  # what the server says that they wait for; empty: not known

    def reason(self) -> str:
        if self.waits_for == "SyncRep":
            return "the server waits for a synchronous standby"
        return f"the server waits for {self.waits_for}" if self.waits_for else "the server does not say why"

    def __str__(self) -> str:
        return f"a COMMIT has had no answer for {time.monotonic() - self.since:.0f} s: {self.reason()}"


class StatementWatchdog:
    """Looks after the statements of one worker."""

    def __init__(self, database: Database, settings: WorkerSettings, vital: VitalParts | None = None) -> None:
        self._database = database
        self._vital = vital or VitalParts()
        self._worker_id = settings.worker_id
        self._limit = max(SHORTEST, settings.lease.total_seconds())
        self._stopping = threading.Event()
        self.hanging: HangingCommits | None = None

    def start(self) -> None:
        if self._database.dialect.name != "sqlite":  # a file answers, or the process hangs as a whole
            self._vital.thread("statements", self._look_until_stopped).start()

    def stop(self) -> None:
        self._stopping.set()

    def _look_until_stopped(self) -> None:
        while not self._stopping.wait(self._limit / LOOKS):
            self.look()

    def look(self) -> None:
        """Give up statements without an answer; report commits."""
        waiting: list[Connection] = []
        for connection in self._database.unanswered(self._limit):
            if connection.plans is None:
                continue  # not of the engine: its owner knows how long it may take
            if connection.asked == "COMMIT" or connection.plans is Plans.FREE:
                waiting.append(connection)
            else:
                self._abandon(connection)
        waits_for = self._ask_about(waiting)
        self._report([it.asked_at for it in waiting if it.asked == "COMMIT"], waits_for)

    def _abandon(self, connection: Connection) -> None:
        seconds = round(time.monotonic() - connection.asked_at, 1)
        connection.cut()
        happened("statement.abandoned", worker_id=self._worker_id, seconds=seconds)

    def _ask_about(self, waiting: Sequence[Connection]) -> str:
        """Cut connections whose session the server does not know any more; returns what the others wait for there."""
        # A pooler makes up the ids of its sessions. The driver of MariaDB gives up by itself, after a minute.
        asked = {
            int(it.raw.info.backend_pid): (it, it.asked_at)
            for it in waiting
            if it.dialect.name == "postgresql" and not it.pooled
        }
        known = self._sessions(list(asked)) if asked else None
        if known is None:
            return ""
        for pid, (connection, asked_at) in asked.items():
            if pid not in known and connection.asked is not None and connection.asked_at == asked_at:
                self._abandon(connection)
        return next((event for event in known.values() if event), "")

    def _sessions(self, pids: list[int]) -> dict[int, str] | None:
        """What these sessions of the server wait for; None if the server does not answer."""
        found: list[dict[int, str]] = []

        def ask() -> None:
            with suppress(StepfastError), closing(self._database.connect()) as connection:
                connection.plans = Plans.ENGINE  # if this gets no answer either, it is given up as well
                rows = Transaction(connection).rows(SESSIONS, pids=[str(pid) for pid in pids])
                found.append({int(pid): str(event) for pid, event in rows})

        asking = threading.Thread(target=ask, name="stepfast-statements-ask", daemon=True)
        asking.start()
        asking.join(self._limit)
        return found[0] if found else None

    def _report(self, asked_at: list[float], waits_for: str) -> None:
        """Report once that commits hang, and once that they are answered again."""
        before, now = self.hanging, time.monotonic()
        self.hanging = HangingCommits(min(asked_at), waits_for) if asked_at else None
        if self.hanging is not None and before is None:
            happened(
                "commit.hangs",
                worker_id=self._worker_id,
                commits=len(asked_at),
                seconds=round(now - self.hanging.since, 1),
                note=self.hanging.reason(),
            )
        elif self.hanging is None and before is not None:
            happened("commit.answered", worker_id=self._worker_id, seconds=round(now - before.since, 1))
