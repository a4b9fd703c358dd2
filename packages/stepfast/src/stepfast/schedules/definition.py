"""The definition of a schedule: which job, with which arguments, and when; checked before it is stored. Pure.

The end of this file decides which ticks are fired when no worker was there in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, TypeVar, assert_never

from stepfast.clock import Duration, duration, instant, micros, moment
from stepfast.config import MAX_PAYLOAD, checked_name
from stepfast.database.stored import stored_state
from stepfast.errors import ArgumentsError, ConfigurationError
from stepfast.jobs.kinds import checked_priority
from stepfast.jobs.payload import decode, to_json
from stepfast.schedules.cron import Calendar, Every, Once, Timing, parse, zone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepfast.jobs.kinds import Kind


LONGEST_NAME: Final = 100
LONGEST_ZONE: Final = 60
SHORTEST: Final = timedelta(seconds=1)
LONGEST: Final = timedelta(days=3_660)

LATE: Final = 60 * 1_000_000  # microseconds; a tick that is fired within a minute was not missed
MOST: Final = 1_000  # ticks of one schedule that are made up; the newest
BATCH: Final = 50  # ticks of one transaction

E = TypeVar("E", bound=StrEnum)


class Missed(StrEnum):
    """What becomes of ticks that were missed because no worker ran."""

    ONCE = "once"  # one job for all of them, as of the latest
    ALL = "all"  # one job for each, the oldest first
    SKIP = "skip"  # none, unless the latest is not late yet


class Overlap(StrEnum):
    """What becomes of a tick while the job of an earlier one is unfinished."""

    ALLOW = "allow"  # a tick becomes a job, whatever became of the one before it
    SKIP = "skip"  # a tick becomes no job while one of the same schedule is unfinished


class ScheduleOptions(TypedDict, total=False):
    """The options of a schedule as callers give them; None is like an option that is left out."""

    cron: str | None
    every: Duration | None
    at: datetime | None
    tz: str | None
    arguments: Mapping[str, Any] | None
    tick_as: str | None
    queue: str | None
    priority: int | None
    missed: Literal["once", "all", "skip"] | None
    overlap: Literal["allow", "skip"] | None


OPTIONS: Final = tuple(ScheduleOptions.__annotations__)


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A schedule without its name and state. Exactly one of `cron`, `every` and `once_at` is given."""

    kind: str
    queue: str
    priority: int
    payload: str  # JSON; without the tick
    cron: str | None
    every: int | None  # microseconds
    once_at: int | None
    tz: str
    missed: Missed
    overlap: Overlap
    tick_as: str | None  # the argument that says which tick it is

    @property
    def when(self) -> tuple[str | None, int | None, int | None, str]:
        """The fields that determine the ticks."""
        return self.cron, self.every, self.once_at, self.tz

    @property
    def timing(self) -> Timing:
        if self.cron is not None:
            return Calendar(parse(self.cron), zone(self.tz))
        if self.every is not None:
            return Every(self.every)
        if self.once_at is None:
            raise ConfigurationError("a schedule needs cron, every or at; its row has none of them")
        return Once(self.once_at)

    def arguments_at(self, tick: int) -> str:
        """The payload of the job that a tick becomes."""
        if self.tick_as is None:
            return self.payload
        return to_json({**decode(self.payload), self.tick_as: moment(tick).astimezone(zone(self.tz))})


def checked_schedule_name(name: object) -> str:
    checked = checked_name("schedule", name)
    if len(checked) > LONGEST_NAME:
        raise ConfigurationError(
            f"schedule {checked[:40]!r}…: {len(checked)} characters; at most {LONGEST_NAME} fit"
        )
    if ":" in checked:
        raise ConfigurationError(
            f"schedule {checked!r}: a colon separates a name from its ticks; use . or / instead"
        )
    return checked


def define(
    kind: str, known: Kind | None, given: ScheduleOptions, before: Definition | None = None
) -> Definition:
    """Make a definition of options; those left out are as `before`, else the defaults. `known` checks the arguments."""
    if unknown := set(given) - set(OPTIONS):
        raise ConfigurationError(f"a schedule has no option {min(unknown)!r}; there are {', '.join(OPTIONS)}")
    usual = before or _usual(kind, known)
    cron, every, once_at = _when(given, before)
    tick_as = _argument(given.get("tick_as"), usual.tick_as)
    arguments, queue, priority = given.get("arguments"), given.get("queue"), given.get("priority")
    return Definition(
        kind=usual.kind,
        queue=usual.queue if queue is None else checked_name("queue", queue),
        priority=usual.priority if priority is None else checked_priority(priority),
        payload=_payload(kind, known, decode(usual.payload) if arguments is None else arguments, tick_as),
        cron=cron,
        every=every,
        once_at=once_at,
        tz=_zone(given.get("tz") or usual.tz),
        missed=_choice("missed", given.get("missed"), Missed, usual.missed),
        overlap=_choice("overlap", given.get("overlap"), Overlap, usual.overlap),
        tick_as=tick_as,
    )


def _usual(kind: str, known: Kind | None) -> Definition:
    return Definition(
        kind=checked_name("kind", kind),
        queue=known.queue if known else "default",
        priority=known.priority if known else 0,
        payload="{}",
        cron=None,
        every=None,
        once_at=None,
        tz="UTC",
        missed=Missed.ONCE,
        overlap=Overlap.ALLOW,
        tick_as=None,
    )


def stored(definition: Definition) -> dict[str, Any]:
    """The columns of a definition."""
    return {
        name: value.value if isinstance(value, StrEnum) else value for name, value in vars(definition).items()
    }


def restored(fields: Mapping[str, Any]) -> Definition:
    """A definition from its columns."""
    return Definition(
        **{
            **fields,
            "missed": stored_state(Missed, fields["missed"]),
            "overlap": stored_state(Overlap, fields["overlap"]),
        }
    )


def _when(given: ScheduleOptions, before: Definition | None) -> tuple[str | None, int | None, int | None]:
    cron, every, at = given.get("cron"), given.get("every"), given.get("at")
    count = sum(it is not None for it in (cron, every, at))
    if count == 0 and before is not None:
        return before.cron, before.every, before.once_at
    if count != 1:
        raise ConfigurationError(
            "a schedule has exactly one of cron='0 2 * * *', every='15m' and at=datetime(…)"
        )
    if cron is not None and not isinstance(cron, str):
        raise ConfigurationError(f"cron {cron!r}: write a text such as '0 2 * * *'")
    return (
        None if cron is None else parse(cron.strip()).text,
        None if every is None else _period(every),
        None if at is None else instant(at, "at"),
    )


def _period(every: Duration) -> int:
    period = duration(every, "every")
    if not SHORTEST <= period <= LONGEST:
        raise ConfigurationError(f"every: {every!r} must lie between 1s and {LONGEST.days}d")
    return micros(period)


def _zone(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_ZONE:
        raise ConfigurationError(f"tz {name!r}: write an IANA name such as 'Europe/Paris'")
    zone(name)
    return name


def _argument(given: object, usual: str | None) -> str | None:
    """The name of an argument; an empty one removes the default."""
    if given is None:
        return usual
    if not isinstance(given, str) or (given and not given.isidentifier()) or len(given) > LONGEST_NAME:
        raise ConfigurationError(f"tick_as={given!r}: name an argument of the job")
    return given or None


def _choice(what: str, given: str | None, choices: type[E], usual: E) -> E:
    if given is None:
        return usual
    try:
        return choices(given)
    except ValueError:
        raise ConfigurationError(
            f"{what}={given!r}: use {', '.join(repr(str(it)) for it in choices)}"
        ) from None


def _payload(kind: str, known: Kind | None, arguments: object, tick_as: str | None) -> str:
    if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
        raise ConfigurationError(
            f"arguments: give a mapping from names to values, not {type(arguments).__name__}"
        )
    if tick_as is not None and tick_as in arguments:
        raise ConfigurationError(
            f"tick_as={tick_as!r}: the tick gives this argument; leave it out of arguments"
        )
    if known is not None:
        tick = {} if tick_as is None else {tick_as: moment(0)}
        known.arguments.encode({**arguments, **tick})
    try:
        text = to_json(dict(arguments))
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentsError(kind, str(error)) from error
    if len(text) > MAX_PAYLOAD:
        raise ArgumentsError(kind, f"the arguments take more than {MAX_PAYLOAD:,} bytes; pass an id instead")
    return text


# Missed ticks.


@dataclass(frozen=True)
class Decision:
    """Which ticks of a due schedule fire, and when it is due again."""

    fire: tuple[int, ...]  # ticks that become jobs, oldest first
    next_at: int | None  # when it is due again; an instant that has passed if there is more to make up
    dropped_since: int | None  # the first tick that never becomes a job


def decide(timing: Timing, missed: Missed, due: int, now: int) -> Decision:
    """Judge a schedule whose tick `due` has come by `now`."""
    latest = max(timing.latest(now) or due, due)  # what time zone data say of the past may change
    following = timing.next_after(max(now, latest))
    match missed:
        case Missed.ONCE:
            return Decision((latest,), following, due if latest > due else None)
        case Missed.SKIP if now - latest <= LATE:
            return Decision((latest,), following, due if latest > due else None)
        case Missed.SKIP:
            return Decision((), following, due)
        case Missed.ALL:
            return _one_by_one(timing, due, now, following)
        case _:
            assert_never(missed)


def _one_by_one(timing: Timing, due: int, now: int, following: int | None) -> Decision:
    ticks = list(_first(timing, due, now, MOST + 1))
    dropped = len(ticks) > MOST
    if dropped:
        ticks = list(_last(timing, now, MOST))
    more = len(ticks) > BATCH
    return Decision(tuple(ticks[:BATCH]), ticks[BATCH] if more else following, due if dropped else None)


def _first(timing: Timing, due: int, now: int, limit: int) -> Iterator[int]:
    """Up to `limit` ticks from `due` to `now`."""
    tick: int | None = due
    while tick is not None and tick <= now and limit > 0:
        yield tick
        tick = timing.next_after(tick)
        limit -= 1


def _last(timing: Timing, now: int, limit: int) -> list[int]:
    """The last `limit` ticks up to `now`, oldest first."""
    ticks: list[int] = []
    tick = timing.latest(now)
    while tick is not None and len(ticks) < limit:
        ticks.append(tick)
        tick = timing.latest(tick - 1)
    return ticks[::-1]
