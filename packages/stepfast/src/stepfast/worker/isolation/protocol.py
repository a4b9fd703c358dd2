"""The messages between a worker and the processes of its isolated handlers, over a socket that ends with either of them.

A step travels as its lease, its answer as data: results and cursors as the JSON that is stored, failures as the verdict
about them, effects pickled. So the worker never meets an object of the handler's, except effects, which it has to apply.
"""

from __future__ import annotations

import pickle
from multiprocessing import current_process
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stepfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.jobs.kinds import Isolation
    from stepfast.jobs.lease import Lease
    from stepfast.jobs.outcome import Again, Bury, Ending, Stop
    from stepfast.jobs.retry import Retry
    from stepfast.jobs.step import Halt


PROCESS_NAME: Final = "stepfast-isolated"


# From the worker to the process of a handler.


class Setup(NamedTuple):
    """The first message: where the code is, and what the worker's own process is like."""

    path: Sequence[str]
    main: dict[str, str]  # how to find the module that the worker's program began with
    modules: Sequence[str]  # to be imported before the first step
    database_url: str
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


# From the process of a handler to the worker. A fence says which step a message is about: a thread that a handler left
# behind may speak for a step that is over.


class Ready(NamedTuple):
    """Everything is imported."""

    held: int  # bytes of memory


class Broken(NamedTuple):
    """The process cannot be set up; the sentence says why."""

    problem: str


class Reported(NamedTuple):
    """Progress, or a line of the job's log."""

    fence: int
    percent: int | None
    note: str | None
    level: str | None
    message: str | None


class Annotated(NamedTuple):
    """What the step works on."""

    fence: int
    annotations: dict[str, str | int | float]


class Logged(NamedTuple):
    """A record of the handler's own logging."""

    record: dict[str, Any]


class Answered(NamedTuple):
    """How the step ended. Its effects are pickled: a reader may not know their classes."""

    fence: int
    ending: Ending
    effects: bytes | None
    held: int


class Failed(NamedTuple):
    """The handler raised; `interrupted` if it did because it was asked to stop."""

    fence: int
    verdict: Again | Bury | Stop
    text: str
    interrupted: bool
    held: int


def send(connection: Connection, message: tuple[Any, ...]) -> None:
    """Raises OSError when the other process is gone."""
    connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def receive(connection: Connection) -> Any:
    """The next message; raises EOFError or OSError when there will be none."""
    return pickle.loads(connection.recv_bytes())  # noqa: S301 - our own process at the other end


def refuse_worker_inside() -> None:
    """A worker in a process for isolated handlers would start others of them, and so on."""
    if current_process().name == PROCESS_NAME:
        raise ConfigurationError(
            "a process for isolated handlers imports your module, and must not start a worker there; "
            "put what starts it under `if __name__ == '__main__':`"
        )
