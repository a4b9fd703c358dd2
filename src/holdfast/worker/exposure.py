"""What others may see of this process: on a port of its own, through the process that started it, or nothing.

Most processes show nothing, and need none of what is imported inside: 1.5 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.database.database import Database
    from holdfast.telemetry.metrics import Metrics
    from holdfast.worker.metrics_server import MetricsServer
    from holdfast.worker.uplink import Uplink


class Exposure:
    """Reads the options of `holdfast worker`; `metrics` is where its children add what they count."""

    def __init__(
        self, options: dict[str, Any], database: Callable[[], Database], problems: Callable[[], list[str]]
    ) -> None:
        self.metrics: Metrics | None = None
        self._service: Uplink | MetricsServer | None = None
        if (pipe := options.get("uplink")) is not None:
            from holdfast.worker.uplink import Uplink

            self._service = Uplink(pipe, problems)
            self.metrics = self._service.metrics
        elif (port := options.get("metrics_port")) is not None:
            from holdfast.telemetry.metrics import process_metrics
            from holdfast.worker.metrics_server import DEFAULT_HOST, MetricsServer
            from holdfast.worker.scrape import Collector

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
