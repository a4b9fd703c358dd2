"""One process that adds up what the worker processes of a command count, and serves it on one port.

    worker ── Uplink ──► guardian ──► MetricsProcess ──► /metrics, /healthz

Each worker sends a line of JSON every second, with counts and problems; its guardian passes the lines on. What a process
counted stays when it ends; one that is killed takes its last second with it.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from stepfast.errors import StepfastError
from stepfast.telemetry.metrics import HEARD, Metrics
from stepfast.telemetry.sinks import listen, unlisten
from stepfast.worker.periodic import NEVER, Periodic

if TYPE_CHECKING:
    from stepfast.app_protocol import AppLike
    from stepfast.database.database import Database
    from stepfast.worker.guardian_link import GuardianLink
    from stepfast.worker.metrics import Health

UPLINK_EVERY: Final = 1.0  # seconds between lines
OVERDUE: Final = 5.0  # seconds without a line after which a process is a problem


class Uplink:
    """In a worker: sends its counts and its problems."""

    def __init__(self, guardian: GuardianLink) -> None:
        self.metrics = Metrics()
        self._guardian = guardian
        self._health: Health | None = None
        self._thread = Periodic("uplink", last_call=True)
        self._thread.add(self._send, first=UPLINK_EVERY)

    def start(self, health: Health) -> None:
        """Begin to send; `health` says what is wrong with this process."""
        self._health = health
        listen(self.metrics, HEARD)
        self._thread.start()

    def stop(self) -> None:
        """Send the rest."""
        self._thread.stop()
        unlisten(self.metrics)

    def _send(self) -> float:
        problems = [] if self._health is None else self._health.problems()
        line = {"metrics": self.metrics.take(), "problems": problems}
        return UPLINK_EVERY if self._guardian.send_metrics(line) else NEVER


class Reports:
    """What the worker processes of a command have reported: counts, and what is wrong with each of them."""

    def __init__(self, metrics: Metrics, processes: int) -> None:
        self._metrics = metrics
        now = time.monotonic()
        self._heard_at = dict.fromkeys(range(1, processes + 1), now)
        self._problems: dict[int, list[str]] = {
            number: ["it has not reported yet"] for number in self._heard_at
        }
        self._restart_at: dict[int, float] = {}

    def hear(self, message: dict[str, Any]) -> None:
        """A line of one process, or of the guardian about one that ended."""
        if "metrics" in message:
            self._metrics.add(message["metrics"])
        number = message.get("child", 0)
        if number not in self._heard_at:  # a process for suspects: only its counts matter
            return
        if "ended" in message:
            self._restart_at[number] = time.monotonic() + message["restart_in_s"]
        else:
            self._restart_at.pop(number, None)
            self._heard_at[number] = time.monotonic()
            self._problems[number] = [str(problem) for problem in message["problems"]]

    def problems(self) -> list[str]:
        """What is wrong, in sentences that begin with the number of the process."""
        return [
            f"process {number}{problem}" for number in self._heard_at for problem in self._problems_of(number)
        ]

    def _problems_of(self, number: int) -> list[str]:
        now = time.monotonic()
        if (at := self._restart_at.get(number)) is not None:
            return [f" has ended; it starts again in {max(0.0, at - now):.0f} s"]
        silence = now - self._heard_at[number]
        late = [f": it has not reported for {silence:.0f} s"] if silence > OVERDUE else []
        return late + [f": {problem}" for problem in self._problems[number]]


def metrics_command(host: str, port: int, options: dict[str, Any]) -> list[str]:
    """The command line of the process; its one argument is read by `main`."""
    log = {"format": options.get("log_format") or "console", "level": options.get("log_level") or "info"}
    asked = json.dumps({"host": host, "port": port, "log": log})
    return [sys.executable, "-m", "stepfast.worker.metrics_process", asked]


class Place:
    """What a collector asks for: the database of the workers."""

    def __init__(self, database: Database) -> None:
        self.database = database


def main() -> int:
    """Serve what the lines on standard input tell, until there are no more."""
    from stepfast.database.drivers import open_database
    from stepfast.telemetry.logs import configure
    from stepfast.worker.metrics import Collector, MetricsServer

    asked = json.loads(sys.argv[1])
    configure(asked["log"]["format"], asked["log"]["level"])
    first = json.loads(sys.stdin.readline() or "null")
    if first is None:
        return 0
    metrics = Metrics()
    reports = Reports(metrics, first["processes"])
    try:
        place = cast(
            "AppLike", Place(open_database(first["url"]))
        )  # of an app, a collector asks for nothing else
        collector: Any = Collector(metrics, place)
        server = MetricsServer(asked["host"], asked["port"], collector)
    except StepfastError as error:
        sys.stderr.write(f"stepfast: {error}\n")
        return 1
    server.start(reports)
    for line in sys.stdin:
        with suppress(ValueError, KeyError, TypeError):  # the last words of a process that was killed
            reports.hear(json.loads(line))
    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
