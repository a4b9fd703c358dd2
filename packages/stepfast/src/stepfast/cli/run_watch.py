"""`stepfast runs watch`: a run as it comes along: bars for people, lines for pipes, JSON lines for programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stepfast.cli.options import DatabaseUrl, opened
from stepfast.cli.output import console, said
from stepfast.clock import spoken

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from stepfast.admin.run_status import PartitionProgress, RunObserver, RunProgress
    from stepfast.database.database import Database


LINE_EVERY: Final = 5.0  # seconds between two lines in a pipe, while nothing but numbers change
REFRESH: Final = 1.0  # seconds between two pictures of a terminal: speeds fall also while nothing changes
STILL: Final = 10.0  # seconds without a change after which somebody wants to know why
MARGIN: Final = 6  # lines of a terminal that bars leave free
LEAST_BARS: Final = 3

Show = Callable[["RunProgress", "RunObserver"], None]


def watch(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="Which run: its id, the beginning of it, latest, or a feed for its newest."
        ),
    ],
    *,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show how far a run is, how fast it goes, and when it may be over, wherever its workers are.

    Exits with 0 when it is completed or published, with 1 when it has failed or was cancelled.
    """
    from stepfast.admin.run_reports import resolve
    from stepfast.admin.run_status import RunObserver, watch_run

    with opened(ctx, database_url) as database:
        with database.reading() as tx:
            run_id = resolve(tx, name)
        if once:
            observer = RunObserver(database, run_id)
            progress = observer.look()
            _print_json(progress, observer) if json else _print_all(progress, observer)
        else:
            asked = Asked(database, run_id)
            with _shown(asked, json=json) as (show, every):
                for progress, observer in watch_run(database, run_id, every=every):
                    show(progress, observer)
    if progress.ended and not progress.succeeded:
        raise typer.Exit(1)


class Asked:
    """Why nothing moves, for somebody who has been watching that for a while. Each answer is given once."""

    def __init__(self, database: Database, run_id: str) -> None:
        self._database = database
        self._run_id = run_id
        self._told: list[str] = []
        self._next = STILL

    def why(self, progress: RunProgress) -> list[str]:
        if progress.ended or progress.still_for < STILL:
            self._next = STILL
            return []
        if progress.still_for < self._next:
            return []
        from stepfast.admin.run_status import show_run

        self._next = progress.still_for + STILL
        with self._database.reading() as tx:
            found = show_run(tx, self._run_id).why
        told = [f"{it.sentence}" + (f"  ({it.command})" if it.command else "") for it in found]
        new = [it for it in told if it not in self._told and not it.startswith("it advances")]
        self._told = told
        return [said(it) for it in new]


@contextmanager
def _shown(asked: Asked, *, json: bool) -> Iterator[tuple[Show, float | None]]:
    if json:
        yield _print_json, None
    elif not console().is_terminal:
        yield Lines(asked), LINE_EVERY
    else:
        with bars(asked) as show:
            yield show, REFRESH


def _print_json(progress: RunProgress, _: RunObserver) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(progress).decode())


def _print_all(progress: RunProgress, observer: RunObserver) -> None:
    typer.echo(line(progress))
    for it in observer.partitions:
        typer.echo(f"  partition-{it.number}  {said(it.name)}  {_far(it)}")


class Lines:
    """For a pipe: whenever the state or a partition's end changes, and now and then while numbers do."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._told: tuple[object, ...] | None = None
        self._at = float("-inf")

    def __call__(self, progress: RunProgress, _: RunObserver) -> None:
        facts = (progress.state, progress.completed, progress.failed)
        moved = progress.still_for == 0.0 and time.monotonic() - self._at >= LINE_EVERY
        if facts != self._told or moved:
            self._told, self._at = facts, time.monotonic()
            typer.echo(line(progress))
        for reason in self._asked.why(progress):
            typer.echo(f"  {reason}")


def line(progress: RunProgress) -> str:
    """All of it in one line."""
    told = [f"{progress.state}"]
    if progress.partitions:
        failed = f", {progress.failed} failed" if progress.failed else ""
        told.append(f"{progress.completed} of {progress.partitions} partitions{failed}")
    of = f" of {progress.expected:,}" if progress.expected and not progress.ended else ""
    told.append(f"{progress.rows:,}{of} rows")
    if progress.pending is not None or progress.applied:
        left = f", {progress.pending:,} to go" if progress.pending is not None else ""
        told.append(f"{progress.applied:,} applied{left}")
    if progress.quarantined:
        told.append(f"{progress.quarantined:,} in quarantine")
    if not progress.ended:
        told.append(speed(progress))
    if progress.reason:
        told.append(said(progress.reason))
    return "; ".join(told)


def speed(progress: RunProgress) -> str:
    """Rows and pages a second, and what is left of the time."""
    pages = f", {progress.pages_per_second:.1f} pages/s" if progress.pages_per_second else ""
    left = (
        ""
        if progress.seconds_left is None
        else f", about {spoken(timedelta(seconds=progress.seconds_left))} to go"
    )
    return f"{progress.rows_per_second:,.0f} rows/s{pages}{left}"


def _far(it: PartitionProgress) -> str:
    of = f" of {it.expected:,}" if it.expected is not None and it.is_open else ""
    error = f": {said(it.error)}" if it.error else ""
    return f"{it.state}, {it.seen:,}{of} rows{error}"


@contextmanager
def bars(asked: Asked, screen: Any = None) -> Iterator[Show]:
    """One bar for the whole, and one for each partition that is being read, as many as fit."""
    from rich.text import Text

    from stepfast.cli.output import STYLES

    out = screen or console()
    bar = empty_bars(out)
    shown = Bars(bar, max(LEAST_BARS, out.height - MARGIN))

    def show(progress: RunProgress, observer: RunObserver) -> None:
        shown.update(progress, observer.partitions)
        for it in progress.changed:
            if it.state == "failed":
                bar.console.print(Text(f"partition-{it.number} {said(it.name)} {_far(it)}", style="red"))
        for reason in asked.why(progress):
            bar.console.print(Text(reason, style="yellow"))
        if progress.ended:
            bar.console.print(Text(line(progress), style="green" if progress.succeeded else STYLES["fail"]))

    with bar:
        yield show


def empty_bars(out: Any, *, transient: bool = False) -> Progress:
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


class Bars:
    """Which bars there are. A partition has one while it is open."""

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
        reading = [it for it in partitions if it.state == "running"][: self._most]
        for number in self._tasks.keys() - {it.number for it in reading}:
            self._bar.remove_task(self._tasks.pop(number))
        for it in reading:
            if it.number not in self._tasks:
                self._tasks[it.number] = self._bar.add_task(f"  {said(it.name)}", total=None, note="")
            self._bar.update(
                self._tasks[it.number], completed=it.seen, total=it.expected, note=f"{it.seen:,} rows"
            )
