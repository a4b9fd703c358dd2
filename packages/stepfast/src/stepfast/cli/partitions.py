"""`stepfast partitions`: how far each partition is, which failed, and which no job reads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import DatabaseUrl, Json, Limit, operating
from stepfast.cli.output import Listing

if TYPE_CHECKING:
    from stepfast.reports import PartitionReport


app = typer.Typer(help="List the partitions of runs.", no_args_is_help=True)

PARTITIONS: Listing[PartitionReport] = Listing(
    columns={
        "partition": "partition_id",
        "range": "name",
        "state": "state",
        "rows": "seen",
        "of": "expected",
        "requests": "requests",
        "restarts": lambda partition: partition.epoch or None,
        "job": lambda partition: "stuck" if partition.stuck else partition.job_state,
        "worker": "worker_id",
        "last error": "last_error",
    },
    empty="no partitions",
    less=("worker", "requests", "restarts", "of", "job"),
)
OF_SEVERAL_RUNS = replace(PARTITIONS, columns={"run": "run_id", **PARTITIONS.columns})


@app.callback()
def partitions() -> None:
    """List the partitions of runs."""


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Only of this run: its id, the beginning of it, latest, or a feed for its newest.",
            show_default="all runs",
        ),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only partitions that failed.")] = False,
    stuck: Annotated[bool, typer.Option("--stuck", help="Only open partitions that no job reads.")] = False,
    limit: Limit = 1_000,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List partitions, of the newest run first."""
    with operating(ctx, database_url) as operator:
        found = operator.runs.partitions(run, failed=failed, stuck=stuck, limit=limit)
    several = len({partition.run_id for partition in found}) > 1
    empty = "no partitions" + (" are stuck" if stuck else " failed" if failed else "")
    (OF_SEVERAL_RUNS if several else PARTITIONS).show(found, json=json, empty=empty)
