"""Forget what was promised for a while only: results, and what operators did long ago.

Every worker does it for the kinds it knows, in bounded batches, and begins with a look. A kind that no worker knows
keeps its results until its jobs are forgotten as a whole.
"""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from stepfast.admin import audit, masks
from stepfast.clock import micros
from stepfast.database.database import persist
from stepfast.errors import ContentionError, UnreachableError
from stepfast.results.expiry import any_expired, expire
from stepfast.steps.events import anything_old, bring_together, forget_old, missed
from stepfast.telemetry import happened
from stepfast.telemetry.masking import any_rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.config import WorkerSettings
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.steps.kinds import Kind, Kinds

EVERY: Final = 60.0  # seconds between passes
BATCH: Final = 1_000
BREATH: Final = 0.02  # seconds in which others may write


class Forgetting:
    """A thread that forgets once a minute."""

    def __init__(self, database: Database, kinds: Kinds, settings: WorkerSettings) -> None:
        self._database = database
        self._kinds = kinds
        self._settings = settings
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._forget_until_stopped, name="stepfast-forgetting", daemon=True
        )

    def start(self) -> None:
        self.declare_rules()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def forget(self) -> None:
        """One pass over everything whose time may be over."""
        expired = sum(self._expire(self._kinds.get(name)) for name in self._kinds.names())
        if expired:
            happened("results.expired", results=expired)
        age = micros(self._settings.audit_kept)
        with self._database.looking() as tx:
            names = missed(tx)
        for name in names:
            persist(self._database, partial(bring_together, name=name))
        if forgotten := self._in_batches(anything_old, lambda tx: forget_old(tx, BATCH)):
            happened("events.forgotten", events=forgotten)
        self.declare_rules()
        self._in_batches(lambda tx: audit.any_older(tx, age), lambda tx: audit.prune(tx, age, BATCH))

    def declare_rules(self) -> None:
        """Let others who show these rows hide what this process hides."""
        if not any_rules():
            return
        with self._database.looking() as tx:
            new = masks.outdated(tx)
        if new:
            persist(self._database, lambda tx: masks.declare(tx, new))

    def _expire(self, kind: Kind) -> int:
        age = micros(self._settings.results_kept if kind.result_ttl is None else kind.result_ttl)
        return self._in_batches(
            lambda tx: any_expired(tx, kind.name, age), lambda tx: expire(tx, kind.name, age, BATCH)
        )

    def _in_batches(self, look: Callable[[Transaction], bool], forget: Callable[[Transaction], int]) -> int:
        with self._database.looking() as tx:
            if not look(tx):
                return 0
        total = 0
        while not self._stop.is_set() and (done := persist(self._database, forget)):
            total += done
            self._stop.wait(BREATH)
        return total

    def _forget_until_stopped(self) -> None:
        pause = random.uniform(0, EVERY)  # not all workers of a deployment at once
        while not self._stop.wait(pause):
            pause = EVERY
            try:
                with suppress(UnreachableError, ContentionError):  # others of this worker tell; there is time
                    self.forget()
            except Exception as error:  # noqa: BLE001 - this thread goes on
                happened("worker.failed", worker_id=self._settings.worker_id, error=error, note="forgetting")
