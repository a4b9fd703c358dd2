"""What has been enqueued, and a failure that shows what has been enqueued instead."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import Duration, duration, moment, spoken
from stepfast.database.lending import within as in_transaction
from stepfast.database.statement import sql
from stepfast.encryption import ENCRYPTED, opened
from stepfast.errors import SealedError
from stepfast.job import Job
from stepfast.jobs.payload import decode, to_json
from stepfast.jobs.state import ENDED, JobState
from stepfast.jobs.wait import cursor_in

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from stepfast.app import Stepfast
    from stepfast.database.connection import Transaction, Value
    from stepfast.database.lending import Lent


# Jobs as they stand in the tables: what assertions look at, and what a drain reports about.


@dataclass(frozen=True)
class StoredJob:
    """A job as the database has it."""

    id: str
    kind: str
    queue: str
    state: JobState
    priority: int
    key: str | None
    step: int  # how many steps are committed
    failures: int  # of its current step
    crashes: int
    due_at: datetime  # when it may run, or could have run
    created_at: datetime
    error: str | None  # what went wrong last
    cursor: Any
    arguments: dict[str, Any]

    @property
    def ended(self) -> bool:
        return self.state in ENDED


_COLUMNS = """
    id, kind, queue, state, priority, unique_key, step, failures, crashes, ready_at, created_at, last_error, cursor_json, payload
"""

UNFINISHED = sql(f"SELECT {_COLUMNS} FROM stepfast_job ORDER BY created_at, id")
FINISHED = sql(f"SELECT {_COLUMNS} FROM stepfast_archive ORDER BY created_at, id")

MARKS = sql("SELECT id, fence, last_error FROM stepfast_job")
TOUCHED = sql(f"SELECT {_COLUMNS}, fence FROM stepfast_job ORDER BY created_at, id")
ENDED_SINCE = sql("""
    SELECT id FROM stepfast_archive
     WHERE state IN ('done', 'dead', 'cancelled') AND finished_at >= :since
""")
ENDED_JOBS_SINCE = sql(f"""
    SELECT {_COLUMNS} FROM stepfast_archive
     WHERE state IN ('done', 'dead', 'cancelled') AND finished_at >= :since
     ORDER BY created_at, id
""")
CLOCK = sql("SELECT {now}")


def unfinished(tx: Transaction) -> list[StoredJob]:
    """Jobs that have not ended, oldest first."""
    return tx.all(UNFINISHED, _job)


def finished(tx: Transaction) -> list[StoredJob]:
    """Jobs that have ended and are still kept, oldest first."""
    return tx.all(FINISHED, _job)


@dataclass(frozen=True)
class Picture:
    """What there was at one moment, so that later one sees what was touched since."""

    at: int
    fences: dict[str, int]  # of unfinished jobs
    errors: frozenset[tuple[str, str]]  # that they had met
    ended: frozenset[str]  # who had ended in that very moment

    @staticmethod
    def taken(tx: Transaction) -> Picture:
        at = int(tx.first(CLOCK))
        marks = tx.rows(MARKS)
        return Picture(
            at,
            {row[0]: row[1] for row in marks},
            frozenset((row[0], row[2]) for row in marks if row[2] is not None),
            frozenset(row[0] for row in tx.rows(ENDED_SINCE, since=at)),
        )

    def touched(self, tx: Transaction) -> list[StoredJob]:
        """Jobs that were leased or ended since then, as they are now. Whoever owns a step writes a new fence."""
        live = [
            _job(*row[:-1])
            for row in tx.rows(TOUCHED)
            if row[-1] != self.fences.get(row[0], 0)  # a new job has the fence 0
        ]
        gone = [it for it in tx.all(ENDED_JOBS_SINCE, _job, since=self.at) if it.id not in self.ended]
        return gone + live


def _job(*row: Value) -> StoredJob:
    *plain, ready_at, created_at, error, cursor, payload = row
    job_id, kind, queue, state, priority, key, step, failures, crashes = plain
    return StoredJob(
        id=job_id,
        kind=kind,
        queue=queue,
        state=JobState(state),
        priority=priority,
        key=key,
        step=step,
        failures=failures,
        crashes=crashes,
        due_at=moment(ready_at),
        created_at=moment(created_at),
        error=error,
        cursor=_cursor(cursor, kind),
        arguments=_arguments(payload, kind),
    )


def _cursor(stored: str | None, kind: str) -> Any:
    found = cursor_in(stored)
    try:
        return None if found is None else decode(opened(found, f"cursor of {kind}"))
    except SealedError:
        return ENCRYPTED


def _arguments(payload: str, kind: str) -> dict[str, Any]:
    """A row of somebody else's may hold anything; it has no arguments then, but it is there."""
    try:
        found = decode(opened(payload, f"payload of {kind}"))
    except (ValueError, SealedError):  # msgspec's own is one
        return {}
    return found if isinstance(found, dict) else {}


SHOWN: Final = 10  # jobs in a failure's message


def enqueued(
    app: Stepfast,
    job: Job[..., Any] | str | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    queue: str | None = None,
    priority: int | None = None,
    key: str | None = None,
    within: Duration | None = None,
    ended: bool = False,
    tx: Lent = None,
) -> list[StoredJob]:
    """Jobs that have not ended and match, oldest first; with `ended`, those too that have.

    `arguments` need to be there, among others; `within`: due by then. `tx` looks inside a transaction of your own.
    """
    wanted = Wanted(_name(job), _stored(arguments or {}), queue, priority, key, _span(within))
    jobs, now = _look(app, tx, ended=ended)
    return [it for it in jobs if not wanted.differences(it, now)]


def assert_enqueued(
    app: Stepfast,
    job: Job[..., Any] | str | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    queue: str | None = None,
    priority: int | None = None,
    key: str | None = None,
    within: Duration | None = None,
    count: int | None = None,
    ended: bool = False,
    tx: Lent = None,
) -> list[StoredJob]:
    """Fail unless jobs match: one or more, or exactly `count`. Returns them."""
    __tracebackhide__ = True
    wanted = Wanted(_name(job), _stored(arguments or {}), queue, priority, key, _span(within))
    jobs, now = _look(app, tx, ended=ended)
    matching = [it for it in jobs if not wanted.differences(it, now)]
    if count is None and not matching:
        raise AssertionError(f"no job is enqueued {wanted}; {_listed(jobs, wanted, now)}")
    if count is not None and len(matching) != count:
        raise AssertionError(
            f"{len(matching)} jobs, not {count}, are enqueued {wanted}; {_listed(jobs, wanted, now)}"
        )
    return matching


def assert_not_enqueued(
    app: Stepfast,
    job: Job[..., Any] | str | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    queue: str | None = None,
    priority: int | None = None,
    key: str | None = None,
    within: Duration | None = None,
    ended: bool = False,
    tx: Lent = None,
) -> None:
    """Fail if a job matches."""
    __tracebackhide__ = True
    wanted = Wanted(_name(job), _stored(arguments or {}), queue, priority, key, _span(within))
    jobs, now = _look(app, tx, ended=ended)
    if any(not wanted.differences(it, now) for it in jobs):
        raise AssertionError(f"a job is enqueued {wanted}; {_listed(jobs, wanted, now)}")


@dataclass(frozen=True)
class Wanted:
    """What a test looks for; None: whatever it is."""

    kind: str | None
    arguments: dict[str, Any]
    queue: str | None
    priority: int | None
    key: str | None
    within: timedelta | None

    def differences(self, job: StoredJob, now: datetime) -> list[str]:
        """Where `job` is another one than this."""
        found = [
            f"{name} is {there!r}, not {wanted!r}"
            for name, wanted, there in (
                ("kind", self.kind, job.kind),
                ("queue", self.queue, job.queue),
                ("priority", self.priority, job.priority),
                ("key", self.key, job.key),
            )
            if wanted is not None and there != wanted
        ]
        for name, value in self.arguments.items():
            if name not in job.arguments:
                found.append(f"it has no argument {name}")
            elif job.arguments[name] != value:
                found.append(f"{name} is {job.arguments[name]!r}, not {value!r}")
        if self.within is not None and job.due_at > now + self.within:
            found.append(f"it is due in {spoken(job.due_at - now)}, not within {spoken(self.within)}")
        return found

    def __str__(self) -> str:
        facts = {"kind": self.kind, "queue": self.queue, "priority": self.priority, "key": self.key}
        parts = [f"{name}={value!r}" for name, value in facts.items() if value is not None]
        parts += [f"arguments={self.arguments!r}"] if self.arguments else []
        parts += [f"within {spoken(self.within)}"] if self.within is not None else []
        return f"with {', '.join(parts)}" if parts else "at all"


def _name(job: Job[..., Any] | str | None) -> str | None:
    return job.kind.name if isinstance(job, Job) else job


def _stored(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """As they stand in the row: dates, decimals and dataclasses are JSON there."""
    found: dict[str, Any] = decode(to_json(dict(arguments)))
    return found


def _span(within: Duration | None) -> timedelta | None:
    return None if within is None else duration(within, "within")


def _look(app: Stepfast, tx: Lent, *, ended: bool) -> tuple[list[StoredJob], datetime]:
    if tx is None:
        with app.reading() as own:
            return _read(own, ended=ended)
    return in_transaction(app.database, tx, lambda inner: _read(inner, ended=ended))


def _read(tx: Transaction, *, ended: bool) -> tuple[list[StoredJob], datetime]:
    jobs = unfinished(tx) + (finished(tx) if ended else [])
    return sorted(jobs, key=lambda it: (it.created_at, it.id)), moment(tx.first(CLOCK))


def _listed(jobs: list[StoredJob], wanted: Wanted, now: datetime) -> str:
    """What is there, the most similar first, with what is different about it."""
    if not jobs:
        return "nothing is enqueued"
    nearest = sorted(
        ((wanted.differences(it, now), it) for it in jobs),
        key=lambda pair: _distance(pair[0], pair[1], wanted),
    )
    lines = [
        f"  {_told(it, now)}\n      {'; '.join(differences) or 'matches'}"
        for differences, it in nearest[:SHOWN]
    ]
    more = [f"  … and {len(jobs) - SHOWN} more"] if len(jobs) > SHOWN else []
    return "\n".join(["enqueued, the most similar first:", *lines, *more])


def _distance(differences: list[str], job: StoredJob, wanted: Wanted) -> tuple[bool, int]:
    """Another kind is further away than any number of other arguments."""
    return wanted.kind is not None and job.kind != wanted.kind, len(differences)


def _told(job: StoredJob, now: datetime) -> str:
    facts = [f"queue={job.queue}", f"priority={job.priority}", job.state.value]
    facts += [f"key={job.key!r}"] if job.key is not None else []
    facts += [f"due in {spoken(job.due_at - now)}"] if job.due_at > now else []
    arguments = ", ".join(f"{name}={value!r}" for name, value in job.arguments.items())
    return f"{job.kind}({arguments})  [{', '.join(facts)}]"
