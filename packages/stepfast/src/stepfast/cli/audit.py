"""`stepfast audit`: who did what, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from stepfast.cli.options import DatabaseUrl, Json, Limit, opened, span, usage
from stepfast.cli.output import print_json, print_table

app = typer.Typer(help="Look at what operators did.", no_args_is_help=True)


@app.callback()
def audit() -> None:
    """Look at what operators did."""


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    who: Annotated[
        str | None,
        typer.Option("--who", metavar="NAME", help="Only what this one did.", show_default=False),
    ] = None,
    what: Annotated[
        str | None,
        typer.Option(
            "--what", metavar="VERB", help="Only this action, for example queue.pause.", show_default=False
        ),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject", metavar="TEXT", help="Only what was done to this job or queue.", show_default=False
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="DURATION", help="How far to look back: 90s, 10m, 2h, 7d.", show_default=False
        ),
    ] = None,
    limit: Limit = 50,
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="ID",
            help="The next page: only what was done before this.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List what operators did, newest first: who, what, to what, and why."""
    from stepfast.admin.audit import list_audit
    from stepfast.clock import duration

    with usage("--since"):
        past = None if since is None else duration(span(since) or 0, "since")
    with opened(ctx, database_url) as database, database.reading() as tx:
        found = list_audit(tx, who=who, what=what, subject=subject, since=past, limit=limit, before=before)
    if json:
        print_json(found)
        return
    print_table(
        ("id", "when (UTC)", "who", "what", "subject", "rows", "ended", "why"),
        [
            (
                it.id,
                it.at,
                it.who,
                it.what,
                it.subject,
                it.touched,
                "" if it.ended_at else "no",
                it.why,
            )
            for it in found
        ],
        empty="nobody has done anything that matches",
        less=("ended", "rows", "id"),
    )
    if len(found) == limit:
        typer.echo(f"more with --before {found[-1].id}", err=True)
