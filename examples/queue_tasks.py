"""Tasks from a queue: sent as JSON, run once each, their ends reported by webhooks. All in this process.

python -m examples.queue_tasks
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
import time
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from stepfast import PermanentError, Stepfast
from stepfast.tasks import Intake, IntakeSettings
from stepfast.transports import MemoryTransport, Outgoing
from stepfast.webhooks import NotificationSettings, new_secret, verify

SECRET = new_secret()
reported: dict[str, str] = {}


class Frontend(BaseHTTPRequestHandler):
    """The system that sent the tasks and receives their ends."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        verify(body, dict(self.headers), SECRET)
        end = json.loads(body)
        reported[end["task_id"]] = str(end.get("result") or end["error"]["message"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def main() -> int:
    """Send five messages, of which one is a repetition and one is not a task, and wait for the ends."""
    frontend = ThreadingHTTPServer(("127.0.0.1", 0), Frontend)
    threading.Thread(target=frontend.serve_forever, daemon=True).start()
    hook = f"http://127.0.0.1:{frontend.server_address[1]}/tasks"
    settings = NotificationSettings(webhook_secrets=(SECRET,), webhook_allow=("127.0.0.1",))
    broker = MemoryTransport()
    runs: list[str] = []

    with tempfile.TemporaryDirectory() as folder:
        app = Stepfast(f"sqlite:///{folder}/work.db", notifications=settings)

        @app.task("summarize")
        def summarize(filename: str) -> str:
            runs.append(filename)
            if filename == "torn.pdf":
                raise PermanentError("page 7 is missing")
            return f"a summary of {filename}"

        tasks = [("1", "a.pdf"), ("2", "b.pdf"), ("1", "a.pdf"), ("3", "torn.pdf")]
        bodies = [
            json.dumps(
                {
                    "task_id": number,
                    "task_type": "summarize",
                    "payload": {"filename": name},
                    "webhook_url": hook,
                }
            )
            for number, name in tasks
        ]
        asyncio.run(send(broker, [*bodies, "this is not a task"]))

        intake = Intake(
            app, broker, IntakeSettings(client="default", acknowledge="ended"), ended=lambda: None
        )
        with app.worker():
            intake.start()
            deadline = time.monotonic() + 20
            while len(reported) < len({number for number, _ in tasks}) and time.monotonic() < deadline:
                time.sleep(0.01)
            intake.stop_taking()
        intake.leave(timedelta(seconds=5))
        letters = [it.kind for it in app.operator.dead_letters()]
        app.close()
    frontend.shutdown()

    for number, text in sorted(reported.items()):
        print(f"task {number}: {text}")
    print(f"handlers ran for {', '.join(sorted(runs))}; dead letters: {', '.join(sorted(letters))}")
    right = sorted(runs) == ["a.pdf", "b.pdf", "torn.pdf"] and len(reported) == 3 and len(letters) == 2
    print("Each task ran once, and each end was reported." if right else "Something is wrong.")
    return 0 if right else 1


async def send(broker: MemoryTransport, bodies: list[str]) -> None:
    await broker.ensure("default-tasks")
    await broker.send("default-tasks", [Outgoing(id=f"m-{at}", body=it) for at, it in enumerate(bodies)])


if __name__ == "__main__":
    sys.exit(main())
