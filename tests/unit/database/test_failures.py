"""Errors of drivers are translated into ours."""

from __future__ import annotations

import sqlite3

import psycopg
import pymysql
import pytest

from stepfast.database.connection import Connection
from stepfast.database.dialects import MARIADB
from stepfast.database.failures import (
    blames_a_row,
    is_driver_error,
    is_outage_of,
    may_only_read,
    translate,
)
from stepfast.errors import (
    ConstraintError,
    ContentionError,
    DatabaseError,
    UnknownCommitError,
    UnreachableError,
)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (psycopg.errors.DeadlockDetected("x"), ContentionError),
        (psycopg.errors.SerializationFailure("x"), ContentionError),
        (psycopg.errors.LockNotAvailable("x"), ContentionError),
        (psycopg.errors.UniqueViolation("x"), ConstraintError),
        (psycopg.errors.NotNullViolation("x"), ConstraintError),
        (psycopg.errors.CheckViolation("x"), ConstraintError),
        (psycopg.errors.ForeignKeyViolation("x"), ConstraintError),
        (psycopg.errors.AdminShutdown("x"), UnreachableError),
        (psycopg.errors.CrashShutdown("x"), UnreachableError),
        (psycopg.errors.CannotConnectNow("x"), UnreachableError),
        (psycopg.errors.ConnectionFailure("x"), UnreachableError),
        (psycopg.errors.IdleInTransactionSessionTimeout("x"), UnreachableError),
        (psycopg.OperationalError("the connection is lost"), UnreachableError),
        (psycopg.errors.ReadOnlySqlTransaction("cannot execute UPDATE"), UnreachableError),
        (psycopg.errors.UndefinedTable("x"), DatabaseError),
        (psycopg.errors.QueryCanceled("x"), DatabaseError),
        (psycopg.DataError("x"), DatabaseError),
        (pymysql.err.OperationalError(1213, "Deadlock found"), ContentionError),
        (pymysql.err.OperationalError(1205, "Lock wait timeout"), ContentionError),
        (pymysql.err.IntegrityError(1062, "Duplicate entry"), ConstraintError),
        (pymysql.err.OperationalError(4025, "CONSTRAINT failed"), ConstraintError),
        (pymysql.err.OperationalError(2006, "server has gone away"), UnreachableError),
        (pymysql.err.OperationalError(2013, "Lost connection"), UnreachableError),
        (pymysql.err.OperationalError(1053, "Server shutdown in progress"), UnreachableError),
        (pymysql.err.OperationalError(1047, "WSREP has not yet prepared node"), UnreachableError),
        (pymysql.err.OperationalError(1180, "Got error 5 during COMMIT"), UnreachableError),
        (pymysql.err.OperationalError(1290, "running with the --read-only option"), UnreachableError),
        (pymysql.err.OperationalError(1290, "running with the --secure-file-priv option"), DatabaseError),
        (pymysql.err.OperationalError(1836, "Running in read-only mode"), UnreachableError),
        (
            pymysql.err.InternalError(1792, "Cannot execute statement in a READ ONLY transaction"),
            DatabaseError,
        ),
        (pymysql.err.InterfaceError(0, ""), UnreachableError),
        (pymysql.err.ProgrammingError(1146, "no such table"), DatabaseError),
        (sqlite3.IntegrityError("UNIQUE constraint failed"), ConstraintError),
        (sqlite3.OperationalError("database is locked"), ContentionError),
        (sqlite3.OperationalError("database table is locked"), ContentionError),
        (sqlite3.OperationalError("disk I/O error"), UnreachableError),
        (sqlite3.OperationalError("unable to open database file"), UnreachableError),
        (sqlite3.OperationalError("no such table: x"), DatabaseError),
    ],
    ids=lambda it: (
        f"{type(it).__module__}.{type(it).__name__}-{it}" if isinstance(it, Exception) else it.__name__
    ),
)
def test_a_drivers_error_means_one_of_ours(error: Exception, meaning: type[DatabaseError]) -> None:
    assert is_driver_error(error)

    assert type(translate(error)) is meaning


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.ReadOnlySqlTransaction("x"),
        pymysql.err.OperationalError(1290, "running with the --read-only option"),
        pymysql.err.InternalError(1792, "Cannot execute statement in a READ ONLY transaction"),
        pymysql.err.InternalError(1836, "Running in read-only mode"),
        sqlite3.OperationalError("attempt to write a readonly database"),
    ],
    ids=str,
)
def test_a_database_that_takes_no_writes_blames_no_row(error: Exception) -> None:
    ours = translate(error)
    ours.__cause__ = error

    assert may_only_read(ours)
    assert not blames_a_row(ours)


class Session:
    """What a session of PostgreSQL reports about itself."""

    def __init__(self, **reported: str) -> None:
        self.info = self
        self.parameter_status = reported.get


@pytest.mark.parametrize(
    ("session", "meaning"),
    [
        (Session(in_hot_standby="on", default_transaction_read_only="off"), UnreachableError),
        (Session(in_hot_standby="off", default_transaction_read_only="on"), UnreachableError),
        (Session(), UnreachableError),  # before PostgreSQL 14, and behind some poolers
        (Session(in_hot_standby="off", default_transaction_read_only="off"), DatabaseError),
    ],
)
def test_a_transaction_that_is_read_only_on_purpose_is_no_outage(
    session: Session, meaning: type[DatabaseError]
) -> None:
    refused = psycopg.errors.ReadOnlySqlTransaction("cannot execute INSERT in a read-only transaction")

    assert type(translate(refused, session)) is meaning


def outage(origin: int) -> UnreachableError:
    error = UnreachableError("gone")
    error.origin = origin
    return error


def test_an_outage_belongs_to_the_database_that_it_came_from() -> None:
    assert is_outage_of(outage(1), 1)
    assert not is_outage_of(outage(2), 1)
    assert not is_outage_of(UnreachableError("raised by a handler"), 1)
    assert not is_outage_of(ConstraintError("x"), 1)
    assert is_outage_of(ExceptionGroup("of a TaskGroup", [outage(1), outage(1)]), 1)
    assert not is_outage_of(ExceptionGroup("of a TaskGroup", [outage(1), ValueError()]), 1)


def test_the_drivers_words_are_kept() -> None:
    assert "Duplicate entry 'a'" in str(translate(pymysql.err.IntegrityError(1062, "Duplicate entry 'a'")))
    assert "UNIQUE" in str(translate(sqlite3.IntegrityError("UNIQUE constraint failed: ledger.id")))


def test_a_mistake_of_the_caller_is_no_drivers_error() -> None:
    assert not is_driver_error(KeyError("amount"))


class Refusing:
    """A cursor on which one statement meets an error."""

    rowcount = -1
    description = None

    def __init__(self, error: Exception) -> None:
        self._error = error

    def execute(self, *_: object) -> object:
        raise self._error

    executemany = execute

    def fetchall(self) -> list[list[object]]:
        return []

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (1180, UnknownCommitError),  # "Error while appending streaming replication fragment"
        (1047, UnknownCommitError),
        (1290, UnknownCommitError),
        (2013, UnknownCommitError),
        (1213, ContentionError),  # certification failed: nothing is written
    ],
)
def test_what_galera_answers_to_commit(code: int, meaning: type[DatabaseError]) -> None:
    error = pymysql.err.OperationalError(code, "read-only, says a test")
    connection = Connection(None, MARIADB, Refusing(error), lambda: True)

    with pytest.raises(meaning):
        connection.commit()

    assert connection.broken is (meaning is UnknownCommitError)
