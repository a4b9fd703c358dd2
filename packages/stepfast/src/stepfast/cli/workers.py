"""`stepfast workers`: who lives, and what it does."""

from __future__ import annotations

from typing import Annotated

import typer

from stepfast.cli.options import DatabaseUrl, Json, opened
from stepfast.cli.output import print_json, print_table

app = typer.Typer(help="Look at workers.", no_args_is_help=True)


@app.callback()
def workers() -> None:
    """Look at workers."""


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    everyone: Annotated[
        bool, typer.Option("--all", help="Also those that stopped or died in the last day.")
    ] = False,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List workers with what their last heartbeat said."""
    from stepfast.admin.workers import list_workers

    with opened(ctx, database_url) as database, database.reading() as tx:
        found = list_workers(tx, everyone=everyone)
    if json:
        print_json(found)
        return
    print_table(
        (
            "worker",
            "state",
            "busy",
            "of",
            "queues",
            "lease s",
            "heartbeat (UTC)",
            "alive until (UTC)",
            "host",
            "pid",
        ),
        [
            (
                it.worker_id,
                "expired" if it.state == "alive" and not it.running else it.state,
                it.active_jobs,
                it.concurrency,
                it.queues,
                it.lease_seconds,
                it.beat_at,
                it.alive_until,
                it.host,
                it.pid,
            )
            for it in found
        ],
        empty="no workers: start one with `stepfast worker module:app`",
        less=("alive until (UTC)", "host", "lease s", "heartbeat (UTC)", "queues"),
    )
