"""`stepfast leases`: who holds which job, and taking back what nobody holds any more."""

from __future__ import annotations

from typing import Annotated

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Limit, Reason, actor, opened
from stepfast.cli.output import print_json, print_table
from stepfast.config import WorkerSettings

app = typer.Typer(help="Look at leases, and reset those that expired.", no_args_is_help=True)


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    expired: Annotated[
        bool, typer.Option("--expired", help="Only those whose owner is gone or silent.")
    ] = False,
    limit: Limit = 200,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List leases, the longest held first."""
    from stepfast.admin.workers import list_leases

    with opened(ctx, database_url) as database, database.reading() as tx:
        found = list_leases(tx, expired=True if expired else None, limit=limit)
    if json:
        print_json(found)
        return
    print_table(
        ("job", "kind", "queue", "try", "%", "held by", "since (UTC)", "until (UTC)", "expired"),
        [
            (
                it.job_id,
                it.kind,
                it.queue,
                it.attempts,
                it.progress or "",
                it.locked_by,
                it.leased_at,
                it.locked_until,
                "expired" if it.expired else "",
            )
            for it in found
        ],
        empty="no expired leases" if expired else "no leases",
        less=("%", "queue", "since (UTC)", "try", "kind", "until (UTC)"),
    )


@app.command("reset")
def reset(
    ctx: typer.Context,
    *,
    crash_limit: Annotated[
        int,
        typer.Option(
            "--crash-limit",
            metavar="N",
            min=1,
            help="A job that killed its worker so often becomes a dead letter.",
        ),
    ] = WorkerSettings.crash_limit,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Give back the jobs of leases that expired by the database's clock; those in force are not touched.

    Running workers do the same every two seconds. Right after an outage of the database, give living workers a
    few seconds to renew first.
    """
    from stepfast.admin.workers import reset_leases

    with opened(ctx, database_url) as database:
        done = reset_leases(database, crash_limit, by=actor(by, reason))
    if json:
        print_json({"reset": done.jobs, "died": done.died})
        return
    died = f", {done.died} of them beyond the crash limit and now dead letters" if done.died else ""
    typer.echo(f"reset {done.jobs} expired lease{'' if done.jobs == 1 else 's'}{died}")
