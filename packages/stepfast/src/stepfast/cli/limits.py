"""`stepfast limits`: what is taken, and who waits for it."""

from __future__ import annotations

from typing import Annotated

import typer

from stepfast.cli.options import DatabaseUrl, Json, opened
from stepfast.cli.output import print_json, print_table

app = typer.Typer(help="Look at rate and concurrency limits.", no_args_is_help=True)


@app.callback()
def limits() -> None:
    """Look at rate and concurrency limits."""


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that hold nobody and are not in use.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Show at most so many.")] = 100,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List limits, those that hold jobs first."""
    from stepfast.admin.statistics import list_limits

    with opened(ctx, database_url) as database, database.reading() as tx:
        found = list_limits(tx, everything=everything, limit=limit)
    if json:
        print_json(found)
        return
    print_table(
        ("limit", "taken", "of", "room now", "held", "next look (UTC)"),
        [(it.limit, it.taken, it.slots, it.room, it.held, it.next_look_at) for it in found],
        empty="no limit holds a job or is in use",
        less=("next look (UTC)",),
    )
