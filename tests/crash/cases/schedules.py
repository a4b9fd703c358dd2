"""What is cut short, of schedules: ticks that are fired, what the code declares, and what an operator does."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Unpack

from stepfast.clock import instant
from stepfast.schedules import schedule as changes
from stepfast.schedules.definition import Definition, ScheduleOptions, define
from stepfast.schedules.schedule import synchronise
from stepfast.worker.scheduler import fire_due
from tests.crash.cases.case import Operations

if TYPE_CHECKING:
    from tests.crash.kill_points import Act
    from tests.crash.setup import Scene

OPERATIONS = Operations()

MINUTE = 60_000_000
NOON = instant(datetime(2020, 1, 1, 12, 0, tzinfo=UTC))  # long ago: the same words in every picture
FAR = datetime(2126, 1, 1, tzinfo=UTC)


def definition(scene: Scene, **options: Unpack[ScheduleOptions]) -> Definition:
    if not {"cron", "every", "at"} & options.keys():
        options["every"] = "1m"
    return define("work", scene.job.kind, {"arguments": {"n": 1}, **options})


def add(scene: Scene, name: str = "beat", **options: Unpack[ScheduleOptions]) -> None:
    """A schedule that ticks every minute from noon on."""
    scene.do(lambda tx: changes.add(tx, name, definition(scene, **options), now=NOON - 1))


# Ticks


@OPERATIONS.repeated
def fire_a_tick(scene: Scene) -> Act:
    add(scene)
    return lambda: fire_due(scene.app.database, NOON)


@OPERATIONS.repeated
def fire_ticks_of_three_schedules(scene: Scene) -> Act:
    for name in ("a", "b", "c"):
        add(scene, name)
    return lambda: fire_due(scene.app.database, NOON)


@OPERATIONS.repeated
def fire_all_that_were_missed(scene: Scene) -> Act:
    add(scene, missed="all")
    return lambda: fire_due(scene.app.database, NOON + 3 * MINUTE)


@OPERATIONS.repeated
def fire_one_for_all_that_were_missed(scene: Scene) -> Act:
    add(scene, missed="once")
    return lambda: fire_due(scene.app.database, NOON + 3 * MINUTE)


@OPERATIONS.repeated
def skip_what_was_missed(scene: Scene) -> Act:
    add(scene, every="1h", missed="skip")
    return lambda: fire_due(scene.app.database, NOON + 90 * MINUTE)


@OPERATIONS.repeated
def fire_a_one_off(scene: Scene) -> Act:
    add(scene, at=datetime(2020, 1, 1, 12, 0, tzinfo=UTC))
    return lambda: fire_due(scene.app.database, NOON)


@OPERATIONS.repeated
def skip_a_tick_that_would_overlap(scene: Scene) -> Act:
    add(scene, overlap="skip")
    fire_due(scene.app.database, NOON)
    return lambda: fire_due(scene.app.database, NOON + MINUTE)


# What the code declares


@OPERATIONS.repeated
def declare_a_schedule(scene: Scene) -> Act:
    it = definition(scene, at=FAR)
    return lambda: scene.do(lambda tx: synchronise(tx, {"beat": it}))


@OPERATIONS.repeated
def declare_a_schedule_anew(scene: Scene) -> Act:
    scene.do(lambda tx: synchronise(tx, {"beat": definition(scene)}, now=NOON))
    it = definition(scene, at=FAR)
    return lambda: scene.do(lambda tx: synchronise(tx, {"beat": it}))


# What an operator does


@OPERATIONS.once
def add_a_schedule(scene: Scene) -> Act:
    return lambda: scene.app.schedules.add("beat", scene.job, at=FAR, arguments={"n": 1})


@OPERATIONS.repeated
def change_a_schedule(scene: Scene) -> Act:
    add(scene)
    return lambda: scene.app.schedules.change("beat", at=FAR)


@OPERATIONS.repeated
def pause_a_schedule(scene: Scene) -> Act:
    add(scene)
    return lambda: scene.app.schedules.pause("beat")


@OPERATIONS.repeated
def resume_a_schedule(scene: Scene) -> Act:
    add(scene, cron="0 0 29 2 *")
    scene.do(lambda tx: changes.pause(tx, "beat"))
    return lambda: scene.app.schedules.resume("beat")


@OPERATIONS.once
def trigger_a_schedule(scene: Scene) -> Act:
    add(scene)
    return lambda: scene.app.schedules.trigger("beat")


@OPERATIONS.once
def remove_a_schedule(scene: Scene) -> Act:
    add(scene)
    return lambda: scene.app.schedules.remove("beat")


@OPERATIONS.once
def remove_a_declared_schedule(scene: Scene) -> Act:
    scene.do(lambda tx: synchronise(tx, {"beat": definition(scene)}, now=NOON))
    return lambda: scene.app.schedules.remove("beat")


@OPERATIONS.repeated
def reset_a_schedule(scene: Scene) -> Act:
    scene.do(lambda tx: synchronise(tx, {"beat": definition(scene, at=FAR)}))
    scene.do(lambda tx: changes.remove(tx, "beat"))
    return lambda: scene.app.schedules.reset("beat")


@OPERATIONS.repeated
def forget_one_offs(scene: Scene) -> Act:
    add(scene, at=datetime(2020, 1, 1, 12, 0, tzinfo=UTC))
    fire_due(scene.app.database, NOON)
    return lambda: scene.do(lambda tx: changes.forget_finished(tx, MINUTE))
