"""`stepfast sweeps`: rows that are gone at the source, and those that a person must decide about."""

from __future__ import annotations

from typing import Annotated

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Limit, OneFeed, Why, actor, opened
from stepfast.cli.output import print_json, print_table, progress

app = typer.Typer(help="Rows that are gone: list, approve, decline, undo.", no_args_is_help=True)

OneRun = Annotated[
    str, typer.Argument(metavar="RUN", help="An id or its beginning, a feed for its newest run, or `latest`.")
]


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    feed: OneFeed = None,
    limit: Limit = 50,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List sweeps, the latest first. One that is held waits for `approve` or `decline`."""
    from stepfast.admin.sweeps import list_sweeps

    with opened(ctx, database_url) as database, database.reading() as tx:
        found = list_sweeps(tx, feed=feed, limit=limit)
    if json:
        print_json(found)
        return
    print_table(
        ("run", "feed", "run is", "sweep is", "living", "unseen", "going", "gone", "started (UTC)", "note"),
        [
            (
                it.run_id,
                it.feed,
                it.run_state,
                it.phase,
                it.living,
                it.unseen,
                it.going,
                it.gone,
                it.started_at,
                it.note,
            )
            for it in found
        ],
        empty="no sweeps",
        less=("started (UTC)", "unseen", "living", "run is"),
    )


@app.command("approve")
def approve(
    ctx: typer.Context,
    run: OneRun,
    *,
    reason: Why,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Let the rows go that a fuse holds; the run then completes."""
    from stepfast.admin.sweeps import approve_sweep
    from stepfast.database.database import persist

    who = actor(by, reason)
    with opened(ctx, database_url) as database:
        held = persist(database, lambda tx: approve_sweep(tx, run, by=who))
    if json:
        print_json({"going": held.going, "living": held.living})
    else:
        typer.echo(f"{_rows(held.going)} of {held.living:,} will be marked as gone")


@app.command("decline")
def decline(
    ctx: typer.Context,
    run: OneRun,
    *,
    reason: Why,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Keep the rows that a fuse holds; the run then completes without marking any."""
    from stepfast.admin.sweeps import decline_sweep
    from stepfast.database.database import persist

    who = actor(by, reason)
    with opened(ctx, database_url) as database:
        held = persist(database, lambda tx: decline_sweep(tx, run, by=who))
    if json:
        print_json({"kept": held.going, "living": held.living})
    else:
        typer.echo(f"{_rows(held.going)} of {held.living:,} {'stays' if held.going == 1 else 'stay'}")


@app.command("undo")
def undo(
    ctx: typer.Context,
    run: OneRun,
    *,
    reason: Why,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Bring back all rows that a run has marked as gone, as far as nobody has seen them since."""
    from stepfast.admin.run_reports import resolve, run_report
    from stepfast.admin.sweeps import undo_sweep

    who = actor(by, reason)
    with opened(ctx, database_url) as database:
        with database.reading() as tx:
            total = run_report(tx, resolve(tx, run)).gone
        with progress("bringing back", total) as tell:
            back = undo_sweep(database, run, tell, by=who)
    if json:
        print_json({"back": back})
    else:
        typer.echo(f"{_rows(back)} {'is' if back == 1 else 'are'} back")


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
