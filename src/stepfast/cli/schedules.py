"""`stepfast schedules`: what is due when, and changing it while workers run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Reason, actor, opened
from stepfast.cli.output import print_facts, print_json, print_table, said
from stepfast.cli.schedule_options import (
    Arguments,
    At,
    Cron,
    Every,
    Missed,
    Overlap,
    Priority,
    Queue,
    TickAs,
    Tz,
    moment_at,
    options,
)

if TYPE_CHECKING:
    from stepfast.admin.reports.schedules import ScheduleReport
    from stepfast.admin.schedules import Schedules

app = typer.Typer(help="Look at schedules, add, change, pause and trigger them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Which schedule.")]


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    everyone: Annotated[
        bool, typer.Option("--all", help="Also those that were removed although code declares them.")
    ] = False,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List schedules with what is due next."""
    with _schedules(ctx, database_url) as schedules:
        found = schedules.all(everyone=everyone)
    if json:
        print_json(found)
        return
    print_table(
        ("schedule", "state", "when", "zone", "kind", "next (UTC)", "last (UTC)", "source", "note"),
        [
            (it.name, it.state, it.when, it.tz, it.kind, it.next_at, it.last_at, it.source, it.note)
            for it in found
        ],
        empty="no schedules: declare one with app.schedule(…), or add one with `stepfast schedules add`",
        less=("source", "last (UTC)", "zone", "kind"),
    )


@app.command("show")
def show(ctx: typer.Context, name: Name, *, json: Json = False, database_url: DatabaseUrl = None) -> None:
    """Show one schedule with its next five ticks, and what became of its last five."""
    from stepfast.steps.payload import to_json

    with _schedules(ctx, database_url) as schedules:
        detail = schedules.show(name)
    if json:
        print_json(
            {
                **asdict(detail.schedule),
                "arguments": detail.arguments,
                "ahead": detail.ahead,
                "behind": detail.behind,
            }
        )
        return
    facts: list[tuple[str, Any]] = [
        (name.replace("_", " "), value) for name, value in asdict(detail.schedule).items()
    ]
    print_facts([*facts, ("arguments", to_json(detail.arguments))])
    if detail.ahead:
        typer.echo()
        print_table(
            (f"next ({detail.schedule.tz})", "UTC"),
            [(f"{it.local:%Y-%m-%d %H:%M:%S %z}", it.utc) for it in detail.ahead],
            empty="",
        )
    if detail.behind:
        typer.echo()
        print_table(
            ("last (UTC)", "job", "state"),
            [
                (it.utc, it.job_id, "skipped" if it.skipped else it.job_state or "forgotten")
                for it in detail.behind
            ],
            empty="",
        )


@app.command("add")
def add(
    ctx: typer.Context,
    name: Name,
    *,
    kind: Annotated[str, typer.Option("--kind", metavar="NAME", help="The job it enqueues.")],
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    tz: Tz = None,
    arguments: Arguments = None,
    tick_as: TickAs = None,
    queue: Queue = None,
    priority: Priority = None,
    missed: Missed = None,
    overlap: Overlap = None,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Add a schedule. Its arguments are believed: only a worker knows what the job takes."""
    given = options(
        kind,
        cron=cron,
        every=every,
        at=at,
        tz=tz,
        arguments=arguments,
        tick_as=tick_as,
        queue=queue,
        priority=priority,
        missed=missed,
        overlap=overlap,
    )
    with _schedules(ctx, database_url, by, reason) as schedules:
        _print(schedules.add(name, kind, **given), "is added", json=json)


@app.command("change")
def change(
    ctx: typer.Context,
    name: Name,
    *,
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    tz: Tz = None,
    arguments: Arguments = None,
    tick_as: TickAs = None,
    queue: Queue = None,
    priority: Priority = None,
    missed: Missed = None,
    overlap: Overlap = None,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Change what is given and keep the rest. It wins over what the code declares, until `reset`."""
    given = options(
        cron=cron,
        every=every,
        at=at,
        tz=tz,
        arguments=arguments,
        tick_as=tick_as,
        queue=queue,
        priority=priority,
        missed=missed,
        overlap=overlap,
    )
    if all(value is None for value in given.values()):
        raise typer.BadParameter("nothing to change; give --cron, --tz, --arguments or another option")
    with _schedules(ctx, database_url, by, reason) as schedules:
        if at is not None and tz is None:  # on the clocks that the schedule has
            given["at"] = moment_at(at, schedules.show(name).schedule.tz)
        _print(schedules.change(name, **given), "is changed", json=json)


@app.command("pause")
def pause(
    ctx: typer.Context,
    name: Name,
    *,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Let no tick fire; jobs that exist go on."""
    with _schedules(ctx, database_url, by, reason) as schedules:
        changed = schedules.pause(name)
    if json:
        print_json({"schedule": name, "paused": True, "changed": changed})
    else:
        typer.echo(f"schedule {name} {'is' if changed else 'was already'} paused")


@app.command("resume")
def resume(
    ctx: typer.Context,
    name: Name,
    *,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Go on with the next tick; those of the pause are not made up."""
    with _schedules(ctx, database_url, by, reason) as schedules:
        changed = schedules.resume(name)
        next_at = schedules.show(name).schedule.next_at
    if json:
        print_json({"schedule": name, "paused": False, "changed": changed, "next_at": next_at})
    elif changed:
        typer.echo(f"schedule {name} goes on; next: {said(next_at) or 'never'}")
    else:
        typer.echo(f"schedule {name} was not paused")


@app.command("trigger")
def trigger(
    ctx: typer.Context,
    name: Name,
    *,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Enqueue its job now, once; its plan stays as it is."""
    with _schedules(ctx, database_url, by, reason) as schedules:
        job = schedules.trigger(name)
    if json:
        print_json({"schedule": name, "job_id": job.id})
    else:
        typer.echo(f"schedule {name} is triggered: job {job.id}")


@app.command("remove")
def remove(
    ctx: typer.Context,
    name: Name,
    *,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Let it be gone; jobs that exist go on. One that code declares stays away until `reset`."""
    with _schedules(ctx, database_url, by, reason) as schedules:
        schedules.remove(name)
    if json:
        print_json({"schedule": name, "removed": True})
    else:
        typer.echo(f"schedule {name} is removed")


@app.command("reset")
def reset(
    ctx: typer.Context,
    name: Name,
    *,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Let it be as the code declares it: unchanged, not paused, not removed."""
    with _schedules(ctx, database_url, by, reason) as schedules:
        _print(schedules.reset(name), "is as the code declares it", json=json)


@contextmanager
def _schedules(
    ctx: typer.Context, url: str | None, by: str | None = None, reason: str | None = None
) -> Iterator[Schedules]:
    from stepfast.admin.schedules import Schedules
    from stepfast.steps.kinds import Kinds

    with opened(ctx, url) as database:
        yield Schedules(database, Kinds(), actor(by, reason))


def _print(made: ScheduleReport, what: str, *, json: bool) -> None:
    if json:
        print_json(made)
    else:
        typer.echo(f"schedule {made.name} {what}; next: {said(made.next_at) or 'never'}")
