"""`stepfast jobs`: look at jobs, revive them, stop them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Kind, Limit, Queue, Reason, actor, opened, span, usage
from stepfast.cli.output import complain, console, print_facts, print_json, print_table, said
from stepfast.errors import StepfastError
from stepfast.telemetry.masking import masked

if TYPE_CHECKING:
    from stepfast.admin.audit import Actor
    from stepfast.admin.jobs import JobDetail, JobSummary, TreeLine
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.state import JobState
    from stepfast.results.outcome import JobOutcome
    from stepfast.results.watch import Update


# `stepfast jobs tree`: a job and what comes after it; and the two commands that concern all of it.

Tree = Annotated[
    bool,
    typer.Option(
        "--tree",
        help="Also all that comes after it; of a group's completion job also its members. Together or not at all.",
    ),
]
Act = Callable[["Transaction", str], "JobState"]


def tree(
    ctx: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Which job.")],
    *,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show a job and all that comes after it; of the completion job of a group also its members."""
    from stepfast.admin.jobs import MOST, tree_of

    with opened(ctx, database_url) as database, database.reading() as tx:
        lines = tree_of(tx, job_id)
    if json:
        print_json(lines)
        return
    print_table(
        ("job", "state", "kind", "edge"),
        [(_place(it), it.state, it.kind, _edge(it)) for it in lines],
        empty="nothing",
        less=("kind",),
    )
    if len(lines) >= MOST:
        typer.echo(f"only the first {MOST:,} are shown", err=True)


def _place(line: TreeLine) -> str:
    return f"{'│ ' * (line.depth - 1)}└ {line.id}" if line.depth else line.id


def _edge(line: TreeLine) -> str:
    if line.bond is None:
        return ""
    bond = "member" if line.bond == "member" else f"after, {line.edge}, on_dead={line.on_dead}"
    return f"{bond} (shown above)" if line.again else bond


def print_relatives(detail: JobDetail) -> None:
    """What a job comes after, and what comes after it, if anything."""
    rows = [("after", it) for it in detail.parents] + [("before", it) for it in detail.children]
    if rows:
        typer.echo()
        print_table(
            ("", "job", "state", "kind", "edge"),
            [
                ("member" if it.bond == "member" else word, it.id, it.state, it.kind, it.edge)
                for word, it in rows
            ],
            empty="",
            less=("kind",),
        )


def cancelling(who: Actor, *, tree: bool) -> Act:
    """How `jobs cancel` ends one job."""
    from stepfast.admin.jobs import cancel, cancel_tree

    if tree:
        return lambda tx, job_id: cancel_tree(tx, job_id, by=who).state
    return lambda tx, job_id: cancel(tx, job_id, by=who)


def retrying(who: Actor, *, tree: bool) -> Act:
    """How `jobs retry` revives one job."""
    from stepfast.admin.jobs import retry, retry_tree

    if tree:
        return lambda tx, job_id: retry_tree(tx, job_id, by=who).state
    return lambda tx, job_id: retry(tx, job_id, by=who)


# `stepfast jobs stats`: how each kind of job fares.


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
    """Tell by kind how many jobs ended, how well, how long they took, and what they failed of."""
    from stepfast.admin.statistics import kind_statistics
    from stepfast.clock import duration

    with usage("--since"):
        past = duration(span(since) or 0, "since")
    with opened(ctx, database_url) as database, database.reading() as tx:
        found = kind_statistics(tx, past, kind)
    if json:
        print_json(found)
        return
    print_table(
        (
            "kind",
            "done",
            "dead",
            "cancelled",
            "success",
            "average s",
            "median s",
            "95 % s",
            "longest s",
            "wait s",
        ),
        [
            (
                it.kind,
                it.done,
                it.dead,
                it.cancelled,
                "" if it.success_rate is None else f"{it.success_rate:.1%}",
                it.average_seconds,
                it.median_seconds,
                it.p95_seconds,
                it.longest_seconds,
                it.average_wait_seconds,
            )
            for it in found
        ],
        empty=f"no job ended in the last {since}",
        less=("wait s", "average s", "cancelled", "longest s"),
    )
    failures = [(it.kind, failure) for it in found for failure in it.failures]
    if failures:
        typer.echo()
        print_table(
            ("kind", "dead", "retrying", "recovered", "last (UTC)", "error"),
            [(name, it.dead, it.retrying, it.recovered, it.last_at, it.error_group) for name, it in failures],
            empty="",
            less=("recovered", "last (UTC)"),
        )


# `stepfast jobs watch`: one job as it comes along: a bar for people, lines for pipes, JSON lines for programs.

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
    from stepfast.jobs.state import JobState
    from stepfast.results.outcome import PLAIN_READER
    from stepfast.results.watch import Watch

    given = span(timeout)
    with usage("--timeout"):
        patience = None if given is None else duration(given, "timeout")
    with opened(ctx, database_url) as database:
        updates = Watch(database, job_id, patience, lambda _: PLAIN_READER, beyond_death=follow)
        try:
            with _shown(json=json) as show:
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

    from stepfast.results.watch import Ended, Logged, Progressed

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
    from stepfast.admin.jobs import shown

    return shown(outcome.stored, f"result of {outcome.kind}")


def _line(update: Update) -> str:
    from stepfast.results.watch import Ended, Logged, Progressed

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
    from stepfast.jobs.payload import to_json

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


app = typer.Typer(help="Look at jobs, revive them, stop them.", no_args_is_help=True)

Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Which jobs.")]


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
    from stepfast.admin.jobs import list_jobs

    wanted = _states(state or [])
    with opened(ctx, database_url) as database, database.reading() as tx:
        found = list_jobs(tx, wanted, kind=kind, queue=queue, limit=limit, before=before)
    if json:
        print_json(found)
        return
    print_jobs(found, "no such jobs")
    if len(found) == limit:
        typer.echo(f"more with --before {found[-1].id}", err=True)


@app.command("show")
def show(
    ctx: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Which job.")],
    *,
    logs: Annotated[
        int, typer.Option("--logs", metavar="N", min=0, help="Show so many lines of its log, the newest.")
    ] = 100,
    decrypt: Annotated[
        bool,
        typer.Option(
            "--decrypt", help="Show what is encrypted, with STEPFAST_SECRET_KEY; that is written down."
        ),
    ] = False,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show everything about one job: state, attempts, lease, error, progress, payload, result and log."""
    from stepfast.admin.encryption import show_decrypted
    from stepfast.admin.jobs import show_job
    from stepfast.database.database import persist

    with opened(ctx, database_url) as database:
        if decrypt:
            who = actor(by, reason)
            detail = persist(database, lambda tx: show_decrypted(tx, job_id, logs=logs, by=who))
        else:
            with database.reading() as tx:
                detail = show_job(tx, job_id, logs=logs)
    print_job(detail, json=json)


app.command("watch", short_help="Follow a job to its end.")(watch)


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
    act = retrying(actor(by, reason), tree=tree)
    _each(ctx, ids, act, words, json=json, database_url=database_url)


@app.command("cancel")
def cancel(
    ctx: typer.Context,
    ids: Ids,
    *,
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="TEXT", help="Why; kept with the job.", show_default=False),
    ] = None,
    tree: Tree = False,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """End jobs that wait; ask those that run to stop."""
    words = {"cancelled": "is cancelled", "leased": "is running; its worker was asked to stop it"}
    act = cancelling(actor(by, reason), tree=tree)
    _each(ctx, ids, act, words, json=json, database_url=database_url)


app.command("tree", short_help="Show what comes after a job.")(tree)
app.command("stats")(stats)


def print_jobs(found: list[JobSummary], empty: str) -> None:
    print_table(
        ("id", "state", "kind", "queue", "try", "%", "created (UTC)", "held by", "error"),
        [
            (
                it.id,
                it.state,
                it.kind,
                it.queue,
                it.attempts,
                it.progress or "",
                it.created_at,
                it.locked_by,
                it.last_error,
            )
            for it in found
        ],
        empty=empty,
        less=("%", "try", "queue", "created (UTC)", "held by", "kind"),
    )


def print_job(detail: JobDetail, *, json: bool) -> None:
    from stepfast.jobs.payload import to_json

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
    waits = None if detail.waits_for is None else f"{detail.waits_for}, until {said(detail.job.ready_at)}"
    documents = (("payload", detail.payload), ("cursor", detail.cursor), ("result", detail.result))
    facts: list[tuple[str, Any]] = [(name.replace("_", " "), value) for name, value in job.items()]
    facts += [(name, None if it is None else to_json(it)) for name, it in documents]
    print_facts([*facts, ("waits for", waits), ("result expired at", detail.result_expired_at)])
    print_relatives(detail)
    if detail.logs:
        typer.echo()
    for line in detail.logs:
        typer.echo(f"{said(line.at)}  {line.level:<7}  {said(line.message)}")


def _states(names: list[str]) -> set[JobState]:
    from stepfast.jobs.state import ENDED, LIVE, JobState

    groups = {"live": set(LIVE), "ended": set(ENDED)} | {state.value: {state} for state in JobState}
    wanted: set[JobState] = set()
    for name in (part.strip() for given in names for part in given.split(",")):
        if name not in groups:
            raise typer.BadParameter(f"{name!r} is no state; use {', '.join([*JobState, 'live', 'ended'])}")
        wanted |= groups[name]
    return wanted


def _each(
    ctx: typer.Context,
    ids: list[str],
    action: Callable[[Transaction, str], JobState],
    words: dict[str, str],
    *,
    json: bool,
    database_url: str | None,
) -> None:
    """Do it to each job by itself; one that refuses does not stop the others, but the exit code tells."""
    from stepfast.database.database import persist

    def attempt(database: Database, job_id: str) -> JobState:
        return persist(database, lambda tx: action(tx, job_id))

    done: list[dict[str, str | None]] = []
    with opened(ctx, database_url) as database:
        for job_id in ids:
            try:
                state = attempt(database, job_id)
            except StepfastError as error:
                complain(str(error))
                done.append({"id": job_id, "state": None, "error": str(error)})
            else:
                done.append({"id": job_id, "state": state.value, "error": None})
                if not json:
                    typer.echo(f"job {job_id} {words.get(state.value, f'is {state}')}")
    if json:
        print_json(done)
    if any(it["error"] for it in done):
        raise typer.Exit(1)
