"""Where settings come from, and what they mean when nobody sets them."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from holdfast.clock import Duration, duration
from holdfast.errors import ConfigurationError

DEFAULT_URL: Final = "sqlite:///holdfast.db"
WORKER_ID_LENGTH: Final = 100  # the width of locked_by in the operators' view
MAX_PAYLOAD: Final = 1024 * 1024


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
    batch: int = 500  # the most jobs one claim may take, when they are fast
    crash_limit: int = 3  # how many times a job may kill its worker
    retention: timedelta = timedelta(days=7)  # how long finished jobs stay in the archive
    worker_id: str = field(default_factory=default_worker_id)


def worker_settings(
    *,
    queues: list[str] | tuple[str, ...] | str | None = None,
    concurrency: int | None = None,
    lease: Duration | None = None,
    renew_at: int | None = None,
    poll_interval: Duration | None = None,
    grace: Duration | None = None,
    batch: int | None = None,
    crash_limit: int | None = None,
    retention: Duration | None = None,
    worker_id: str | None = None,
) -> WorkerSettings:
    """Check what was given and leave the rest at its default; every problem is a sentence."""
    given: dict[str, object] = {}
    if queues is not None:
        names = queues.split(",") if isinstance(queues, str) else list(queues)
        given["queues"] = tuple(name.strip() for name in names if name.strip())
    for name, number, least, most in (
        ("concurrency", concurrency, 1, 10_000),
        ("renew_at", renew_at, 1, 90),
        ("batch", batch, 1, 5_000),
        ("crash_limit", crash_limit, 1, 1_000),
    ):
        if number is not None:
            if not least <= number <= most:
                raise ConfigurationError(f"{name}={number}: must lie between {least} and {most}")
            given[name] = number
    for name, span in (
        ("lease", lease),
        ("poll_interval", poll_interval),
        ("grace", grace),
        ("retention", retention),
    ):
        if span is not None:
            given[name] = duration(span, name)
    settings = WorkerSettings(**given, **({"worker_id": worker_id} if worker_id else {}))  # type: ignore[arg-type]
    if settings.lease < timedelta(seconds=1):
        raise ConfigurationError("lease: below 1 s a slow heartbeat would look like a crash; use 1s or more")
    if len(settings.worker_id) > WORKER_ID_LENGTH:
        raise ConfigurationError(
            f"worker_id: {len(settings.worker_id)} characters; at most {WORKER_ID_LENGTH} fit"
        )
    return settings
