"""The parts that a worker cannot do without, each a thread: an exception that ends one of them ends the worker, in good order.

The process would live on otherwise and look healthy, without a heartbeat, say, and so without ever taking work again.

A duty that meets an exception is called again instead (`worker/periodic.py`): what it works on belongs to all workers,
so one row that it cannot read would end every process that has this duty. When it has failed for a minute, the worker says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

LASTING: Final = (
    60.0  # seconds for which a duty has failed at every call before that is a problem of the worker
)


class VitalParts:
    """Starts the threads of a worker's parts, and knows which duties fail."""

    def __init__(self, broken: Callable[[str, BaseException], None] | None = None) -> None:
        self._broken = (
            broken  # told which part broke, and why; None: there is no worker, and Python reports it
        )
        self._failing: dict[str, tuple[float, str]] = {}  # since when, and why

    def thread(self, part: str, work: Callable[[], object]) -> threading.Thread:
        """A thread for this part, not started yet."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                if self._broken is None:
                    raise
                self._broken(part, error)

        return threading.Thread(target=run, name=f"stepfast-{part}", daemon=True)

    def failed(self, duty: str, error: BaseException) -> None:
        """A call of this duty met an unexpected error."""
        since, _ = self._failing.get(duty, (time.monotonic(), ""))
        self._failing[duty] = since, type(error).__name__

    def succeeded(self, duty: str) -> None:
        """A call of this duty went well."""
        self._failing.pop(duty, None)

    def problems(self) -> list[str]:
        """Duties that have failed for a while, in sentences."""
        now = time.monotonic()
        return [
            f"{duty} has failed for {now - since:.0f} s ({error}); the log says more"
            for duty, (since, error) in self._failing.copy().items()
            if now - since >= LASTING
        ]
