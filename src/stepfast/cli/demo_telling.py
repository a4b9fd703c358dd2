"""How the demo speaks: bars and colours on a terminal, plain lines everywhere else, each with the seconds since the start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from stepfast.cli.output import console, said
from stepfast.cli.run_watch import LINE_EVERY, Asked, Bars, empty_bars, line
from stepfast.runs.states import RunState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.admin.reports.run_progress import RunObserver, RunProgress
    from stepfast.database.database import Database

MOST_BARS: Final = 6  # partitions at a time
INDENT: Final = " " * 10

Show = Callable[["RunProgress", "RunObserver"], None]


class Telling:
    """The voice of the demo."""

    def __init__(self) -> None:
        self.screen = console()
        self._began = time.monotonic()

    def title(self, text: str) -> None:
        self.screen.print(Text(text, style="bold"))

    def chapter(self, text: str) -> None:
        self.screen.print()
        self.screen.print(Text(text, style="bold cyan"))

    def say(self, text: str, style: str = "") -> None:
        """Something happened."""
        told = Text(f"{time.monotonic() - self._began:7.1f} s ", style="dim")
        self.screen.print(told.append(Text(said(text), style=style or "not dim")), soft_wrap=True)

    def more(self, text: str, style: str = "") -> None:
        """What belongs to the line before."""
        self.screen.print(Text(f"{INDENT}{said(text)}", style=style), soft_wrap=True)

    def plain(self, text: str) -> None:
        """To be copied: never wrapped, nothing before it."""
        self.screen.print(Text(f"  {text}"), soft_wrap=True)

    def table(self, rows: Sequence[tuple[str, str, str]], styles: Sequence[str] | None = None) -> None:
        """A name, a figure, a remark."""
        table = Table(box=None, pad_edge=True, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
        table.add_column(overflow="fold")
        for number, (name, figure, remark) in enumerate(rows):
            table.add_row(name, figure, Text(remark, style=styles[number] if styles else ""))
        self.screen.print(table)

    @contextmanager
    def run(self, database: Database, run_id: str, counts: Callable[[], int]) -> Iterator[Show]:
        """Show a run while it comes along. `counts`: how many its plan has asked for."""
        asked = Asked(database, run_id)
        if not self.screen.is_terminal:
            yield Lines(self, asked, counts)
            return
        with empty_bars(self.screen, transient=True) as bar:
            shown = Bars(bar, MOST_BARS)

            def show(progress: RunProgress, observer: RunObserver) -> None:
                # Those that are read a second time, to be sure, would stand at the end of their bar.
                moving = [it for it in observer.partitions if it.expected is None or it.seen < it.expected]
                shown.update(progress, moving)
                if progress.state is RunState.PLANNING:
                    bar.update(bar.task_ids[0], description="planning", note=_counted(counts()))
                for reason in asked.why(progress):
                    self.say(reason, "yellow")

            yield show


class Lines:
    """For a pipe: whenever the state changes, and every five seconds."""

    def __init__(self, telling: Telling, asked: Asked, counts: Callable[[], int]) -> None:
        self._telling = telling
        self._asked = asked
        self._counts = counts
        self._state: str | None = None
        self._at = 0.0

    def __call__(self, progress: RunProgress, _: RunObserver) -> None:
        if progress.ended:
            return
        if progress.state != self._state or time.monotonic() - self._at >= LINE_EVERY:
            self._state, self._at = progress.state, time.monotonic()
            planning = progress.state is RunState.PLANNING
            self._telling.say(f"planning; {_counted(self._counts())}" if planning else line(progress))
        for reason in self._asked.why(progress):
            self._telling.say(reason)


def _counted(counts: int) -> str:
    return "1 count" if counts == 1 else f"{counts:,} counts"
