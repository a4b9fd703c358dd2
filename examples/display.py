"""The output of the crash example: a live picture on a terminal, plain lines everywhere else."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LINES = 9  # events on the screen
PLAIN_EVERY = 1.0  # seconds between lines where nothing can be redrawn


@dataclass(frozen=True)
class Tally:
    """Counts from the tables at one moment."""

    jobs: int
    done: int
    leased: int
    waiting: int
    suspects: int
    effects: int
    expected: int
    worker: str


class Display:
    """Show the counts as they change, and events, with the seconds since the start."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._began = time.monotonic()
        self._events: deque[Text] = deque(maxlen=LINES)
        self._lock = threading.Lock()
        self._tally: Tally | None = None
        self._printed_at = 0.0
        self._live = Live(get_renderable=self._picture, console=console, refresh_per_second=10)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def tally(self, tally: Tally) -> None:
        self._tally = tally
        if not self.console.is_terminal and time.monotonic() - self._printed_at >= PLAIN_EVERY:
            self._printed_at = time.monotonic()
            self._print(Text(_sentence(tally)))

    def event(self, text: str, style: str = "") -> None:
        """Show an event; callable from any thread."""
        line = Text(text, style=style)
        with self._lock:
            self._events.append(Text(f"{self._seconds():6.1f} s  ").append(line))
        if not self.console.is_terminal:
            self._print(line)

    def _print(self, line: Text) -> None:
        self.console.print(Text(f"{self._seconds():6.1f} s  ").append(line), soft_wrap=True)

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _picture(self) -> Group:
        tally = self._tally
        with self._lock:
            events = [*self._events]
        if tally is None:
            return Group(*events)
        bars = Table.grid(padding=(0, 2))
        for name, have, want in (
            ("jobs done", tally.done, tally.jobs),
            ("effects", tally.effects, tally.expected),
        ):
            bars.add_row(name, ProgressBar(want, have, width=40), f"{have} of {want}")
        counts = Text(
            f"leased {tally.leased}   waiting {tally.waiting}   to be run alone {tally.suspects}   "
        )
        counts.append(tally.worker, style="bold")
        return Group(bars, counts, Text(), *events)


def _sentence(tally: Tally) -> str:
    return (
        f"{tally.done} of {tally.jobs} jobs done, {tally.leased} leased, {tally.waiting} waiting, "
        f"{tally.effects} of {tally.expected} effects, {tally.worker}"
    )
