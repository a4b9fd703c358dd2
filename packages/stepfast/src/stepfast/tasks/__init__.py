"""Tasks from queues of others: each becomes a job by its id, and whoever sent it is told of its end.

Public are the names below; each is loaded when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from stepfast.tasks.intake import Intake, IntakeSettings
    from stepfast.tasks.receiver import ReceivedEnd, TaskReceiver

__all__ = ["Intake", "IntakeSettings", "ReceivedEnd", "TaskReceiver"]

_MODULES: Final = {
    "stepfast.tasks.intake": ("Intake", "IntakeSettings"),
    "stepfast.tasks.receiver": ("ReceivedEnd", "TaskReceiver"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'stepfast.tasks' has no attribute {name!r}")
