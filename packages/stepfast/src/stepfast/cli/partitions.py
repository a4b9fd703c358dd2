"""`stepfast partitions`: how far each is, which failed, and which nobody reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import DatabaseUrl, Json, Limit, opened
from stepfast.cli.output import print_json, print_table

if TYPE_CHECKING:
    from stepfast.admin.run_reports import PartitionReport


app = typer.Typer(help="Look at the partitions of runs.", no_args_is_help=True)


@app.callback()
def partitions() -> None:
    """Look at the partitions of runs."""


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Only of this one: its id, the beginning of it, latest, or a feed for its newest.",
            show_default="all runs",
        ),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that failed.")] = False,
    stuck: Annotated[
        bool, typer.Option("--stuck", help="Only those that nobody reads although somebody should.")
    ] = False,
    limit: Limit = 1_000,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List partitions, of the newest run first."""
    from stepfast.admin.runs import Runs

    with opened(ctx, database_url) as database:
        found = Runs(database).partitions(run, failed=failed, stuck=stuck, limit=limit)
    if json:
        print_json(found)
        return
    columns = (
        "partition",
        "range",
        "state",
        "rows",
        "of",
        "requests",
        "restarts",
        "job",
        "worker",
        "last error",
    )
    rows = [_row(it) for it in found]
    several = len({it.run_id for it in found}) > 1
    print_table(
        ("run", *columns) if several else columns,
        [(it.run_id, *row) for it, row in zip(found, rows, strict=True)] if several else rows,
        empty="no partitions" + (" are stuck" if stuck else " failed" if failed else ""),
        less=("worker", "requests", "restarts", "of", "job"),
    )


def _row(it: PartitionReport) -> tuple[object, ...]:
    return (
        it.partition_id,
        it.name,
        it.state,
        it.seen,
        it.expected,
        it.requests,
        it.epoch or None,
        "stuck" if it.stuck else it.job_state,
        it.worker_id,
        it.last_error,
    )
