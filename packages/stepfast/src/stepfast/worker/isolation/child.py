"""The program of a process that runs isolated handlers: one step at a time, until its worker needs it no more.

The main thread runs handlers; another one listens to the worker, so that a handler at work can be told to stop. When
the worker is gone, however it went, the socket ends, and with it this process and whatever its handler has started.
A copy that a handler forks has no part in that: it speaks to nobody, and ends where the handler ends.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import logging
import os
import pickle
import queue
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, contextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from logging.handlers import QueueHandler
from multiprocessing import spawn
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from stepfast.config import spoken_size
from stepfast.database.drivers import open_database
from stepfast.errors import AnswerError, ConfigurationError, LeaseLostError, MemoryLimitError, StepCancelled
from stepfast.jobs.dependencies import results_of_parents
from stepfast.jobs.kinds import Kind, is_async
from stepfast.jobs.outcome import Continue, Done, Effect, Ending, Snooze, Wait, effects_of
from stepfast.jobs.payload import Arguments, Encoded, encode
from stepfast.jobs.retry import describe, judge
from stepfast.jobs.step import Step
from stepfast.telemetry import masking
from stepfast.telemetry.logs import ConsoleFormatter, Lines
from stepfast.telemetry.masking import read
from stepfast.telemetry.traces import CURRENT
from stepfast.worker.isolation.protocol import (
    PROCESS_NAME,
    Answered,
    Broken,
    Doubted,
    Failed,
    Logged,
    Named,
    Ready,
    Said,
    Stopped,
    Surroundings,
    Task,
    hear,
    say,
)
from stepfast.worker.running import DONE, OUTCOMES, HandlerExit, hide_arguments, logged_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepfast.app_protocol import WholeApp
    from stepfast.jobs.step import Halt, Report
    from stepfast.telemetry import Fact


# How much memory a process holds, and how a step is kept from holding more.
#
# The limit is RLIMIT_DATA: what the process has made writable for itself, which is where a handler's objects live. Of a
# limit of 512 MB, a process with ten threads can use 420 MB for them (each stack counts 8); under RLIMIT_AS it was 12.

_STATM: Final = Path("/proc/self/statm")  # size resident shared text lib data dirty, in pages
_RESIDENT: Final = 1
_DATA: Final = 5


def resident() -> int:
    """Bytes that this process has in memory now; its peak where the system does not tell."""
    return _pages(_RESIDENT)


def held() -> int:
    """Bytes that count towards the limit."""
    return _pages(_DATA)


@contextmanager
def limited(limit: int | None) -> Iterator[None]:
    """Let nothing inside allocate beyond `limit` bytes in this process: it meets a MemoryError, which becomes ours."""
    if limit is None:
        yield
        return
    before = held()
    if before >= limit:
        raise ConfigurationError(
            f"memory={spoken_size(limit)}: the process holds {spoken_size(before)} before its handler begins; allow more"
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    except MemoryError as error:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))  # first: saying what happened takes some, too
        raise MemoryLimitError(spoken_size(limit), spoken_size(held())) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _pages(column: int) -> int:
    try:
        return int(_STATM.read_bytes().split()[column]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


# In the process of an isolated handler: how the handler is found by its name, and how its answer is packed.


class Found(NamedTuple):
    kind: Kind
    app: WholeApp | None  # None: it was registered elsewhere; what is found is a plain function


def handler_kind(task: Task) -> Found:
    """Import the handler, decorated or not."""
    module, name = task.isolation.module, task.isolation.name
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(getattr(found, "kind", None), Kind):
        return Found(found.kind, found.app)
    if not callable(found):
        raise ConfigurationError(
            f"isolated job {task.lease.kind!r}: another process finds no {name!r} in {module!r}; "
            "define the handler with `def` at the top of a module that can be imported"
        )
    arguments = Arguments(task.lease.kind, found)
    return Found(
        Kind(
            name=task.lease.kind,
            handler=found,
            arguments=arguments,
            queue=task.lease.queue,
            priority=task.lease.priority,
            retry=task.retry,
            timeout=None,
            is_async=is_async(found),
        ),
        None,
    )


def answer_of(answer: Any, step: Step) -> Answered:
    """What the worker commits. A plain value is a result; None is just done."""
    ending: Ending = DONE if answer is None else answer if isinstance(answer, OUTCOMES) else Done(answer)
    effects: list[Effect] = []
    if isinstance(ending, Done | Continue | Snooze | Wait):
        effects = [*step.effects, *effects_of(ending)]
        ending = _stored(ending)
    return Answered(step.fence, ending, _packed(effects), held())


def _stored(ending: Done | Continue | Snooze | Wait) -> Ending:
    match ending:
        case Done(None) | Snooze():
            return replace(ending, effects=())
        case Done(result):
            return Done(Encoded(encode(result)))
        case Continue() | Wait():
            return replace(ending, cursor=Encoded(encode(ending.cursor, "cursor")), effects=())


def _packed(effects: list[Effect]) -> bytes | None:
    if not effects:
        return None
    try:
        return pickle.dumps(effects, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise AnswerError(
            "effects",
            f"of an isolated step travel to the worker's process, and one of them cannot ({error}): use step.upsert(…), a "
            "function at the top of a module (functools.partial gives it its values), or a dataclass with apply(tx)",
        ) from error


# In the process of an isolated handler: what it logs goes to the worker, whose program knows what to do with it.

_LONGEST: Final = 1_000  # characters of what stands for an object
_DEEPEST: Final = 10  # levels of a document
# Without their classes, which the worker may not know: an enumeration may be a text or a number, too.
_PLAIN: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
)


class _Forward(QueueHandler):
    def __init__(self, tell: Callable[[tuple[Any, ...]], None]) -> None:
        super().__init__(queue.SimpleQueue())
        self._tell = tell

    def enqueue(self, record: logging.LogRecord) -> None:
        self._tell(Logged({name: data(it) for name, it in vars(record).items()}))


def forward_logs(levels: dict[str, int], tell: Callable[[tuple[Any, ...]], None]) -> None:
    for name, it in logging.root.manager.loggerDict.items():
        if isinstance(it, logging.Logger):
            it.handlers.clear()  # those of the worker's process write it; here it would be written twice
            it.propagate = True
            it.setLevel(levels.get(name, logging.NOTSET))
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)
    logging.root.handlers[:] = [_Forward(tell)]


def print_logs() -> None:
    """Where nobody listens any more."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ConsoleFormatter(Lines()))  # structlog would have to be imported in every copy
    logging.root.handlers[:] = [handler]


def data(value: Any, depth: int = 0) -> Any:
    """A value that any process can read; of an object that is none, what it says of itself."""
    if value is None or isinstance(value, bool):
        return value
    for kind, plain in _PLAIN:
        if isinstance(value, kind):
            return plain(value)
    if isinstance(value, dict) and depth < _DEEPEST:
        return {data(name, _DEEPEST): data(it, depth + 1) for name, it in value.items()}
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        return [data(it, depth + 1) for it in value]
    try:
        return repr(value)[:_LONGEST]
    except Exception:  # noqa: BLE001 - its own: it must not cost the line
        return f"<{type(value).__name__}>"


LEAVE: Final = 5.0  # seconds that threads and exit hooks get once the worker is gone
_PR_SET_PDEATHSIG: Final = 1
_STOPS: Final = (signal.SIGTERM, signal.SIGINT)
_FORKING: Final = threading.local()  # what a thread that forks lets in otherwise
_WORTH_LESS: Final = "500"  # when the system runs out of memory, it should rather end us than the worker


class IsolatedStep(Step):
    """The step as its handler holds it: what it says goes to the worker."""

    interrupt: Callable[[], object] | None = None  # ends what a coroutine waits for

    def __init__(self, task: Task, tell: Callable[[tuple[Any, ...]], None], database_url: str) -> None:
        super().__init__(task.lease, self, task.worker_id)
        self._tell = tell
        self._database_url = database_url

    def put(self, report: Report) -> None:
        self._tell(Said(self.fence, report.percent, report.note, report.level, report.message))

    def results_of_parents(self, job_id: str) -> dict[str, Any]:
        with closing(open_database(self._database_url)) as database, database.looking() as tx:
            return results_of_parents(tx, job_id)

    def annotate(self, **ids: str | float) -> None:
        super().annotate(**ids)
        self._tell(Named(self.fence, self.annotations))

    def halt(self, why: Halt) -> None:
        super().halt(why)
        if self.interrupt is not None:
            self.interrupt()

    # What a trace needs to know of it.

    @property
    def trace(self) -> str | None:
        return self._lease.trace

    def facts(self) -> dict[str, Fact]:
        return self._lease.facts() | {"worker_id": self.worker_id, **self.annotations}


class Child:
    """Hears tasks, runs them one after the other, and answers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pid = os.getpid()
        self._speaking = threading.Lock()
        self._tasks: queue.SimpleQueue[tuple[Task, IsolatedStep] | None] = queue.SimpleQueue()
        self._step: IsolatedStep | None = None  # the one that was heard last
        self._kinds: dict[tuple[str, str], Kind] = {}
        self._database_url = ""
        self._runner: asyncio.Runner | None = None
        self._heard = 0  # tasks, by the thread that listens ...
        self._done = 0  # ... and by the one that runs them

    def serve(self) -> int:
        try:
            self._settle_in(hear(self._connection))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the worker wants to know
            self._tell(Broken(f"{describe(error)}; the worker itself could import it"))
            return 1
        threading.Thread(target=self._listen, name="stepfast-listen", daemon=True).start()
        self._tell(Ready(held()))
        while (found := self._tasks.get()) is not None:
            answer = copy_context().run(self._run, *found)
            if os.getpid() != self._pid:
                os._exit(
                    0
                )  # a copy of this process that came back from its handler: there is no next step for it
            self._tell(answer)
            self._done += 1
        if self._runner is not None:
            self._runner.close()
        return 0

    def _settle_in(self, surroundings: Surroundings) -> None:
        self._database_url = surroundings.database_url
        sys.path[:] = surroundings.path
        spawn.prepare({"name": PROCESS_NAME, **surroundings.main})
        for name in surroundings.modules:
            importlib.import_module(name)
        masking.hide(read(it) for it in surroundings.rules)
        forward_logs(surroundings.levels, self._tell)
        os.register_at_fork(
            before=_hold_signals, after_in_parent=_let_signals_in, after_in_child=self._fall_silent
        )

    def _tell(self, message: tuple[Any, ...]) -> None:
        with self._speaking, suppress(OSError):  # the worker is gone: whoever listens ends us
            say(self._connection, message)

    def _fall_silent(self) -> None:
        """A handler has forked: the copy says nothing to the worker, who would take it for our own word.

        It can be told to stop, as a pool tells its copies, from its first moment on: a signal has waited for this.
        """
        for number in _STOPS:
            signal.signal(number, signal.SIG_DFL)
        _let_signals_in()
        self._speaking = threading.Lock()  # somebody may have held the other one
        self._connection.close()
        print_logs()

    def _listen(self) -> None:
        while True:
            try:
                message = hear(self._connection)
            except (EOFError, OSError):
                self._leave()
            step = self._step
            match message:
                case Task():
                    self._heard += 1
                    self._step = IsolatedStep(message, self._tell, self._database_url)
                    self._tasks.put((message, self._step))
                case Stopped(fence, why) if step is not None and step.fence == fence:
                    step.halt(why)
                case Doubted(fence, uncertain) if step is not None and step.fence == fence:
                    step.doubt(uncertain=uncertain)

    def _leave(self) -> NoReturn:
        """Nobody waits for an answer. A process group of our own: what the handler has started goes as well."""
        if self._heard > self._done:
            os.killpg(0, signal.SIGKILL)
        self._tasks.put(None)
        time.sleep(LEAVE)
        os._exit(0)

    def _run(self, task: Task, step: IsolatedStep) -> tuple[Any, ...]:
        CURRENT.set(step)  # what it logs and enqueues belongs to this step
        try:
            kind = self._kind(task)
            if masking.any_rules():
                hide_arguments(task.lease)
            with limited(task.isolation.memory):
                answer = self._call(kind, step, kind.read(task.lease.payload))
            return answer_of(answer, step)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is this step's
            if os.getpid() != self._pid:
                _end_copy(error)
            interrupted = isinstance(error, asyncio.CancelledError | LeaseLostError | StepCancelled)
            verdict = judge(error, task.retry, task.lease.failures, random.random())
            return Failed(step.fence, verdict, logged_error(error), interrupted, held())

    def _call(self, kind: Kind, step: IsolatedStep, arguments: dict[str, Any]) -> Any:
        given = (step,) if kind.arguments.wants_step else ()
        if not kind.is_async:
            return kind.handler(*given, **arguments)
        self._runner = (
            self._runner or asyncio.Runner()
        )  # one loop for all: clients that handlers keep belong to it
        return self._runner.run(_awaited(step, kind.handler(*given, **arguments)), context=copy_context())

    def _kind(self, task: Task) -> Kind:
        """The handler as this process knows it; its application works on the worker's database."""
        place = (task.isolation.module, task.isolation.name)
        if place not in self._kinds:
            found = handler_kind(task)
            if found.app is not None:
                self._move(found.app)
            self._kinds[place] = found.kind
        return self._kinds[place]

    def _move(self, app: WholeApp) -> None:
        before = app.use(open_database(self._database_url))
        if before.url == self._database_url:
            app.use(before)  # as it was: somebody may hold it


def _hold_signals() -> None:
    _FORKING.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)


def _let_signals_in() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _FORKING.mask)


def _end_copy(error: BaseException) -> NoReturn:
    """As Python ends a program."""
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        os._exit((error.code or 0) & 0xFF)
    sys.stderr.write(f"{logged_error(error)}\n")
    sys.stderr.flush()
    os._exit(1)


async def _awaited(step: IsolatedStep, coroutine: Any) -> Any:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 - a runner makes one
    step.interrupt = lambda: loop.call_soon_threadsafe(task.cancel)
    try:
        step.check()  # after that: whoever halts it is seen here, or interrupts below
        return await coroutine
    except (Exception, asyncio.CancelledError):
        coroutine.close()
        raise
    except BaseException as error:  # it must not reach the event loop, which would end
        raise HandlerExit(f"the handler raised {type(error).__name__}") from error
    finally:
        step.interrupt = None


def _die_with(parent: int) -> None:
    """Also while a handler keeps the interpreter busy and nobody here could listen."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_WORTH_LESS, encoding="ascii")
    if os.getppid() != parent:
        os._exit(1)  # too late: it went before we asked


def main() -> int:
    _die_with(int(sys.argv[2]))
    # A stop signal for everybody, as some systems send it, is the worker's business: it tells us.
    for number in _STOPS:
        signal.signal(number, lambda *_: None)
    faulthandler.enable()
    return Child(Connection(int(sys.argv[1]))).serve()


if __name__ == "__main__":
    sys.exit(main())
