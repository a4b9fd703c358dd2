"""`stepfast tasks work`: one task and out, or one after the other until a signal. The environment decides."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stepfast.errors import ConfigurationError
from stepfast.sealing import keyring
from stepfast.tasks.names import REFUSED, TASK_DATA, types
from stepfast.telemetry import happened
from stepfast.telemetry.logs import configure
from stepfast.worker.command import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.tasks.app import App
    from stepfast.tasks.settings import TaskSettings


def run_tasks(target: str, options: dict[str, Any], say: Callable[[str], None], *, once: bool = False) -> int:
    """Work for the app at `target`; returns the exit code."""
    from stepfast.tasks.problems import DATABASE
    from stepfast.tasks.settings import task_settings

    settings = task_settings()  # first: a wrong log level is one problem among others
    configure(str(options.get("log_format") or "console"), str(options.get("log_level") or "info"))
    if TASK_DATA in os.environ and settings.task_data is None:
        raise ConfigurationError(
            "TASK_DATA is set and empty: whoever started this meant one task and handed over none. Put the task in it "
            "as JSON, or unset it to take tasks from a queue"
        )
    if (url := settings.chosen_database) is not None:
        os.environ[DATABASE] = url  # read when the module makes its Stepfast()
    app: App = load(target)
    if not types(app.kinds):
        raise ConfigurationError(f"{target} knows no tasks; register a handler with @app.task('its type')")
    if app.kinds.get(REFUSED).encrypted:
        keyring().require()  # without the key every message would be refused
    happened("tasks.started", client=settings.client_id, types=", ".join(types(app.kinds)))
    if settings.task_data is not None:
        return _single(app, settings, say)
    return _polling(app, target, settings, options, once=once)


def _single(app: App, settings: TaskSettings, say: Callable[[str], None]) -> int:
    from stepfast.tasks.child import SingleTask
    from stepfast.tasks.single_task import run_single_task

    assert settings.task_data is not None  # noqa: S101 - asked before
    task = SingleTask(
        text=settings.task_data.get_secret_value(),
        client=settings.client_id,
        timeout=settings.task_timeout,
        budget=settings.webhook_budget,
        grace=settings.grace,
    )
    return run_single_task(app, task, say)


def _polling(app: App, target: str, settings: TaskSettings, options: dict[str, Any], *, once: bool) -> int:
    from stepfast.tasks.intake import Acknowledge, IntakeSettings
    from stepfast.tasks.polling import run_polling
    from stepfast.transports.opening import open_transport, transport_settings

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
