"""`stepfast audit`: what operators did, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import DatabaseUrl, Json, Limit, operating, span, usage
from stepfast.cli.output import Listing

if TYPE_CHECKING:
    from stepfast.reports import AuditEntry


app = typer.Typer(help="List what operators did.", no_args_is_help=True)

ENTRIES: Listing[AuditEntry] = Listing(
    columns={
        "id": "id",
        "when (UTC)": "at",
        "who": "who",
        "what": "what",
        "subject": "subject",
        "rows": "touched",
        "ended": lambda entry: "" if entry.ended_at else "no",
        "why": "why",
    },
    empty="nobody has done anything that matches",
    less=("ended", "rows", "id"),
)


@app.callback()
def audit() -> None:
    """List what operators did."""


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    who: Annotated[
        str | None,
        typer.Option("--who", metavar="NAME", help="Only actions of this operator.", show_default=False),
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
            "--subject", metavar="TEXT", help="Only actions on this job or queue.", show_default=False
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
            help="The next page: only older entries than this.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List what operators did, newest first: who, what, to what, and why."""
    from stepfast.clock import duration

    with usage("--since"):
        past = None if since is None else duration(span(since) or 0, "since")
    with operating(ctx, database_url) as operator:
        found = operator.audit(who=who, what=what, subject=subject, since=past, limit=limit, before=before)
    ENTRIES.show(found, json=json, page=limit)
