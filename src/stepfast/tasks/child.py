"""The process that does a single task: a worker whose queue holds nothing else, and which ends with it."""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import select
import signal
import struct
import sys
import threading
import time
import traceback
import warnings
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NoReturn

from stepfast.config import WorkerSettings
from stepfast.errors import StepfastError
from stepfast.results.results import Results
from stepfast.steps.kinds import Kinds
from stepfast.worker.command import STUCK
from stepfast.worker.loop import Worker
from stepfast.worker.signals import on_stop_signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.steps.kinds import Kind
    from stepfast.tasks.app import App

WORKED: Final = 0
BROKE: Final = 1
SOONEST: Final = timedelta(milliseconds=1)
PULSE: Final = 0.25  # seconds between signs of life
_INSTANT: Final = struct.Struct("d")  # monotonic: one clock for all processes of a machine


@dataclass(frozen=True, kw_only=True)
class SingleTask:
    """What to do, and how long it may take."""

    text: str
    client: str
    timeout: timedelta | None = None  # for all tries together
    budget: timedelta = timedelta(minutes=2)  # to tell whoever asked
    grace: timedelta = timedelta(seconds=30)
    crash_limit: int = 3


class LimitedKinds(Kinds):
    """The same kinds, while the time of all tries together runs out."""

    def __init__(self, kinds: Kinds, limit: timedelta, until: float) -> None:
        vars(self).update(vars(kinds))
        self._own = kinds
        self._limit = limit
        self._until = until  # monotonic

    def find(self, name: str) -> Kind | None:
        kind = self._own.find(name)
        left = max(SOONEST, timedelta(seconds=self._until - time.monotonic()))
        if kind is None or (kind.timeout is not None and kind.timeout < left):
            return kind
        return replace(kind, timeout=left, time_limit=self._limit)


class Child:
    """One try of a process. It is forked: it has the application as it was imported."""

    def __init__(self, app: App, task: SingleTask, queue: str, job_id: str, remaining: float | None) -> None:
        self._app = app
        self._task = task
        self._queue = queue
        self._job_id = job_id
        self._remaining = remaining
        self._pid = 0
        self._watched: int | None = None
        self._pipe = -1  # its end tells the child that we are gone
        self._felt = mmap.mmap(-1, _INSTANT.size)  # shared with the child: when it last showed that it lives

    def start(self) -> None:
        """Begin it."""
        theirs, self._pipe = os.pipe()
        self._show_life()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads that the child does not need
            pid = os.fork()
        if not pid:
            os.close(self._pipe)
            self._live(theirs)
        os.close(theirs)
        self._pid = pid
        self._watched = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None

    def signal(self, number: signal.Signals) -> None:
        if self._pid:
            os.kill(self._pid, number)

    def silence(self) -> float:
        """Seconds since it showed that it lives. A call in C that keeps the interpreter keeps it from that, too."""
        return time.monotonic() - float(_INSTANT.unpack_from(self._felt)[0])

    def wait(self, seconds: float) -> bool:
        """Wait for its end, at most so long; whether it has come."""
        if self._watched is not None:
            select.select([self._watched], [], [], seconds)
        else:
            time.sleep(min(seconds, 0.05))
        if not os.waitpid(self._pid, os.WNOHANG)[0]:
            return False
        self._pid = 0
        for descriptor in (self._watched, self._pipe):
            if descriptor is not None:
                os.close(descriptor)
        self._felt.close()
        return True

    def _show_life(self) -> None:
        _INSTANT.pack_into(self._felt, 0, time.monotonic())

    # Everything below is the child's.

    def _live(self, parent: int) -> NoReturn:
        """Its whole life; nothing of the parent's may run after it."""
        code = BROKE
        try:
            code = self._work(parent)
        except StepfastError as error:
            sys.stderr.write(f"stepfast: {error}\n")
        except BaseException:  # noqa: BLE001 - the parent's stack goes on above us
            traceback.print_exc()
        finally:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # a handler that cannot be stopped would keep the interpreter from ending

    def _show_life_for_ever(self) -> None:
        while True:
            self._show_life()
            time.sleep(PULSE)

    def _work(self, parent: int) -> int:
        threading.Thread(target=self._show_life_for_ever, name="stepfast-pulse", daemon=True).start()
        worker = Worker(
            self._app.database,
            self._kinds(),
            WorkerSettings(
                queues=(self._queue,),
                concurrency=1,
                grace=self._task.grace,
                crash_limit=self._task.crash_limit,
            ),
            stuck=lambda: os._exit(STUCK),
            notifications=replace(self._app.notifications, outbox_relay=False),  # the parent's part
            declared=self._app.declared,
        )
        on_stop_signal(worker.ask_to_stop)
        _in_thread(lambda: _until_closed(parent), worker)
        _in_thread(lambda: Results(self._app).wait(self._job_id), worker)
        asyncio.run(worker.serve())
        return BROKE if worker.failed else WORKED

    def _kinds(self) -> Kinds:
        if self._remaining is None or self._task.timeout is None:
            return self._app.kinds
        return LimitedKinds(self._app.kinds, self._task.timeout, time.monotonic() + self._remaining)


def _until_closed(pipe: int) -> None:
    while os.read(pipe, 1):
        pass


def _in_thread(wait: Callable[[], object], worker: Worker) -> None:
    """When the wait is over, the worker may go."""

    def run() -> None:
        try:
            wait()
        finally:
            worker.ask_to_stop()

    threading.Thread(target=run, name="stepfast-single-task", daemon=True).start()
