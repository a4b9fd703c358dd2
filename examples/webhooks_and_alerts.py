"""Webhooks that are staged with a step, verified by the receiver, and retried; and an alert about a dead job.

python -m examples.webhooks_and_alerts
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from stepfast import Reject, Step, Stepfast
from stepfast.reports import MessageState
from stepfast.webhooks import NotificationSettings, new_secret, verify

SECRET = new_secret()
received: list[str] = []
alerts: list[str] = []
closed = threading.Event()


class Receiver(BaseHTTPRequestHandler):
    """Another system: it verifies webhooks, answers 410 while it is closed, and receives alerts as well."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/alerts":
            alerts.append(json.loads(body)["title"])
            status = 200
        elif closed.is_set():
            status = 410
        else:
            message_id = verify(body, dict(self.headers), SECRET)
            event = json.loads(body)
            received.append(f"{event['type']} {event['data']['order']}")
            print(f"received {event['type']} {event['data']['order']}, signed, as {message_id}")
            status = 204
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def main() -> int:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"127.0.0.1:{server.server_address[1]}"
    app = Stepfast(
        f"sqlite:///{tempfile.mkdtemp()}/work.db",
        notifications=NotificationSettings(
            webhook_secrets=(SECRET,),
            webhook_allow=("127.0.0.1",),  # this machine is refused otherwise
            alert_urls=(f"json://{here}/alerts",),
        ),
    )

    @app.job()
    def ship(step: Step, order: str) -> Reject | None:
        step.send_webhook(f"http://{here}/orders", type="order.shipped", data={"order": order})
        return Reject("the address is in the sea") if order == "A-2" else None

    with app.worker():
        for order in ("A-1", "A-2", "A-3"):
            ship.enqueue(order=order)
        wait(lambda: len(received) == 2 and bool(alerts))  # A-2 was rejected, so its webhook was never staged
        print(f"alert: {alerts}")

        closed.set()
        ship.enqueue(order="A-4")
        wait(lambda: bool(app.operator.messages(MessageState.DEAD)))
        (dead,) = app.operator.messages(MessageState.DEAD)
        print(f"dead: {dead.last_error}")

        closed.clear()
        app.operator.retry_message(dead.id)
        wait(lambda: len(received) == 3)
    print(f"arrived: {sorted(received)}")
    server.shutdown()
    return 0 if sorted(received) == ["order.shipped A-1", "order.shipped A-3", "order.shipped A-4"] else 1


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
