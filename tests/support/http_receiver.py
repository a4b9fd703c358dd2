"""A real HTTP server on loopback that receives webhooks, and answers as a test tells it to."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stepfast.notifications.settings import NotificationSettings

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # of the published example
SETTINGS = NotificationSettings(webhook_secrets=(SECRET,), webhook_allow=("127.0.0.1",))


@dataclass(frozen=True)
class Received:
    """One request."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """An answer to a request. `before` runs when the request has been read, and before the answer."""

    status: int = 204
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[], object] = lambda: None


Script = Callable[[Received], Answer]


class HttpReceiver:
    """Keeps every request in the order of arrival; `answer` decides how to answer each."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.received: list[Received] = []
        self.answered = 0  # answers that were sent whole
        self.answer: Script = lambda _: Answer()
        self.port = 0
        self._lock = threading.Lock()

    def url(self, path: str = "/hook") -> str:
        return f"http://{self.host}:{self.port}{path}"

    @property
    def ids(self) -> list[str]:
        return [it.id for it in self.received]

    @property
    def bodies(self) -> list[Any]:
        return [it.json for it in self.received]

    def note(self, received: Received) -> Answer:
        with self._lock:
            self.received.append(received)
        return self.answer(received)

    def fail(self, times: int, status: int = 500, **headers: str) -> None:
        """Answer this many requests with a failure, and all later ones with success."""
        left = iter(range(times))
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answer = lambda _: Answer(204 if next(left, None) is None else status, headers=named)


@contextmanager
def receiving_http(
    host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[HttpReceiver]:
    receiver = HttpReceiver(host)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            answer = receiver.note(Received(self.path, _lower(self.headers), body))
            answer.before()
            try:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)
                self.wfile.flush()
                receiver.answered += 1
            except OSError:
                self.close_connection = True  # the client has gone

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="receiver", daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
