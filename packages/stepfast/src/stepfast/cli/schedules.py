"""`stepfast schedules`: list schedules with their next ticks, and change them while workers run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from stepfast.cli.options import By, DatabaseUrl, Json, Reason, operating, span, usage
from stepfast.cli.output import Listing, answer, as_json, as_text, print_facts, print_json, print_table

if TYPE_CHECKING:
    from stepfast.reports import ScheduleDetail, ScheduleReport, Schedules
    from stepfast.schedules.definition import ScheduleOptions


app = typer.Typer(help="List schedules, add, change, pause and trigger them.", no_args_is_help=True)

SCHEDULES: Listing[ScheduleReport] = Listing(
    columns={
        "schedule": "name",
        "state": "state",
        "when": "when",
        "zone": "tz",
        "kind": "kind",
        "next (UTC)": "next_at",
        "last (UTC)": "last_at",
        "source": "source",
        "note": "note",
    },
    empty="no schedules: declare one with app.schedule(…), or add one with `stepfast schedules add`",
    less=("source", "last (UTC)", "zone", "kind"),
)

# The options of a schedule

Name = Annotated[str, typer.Argument(metavar="NAME", help="Which schedule.")]
Cron = Annotated[
    str | None,
    typer.Option(
        "--cron",
        metavar="TEXT",
        help="By the calendar: minute, hour, day, month, weekday; or @daily and the like.",
        show_default=False,
    ),
]
Every = Annotated[
    str | None,
    typer.Option(
        "--every", metavar="DURATION", help="At a fixed interval: 90s, 15m, 2h, 1d.", show_default=False
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Once: 2026-12-24T18:00, in the time zone of --tz unless it names an offset.",
        show_default=False,
    ),
]
Tz = Annotated[
    str | None,
    typer.Option("--tz", metavar="ZONE", help="Time zone: Europe/Paris, UTC.", show_default=False),
]
Arguments = Annotated[
    str | None,
    typer.Option(
        "--arguments", metavar="JSON", help='Arguments of the job: {"name": "value"}.', show_default=False
    ),
]
TickAs = Annotated[
    str | None,
    typer.Option(
        "--tick-as",
        metavar="NAME",
        help="Argument of the job that gets the time of its tick.",
        show_default=False,
    ),
]
Queue = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="Queue of its jobs.", show_default=False)
]
Priority = Annotated[
    int | None,
    typer.Option(
        "--priority", metavar="N", help="Priority of its jobs; higher runs first.", show_default=False
    ),
]
Missed = Annotated[
    str | None,
    typer.Option(
        "--missed",
        metavar="POLICY",
        help="What becomes of missed ticks: once (one job for all), all, or skip.",
        show_default=False,
    ),
]
Overlap = Annotated[
    str | None,
    typer.Option(
        "--overlap",
        metavar="POLICY",
        help="While a job of the schedule is unfinished: allow another one, or skip the tick.",
        show_default=False,
    ),
]


def options(
    kind: str | None = None,
    *,
    cron: str | None,
    every: str | None,
    at: str | None,
    tz: str | None,
    arguments: str | None,
    tick_as: str | None,
    queue: str | None,
    priority: int | None,
    missed: str | None,
    overlap: str | None,
) -> ScheduleOptions:
    """The options of a schedule, or without `kind` of a change; refuses options that no schedule can have."""
    given: ScheduleOptions = {
        "cron": cron,
        "every": span(every),
        "at": None if at is None else moment_at(at, tz or "UTC"),
        "tz": tz,
        "arguments": None if arguments is None else _json(arguments),
        "tick_as": tick_as,
        "queue": queue,
        "priority": priority,
        # Any text: the definition refuses a wrong one in words, below.
        "missed": cast('Literal["once", "all", "skip"] | None', missed),
        "overlap": cast('Literal["allow", "skip"] | None', overlap),
    }
    _check(kind, given)
    return given


def moment_at(text: str, tz: str) -> datetime:
    """A time as it is typed; one without an offset is in the time zone `tz`."""
    from stepfast.clock import moment
    from stepfast.schedules.cron import first_occurrence, zone

    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time; write 2026-12-24T18:00 or 2026-12-24T18:00+01:00", param_hint="--at"
        ) from None
    with usage("--tz"):
        return at if at.tzinfo is not None else moment(first_occurrence(at, zone(tz)))


def _check(kind: str | None, given: ScheduleOptions) -> None:
    from stepfast.schedules.definition import define

    whole = given.copy()
    if kind is None and all(whole.get(name) is None for name in ("cron", "every", "at")):
        whole["every"] = "1h"  # stands for what the schedule has
    with usage():
        define(kind or "any", None, whole)


def _json(text: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise typer.BadParameter(f"{text!r:.200} is no JSON: {error}", param_hint="--arguments") from None


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    everyone: Annotated[
        bool, typer.Option("--all", help="Also schedules that code declares and an operator removed.")
    ] = False,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List schedules with their next and last ticks."""
    with operating(ctx, database_url) as operator:
        SCHEDULES.show(operator.schedules.all(everyone=everyone), json=json)


@app.command("show")
def show(ctx: typer.Context, name: Name, *, json: Json = False, database_url: DatabaseUrl = None) -> None:
    """Show one schedule with its next five ticks and the jobs of its last five."""
    with operating(ctx, database_url) as operator:
        detail = operator.schedules.show(name)
    if json:
        print_json(
            {
                **asdict(detail.schedule),
                "arguments": detail.arguments,
                "ahead": detail.ahead,
                "behind": detail.behind,
            }
        )
    else:
        _print_detail(detail)


def _print_detail(detail: ScheduleDetail) -> None:
    facts: list[tuple[str, Any]] = [
        (name.replace("_", " "), value) for name, value in asdict(detail.schedule).items()
    ]
    print_facts([*facts, ("arguments", as_json(detail.arguments))])
    if detail.ahead:
        typer.echo()
        print_table(
            (f"next ({detail.schedule.tz})", "UTC"),
            [(f"{tick.local:%Y-%m-%d %H:%M:%S %z}", tick.utc) for tick in detail.ahead],
            empty="",
        )
    if detail.behind:
        typer.echo()
        print_table(
            ("last (UTC)", "job", "state"),
            [
                (tick.utc, tick.job_id, "skipped" if tick.skipped else tick.job_state or "forgotten")
                for tick in detail.behind
            ],
            empty="",
        )


@app.command("add")
def add(
    ctx: typer.Context,
    name: Name,
    *,
    kind: Annotated[str, typer.Option("--kind", metavar="NAME", help="Kind of job to enqueue.")],
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
    """Add a schedule. Its arguments are not checked: only a worker knows what the job takes."""
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
    """Change the options that are given and keep the others. The change wins over the code, until `reset`."""
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
        if at is not None and tz is None:  # in the time zone that the schedule has
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
    """Pause a schedule: no tick fires; jobs that exist go on."""
    with _schedules(ctx, database_url, by, reason) as schedules:
        changed = schedules.pause(name)
    facts = {"schedule": name, "paused": True, "changed": changed}
    answer(facts, f"schedule {name} {'is' if changed else 'was already'} paused", json=json)


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
    """Resume a schedule with its next tick; ticks in the pause are not made up."""
    with _schedules(ctx, database_url, by, reason) as schedules:
        changed = schedules.resume(name)
        next_at = schedules.show(name).schedule.next_at
    facts = {"schedule": name, "paused": False, "changed": changed, "next_at": next_at}
    goes_on = f"goes on; next: {as_text(next_at) or 'never'}"
    answer(facts, f"schedule {name} {goes_on if changed else 'was not paused'}", json=json)


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
    """Enqueue the job of a schedule now, once; its next ticks stay as they are."""
    with _schedules(ctx, database_url, by, reason) as schedules:
        job = schedules.trigger(name)
    facts = {"schedule": name, "job_id": job.id}
    answer(facts, f"schedule {name} is triggered: job {job.id}", json=json)


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
    """Remove a schedule; jobs that exist go on. One that code declares stays removed until `reset`."""
    with _schedules(ctx, database_url, by, reason) as schedules:
        schedules.remove(name)
    answer({"schedule": name, "removed": True}, f"schedule {name} is removed", json=json)


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
    """Make a schedule as the code declares it: unchanged, not paused, not removed."""
    with _schedules(ctx, database_url, by, reason) as schedules:
        _print(schedules.reset(name), "is as the code declares it", json=json)


@contextmanager
def _schedules(
    ctx: typer.Context, url: str | None, by: str | None = None, reason: str | None = None
) -> Iterator[Schedules]:
    with operating(ctx, url, by, reason) as operator:
        yield operator.schedules


def _print(made: ScheduleReport, what: str, *, json: bool) -> None:
    answer(made, f"schedule {made.name} {what}; next: {as_text(made.next_at) or 'never'}", json=json)
