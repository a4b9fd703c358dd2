"""Writes down what handlers answer and raise, and lets no more of them begin than a test wants."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from stepfast.errors import ContentionError, UnreachableError
from stepfast.testing.report import Run

if TYPE_CHECKING:
    from stepfast.steps.step import Step


class Recorder:
    """A `Watcher` that keeps one `Run` for each call of a handler."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._runs: dict[Step, Run] = {}
        self.parked: set[str] = set()  # jobs whose next step would be one too many

    @property
    def runs(self) -> tuple[Run, ...]:
        with self._lock:
            return tuple(self._runs.values())

    def begins(self, step: Step, /) -> bool:
        with self._lock:
            if self._limit is not None and len(self._runs) >= self._limit:
                self.parked.add(step.job_id)
                return False
            self._runs[step] = Run(step.job_id, step.kind, step.number, step.attempt)
            return True

    def raises(self, step: Step, error: BaseException, /) -> None:
        self._runs[step].error = error

    def answers(self, step: Step, answer: Any, /) -> None:
        self._runs[step].answer = answer

    def applies(self, step: Step, /) -> None:
        self._runs[step].error = None  # of an earlier try to commit

    def refuses(self, step: Step, error: BaseException, /) -> None:
        if not isinstance(error, ContentionError | UnreachableError):  # those are tried again
            self._runs[step].error = error

    def applied(self, step: Step, /) -> None:
        pass
