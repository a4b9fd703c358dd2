"""`stepfast runs watch`: the progress of a run: bars for people, lines for pipes, JSON lines for programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stepfast.cli.options import DatabaseUrl, operating
from stepfast.cli.output import as_text, console, print_json_line
from stepfast.clock import spoken

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from stepfast.reports import PartitionProgress, RunObserver, RunProgress


LINE_EVERY: Final = 5.0  # seconds between two lines in a pipe, while only numbers change
REFRESH: Final = 1.0  # seconds between two updates of a terminal: speeds fall also while nothing changes
STILL: Final = 10.0  # seconds without a change after which the reason is shown
MARGIN: Final = 6  # lines of a terminal that bars leave free
LEAST_BARS: Final = 3

Show = Callable[["RunProgress"], None]


def watch(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="Which run: its id, the beginning of it, latest, or a feed for its newest."
        ),
    ],
    *,
    once: Annotated[bool, typer.Option("--once", help="Look once, then exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show how far a run is, how fast it goes, and when it may be over, wherever its workers are.

    Exits with 0 when it is completed or published, with 1 when it has failed or was cancelled.
    """
    with operating(ctx, database_url) as operator:
        observer = operator.runs.observe(name)
        if once:
            progress = observer.look()
            _print_json(progress) if json else _print_all(progress, observer)
        else:
            with _shown(observer, json=json) as (show, every):
                for progress in observer.watch(every=every):
                    show(progress)
    if progress.ended and not progress.succeeded:
        raise typer.Exit(1)


@contextmanager
def _shown(observer: RunObserver, *, json: bool) -> Iterator[tuple[Show, float | None]]:
    if json:
        yield _print_json, None
    elif not console().is_terminal:
        yield Lines(observer), LINE_EVERY
    else:
        with bars(observer) as show:
            yield show, REFRESH


def _print_json(progress: RunProgress) -> None:
    print_json_line(progress)


def _print_all(progress: RunProgress, observer: RunObserver) -> None:
    typer.echo(run_line(progress))
    for partition in observer.partitions:
        typer.echo(f"  {partition.partition_id}  {as_text(partition.name)}  {_far(partition)}")


class StandstillReasons:
    """Why a watched run does not move: asked after ten seconds without a change, each reason shown once."""

    def __init__(self, observer: RunObserver) -> None:
        self._observer = observer
        self._shown: list[str] = []
        self._next = STILL

    def reasons(self, progress: RunProgress) -> list[str]:
        """The reasons that were not shown yet."""
        if progress.ended or progress.still_for < STILL:
            self._next = STILL
            return []
        if progress.still_for < self._next:
            return []
        self._next = progress.still_for + STILL
        found = [
            reason.sentence + (f"  ({reason.command})" if reason.command else "")
            for reason in self._observer.why()
        ]
        new = [text for text in found if text not in self._shown and not text.startswith("it advances")]
        self._shown = found
        return [as_text(text) for text in new]


class Lines:
    """For a pipe: a line whenever the state or the number of ended partitions changes, and now and then in between."""

    def __init__(self, observer: RunObserver) -> None:
        self._standstill = StandstillReasons(observer)
        self._shown: tuple[object, ...] | None = None
        self._at = float("-inf")

    def __call__(self, progress: RunProgress) -> None:
        facts = (progress.state, progress.completed, progress.failed)
        moved = progress.still_for == 0.0 and time.monotonic() - self._at >= LINE_EVERY
        if facts != self._shown or moved:
            self._shown, self._at = facts, time.monotonic()
            typer.echo(run_line(progress))
        for reason in self._standstill.reasons(progress):
            typer.echo(f"  {reason}")


def run_line(progress: RunProgress) -> str:
    """The progress of a run in one line."""
    parts = [f"{progress.state}"]
    if progress.partitions:
        failed = f", {progress.failed} failed" if progress.failed else ""
        parts.append(f"{progress.completed} of {progress.partitions} partitions{failed}")
    of = f" of {progress.expected:,}" if progress.expected and not progress.ended else ""
    parts.append(f"{progress.rows:,}{of} rows")
    if progress.pending is not None or progress.applied:
        left = f", {progress.pending:,} to go" if progress.pending is not None else ""
        parts.append(f"{progress.applied:,} applied{left}")
    if progress.quarantined:
        parts.append(f"{progress.quarantined:,} in quarantine")
    if not progress.ended:
        parts.append(speed(progress))
    if progress.reason:
        parts.append(as_text(progress.reason))
    return "; ".join(parts)


def speed(progress: RunProgress) -> str:
    """Rows and pages per second, and the time that is left."""
    pages = f", {progress.pages_per_second:.1f} pages/s" if progress.pages_per_second else ""
    left = (
        ""
        if progress.seconds_left is None
        else f", about {spoken(timedelta(seconds=progress.seconds_left))} to go"
    )
    return f"{progress.rows_per_second:,.0f} rows/s{pages}{left}"


def _far(partition: PartitionProgress) -> str:
    of = f" of {partition.expected:,}" if partition.expected is not None and partition.is_open else ""
    error = f": {as_text(partition.error)}" if partition.error else ""
    return f"{partition.state}, {partition.seen:,}{of} rows{error}"


@contextmanager
def bars(observer: RunObserver, screen: Any = None) -> Iterator[Show]:
    """One bar for the whole run, and one for each partition that is being read, as many as fit."""
    from rich.text import Text

    from stepfast.cli.output import STYLES

    out = screen or console()
    bar = empty_run_bars(out)
    shown = RunBars(bar, max(LEAST_BARS, out.height - MARGIN))
    standstill = StandstillReasons(observer)

    def show(progress: RunProgress) -> None:
        shown.update(progress, observer.partitions)
        for partition in progress.changed:
            if partition.state == "failed":
                text = f"{partition.partition_id} {as_text(partition.name)} {_far(partition)}"
                bar.console.print(Text(text, style="red"))
        for reason in standstill.reasons(progress):
            bar.console.print(Text(reason, style="yellow"))
        if progress.ended:
            bar.console.print(
                Text(run_line(progress), style="green" if progress.succeeded else STYLES["fail"])
            )

    with bar:
        yield show


def empty_run_bars(out: Any, *, transient: bool = False) -> Progress:
    """The columns of all bars; `transient` ones leave nothing on the screen."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=out,
        transient=transient,
    )


class RunBars:
    """The bars of a run. A partition has one while it is open."""

    def __init__(self, bar: Progress, most: int) -> None:
        self._bar = bar
        self._most = most
        self._whole = bar.add_task("", total=None, note="")
        self._tasks: dict[int, TaskID] = {}

    def update(self, progress: RunProgress, partitions: list[PartitionProgress]) -> None:
        applying = progress.pending is not None
        done = progress.applied + progress.quarantined if applying else progress.rows
        total = done + (progress.pending or 0) if applying else progress.expected
        self._bar.update(
            self._whole,
            description=f"{progress.state}, {progress.completed}/{progress.partitions}",
            completed=done,
            total=total,
            note=f"{done:,} rows  {speed(progress)}",
        )
        reading = {part.number: part for part in partitions if part.state == "running"}
        shown = dict(list(reading.items())[: self._most])
        for number in self._tasks.keys() - shown.keys():
            self._bar.remove_task(self._tasks.pop(number))
        for number, part in shown.items():
            if number not in self._tasks:
                self._tasks[number] = self._bar.add_task(
                    f"  {part.partition_id} {as_text(part.name)}", total=None, note=""
                )
            self._bar.update(
                self._tasks[number], completed=part.seen, total=part.expected, note=f"{part.seen:,} rows"
            )
