"""How a schedule is typed: its options, and what they mean in Python."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from stepfast.cli.options import span, usage

if TYPE_CHECKING:
    from stepfast.schedules.definition import ScheduleOptions

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
        "--every", metavar="DURATION", help="At a steady beat: 90s, 15m, 2h, 1d.", show_default=False
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Once: 2026-12-24T18:00, on the clocks of --tz unless it names an offset.",
        show_default=False,
    ),
]
Tz = Annotated[
    str | None,
    typer.Option("--tz", metavar="ZONE", help="Whose clocks: Europe/Paris, UTC.", show_default=False),
]
Arguments = Annotated[
    str | None,
    typer.Option("--arguments", metavar="JSON", help='Of the job: {"name": "value"}.', show_default=False),
]
TickAs = Annotated[
    str | None,
    typer.Option(
        "--tick-as",
        metavar="NAME",
        help="The argument that tells the job which tick it is for.",
        show_default=False,
    ),
]
Queue = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="Where its jobs wait.", show_default=False)
]
Priority = Annotated[
    int | None, typer.Option("--priority", metavar="N", help="Higher runs first.", show_default=False)
]
Missed = Annotated[
    str | None,
    typer.Option(
        "--missed",
        metavar="POLICY",
        help="Ticks that no worker was there for: once (one job for all), all, or skip.",
        show_default=False,
    ),
]
Overlap = Annotated[
    str | None,
    typer.Option(
        "--overlap",
        metavar="POLICY",
        help="While a job of it is unfinished: allow another, or skip the tick.",
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
    """What was typed, as Python says it; refuses what no schedule can be, or, without `kind`, no change of one."""
    given: ScheduleOptions = {
        "cron": cron,
        "every": span(every),
        "at": None if at is None else moment_at(at, tz or "UTC"),
        "tz": tz,
        "arguments": None if arguments is None else _json(arguments),
        "tick_as": tick_as,
        "queue": queue,
        "priority": priority,
        # Whatever was typed: the definition refuses it in words, below.
        "missed": cast('Literal["once", "all", "skip"] | None', missed),
        "overlap": cast('Literal["allow", "skip"] | None', overlap),
    }
    _check(kind, given)
    return given


def moment_at(text: str, tz: str) -> datetime:
    """A time as it is typed; one without an offset is read on the clocks of `tz`."""
    from stepfast.clock import moment
    from stepfast.schedules.zone import first_occurrence, zone

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
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{text!r} is no JSON: {error}", param_hint="--arguments") from None
