"""An application that does one type of queue tasks, for processes of `stepfast tasks work`: `tests.crash.tasks:app`."""

from __future__ import annotations

from stepfast import Stepfast

app = Stepfast()


@app.task("greet")
async def greet() -> None:
    """Nothing to do."""
