"""Find the jobs that have been enqueued; a failed assertion lists those that are most similar."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import Duration, duration, moment, spoken
from stepfast.database.lending import within as in_transaction
from stepfast.job import Job
from stepfast.jobs.payload import decode, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from stepfast.app import Stepfast
    from stepfast.database.connection import Transaction
    from stepfast.database.lending import Lent
from stepfast.testing.jobs import DATABASE_TIME, StoredJob, finished, unfinished

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
    """Matching jobs that have not ended, oldest first; with `ended`, also those that have.

    `arguments`: these, among others. `within`: due by then. `tx`: look inside a transaction of your own.
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
        raise AssertionError(f"no job is enqueued {wanted}; {_list_of(jobs, wanted, now)}")
    if count is not None and len(matching) != count:
        raise AssertionError(
            f"{len(matching)} jobs, not {count}, are enqueued {wanted}; {_list_of(jobs, wanted, now)}"
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
        raise AssertionError(f"a job is enqueued {wanted}; {_list_of(jobs, wanted, now)}")


@dataclass(frozen=True)
class Wanted:
    """The job that a test looks for; None matches anything."""

    kind: str | None
    arguments: dict[str, Any]
    queue: str | None
    priority: int | None
    key: str | None
    within: timedelta | None

    def differences(self, job: StoredJob, now: datetime) -> list[str]:
        """In what `job` differs from the wanted one."""
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
    """The arguments as a row has them: dates, decimals and dataclasses as JSON."""
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
    return sorted(jobs, key=lambda it: (it.created_at, it.id)), moment(tx.first(DATABASE_TIME))


def _list_of(jobs: list[StoredJob], wanted: Wanted, now: datetime) -> str:
    """The enqueued jobs, the most similar first, each with its differences."""
    if not jobs:
        return "nothing is enqueued"
    nearest = sorted(
        ((wanted.differences(it, now), it) for it in jobs),
        key=lambda pair: _distance(pair[0], pair[1], wanted),
    )
    lines = [
        f"  {_described(it, now)}\n      {'; '.join(differences) or 'matches'}"
        for differences, it in nearest[:SHOWN]
    ]
    more = [f"  … and {len(jobs) - SHOWN} more"] if len(jobs) > SHOWN else []
    return "\n".join(["enqueued, the most similar first:", *lines, *more])


def _distance(differences: list[str], job: StoredJob, wanted: Wanted) -> tuple[bool, int]:
    """Sort key: another kind is further away than any number of other arguments."""
    return wanted.kind is not None and job.kind != wanted.kind, len(differences)


def _described(job: StoredJob, now: datetime) -> str:
    facts = [f"queue={job.queue}", f"priority={job.priority}", job.state.value]
    facts += [f"key={job.key!r}"] if job.key is not None else []
    facts += [f"due in {spoken(job.due_at - now)}"] if job.due_at > now else []
    arguments = ", ".join(f"{name}={value!r}" for name, value in job.arguments.items())
    return f"{job.kind}({arguments})  [{', '.join(facts)}]"
