"""Where settings come from, and what they mean when nobody sets them."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypedDict, Unpack

from holdfast.clock import Duration, duration
from holdfast.errors import ConfigurationError

DEFAULT_URL: Final = "sqlite:///holdfast.db"
WORKER_ID_LENGTH: Final = 100  # the width of locked_by in the operators' view
MAX_PAYLOAD: Final = 1024 * 1024
SHORTEST_LEASE: Final = timedelta(seconds=1)


def database_url(given: str | None) -> str:
    """The URL that was given, else HOLDFAST_DATABASE_URL, else a file in the working folder."""
    return given or os.environ.get("HOLDFAST_DATABASE_URL") or DEFAULT_URL


def default_worker_id() -> str:
    host = socket.gethostname()[:60]
    return f"{host}-{os.getpid()}-{os.urandom(3).hex()}"


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """How one worker process behaves."""

    queues: tuple[str, ...] = ()  # empty: every queue that has work
    concurrency: int = 10
    lease: timedelta = timedelta(seconds=10)  # how long a silent process is believed alive
    renew_at: int = 50  # percent of the lease after which it is renewed
    poll_interval: timedelta | None = None  # None: 1 s where the database wakes us up, 50 ms where it cannot
    grace: timedelta = timedelta(seconds=30)  # how long a stopping worker lets its steps finish
    batch: int = 1_000  # the most jobs one claim may take, when they are fast
    crash_limit: int = 3  # how many times a job may kill its worker
    ageing: timedelta | None = None  # who waits so long at a priority rises by one; None: never
    retention: timedelta = timedelta(days=7)  # how long finished jobs stay in the archive
    results_kept: timedelta = timedelta(days=1)  # how long results are kept, where their kind does not say
    audit_kept: timedelta = timedelta(days=400)  # how long what operators did is remembered
    runs_kept: timedelta = timedelta(days=90)  # how long runs and their pages are listed after their end
    worker_id: str = field(default_factory=default_worker_id)

    def __post_init__(self) -> None:
        for name, number, least, most in (
            ("concurrency", self.concurrency, 1, 10_000),
            ("renew_at", self.renew_at, 1, 90),
            ("batch", self.batch, 1, 5_000),
            ("crash_limit", self.crash_limit, 1, 1_000),
        ):
            if not least <= number <= most:
                raise ConfigurationError(f"{name}={number}: must lie between {least} and {most}")
        if self.lease < SHORTEST_LEASE:
            raise ConfigurationError(
                "lease: below 1 s a slow heartbeat would look like a crash; use 1s or more"
            )
        if self.ageing is not None and self.ageing < timedelta(seconds=1):
            raise ConfigurationError("ageing: below 1 s priorities would mean nothing; use 1s or more")
        if len(self.worker_id) > WORKER_ID_LENGTH:
            raise ConfigurationError(
                f"worker_id: {len(self.worker_id)} characters; at most {WORKER_ID_LENGTH} fit"
            )


class WorkerOptions(TypedDict, total=False):
    """The same as a caller may write them: durations as text, queues separated by commas, None for the default."""

    queues: Sequence[str] | str | None
    concurrency: int | None
    lease: Duration | None
    renew_at: int | None
    poll_interval: Duration | None
    grace: Duration | None
    batch: int | None
    crash_limit: int | None
    ageing: Duration | None
    retention: Duration | None
    results_kept: Duration | None
    audit_kept: Duration | None
    runs_kept: Duration | None
    worker_id: str | None


def worker_settings(**given: Unpack[WorkerOptions]) -> WorkerSettings:
    """Read what was given and leave the rest at its default; every problem is a sentence."""
    default = WorkerSettings(worker_id=given.get("worker_id") or default_worker_id())
    poll_interval = given.get("poll_interval")
    return WorkerSettings(
        queues=_names(given.get("queues")),
        concurrency=_number(given.get("concurrency"), default.concurrency),
        lease=_span("lease", given.get("lease"), default.lease),
        renew_at=_number(given.get("renew_at"), default.renew_at),
        poll_interval=None if poll_interval is None else duration(poll_interval, "poll_interval"),
        grace=_span("grace", given.get("grace"), default.grace),
        batch=_number(given.get("batch"), default.batch),
        crash_limit=_number(given.get("crash_limit"), default.crash_limit),
        ageing=None if given.get("ageing") is None else _span("ageing", given.get("ageing"), timedelta(0)),
        retention=_span("retention", given.get("retention"), default.retention),
        results_kept=_span("results_kept", given.get("results_kept"), default.results_kept),
        audit_kept=_span("audit_kept", given.get("audit_kept"), default.audit_kept),
        runs_kept=_span("runs_kept", given.get("runs_kept"), default.runs_kept),
        worker_id=default.worker_id,
    )


def _names(given: Sequence[str] | str | None) -> tuple[str, ...]:
    names = given.split(",") if isinstance(given, str) else given or ()
    return tuple(name.strip() for name in names if name.strip())


def _number(given: int | None, default: int) -> int:
    return default if given is None else given


def _span(name: str, given: Duration | None, default: timedelta) -> timedelta:
    return default if given is None else duration(given, name)
