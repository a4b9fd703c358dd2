"""An application whose import takes until a test opens the gate "import", and which has a use for signals."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

FOLDER = Path(os.environ["STEPFAST_TEST_FOLDER"])

(FOLDER / "importing").touch()
while not (FOLDER / "import").exists():
    time.sleep(0.01)

from tests.crash.jobs import app  # noqa: E402, F401 - what its import was made slow for

for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, _: (FOLDER / signal.Signals(number).name).touch())
