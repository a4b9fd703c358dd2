"""What others may see of this process: on a port of its own, through the process that started it, or nothing.

Most processes show nothing, and need none of what is imported inside: 1.5 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.database.database import Database
    from stepfast.telemetry.metrics import Metrics
    from stepfast.worker.metrics_server import MetricsServer
    from stepfast.worker.uplink import Uplink


class Exposure:
    """Reads the options of `stepfast worker`; `metrics` is where its children add what they count."""

    def __init__(
        self, options: dict[str, Any], database: Callable[[], Database], problems: Callable[[], list[str]]
    ) -> None:
        self.metrics: Metrics | None = None
        self._service: Uplink | MetricsServer | None = None
        if (pipe := options.get("uplink")) is not None:
            from stepfast.worker.uplink import Uplink

            self._service = Uplink(pipe, problems)
            self.metrics = self._service.metrics
        elif (port := options.get("metrics_port")) is not None:
            from stepfast.telemetry.metrics import process_metrics
            from stepfast.worker.metrics_server import DEFAULT_HOST, MetricsServer
            from stepfast.worker.scrape import Collector

            self.metrics = process_metrics()
            collector = Collector(self.metrics, database)
            self._service = MetricsServer(
                options.get("metrics_host") or DEFAULT_HOST, port, collector, problems
            )

    def start(self) -> None:
        if self._service is not None:
            self._service.start()

    def stop(self) -> None:
        if self._service is not None:
            self._service.stop()
            self._service = None
