"""`stepfast events`: send events to jobs that wait for them, and list both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Limit, Reason, operating, span, usage
from stepfast.cli.output import Listing, answer, as_json

if TYPE_CHECKING:
    from stepfast.reports import KeptEvent, Sent, WaitReport


app = typer.Typer(help="Send events to jobs that wait for them, and list both.", no_args_is_help=True)

KEPT_EVENTS: Listing[KeptEvent] = Listing(
    columns={
        "event": "event",
        "id": "id",
        "sent (UTC)": "sent_at",
        "kept until (UTC)": "kept_until",
        "payload": lambda event: as_json(event.payload),
    },
    empty="no events are kept",
    less=("id", "sent (UTC)"),
)
WAITS: Listing[WaitReport] = Listing(
    columns={
        "job": "job_id",
        "kind": "kind",
        "queue": "queue",
        "waits until (UTC)": "waits_until",
        "event": "event",
    },
    empty="no job waits for an event",
    less=("queue", "kind"),
)


@app.command("send")
def send(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which event, such as payment:42.")],
    *,
    payload: Annotated[
        str | None,
        typer.Option("--payload", metavar="JSON", help="Payload for the job, as JSON.", show_default=False),
    ] = None,
    id: Annotated[  # noqa: A002 - the word users know
        str | None,
        typer.Option(
            "--id",
            metavar="TEXT",
            help="Id of the event; a second event with it changes nothing.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        str, typer.Option("--keep", metavar="DURATION", help="How long to keep it if no job waits for it.")
    ] = "1d",
    encrypted: Annotated[
        bool, typer.Option("--encrypted", help="Encrypt the payload with STEPFAST_SECRET_KEY.")
    ] = False,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Send an event to the job that has waited longest for it, or keep it for the next job that waits."""
    value = _value(payload)
    with operating(ctx, database_url, by, reason) as operator, usage():
        sent = operator.send_event(name, value, keep=span(keep) or 0, id=id, encrypted=encrypted)
    answer(sent, _sentence(sent), json=json)


def _sentence(sent: Sent) -> str:
    if sent.repeated:
        return f"an event with the id {sent.id} was sent before; nothing happened now"
    if sent.job_id is not None:
        return f"job {sent.job_id} has it"
    return "nobody waits for it; it is kept" if sent.kept else "nobody waits for it; it is gone"


def _value(text: str | None) -> Any:
    import msgspec

    try:
        return None if text is None else msgspec.json.decode(text)
    except ValueError as error:
        raise typer.BadParameter(f"no JSON: {error}", param_hint="--payload") from None


@app.command("list")
def list_(
    ctx: typer.Context, *, limit: Limit = 50, json: Json = False, database_url: DatabaseUrl = None
) -> None:
    """List events that are kept, the oldest first."""
    with operating(ctx, database_url) as operator:
        KEPT_EVENTS.show(operator.kept_events(limit=limit), json=json)


@app.command("waits")
def waits(
    ctx: typer.Context, *, limit: Limit = 50, json: Json = False, database_url: DatabaseUrl = None
) -> None:
    """List jobs that wait for an event, the longest first."""
    with operating(ctx, database_url) as operator:
        WAITS.show(operator.waits(limit=limit), json=json)
