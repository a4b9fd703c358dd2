"""The program of a process that runs isolated handlers: one step at a time, until its worker needs it no more.

The main thread runs handlers; another one listens to the worker, so that a handler at work can be asked to stop. When
the worker is gone, however it went, the socket ends, and with it this process and whatever its handler has started.
A copy that a handler forks has no part in that: it sends nothing to the worker, and ends where the handler ends.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import logging
import os
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from contextvars import copy_context
from logging.handlers import QueueHandler
from multiprocessing import spawn
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from stepfast.coroutines import HandlerExit
from stepfast.database.database import Database
from stepfast.database.dialects import SQLITE
from stepfast.database.drivers import open_database
from stepfast.errors import ConfigurationError, LeaseLostError, StepCancelled
from stepfast.jobs.commit import effects_of
from stepfast.jobs.dependencies import results_of_parents
from stepfast.jobs.kinds import Kind, Kinds, is_async
from stepfast.jobs.outcome import Continue, Done, Effect, Outcome, Snooze, Wait
from stepfast.jobs.payload import Arguments
from stepfast.jobs.retry import HandlerOutages, describe, judge
from stepfast.jobs.step import Step
from stepfast.telemetry import masking
from stepfast.telemetry.current_step import CURRENT
from stepfast.telemetry.logs import ConsoleFormatter, Lines
from stepfast.telemetry.masking import hide_here, read, visible
from stepfast.worker.isolation.effects import pack_effects
from stepfast.worker.isolation.protocol import (
    PROCESS_NAME,
    Annotated,
    Answered,
    Broken,
    DoubtStep,
    Failed,
    HaltStep,
    Logged,
    Ready,
    Reported,
    RunStep,
    Setup,
    receive_order,
    send_message,
    sent_answer,
    sent_verdict,
)
from stepfast.worker.memory import held, limited_memory
from stepfast.worker.running import DONE, OUTCOMES, hidden_arguments, logged_error

if TYPE_CHECKING:
    from stepfast.app_protocol import WholeApp
    from stepfast.jobs.step import Halt, Report
    from stepfast.telemetry import Fact
    from stepfast.worker.isolation.protocol import Message


LEAVE: Final = 5.0  # seconds that threads and exit hooks get once the worker is gone
_PR_SET_PDEATHSIG: Final = 1
_STOPS: Final = (signal.SIGTERM, signal.SIGINT)
_FORKING: Final = threading.local()  # the signal mask of a thread that forks
_WORTH_LESS: Final = "500"  # when the system runs out of memory, it should rather end us than the worker


def main() -> int:
    _die_with(int(sys.argv[2]))
    # A stop signal for everybody, as some systems send it, is the worker's business: the worker asks us to stop.
    for number in _STOPS:
        signal.signal(number, lambda *_: None)
    faulthandler.enable()
    return HandlerProgram(WorkerLink(Connection(int(sys.argv[1])))).serve()


def _die_with(parent: int) -> None:
    """End with the worker, also while a handler keeps the interpreter busy and no thread here could listen."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_WORTH_LESS, encoding="ascii")
    if os.getppid() != parent:
        os._exit(1)  # too late: the worker went before we asked


class WorkerLink:
    """The socket to the worker. Any thread may send."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        with self._sending, suppress(OSError):  # the worker is gone: the thread that listens ends us
            send_message(self._connection, message)

    def receive(self) -> Any:
        return receive_order(self._connection)

    def close_in_copy(self) -> None:
        """A handler has forked: the worker would take what the copy sends for our own words."""
        self._sending = threading.Lock()  # another thread may have held the old one
        self._connection.close()


class HandlerProgram:
    """Hears of steps, runs them one after the other, and answers."""

    def __init__(self, worker: WorkerLink) -> None:
        self._worker = worker
        self._pid = os.getpid()
        self._orders: queue.SimpleQueue[tuple[RunStep, IsolatedStep] | None] = queue.SimpleQueue()
        self._step: IsolatedStep | None = None  # the one that was heard of last
        self._handlers: dict[tuple[str, str], FoundHandler] = {}
        self._database_url: str | None = None
        self._outages = HandlerOutages(0, lambda: True)
        self._runner: asyncio.Runner | None = None
        self._heard = 0  # steps, by the thread that listens ...
        self._done = 0  # ... and by the one that runs them

    def serve(self) -> int:
        """Run steps until the worker is gone; returns the exit code."""
        try:
            self._set_up(self._worker.receive())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the worker wants to know
            self._worker.send(Broken(f"{describe(error)}; the worker itself could import it"))
            return 1
        threading.Thread(target=self._listen, name="stepfast-listen", daemon=True).start()
        self._worker.send(Ready(held()))
        while (order := self._orders.get()) is not None:
            answer = copy_context().run(self._run, *order)
            if os.getpid() != self._pid:
                os._exit(0)  # a copy that came back from its handler: there is no next step for it
            self._worker.send(answer)
            self._done += 1
        if self._runner is not None:
            self._runner.close()
        return 0

    def _set_up(self, setup: Setup) -> None:
        self._database_url = setup.database_url
        self._outages = HandlerOutages(hash(setup.database_url), lambda: True)
        sys.path[:] = setup.path
        spawn.prepare({"name": PROCESS_NAME, **setup.main})
        for name in setup.modules:
            importlib.import_module(name)
        masking.hide(read(rule) for rule in setup.rules)
        forward_logs(setup.levels, self._worker)
        os.register_at_fork(
            before=_hold_signals, after_in_parent=_let_signals_in, after_in_child=self._fall_silent
        )

    def _fall_silent(self) -> None:
        """A handler has forked. The copy can be asked to stop, as a pool asks its copies, from its first moment on.

        A signal has waited for this.
        """
        for number in _STOPS:
            signal.signal(number, signal.SIG_DFL)
        _let_signals_in()
        self._worker.close_in_copy()
        print_logs()

    def _listen(self) -> None:
        while True:
            try:
                message = self._worker.receive()
            except (EOFError, OSError):
                self._leave()
            step = self._step
            match message:
                case RunStep():
                    self._heard += 1
                    self._step = IsolatedStep(message, self._worker, self._database_url)
                    self._orders.put((message, self._step))
                case HaltStep(fence, why) if step is not None and step.fence == fence:
                    step.halt(why)
                case DoubtStep(fence, uncertain) if step is not None and step.fence == fence:
                    step.doubt(uncertain=uncertain)

    def _leave(self) -> NoReturn:
        """The worker is gone. This is a process group of its own: what the handler has started goes as well."""
        if self._heard > self._done:
            os.killpg(0, signal.SIGKILL)
        self._orders.put(None)
        time.sleep(LEAVE)
        os._exit(0)

    def _run(self, order: RunStep, step: IsolatedStep) -> Message:
        CURRENT.set(step)  # what it logs and enqueues belongs to this step
        try:
            kind = self._kind(order, step)
            hide_here(hidden_arguments(order.lease))
            with limited_memory(order.isolation.memory):
                answer = self._call(kind, step, kind.arguments.decode(order.lease.payload))
            return answer_of(answer, step)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is this step's
            if os.getpid() != self._pid:
                _end_copy(error)
            interrupted = isinstance(error, asyncio.CancelledError | LeaseLostError | StepCancelled)
            error = self._outages.excused(error, order.lease.job_id)
            verdict = judge(error, order.retry, order.lease.failures, random.random())
            return Failed(step.fence, sent_verdict(verdict), logged_error(error), interrupted, held())

    def _kind(self, order: RunStep, step: IsolatedStep) -> Kind:
        """The handler as this process knows it; its application works on the worker's database."""
        name = (order.isolation.module, order.isolation.name)
        if name not in self._handlers:
            found = find_handler(order)
            if found.app is not None:
                self._use_database(found.app)
            self._handlers[name] = found
        handler = self._handlers[name]
        if handler.app is not None:
            step.kinds = handler.app.kinds
        return handler.kind

    def _use_database(self, app: WholeApp) -> None:
        url = self._database_url
        before = app.use(Database("", SQLITE, refuse_database) if url is None else open_database(url))
        if before.url == url:
            app.use(before)  # as it was: a module may hold it

    def _call(self, kind: Kind, step: IsolatedStep, arguments: dict[str, Any]) -> Any:
        given = (step,) if kind.arguments.wants_step else ()
        if not kind.is_async:
            return kind.handler(*given, **arguments)
        # One event loop for all steps: clients that handlers keep belong to it.
        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(_awaited(step, kind.handler(*given, **arguments)), context=copy_context())


def _hold_signals() -> None:
    _FORKING.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)


def _let_signals_in() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _FORKING.mask)


def _end_copy(error: BaseException) -> NoReturn:
    """End a forked copy as Python ends a program."""
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        os._exit((error.code or 0) & 0xFF)
    sys.stderr.write(f"{visible(logged_error(error))}\n")
    sys.stderr.flush()
    os._exit(1)


async def _awaited(step: IsolatedStep, coroutine: Any) -> Any:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a runner makes one
    step.task = task
    try:
        step.check()  # after that: a halt is seen here, or interrupts below
        return await coroutine
    except (Exception, asyncio.CancelledError):
        coroutine.close()
        raise
    except BaseException as error:  # it must not reach the event loop, which would end
        raise HandlerExit(f"the handler raised {type(error).__name__}") from error
    finally:
        step.task = None


def refuse_database() -> NoReturn:
    raise ConfigurationError(
        "this isolated handler is not given the database: add STEPFAST_DATABASE_URL to env=[…] of its job"
    )


# The step.


class IsolatedStep(Step):
    """The step as its handler holds it: its reports go to the worker."""

    def __init__(self, order: RunStep, worker: WorkerLink, database_url: str | None) -> None:
        super().__init__(order.lease, self, order.worker_id)
        self.task: asyncio.Task[Any] | None = None  # of a coroutine: a halt cancels it
        self.kinds = Kinds()  # that its application knows
        self._worker = worker
        self._database_url = database_url

    def put(self, report: Report) -> None:
        self._worker.send(Reported(self.fence, report.percent, report.note, report.level, report.message))

    def results_of_parents(self, job_id: str) -> dict[str, Any]:
        if self._database_url is None:
            refuse_database()
        with closing(open_database(self._database_url)) as database, database.looking() as tx:
            return results_of_parents(tx, job_id, self.kinds)

    def annotate(self, **ids: str | float) -> None:
        super().annotate(**ids)
        self._worker.send(Annotated(self.fence, self.annotations))

    def halt(self, why: Halt) -> None:
        super().halt(why)
        if (task := self.task) is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)

    # What a trace needs to know of it.

    @property
    def trace(self) -> str | None:
        return self._lease.trace

    def facts(self) -> dict[str, Fact]:
        return self._lease.facts() | {"worker_id": self.worker_id, **self.annotations}


# The handler, found by its name.


class FoundHandler(NamedTuple):
    kind: Kind
    app: WholeApp | None  # None: it was registered elsewhere; what is found is a plain function


def find_handler(order: RunStep) -> FoundHandler:
    """Import the handler, decorated or not."""
    module, name = order.isolation.module, order.isolation.name
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(getattr(found, "kind", None), Kind):
        return FoundHandler(found.kind, found.app)
    if not callable(found):
        raise ConfigurationError(
            f"isolated job {order.lease.kind!r}: another process finds no {name!r} in {module!r}; "
            "define the handler with `def` at the top of a module that can be imported"
        )
    kind = Kind(
        name=order.lease.kind,
        handler=found,
        arguments=Arguments(order.lease.kind, found),
        queue=order.lease.queue,
        priority=order.lease.priority,
        retry=order.retry,
        timeout=None,
        is_async=is_async(found),
    )
    return FoundHandler(kind, None)


# The answer, packed for the worker.


def answer_of(answer: Any, step: Step) -> Answered:
    """What the worker commits. A plain value is a result; None is just done."""
    ending: Outcome = DONE if answer is None else answer if isinstance(answer, OUTCOMES) else Done(answer)
    effects: list[Effect] = []
    if isinstance(ending, Done | Continue | Snooze | Wait):
        effects = [*step.effects, *effects_of(ending)]
    return Answered(step.fence, sent_answer(ending), pack_effects(effects), held())


# Logs: they go to the worker, whose program knows what to do with them.

_LONGEST: Final = 1_000  # characters of the text that stands for an object
_DEEPEST: Final = 10  # levels of a document
# Without their classes, which the worker may not know: an enumeration may be a text or a number, too.
_PLAIN: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
)


class _ForwardHandler(QueueHandler):
    def __init__(self, worker: WorkerLink) -> None:
        super().__init__(queue.SimpleQueue())
        self._worker = worker

    def enqueue(self, record: logging.LogRecord) -> None:
        self._worker.send(Logged({name: plain_data(value) for name, value in vars(record).items()}))


def forward_logs(levels: dict[str, int], worker: WorkerLink) -> None:
    """Send all log records to the worker, at the levels of its process."""
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()  # those of the worker's process write it; here it would be written twice
            logger.propagate = True
            logger.setLevel(levels.get(name, logging.NOTSET))
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)
    logging.root.handlers[:] = [_ForwardHandler(worker)]


def print_logs() -> None:
    """Write log records to standard error, where no worker listens any more."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ConsoleFormatter(Lines()))  # structlog would have to be imported in every copy
    logging.root.handlers[:] = [handler]


def plain_data(value: Any, depth: int = 0) -> Any:
    """The value as data that any process can read; of any other object, its repr."""
    if value is None or isinstance(value, bool):
        return value
    for kind, plain in _PLAIN:
        if isinstance(value, kind):
            return plain(value)
    if isinstance(value, dict) and depth < _DEEPEST:
        return {plain_data(name, _DEEPEST): plain_data(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        return [plain_data(item, depth + 1) for item in value]
    try:
        return repr(value)[:_LONGEST]
    except Exception:  # noqa: BLE001 - a repr that fails must not cost the line
        return f"<{type(value).__name__}>"


if __name__ == "__main__":
    sys.exit(main())
