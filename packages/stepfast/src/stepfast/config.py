"""Settings of programs and workers: where they come from, and their defaults."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypedDict, TypeGuard, Unpack

from stepfast.clock import Duration, duration
from stepfast.errors import ConfigurationError

DEFAULT_URL: Final = "sqlite:///stepfast.db"
WORKER_ID_LENGTH: Final = 100  # the width of locked_by in the operators' view
MAX_PAYLOAD: Final = 1024 * 1024
MOST_BYTES: Final = 2**60  # of memory: what a size may say
SHORTEST_LEASE: Final = timedelta(seconds=1)
SHORTEST_POLL: Final = timedelta(milliseconds=1)
MAX_CONNECTIONS: Final = 10  # of one process, besides those of its heartbeat and of LISTEN
SHORTEST_LIFE: Final = 60.0  # seconds of a worker that recycles itself: starting takes time, too
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]i?B|B)", re.IGNORECASE)
_POWERS: Final = "bkmgt"

Size = int | str  # bytes, or a text such as "512MB" or "2GiB"

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,119}")
ALL_QUEUES: Final = "*"  # as GoodJob, Solid Queue and others write it
ON: Final = frozenset({"1", "on", "true", "yes"})
OFF: Final = frozenset({"0", "off", "false", "no"})


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def switch(name: str, text: str) -> bool:
    """What a text of the environment or of a URL says; case does not matter."""
    if text.lower() not in ON | OFF:
        raise ConfigurationError(f"{name}={text!r}: say on or off")
    return text.lower() in ON


def checked_name(what: str, name: object) -> str:
    """The name of a kind, a queue, a feed, a schedule, or the id of a job."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{what} {name!r}: use 1 to 120 letters, digits and . _ : / - (and start with a letter, digit or _)"
        )
    return name


def unknown_option(where: str, name: str, known: Collection[str]) -> TypeError:
    """The error about an option that does not exist, with the one that was probably meant."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    return TypeError(f"{where} got an unexpected keyword argument {name!r}; {hint}")


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
            if not is_whole(number) or not least <= number <= most:
                what = "must lie" if is_whole(number) else "must be a whole number"
                raise ConfigurationError(f"{name}={number!r}: {what} between {least} and {most}")
        if self.lease < SHORTEST_LEASE:
            raise ConfigurationError(
                "lease: below 1 s a slow heartbeat would look like a crash; use 1s or more"
            )
        if self.poll_interval is not None and self.poll_interval < SHORTEST_POLL:
            raise ConfigurationError(
                "poll_interval: below 1 ms a worker would do little but look; use 1ms or more"
            )
        if self.ageing is not None and self.ageing < timedelta(seconds=1):
            raise ConfigurationError("ageing: below 1 s priorities would mean nothing; use 1s or more")
        if self.max_age is not None and self.max_age.total_seconds() < SHORTEST_LIFE:
            raise ConfigurationError("max_age: below 1 m a worker would do little but start; use 1m or more")
        if not isinstance(self.worker_id, str):
            raise ConfigurationError(f"worker_id={self.worker_id!r}: give a text")
        if len(self.worker_id) > WORKER_ID_LENGTH:
            raise ConfigurationError(
                f"worker_id: {len(self.worker_id)} characters; at most {WORKER_ID_LENGTH} fit"
            )


class WorkerOptions(TypedDict, total=False):
    """`WorkerSettings` as a caller may write them: durations as text, queues separated by commas, None for the default.

    `queues="*"` is all queues, as none are.
    """

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
    if unknown := given.keys() - WorkerOptions.__annotations__.keys():
        raise unknown_option("worker()", min(unknown), list(WorkerOptions.__annotations__))
    default = WorkerSettings(worker_id=given.get("worker_id") or default_worker_id())
    max_memory = given.get("max_memory")
    return WorkerSettings(
        queues=_queues(given.get("queues")),
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


def _queues(given: Sequence[str] | str | None) -> tuple[str, ...]:
    """The queues to serve; none of them means all. What no queue can be called is refused: it would wait for ever."""
    names: object = given.split(",") if isinstance(given, str) else given or ()
    if not isinstance(names, Collection):
        raise ConfigurationError(f"queues={given!r}: give a list of names, or names with commas between them")
    stripped = [name.strip() if isinstance(name, str) else name for name in names]
    found = [name for name in stripped if name or not isinstance(name, str)]
    return () if found == [ALL_QUEUES] else tuple(_queue(name) for name in found)


def _queue(name: object) -> str:
    if name == ALL_QUEUES:
        raise ConfigurationError("queues: '*' is all queues; leave the other names out, or name each queue")
    if isinstance(name, str) and ALL_QUEUES in name:
        raise ConfigurationError(
            f"queues: {name!r} names no queue: a worker serves queues by their whole names (mail.in,mail.out), "
            "or all of them ('*')"
        )
    return checked_name("queue", name)


def _number(given: int | None, default: int) -> int:
    return default if given is None else given


def _span(name: str, given: Duration | None, default: timedelta) -> timedelta:
    return default if given is None else duration(given, name)


def _span_or_none(name: str, given: Duration | None) -> timedelta | None:
    return None if given is None else duration(given, name)


def size(value: Size, what: str = "size") -> int:
    """Bytes, from a number or a text: "512MB" are 512,000,000 of them, "512MiB" are 512 times 1,048,576."""
    if is_whole(value):
        count = value
    elif isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())):
        unit = found[2].lower()
        bytes_ = float(found[1]) * (1024 if "i" in unit else 1000) ** _POWERS.index(unit[0])
        count = int(min(bytes_, 2 * MOST_BYTES))
    else:
        raise ConfigurationError(f"{what}={value!r}: give bytes, or a text such as '512MB' or '2GiB'")
    if count < 1:
        raise ConfigurationError(f"{what}={value!r}: must be more than nothing")
    if count > MOST_BYTES:
        raise ConfigurationError(f"{what}={str(value)!r:.50}: no machine has so many bytes")
    return count


def spoken_size(count: int) -> str:
    """A size as a person writes it: 512 MB, 1.5 GB."""
    unit, one = next((it for it in (("GB", 10**9), ("MB", 10**6), ("kB", 1000)) if count >= it[1]), ("B", 1))
    return f"{count / one:.3g} {unit}"
