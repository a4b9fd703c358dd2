"""The process in which the simulator of the demo runs. It ends when the process that started it does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from stepfast.diamonds.simulator import Simulator
from stepfast.errors import StepfastError
from stepfast.worker.signals import on_parent_gone

if TYPE_CHECKING:
    from collections.abc import Sequence

QUIET: Final = timedelta(
    days=1
)  # before today nothing happened for so long: what has changed, has changed before our eyes


def main(arguments: Sequence[str]) -> int:
    """Its one argument is what the parent wrote; where it can be reached is the one line it prints."""
    try:
        simulator = Simulator(**json.loads(arguments[0]), start=datetime.now(UTC) - QUIET)
        simulator.advance(QUIET)
        on_parent_gone(lambda: os.kill(os.getpid(), signal.SIGTERM))
        asyncio.run(simulator.serve(_tell, signals=True))
    except StepfastError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _tell(simulator: Simulator) -> None:
    facts = {
        "url": simulator.url,
        "oracle": f"{simulator.base_url}/oracle",
        "username": simulator.username,
        "password": simulator.password,
    }
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
