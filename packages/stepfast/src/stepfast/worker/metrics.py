"""Metrics of a process over HTTP: `/metrics` for Prometheus, and `/healthz`. No jobs, no payloads, no secrets.

A scrape shows what this process has counted, and how full the database is. The database is looked at when a scrape asks,
in a thread of its own: a scrape waits for it for a short time only, and a look that takes long is repeated rarely, so
that looking takes a twentieth of the time at most.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, Final, Protocol

from stepfast.admin.statistics import read_gauges
from stepfast.errors import ConfigurationError
from stepfast.telemetry import happened
from stepfast.telemetry.metrics import MOST_VALUES, Metrics, prometheus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepfast.admin.statistics import Gauges
    from stepfast.app_protocol import AppLike


DEFAULT_HOST: Final = "127.0.0.1"
PORTS: Final = range(65_536)
PATIENCE: Final = 2.0  # seconds that a scrape waits for the database
FRESH: Final = 1.0  # seconds for which a look is good
SHARE: Final = 20  # a look rests so many times what it took


class Health(Protocol):
    """A worker, or the supervisor of several."""

    def problems(self) -> list[str]:
        """What is wrong with it, in sentences; none: it is healthy."""


class MetricsServer:
    """Answers `/metrics` and `/healthz` until it is stopped; port 0 takes any that is free."""

    def __init__(self, host: str, port: int, collector: Any) -> None:
        if port not in PORTS:
            raise ConfigurationError(f"metrics port {port}: use 1 to 65535, or 0 for any that is free")
        prometheus()  # a missing extra should be found here, not at the first scrape
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        try:
            self._server = _Server((host, port), registry)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"metrics cannot be served at {host}:{port}: {error}; choose another --metrics-port or --metrics-host"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="stepfast-http",
            daemon=True,
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self, health: Health) -> None:
        """Begin to answer; `health` says what is wrong with this process."""
        self._server.health = health
        self._thread.start()
        happened("metrics.served", host=str(self._server.server_address[0]), port=self.port)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a slow reader must not keep the worker from ending
    health: Health  # known before the first request is answered

    def __init__(self, address: tuple[str, int], registry: Any) -> None:
        self.registry = registry
        self.address_family = AF_INET6 if ":" in address[0] else AF_INET
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report what went wrong, unless a client left before its answer."""
        del request, client_address
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            happened("worker.failed", error=error, note="metrics")

    def server_bind(self) -> None:
        """Bind like the base class, but without asking the network for our name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 5  # seconds that a client may keep us waiting
    server_version = "stepfast"
    sys_version = ""

    def do_HEAD(self) -> None:
        """The answer to GET without its body."""
        self.do_GET()

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                from prometheus_client.exposition import choose_encoder

                encode, kind = choose_encoder(self.headers.get("Accept", ""))
                self._answer(200, kind, encode(self.server.registry))
            case "/healthz":
                problems = self.server.health.problems()
                body = json.dumps({"healthy": not problems, "problems": problems})
                self._answer(503 if problems else 200, "application/json", body.encode() + b"\n")
            case _:
                self._answer(404, "text/plain", b"ask for /metrics or /healthz\n")

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's own name
        """Log nothing: there is a scrape every few seconds."""


class Collector:
    """For a registry of Prometheus: `REGISTRY.register(app.metrics())`."""

    def __init__(self, metrics: Metrics, app: AppLike) -> None:
        prometheus()  # a missing extra should be found here, not at the first scrape
        self._metrics = metrics
        self._look = DatabaseLook(app)

    def collect(self) -> Iterator[Any]:
        yield from self._metrics.collect()
        self._look.refresh()
        yield _gauge(
            "stepfast_database_up", "Whether the last look at the database worked.", self._look.reached
        )
        if self._look.found is not None and not self._look.failed:
            yield from self._gauges_of_the_look()
            yield from _gauges(self._look.found)

    def describe(self) -> list[Any]:
        """Nothing: registering must not wait for a database."""
        return []

    def _gauges_of_the_look(self) -> Iterator[Any]:
        age = time.monotonic() - self._look.found_at
        yield _gauge("stepfast_look_age_seconds", "How old the figures of the database are.", age)
        yield _gauge("stepfast_look_seconds", "How long it took to get them.", self._look.took)


class DatabaseLook:
    """The latest figures of the database, and how to get newer ones."""

    def __init__(self, app: AppLike) -> None:
        self._app = app  # its database is opened by the first look: it may be away when a program starts
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
            with self._app.database.reading() as tx:
                self.found = read_gauges(tx)
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
    yield _labelled("stepfast_queue_paused", "Whether the queue is paused.", ("queue",), paused)
    yield _labelled("stepfast_dead_letters", "Jobs that wait for an operator.", ("queue",), dead)
    dead_messages: dict[tuple[str, ...], float] = {}
    for place, ((transport, queue), count) in enumerate(sorted(found.dead_messages.items())):
        label = (transport, queue) if place < MOST_VALUES else ("other", "other")
        dead_messages[label] = dead_messages.get(label, 0) + count
    yield _labelled(
        "stepfast_dead_messages",
        "Messages that a broker put aside and that wait for an operator here.",
        ("transport", "queue"),
        dead_messages,
    )
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
