"""`stepfast jobs tree`: a job and what comes after it; and the two commands that concern all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import DatabaseUrl, Json, opened
from stepfast.cli.output import print_json, print_table

if TYPE_CHECKING:
    from stepfast.admin.audit import Actor
    from stepfast.admin.reports.jobs import JobDetail
    from stepfast.admin.reports.trees import TreeLine
    from stepfast.database.connection import Transaction
    from stepfast.steps.job import JobState

Tree = Annotated[
    bool,
    typer.Option(
        "--tree",
        help="Also all that comes after it; of a group's completion job also its members. Together or not at all.",
    ),
]
Act = Callable[["Transaction", str], "JobState"]


def tree(
    ctx: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Which job.")],
    *,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show a job and all that comes after it; of the completion job of a group also its members."""
    from stepfast.admin.reports.trees import MOST, tree_of

    with opened(ctx, database_url) as database, database.reading() as tx:
        lines = tree_of(tx, job_id)
    if json:
        print_json(lines)
        return
    print_table(
        ("job", "state", "kind", "edge"),
        [(_place(it), it.state, it.kind, _edge(it)) for it in lines],
        empty="nothing",
        less=("kind",),
    )
    if len(lines) >= MOST:
        typer.echo(f"only the first {MOST:,} are shown", err=True)


def _place(line: TreeLine) -> str:
    return f"{'│ ' * (line.depth - 1)}└ {line.id}" if line.depth else line.id


def _edge(line: TreeLine) -> str:
    if line.bond is None:
        return ""
    bond = "member" if line.bond == "member" else f"after, {line.edge}, on_dead={line.on_dead}"
    return f"{bond} (shown above)" if line.again else bond


def print_relatives(detail: JobDetail) -> None:
    """What a job comes after, and what comes after it, if anything."""
    rows = [("after", it) for it in detail.parents] + [("before", it) for it in detail.children]
    if rows:
        typer.echo()
        print_table(
            ("", "job", "state", "kind", "edge"),
            [
                ("member" if it.bond == "member" else word, it.id, it.state, it.kind, it.edge)
                for word, it in rows
            ],
            empty="",
            less=("kind",),
        )


def cancelling(who: Actor, *, tree: bool) -> Act:
    """How `jobs cancel` ends one job."""
    from stepfast.admin.actions import cancel
    from stepfast.admin.trees import cancel_tree

    if tree:
        return lambda tx, job_id: cancel_tree(tx, job_id, by=who).state
    return lambda tx, job_id: cancel(tx, job_id, by=who)


def retrying(who: Actor, *, tree: bool) -> Act:
    """How `jobs retry` revives one job."""
    from stepfast.admin.actions import retry
    from stepfast.admin.trees import retry_tree

    if tree:
        return lambda tx, job_id: retry_tree(tx, job_id, by=who).state
    return lambda tx, job_id: retry(tx, job_id, by=who)
