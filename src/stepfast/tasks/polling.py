"""Polling mode: a worker for the tasks of one client, and the intake that feeds it."""

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
from stepfast.tasks.intake import Intake, IntakeSettings
from stepfast.tasks.names import queue_of
from stepfast.telemetry import happened
from stepfast.worker.command import STUCK
from stepfast.worker.exposure import Exposure
from stepfast.worker.lone import LoneProcesses
from stepfast.worker.loop import Worker
from stepfast.worker.relay import Relay
from stepfast.worker.signals import on_stop_signal

if TYPE_CHECKING:
    from stepfast.tasks.app import App
    from stepfast.transports.contract import Transport

TELLING: Final = timedelta(seconds=10)  # for webhooks of what ended last, when the worker stops


def run_polling(
    app: App,
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
    queues = () if private else (queue_of(settings.client),)  # nobody else does what is in a file of our own
    worker_settings = WorkerSettings(
        queues=queues, concurrency=settings.concurrency, grace=grace, worker_id=default_worker_id()
    )
    children = {"queues": ",".join(queues), "grace": grace.total_seconds()} | given
    exposure = Exposure(given, lambda: app.database, lambda: worker.status().problems)
    worker = Worker(
        app.database,
        app.kinds,
        worker_settings,
        suspects=LoneProcesses(target, children, settings.concurrency, exposure.metrics),
        stuck=lambda: os._exit(STUCK),
        notifications=app.notifications,
        declared=app.declared,
    )
    asked = threading.Event()

    def stop() -> None:
        again = asked.is_set()
        asked.set()
        intake.stop_taking()
        worker.ask_to_stop(at_once=again)

    def nobody_takes_more() -> None:
        if not asked.is_set():
            asked.set()
            worker.ask_to_stop()

    intake = Intake(app, transport, settings, ended=nobody_takes_more)
    on_stop_signal(stop)
    exposure.start()
    intake.start()
    asyncio.run(worker.serve())
    worn = worker.needs_recycling and not asked.is_set()
    if worn and settings.once and not _is_over(app, asked, grace):
        logging.shutdown()
        os._exit(1)  # nothing is given back: to the broker this is the death of a worker, and those it counts
    asked.set()
    _leave(app, intake, grace, held=settings.acknowledge == "ended")
    exposure.stop()
    if worn and not settings.once:  # who wanted one message has had it; a new process would take another
        happened("worker.recycled")
        logging.shutdown()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - ourselves
    status = worker.status()
    if status.lost_slots or status.active_jobs:
        logging.shutdown()
        os._exit(int(worker.failed or intake.failed))  # such handlers would keep the process from ending
    return int(worker.failed or intake.failed)


def _is_over(app: App, over: threading.Event, grace: timedelta) -> bool:
    """Whether the one task has ended with the handler that cannot be stopped, and whoever asked was told in time."""
    with _relaying(app):
        return over.wait(min(TELLING, grace).total_seconds())


def _leave(app: App, intake: Intake, grace: timedelta, *, held: bool) -> None:
    """Whose message waits to be told of gets a moment: then it need not be done again elsewhere."""
    if not held or not app.notifications.outbox_relay:
        intake.leave(timedelta(0))
        return
    with _relaying(app):
        intake.leave(min(TELLING, grace))


@contextmanager
def _relaying(app: App) -> Iterator[None]:
    """Send webhooks meanwhile: the worker does so no more."""
    if not app.notifications.outbox_relay:
        yield
        return
    relay = Relay(app.database, app.notifications)
    relay.start()
    try:
        yield
    finally:
        relay.stop()
