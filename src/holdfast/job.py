"""A registered handler, and the ways to ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypeVar

from holdfast.clock import Duration, duration, instant, micros, new_id, new_ids
from holdfast.database.borrowed import finish, lend
from holdfast.database.connection import Transaction
from holdfast.database.database import persist
from holdfast.database.dialects import Whose
from holdfast.errors import ConfigurationError
from holdfast.results.handle import EnqueuedJob
from holdfast.steps.enqueue import OnDuplicate, enqueue, enqueue_many, enqueue_with_id
from holdfast.steps.job import Enqueued, NewJob
from holdfast.steps.kinds import Kind, Kinds, checked_name, checked_priority
from holdfast.telemetry.masking import storable
from holdfast.telemetry.traces import enqueuing

if TYPE_CHECKING:
    from holdfast.database.database import Database

Lent = Transaction | Any | None  # ours, or a connection of sqlite3, psycopg, PyMySQL or SQLAlchemy
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

OPTIONS: Final = frozenset(
    {"tx", "key", "unique_for", "on_duplicate", "priority", "delay", "run_at", "queue", "id"}
)
REMEMBER_IDS: Final = timedelta(days=15)  # longer than a broker keeps a message
LONGEST_KEY: Final = 128
CHUNK: Final = 5_000  # rows of one bulk statement


class App(Protocol):
    """What a job needs of its application."""

    @property
    def database(self) -> Database: ...
    @property
    def kinds(self) -> Kinds: ...


class Job(Generic[P, R]):
    """A registered handler. Call it to run it right here; enqueue it to have it done."""

    def __init__(self, app: App, kind: Kind, handler: Callable[P, R]) -> None:
        self.app = app
        self.kind = kind
        self._handler = handler
        update_wrapper(self, handler)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._handler(*args, **kwargs)

    def enqueue(
        self,
        *,
        tx: Lent = None,
        key: str | None = None,
        unique_for: Duration | None = None,
        on_duplicate: OnDuplicate = "reject",
        priority: int | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        queue: str | None = None,
        id: str | None = None,  # noqa: A002 - the word users know
        **arguments: Any,
    ) -> EnqueuedJob[R]:
        """Ask for one job. With `tx` it exists when that transaction commits; without, when this returns.

        `key` is unique while the job is unfinished, and with `unique_for` for that long in any case.
        `id` makes the call idempotent: the same id again is the same job, also after it ended.
        """
        _on_duplicate(on_duplicate)
        asked = self._new(
            id=new_id() if id is None else checked_name("id", id),
            payload=self.kind.arguments.encode(arguments),
            queue=queue,
            priority=priority,
            delay=delay,
            run_at=run_at,
            key=key,
            unique_for=unique_for,
        )
        with enqueuing(asked.kind, asked.queue) as trace:
            job = asked if trace is None else replace(asked, trace=trace)
            if id is None:
                stored = self._in(tx, lambda inner: enqueue(inner, job, on_duplicate))
            else:
                keep = micros(REMEMBER_IDS)
                stored = self._in(tx, lambda inner: enqueue_with_id(inner, job, keep, on_duplicate))
        return EnqueuedJob(stored.id, stored.created, self.app)

    def enqueue_many(
        self,
        calls: Iterable[Mapping[str, Any]],
        *,
        tx: Lent = None,
        keys: Sequence[str | None] | None = None,
        on_duplicate: OnDuplicate = "reject",
        priority: int | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        queue: str | None = None,
    ) -> list[EnqueuedJob[R]]:
        """Ask for many jobs at once: all of them or, if one call's arguments are wrong, none."""
        _on_duplicate(on_duplicate)
        payloads = self.kind.arguments.encode_many(calls)
        if isinstance(keys, str):
            raise ConfigurationError(
                f"enqueue_many: keys={keys!r} is one text; give a list with a key for each call"
            )
        if keys is not None and len(keys) != len(payloads):
            raise ConfigurationError(f"enqueue_many: {len(payloads)} calls but {len(keys)} keys")
        asked = self._new(id="", payload="", queue=queue, priority=priority, delay=delay, run_at=run_at)
        for key in keys or ():
            _check_key(key)
        rows = list(zip(new_ids(len(payloads)), keys or [None] * len(payloads), payloads, strict=True))

        def store(inner: Transaction, like: NewJob) -> list[Enqueued]:
            stored: list[Enqueued] = []
            for start in range(0, len(rows), CHUNK):
                stored += enqueue_many(inner, like, rows[start : start + CHUNK], on_duplicate)
            return stored

        with enqueuing(asked.kind, asked.queue, len(rows)) as trace:
            like = asked if trace is None else replace(asked, trace=trace)
            stored = self._in(tx, lambda inner: store(inner, like))
        app = self.app
        return [EnqueuedJob(job_id, created, app) for job_id, created in stored]

    def _new(
        self,
        *,
        id: str,  # noqa: A002 - as in `enqueue`
        payload: str,
        queue: str | None,
        priority: int | None,
        delay: Duration | None,
        run_at: datetime | None,
        key: str | None = None,
        unique_for: Duration | None = None,
    ) -> NewJob:
        if delay is not None and run_at is not None:
            raise ConfigurationError("enqueue: give delay or run_at, not both")
        _check_key(key)
        if unique_for is not None and key is None:
            raise ConfigurationError("enqueue: unique_for needs a key to remember")
        return NewJob(
            id=id,
            queue=self.kind.queue if queue is None else checked_name("queue", queue),
            kind=self.kind.name,
            payload=payload,
            priority=self.kind.priority if priority is None else checked_priority(priority),
            delay=0 if delay is None else micros(duration(delay, "delay")),
            run_at=None if run_at is None else instant(run_at),
            key=key,
            key_until=None if unique_for is None else micros(duration(unique_for, "unique_for")),
        )

    def _in(self, tx: Lent, work: Callable[[Transaction], T]) -> T:
        return within(self.app.database, tx, work)


def within(database: Database, tx: Lent, work: Callable[[Transaction], T]) -> T:
    """Do it in the caller's transaction, however it was lent; without one, in a transaction of its own."""
    if tx is None:
        return persist(database, work, Whose.OURS_BY_KEY)
    if isinstance(tx, Transaction):
        return work(tx)
    lent = lend(tx, database)
    answer = work(lent)
    finish(lent, database)
    return answer


def _check_key(key: object) -> None:
    if key is None:
        return
    if not isinstance(key, str):
        raise ConfigurationError(f"key {key!r}: a text, not {type(key).__name__}")
    if not 0 < len(key) <= LONGEST_KEY:
        raise ConfigurationError(f"key {key[:40]!r}…: 1 to {LONGEST_KEY} characters, not {len(key)}")
    if key != key.rstrip():
        raise ConfigurationError(f"key {key!r} ends in a space, which MariaDB would not see; strip it")
    if key != storable(key):
        raise ConfigurationError(f"key {key!r}: no database stores NUL or half a character")


def _on_duplicate(choice: str) -> None:
    if choice not in {"reject", "skip", "replace"}:
        raise ConfigurationError(f"on_duplicate={choice!r}: use 'reject', 'skip' or 'replace'")
