"""Settings of programs and workers: where they come from, and their defaults."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypedDict, Unpack

from stepfast.clock import Duration, duration
from stepfast.errors import ConfigurationError

DEFAULT_URL: Final = "sqlite:///stepfast.db"
WORKER_ID_LENGTH: Final = 100  # the width of locked_by in the operators' view
MAX_PAYLOAD: Final = 1024 * 1024
SHORTEST_LEASE: Final = timedelta(seconds=1)
MAX_CONNECTIONS: Final = 10  # of one process, besides those of its heartbeat and of LISTEN
SHORTEST_LIFE: Final = 60.0  # seconds of a worker that recycles itself: starting takes time, too
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]i?B|B)", re.IGNORECASE)
_POWERS: Final = "bkmgt"

Size = int | str  # bytes, or a text such as "512MB" or "2GiB"


def database_url(given: str | None) -> str:
    """The URL that was given, else STEPFAST_DATABASE_URL, else a file in the working folder."""
    return given or os.environ.get("STEPFAST_DATABASE_URL") or DEFAULT_URL


def listen_url() -> str | None:
    """Where workers LISTEN if a pooler stands before the database: STEPFAST_LISTEN_URL."""
    return os.environ.get("STEPFAST_LISTEN_URL") or None


def max_connections() -> int:
    """How many connections a process may use at once: STEPFAST_MAX_CONNECTIONS."""
    given = os.environ.get("STEPFAST_MAX_CONNECTIONS") or str(MAX_CONNECTIONS)
    if not given.isdecimal() or not 1 <= int(given) <= 1_000:  # noqa: PLR2004 - as the sentence says
        raise ConfigurationError(f"STEPFAST_MAX_CONNECTIONS={given!r}: a whole number from 1 to 1000")
    return int(given)


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
    ageing: timedelta | None = None  # a job that waits so long at a priority rises by one; None: never
    retention: timedelta = timedelta(days=7)  # how long finished jobs stay in the archive
    results_kept: timedelta = timedelta(days=1)  # how long results are kept, where their kind does not say
    audit_kept: timedelta = timedelta(days=400)  # how long what operators did is remembered
    runs_kept: timedelta = timedelta(days=90)  # how long runs and their pages are listed after their end
    max_age: timedelta | None = None  # a process of this age finishes its steps and starts again; None: never
    max_memory: int | None = None  # so does one that holds so many bytes; None: never
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
        if self.max_age is not None and self.max_age.total_seconds() < SHORTEST_LIFE:
            raise ConfigurationError("max_age: below 1 m a worker would do little but start; use 1m or more")
        if len(self.worker_id) > WORKER_ID_LENGTH:
            raise ConfigurationError(
                f"worker_id: {len(self.worker_id)} characters; at most {WORKER_ID_LENGTH} fit"
            )


class WorkerOptions(TypedDict, total=False):
    """`WorkerSettings` as a caller may write them: durations as text, queues separated by commas, None for the default."""

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
    max_age: Duration | None
    max_memory: Size | None
    worker_id: str | None


def worker_settings(**given: Unpack[WorkerOptions]) -> WorkerSettings:
    """Read what was given and leave the rest at its default; every problem is a sentence."""
    default = WorkerSettings(worker_id=given.get("worker_id") or default_worker_id())
    max_memory = given.get("max_memory")
    return WorkerSettings(
        queues=_names(given.get("queues")),
        concurrency=_number(given.get("concurrency"), default.concurrency),
        lease=_span("lease", given.get("lease"), default.lease),
        renew_at=_number(given.get("renew_at"), default.renew_at),
        poll_interval=_span_or_none("poll_interval", given.get("poll_interval")),
        grace=_span("grace", given.get("grace"), default.grace),
        batch=_number(given.get("batch"), default.batch),
        crash_limit=_number(given.get("crash_limit"), default.crash_limit),
        ageing=_span_or_none("ageing", given.get("ageing")),
        retention=_span("retention", given.get("retention"), default.retention),
        results_kept=_span("results_kept", given.get("results_kept"), default.results_kept),
        audit_kept=_span("audit_kept", given.get("audit_kept"), default.audit_kept),
        runs_kept=_span("runs_kept", given.get("runs_kept"), default.runs_kept),
        max_age=_span_or_none("max_age", given.get("max_age")),
        max_memory=None if max_memory is None else size(max_memory, "max_memory"),
        worker_id=default.worker_id,
    )


def _names(given: Sequence[str] | str | None) -> tuple[str, ...]:
    names = given.split(",") if isinstance(given, str) else given or ()
    return tuple(name.strip() for name in names if name.strip())


def _number(given: int | None, default: int) -> int:
    return default if given is None else given


def _span(name: str, given: Duration | None, default: timedelta) -> timedelta:
    return default if given is None else duration(given, name)


def _span_or_none(name: str, given: Duration | None) -> timedelta | None:
    return None if given is None else duration(given, name)


def size(value: Size, what: str = "size") -> int:
    """Bytes, from a number or a text: "512MB" are 512,000,000 of them, "512MiB" are 512 times 1,048,576."""
    if isinstance(value, int) and not isinstance(value, bool):
        count = value
    elif isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())):
        unit = found[2].lower()
        count = int(float(found[1]) * (1024 if "i" in unit else 1000) ** _POWERS.index(unit[0]))
    else:
        raise ConfigurationError(f"{what}={value!r}: give bytes, or a text such as '512MB' or '2GiB'")
    if count < 1:
        raise ConfigurationError(f"{what}={value!r}: must be more than nothing")
    return count


def spoken_size(count: int) -> str:
    """A size as a person writes it: 512 MB, 1.5 GB."""
    unit, one = next((it for it in (("GB", 10**9), ("MB", 10**6), ("kB", 1000)) if count >= it[1]), ("B", 1))
    return f"{count / one:.3g} {unit}"
