"""What the options of a call say about other calls with its key; refused in words where they contradict each other."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from stepfast.clock import Duration, duration, micros
from stepfast.errors import ArgumentsError, ConfigurationError
from stepfast.sealing import opened
from stepfast.steps.joining import NO_BOUND, Join
from stepfast.steps.keys import AFTER
from stepfast.steps.payload import decode
from stepfast.telemetry.masking import storable

if TYPE_CHECKING:
    from stepfast.steps.duplicates import OnDuplicate
    from stepfast.steps.kinds import Kind

Choice = Literal["reject", "skip", "replace", "merge"]
CHOICES: Final = ("reject", "skip", "replace", "merge")
LONGEST_KEY: Final = 128
_WHY: Final = {
    "unique_for": "{} keeps every call, unique_for drops those that come late",
    "unique_per": "{} keeps every call, unique_per drops those that come late",
    "after": "with {} a job takes in calls that may each come after others",
    "delay": "{} says when the job begins",
    "run_at": "{} says when the job begins",
}


def check_key(key: object) -> None:
    if key is None:
        return
    if not isinstance(key, str):
        raise ConfigurationError(f"key {key!r}: a text, not {type(key).__name__}")
    if not 0 < len(key) <= LONGEST_KEY:
        raise ConfigurationError(f"key {key[:40]!r}…: 1 to {LONGEST_KEY} characters, not {len(key)}")
    if key != key.rstrip():
        raise ConfigurationError(f"key {key!r} ends in a space, which MariaDB would not see; strip it")
    if key != storable(key):
        raise ConfigurationError(f"key {key!r}: no database stores NUL or half a character")
    if key.startswith(AFTER):
        raise ConfigurationError(
            f"key {key!r}: keys that begin with {AFTER!r} are those of waiting successors"
        )


def met_as(choice: str | None) -> OnDuplicate:
    """How a held key is met where calls do not join."""
    match choice:
        case None | "reject" | "merge":
            return "reject"
        case "skip" | "replace":
            return choice
        case _:
            raise ConfigurationError(f"on_duplicate={choice!r}: use 'reject', 'skip', 'replace' or 'merge'")


def remembered(key: str | None, unique_for: Duration | None, unique_per: Duration | None) -> int | None:
    """For how many microseconds the key is remembered."""
    if unique_for is None and unique_per is None:
        return None
    given = {"unique_for": unique_for, "unique_per": unique_per}
    named = [name for name, period in given.items() if period is not None]
    if len(named) > 1:
        raise ConfigurationError(
            "enqueue: give unique_for (from now on) or unique_per (a fixed window), not both"
        )
    for name in named:
        if key is None:
            raise ConfigurationError(f"enqueue: {name} needs a key to remember")
        period = micros(duration(given[name] or 0, name))
        if period <= 0 and name == "unique_per":
            raise ConfigurationError(
                f"enqueue: unique_per={unique_per!r} is no window; give a time above zero"
            )
        return period
    return None


def joining(
    kind: Kind,
    key: str | None,
    choice: str | None,
    *,
    debounce: Duration | None = None,
    at_most: Duration | None = None,
    **others: Any,
) -> Join | None:
    """How the call joins the job that holds its key; None if it does not. `others` are options that contradict it."""
    check_key(key)
    if debounce is None:
        if at_most is not None:
            raise ConfigurationError("enqueue: at_most bounds a debounce; give debounce=… too")
        if choice != "merge" or key is None:
            return None
        _refuse(others, "on_duplicate='merge'", "unique_for", "unique_per", "after")
        _require_room(key)
        return Join(merge=partial(merged, kind))
    if key is None:
        raise ConfigurationError("enqueue: debounce needs a key: calls with the same one are one job")
    if choice not in {None, "replace", "merge"}:
        raise ConfigurationError(
            f"enqueue: debounce joins calls, on_duplicate={choice!r} does not; use 'replace' (the last payload wins) or 'merge'"
        )
    _refuse(others, "debounce", "unique_for", "unique_per", "after", "delay", "run_at")
    _require_room(key)
    quiet = micros(duration(debounce, "debounce"))
    bound = NO_BOUND if at_most is None else micros(duration(at_most, "at_most"))
    if bound < quiet:
        raise ConfigurationError(
            "enqueue: at_most is shorter than debounce; the job would never wait so long"
        )
    return Join(merge=newest if choice != "merge" else partial(merged, kind), quiet=quiet, at_most=bound)


def merged(kind: Kind, waiting: str, new: str) -> str:
    """The payload of both calls, checked and stored as that of any call is."""
    given = [decode(opened(it, f"payload of {kind.name}")) for it in (waiting, new)]
    both = kind.merge(*given)
    if not isinstance(both, Mapping):
        raise ArgumentsError(
            kind.name, f"its merge returned {type(both).__name__}; return the arguments as a dict"
        )
    return kind.stored(kind.arguments.encode(both))


def newest(_waiting: str, new: str) -> str:
    """The payload of the last call."""
    return new


def _refuse(given: dict[str, Any], whom: str, *names: str) -> None:
    for name in names:
        if given.get(name) is not None:
            raise ConfigurationError(f"enqueue: {_WHY[name].format(whom)}; give {whom} or {name}, not both")


def _require_room(key: str) -> None:
    if len(key) > (most := LONGEST_KEY - len(AFTER)):
        raise ConfigurationError(
            f"key {key[:40]!r}…: 1 to {most} characters where calls join, not {len(key)}"
        )
