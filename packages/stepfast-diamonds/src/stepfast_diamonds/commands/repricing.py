"""`stepfast diamonds rules reprice`, `repricings` and `revert`: prices of stones that are there already."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stepfast.applications.commands import (
    By,
    DatabaseUrl,
    Json,
    Limit,
    Reason,
    RequiredReason,
    actor,
    print_json,
    print_table,
)
from stepfast_diamonds.commands.rules import catalogue


def reprice(
    ctx: typer.Context,
    *,
    by: By = None,
    reason: Reason = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Have all stones priced by the active rule set. A worker of the catalogue does it; it can be cancelled and resumed."""
    from stepfast.applications import persist, record_audit
    from stepfast_diamonds.repricing import Repricing, left_behind
    from stepfast_diamonds.rule_sets import active_version

    who = actor(by, reason)
    with catalogue(ctx, database_url) as app:
        repricing = Repricing(app)

        def work(tx: Any) -> dict[str, Any]:
            version = active_version(tx)
            job = repricing.ask(tx)
            if job.created:
                record_audit(tx, who, "rules.reprice", job.id, detail={"version": version})
            return {
                "job": job.id,
                "created": job.created,
                "version": version,
                "stones": left_behind(tx, version),
            }

        done = persist(app, work)
    if json:
        print_json(done)
    else:
        how = "prices" if done["created"] else "was asked for before and prices"
        typer.echo(f"job {done['job']} {how} {done['stones']:,} stones by rule set {done['version']}")


def repricings(
    ctx: typer.Context, *, limit: Limit = 20, json: Json = False, database_url: DatabaseUrl = None
) -> None:
    """List what was repriced, the newest first."""
    from stepfast_diamonds.repricing import list_repricings

    with catalogue(ctx, database_url) as app, app.reading() as tx:
        found = list_repricings(tx, limit=limit)
    if json:
        print_json(found)
        return
    print_table(
        (
            "repricing",
            "state",
            "from",
            "to",
            "looked at",
            "changed",
            "unpriced",
            "started (UTC)",
            "ended (UTC)",
        ),
        [
            (
                it.id,
                it.state,
                it.from_version,
                it.to_version,
                it.looked_at,
                it.changed,
                it.unpriced,
                it.started_at,
                it.ended_at,
            )
            for it in found
        ],
        empty="nothing was repriced",
        less=("ended (UTC)", "started (UTC)", "unpriced"),
    )


def revert(
    ctx: typer.Context,
    repricing: Annotated[str, typer.Argument(metavar="REPRICING", help="As `repricings` shows it.")],
    *,
    reason: RequiredReason,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Take a repricing back: the rule set of before is active again, and the prices that it changed are restored."""
    from stepfast.applications import persist, record_audit
    from stepfast_diamonds.repricing import Repricing, undo_repricing

    who = actor(by, reason)
    with catalogue(ctx, database_url) as app:
        jobs = Repricing(app)

        def work(tx: Any) -> dict[str, Any]:
            moved = undo_repricing(tx, repricing)
            record_audit(
                tx, who, "rules.revert", repricing, detail={"before": moved.before, "after": moved.version}
            )
            return {"version": moved.version, "before": moved.before, "job": jobs.take_back(tx, repricing).id}

        done = persist(app, work)
    if json:
        print_json(done)
    else:
        typer.echo(f"rule set {done['version']} is active again; job {done['job']} restores the prices")
