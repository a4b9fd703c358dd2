"""Programs in JavaScript with packages of npm, as clients of what is tested."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "javascript"


def service_bus(connection_string: str, scenario: str, queue: str, *words: str) -> Any:
    """What a scenario of `service_bus.mjs` sees."""
    if shutil.which("node") is None or not (FOLDER / "node_modules/@azure/service-bus").is_dir():
        pytest.skip("the JavaScript SDK of Service Bus is not installed; run scripts/install-servers")
    done = subprocess.run(
        ["node", "service_bus.mjs", connection_string, scenario, queue, *words],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
