"""Output of commands: JSON for programs, tables and sentences for people.

Texts from the database may hold anything; control characters are made visible, so that an error message cannot
paint the operator's terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import typer

from stepfast.clock import spoken
from stepfast.telemetry.masking import json_visible, masked, visible, without_rules

if TYPE_CHECKING:
    from rich.console import Console


R = TypeVar("R")

WIDE: Final = 160  # columns of a pipe or a file, which have no width
GAP: Final = 2
LAST_COLUMN: Final = 20
CUT: Final = 24  # characters of a long text where there is no room
STYLES: Final = {
    "done": "green",
    "ok": "green",
    "alive": "green",
    "leased": "cyan",
    "scheduled": "blue",
    "suspect": "yellow",
    "warn": "yellow",
    "dead": "red",
    "fail": "red",
    "expired": "red",
    "cancelled": "magenta",
}


def print_json(value: Any) -> None:
    """One JSON document; instants as ISO 8601 in UTC."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(masked(msgspec.to_builtins(value))), indent=2).decode()
    typer.echo(json_visible(text))


def print_json_line(value: Any) -> None:
    """One JSON document on one line, of several."""
    import msgspec

    typer.echo(json_visible(msgspec.json.encode(masked(msgspec.to_builtins(value))).decode()))


def as_json(value: Any) -> str:
    """A stored document on one line."""
    import msgspec

    return msgspec.json.encode(value).decode()


def answer(facts: Any, sentence: str, *, json: bool) -> None:
    """What a command has done: as JSON for a program, as a sentence for a person."""
    if json:
        print_json(facts)
    else:
        typer.echo(visible(sentence))


def confirm(question: str, *, yes: bool) -> None:
    """Ask on stderr, and end the command unless the answer is yes."""
    if not yes:
        typer.confirm(question, abort=True, err=True)


def complain(problem: str) -> None:
    """Print one line on stderr."""
    typer.echo(f"stepfast: {visible(without_rules(' '.join(problem.split())))}", err=True)


def console(*, err: bool = False) -> Console:
    """The terminal, or a pipe that is wide enough to show an id; NO_COLOR and COLUMNS are respected."""
    from rich.console import Console

    stream = sys.stderr if err else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDE
    return Console(stderr=err, width=width, highlight=False, markup=False, emoji=False)


@dataclass(frozen=True, kw_only=True)
class Listing(Generic[R]):
    """How a list command shows its reports: one line per report, or a sentence if there are none."""

    columns: Mapping[str, str | Callable[[R], object]]  # heading: a field of the report, or a function of it
    empty: str
    less: Sequence[str] = ()  # see `print_table`
    cut: Sequence[str] = ()

    def show(
        self, found: Sequence[R], *, json: bool = False, empty: str | None = None, page: int | None = None
    ) -> None:
        """Print the reports. A `page` that is full ends with the option that shows the next one."""
        if json:
            print_json(found)
            return
        rows = [[_field(report, field) for field in self.columns.values()] for report in found]
        print_table(tuple(self.columns), rows, empty=empty or self.empty, less=self.less, cut=self.cut)
        if len(found) == page:
            typer.echo(f"more with --before {_field(found[-1], 'id')}", err=True)


def _field(report: R, field: str | Callable[[R], object]) -> object:
    return getattr(report, field) if isinstance(field, str) else field(report)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str,
    less: Sequence[str] = (),
    cut: Sequence[str] = (),
) -> None:
    """Print one line per row. Too narrow a screen leaves out the columns of `less`, in turn, and shortens those of `cut`."""
    from rich.table import Table
    from rich.text import Text

    lines = [[_cell(value) for value in row] for row in rows]
    if not lines:
        typer.echo(empty)
        return
    screen = console()
    widths = [max(map(len, cells)) for cells in zip(columns, *lines, strict=True)]
    shown = fitting(columns, widths, screen.width, [name for name in less if name not in cut])
    if _needed(shown, widths) > screen.width:
        widths = [
            min(width, CUT) if name in cut else width for name, width in zip(columns, widths, strict=True)
        ]
        shown = fitting(columns, widths, screen.width, less)
    table = Table(box=None, pad_edge=False, header_style="bold")
    left = screen.width - sum(widths[at] + GAP for at in shown[:-1])
    for at in shown:
        numeric = all(line[at].isdigit() or not line[at] for line in lines)
        last = at == shown[-1]
        table.add_column(
            columns[at],
            no_wrap=True,
            overflow="ellipsis",
            justify="right" if numeric else "left",
            # An id that is cut is no id, and a state must be read; the last column gets what is left. Without a limit for
            # it, rich would squeeze all others.
            min_width=None if last else widths[at],
            max_width=max(left, 1) if last else widths[at],
        )
    for line in lines:
        table.add_row(*(Text(line[at], style=STYLES.get(line[at], "")) for at in shown))
    screen.print(table)


def fitting(columns: Sequence[str], widths: Sequence[int], space: int, less: Sequence[str]) -> list[int]:
    """The columns to show. The last one needs little room: it is cut where the line ends."""
    shown = list(range(len(columns)))
    for name in less:
        if _needed(shown, widths) <= space:
            break
        shown.remove(columns.index(name))
    return shown


def _needed(shown: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[at] + GAP for at in shown[:-1]) + min(widths[shown[-1]], LAST_COLUMN)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one below the other; values that are missing are left out."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        if value is not None and value != "":
            table.add_row(name, Text(as_text(value), style=STYLES.get(str(value), "")))
    console().print(table)


def as_text(value: object) -> str:
    """A value as a person reads it."""
    match value:
        case None | False:
            text = ""
        case True:
            text = "yes"
        case datetime():
            text = value.strftime("%Y-%m-%d %H:%M:%S UTC")
        case timedelta():
            text = spoken(value)
        case float():
            text = f"{value:.3g}"
        case tuple() | list():
            text = ", ".join(map(str, value))
        case _:
            text = str(value)
    return visible(without_rules(text))


def _cell(value: object) -> str:
    """A value on one line; of a time the seconds are enough, and the heading says UTC."""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    return " ".join(as_text(value).split())


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, if that is a terminal; the function gets the number of rows that are done."""
    screen = console(err=True)
    if not screen.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=screen)
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
