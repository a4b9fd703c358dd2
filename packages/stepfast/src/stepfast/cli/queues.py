"""`stepfast queues`: how many jobs wait in each queue, and whether workers may take them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Reason, operating
from stepfast.cli.output import Listing, answer

if TYPE_CHECKING:
    from stepfast.reports import QueueReport


app = typer.Typer(help="List queues, pause and resume them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Which queue.")]


def _next_waits(queue: QueueReport) -> timedelta | None:
    return None if queue.oldest_ready_seconds is None else timedelta(seconds=queue.oldest_ready_seconds)


QUEUES: Listing[QueueReport] = Listing(
    columns={
        "queue": "queue",
        "ready": "ready",
        "scheduled": "scheduled",
        "leased": "leased",
        "suspect": "suspect",
        "held": "held",
        "waiting": "waiting",
        "dead": "dead",
        "next waits": _next_waits,
        "paused since (UTC)": "paused_at",
        "note": "note",
    },
    empty="no queues: nothing waits, nothing is paused",
    less=("waiting", "suspect", "paused since (UTC)", "leased", "dead", "next waits"),
)


@app.command("list")
def list_(ctx: typer.Context, *, json: Json = False, database_url: DatabaseUrl = None) -> None:
    """List queues with the number of their jobs in each state."""
    with operating(ctx, database_url) as operator:
        QUEUES.show(operator.queues(), json=json)


@app.command("pause")
def pause(
    ctx: typer.Context,
    name: Name,
    *,
    note: Annotated[
        str | None,
        typer.Option("--note", metavar="TEXT", help="Note that `queues list` shows.", show_default=False),
    ] = None,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Pause a queue: no worker takes its jobs; jobs that run go on."""
    with operating(ctx, database_url, by, reason) as operator:
        changed = operator.pause(name, note)
        known = operator.queue_has_jobs(name)
    facts = {"queue": name, "paused": True, "changed": changed}
    answer(facts, f"queue {name} {'is' if changed else 'was already'} paused", json=json)
    if not known and not json:
        typer.echo(f"no job has used queue {name} yet; check its name with: stepfast queues list", err=True)


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
    """Resume a queue: workers take its jobs again."""
    with operating(ctx, database_url, by, reason) as operator:
        changed = operator.resume(name)
    facts = {"queue": name, "paused": False, "changed": changed}
    answer(facts, f"queue {name} {'goes on' if changed else 'was not paused'}", json=json)
