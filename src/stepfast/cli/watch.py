"""`stepfast jobs watch`: one job as it comes along: a bar for people, lines for pipes, JSON lines for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stepfast.cli.options import DatabaseUrl, opened, span, usage
from stepfast.cli.output import complain, console, said
from stepfast.telemetry.masking import masked

if TYPE_CHECKING:
    from stepfast.results.outcome import JobOutcome
    from stepfast.results.watching import Update

TIMED_OUT: Final = 3  # exit code

Show = Callable[["Update"], None]


def watch(
    ctx: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Which job.")],
    *,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on when it is dead or cancelled: somebody may revive it.")
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout", metavar="DURATION", help="Watch for so long: 90s, 10m, 2h.", show_default="for ever"
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show a job's states, progress and log lines as they come, and its result.

    Exits with 0 when it is done, with 1 when it is dead or cancelled, with 3 when the time is over.
    """
    from stepfast.clock import duration
    from stepfast.errors import WaitTimeoutError
    from stepfast.results.reading import ANYTHING
    from stepfast.results.watching import Watch
    from stepfast.steps.job import JobState

    given = span(timeout)
    with usage("--timeout"):
        patience = None if given is None else duration(given, "timeout")
    with opened(ctx, database_url) as database:
        updates = Watch(database, job_id, patience, lambda _: ANYTHING, beyond_death=follow)
        try:
            with _shown(json=json) as show:
                end = _last(updates, show)
        except WaitTimeoutError as error:
            complain(str(error))
            raise typer.Exit(TIMED_OUT) from None
    if end.state is not JobState.DONE:
        raise typer.Exit(1)


def _last(updates: Any, show: Show) -> JobOutcome[Any]:
    from stepfast.results.watching import Ended

    for update in updates:
        show(update)
        if isinstance(update, Ended):
            return update.outcome
    raise AssertionError("a watch ends with the job's end")


@contextmanager
def _shown(*, json: bool) -> Iterator[Show]:
    if json:
        yield _print_json
    elif not console().is_terminal:
        yield lambda update: typer.echo(_line(update))
    else:
        with _bar() as show:
            yield show


def _print_json(update: Update) -> None:
    import msgspec

    from stepfast.results.watching import Ended, Logged, Progressed

    match update:
        case Ended(outcome):
            facts = _facts(outcome) | {"result": _result(outcome)}
            line = {"update": "ended", **facts}
        case Logged():
            line = {"update": "log", **asdict(update)}
        case Progressed():
            line = {"update": "progress", **asdict(update)}
        case _:
            line = {"update": "state", **asdict(update)}
    typer.echo(msgspec.json.encode(masked(msgspec.to_builtins(line))).decode())


def _facts(outcome: JobOutcome[Any]) -> dict[str, Any]:
    hidden = {"stored", "reading"}
    return {name: value for name, value in vars(outcome).items() if name not in hidden}


def _result(outcome: JobOutcome[Any]) -> Any:
    """The result as plain JSON values; None where there is none (its state and result_expired_at say why)."""
    from stepfast.admin.reports.documents import shown

    return shown(outcome.stored, f"result of {outcome.kind}")


def _line(update: Update) -> str:
    from stepfast.results.watching import Ended, Logged, Progressed

    match update:
        case Ended(outcome):
            return _end(outcome)
        case Logged(at, level, step, message):
            return f"{said(at)}  step {step}  {level:<7}  {said(message).rstrip()}"
        case Progressed(percent, note):
            return f"{percent} %  {said(note)}".rstrip()
        case _:
            return _state(update)


def _state(update: Any) -> str:
    error = f": {said(update.error)}" if update.error else ""
    return f"{update.state}, step {update.step}, try {update.attempts}{error}"


def _end(outcome: JobOutcome[Any]) -> str:
    from stepfast.steps.payload import to_json

    tries = f"step {outcome.step}, try {outcome.attempts}"
    if outcome.error and outcome.state != "done":
        return f"{outcome.state}, {tries}: {said(outcome.error)}"
    if outcome.result_expired_at is not None:
        return f"{outcome.state}, {tries}; its result expired at {said(outcome.result_expired_at)}"
    return f"{outcome.state}, {tries}" + (f": {said(to_json(_result(outcome)))}" if outcome.stored else "")


@contextmanager
def _bar() -> Iterator[Show]:
    """A bar that stays at the bottom while lines pass above it."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    from stepfast.cli.output import STYLES
    from stepfast.results.watching import Ended, Logged, Progressed

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console(),
    )

    def show(update: Update) -> None:
        match update:
            case Progressed(percent, note):
                bar.update(task, completed=percent, note=said(note))
            case Logged():
                bar.console.print(Text(_line(update)))
            case Ended(outcome):
                done = 100 if outcome.state == "done" else outcome.progress
                bar.update(task, description=outcome.state.value, completed=done)
                bar.console.print(Text(_line(update), style=STYLES.get(outcome.state.value, "")))
            case _:
                bar.update(task, description=f"{update.state}, try {update.attempts}")
                bar.console.print(Text(_line(update), style="dim"))

    with bar:
        task = bar.add_task("", total=100, note="")
        yield show
