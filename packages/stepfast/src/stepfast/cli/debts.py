"""`stepfast debts`: what could not be verified, and must be read again."""

from __future__ import annotations

from typing import Annotated

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Limit, OneFeed, Reason, Why, actor, opened
from stepfast.cli.output import print_json, print_table

app = typer.Typer(help="Ranges that must be read again: list, close, retry.", no_args_is_help=True)

OneDebt = Annotated[int, typer.Argument(metavar="ID", help="Which debt.")]


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    feed: OneFeed = None,
    everything: Annotated[bool, typer.Option("--all", help="Also those that are closed.")] = False,
    limit: Limit = 50,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List debts, the latest first. One that was given up is read again only after `debts retry`."""
    from stepfast.admin.debts import list_debts

    with opened(ctx, database_url) as database, database.reading() as tx:
        found = list_debts(tx, feed=feed, everything=everything, limit=limit)
    if json:
        print_json(found)
        return
    print_table(
        (
            "id",
            "feed",
            "state",
            "tries",
            "from (UTC)",
            "to (UTC)",
            "opened (UTC)",
            "closed by",
            "range",
            "reason",
        ),
        [
            (
                it.id,
                it.feed,
                it.state,
                it.tries,
                it.window_from or "ever",
                it.window_to,
                it.opened_at,
                it.closed_by,
                it.range,
                it.reason,
            )
            for it in found
        ],
        empty="no debts" if everything else "no open debts",
        less=("closed by", "opened (UTC)", "from (UTC)"),
        cut=("range",),
    )


@app.command("close")
def close(
    ctx: typer.Context,
    debt_id: OneDebt,
    *,
    reason: Why,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Accept that a range may be incomplete in its window: nobody reads it again for that."""
    from stepfast.admin.debts import close_debt
    from stepfast.database.database import persist

    who = actor(by, reason)
    with opened(ctx, database_url) as database:
        persist(database, lambda tx: close_debt(tx, debt_id, by=who))
    if json:
        print_json({"id": debt_id, "state": "closed"})
    else:
        typer.echo(f"debt {debt_id} is closed")


@app.command("retry")
def retry(
    ctx: typer.Context,
    debt_id: OneDebt,
    *,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Let the next runs read it again, with fresh tries; one that was closed is open again."""
    from stepfast.admin.debts import retry_debt
    from stepfast.database.database import persist

    who = actor(by, reason)
    with opened(ctx, database_url) as database:
        persist(database, lambda tx: retry_debt(tx, debt_id, by=who))
    if json:
        print_json({"id": debt_id, "state": "open"})
    else:
        typer.echo(f"debt {debt_id} is read by the next run")
