"""`stepfast jobs stats`: how each kind of job fares."""

from __future__ import annotations

from typing import Annotated

import typer

from stepfast.cli.options import DatabaseUrl, Json, Kind, opened, span, usage
from stepfast.cli.output import print_json, print_table


def stats(
    ctx: typer.Context,
    *,
    since: Annotated[
        str, typer.Option("--since", metavar="DURATION", help="How far to look back: 90s, 10m, 2h, 7d.")
    ] = "24h",
    kind: Kind = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Tell by kind how many jobs ended, how well, how long they took, and what they failed of."""
    from stepfast.admin.reports.statistics import kind_statistics
    from stepfast.clock import duration

    with usage("--since"):
        past = duration(span(since) or 0, "since")
    with opened(ctx, database_url) as database, database.reading() as tx:
        found = kind_statistics(tx, past, kind)
    if json:
        print_json(found)
        return
    print_table(
        (
            "kind",
            "done",
            "dead",
            "cancelled",
            "success",
            "average s",
            "median s",
            "95 % s",
            "longest s",
            "wait s",
        ),
        [
            (
                it.kind,
                it.done,
                it.dead,
                it.cancelled,
                "" if it.success_rate is None else f"{it.success_rate:.1%}",
                it.average_seconds,
                it.median_seconds,
                it.p95_seconds,
                it.longest_seconds,
                it.average_wait_seconds,
            )
            for it in found
        ],
        empty=f"no job ended in the last {since}",
        less=("wait s", "average s", "cancelled", "longest s"),
    )
    failures = [(it.kind, failure) for it in found for failure in it.failures]
    if failures:
        typer.echo()
        print_table(
            ("kind", "dead", "retrying", "recovered", "last (UTC)", "error"),
            [(name, it.dead, it.retrying, it.recovered, it.last_at, it.error_group) for name, it in failures],
            empty="",
            less=("recovered", "last (UTC)"),
        )
