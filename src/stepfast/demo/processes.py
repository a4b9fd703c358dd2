"""Processes that the demo starts, and how they end: asked first, then made to."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

GRACE: Final = 15.0  # seconds


def end(processes: Sequence[subprocess.Popen[Any]]) -> None:
    """None of them is there afterwards, also if somebody loses patience meanwhile."""
    try:
        for it in processes:
            if it.poll() is None:
                it.terminate()
        for it in processes:
            with suppress(subprocess.TimeoutExpired):
                it.wait(GRACE)
    finally:
        for it in processes:
            it.kill()  # which does nothing to one that has ended
            it.wait()
            for pipe in (it.stdin, it.stdout, it.stderr):
                if pipe is not None:
                    pipe.close()
