"""Tasks from a queue: each message becomes a job by its task id, and a webhook tells its sender of the end.

Handlers are registered by `@app.task("its type")`, and `stepfast tasks work` runs them. The names below are public: to
send a task, to receive the webhook about its end, and to run the intake inside a program of your own. They are imported
when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepfast.tasks.envelope import TaskRefusedError
    from stepfast.tasks.intake import Intake, IntakeSettings
    from stepfast.tasks.receiver import ReceivedEnd, TaskReceiver, latest_end
    from stepfast.tasks.send import SentTask, send_task

__all__ = [
    "Intake",
    "IntakeSettings",
    "ReceivedEnd",
    "SentTask",
    "TaskReceiver",
    "TaskRefusedError",
    "latest_end",
    "send_task",
]

_MODULES = {
    "Intake": "intake",
    "IntakeSettings": "intake",
    "ReceivedEnd": "receiver",
    "SentTask": "send",
    "TaskReceiver": "receiver",
    "TaskRefusedError": "envelope",
    "latest_end": "receiver",
    "send_task": "send",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'stepfast.tasks' has no attribute {name!r}")
    return getattr(import_module(f"stepfast.tasks.{_MODULES[name]}"), name)
