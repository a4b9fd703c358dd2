"""`stepfast outbox`: what leaves the database, and what did not get through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Limit, Reason, actor, opened
from stepfast.cli.output import print_facts, print_json, print_table, progress
from stepfast.outbox.messages import Channel, MessageState

if TYPE_CHECKING:
    from stepfast.admin.outbox import DeadMessages, MessageDetail


app = typer.Typer(help="Messages: list, show, retry, purge.", no_args_is_help=True)


OneChannel = Annotated[
    Channel | None,
    typer.Option("--channel", help="Only webhook, alert or export.", show_default=False),
]
Destination = Annotated[
    str | None,
    typer.Option(
        "--destination",
        metavar="NAME",
        help="Only those to this destination, as `outbox destinations` prints it.",
        show_default=False,
    ),
]
OneId = Annotated[str | None, typer.Argument(metavar="ID", help="Only this one.", show_default=False)]
Every = Annotated[bool, typer.Option("--all", help="All that were given up.")]


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
    from stepfast.admin.outbox import list_messages

    with opened(ctx, database_url) as database, database.reading() as tx:
        found = list_messages(tx, state, channel=channel and channel.value, job_id=job, limit=limit)
    if json:
        print_json(found)
        return
    print_table(
        (
            "id",
            "state",
            "channel",
            "tries",
            "created (UTC)",
            "next try (UTC)",
            "ended (UTC)",
            "job",
            "to",
            "error",
        ),
        [
            (
                it.id,
                it.state.value,
                it.channel,
                it.attempts,
                it.created_at,
                it.due_at if it.state is MessageState.WAITING else None,
                it.ended_at,
                it.job_id,
                it.address,
                it.last_error,
            )
            for it in found
        ],
        empty="no messages",
        less=("job", "created (UTC)", "channel", "next try (UTC)", "ended (UTC)", "to", "tries"),
        cut=("to",),
    )


@app.command("show")
def show(
    ctx: typer.Context,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="Which message.")],
    *,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show everything about one message."""
    from stepfast.admin.outbox import show_message

    with opened(ctx, database_url) as database, database.reading() as tx:
        found = show_message(tx, message_id)
    if json:
        print_json(found)
    else:
        _print(found)


def _print(found: MessageDetail) -> None:
    from stepfast.jobs.payload import to_json

    it = found.message
    print_facts(
        (
            ("id", it.id),
            ("state", it.state.value),
            ("channel", it.channel),
            ("to", it.address),
            ("destination", found.destination),
            ("tries", it.attempts),
            ("created", it.created_at),
            ("next try", it.due_at if it.state is MessageState.WAITING else None),
            ("ended", it.ended_at),
            ("job", it.job_id),
            ("key", found.key),
            ("trace", found.trace),
            ("error", it.last_error),
            ("waits", found.behind),
            ("headers", ", ".join(f"{name}: {value}" for name, value in found.headers.items())),
            ("body", to_json(found.body)),
        )
    )


@app.command("destinations")
def destinations(
    ctx: typer.Context, *, limit: Limit = 200, json: Json = False, database_url: DatabaseUrl = None
) -> None:
    """List destinations for which something waits or was given up."""
    from stepfast.admin.outbox import list_destinations

    with opened(ctx, database_url) as database, database.reading() as tx:
        found = list_destinations(tx, limit=limit)
    if json:
        print_json(found)
        return
    print_table(
        ("destination", "waiting", "dead", "first since (UTC)", "next try (UTC)", "to", "error"),
        [
            (it.destination, it.waiting, it.dead, it.oldest_at, it.due_at, it.address, it.last_error)
            for it in found
        ],
        empty="nothing waits, nothing was given up",
        less=("first since (UTC)", "to", "next try (UTC)"),
    )


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
    """Try again what was given up, with fresh tries: one, those that match, or all. One that waits is tried now."""
    from stepfast.admin.outbox import count_dead_messages, retry_dead_messages, retry_message
    from stepfast.database.database import persist

    which, who = _chosen(message_id, channel, destination, every=every), actor(by, reason)
    with opened(ctx, database_url) as database:
        if message_id is not None:
            persist(database, lambda tx: retry_message(tx, message_id, by=who))
            retried = 1
        else:
            with database.reading() as tx:
                total = count_dead_messages(tx, which)
            with progress("retrying", total) as tell:
                retried = retry_dead_messages(database, which, tell, by=who)
    if json:
        print_json({"retried": retried})
    else:
        typer.echo(f"{_messages(retried)} {'waits' if retried == 1 else 'wait'} to be sent")


@app.command("purge")
def purge(
    ctx: typer.Context,
    message_id: OneId = None,
    *,
    channel: OneChannel = None,
    destination: Destination = None,
    every: Every = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Delete messages that were given up, for good: one, those that match, or all."""
    from stepfast.admin.outbox import count_dead_messages, purge_dead_messages, purge_message
    from stepfast.database.database import persist

    which, who = _chosen(message_id, channel, destination, every=every), actor(by, reason)
    with opened(ctx, database_url) as database:
        with database.reading() as tx:
            total = 1 if message_id is not None else count_dead_messages(tx, which)
        if total and not yes:
            typer.confirm(f"Delete {_messages(total)} for good?", abort=True, err=True)
        if message_id is not None:
            persist(database, lambda tx: purge_message(tx, message_id, by=who))
            purged = 1
        else:
            with progress("purging", total) as tell:
                purged = purge_dead_messages(database, which, tell, by=who)
    if json:
        print_json({"purged": purged})
    else:
        typer.echo(f"{_messages(purged)} deleted")


@app.command("secret")
def secret(*, json: Json = False) -> None:
    """Make a new secret to sign webhooks with: for STEPFAST_WEBHOOK_SECRETS, and for the receiver."""
    from stepfast.notifications.webhook import new_secret

    made = new_secret()
    if json:
        print_json({"secret": made})
    else:
        typer.echo(made)


def _chosen(
    message_id: str | None, channel: Channel | None, destination: str | None, *, every: bool
) -> DeadMessages:
    """What was meant, which must be said in exactly one way: nobody deletes everything by leaving something out."""
    from stepfast.admin.outbox import DeadMessages

    filtered = channel is not None or destination is not None
    if [message_id is not None, filtered, every].count(True) != 1:
        raise typer.BadParameter("say which ones: an ID, or --channel, --destination, or --all")
    return DeadMessages(channel and channel.value, destination)


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"
