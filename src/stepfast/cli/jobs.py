"""`stepfast jobs`: look at jobs, revive them, stop them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepfast.cli.job_tree import Tree, cancelling, print_relatives, retrying
from stepfast.cli.job_tree import tree as job_tree
from stepfast.cli.options import By, DatabaseUrl, Json, Kind, Limit, Queue, Reason, actor, opened
from stepfast.cli.output import complain, print_facts, print_json, print_table, said
from stepfast.cli.statistics import stats
from stepfast.cli.watch import watch
from stepfast.errors import StepfastError

if TYPE_CHECKING:
    from stepfast.admin.reports.jobs import JobDetail, JobSummary
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.steps.job import JobState

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
    from stepfast.admin.reports.jobs import list_jobs

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
    from stepfast.admin.keys import show_decrypted
    from stepfast.admin.reports.jobs import show_job
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


app.command("tree", short_help="Show what comes after a job.")(job_tree)
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
    from stepfast.steps.payload import to_json

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
    from stepfast.steps.job import ENDED, LIVE, JobState

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
