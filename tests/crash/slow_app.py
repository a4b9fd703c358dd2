"""An application whose import takes until a test opens the gate "import"."""

from __future__ import annotations

import os
import time
from pathlib import Path

FOLDER = Path(os.environ["STEPFAST_TEST_FOLDER"])

(FOLDER / "importing").touch()
while not (FOLDER / "import").exists():
    time.sleep(0.01)

from tests.crash.jobs import app  # noqa: E402, F401 - what its import was made slow for
