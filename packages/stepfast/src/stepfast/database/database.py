"""A database: transactions on pooled connections, of which only so many are in use at once.

SQLite lets one writer in at a time. Inside a process the writers queue up here (the heartbeat first),
so that only one of them ever asks the file; between processes `BEGIN IMMEDIATE` is retried every
millisecond. SQLite's own busy handler sleeps up to 100 ms and starved heartbeats for seconds.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections import deque
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from stepfast.database.connection import Connection, Transaction
from stepfast.database.dialects import DIALECTS, Plans
from stepfast.database.wakeup import CHANNEL, NOTIFY, notify
from stepfast.errors import (
    ConfigurationError,
    ContentionError,
    DatabaseError,
    StepfastError,
    UnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepfast.database.dialects import Dialect, Shift


T = TypeVar("T")
MOST_IDLE: Final = 6  # connections kept open between uses
STREAK_GAP: Final = 10.0  # seconds; every part of a worker that met an outage tries again sooner


class FailureStreak(NamedTuple):
    """Transactions that failed one after the other, with none between them that wrote something and was committed."""

    began: float  # monotonic
    last_at: float  # monotonic
    error: DatabaseError  # the last one

    def is_over(self, now: float) -> bool:
        """Whether none was tried for so long that nothing is known about the next one."""
        return now - self.last_at > STREAK_GAP

    @property
    def seconds(self) -> float:
        """The time between the first failure and the last."""
        return self.last_at - self.began


class Database:
    """Opens transactions on pooled connections; safe to share between threads, and across a fork."""

    def __init__(
        self,
        url: str,
        dialect: Dialect,
        connect: Callable[[], Connection],
        *,
        wakes: bool = False,
        listen: Callable[[], Connection] | None = None,
        most: int | None = None,
    ) -> None:
        self.url = url
        self.origin = hash(url)  # the errors of this database carry it; it shows nothing of the URL
        self.dialect = dialect
        self.wakes = wakes  # whether it can NOTIFY; whether that is heard is another matter
        self.listen_elsewhere = listen  # how to connect past a pooler, for LISTEN alone
        self._most = most  # connections of the pool that may be in use at once
        self._slots = None if most is None else ConnectionSlots(most)
        self.shift: Shift | None = None  # a test's clock
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._opened: weakref.WeakSet[Connection] = weakref.WeakSet()
        # How the engine's transactions have failed since one of them was committed that had written something, and when
        # the last such streak ended (monotonic).
        self._failures: FailureStreak | None = None
        self.recovered_at = 0.0
        self._pid = os.getpid()
        self._writers = WriterQueue()
        self._held_for_fork = False
        self._listeners: list[tuple[Callable[[set[str]], None], str | None]] = []
        _databases.add(self)

    def connect(self) -> Connection:
        """A connection of the caller's own, outside the pool."""
        return self._new_connection()

    def _new_connection(self) -> Connection:
        try:
            connection = self._connect()
        except DatabaseError as error:
            self._mark(error)
            raise
        with self._lock:
            self._opened.add(connection)
        return connection

    def unanswered(self, seconds: float) -> list[Connection]:
        """Connections on which a statement has had no answer for so many seconds."""
        with self._lock:
            opened = list(self._opened)
        since = time.monotonic() - seconds
        return [it for it in opened if it.asked is not None and it.asked_at <= since]

    def failures(self) -> FailureStreak | None:
        """How the engine's transactions on the pool fail just now; None if they do not."""
        streak = self._failures
        return None if streak is None or streak.is_over(time.monotonic()) else streak

    def forget_failures(self) -> None:
        """Begin to count anew: what failed until now failed for a reason that is known."""
        self._failures = None

    def connect_to_listen(self) -> Connection:
        """A connection outside the pool for LISTEN: past a pooler, if STEPFAST_LISTEN_URL says how."""
        return (self.listen_elsewhere or self._connect)()

    @contextmanager
    def transaction(
        self, plans: Plans = Plans.FREE, *, urgent: bool = False, on: Connection | None = None
    ) -> Iterator[Transaction]:
        """Commit when the block ends, roll back when it raises.

        `plans` are the planner settings of its statements; `urgent` takes precedence over other writers (SQLite).
        """
        one_writer = self.dialect.name == "sqlite"
        if one_writer:
            self._writers.take(urgent=urgent)
        try:  # by hand: three context managers inside each other take 30 µs
            connection = self._checkout() if on is None else on
            connection.dialect = self.dialect
            connection.plans = plans
            try:
                self._begin(connection, self.dialect.begin[plans])
                tx = Transaction(connection)
                try:
                    yield tx
                    if tx.poisoned is not None:
                        tx._guard()  # noqa: SLF001 - raises: what was caught inside cannot be committed
                    if self.wakes and tx.wakes:
                        notify(tx, self.url)
                    connection.commit()
                except BaseException:
                    connection.rollback()
                    raise
            finally:
                if on is None:
                    self._checkin(connection)
        except DatabaseError as error:
            self._failed(error, of_pool=plans is not Plans.FREE and not error.of_step and on is None)
            raise
        finally:
            if one_writer:
                self._writers.give()
        if self._failures is not None and tx.wrote and on is None:
            self._failures = None
            self.recovered_at = time.monotonic()
        self.tell(tx.wakes)
        if tx.news is not None:
            tx.committed()

    @contextmanager
    def reading(self, *, on: Connection | None = None) -> Iterator[Transaction]:
        """A transaction that only reads, and waits for no writer."""
        with self._borrowed(on, Plans.FREE) as connection:
            connection.begin(self.dialect.begin_reading)
            try:
                yield Transaction(connection, only_texts=self.dialect.name == "sqlite")
            finally:
                connection.rollback()

    @contextmanager
    def looking(self) -> Iterator[Transaction]:
        """For a single read, which is a transaction by itself: a third of the round trips of `reading`."""
        with self._borrowed(None, Plans.ENGINE) as connection:
            yield Transaction(connection)

    @property
    def locked_here(self) -> bool:
        """Whether this very thread is inside a write transaction that keeps all others from writing (SQLite)."""
        return self.dialect.name == "sqlite" and self._writers.mine

    def listen(self, listener: Callable[[set[str]], None], topic: str | None = None) -> None:
        """Call `listener` with the names of what this very process makes ready, at once and without the database.

        With a topic (OUTBOX, MESSAGES), only when that is among them.
        """
        self._listeners.append((listener, topic))

    def unlisten(self, listener: Callable[[set[str]], None]) -> None:
        self._listeners = [it for it in self._listeners if it[0] != listener]

    def shift_clock(self, shift: Shift | None) -> None:
        """For tests: let `{now}` be another time in every transaction that begins after this; None ends it."""
        real = DIALECTS[self.dialect.name]
        self.shift = shift
        self.dialect = real if shift is None else shift.applied(real)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def tell(self, queues: set[str]) -> None:
        """Pass queues with ready work on to the listeners of this process."""
        if queues:
            for listener, topic in tuple(self._listeners):
                if topic is None or topic in queues:
                    listener(queues)

    def _begin(self, connection: Connection, begin: str) -> None:
        if self.dialect.name != "sqlite":
            connection.begin(begin)
            return
        deadline = time.monotonic() + WRITER_DEADLINE
        while True:
            try:
                connection.begin(begin)
            except ContentionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.0005, 0.0015))
            else:
                return

    @contextmanager
    def _borrowed(self, own: Connection | None, plans: Plans) -> Iterator[Connection]:
        try:
            if own is not None:
                own.dialect = self.dialect
                yield own
                return
            connection = self._checkout()
            connection.dialect = self.dialect
            connection.plans = plans
            try:
                yield connection
            finally:
                self._checkin(connection)
        except DatabaseError as error:
            self._mark(error)
            raise

    def _mark(self, error: DatabaseError) -> None:
        """Let the error carry which database it came from, unless another one has raised it."""
        if error.origin is None:
            error.origin = self.origin

    def _failed(self, error: DatabaseError, *, of_pool: bool) -> None:
        self._mark(error)
        if of_pool and error.origin == self.origin and not isinstance(error, ContentionError):
            now, streak = time.monotonic(), self.failures()
            self._failures = FailureStreak(now if streak is None else streak.began, now, error)

    def _checkout(self) -> Connection:
        self._after_fork()
        if self._slots is None:
            return self._idle_or_new()
        holder = self._slots.take()
        try:
            connection = self._idle_or_new()
        except BaseException:
            self._slots.give(holder)
            raise
        connection.holder = holder
        return connection

    def _idle_or_new(self) -> Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._new_connection()

    def _checkin(self, connection: Connection) -> None:
        """Back into the pool first, and only then free its slot: there are never more than `most`."""
        try:
            self._keep_or_close(connection)
        finally:
            if self._slots is not None and (holder := connection.holder) is not None:
                connection.holder = None
                self._slots.give(holder)

    def _keep_or_close(self, connection: Connection) -> None:
        if connection.broken:
            # Its siblings were opened before the same outage; better to find out now than one by one.
            connection.close()
            self.close()
            return
        with self._lock:
            # One that an interrupt left in the middle of something is not lent to the next.
            if len(self._idle) < MOST_IDLE and not connection.in_transaction():
                self._idle.append(connection)
                return
        connection.close()

    def _before_fork(self) -> None:
        """Wait until no thread writes to SQLite: a child that inherits half a transaction would keep the file locked."""
        if self.dialect.name == "sqlite" and not self._writers.mine:
            with suppress(ContentionError):
                self._writers.take(urgent=True)
                self._held_for_fork = True

    def _after_fork_in_parent(self) -> None:
        if self._held_for_fork:
            self._held_for_fork = False
            self._writers.give()

    def _after_fork(self) -> None:
        """In a child: neither speak on the parent's sockets nor close them; its listeners are the parent's threads."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._inherited = self._idle  # kept, so that no finaliser says goodbye on the parent's behalf
            self._idle = []
            self._lock = threading.Lock()
            self._opened = weakref.WeakSet()
            self._failures = None
            self._writers = WriterQueue()
            self._slots = None if self._most is None else ConnectionSlots(self._most)
            self._held_for_fork = False
            self._listeners = []


def persist(
    database: Database,
    work: Callable[[Transaction], T],
    plans: Plans = Plans.ENGINE,
    *,
    tries: int = 10,
    urgent: bool = False,
    on: Connection | None = None,
) -> T:
    """Run `work` of the engine in a transaction, and the whole of it again after a deadlock or lock timeout."""
    for attempt in range(1, tries + 1):
        try:
            with database.transaction(plans, urgent=urgent, on=on) as tx:
                return work(tx)
        except ContentionError:
            if attempt == tries:
                raise
            time.sleep(random.uniform(0, 0.01 * 2 ** min(attempt, 6)))
    raise StepfastError("unreachable")


SLOT_PATIENCE: Final = 30.0  # seconds


class SlotHolder:
    """One thread, and how many connections it has not given back."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = 0


class ConnectionSlots:
    """How many connections of the pool may be in use at once; a thread that finds all of them taken waits.

    A thread that holds one already gets a second without waiting: it would wait for itself, or for others that do the
    same. (Coroutines share their thread, and so this exception.) A connection may come back from another thread than
    the one that took it, as the dependencies of a web framework do, so the holder is remembered with it.
    """

    def __init__(self, most: int, patience: float = SLOT_PATIENCE) -> None:
        self._most = most
        self._patience = patience
        self._free = threading.Semaphore(most)
        self._lock = threading.Lock()  # guards what holders hold
        self._here = threading.local()

    def take(self) -> SlotHolder:
        """Wait for a slot; its holder must be named when it is given back."""
        holder: SlotHolder | None = getattr(self._here, "holder", None)
        if holder is None:
            holder = self._here.holder = SlotHolder()
        with self._lock:
            holder.held += 1
            first = holder.held == 1
        if first and not self._free.acquire(timeout=self._patience):
            with self._lock:
                holder.held -= 1
            raise UnreachableError(
                f"all {self._most} connections of this process were in use for {self._patience:g} s: end transactions "
                "sooner, or raise STEPFAST_MAX_CONNECTIONS"
            )
        return holder

    def give(self, holder: SlotHolder) -> None:
        with self._lock:
            holder.held -= 1
            last = holder.held == 0
        if last:
            self._free.release()


WRITER_DEADLINE: Final = 20.0  # seconds to wait for SQLite's one writer


class WriterTicket:
    """A thread's place in the queue of writers. Most are first at once: an event for each would cost a step 5 µs."""

    __slots__ = ("come", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.come: threading.Event | None = None  # made for a thread that has to wait


class WriterQueue:
    """Which thread of this process may write to SQLite next: urgent ones first, then in the order of asking.

    A plain lock may be taken again at once by the thread that gave it, and starve the others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: WriterTicket | None = None
        self._urgent: deque[WriterTicket] = deque()
        self._others: deque[WriterTicket] = deque()

    @property
    def mine(self) -> bool:
        """Whether this very thread has the turn."""
        holder = self._holder
        return holder is not None and holder.thread == threading.get_ident()

    def take(self, *, urgent: bool) -> None:
        """Wait for the turn; refused to a thread that has it already, which would wait for itself."""
        if self.mine:
            raise ConfigurationError(
                "you are inside a transaction of this thread; pass tx=tx to join it (and never await inside one): "
                "SQLite has one writer at a time, and this one would wait for itself"
            )
        ticket = WriterTicket()
        try:
            with self._lock:
                if self._holder is None:
                    self._holder = ticket
                    return
                come = ticket.come = threading.Event()
                (self._urgent if urgent else self._others).append(ticket)
            in_time = come.wait(WRITER_DEADLINE)
        except BaseException:  # of a signal: the turn must not be handed to a thread that has left
            self._leave(ticket)
            raise
        if not in_time:
            self._leave(ticket)
            raise ContentionError("another thread of this process has been writing for too long")

    def give(self) -> None:
        with self._lock:
            self._pass_on()

    def _leave(self, ticket: WriterTicket) -> None:
        with self._lock:
            if self._holder is ticket:
                self._pass_on()
            for line in (self._urgent, self._others):
                if ticket in line:
                    line.remove(ticket)

    def _pass_on(self) -> None:
        line = self._urgent or self._others
        self._holder = line.popleft() if line else None
        if self._holder is not None and self._holder.come is not None:
            self._holder.come.set()


_databases: Final[weakref.WeakSet[Database]] = weakref.WeakSet()  # those that a fork concerns


def _each(act: Callable[[Database], None]) -> Callable[[], None]:
    def act_on_all() -> None:
        for database in list(_databases):
            act(database)

    return act_on_all


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_each(Database._before_fork),  # noqa: SLF001 - ours
        after_in_parent=_each(Database._after_fork_in_parent),  # noqa: SLF001
        after_in_child=_each(Database._after_fork),  # noqa: SLF001
    )


# A second URL may lead to another database, and a pooler swallows LISTEN without a word: that a process hears its own
# NOTIFY is the only proof.

GREETING: Final = "!hello:"  # begins a payload that is no queue, and concerns only its sender
GREETING_SECONDS: Final = 5.0


def greet(database: Database) -> str:
    """NOTIFY all listeners of a word that only this process waits for; returns the word."""
    word = GREETING + os.urandom(8).hex()

    def say(tx: Transaction) -> int:
        return tx.run(NOTIFY, queue=word)

    persist(database, say)
    return word


def hears_itself(database: Database, seconds: float = GREETING_SECONDS) -> bool:
    """Whether a worker on this database would be woken."""
    with closing(database.connect_to_listen()) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        word = greet(database)
        return any(notice.payload == word for notice in connection.raw.notifies(timeout=seconds))
