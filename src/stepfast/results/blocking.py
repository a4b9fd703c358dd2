"""A thread that runs an event loop must not block: everything on it would stand still, perhaps the very job."""

from __future__ import annotations

import sys

from stepfast.errors import StateError


def refuse_in_loop(blocking: str, instead: str) -> None:
    asyncio = sys.modules.get("asyncio")  # whoever has a running loop has imported it
    if asyncio is not None and asyncio._get_running_loop() is not None:  # noqa: SLF001 - documented, and never raises
        raise StateError(f"{blocking} would block the event loop that runs here; write: {instead}")
