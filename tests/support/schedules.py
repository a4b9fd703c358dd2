"""Schedules for tests, at instants that the test chooses."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Unpack

from stepfast.clock import instant
from stepfast.schedules import schedule as changes
from stepfast.schedules.definition import ScheduleOptions, define
from stepfast.schedules.schedule import get
from stepfast.worker.scheduler import fire_due
from tests.support import rows
from tests.support.engine import register_work

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.schedules.schedule import Schedule, Tick

MINUTE = 60 * rows.SECOND
NOON = instant(datetime(2026, 11, 15, 12, 0, tzinfo=UTC))


def schedule(
    app: Stepfast, name: str = "beat", *, now: int = NOON - 1, **options: Unpack[ScheduleOptions]
) -> Schedule:
    """Add a schedule that ticks every minute from noon on, unless other options are given."""
    if not {"cron", "every", "at"} & options.keys():
        options["every"] = "1m"
    definition = define("work", register_work(app).kind, options)
    with app.transaction() as tx:
        return changes.add(tx, name, definition, now=now)


def fire(app: Stepfast, now: int) -> list[Tick]:
    return fire_due(app.database, now)


def planned(app: Stepfast, name: str = "beat") -> int | None:
    """When it is due."""
    with app.reading() as tx:
        return get(tx, name).next_at


def jobs(app: Stepfast) -> list[dict[str, Any]]:
    """The arguments of all unfinished jobs, in the order of their making."""
    found = rows.query(app, "SELECT payload FROM stepfast_job ORDER BY id")
    return [json.loads(row["payload"]) for row in found]
