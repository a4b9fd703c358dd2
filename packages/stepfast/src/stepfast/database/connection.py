"""A connection, and the transaction every write happens in.

A transaction that saw any database error is poisoned: whatever the caller caught, later statements and
the commit raise. (MariaDB forgets the whole transaction on a deadlock and would happily commit the rest;
PostgreSQL answers COMMIT with ROLLBACK and no exception.) To try something, use `savepoint()`.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from stepfast.database.failures import is_driver_error, translate
from stepfast.database.statement import with_parameters
from stepfast.errors import (
    ContentionError,
    DatabaseError,
    PoisonedTransactionError,
    UnknownCommitError,
    UnreachableError,
)

if TYPE_CHECKING:
    from stepfast.database.database import SlotHolder
    from stepfast.database.dialects import Dialect, Plans
    from stepfast.database.statement import Statement


Value = Any  # what a driver takes and gives: str, int, float, bytes, None, and lists for {any_of}
T = TypeVar("T")
Watch = Callable[[str, str], None]


class Cursor(Protocol):
    """What we use of a DB-API cursor."""

    @property
    def rowcount(self) -> int: ...
    @property
    def description(self) -> Any: ...
    def execute(self, sql: str, parameters: Any = ..., /) -> object: ...
    def executemany(self, sql: str, rows: Any, /) -> object: ...
    def fetchall(self) -> Sequence[Sequence[Value]]: ...
    def close(self) -> None: ...


class Connection:
    """One driver connection: begins, commits, and knows whether a COMMIT may be believed."""

    watch: Watch | None = None  # crash tests hook in here: called ("before" | "after", text)
    pooled = False  # whether the session is ours for one transaction at a time only
    holder: SlotHolder | None = None  # the thread whose slot of the pool it takes
    plans: Plans | None = None  # of the transaction that it was last used for; None: outside the engine
    # The statement that has no answer yet, and since when (monotonic): a watchdog reads both from another thread.
    asked: str | None = None
    asked_at = 0.0

    def __init__(
        self,
        raw: Any,
        dialect: Dialect,
        cursor: Cursor | None = None,
        in_transaction: Callable[[], bool] | None = None,
    ) -> None:
        self.raw = raw
        self.dialect = dialect
        self.broken = False
        self._cursor: Cursor = raw.cursor() if cursor is None else cursor
        self._is_server = dialect.name != "sqlite"  # a file answers, or the process hangs as a whole
        self._look = in_transaction  # for drivers that only a lender uses

    def execute(self, text: str, parameters: Mapping[str, Value] | None = None) -> Cursor:
        """Send one statement; a driver's error comes back as one of ours."""
        if self.watch is not None:
            self.watch("before", text)
        if self._is_server:
            self.asked_at = monotonic()
            self.asked = text
        try:
            if parameters is None:
                self._cursor.execute(text)
            else:
                self._cursor.execute(text, parameters)
        except Exception as error:
            raise self._translated(error) from error
        finally:
            self.asked = None
        if self.watch is not None:
            self.watch("after", text)
        return self._cursor

    def execute_many(self, text: str, rows: Sequence[Mapping[str, Value] | Sequence[Value]]) -> int:
        """Send one statement for each row; returns how many rows matched in all."""
        if self.watch is not None:
            self.watch("before", text)
        if self._is_server:
            self.asked_at = monotonic()
            self.asked = text
        try:
            self._cursor.executemany(text, rows)
        except Exception as error:
            raise self._translated(error) from error
        finally:
            self.asked = None
        if self.watch is not None:
            self.watch("after", text)
        return self._cursor.rowcount

    def has_odd_text(self, error: Exception) -> bool:
        """Whether rows cannot be fetched because a text in them is not UTF-8, which only SQLite stores."""
        return self.dialect.name == "sqlite" and "decode to UTF-8" in str(error)

    def fetch_spelled_out(self, text: str, parameters: Mapping[str, Value]) -> Sequence[Sequence[Value]]:
        """The rows of a SELECT, with bytes that are not UTF-8 as `\\xff`."""
        usual, self.raw.text_factory = self.raw.text_factory, _spelled_out
        try:
            return self.execute(text, parameters).fetchall()
        finally:
            self.raw.text_factory = usual

    def begin(self, text: str) -> None:
        self.execute(text)

    def commit(self) -> None:
        """End the transaction, and believe it only on the server's word."""
        if not self.in_transaction():
            raise PoisonedTransactionError(
                "the transaction had already ended before its COMMIT; nothing is certain"
            )
        try:
            self.execute("COMMIT")
        except UnreachableError as error:
            # SQLite itself says that nothing is written. (A failed fsync may be found done by the next to open the file.)
            if "is full" in str(error) or ("disk I/O" in str(error) and self.in_transaction()):
                raise UnreachableError(f"nothing was committed, make room on the disk: {error}") from error
            raise UnknownCommitError(f"the connection broke during COMMIT: {error}") from error
        tag = getattr(self._cursor, "statusmessage", None)  # PostgreSQL's own word
        if tag is not None and tag != "COMMIT":
            raise PoisonedTransactionError(f"the database answered COMMIT with {tag}; nothing was written")

    def rollback(self) -> None:
        """Undo the transaction; a connection that cannot even do that is marked as broken."""
        try:
            if self.in_transaction():
                self.execute("ROLLBACK")
        except DatabaseError:
            self.broken = True

    def in_transaction(self) -> bool:
        if self._look is not None:
            return self._look()
        if self.dialect.name == "sqlite":
            return bool(self.raw.in_transaction)
        if self.dialect.name == "postgresql":
            return int(self.raw.pgconn.transaction_status) != 0  # 0: idle
        return bool(self.raw.server_status & 1)  # SERVER_STATUS_IN_TRANS

    def close(self) -> None:
        self.broken = True
        try:
            if self.dialect.name == "sqlite":
                self._cursor.close()  # on Python 3.11 one that ran executemany holds the write lock until it is collected
            self.raw.close()
        except Exception as error:  # closing what is already broken
            if not is_driver_error(error):
                raise

    def cut(self) -> None:
        """Break the connection from another thread: the one that waits for an answer gets an `UnreachableError`."""
        with suppress(Exception):  # it was closed meanwhile
            if self.dialect.name == "postgresql":
                with socket.socket(fileno=os.dup(self.raw.fileno())) as copy:
                    copy.shutdown(socket.SHUT_RDWR)
            elif self.dialect.name == "mariadb":
                self.raw._sock.shutdown(socket.SHUT_RDWR)  # noqa: SLF001 - PyMySQL has no name for it

    def _translated(self, error: Exception) -> Exception:
        if not is_driver_error(error) and not isinstance(error, OSError):
            return error  # a programming mistake of the caller: a missing parameter, a wrong type
        failure = UnreachableError(str(error)) if isinstance(error, OSError) else translate(error, self.raw)
        if isinstance(failure, UnreachableError):
            self.broken = True
        return failure


def _spelled_out(text: bytes) -> str:
    return text.decode("utf-8", "backslashreplace")


class Transaction:
    """Runs statements, and never commits: the block that opened it ends it."""

    news: list[Callable[[], None]] | None = None  # what is told once it is committed; most have none
    wrote = False  # whether a statement of the engine has changed rows

    def __init__(self, connection: Connection, *, only_texts: bool = False) -> None:
        self._connection = connection
        self._only_texts = (
            only_texts  # bytes in columns of ours are texts that somebody wrote by hand, as SQLite allows
        )
        self._poison: Exception | None = None
        self._depth = 0
        self.wakes: set[str] = set()  # queues that got ready work: workers are notified once, at the end

    @property
    def dialect(self) -> Dialect:
        return self._connection.dialect

    @property
    def takes_columns(self) -> bool:
        """Whether one statement may carry whole columns (unnest), which is how PostgreSQL does bulk."""
        return self.dialect.name == "postgresql"

    def after_commit(self, act: Callable[[], None]) -> None:
        """Call `act` when the transaction is committed; if it never is, or this savepoint is undone, not at all.

        In a transaction on a connection of the user's, who commits it unseen: at the end of our part.
        """
        if self.news is None:
            self.news = []
        self.news.append(act)

    def committed(self) -> None:
        """Do what was left for after the commit. Called by whoever knows that it took place."""
        news, self.news = self.news, None
        for act in news or ():
            act()

    @property
    def poisoned(self) -> Exception | None:
        return self._poison

    def run(self, statement: Statement, **parameters: Value) -> int:
        """Execute and return how many rows matched: the only answer a write gives.

        A statement that is empty on this dialect was done by the one before it, and answers -1.
        """
        text = statement.render(self.dialect)
        matched = self._send(text, parameters).rowcount if text else -1
        if matched > 0:
            self.wrote = True
        return matched

    def run_many(self, statement: Statement, rows: Sequence[Mapping[str, Value]]) -> int:
        """Execute for each of these rows, and return how many rows matched in all."""
        if len(rows) == 1:  # executemany has its price: PostgreSQL's driver opens a pipeline
            return self.run(statement, **rows[0])
        return self.send_many(statement.render(self.dialect), rows) if rows else 0

    def all(self, statement: Statement, into: Callable[..., T], **parameters: Value) -> list[T]:
        """Execute and build one `into` per row, columns in the order of its fields."""
        return [into(*row) for row in self._fetch(statement.render(self.dialect), parameters)]

    def rows(self, statement: Statement, **parameters: Value) -> Sequence[Sequence[Value]]:
        return self._fetch(statement.render(self.dialect), parameters)

    def first(self, statement: Statement, **parameters: Value) -> Value:
        """The first column of the first row, or None."""
        found = self.rows(statement, **parameters)
        return found[0][0] if found else None

    def execute(self, text: str, parameters: Mapping[str, Value] | None = None) -> int:
        """Run a statement of your own, with `:name` parameters on every database; returns the rows matched."""
        return self._own(text, parameters).rowcount

    def query(self, text: str, parameters: Mapping[str, Value] | None = None) -> list[dict[str, Value]]:
        """Run a SELECT of your own; one dict per row."""
        cursor = self._own(text, parameters)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def send_many(self, text: str, rows: Sequence[Mapping[str, Value] | Sequence[Value]]) -> int:
        """Run a statement for many rows, its parameters spelled as the driver spells them."""
        self._guard()
        try:
            matched = self._connection.execute_many(text, rows)
        except Exception as error:
            self._poison = error
            raise
        self.wrote = True
        return matched

    def execute_many(self, text: str, rows: Sequence[Mapping[str, Value] | Sequence[Value]]) -> None:
        """Run one statement of your own for each row of parameters."""
        refuse_control(text, self.dialect)
        if rows:
            self.send_many(with_parameters(text, self.dialect), list(rows))
            self._require_open()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Try something: if the block raises, its writes are undone and the transaction lives on."""
        self._guard()
        name = f"stepfast_{self._depth}"
        told = len(self.news or ())
        self._depth += 1
        self._connection.execute(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            if self.news is not None:
                del self.news[told:]
            # A deadlock or a lost connection took the whole transaction with it: no savepoint heals that.
            if (
                not isinstance(self._poison, ContentionError | UnreachableError)
                and self._connection.in_transaction()
            ):
                self._connection.execute(f"ROLLBACK TO SAVEPOINT {name}")
                self._poison = None
            raise
        else:
            self._guard()
            self._connection.execute(f"RELEASE SAVEPOINT {name}")
        finally:
            self._depth -= 1

    def _own(self, text: str, parameters: Mapping[str, Value] | None) -> Cursor:
        refuse_control(text, self.dialect)
        cursor = self._send(with_parameters(text, self.dialect), dict(parameters or {}))
        self._require_open()
        return cursor

    def _require_open(self) -> None:
        """Refuse to go on if a statement ended the transaction: a COMMIT may hide in a procedure."""
        if not self._connection.in_transaction():
            self._poison = PoisonedTransactionError(
                "a statement of yours ended the transaction that Stepfast had opened; what came before it is committed"
            )
            raise self._poison

    def _send(self, text: str, parameters: dict[str, Value] | None) -> Cursor:
        self._guard()
        for name, value in (given := parameters or {}).items():
            if isinstance(value, list):
                given[name] = as_parameter(value, self.dialect)
        try:
            return self._connection.execute(text, parameters)
        except Exception as error:
            self._poison = error
            raise

    def _fetch(self, text: str, parameters: dict[str, Value]) -> Sequence[Sequence[Value]]:
        cursor = self._send(text, parameters)
        try:
            rows = cursor.fetchall()
        except Exception as error:
            if not self._connection.has_odd_text(error):
                raise
            rows = self._connection.fetch_spelled_out(text, parameters)
        if self._only_texts:
            return [[_spelled_out(it) if isinstance(it, bytes) else it for it in row] for row in rows]
        return rows

    def _guard(self) -> None:
        if self._poison is None:
            return
        # A deadlock or a lost connection is no failure of the work: the opener runs all of it again.
        again = isinstance(self._poison, ContentionError | UnreachableError)
        refusal = type(self._poison) if again else PoisonedTransactionError
        raise refusal(
            f"an earlier statement of this transaction failed ({self._poison}); it can only roll back. "
            "Wrap what may fail in tx.savepoint()"
        ) from self._poison


# A list as one parameter: each database has its own way to take it.

BORDER: Final = "\x1f"


def as_parameter(values: list[Any], dialect: Dialect) -> Any:
    """A list as `{any_of}` and unnest read it."""
    match dialect.name:
        case "sqlite":
            return as_document(values)
        case "postgresql":
            return _array(values)
        case _:
            return tuple(values) if values else (None,)  # `IN ()` is no SQL; nothing equals NULL


def as_document(value: object) -> str:
    """Rows as one parameter, for json_each and JSON_TABLE; a tenth of what json.dumps takes."""
    return msgspec.json.encode(value).decode()


def _array(values: list[Any]) -> str:
    """PostgreSQL's text form of an array; psycopg's own takes four times as long for a bulk enqueue."""
    if values and all(type(value) is str for value in values):
        # All at once: a control character stands for the border, since replacing is cheap and calling is not.
        joined = BORDER.join(values)
        if joined.count(BORDER) == len(values) - 1:
            quoted = joined.replace("\\", "\\\\").replace('"', '\\"').replace(BORDER, '","')
            return '{"' + quoted + '"}'
    return "{" + ",".join([_element(value) for value in values]) + "}"


def _element(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "NULL" if value is None else str(value)


# Words that a user's statement may not say inside a transaction that Stepfast opened and will end.

_LEADING: Final = r"(?:\s|;|--[^\n]*(?:\n|$)|#[^\n]*(?:\n|$)|/\*.*?\*/)*+"  # what may stand before the first word, read in one way only
_TRANSACTION_CONTROL: Final = re.compile(
    _LEADING
    + r"(BEGIN|START\s+TRANSACTION|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|END|ABORT|PREPARE\s+TRANSACTION|SET\s+AUTOCOMMIT)\b",
    re.IGNORECASE | re.DOTALL,
)
_QUOTED: Final = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$(\w*)\$.*?\$\1\$", re.DOTALL)
_COMMITS_BY_ITSELF: Final = re.compile(
    _LEADING + r"(CREATE|ALTER|DROP|TRUNCATE|RENAME|GRANT|REVOKE|LOCK|UNLOCK|ANALYZE|OPTIMIZE)\b",
    re.IGNORECASE | re.DOTALL,
)


def refuse_control(text: str, dialect: Dialect) -> None:
    """Refuse statements that begin or end a transaction, in words or by themselves."""
    statements = _QUOTED.sub("''", text).split(";") if ";" in text else [text]
    if word := next(filter(None, map(_TRANSACTION_CONTROL.match, statements)), None):
        raise DatabaseError(
            f"{word[1].upper()} is not yours to say here: Stepfast opens and ends the transaction"
        )
    if dialect.name == "mariadb" and (word := _COMMITS_BY_ITSELF.match(text)):
        raise DatabaseError(
            f"{word[1].upper()} commits by itself on MariaDB and would break the step's transaction; "
            "run it outside: app.database.connect().execute(…)"
        )
