"""What the demo prints: its chapters, the runs, the comparison, the rates, and commands to go on with.

Bars and colours on a terminal, plain lines everywhere else; each line has the seconds since the start.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from stepfast.applications import counted, sqlite_path
from stepfast.applications.commands import (
    LINE_EVERY,
    RunBars,
    StandstillReasons,
    as_text,
    console,
    empty_run_bars,
    run_line,
)
from stepfast.reports import RunState
from stepfast_diamonds.feed import NATURAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from stepfast import Stepfast
    from stepfast.reports import RunObserver, RunProgress, RunReport
    from stepfast_diamonds.demo.comparison import Comparison
    from stepfast_diamonds.demo.folder import DemoPlace


MOST_BARS: Final = 6  # partitions at a time
INDENT: Final = " " * 10

Show = Callable[["RunProgress"], None]


class DemoScreen:
    """Prints the demo."""

    def __init__(self) -> None:
        self.screen = console()
        self._began = time.monotonic()

    def title(self, text: str) -> None:
        self.screen.print(Text(text, style="bold"))

    def chapter(self, text: str) -> None:
        self.screen.print()
        self.screen.print(Text(text, style="bold cyan"))

    def say(self, text: str, style: str = "") -> None:
        """Print what happened, with the seconds since the start."""
        told = Text(f"{time.monotonic() - self._began:7.1f} s ", style="dim")
        self.screen.print(told.append(Text(as_text(text), style=style or "not dim")), soft_wrap=True)

    def more(self, text: str, style: str = "") -> None:
        """Print a line that belongs to the one before."""
        self.screen.print(Text(f"{INDENT}{as_text(text)}", style=style), soft_wrap=True)

    def plain(self, text: str) -> None:
        """Print a line that can be copied: never wrapped, nothing before it."""
        self.screen.print(Text(f"  {text}"), soft_wrap=True)

    def table(self, rows: Sequence[tuple[str, str, str]], styles: Sequence[str] | None = None) -> None:
        """Print rows of a name, a figure and a remark."""
        table = Table(box=None, pad_edge=True, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
        table.add_column(overflow="fold")
        for number, (name, figure, remark) in enumerate(rows):
            table.add_row(name, figure, Text(remark, style=styles[number] if styles else ""))
        self.screen.print(table)

    @contextmanager
    def run(self, observer: RunObserver, counts: Callable[[], int]) -> Iterator[Show]:
        """Show a run while it advances. `counts`: how many counts its plan has requested."""
        standstill = StandstillReasons(observer)
        if not self.screen.is_terminal:
            yield RunLines(self, standstill, counts)
            return
        with empty_run_bars(self.screen, transient=True) as bar:
            shown = RunBars(bar, MOST_BARS)

            def show(progress: RunProgress) -> None:
                # Those that are read a second time, to be sure, would stand at the end of their bar.
                moving = [it for it in observer.partitions if it.expected is None or it.seen < it.expected]
                shown.update(progress, moving)
                if progress.state is RunState.PLANNING:
                    bar.update(bar.task_ids[0], description="planning", note=_counted(counts()))
                for reason in standstill.reasons(progress):
                    self.say(reason, "yellow")

            yield show


class RunLines:
    """Shows a run in a pipe: a line whenever the state changes, and every five seconds."""

    def __init__(self, screen: DemoScreen, standstill: StandstillReasons, counts: Callable[[], int]) -> None:
        self._screen = screen
        self._standstill = standstill
        self._counts = counts
        self._state: str | None = None
        self._at = 0.0

    def __call__(self, progress: RunProgress) -> None:
        if progress.ended:
            return
        if progress.state != self._state or time.monotonic() - self._at >= LINE_EVERY:
            self._state, self._at = progress.state, time.monotonic()
            planning = progress.state is RunState.PLANNING
            self._screen.say(f"planning; {_counted(self._counts())}" if planning else run_line(progress))
        for reason in self._standstill.reasons(progress):
            self._screen.say(reason)


def _counted(counts: int) -> str:
    return "1 count" if counts == 1 else f"{counts:,} counts"


RIGHT_STYLE: Final = "green"
WRONG_STYLE: Final = "bold red"
# A message about a page is deleted when it is sent: what is left was not, and every page that was read had one.
COUNT_MESSAGES: Final = """
    SELECT (SELECT count(*) FROM stepfast_page) + (SELECT COALESCE(sum(rounds), 0) FROM stepfast_run) AS told,
           (SELECT count(*) FROM stepfast_outbox WHERE channel = 'broker' AND state <> 'sent') AS unsent
"""
PRICES_QUERY: Final = "SELECT shape, count(*), min(feed_price), max(feed_price) FROM diamonds GROUP BY shape"


def show_comparison(screen: DemoScreen, found: Comparison) -> None:
    """Print the result of the demo."""
    judged = (
        ("missing in the table", found.missing),
        ("doubled", found.doubled),
        ("stale: other values than the source has", found.stale),
        ("made up: never at the source", found.made_up),
    )
    rows = [
        ("stones that the feed should find", f"{found.source:,}", "for sale, with a picture or a film"),
        ("stones in the table", f"{found.table:,}", ""),
    ]
    rows += [(name, f"{count:,}", "WRONG" if count else "right") for name, count in judged]
    styles = ["", "", *(WRONG_STYLE if count else RIGHT_STYLE for _, count in judged)]
    if found.left:
        rows.append(
            (
                "sold or held since they were read",
                f"{found.left:,}",
                "the sweep marks them after two full runs",
            )
        )
        styles.append("dim")
    screen.table(rows, styles)
    if found.clean:
        screen.say("the table is the source: missing 0, doubled 0, stale 0", "bold green")
    else:
        screen.say("the table is not the source", WRONG_STYLE)


def show_rates(screen: DemoScreen, runs: Sequence[RunReport], told: Mapping[str, int]) -> None:
    screen.chapter("The rates")
    rows = [(f"{it.kind} sync", _seconds(it.started_at, it.ended_at), rates(it)) for it in runs]
    good = told.get("status 200", 0)
    wrong = told["requests"] - good + told.get("truncated", 0)
    kinds = ((told.get("pages", 0), "page"), (told.get("counts", 0), "count"), (told["logins"], "login"))
    asked = ", ".join(counted(*it) for it in kinds)
    lost = f"{counted(wrong, 'answer')} {'was' if wrong == 1 else 'were'} lost or broken"
    rows.append(("the source", counted(told["requests"], "request"), f"{asked}; {lost}"))
    screen.table(rows)


def show_messages(screen: DemoScreen, app: Stepfast) -> None:
    """Print how many messages went over the broker."""
    with app.reading() as tx:
        (found,) = tx.query(COUNT_MESSAGES)
    unsent = f"; {counted(int(found['unsent']), 'message')} could not be sent yet" if found["unsent"] else ""
    screen.say(f"messages told workers of {int(found['told']):,} pages and consolidations{unsent}")


def rates(run: RunReport) -> str:
    """The phases of a run with their durations and rates."""
    planned, fetched = run.planned_at or run.started_at, run.fetched_at or run.started_at
    fetching = max(0.001, (fetched - planned).total_seconds())
    applying = max(0.001, ((run.ended_at or fetched) - fetched).total_seconds())
    return (
        f"plan {_seconds(run.started_at, planned)}; "
        f"fetch {fetching:.1f} s: {run.seen / fetching:,.0f} rows/s; "
        f"consolidate {applying:.1f} s: {run.applied / applying:,.0f} rows/s"
    )


def show_next_commands(screen: DemoScreen, place: DemoPlace, *, keep: bool) -> None:
    """Print where to look next."""
    gone = not keep and place.inside
    screen.chapter("Where to look next")
    if gone:
        screen.say(f"{place.folder} is removed; without --remove it stays, with the database in it")
        return
    for it in next_commands(place, program_name(), with_sqlite=shutil.which("sqlite3") is not None):
        screen.plain(it)
    if keep:
        screen.plain(f"rm -r {shlex.quote(str(place.folder))}")


def next_commands(place: DemoPlace, stepfast: str, *, with_sqlite: bool) -> list[str]:
    """Commands that look at what the demo leaves behind."""
    secret = "" if place.shown_url == place.url else "  # with the password instead of ***"
    commands = [
        f"export STEPFAST_DATABASE_URL={shlex.quote(place.shown_url)}{secret}",
        f"{stepfast} runs list",
        f"{stepfast} runs show {NATURAL}",
        f"{stepfast} partitions list --run {NATURAL}",
        f"{stepfast} watermark show",
        f"{stepfast} workers list --all",
        f"{stepfast} doctor",
    ]
    if with_sqlite and place.url.startswith("sqlite:"):
        commands.append(f"sqlite3 {shlex.quote(sqlite_path(place.url))} {shlex.quote(PRICES_QUERY)}")
    return commands


def program_name() -> str:
    """The shortest command that starts this very program."""
    ours = Path(sys.executable).with_name("stepfast")
    found = shutil.which("stepfast")
    if found is not None and Path(found).resolve() == ours.resolve():
        return "stepfast"
    if not ours.exists():
        return f"{shlex.quote(sys.executable)} -m stepfast"
    return shlex.quote(min(str(ours), os.path.relpath(ours), key=len))


def _seconds(begin: datetime, end: datetime | None) -> str:
    return f"{((end or begin) - begin).total_seconds():.1f} s"
