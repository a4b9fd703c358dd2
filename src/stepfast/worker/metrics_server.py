"""`/metrics` and `/healthz` of a worker, over HTTP, for whoever can reach the port: no jobs, no payloads, no secrets."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, Final

from stepfast.errors import ConfigurationError
from stepfast.telemetry import happened
from stepfast.telemetry.metrics import prometheus

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_HOST: Final = "127.0.0.1"
PORTS: Final = range(65_536)


class MetricsServer:
    """Answers until it is stopped; port 0 takes any that is free."""

    def __init__(self, host: str, port: int, collector: Any, problems: Callable[[], list[str]]) -> None:
        if port not in PORTS:
            raise ConfigurationError(f"metrics port {port}: use 1 to 65535, or 0 for any that is free")
        prometheus()  # a missing extra should be found here, not at the first scrape
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        try:
            self._server = _Server((host, port), registry, problems)
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

    def start(self) -> None:
        self._thread.start()
        happened("metrics.served", host=str(self._server.server_address[0]), port=self.port)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a slow reader must not keep the worker from ending

    def __init__(self, address: tuple[str, int], registry: Any, problems: Callable[[], list[str]]) -> None:
        self.registry = registry
        self.problems = problems
        self.address_family = AF_INET6 if ":" in address[0] else AF_INET
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left before its answer is no news; anything else is."""
        del request, client_address
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            happened("worker.failed", error=error, note="metrics")

    def server_bind(self) -> None:
        """As the base class, but without asking the network for our name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 5  # seconds that a client may keep us waiting
    server_version = "stepfast"
    sys_version = ""

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                from prometheus_client.exposition import choose_encoder

                encode, kind = choose_encoder(self.headers.get("Accept", ""))
                self._answer(200, kind, encode(self.server.registry))
            case "/healthz":
                problems = self.server.problems()
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
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's own name
        """A scrape every few seconds is no news."""
