"""`stepfast limits`: which limits are in use, and how many jobs they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import MOST_ROWS, DatabaseUrl, Json, operating
from stepfast.cli.output import Listing

if TYPE_CHECKING:
    from stepfast.reports import LimitReport


app = typer.Typer(help="List rate and concurrency limits.", no_args_is_help=True)

LIMITS: Listing[LimitReport] = Listing(
    columns={
        "limit": "limit",
        "taken": "taken",
        "of": "slots",
        "room now": "room",
        "held": "held",
        "next look (UTC)": "next_look_at",
    },
    empty="no limit holds a job or is in use",
    less=("next look (UTC)",),
)


@app.callback()
def limits() -> None:
    """List rate and concurrency limits."""


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also limits that hold no job and are not in use.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=MOST_ROWS, help="The most rows to show.")
    ] = 100,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List limits, those that hold jobs first."""
    with operating(ctx, database_url) as operator:
        LIMITS.show(operator.limits(everything=everything, limit=limit), json=json)
