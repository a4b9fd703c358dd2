"""The step whose handler, or whose effects, run here: log lines, jobs and secrets that it makes belong to it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from stepfast.telemetry.sinks import Fact


class Work(Protocol):
    """A step, as far as its trace and its log lines go. It may have `hidden`: texts that its log lines hide."""

    @property
    def job_id(self) -> str: ...
    @property
    def trace(self) -> str | None: ...
    def facts(self) -> dict[str, Fact]: ...


CURRENT: Final[ContextVar[Work | None]] = ContextVar("stepfast_step", default=None)
