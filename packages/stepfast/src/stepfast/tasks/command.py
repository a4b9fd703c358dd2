"""`stepfast tasks work`: one task and exit, or tasks from a queue until a signal. The environment decides.

`TASK_DATA` in the environment means single-task mode (`single_task.py`). In polling mode the process is a worker for the
tasks of one client, and the intake that feeds it; with `--once` it ends after one message.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.config import WorkerSettings, default_worker_id, worker_settings
from stepfast.encryption import keyring
from stepfast.errors import ConfigurationError, DatabaseError
from stepfast.process_identity import process_age
from stepfast.tasks.enqueued_jobs import EVERY_QUEUE, queues_of_jobs, report_left_jobs, wait_for_jobs
from stepfast.tasks.envelope import REFUSED, TASK_DATA, queue_of, types
from stepfast.tasks.intake import Intake, IntakeSettings
from stepfast.telemetry import happened
from stepfast.telemetry.logs import configure
from stepfast.telemetry.traces import export_spans, flush_spans, span_exporters
from stepfast.worker.guardian_link import introduction, link_of_this_process
from stepfast.worker.process import (
    RECYCLE,
    Exposure,
    exit_code,
    exit_stuck,
    load,
    on_stop_signal,
    patience,
    say,
    serve,
    worker_command,
)
from stepfast.worker.relay import Relay
from stepfast.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.app_protocol import WholeApp
    from stepfast.tasks.settings import TaskSettings
    from stepfast.transports.contract import Transport


AUTO: Final = "auto"  # WORKER_QUEUES: those of the app's own jobs
TASKS_ONLY: Final = "none"
SENDING: Final = timedelta(seconds=10)  # for webhooks about tasks that ended last, when the worker stops


def run_tasks(target: str, options: dict[str, Any], say: Callable[[str], None], *, once: bool = False) -> int:
    """Work for the app at `target`; returns the exit code."""
    from stepfast.tasks.settings import DATABASE, task_settings

    settings = task_settings()  # first: a wrong log level is one problem among others
    configure(str(options.get("log_format") or "auto"), str(options.get("log_level") or "info"))
    if TASK_DATA in os.environ and settings.task_data is None:
        raise ConfigurationError(
            "TASK_DATA is set and empty: whoever started this meant one task and handed over none. Put the task in it "
            "as JSON, or unset it to take tasks from a queue"
        )
    if (url := settings.chosen_database) is not None:
        os.environ[DATABASE] = url  # read when the module makes its Stepfast()
    app: WholeApp = load(target)
    if not types(app.kinds):
        raise ConfigurationError(f"{target} knows no tasks; register a handler with @app.task('its type')")
    if app.kinds.get(REFUSED).encrypted:
        keyring().require()  # without the key every message would be refused
    span_exporters()  # raises now, and not in a process that works
    happened("tasks.started", client=settings.client_id, types=", ".join(types(app.kinds)))
    if settings.task_data is not None:
        return _single(app, settings, say)
    return _polling(app, target, settings, options, once=once)


def _single(app: WholeApp, settings: TaskSettings, say: Callable[[str], None]) -> int:
    from stepfast.tasks.single_task import SingleTask, run_single_task

    assert settings.task_data is not None  # noqa: S101 - asked before
    task = SingleTask(
        text=settings.task_data.get_secret_value(),
        client=settings.client_id,
        timeout=settings.task_timeout,
        budget=settings.webhook_budget,
        grace=settings.grace,
    )
    return run_single_task(app, task, say)


def _polling(
    app: WholeApp, target: str, settings: TaskSettings, options: dict[str, Any], *, once: bool
) -> int:
    from stepfast.tasks.intake import Acknowledge
    from stepfast.transports.open import open_transport, transport_settings

    private: Acknowledge = "ended" if app.unchecked_database.dialect.name == "sqlite" else "stored"
    chosen: Acknowledge = private if settings.acknowledge == "auto" else settings.acknowledge
    intake = IntakeSettings(
        client=settings.client_id,
        acknowledge="ended" if once else chosen,
        concurrency=1 if once else settings.concurrency,
        hold=settings.hold,
        poll=settings.poll,
        once=once,
    )
    export_spans()  # after the app, which may have its own way
    transport = open_transport(settings.chosen_transport, transport_settings(database=app.unchecked_database))
    jobs = _queues_of_jobs(app, settings.queues, once=once)
    process = PollingProcess(app, target, transport, intake, grace=settings.grace, jobs=jobs, options=options)
    return process.run()


def _queues_of_jobs(app: WholeApp, wanted: str, *, once: bool) -> tuple[str, ...]:
    """The queues whose jobs are worked on beside tasks: what handlers of tasks enqueue has to be run by somebody."""
    if wanted == TASKS_ONLY:
        return ()
    if wanted == EVERY_QUEUE:
        raise ConfigurationError(
            "WORKER_QUEUES: name the queues; '*' would include the tasks of other clients"
        )
    if wanted != AUTO:
        return worker_settings(queues=wanted).queues
    return () if once else tuple(queues_of_jobs(app.kinds))


class PollingProcess:
    """A process that takes tasks of one client and works on them, and on jobs of some queues, until a signal."""

    def __init__(
        self,
        app: WholeApp,
        target: str,
        transport: Transport,
        settings: IntakeSettings,
        *,
        grace: timedelta,
        jobs: tuple[str, ...],
        options: dict[str, Any],
    ) -> None:
        self._app = app
        self._database = app.unchecked_database
        self._once = settings.once
        self._held = settings.acknowledge == "ended"
        self._grace = grace
        self._asked = threading.Event()  # to stop
        self._private = self._database.dialect.name == "sqlite"  # no other worker has this file
        queues = () if self._private else (queue_of(settings.client), *jobs)
        worker_settings = WorkerSettings(
            queues=queues, concurrency=settings.concurrency, grace=grace, worker_id=default_worker_id()
        )
        self._guardian = link_of_this_process()
        self._exposure = Exposure(options, app, self._guardian)
        self._worker = Worker(
            self._database,
            app.kinds,
            worker_settings,
            guardian=self._guardian,
            stuck=exit_stuck,
            notifications=app.notifications,
            declared=app.declared,
            feeds=app.feeds if self._private or jobs else None,
        )
        self._introduce(target, worker_settings, options)
        self._intake = Intake(app, transport, settings, ended=self._intake_ended)

    def _introduce(self, target: str, settings: WorkerSettings, options: dict[str, Any]) -> None:
        """Tell the guardian who we are, and how it starts other processes of this command."""
        others = {"queues": ",".join(settings.queues), "grace": settings.grace.total_seconds()} | options
        log = {"format": options.get("log_format") or "auto", "level": options.get("log_level") or "info"}
        self._guardian.introduce(
            introduction(
                settings,
                self._database.url,
                self._app.kinds,
                log,
                again=[sys.executable, *sys.orig_argv[1:]],
                suspects={
                    kind: worker_command(target, others, suspects=kind) for kind in ("together", "alone")
                },
                most_alone=settings.concurrency,
                patience=patience(process_age()),
            )
        )

    def run(self) -> int:
        """Take tasks and work until asked to stop; returns the exit code."""
        on_stop_signal(self.stop)
        self._exposure.start(self._worker)
        self._intake.start()
        return serve(self._worker, self._leave)

    def stop(self) -> None:
        """Take no more, and finish; the second time, at once."""
        again = self._asked.is_set()
        self._asked.set()
        self._intake.stop_taking()
        self._worker.ask_to_stop(at_once=again)

    def _intake_ended(self) -> None:
        if self._once and self._private and not self._asked.is_set():
            threading.Thread(target=self._finish_jobs, name="stepfast-jobs", daemon=True).start()
        else:
            self._stop_worker()

    def _finish_jobs(self) -> None:
        """Run the jobs that the one task enqueued, since no other worker would."""
        if (task := self._intake.last_task) is not None:
            over = lambda: self._asked.is_set() or self._worker.needs_recycling  # noqa: E731 - a question
            wait_for_jobs(self._database, task.job_id, stopped=over)
        self._stop_worker()

    def _stop_worker(self) -> None:
        if not self._asked.is_set():
            self._asked.set()
            self._worker.ask_to_stop()

    def _leave(self) -> int:
        """After the worker has stopped: the exit code, unless the program starts again."""
        worn = self._worker.needs_recycling and not self._asked.is_set()
        if worn and self._once and not self._is_over():
            flush_spans()
            logging.shutdown()
            os._exit(1)  # nothing is given back: to the broker this is the death of a worker, which it counts
        self._asked.set()
        self._leave_intake()
        if self._once and (task := self._intake.last_task) is not None:
            with suppress(DatabaseError):  # then nothing can be said about them
                report_left_jobs(self._database, task.task_id, task.job_id, say)
        self._exposure.stop()
        flush_spans()
        self._guardian.leave()
        if worn and not self._once:  # one message was wanted; a new process would take another
            happened("worker.recycled")
            logging.shutdown()
            if self._guardian.is_child:
                os._exit(RECYCLE)
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - ourselves
        return exit_code(self._worker) or int(self._intake.failed)

    def _is_over(self) -> bool:
        """Whether the one task has ended although a handler cannot be stopped, and its webhook was sent in time."""
        with _relaying(self._app):
            return self._asked.wait(min(SENDING, self._grace).total_seconds())

    def _leave_intake(self) -> None:
        """Stop the intake. Webhooks on their way get a moment: then their tasks need not be done again elsewhere."""
        if not self._held or not self._app.notifications.outbox_relay:
            self._intake.leave(timedelta(0))
            return
        with _relaying(self._app):
            self._intake.leave(min(SENDING, self._grace))


@contextmanager
def _relaying(app: WholeApp) -> Iterator[None]:
    """Send webhooks meanwhile: the worker has stopped doing so."""
    if not app.notifications.outbox_relay:
        yield
        return
    relay = Relay(app.unchecked_database, app.notifications, feeds=app.feeds)
    relay.start()
    try:
        yield
    finally:
        relay.stop()
