"""Cases of schedules: ticks, schedules that the code declares, and what operators do."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Unpack

from stepfast.clock import instant
from stepfast.schedules import schedule as changes
from stepfast.schedules.definition import Definition, ScheduleOptions, define
from stepfast.schedules.schedule import synchronise
from stepfast.worker.scheduler import fire_due
from tests.crash.cases.case import Cases

if TYPE_CHECKING:
    from tests.crash.kill_points import Action
    from tests.crash.setup import Setup

CASES = Cases()

MINUTE = 60_000_000
NOON = instant(datetime(2020, 1, 1, 12, 0, tzinfo=UTC))  # long ago: the same words in every dump
FAR = datetime(2126, 1, 1, tzinfo=UTC)


def definition(setup: Setup, **options: Unpack[ScheduleOptions]) -> Definition:
    if not {"cron", "every", "at"} & options.keys():
        options["every"] = "1m"
    return define("work", setup.job.kind, {"arguments": {"n": 1}, **options})


def add(setup: Setup, name: str = "beat", **options: Unpack[ScheduleOptions]) -> None:
    """A schedule that ticks every minute from noon on."""
    setup.do(lambda tx: changes.add(tx, name, definition(setup, **options), now=NOON - 1))


# Ticks


@CASES.repeated
def fire_a_tick(setup: Setup) -> Action:
    add(setup)
    return lambda: fire_due(setup.app.database, NOON)


@CASES.repeated
def fire_ticks_of_three_schedules(setup: Setup) -> Action:
    for name in ("a", "b", "c"):
        add(setup, name)
    return lambda: fire_due(setup.app.database, NOON)


@CASES.repeated
def fire_all_that_were_missed(setup: Setup) -> Action:
    add(setup, missed="all")
    return lambda: fire_due(setup.app.database, NOON + 3 * MINUTE)


@CASES.repeated
def fire_one_for_all_that_were_missed(setup: Setup) -> Action:
    add(setup, missed="once")
    return lambda: fire_due(setup.app.database, NOON + 3 * MINUTE)


@CASES.repeated
def skip_what_was_missed(setup: Setup) -> Action:
    add(setup, every="1h", missed="skip")
    return lambda: fire_due(setup.app.database, NOON + 90 * MINUTE)


@CASES.repeated
def fire_a_one_off(setup: Setup) -> Action:
    add(setup, at=datetime(2020, 1, 1, 12, 0, tzinfo=UTC))
    return lambda: fire_due(setup.app.database, NOON)


@CASES.repeated
def skip_a_tick_that_would_overlap(setup: Setup) -> Action:
    add(setup, overlap="skip")
    fire_due(setup.app.database, NOON)
    return lambda: fire_due(setup.app.database, NOON + MINUTE)


# What the code declares


@CASES.repeated
def declare_a_schedule(setup: Setup) -> Action:
    it = definition(setup, at=FAR)
    return lambda: setup.do(lambda tx: synchronise(tx, {"beat": it}))


@CASES.repeated
def declare_a_schedule_anew(setup: Setup) -> Action:
    setup.do(lambda tx: synchronise(tx, {"beat": definition(setup)}, now=NOON))
    it = definition(setup, at=FAR)
    return lambda: setup.do(lambda tx: synchronise(tx, {"beat": it}))


# What an operator does


@CASES.once
def add_a_schedule(setup: Setup) -> Action:
    return lambda: setup.app.schedules.add("beat", setup.job, at=FAR, arguments={"n": 1})


@CASES.repeated
def change_a_schedule(setup: Setup) -> Action:
    add(setup)
    return lambda: setup.app.schedules.change("beat", at=FAR)


@CASES.repeated
def pause_a_schedule(setup: Setup) -> Action:
    add(setup)
    return lambda: setup.app.schedules.pause("beat")


@CASES.repeated
def resume_a_schedule(setup: Setup) -> Action:
    add(setup, cron="0 0 29 2 *")
    setup.do(lambda tx: changes.pause(tx, "beat"))
    return lambda: setup.app.schedules.resume("beat")


@CASES.once
def trigger_a_schedule(setup: Setup) -> Action:
    add(setup)
    return lambda: setup.app.schedules.trigger("beat")


@CASES.once
def remove_a_schedule(setup: Setup) -> Action:
    add(setup)
    return lambda: setup.app.schedules.remove("beat")


@CASES.once
def remove_a_declared_schedule(setup: Setup) -> Action:
    setup.do(lambda tx: synchronise(tx, {"beat": definition(setup)}, now=NOON))
    return lambda: setup.app.schedules.remove("beat")


@CASES.repeated
def reset_a_schedule(setup: Setup) -> Action:
    setup.do(lambda tx: synchronise(tx, {"beat": definition(setup, at=FAR)}))
    setup.do(lambda tx: changes.remove(tx, "beat"))
    return lambda: setup.app.schedules.reset("beat")


@CASES.repeated
def forget_one_offs(setup: Setup) -> Action:
    add(setup, at=datetime(2020, 1, 1, 12, 0, tzinfo=UTC))
    fire_due(setup.app.database, NOON)
    return lambda: setup.do(lambda tx: changes.forget_finished(tx, MINUTE))
