"""When a worker process is worn: too old, or too large. Then it finishes its steps, and its program starts again."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

from stepfast.config import spoken_size
from stepfast.errors import ConfigurationError
from stepfast.telemetry import happened
from stepfast.worker.memory import resident

if TYPE_CHECKING:
    from stepfast.config import WorkerSettings

EARLY: Final = 0.1  # of its age, at most, so that those who were started together do not go together


class Wear:
    """Knows when it is time; looked at about once a second."""

    def __init__(self, settings: WorkerSettings, *, can_recycle: bool) -> None:
        if not can_recycle and (settings.max_age is not None or settings.max_memory is not None):
            raise ConfigurationError(
                "max_age and max_memory are for `stepfast worker`, which can start its own program again; "
                "a worker inside your program leaves that to you"
            )
        if settings.max_memory is not None and (holds := resident()) >= settings.max_memory:
            raise ConfigurationError(
                f"max_memory={spoken_size(settings.max_memory)}: this worker holds {spoken_size(holds)} before its first step, "
                "and would do nothing but start again; allow more"
            )
        self._settings = settings
        self._began = time.monotonic()
        age = settings.max_age
        self._most = None if age is None else age.total_seconds() * (1 - EARLY * random.random())
        self._over = False

    def is_over(self) -> bool:
        if self._over:
            return True
        age, memory = time.monotonic() - self._began, self._settings.max_memory
        holds = 0 if memory is None else resident()
        self._over = (self._most is not None and age >= self._most) or (memory is not None and holds > memory)
        if self._over:
            happened("worker.worn", worker_id=self._settings.worker_id, age_s=round(age), memory=holds)
        return self._over
