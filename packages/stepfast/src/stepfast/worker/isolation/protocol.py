"""The messages between a worker and the processes of its isolated handlers, over a socket that ends with either of them.

A step travels as its lease, its answer as data: results and cursors as the JSON that is stored, failures as the verdict
about them, effects as `pack_effects` makes them. So the worker never meets an object that the handler's process has made.
"""

from __future__ import annotations

import pickle
from datetime import timedelta
from multiprocessing import current_process
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final, NamedTuple, assert_never

import msgspec

from stepfast.clock import duration
from stepfast.config import MAX_PAYLOAD
from stepfast.errors import AnswerError, ConfigurationError, StepfastError
from stepfast.jobs.outcome import Again, Bury, Continue, Done, Reject, Snooze, Stop, Wait
from stepfast.jobs.payload import OURS, Encoded, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.jobs.kinds import Isolation
    from stepfast.jobs.lease import Lease
    from stepfast.jobs.outcome import Ending, Outcome
    from stepfast.jobs.retry import Retry
    from stepfast.jobs.step import Halt


PROCESS_NAME: Final = "stepfast-isolated"
LONGEST_MESSAGE: Final = 2**28  # bytes


# From the worker to the process of a handler.


class Setup(NamedTuple):
    """The first message: where the code is, and what the worker's own process is like."""

    path: Sequence[str]
    main: dict[str, str]  # how to find the module that the worker's program began with
    modules: Sequence[str]  # to be imported before the first step
    database_url: str | None  # None: the handlers are not given the database
    levels: dict[str, int]  # of loggers, the root's under ""
    rules: Sequence[str]  # of what is never shown


class RunStep(NamedTuple):
    """Run this step."""

    lease: Lease
    isolation: Isolation
    retry: Retry
    worker_id: str


class HaltStep(NamedTuple):
    """The step under this fence should stop."""

    fence: int
    why: Halt


class DoubtStep(NamedTuple):
    """Whether another worker may have started the step under this fence."""

    fence: int
    uncertain: bool


# From the process of a handler to the worker: data that are checked when they are read, never pickles. A fence says which
# step a message is about: a thread that a handler left behind may speak for a step that is over.


class _Sent(msgspec.Struct, array_like=True, tag=True):
    """A message, or a part of one: a list that begins with the name of its class."""


class Ready(_Sent):
    """Everything is imported."""

    held: int  # bytes of memory


class Broken(_Sent):
    """The process cannot be set up; the sentence says why."""

    problem: str


class Reported(_Sent):
    """Progress, or a line of the job's log."""

    fence: int
    percent: int | None
    note: str | None
    level: str | None
    message: str | None


class Annotated(_Sent):
    """What the step works on."""

    fence: int
    annotations: dict[str, str | int | float]


class Logged(_Sent):
    """A record of the handler's own logging."""

    record: dict[str, Any]


class SentDone(_Sent):
    result: str | None  # JSON

    def ending(self) -> Ending:
        return Done() if self.result is None else Done(_stored(self.result, "result"))


class SentContinue(_Sent):
    cursor: str  # JSON
    delay: timedelta

    def ending(self) -> Ending:
        return Continue(_stored(self.cursor, "cursor"), delay=self.delay)


class SentSnooze(_Sent):
    delay: timedelta

    def ending(self) -> Ending:
        return Snooze(self.delay)


class SentWait(_Sent):
    event: str | None
    timeout: timedelta
    cursor: str  # JSON

    def ending(self) -> Ending:
        return Wait(self.event, timeout=self.timeout, cursor=_stored(self.cursor, "cursor"))


class SentReject(_Sent):
    reason: str

    def ending(self) -> Ending:
        return Reject(self.reason)


class SentAgain(_Sent):
    delay: timedelta
    error: str
    group: str
    charged: bool
    crashed: bool

    def ending(self) -> Ending:
        return Again(self.delay, self.error, self.group, self.charged, self.crashed)


class SentBury(_Sent):
    error: str
    group: str
    crashed: bool

    def ending(self) -> Ending:
        return Bury(self.error, self.group, self.crashed)


class SentStop(_Sent):
    reason: str

    def ending(self) -> Ending:
        return Stop(self.reason)


class Answered(_Sent):
    """How the step ended, and its effects as `pack_effects` makes them."""

    fence: int
    answer: SentDone | SentContinue | SentSnooze | SentWait | SentReject
    effects: bytes | None
    held: int


class Failed(_Sent):
    """The handler raised; `interrupted` if it did because it was asked to stop."""

    fence: int
    verdict: SentAgain | SentBury | SentStop
    text: str
    interrupted: bool
    held: int


Message = Ready | Broken | Reported | Annotated | Logged | Answered | Failed
_messages: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)


def sent_answer(ending: Outcome) -> SentDone | SentContinue | SentSnooze | SentWait | SentReject:
    """An answer without its effects, its result or cursor as the JSON that is stored."""
    match ending:
        case Done(None):
            return SentDone(None)
        case Done(result):
            return SentDone(encode(result))
        case Continue(cursor):
            return SentContinue(encode(cursor, "cursor"), duration(ending.delay, "delay"))
        case Snooze(delay):
            return SentSnooze(duration(delay, "Snooze"))
        case Wait(event):
            return SentWait(event, duration(ending.timeout, "timeout"), encode(ending.cursor, "cursor"))
        case Reject(reason):
            return SentReject(str(reason))
        case _:
            assert_never(ending)


def sent_verdict(verdict: Again | Bury | Stop) -> SentAgain | SentBury | SentStop:
    """The verdict about a failure."""
    match verdict:
        case Again():
            return SentAgain(verdict.delay, verdict.error, verdict.group, verdict.charged, verdict.crashed)
        case Bury():
            return SentBury(verdict.error, verdict.group, verdict.crashed)
        case Stop():
            return SentStop(verdict.reason)
        case _:
            assert_never(verdict)


def _stored(text: str, what: str) -> Encoded:
    """A result or a cursor that another process has encoded, checked as our own are."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except ValueError as error:  # msgspec's errors are
        raise AnswerError(what, f"of an isolated step is no JSON: {error}") from error
    if len(text.encode()) > MAX_PAYLOAD or text.startswith(OURS.decode()):
        raise AnswerError(what, "of an isolated step is too long, or begins with a name of ours")
    return Encoded(text)


# The process believes its worker; the worker does not believe the process.


def send_order(connection: Connection, order: tuple[Any, ...]) -> None:
    """Send something to the process of a handler. Raises OSError when it is gone."""
    connection.send_bytes(pickle.dumps(order, pickle.HIGHEST_PROTOCOL))


def receive_order(connection: Connection) -> Any:
    """The next order of the worker; raises EOFError or OSError when there will be none."""
    return pickle.loads(connection.recv_bytes())  # noqa: S301 - the worker, which has started this process


def send_message(connection: Connection, message: Message) -> None:
    """Send something to the worker. Raises OSError when it is gone."""
    connection.send_bytes(msgspec.msgpack.encode(message))


def receive_message(connection: Connection) -> Message:
    """The next message of a handler's process; raises EOFError or OSError when there will be none."""
    try:
        return _messages.decode(connection.recv_bytes(LONGEST_MESSAGE))
    except ValueError as error:  # msgspec's errors are
        raise StepfastError(
            f"the process of an isolated step has sent what is no message: {error}"
        ) from error


def refuse_worker_inside() -> None:
    """A worker in a process for isolated handlers would start others of them, and so on."""
    if current_process().name == PROCESS_NAME:
        raise ConfigurationError(
            "a process for isolated handlers imports your module, and must not start a worker there; "
            "put what starts it under `if __name__ == '__main__':`"
        )
