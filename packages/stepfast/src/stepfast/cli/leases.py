"""`stepfast leases`: list leases, and take back the jobs of those that expired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Limit, Reason, operating
from stepfast.cli.output import Listing, answer
from stepfast.config import WorkerSettings

if TYPE_CHECKING:
    from stepfast.reports import LeaseReport


app = typer.Typer(help="List leases, and reset those that expired.", no_args_is_help=True)

LEASES: Listing[LeaseReport] = Listing(
    columns={
        "job": "job_id",
        "kind": "kind",
        "queue": "queue",
        "try": "attempts",
        "%": lambda lease: lease.progress or "",
        "leased by": "locked_by",
        "since (UTC)": "leased_at",
        "until (UTC)": "locked_until",
        "expired": lambda lease: "expired" if lease.expired else "",
    },
    empty="no leases",
    less=("%", "queue", "since (UTC)", "try", "kind", "until (UTC)"),
)


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    expired: Annotated[
        bool, typer.Option("--expired", help="Only leases whose worker is gone or silent.")
    ] = False,
    limit: Limit = 200,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List leases, the longest held first."""
    with operating(ctx, database_url) as operator:
        found = operator.leases(expired=True if expired else None, limit=limit)
    LEASES.show(found, json=json, empty="no expired leases" if expired else None)


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
            max=1_000,
            help="A job that killed its worker this often becomes a dead letter.",
        ),
    ] = WorkerSettings.crash_limit,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Take back the jobs of leases that expired by the database's clock; leases in force are not touched.

    Running workers do the same every two seconds. Right after an outage of the database, give living workers a
    few seconds to renew first.
    """
    with operating(ctx, database_url, by, reason) as operator:
        done = operator.rescue(crash_limit=crash_limit)
    died = f", {done.died} of them beyond the crash limit and now dead letters" if done.died else ""
    sentence = f"reset {done.jobs} expired lease{'' if done.jobs == 1 else 's'}{died}"
    answer({"reset": done.jobs, "died": done.died}, sentence, json=json)
