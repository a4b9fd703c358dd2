"""A user's module: a task that only reports when it began."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from stepfast import Stepfast

app = Stepfast()  # without a variable: a file in the working folder


@app.task("note")
def note(payload: dict[str, Any]) -> None:  # noqa: ARG001 - whatever it is
    Path(os.environ["BENCH_BEGAN"]).write_text(repr(time.time()), encoding="utf-8")
