"""What an event is: a name, how loud it is, what it means, and which fields come with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# What every event about a step carries besides its own fields. `run_id` and `partition_id` are there when the
# handler named them by `step.annotate`, like any other name that it gives there.
STEP_FIELDS: Final = (
    "job_id", "kind", "queue", "step", "attempt", "trace_id", "worker_id", "run_id", "partition_id",
)  # fmt: skip
TIMES: Final = "took_s held_s"  # seconds in the handler, and under the lease until the end was written
MESSAGE: Final = "message_id channel address job_id trace_id attempt"


@dataclass(frozen=True)
class Event:
    """One name, how loud it is, what it means, and which fields come with it."""

    name: str
    level: int
    meaning: str
    fields: tuple[str, ...]
    about_step: bool  # whether the fields of a step come with it


def event(name: str, level: int, meaning: str, fields: str = "") -> Event:
    return Event(name, level, meaning, tuple(fields.split()), about_step=False)


def of_step(name: str, level: int, meaning: str, fields: str = "") -> Event:
    return Event(name, level, meaning, tuple(fields.split()), about_step=True)
