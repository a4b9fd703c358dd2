"""What a scrape is told: what this process has counted, and how full the database is.

The database is looked at when somebody asks, in a thread of its own: a scrape waits for it for a short time only, and
a look that takes long is repeated rarely, so that looking takes a twentieth of the time at most.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from stepfast.admin.reports.gauges import look
from stepfast.telemetry.metrics import MOST_VALUES, Metrics, prometheus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from stepfast.admin.reports.gauges import Gauges
    from stepfast.database.database import Database

PATIENCE: Final = 2.0  # seconds that a scrape waits for the database
FRESH: Final = 1.0  # seconds for which a look is good
SHARE: Final = 20


class Look:
    """The latest look at the database, and how to get a newer one."""

    def __init__(self, database: Callable[[], Database]) -> None:
        self._database = database  # not before it is asked for: it may be away when a program starts
        self._lock = threading.Lock()
        self._under_way: threading.Event | None = None
        self._next_at = 0.0
        self.found: Gauges | None = None
        self.found_at = 0.0
        self.took = 0.0
        self.failed = False

    def refresh(self) -> None:
        """Look again, unless it is too early; returns in time whatever the database does."""
        with self._lock:
            if self._under_way is None and time.monotonic() >= self._next_at:
                self._under_way = threading.Event()
                threading.Thread(target=self._look, name="stepfast-metrics", daemon=True).start()
            done = self._under_way
        if done is not None:
            done.wait(PATIENCE)

    @property
    def reached(self) -> bool:
        """Whether the last look found the database, and has come back."""
        return not self.failed and self.found is not None and self._under_way is None

    def _look(self) -> None:
        begun = time.monotonic()
        try:
            with self._database().reading() as tx:
                self.found = look(tx)
            self.failed = False
            self.found_at = time.monotonic()
            self.took = self.found_at - begun
        except Exception:  # noqa: BLE001 - the gauge that says so is the answer; logging each scrape would be too much
            self.failed = True
        with self._lock:
            done, self._under_way = self._under_way, None
            self._next_at = time.monotonic() + max(FRESH, self.took * SHARE)
        if done is not None:
            done.set()


class Collector:
    """For a registry of Prometheus: `REGISTRY.register(app.metrics())`."""

    def __init__(self, metrics: Metrics, database: Callable[[], Database]) -> None:
        prometheus()  # a missing extra should be found here, not at the first scrape
        self._metrics = metrics
        self._look = Look(database)

    def collect(self) -> Iterator[Any]:
        yield from self._metrics.collect()
        self._look.refresh()
        yield _gauge(
            "stepfast_database_up", "Whether the last look at the database worked.", self._look.reached
        )
        if self._look.found is not None and not self._look.failed:
            yield from self._of_the_look()
            yield from _gauges(self._look.found)

    def describe(self) -> list[Any]:
        """Nothing: a registry that takes us in must not wait for a database."""
        return []

    def _of_the_look(self) -> Iterator[Any]:
        age = time.monotonic() - self._look.found_at
        yield _gauge("stepfast_look_age_seconds", "How old the figures of the database are.", age)
        yield _gauge("stepfast_look_seconds", "How long it took to get them.", self._look.took)


def _gauges(found: Gauges) -> Iterator[Any]:
    queues = sorted({queue for queue, _ in found.depth} | set(found.dead_letters) | found.paused)
    depth: dict[tuple[str, ...], float] = {}
    dead: dict[tuple[str, ...], float] = {}
    oldest: dict[tuple[str, ...], float] = {}
    paused: dict[tuple[str, ...], float] = {}
    for place, queue in enumerate(queues):
        name = queue if place < MOST_VALUES else "other"
        for state in ("scheduled", "ready", "suspect", "leased", "held", "waiting"):
            depth[name, state] = depth.get((name, state), 0) + found.depth.get((queue, state), 0)
        dead[name,] = dead.get((name,), 0) + found.dead_letters.get(queue, 0)
        oldest[name,] = max(oldest.get((name,), 0.0), found.oldest_ready_seconds.get(queue, 0.0))
        paused[name,] = max(paused.get((name,), 0), int(queue in found.paused))
    yield _labelled("stepfast_queue_depth", "Unfinished jobs.", ("queue", "state"), depth)
    yield _labelled(
        "stepfast_queue_oldest_ready_seconds",
        "How long the job that comes next has waited.",
        ("queue",),
        oldest,
    )
    yield _labelled("stepfast_queue_paused", "Whether nobody may take from it.", ("queue",), paused)
    yield _labelled("stepfast_dead_letters", "Jobs that wait for an operator.", ("queue",), dead)
    yield _gauge("stepfast_workers_alive", "Workers heard of within their lease.", found.workers)
    messages: dict[tuple[str, ...], float] = {(state,): count for state, count in found.outbox.items()}
    yield _labelled("stepfast_outbox_messages", "Messages that are not sent.", ("state",), messages)
    waiting = found.oldest_message_seconds or 0.0
    yield _gauge("stepfast_outbox_oldest_seconds", "How long the oldest message has waited.", waiting)


def _gauge(name: str, meaning: str, value: float) -> Any:
    return prometheus().GaugeMetricFamily(name, meaning, value=float(value))


def _labelled(
    name: str, meaning: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> Any:
    family = prometheus().GaugeMetricFamily(name, meaning, labels=labels)
    for label, value in values.items():
        family.add_metric(label, value)
    return family
