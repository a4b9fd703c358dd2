"""`stepfast queues`: how much waits in each, and whether it may be taken."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Reason, actor, opened
from stepfast.cli.output import print_json, print_table

app = typer.Typer(help="Look at queues, pause and resume them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Which queue.")]


@app.command("list")
def list_(ctx: typer.Context, *, json: Json = False, database_url: DatabaseUrl = None) -> None:
    """List queues with what waits in them."""
    from stepfast.admin.workers import list_queues

    with opened(ctx, database_url) as database, database.reading() as tx:
        found = list_queues(tx)
    if json:
        print_json(found)
        return
    print_table(
        (
            "queue",
            "ready",
            "scheduled",
            "leased",
            "suspect",
            "held",
            "waiting",
            "dead",
            "next waits",
            "paused since (UTC)",
            "note",
        ),
        [
            (
                it.queue,
                it.ready,
                it.scheduled,
                it.leased,
                it.suspect,
                it.held,
                it.waiting,
                it.dead,
                None if it.oldest_ready_seconds is None else timedelta(seconds=it.oldest_ready_seconds),
                it.paused_at,
                it.note,
            )
            for it in found
        ],
        empty="no queues: nothing waits, nothing is paused",
        less=("waiting", "suspect", "paused since (UTC)", "leased", "dead", "next waits"),
    )


@app.command("pause")
def pause(
    ctx: typer.Context,
    name: Name,
    *,
    note: Annotated[
        str | None, typer.Option("--note", metavar="TEXT", help="Why; shown to others.", show_default=False)
    ] = None,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Let nobody take jobs of this queue; what runs goes on."""
    from stepfast.admin.workers import has_jobs, pause_queue
    from stepfast.database.database import persist

    who = actor(by, reason)
    with opened(ctx, database_url) as database:
        changed = persist(database, lambda tx: pause_queue(tx, name, note, by=who))
        with database.reading() as tx:
            known = has_jobs(tx, name)
    if json:
        print_json({"queue": name, "paused": True, "changed": changed})
    else:
        typer.echo(f"queue {name} {'is' if changed else 'was already'} paused")
        if not known:
            typer.echo(
                f"no job has used queue {name} yet; check its name with: stepfast queues list", err=True
            )


@app.command("resume")
def resume(
    ctx: typer.Context,
    name: Name,
    *,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Let workers take its jobs again."""
    from stepfast.admin.workers import resume_queue
    from stepfast.database.database import persist

    who = actor(by, reason)
    with opened(ctx, database_url) as database:
        changed = persist(database, lambda tx: resume_queue(tx, name, by=who))
    if json:
        print_json({"queue": name, "paused": False, "changed": changed})
    else:
        typer.echo(f"queue {name} {'goes on' if changed else 'was not paused'}")
