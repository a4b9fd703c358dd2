"""`app.group()`: jobs that are enqueued in its block are its members, and exist with it or not at all."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, Self, TypedDict

from stepfast.database.connection import Transaction
from stepfast.database.lending import lent_transaction
from stepfast.errors import ConfigurationError
from stepfast.jobs.dependencies import checked_on_dead
from stepfast.jobs.enqueue import OPEN_GROUP, open_group
from stepfast.jobs.groups import OpenGroup, close_group, group_of, group_policy
from stepfast.results.enqueued_job import EnqueuedJob
from stepfast.telemetry.current_step import CURRENT

if TYPE_CHECKING:
    from contextvars import Token
    from types import TracebackType

    from stepfast.app_protocol import AppLike
    from stepfast.database.lending import Lent
    from stepfast.job import Prepared
    from stepfast.jobs.dependencies import OnDead


class GroupOptions(TypedDict, total=False):
    """The options of `app.group(…)`."""

    on_dead: OnDead  # what happens to the completion job when a member dies or is cancelled
    id: str | None  # of the completion job, and so of the group
    tx: Lent  # the transaction in which the group and its members are stored


class Group:
    """A context manager. Its block is one transaction: keep it short, and do no I/O of your own in it."""

    def __init__(
        self,
        app: AppLike,
        on_complete: Prepared[..., Any] | None,
        *,
        on_dead: OnDead = "wait",
        id: str | None = None,  # noqa: A002 - the word users know
        tx: Lent = None,
    ) -> None:
        if on_complete is None and on_dead != "wait":
            raise ConfigurationError(
                "app.group(on_dead=…) is chosen with on_complete, when the group is made"
            )
        self._app = app
        self._on_complete = on_complete
        self._on_dead = checked_on_dead(on_dead)
        self._lent = tx
        self._id = id
        self._stack = ExitStack()
        self._joining: OpenGroup | None = None
        self._token: Token[OpenGroup | None] | None = None

    @property
    def id(self) -> str:
        """The id of the group: that of its completion job."""
        if self._joining is None:
            raise ConfigurationError("a group has its id inside its block: `with app.group(…) as group:`")
        return self._joining.group_id

    @property
    def completion(self) -> EnqueuedJob[Any]:
        """The job that starts when all members have ended: to wait for it or to watch it."""
        return EnqueuedJob(self.id, created=self._on_complete is not None, app=self._app)

    def __enter__(self) -> Self:
        tx = self._stack.enter_context(self._transaction())
        try:
            group_id = self._opened(tx)
            on_dead = self._on_dead if self._on_complete is not None else group_policy(tx, group_id)
            self._joining = OpenGroup(self._app.database, tx, self._lent, group_id, on_dead)
        except BaseException as error:
            self._stack.__exit__(type(error), error, error.__traceback__)
            raise
        self._token = OPEN_GROUP.set(self._joining)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._joining is not None  # noqa: S101 - entered
        assert self._token is not None  # noqa: S101
        OPEN_GROUP.reset(self._token)
        self._joining.closed = True
        try:
            if error is None:
                close_group(self._joining.tx, self._joining.group_id)
        except BaseException as failure:
            self._stack.__exit__(type(failure), failure, failure.__traceback__)
            raise
        self._stack.__exit__(kind, error, trace)

    def _transaction(self) -> AbstractContextManager[Transaction]:
        """The transaction of the block around us, the caller's, or one of our own."""
        database = self._app.database
        if (around := open_group(database)) is not None:
            return nullcontext(around.checked(self._lent))
        if self._lent is None:
            return database.transaction()
        if isinstance(self._lent, Transaction):
            return nullcontext(self._lent)
        return lent_transaction(self._lent, database)

    def _opened(self, tx: Transaction) -> str:
        if self._on_complete is not None:
            return self._on_complete.enqueue_waiting(tx, self._id)
        if self._id is not None:
            return self._id
        work = CURRENT.get()
        if work is None:
            raise ConfigurationError(
                "app.group() outside a handler: say what happens at its end with on_complete=job.with_args(…), "
                "or name a group that is unfinished with id=…"
            )
        return group_of(tx, work.job_id)
