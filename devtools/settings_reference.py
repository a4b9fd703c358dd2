"""The settings of a worker as a table, from `config.WorkerSettings`.

`docs/reference/settings.md` includes it through cog.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields
from datetime import timedelta
from typing import Any

from stepfast.config import WorkerSettings
from stepfast.notifications.settings import NotificationSettings, variable

_COMMENT = re.compile(r"^    (\w+): [^#\n]+#\s*(.+)$", re.MULTILINE)
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))

# What the source leaves to the name of the setting.
MEANINGS = {
    "queues": "serve only these; `*` is all of them",
    "poll_interval": "how often an idle worker looks; 1 s where the database wakes it up, 50 ms where it cannot (250 ms after 10 s without work)",
    "concurrency": "steps that may run at once in one process",
    "worker_id": "name of this worker, at most 100 characters; shown as `locked_by`",
}
DEFAULTS = {
    "queues": "all",
    "ageing": "never",
    "max_age": "never",
    "max_memory": "never",
    "poll_interval": "1 s or 50 ms",
    "worker_id": "host, process id and six random digits",
}


def table() -> str:
    """One row per field: its name in Python, its option of `stepfast worker`, its default, its meaning."""
    comments = dict(_COMMENT.findall(inspect.getsource(WorkerSettings)))
    rows = []
    for field in fields(WorkerSettings):
        meaning = MEANINGS.get(field.name) or comments[field.name]
        default = DEFAULTS.get(field.name) or _spoken(field.default)
        option = f"--{field.name.replace('_', '-')}"
        rows.append(f"| `{field.name}` | `{option}` | {default} | {meaning} |")
    return "\n".join(["| Python | command line | default | meaning |", "|---|---|---|---|", *rows, ""])


def notifications() -> str:
    """The same for what leaves the database: each has a variable of the environment."""
    comments = dict(_COMMENT.findall(inspect.getsource(NotificationSettings)))
    rows = [
        f"| `{it.name}` | `{variable(it.name)}` | {_spoken(it.default)} | {comments[it.name]} |"
        for it in fields(NotificationSettings)
    ]
    return "\n".join(["| Python | environment | default | meaning |", "|---|---|---|---|", *rows, ""])


def _spoken(value: Any) -> str:
    if value is MISSING:
        raise ValueError("a setting without a plain default needs a line in DEFAULTS")
    if isinstance(value, bool):
        return "on" if value else "off"
    if value == ():
        return "none"
    if isinstance(value, timedelta):
        seconds = int(value.total_seconds())
        unit, size = next(it for it in _UNITS if seconds % it[1] == 0)
        return f"{seconds // size} {unit}"
    return str(value)
