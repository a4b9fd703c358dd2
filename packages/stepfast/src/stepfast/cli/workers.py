"""`stepfast workers`: which workers are alive, and what they do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import DatabaseUrl, Json, operating
from stepfast.cli.output import Listing

if TYPE_CHECKING:
    from stepfast.reports import WorkerReport


app = typer.Typer(help="List workers.", no_args_is_help=True)

WORKERS: Listing[WorkerReport] = Listing(
    columns={
        "worker": "worker_id",
        "state": lambda worker: "expired" if worker.state == "alive" and not worker.running else worker.state,
        "busy": "active_jobs",
        "of": "concurrency",
        "queues": "queues",
        "lease s": "lease_seconds",
        "heartbeat (UTC)": "beat_at",
        "alive until (UTC)": "alive_until",
        "host": "host",
        "pid": "pid",
        "guardian": "guardian_pid",
    },
    empty="no workers: start one with `stepfast worker module:app`",
    less=("alive until (UTC)", "host", "lease s", "heartbeat (UTC)", "queues"),
)


@app.callback()
def workers() -> None:
    """List workers."""


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    everyone: Annotated[
        bool, typer.Option("--all", help="Also workers that stopped or died in the last day.")
    ] = False,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List workers as their last heartbeat described them."""
    with operating(ctx, database_url) as operator:
        WORKERS.show(operator.workers(everyone=everyone), json=json)
