"""`stepfast dead-letters`: jobs that gave up, and what to do with them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepfast.cli.jobs import print_job, print_jobs
from stepfast.cli.options import By, DatabaseUrl, ErrorGroup, Json, Kind, Limit, Queue, Reason, actor, opened
from stepfast.cli.output import print_facts, print_json, print_table, progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.admin.jobs import JobSummary
    from stepfast.jobs.dead_letters import Filter
    from stepfast.transports.dead_messages import DeadMessage


# Dead letters of brokers, as the commands about dead letters show them.

OURS = "job"  # the origin of a dead letter that is a job


def print_both(jobs: Sequence[JobSummary], messages: Sequence[DeadMessage], limit: int) -> None:
    """One list, the latest first, with where each comes from."""
    rows: list[tuple[Any, ...]] = [
        (it.id, OURS, it.kind, it.queue, it.attempts, it.finished_at, it.last_error) for it in jobs
    ]
    rows += [(it.id, it.origin, it.subject, it.queue, it.attempts, it.found_at, said(it)) for it in messages]
    rows.sort(key=lambda row: (row[5] is not None, row[5]), reverse=True)
    print_table(
        ("id", "origin", "kind", "queue", "try", "died (UTC)", "error"),
        rows[:limit],
        empty="no dead letters",
        less=("try", "queue", "died (UTC)"),
    )


def print_message(message: DeadMessage, *, json: bool) -> None:
    """Everything about one."""
    facts = message_facts(message) | {"properties": dict(message.properties), "body": message.body}
    if json:
        print_json(facts)
    else:
        print_facts([(name.replace("_", " "), value) for name, value in facts.items()])


def message_facts(message: DeadMessage) -> dict[str, Any]:
    """As JSON tells it in a list: without what it says, which may be long."""
    facts = asdict(message)
    for name in ("properties", "body"):
        del facts[name]
    return {"origin": message.origin, **facts}


def said(message: DeadMessage) -> str:
    return f"{message.reason}: {message.detail}" if message.detail else message.reason


app = typer.Typer(help="Jobs that gave up, and messages put aside: list, retry, purge.", no_args_is_help=True)

OneId = Annotated[str | None, typer.Argument(metavar="ID", help="Only this one.", show_default=False)]
Every = Annotated[bool, typer.Option("--all", help="All of them.")]


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    kind: Kind = None,
    queue: Queue = None,
    error: ErrorGroup = None,
    by_error: Annotated[bool, typer.Option("--by-error", help="Count them by kind and error.")] = False,
    limit: Limit = 50,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List dead letters, also those of brokers, the latest first; or what they died of."""
    from stepfast.admin.dead_letters import Filter, failure_groups, list_dead_letters, list_dead_messages

    which = Filter(kind, queue, error)
    with opened(ctx, database_url) as database, database.reading() as tx:
        letters = [] if by_error else list_dead_letters(tx, which, limit=limit)
        groups = failure_groups(tx, which, limit=limit) if by_error else []
        messages = [] if by_error else list_dead_messages(tx, which, limit=limit)
    if json:
        print_json(groups if by_error else [*letters, *map(message_facts, messages)])
    elif by_error:
        print_table(
            ("kind", "count", "first (UTC)", "last (UTC)", "newest", "error"),
            [(it.kind, it.count, it.first_at, it.last_at, it.newest_id, it.error_group) for it in groups],
            empty="no dead letters",
            less=("first (UTC)", "newest", "last (UTC)"),
        )
    elif messages:
        print_both(letters, messages, limit)
    else:
        print_jobs(letters, "no dead letters")


@app.command("show")
def show(
    ctx: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Which dead letter.")],
    *,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show everything about one dead letter."""
    from stepfast.admin.dead_letters import show_dead_letter
    from stepfast.transports.dead_messages import find

    with opened(ctx, database_url) as database, database.reading() as tx:
        if (message := find(tx, job_id)) is not None:
            print_message(message, json=json)
        else:
            print_job(show_dead_letter(tx, job_id), json=json)


@app.command("retry")
def retry(
    ctx: typer.Context,
    job_id: OneId = None,
    *,
    kind: Kind = None,
    queue: Queue = None,
    error: ErrorGroup = None,
    every: Every = False,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Try dead letters again, with fresh attempts: one, those that match, or all."""
    from stepfast.admin.dead_letters import count_dead, retry_dead, retry_dead_letter
    from stepfast.database.database import persist

    who = actor(by, reason)
    which = _chosen(job_id, kind, queue, error, every=every)
    with opened(ctx, database_url) as database:
        if job_id is not None:
            persist(database, lambda tx: retry_dead_letter(tx, job_id, by=who))
            retried, refused = 1, 0
        else:
            with database.reading() as tx:
                total = count_dead(tx, which)
            with progress("retrying", total) as tell:
                done = retry_dead(database, which, tell, by=who)
            retried, refused = done.retried, done.refused
    if json:
        print_json({"retried": retried, "refused": refused})
        return
    typer.echo(f"{_letters(retried)} {'is' if retried == 1 else 'are'} ready to be tried again")
    if refused:
        typer.echo(f"{_letters(refused)} not retried: unfinished jobs hold the same keys", err=True)


@app.command("purge")
def purge(
    ctx: typer.Context,
    job_id: OneId = None,
    *,
    kind: Kind = None,
    queue: Queue = None,
    error: ErrorGroup = None,
    every: Every = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Delete dead letters and their logs for good: one, those that match, or all."""
    from stepfast.admin.dead_letters import count_dead, purge_dead, purge_dead_letter
    from stepfast.database.database import persist

    who = actor(by, reason)
    which = _chosen(job_id, kind, queue, error, every=every)
    with opened(ctx, database_url) as database:
        with database.reading() as tx:
            total = 1 if job_id is not None else count_dead(tx, which)
        if total and not yes:
            typer.confirm(f"Delete {_letters(total)} for good?", abort=True, err=True)
        if job_id is not None:
            persist(database, lambda tx: purge_dead_letter(tx, job_id, by=who))
            purged = 1
        else:
            with progress("purging", total) as tell:
                purged = purge_dead(database, which, tell, by=who)
    if json:
        print_json({"purged": purged})
    else:
        typer.echo(f"{_letters(purged)} deleted")


def _chosen(
    job_id: str | None, kind: str | None, queue: str | None, error: str | None, *, every: bool
) -> Filter:
    """What was meant, which must be said in exactly one way: nobody deletes everything by leaving something out."""
    from stepfast.jobs.dead_letters import Filter

    filtered = any(it is not None for it in (kind, queue, error))
    if [job_id is not None, filtered, every].count(True) != 1:
        raise typer.BadParameter("say which ones: an ID, or --kind, --queue, --error, or --all")
    return Filter(kind, queue, error)


def _letters(count: int) -> str:
    return f"{count:,} dead letter{'' if count == 1 else 's'}"
