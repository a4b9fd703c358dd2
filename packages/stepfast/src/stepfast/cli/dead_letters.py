"""`stepfast dead-letters`: jobs that gave up, and messages that brokers put aside."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stepfast.cli.jobs import JOBS, print_job
from stepfast.cli.options import (
    By,
    DatabaseUrl,
    ErrorGroup,
    Json,
    Kind,
    Limit,
    Queue,
    Reason,
    Yes,
    operating,
)
from stepfast.cli.output import Listing, answer, confirm, print_facts, print_json, print_table, progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.reports import DeadMessage, FailureGroup, Filter, JobSummary


OURS: Final = "job"  # the origin of a dead letter that is a job
NONE: Final = "no dead letters"

app = typer.Typer(help="List dead letters, retry and purge them.", no_args_is_help=True)

OneId = Annotated[str | None, typer.Argument(metavar="ID", help="Only this dead letter.", show_default=False)]
Every = Annotated[bool, typer.Option("--all", help="All dead letters.")]

FAILURES: Listing[FailureGroup] = Listing(
    columns={
        "kind": "kind",
        "count": "count",
        "first (UTC)": "first_at",
        "last (UTC)": "last_at",
        "newest": "newest_id",
        "error": "error_group",
    },
    empty=NONE,
    less=("first (UTC)", "newest", "last (UTC)"),
)


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
    """List dead letters, also those of brokers, the latest first; or count them by error."""
    from stepfast.reports import Filter

    which = Filter(kind, queue, error)
    with operating(ctx, database_url) as operator:
        if by_error:
            FAILURES.show(operator.failures(which, limit=limit), json=json)
            return
        letters = operator.dead_letters(which, limit=limit)
        messages = operator.broker_dead_letters(which, limit=limit)
    if json:
        print_json([*letters, *map(_message_facts, messages)])
    elif messages:
        _print_both(letters, messages, limit)
    else:
        JOBS.show(letters, empty=NONE)


def _print_both(jobs: Sequence[JobSummary], messages: Sequence[DeadMessage], limit: int) -> None:
    """One list, the latest first, with the origin of each."""
    rows: list[tuple[Any, ...]] = [
        (job.id, OURS, job.kind, job.queue, job.attempts, job.finished_at, job.last_error) for job in jobs
    ]
    rows += [
        (
            message.id,
            message.origin,
            message.subject,
            message.queue,
            message.attempts,
            message.found_at,
            f"{message.reason}: {message.detail}" if message.detail else message.reason,
        )
        for message in messages
    ]
    rows.sort(key=lambda row: (row[5] is not None, row[5]), reverse=True)
    print_table(
        ("id", "origin", "kind", "queue", "try", "died (UTC)", "error"),
        rows[:limit],
        empty=NONE,
        less=("try", "queue", "died (UTC)"),
    )


def _message_facts(message: DeadMessage) -> dict[str, Any]:
    """A message as it is listed in JSON: without its body and properties, which may be long."""
    facts = asdict(message)
    for name in ("properties", "body"):
        del facts[name]
    return {"origin": message.origin, **facts}


@app.command("show")
def show(
    ctx: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Which dead letter.")],
    *,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show everything about one dead letter."""
    from stepfast.reports import JobDetail

    with operating(ctx, database_url) as operator:
        found = operator.dead_letter(job_id)
    if isinstance(found, JobDetail):
        print_job(found, json=json)
    else:
        _print_message(found, json=json)


def _print_message(message: DeadMessage, *, json: bool) -> None:
    facts = _message_facts(message) | {"properties": dict(message.properties), "body": message.body}
    if json:
        print_json(facts)
    else:
        print_facts([(name.replace("_", " "), value) for name, value in facts.items()])


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
    """Retry dead letters, with fresh attempts: one, those that match, or all."""
    which = _chosen(job_id, kind, queue, error, every=every)
    with operating(ctx, database_url, by, reason) as operator:
        if job_id is not None:
            operator.retry_dead_letter(job_id)
            retried, refused = 1, 0
        else:
            with progress("retrying", operator.count_dead_letters(which)) as tell:
                done = operator.retry_dead_letters(which, progress=tell)
            retried, refused = done.retried, done.refused
    sentence = f"{_letters(retried)} {'is' if retried == 1 else 'are'} ready to be tried again"
    answer({"retried": retried, "refused": refused}, sentence, json=json)
    if refused and not json:
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
    yes: Yes = False,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Delete dead letters and their logs for good: one, those that match, or all."""
    which = _chosen(job_id, kind, queue, error, every=every)
    with operating(ctx, database_url, by, reason) as operator:
        total = 1 if job_id is not None else operator.count_dead_letters(which)
        confirm(f"Delete {_letters(total)} for good?", yes=yes or not total)
        if job_id is not None:
            operator.purge_dead_letter(job_id)
            purged = 1
        else:
            with progress("purging", total) as tell:
                purged = operator.purge_dead_letters(which, progress=tell)
    answer({"purged": purged}, f"{_letters(purged)} deleted", json=json)


def _chosen(
    job_id: str | None, kind: str | None, queue: str | None, error: str | None, *, every: bool
) -> Filter:
    """The dead letters that are meant, said in exactly one way: a forgotten option must not mean all."""
    from stepfast.reports import Filter

    filtered = any(option is not None for option in (kind, queue, error))
    if [job_id is not None, filtered, every].count(True) != 1:
        raise typer.BadParameter("say which ones: an ID, or --kind, --queue, --error, or --all")
    return Filter(kind, queue, error)


def _letters(count: int) -> str:
    return f"{count:,} dead letter{'' if count == 1 else 's'}"
