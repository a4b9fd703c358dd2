"""Work in the transaction of the caller's async connection, with the synchronous code of the engine.

The work runs on a thread of its own, and hands each of its statements to the event loop, where the caller's driver
sends it. (A pool of threads would not do: the thread that holds a lock that all others wait for might need one more.)
If the caller is cancelled, the work is undone.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from stepfast.database.connection import Connection, Transaction
from stepfast.database.lending import (
    ASYNC_LENDERS,
    CHECKS,
    driver_of,
    is_async,
    require_kind,
    savepoint_name,
    work_on,
)
from stepfast.database.statement import numbered
from stepfast.errors import ConfigurationError

if TYPE_CHECKING:
    from stepfast.database.database import Database
    from stepfast.database.dialects import Dialect


T = TypeVar("T")


class StatementResult(NamedTuple):
    """The rows and the count that a statement answered with."""

    rowcount: int
    names: Sequence[str]
    rows: Sequence[Sequence[Any]]


Send = Callable[[str, Any], Awaitable[StatementResult]]
_NO_RESULT: Final = StatementResult(-1, (), ())


async def within_async(database: Database, tx: Any, work: Callable[[Any], T]) -> T:
    """Do `work` in the caller's transaction on an async connection; without one, beside the event loop."""
    if tx is None:
        return await beside_the_loop(lambda: work(None))
    if isinstance(tx, Transaction):
        return work(tx)
    return await work_on_async(tx, database, work)


async def work_on_async(connection: Any, database: Database, work: Callable[[Transaction], T]) -> T:
    """Do `work` in the transaction that is open on the caller's async connection; the caller commits it."""
    if inspect.iscoroutinefunction(work):
        raise ConfigurationError(
            "app.join: work is a plain function of the transaction; what is awaited comes before or after"
        )
    raw = await _driver_connection(connection)
    driver = driver_of(raw)
    if driver and not is_async(connection, raw):
        raise ConfigurationError(
            f"tx={type(connection).__name__} is not async: pass it to the plain call, job.enqueue(…, tx=…)"
        )
    require_kind(connection, ASYNC_LENDERS.get(driver), database)
    CHECKS[driver](raw)
    cursor = LoopCursor(asyncio.get_running_loop(), SENDERS[driver](raw))
    lent = Connection(raw, _dialect_of(database.dialect, driver), cursor, _in_transaction(raw, driver))

    def within() -> T:
        with work_on(lent, database) as tx:
            return work(tx)

    try:
        return await beside_the_loop(within, cursor.stop)
    except asyncio.CancelledError:
        # Half of it may be written, and the caller may commit: undo it. PostgreSQL has no such savepoint, and fails the
        # whole transaction for the asking: then it cannot be committed.
        with suppress(Exception):
            await SENDERS[driver](raw)(f"ROLLBACK TO SAVEPOINT {savepoint_name()}", None)
        raise
    finally:
        cursor.stop()  # a transaction that was kept for later is over


async def beside_the_loop(work: Callable[[], T], stop: Callable[[], None] = lambda: None) -> T:
    """Do `work` on a thread of its own, in the caller's context; a cancelled caller waits until it has stopped."""
    context, done = contextvars.copy_context(), Future[T]()

    def run() -> None:
        try:
            done.set_result(context.run(work))
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            done.set_exception(error)

    threading.Thread(target=run, name="stepfast-lent", daemon=True).start()
    ended = asyncio.wrap_future(done)
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait([ended])
        ended.exception()  # whatever it is, it was the cancelling
        raise


class LoopCursor:
    """A cursor for code on a thread; the statements are sent by the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Send) -> None:
        self._loop = loop
        self._send = send
        self._answer = _NO_RESULT
        self._lock = threading.Lock()
        self._stopped = False
        self._sent: Future[StatementResult] | None = None

    @property
    def rowcount(self) -> int:
        return self._answer.rowcount

    @property
    def description(self) -> Any:
        return [(name,) for name in self._answer.names]

    def execute(self, sql: str, parameters: Any = None, /) -> object:
        with self._lock:
            if self._stopped:
                raise CancelledError("the transaction is no longer lent: nothing more is sent")
            self._sent = asyncio.run_coroutine_threadsafe(self._send_on_loop(sql, parameters), self._loop)
        self._answer = self._sent.result()
        return self

    def executemany(self, sql: str, rows: Sequence[Any], /) -> object:
        matched = 0
        for row in rows:
            self.execute(sql, row)
            matched += max(0, self.rowcount)
        self._answer = StatementResult(matched, (), ())
        return self

    def fetchall(self) -> Sequence[Sequence[Any]]:
        return self._answer.rows

    def close(self) -> None:
        """It holds nothing."""

    def stop(self) -> None:
        """Send nothing more, and give up what is on its way."""
        with self._lock:
            self._stopped = True
            if self._sent is not None:
                self._sent.cancel()

    async def _send_on_loop(self, sql: str, parameters: Any) -> StatementResult:
        return await self._send(sql, parameters)


async def _driver_connection(connection: Any) -> Any:
    """Unwrap SQLAlchemy's async session and connection; anything else is taken as it is."""
    if not type(connection).__module__.startswith("sqlalchemy.ext.asyncio"):
        return connection
    if not hasattr(connection, "get_raw_connection"):  # a session
        connection = await connection.connection()
    if not connection.in_transaction():
        await connection.begin()  # SQLAlchemy would not know that there is anything to commit
    raw = (await connection.get_raw_connection()).driver_connection
    if driver_of(raw) == "asyncpg" and not raw.is_in_transaction():
        await connection.exec_driver_sql("SELECT 1")  # SQLAlchemy begins when it first sends something
    return raw


def _dialect_of(dialect: Dialect, driver: str) -> Dialect:
    """The dialect for a driver: asyncpg numbers its parameters, so they keep their names until they are sent."""
    if driver != "asyncpg":
        return dialect
    return replace(dialect, edition=dialect.edition and "asyncpg", parameter=":{}")


def _in_transaction(raw: Any, driver: str) -> Callable[[], bool] | None:
    if driver != "asyncpg":
        return None
    look: Callable[[], bool] = raw.is_in_transaction
    return look


_RETURNS_ROWS: Final = re.compile(r"^\s*(SELECT|WITH|VALUES|SHOW|TABLE)\b|\bRETURNING\b", re.IGNORECASE)


def _through_asyncpg(raw: Any) -> Send:
    async def send(sql: str, parameters: Mapping[str, Any] | None) -> StatementResult:
        given = parameters or {}
        whole = frozenset(name for name, value in given.items() if type(value) is int)
        text, names = numbered(sql, whole)
        values = [given[name] for name in names]
        if _RETURNS_ROWS.search(text):
            rows = await raw.fetch(text, *values)
            return StatementResult(
                len(rows), tuple(rows[0].keys()) if rows else (), [tuple(it) for it in rows]
            )
        tag = await raw.execute(text, *values)
        count = tag.rpartition(" ")[2]
        return StatementResult(int(count) if count.isdigit() else -1, (), ())

    return send


def _through_cursor(new: Callable[[], Any]) -> Send:
    """Send through a cursor like those of DB-API, with `await` before each call."""

    async def send(sql: str, parameters: Any) -> StatementResult:
        cursor = new()
        if hasattr(cursor, "__await__"):
            cursor = await cursor
        try:
            await (cursor.execute(sql) if parameters is None else cursor.execute(sql, parameters))
            names = [it[0] for it in cursor.description or ()]
            rows = await cursor.fetchall() if names else ()
            return StatementResult(cursor.rowcount, names, rows)
        finally:
            await cursor.close()

    return send


def _without_lists(send: Send) -> Send:
    """Send to a driver that takes no lists: each of their values gets a parameter of its own."""

    async def sent(sql: str, parameters: Mapping[str, Any] | None) -> StatementResult:
        given = dict(parameters or {})
        for name, value in (parameters or {}).items():
            if isinstance(value, tuple):
                each = {f"{name}_{place}": it for place, it in enumerate(value)}
                sql = sql.replace(f"%({name})s", f"({', '.join(f'%({it})s' for it in each)})")
                given |= each
                del given[name]
        return await send(sql, None if parameters is None else given)

    return sent


def _psycopg_cursor(raw: Any) -> Callable[[], Any]:
    import psycopg

    return lambda: psycopg.AsyncCursor(raw, row_factory=psycopg.rows.tuple_row)


def _aiosqlite_cursor(raw: Any) -> Callable[[], Any]:
    async def new() -> Any:
        cursor = await raw.cursor()
        cursor.row_factory = None
        return cursor

    return new


def _mysql_cursor(raw: Any) -> Callable[[], Any]:
    from importlib import import_module

    return lambda: raw.cursor(import_module(f"{driver_of(raw)}.cursors").Cursor)


SENDERS: Final[dict[str, Callable[[Any], Send]]] = {
    "psycopg": lambda raw: _through_cursor(_psycopg_cursor(raw)),
    "asyncpg": _through_asyncpg,
    "aiosqlite": lambda raw: _through_cursor(_aiosqlite_cursor(raw)),
    "aiomysql": lambda raw: _without_lists(_through_cursor(_mysql_cursor(raw))),
    "asyncmy": lambda raw: _without_lists(_through_cursor(_mysql_cursor(raw))),
}
