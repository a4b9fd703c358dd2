"""`stepfast events`: tell jobs that wait what happened, and see who waits for what."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Limit, Reason, actor, opened, span, usage
from stepfast.cli.output import print_json, print_table

app = typer.Typer(help="Events that jobs wait for.", no_args_is_help=True)


@app.command("send")
def send(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which event, such as payment:42.")],
    *,
    payload: Annotated[
        str | None,
        typer.Option("--payload", metavar="JSON", help="What the job is told, as JSON.", show_default=False),
    ] = None,
    id: Annotated[  # noqa: A002 - the word users know
        str | None,
        typer.Option("--id", metavar="TEXT", help="The same id again changes nothing.", show_default=False),
    ] = None,
    keep: Annotated[
        str, typer.Option("--keep", metavar="DURATION", help="If nobody waits: keep it for so long.")
    ] = "1d",
    encrypted: Annotated[
        bool, typer.Option("--encrypted", help="Store its payload under STEPFAST_SECRET_KEY.")
    ] = False,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Send an event: to the job that has waited longest for it, or to the first that will."""
    from stepfast.admin.events import send_event
    from stepfast.database.database import persist
    from stepfast.jobs.events import SendEvent

    with usage():
        event = SendEvent.of(name, _value(payload), span(keep) or 0, id, encrypted=encrypted)
    with opened(ctx, database_url) as database:
        sent = persist(database, lambda tx: send_event(tx, event, by=actor(by, reason)))
    if json:
        print_json(sent)
    elif sent.repeated:
        typer.echo(f"an event with the id {sent.id} was sent before; nothing happened now")
    elif sent.job_id is not None:
        typer.echo(f"job {sent.job_id} has it")
    else:
        typer.echo("nobody waits for it; it is kept" if sent.kept else "nobody waits for it; it is gone")


@app.command("list")
def list_(
    ctx: typer.Context, *, limit: Limit = 50, json: Json = False, database_url: DatabaseUrl = None
) -> None:
    """List events that are kept, the oldest first."""
    from stepfast.admin.events import list_kept_events
    from stepfast.jobs.payload import to_json

    with opened(ctx, database_url) as database, database.reading() as tx:
        found = list_kept_events(tx, limit=limit)
    if json:
        print_json(found)
        return
    print_table(
        ("event", "id", "sent (UTC)", "kept until (UTC)", "payload"),
        [(it.event, it.id, it.sent_at, it.kept_until, to_json(it.payload)) for it in found],
        empty="no events are kept",
        less=("id", "sent (UTC)"),
    )


@app.command("waits")
def waits(
    ctx: typer.Context, *, limit: Limit = 50, json: Json = False, database_url: DatabaseUrl = None
) -> None:
    """List jobs that wait for an event, the longest first."""
    from stepfast.admin.events import list_waits

    with opened(ctx, database_url) as database, database.reading() as tx:
        found = list_waits(tx, limit=limit)
    if json:
        print_json(found)
        return
    print_table(
        ("job", "kind", "queue", "waits until (UTC)", "event"),
        [(it.job_id, it.kind, it.queue, it.waits_until, it.event) for it in found],
        empty="no job waits for an event",
        less=("queue", "kind"),
    )


def _value(text: str | None) -> Any:
    import msgspec

    try:
        return None if text is None else msgspec.json.decode(text)
    except ValueError as error:
        raise typer.BadParameter(f"no JSON: {error}", param_hint="--payload") from None
