"""Schedules for tests, at moments of the test's own choosing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Unpack

from holdfast.clock import instant
from holdfast.schedules import changes
from holdfast.schedules.definition import ScheduleOptions, define
from holdfast.schedules.schedule import get
from holdfast.worker.ticks import fire_due
from tests import rows
from tests.contract.engine import work_on

if TYPE_CHECKING:
    from holdfast import Holdfast
    from holdfast.schedules.firing import Tick
    from holdfast.schedules.schedule import Schedule

MINUTE = 60 * rows.SECOND
NOON = instant(datetime(2026, 11, 15, 12, 0, tzinfo=UTC))


def schedule(
    app: Holdfast, name: str = "beat", *, now: int = NOON - 1, **options: Unpack[ScheduleOptions]
) -> Schedule:
    """One that ticks every minute from noon on, unless told otherwise."""
    if not {"cron", "every", "at"} & options.keys():
        options["every"] = "1m"
    definition = define("work", work_on(app).kind, options)
    with app.transaction() as tx:
        return changes.add(tx, name, definition, now=now)


def fire(app: Holdfast, now: int) -> list[Tick]:
    return fire_due(app.database, now)


def planned(app: Holdfast, name: str = "beat") -> int | None:
    """When it is due."""
    with app.reading() as tx:
        return get(tx, name).next_at


def jobs(app: Holdfast) -> list[dict[str, Any]]:
    """The arguments of all unfinished jobs, in the order of their making."""
    found = rows.query(app, "SELECT payload FROM holdfast_job ORDER BY id")
    return [json.loads(row["payload"]) for row in found]
