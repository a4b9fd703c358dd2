"""Cleans up after a server whose owner died, however it died.

Runs as a process of its own, `python -m devtools.guardian FOLDER`, and reads from a pipe that its owner never
writes to. The pipe ends when the owner does, SIGKILL included: then whatever is left is stopped and removed.
After an orderly end nothing is left, and there is nothing to do.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from devtools.processes import family, kill_family, send, wait_until_gone

PID_FILE = "server.pid"
PATIENCE_SECONDS = 5.0


def hire(folder: Path) -> subprocess.Popen[bytes]:
    """Guard this folder until the answer's `stdin` is closed, by us or by our death."""
    return subprocess.Popen(
        [sys.executable, "-m", "devtools.guardian", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parent.parent,
        start_new_session=True,  # Ctrl-C at the terminal must not reach it
    )


def clean_up(folder: Path) -> None:
    try:
        pid = int((folder / PID_FILE).read_text())
    except (OSError, ValueError):
        pass
    else:
        send(family(pid), signal.SIGCONT)  # it may have been paused
        send([pid], signal.SIGQUIT)  # PostgreSQL gives its shared memory back only if it may say goodbye
        if not wait_until_gone([pid], PATIENCE_SECONDS):
            kill_family(pid)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    while os.read(sys.stdin.fileno(), 1):
        pass
    clean_up(Path(sys.argv[1]))
