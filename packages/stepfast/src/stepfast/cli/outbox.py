"""`stepfast outbox`: messages that leave the database, and those that were given up."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Limit, Reason, Yes, operating
from stepfast.cli.output import Listing, answer, as_json, confirm, print_facts, print_json, progress
from stepfast.reports import Channel, MessageState

if TYPE_CHECKING:
    from stepfast.reports import DeadMessages, DestinationReport, MessageDetail, MessageSummary


app = typer.Typer(help="List messages, show, retry and purge them.", no_args_is_help=True)

OneChannel = Annotated[
    Channel | None,
    typer.Option("--channel", help="Only webhook, alert or export.", show_default=False),
]
Destination = Annotated[
    str | None,
    typer.Option(
        "--destination",
        metavar="NAME",
        help="Only messages to this destination, as `outbox destinations` prints it.",
        show_default=False,
    ),
]
OneId = Annotated[str | None, typer.Argument(metavar="ID", help="Only this message.", show_default=False)]
Every = Annotated[bool, typer.Option("--all", help="All messages that were given up.")]


def _next_try(message: MessageSummary) -> datetime | None:
    return message.due_at if message.state is MessageState.WAITING else None


MESSAGES: Listing[MessageSummary] = Listing(
    columns={
        "id": "id",
        "state": "state",
        "channel": "channel",
        "tries": "attempts",
        "created (UTC)": "created_at",
        "next try (UTC)": _next_try,
        "ended (UTC)": "ended_at",
        "job": "job_id",
        "to": "address",
        "error": "last_error",
    },
    empty="no messages",
    less=("job", "created (UTC)", "channel", "next try (UTC)", "ended (UTC)", "to", "tries"),
    cut=("to",),
)
DESTINATIONS: Listing[DestinationReport] = Listing(
    columns={
        "destination": "destination",
        "waiting": "waiting",
        "dead": "dead",
        "first since (UTC)": "oldest_at",
        "next try (UTC)": "due_at",
        "to": "address",
        "error": "last_error",
    },
    empty="nothing waits, nothing was given up",
    less=("first since (UTC)", "to", "next try (UTC)"),
)


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    state: Annotated[
        MessageState | None, typer.Option("--state", help="Only messages in this state.", show_default=False)
    ] = None,
    channel: OneChannel = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="ID", help="Only messages of this job.", show_default=False)
    ] = None,
    limit: Limit = 50,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List messages, the newest first."""
    with operating(ctx, database_url) as operator:
        found = operator.messages(state, channel=channel and channel.value, job_id=job, limit=limit)
    MESSAGES.show(found, json=json)


@app.command("show")
def show(
    ctx: typer.Context,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="Which message.")],
    *,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show everything about one message."""
    with operating(ctx, database_url) as operator:
        found = operator.message(message_id)
    if json:
        print_json(found)
    else:
        _print(found)


def _print(found: MessageDetail) -> None:
    message = found.message
    print_facts(
        (
            ("id", message.id),
            ("state", str(message.state)),
            ("channel", message.channel),
            ("to", message.address),
            ("destination", found.destination),
            ("tries", message.attempts),
            ("created", message.created_at),
            ("next try", _next_try(message)),
            ("ended", message.ended_at),
            ("job", message.job_id),
            ("key", found.key),
            ("trace", found.trace),
            ("error", message.last_error),
            ("waits", found.behind),
            ("headers", ", ".join(f"{name}: {value}" for name, value in found.headers.items())),
            ("body", as_json(found.body)),
        )
    )


@app.command("destinations")
def destinations(
    ctx: typer.Context, *, limit: Limit = 200, json: Json = False, database_url: DatabaseUrl = None
) -> None:
    """List destinations for which messages wait or were given up."""
    with operating(ctx, database_url) as operator:
        DESTINATIONS.show(operator.destinations(limit=limit), json=json)


@app.command("retry")
def retry(
    ctx: typer.Context,
    message_id: OneId = None,
    *,
    channel: OneChannel = None,
    destination: Destination = None,
    every: Every = False,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Retry messages that were given up, with fresh tries: one, those that match, or all.

    A message that waits for its next try is tried now.
    """
    which = _chosen(message_id, channel, destination, every=every)
    with operating(ctx, database_url, by, reason) as operator:
        if message_id is not None:
            operator.retry_message(message_id)
            retried = 1
        else:
            with progress("retrying", operator.count_dead_messages(which)) as tell:
                retried = operator.retry_dead_messages(which, progress=tell)
    sentence = f"{_messages(retried)} {'waits' if retried == 1 else 'wait'} to be sent"
    answer({"retried": retried}, sentence, json=json)


@app.command("purge")
def purge(
    ctx: typer.Context,
    message_id: OneId = None,
    *,
    channel: OneChannel = None,
    destination: Destination = None,
    every: Every = False,
    yes: Yes = False,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Delete messages that were given up, for good: one, those that match, or all."""
    which = _chosen(message_id, channel, destination, every=every)
    with operating(ctx, database_url, by, reason) as operator:
        total = 1 if message_id is not None else operator.count_dead_messages(which)
        confirm(f"Delete {_messages(total)} for good?", yes=yes or not total)
        if message_id is not None:
            operator.purge_message(message_id)
            purged = 1
        else:
            with progress("purging", total) as tell:
                purged = operator.purge_dead_messages(which, progress=tell)
    answer({"purged": purged}, f"{_messages(purged)} deleted", json=json)


def _chosen(
    message_id: str | None, channel: Channel | None, destination: str | None, *, every: bool
) -> DeadMessages:
    """The messages that are meant, said in exactly one way: a forgotten option must not mean all."""
    from stepfast.reports import DeadMessages

    filtered = channel is not None or destination is not None
    if [message_id is not None, filtered, every].count(True) != 1:
        raise typer.BadParameter("say which ones: an ID, or --channel, --destination, or --all")
    return DeadMessages(channel and channel.value, destination)


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"


@app.command("secret")
def secret(*, json: Json = False) -> None:
    """Make a new secret to sign webhooks with: for STEPFAST_WEBHOOK_SECRETS, and for the receiver."""
    from stepfast.notifications.webhook import new_secret

    made = new_secret()
    answer({"secret": made}, made, json=json)
