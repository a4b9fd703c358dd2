"""`stepfast jobs`: look at jobs, watch them, revive them, stop them.

Every command calls a method of `Operator` (`admin/operator.py`), as Python code does with `app.operator`; what it does is
in `admin/jobs.py`, and how dead letters live again in `jobs/dead_letters.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stepfast.cli.options import (
    MOST_ROWS,
    By,
    DatabaseUrl,
    Json,
    Kind,
    Limit,
    Queue,
    Reason,
    operating,
    span,
    usage,
)
from stepfast.cli.output import (
    Listing,
    as_json,
    as_text,
    complain,
    console,
    print_facts,
    print_json,
    print_json_line,
    print_table,
)
from stepfast.errors import StepfastError

if TYPE_CHECKING:
    from stepfast.reports import (
        JobDetail,
        JobState,
        JobSummary,
        KindStatistics,
        Operator,
        TreeLine,
    )
    from stepfast.results.outcome import JobOutcome
    from stepfast.results.watch import Update


MOST_OF_TREE: Final = 1_000  # jobs of one tree that are shown
TIMED_OUT: Final = 3  # exit code of `watch`

app = typer.Typer(help="Look at jobs, watch them, revive them, stop them.", no_args_is_help=True)

OneJob = Annotated[str, typer.Argument(metavar="ID", help="Which job.")]
Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Which jobs.")]
Tree = Annotated[
    bool,
    typer.Option(
        "--tree",
        help="Also all jobs after it; of a group's completion job also its members. All of them, or none.",
    ),
]

JOBS: Listing[JobSummary] = Listing(
    columns={
        "id": "id",
        "state": "state",
        "kind": "kind",
        "queue": "queue",
        "try": "attempts",
        "%": lambda job: job.progress or "",
        "created (UTC)": "created_at",
        "leased by": "locked_by",
        "error": "last_error",
    },
    empty="no such jobs",
    less=("leased by", "%", "try", "created (UTC)", "queue"),
    cut=("kind", "queue"),
)


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only jobs in this state: scheduled, ready, suspect, leased, held, waiting, done, dead, cancelled, live (the first "
            "six) or ended (the last three). May be given more than once.",
            show_default=False,
        ),
    ] = None,
    kind: Kind = None,
    queue: Queue = None,
    limit: Limit = 50,
    before: Annotated[
        str | None,
        typer.Option(
            "--before", metavar="ID", help="The next page: only older ids than this.", show_default=False
        ),
    ] = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List jobs, newest first."""
    wanted = _states(state or [])
    with operating(ctx, database_url) as operator:
        found = operator.jobs(wanted, kind=kind, queue=queue, limit=limit, before=before)
    JOBS.show(found, json=json, page=limit)


def _states(names: list[str]) -> set[JobState]:
    from stepfast.jobs.state import ENDED, LIVE, JobState

    groups = {"live": set(LIVE), "ended": set(ENDED)} | {state.value: {state} for state in JobState}
    wanted: set[JobState] = set()
    for name in (part.strip() for given in names for part in given.split(",")):
        if name not in groups:
            raise typer.BadParameter(f"{name!r} is no state; use {', '.join([*JobState, 'live', 'ended'])}")
        wanted |= groups[name]
    return wanted


@app.command("show")
def show(
    ctx: typer.Context,
    job_id: OneJob,
    *,
    logs: Annotated[
        int,
        typer.Option(
            "--logs", metavar="N", min=0, max=MOST_ROWS, help="Number of log lines to show, the newest."
        ),
    ] = 100,
    decrypt: Annotated[
        bool,
        typer.Option(
            "--decrypt", help="Decrypt with STEPFAST_SECRET_KEY; the look is recorded in the audit log."
        ),
    ] = False,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show everything about one job: state, attempts, lease, error, progress, payload, result and log."""
    with operating(ctx, database_url, by, reason) as operator:
        detail = operator.job(job_id, logs=logs, decrypt=decrypt)
    print_job(detail, json=json)


def print_job(detail: JobDetail, *, json: bool) -> None:
    """Everything about one job, for people or as JSON."""
    job = asdict(detail.job)
    if json:
        rest = {
            "payload": detail.payload,
            "cursor": detail.cursor,
            "result": detail.result,
            "result_expired_at": detail.result_expired_at,
            "waits_for": detail.waits_for,
            "parents": detail.parents,
            "children": detail.children,
            "logs": detail.logs,
        }
        print_json(job | rest)
        return
    waits = None if detail.waits_for is None else f"{detail.waits_for}, until {as_text(detail.job.ready_at)}"
    documents = (("payload", detail.payload), ("cursor", detail.cursor), ("result", detail.result))
    facts: list[tuple[str, Any]] = [(name.replace("_", " "), value) for name, value in job.items()]
    facts += [(name, None if document is None else as_json(document)) for name, document in documents]
    print_facts([*facts, ("waits for", waits), ("result expired at", detail.result_expired_at)])
    _print_relatives(detail)
    if detail.logs:
        typer.echo()
    for line in detail.logs:
        typer.echo(f"{as_text(line.at)}  {line.level:<7}  {as_text(line.message)}")


def _print_relatives(detail: JobDetail) -> None:
    """The jobs that a job comes after, and those after it, if there are any."""
    rows = [("after", job) for job in detail.parents] + [("before", job) for job in detail.children]
    if rows:
        typer.echo()
        print_table(
            ("", "job", "state", "kind", "edge"),
            [
                ("member" if job.bond == "member" else word, job.id, job.state, job.kind, job.edge)
                for word, job in rows
            ],
            empty="",
            less=("kind",),
        )


# Watch: a bar for people, lines for pipes, JSON lines for programs.

Show = Callable[["Update"], None]


@app.command("watch", short_help="Follow a job to its end.")
def watch(
    ctx: typer.Context,
    job_id: OneJob,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on when it is dead or cancelled: an operator may revive it.")
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout", metavar="DURATION", help="How long to watch: 90s, 10m, 2h.", show_default="for ever"
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
    from stepfast.reports import JobState

    given = span(timeout)
    with usage("--timeout"):
        patience = None if given is None else duration(given, "timeout")
    with operating(ctx, database_url) as operator:
        updates = operator.watch(job_id, patience, beyond_death=follow)
        try:
            with _shown(operator, json=json) as show:
                end = _last(updates, show)
        except WaitTimeoutError as error:
            complain(str(error))
            raise typer.Exit(TIMED_OUT) from None
    if end.state is not JobState.DONE:
        raise typer.Exit(1)


def _last(updates: Any, show: Show) -> JobOutcome[Any]:
    from stepfast.results.watch import Ended

    for update in updates:
        show(update)
        if isinstance(update, Ended):
            return update.outcome
    raise AssertionError("a watch ends with the job's end")


@contextmanager
def _shown(operator: Operator, *, json: bool) -> Iterator[Show]:
    if json:
        yield lambda update: _print_update(operator, update)
    elif not console().is_terminal:
        yield lambda update: typer.echo(_line(operator, update))
    else:
        with _bar(operator) as show:
            yield show


def _print_update(operator: Operator, update: Update) -> None:
    from stepfast.results.watch import Ended, Logged, Progressed

    match update:
        case Ended(outcome):
            facts = {
                name: value for name, value in vars(outcome).items() if name not in {"stored", "reading"}
            }
            # The result as plain JSON; None where there is none (the state and result_expired_at say why).
            line = {"update": "ended", **facts, "result": operator.shown_result(outcome)}
        case Logged():
            line = {"update": "log", **asdict(update)}
        case Progressed():
            line = {"update": "progress", **asdict(update)}
        case _:
            line = {"update": "state", **asdict(update)}
    print_json_line(line)


def _line(operator: Operator, update: Update) -> str:
    from stepfast.results.watch import Ended, Logged, Progressed

    match update:
        case Ended(outcome):
            return _end(operator, outcome)
        case Logged(at, level, step, message):
            return f"{as_text(at)}  step {step}  {level:<7}  {as_text(message).rstrip()}"
        case Progressed(percent, note):
            return f"{percent} %  {as_text(note)}".rstrip()
        case _:
            return _state(update)


def _state(update: Any) -> str:
    error = f": {as_text(update.error)}" if update.error else ""
    return f"{update.state}, step {update.step}, try {update.attempts}{error}"


def _end(operator: Operator, outcome: JobOutcome[Any]) -> str:
    tries = f"step {outcome.step}, try {outcome.attempts}"
    if outcome.error and outcome.state != "done":
        return f"{outcome.state}, {tries}: {as_text(outcome.error)}"
    if outcome.result_expired_at is not None:
        return f"{outcome.state}, {tries}; its result expired at {as_text(outcome.result_expired_at)}"
    result = f": {as_text(as_json(operator.shown_result(outcome)))}" if outcome.stored else ""
    return f"{outcome.state}, {tries}{result}"


@contextmanager
def _bar(operator: Operator) -> Iterator[Show]:
    """A bar that stays at the bottom while lines pass above it."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    from stepfast.cli.output import STYLES
    from stepfast.results.watch import Ended, Logged, Progressed

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
                bar.update(task, completed=percent, note=as_text(note))
            case Logged():
                bar.console.print(Text(_line(operator, update)))
            case Ended(outcome):
                done = 100 if outcome.state == "done" else outcome.progress
                bar.update(task, description=str(outcome.state), completed=done)
                bar.console.print(Text(_line(operator, update), style=STYLES.get(str(outcome.state), "")))
            case _:
                bar.update(task, description=f"{update.state}, try {update.attempts}")
                bar.console.print(Text(_line(operator, update), style="dim"))

    with bar:
        task = bar.add_task("", total=100, note="")
        yield show


# Act


@app.command("retry")
def retry(
    ctx: typer.Context,
    ids: Ids,
    *,
    tree: Tree = False,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Revive dead or cancelled jobs with fresh attempts, or run scheduled ones now."""
    words = {
        "ready": "is ready",
        "suspect": "waits to be run alone",
        "waiting": "waits for the jobs that it comes after",
    }
    with operating(ctx, database_url, by, reason) as operator:
        _each(ids, lambda job_id: operator.retry(job_id, tree=tree), words, json=json)


@app.command("cancel")
def cancel(
    ctx: typer.Context,
    ids: Ids,
    *,
    reason: Annotated[
        str | None,
        typer.Option(
            "--reason",
            metavar="TEXT",
            help="Reason, kept with the job and in the audit log.",
            show_default=False,
        ),
    ] = None,
    tree: Tree = False,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """End jobs that wait; ask those that run to stop."""
    words = {"cancelled": "is cancelled", "leased": "is running; its worker was asked to stop it"}
    with operating(ctx, database_url, by, reason) as operator:
        _each(ids, lambda job_id: operator.cancel(job_id, tree=tree), words, json=json)


def _each(ids: list[str], act: Callable[[str], JobState], words: dict[str, str], *, json: bool) -> None:
    """Act on each job by itself; a job that is refused does not stop the others, but sets the exit code."""
    done: list[dict[str, str | None]] = []
    for job_id in ids:
        try:
            state = act(job_id)
        except StepfastError as error:
            complain(str(error))
            done.append({"id": job_id, "state": None, "error": str(error)})
        else:
            done.append({"id": job_id, "state": state.value, "error": None})
            if not json:
                typer.echo(f"job {job_id} {words.get(state.value, f'is {state}')}")
    if json:
        print_json(done)
    if any(result["error"] for result in done):
        raise typer.Exit(1)


# Trees and statistics


def _place(line: TreeLine) -> str:
    return f"{'│ ' * (line.depth - 1)}└ {line.id}" if line.depth else line.id


def _edge(line: TreeLine) -> str:
    if line.bond is None:
        return ""
    bond = "member" if line.bond == "member" else f"after, {line.edge}, on_dead={line.on_dead}"
    return f"{bond} (shown above)" if line.again else bond


TREE: Listing[TreeLine] = Listing(
    columns={"job": _place, "state": "state", "kind": "kind", "edge": _edge}, empty="nothing", less=("kind",)
)


@app.command("tree", short_help="Show a job and the jobs after it.")
def tree(ctx: typer.Context, job_id: OneJob, *, json: Json = False, database_url: DatabaseUrl = None) -> None:
    """Show a job and all jobs after it; of the completion job of a group also its members."""
    with operating(ctx, database_url) as operator:
        lines = operator.tree(job_id, limit=MOST_OF_TREE)
    TREE.show(lines, json=json)
    if len(lines) >= MOST_OF_TREE and not json:
        typer.echo(f"only the first {MOST_OF_TREE:,} are shown", err=True)


STATISTICS: Listing[KindStatistics] = Listing(
    columns={
        "kind": "kind",
        "done": "done",
        "dead": "dead",
        "cancelled": "cancelled",
        "success": lambda kind: "" if kind.success_rate is None else f"{kind.success_rate:.1%}",
        "average s": "average_seconds",
        "median s": "median_seconds",
        "95 % s": "p95_seconds",
        "longest s": "longest_seconds",
        "wait s": "average_wait_seconds",
    },
    empty="no job ended",
    less=("wait s", "average s", "cancelled", "longest s"),
)


@app.command("stats")
def stats(
    ctx: typer.Context,
    *,
    since: Annotated[
        str, typer.Option("--since", metavar="DURATION", help="How far to look back: 90s, 10m, 2h, 7d.")
    ] = "24h",
    kind: Kind = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show by kind how many jobs ended in which state, how long they took, and the errors of those that failed."""
    from stepfast.clock import duration

    with usage("--since"):
        past = duration(span(since) or 0, "since")
    with operating(ctx, database_url) as operator:
        found = operator.statistics(past, kind=kind)
    STATISTICS.show(found, json=json, empty=f"no job ended in the last {since}")
    if not json:
        _print_failures(found)


def _print_failures(found: list[KindStatistics]) -> None:
    rows = [
        (kind.kind, error.dead, error.retrying, error.recovered, error.last_at, error.error_group)
        for kind in found
        for error in kind.failures
    ]
    if rows:
        typer.echo()
        print_table(
            ("kind", "dead", "retrying", "recovered", "last (UTC)", "error"),
            rows,
            empty="",
            less=("recovered", "last (UTC)"),
        )
