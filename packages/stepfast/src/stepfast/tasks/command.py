"""`stepfast tasks work`: one task and exit, or tasks from a queue until a signal. The environment decides.

In polling mode the process is a worker for the tasks of one client, and the intake that feeds it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.config import WorkerSettings, default_worker_id
from stepfast.encryption import keyring
from stepfast.errors import ConfigurationError
from stepfast.tasks.envelope import REFUSED, TASK_DATA, queue_of, types
from stepfast.tasks.intake import Intake, IntakeSettings
from stepfast.telemetry import happened
from stepfast.telemetry.logs import configure
from stepfast.worker.children import SuspectProcesses
from stepfast.worker.process import Exposure, exit_stuck, load, on_stop_signal
from stepfast.worker.relay import Relay
from stepfast.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.app_protocol import WholeApp
    from stepfast.tasks.settings import TaskSettings
    from stepfast.transports.contract import Transport


SENDING: Final = timedelta(seconds=10)  # for webhooks about tasks that ended last, when the worker stops


def run_tasks(target: str, options: dict[str, Any], say: Callable[[str], None], *, once: bool = False) -> int:
    """Work for the app at `target`; returns the exit code."""
    from stepfast.tasks.settings import DATABASE, task_settings

    settings = task_settings()  # first: a wrong log level is one problem among others
    configure(str(options.get("log_format") or "console"), str(options.get("log_level") or "info"))
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

    private: Acknowledge = "ended" if app.database.dialect.name == "sqlite" else "stored"
    chosen: Acknowledge = private if settings.acknowledge == "auto" else settings.acknowledge
    intake = IntakeSettings(
        client=settings.client_id,
        acknowledge="ended" if once else chosen,
        concurrency=1 if once else settings.concurrency,
        hold=settings.hold,
        poll=settings.poll,
        once=once,
    )
    transport = open_transport(settings.chosen_transport, transport_settings(database=app.database))
    return run_polling(app, target, transport, intake, grace=settings.grace, options=options)


def run_polling(
    app: WholeApp,
    target: str,
    transport: Transport,
    settings: IntakeSettings,
    *,
    grace: timedelta = timedelta(seconds=30),
    options: dict[str, Any] | None = None,
) -> int:
    """Take tasks and do them, until a signal; returns the exit code."""
    given = options or {}
    private = app.database.dialect.name == "sqlite"
    queues = () if private else (queue_of(settings.client),)  # no other worker has this file
    worker_settings = WorkerSettings(
        queues=queues, concurrency=settings.concurrency, grace=grace, worker_id=default_worker_id()
    )
    children = {"queues": ",".join(queues), "grace": grace.total_seconds()} | given
    exposure = Exposure(given, app)
    worker = Worker(
        app.database,
        app.kinds,
        worker_settings,
        suspects=SuspectProcesses(target, children, settings.concurrency, exposure.metrics),
        stuck=exit_stuck,
        notifications=app.notifications,
        declared=app.declared,
    )
    asked = threading.Event()

    def stop() -> None:
        again = asked.is_set()
        asked.set()
        intake.stop_taking()
        worker.ask_to_stop(at_once=again)

    def intake_ended() -> None:
        if not asked.is_set():
            asked.set()
            worker.ask_to_stop()

    intake = Intake(app, transport, settings, ended=intake_ended)
    on_stop_signal(stop)
    exposure.start(worker)
    intake.start()
    asyncio.run(worker.serve())
    worn = worker.needs_recycling and not asked.is_set()
    if worn and settings.once and not _is_over(app, asked, grace):
        logging.shutdown()
        os._exit(1)  # nothing is given back: to the broker this is the death of a worker, which it counts
    asked.set()
    _leave(app, intake, grace, held=settings.acknowledge == "ended")
    exposure.stop()
    if worn and not settings.once:  # one message was wanted; a new process would take another
        happened("worker.recycled")
        logging.shutdown()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - ourselves
    status = worker.status()
    if status.lost_slots or status.active_jobs:
        logging.shutdown()
        os._exit(int(worker.failed or intake.failed))  # such handlers would keep the process from ending
    return int(worker.failed or intake.failed)


def _is_over(app: WholeApp, over: threading.Event, grace: timedelta) -> bool:
    """Whether the one task has ended although a handler cannot be stopped, and its webhook was sent in time."""
    with _relaying(app):
        return over.wait(min(SENDING, grace).total_seconds())


def _leave(app: WholeApp, intake: Intake, grace: timedelta, *, held: bool) -> None:
    """Stop the intake. Webhooks on their way get a moment: then their tasks need not be done again elsewhere."""
    if not held or not app.notifications.outbox_relay:
        intake.leave(timedelta(0))
        return
    with _relaying(app):
        intake.leave(min(SENDING, grace))


@contextmanager
def _relaying(app: WholeApp) -> Iterator[None]:
    """Send webhooks meanwhile: the worker has stopped doing so."""
    if not app.notifications.outbox_relay:
        yield
        return
    relay = Relay(app.database, app.notifications)
    relay.start()
    try:
        yield
    finally:
        relay.stop()
