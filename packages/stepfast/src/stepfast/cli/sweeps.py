"""`stepfast sweeps`: rows that are gone at the source, and sweeps that an operator must decide about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Limit, OneFeed, RequiredReason, operating
from stepfast.cli.output import Listing, answer, progress

if TYPE_CHECKING:
    from stepfast.reports import SweepReport


app = typer.Typer(help="List sweeps of gone rows, approve, decline or undo them.", no_args_is_help=True)

OneRun = Annotated[
    str, typer.Argument(metavar="RUN", help="An id or its beginning, a feed for its newest run, or `latest`.")
]

SWEEPS: Listing[SweepReport] = Listing(
    columns={
        "run": "run_id",
        "feed": "feed",
        "run is": "run_state",
        "sweep is": "phase",
        "living": "living",
        "unseen": "unseen",
        "going": "going",
        "gone": "gone",
        "started (UTC)": "started_at",
        "note": "note",
    },
    empty="no sweeps",
    less=("started (UTC)", "unseen", "living", "run is"),
)


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    feed: OneFeed = None,
    limit: Limit = 50,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List sweeps, the latest first. A sweep that is held waits for `approve` or `decline`."""
    with operating(ctx, database_url) as operator:
        SWEEPS.show(operator.sweeps(feed, limit=limit), json=json)


@app.command("approve")
def approve(
    ctx: typer.Context,
    run: OneRun,
    *,
    reason: RequiredReason,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Mark the rows as gone that a fuse holds; the run then completes."""
    with operating(ctx, database_url, by, reason) as operator:
        held = operator.approve_sweep(run)
    sentence = f"{_rows(held.going)} of {held.living:,} will be marked as gone"
    answer({"going": held.going, "living": held.living}, sentence, json=json)


@app.command("decline")
def decline(
    ctx: typer.Context,
    run: OneRun,
    *,
    reason: RequiredReason,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Keep the rows that a fuse holds; the run then completes without marking any."""
    with operating(ctx, database_url, by, reason) as operator:
        held = operator.decline_sweep(run)
    sentence = f"{_rows(held.going)} of {held.living:,} {'stays' if held.going == 1 else 'stay'}"
    answer({"kept": held.going, "living": held.living}, sentence, json=json)


@app.command("undo")
def undo(
    ctx: typer.Context,
    run: OneRun,
    *,
    reason: RequiredReason,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Bring back all rows that a run has marked as gone, unless a later run has seen them since."""
    with operating(ctx, database_url, by, reason) as operator:
        gone = operator.runs.report(run).gone
        with progress("bringing back", gone) as tell:
            back = operator.undo_sweep(run, progress=tell)
    answer({"back": back}, f"{_rows(back)} {'is' if back == 1 else 'are'} back", json=json)


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
