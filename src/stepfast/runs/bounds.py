"""From one value to another, and whether the last one belongs to it.

Neighbours of a source that includes both ends share their common bound, `[0, 250]` and `[250, 500]`: with `[0, 249]`
and `[250, 500]` an item at 249.50 would be lost. An item on the bound is read twice and stored once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Literal

from stepfast.errors import ConfigurationError

Value = int | float | Decimal | str | datetime
Closed = Literal["both", "left"]
Step = int | float | Decimal | timedelta
Place = tuple[int, Any, int]  # see `start`

_WORD: Final = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)  # a text that can be mistaken for nothing else
_LARGEST: Final = 2**63  # what every reader of JSON takes for a number


@dataclass(frozen=True)
class Bounds:
    """The last value belongs to it ("both") or not ("left"). None: no bound on that side."""

    from_: Value | None = None
    to: Value | None = None
    closed: Closed = "both"

    def __post_init__(self) -> None:
        if self.closed not in ("both", "left"):
            raise ConfigurationError(f"closed={self.closed!r}: bounds are closed at 'both' ends or 'left'")
        low, high = (None if it is None else canonical(it) for it in (self.from_, self.to))
        object.__setattr__(self, "from_", low)
        object.__setattr__(self, "to", high)
        if high is None:
            object.__setattr__(self, "closed", "both")  # without an end there is nothing to leave out
        if low is None or high is None:
            return
        _comparable(low, high)
        if self.start > (0, high, 0):
            raise ConfigurationError(
                f"bounds {say(low)}..{say(high)} are inverted: a source may answer anything"
            )
        if self.start == self.end:
            raise ConfigurationError(f"bounds {say(low)}..<{say(high)} are empty: nothing lies between them")

    @property
    def start(self) -> Place:
        """Where it begins, in an order of places: a value is at 0, what follows it immediately at 1."""
        return (-1, 0, 0) if self.from_ is None else (0, self.from_, 0)

    @property
    def end(self) -> Place:
        """The first place that does not belong to it any more."""
        return (1, 0, 0) if self.to is None else (0, self.to, int(self.closed == "both"))

    @property
    def text(self) -> str:
        last = "" if self.to is None else f"{'<' if self.closed == 'left' else ''}{say(self.to)}"
        return f"{'' if self.from_ is None else say(self.from_)}..{last}"

    def contains(self, value: Value) -> bool:
        it = canonical(value)
        _comparable(it, self.to if self.from_ is None else self.from_)
        return self.start <= (0, it, 0) < self.end

    def overlap(self, other: Bounds) -> Bounds | None:
        """What both contain; None if nothing."""
        _comparable(*(it.to if it.from_ is None else it.from_ for it in (self, other)))
        first, last = max(self, other, key=lambda it: it.start), min(self, other, key=lambda it: it.end)
        return Bounds(first.from_, last.to, last.closed) if first.start < last.end else None

    def split(self, at: Value) -> tuple[Bounds, Bounds]:
        """Two that tile it. Closed at both ends, they share `at`."""
        here = canonical(at)
        _comparable(here, self.to if self.from_ is None else self.from_)
        beyond = self.end if self.to is None else (0, self.to, 0)
        if not self.start < (0, here, 0) < beyond:
            raise ConfigurationError(f"{say(here)} does not lie inside {self.text}: it cannot be split there")
        return Bounds(self.from_, here, self.closed), Bounds(here, self.to, self.closed)

    def bisect(self, step: Step = 1) -> tuple[Bounds, Bounds] | None:
        """Two halves, a whole number of steps long; None if there are none."""
        if self.from_ is None or self.to is None or isinstance(self.from_, str):
            return None
        half = steps_between(self.from_, self.to, step) // 2
        return self.split(after(self.from_, step, half)) if half else None

    def inclusive(self, step: Step = 1) -> tuple[Any, Any]:
        """The bounds as a source wants them that includes both ends.

        For half-open bounds this is right only where every value is a whole number of steps. Where prices have
        cents and bounds have none, ask for bounds that are closed at both ends instead.
        """
        if self.closed == "both" or self.to is None:
            return self.from_, self.to
        last = after(self.to, step, -1)
        if self.from_ is not None and (0, last, 0) < self.start:
            raise ConfigurationError(f"{self.text} is narrower than one step of {step}")
        return self.from_, last

    def to_json(self) -> dict[str, Any]:
        low, high = self.from_, self.to
        stored: dict[str, Any] = {"from": low, "to": high, "closed": self.closed}
        if isinstance(low, datetime) or isinstance(high, datetime):
            texts = {"from": low and say(low), "to": high and say(high), "type": "instant"}
            return stored | texts
        if any(
            isinstance(it, Decimal) or (isinstance(it, int) and abs(it) >= _LARGEST) for it in (low, high)
        ):
            exact = [None if it is None else say(it) for it in (low, high)]
            return stored | {"from": exact[0], "to": exact[1], "type": "decimal"}
        return stored

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Bounds:
        read = _READERS[stored.get("type")]
        low, high = (None if stored[it] is None else read(stored[it]) for it in ("from", "to"))
        return cls(low, high, stored["closed"])


_READERS: Final = {None: lambda it: it, "instant": datetime.fromisoformat, "decimal": Decimal}


def canonical(value: Value) -> Any:
    """Equal values become the same one: numbers are integers or decimals, instants are in UTC."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigurationError(f"{value!r} has no time zone; use an aware datetime, such as one in UTC")
        return value.astimezone(UTC)
    if isinstance(value, float):
        value = Decimal(repr(value))
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ConfigurationError(f"{value} is no number; leave a bound out (None) if there is none")
        return int(value) if value == value.to_integral_value() else value.normalize()
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigurationError(f"{value!r} is not a number, a text or an aware datetime")
    return value


def after(value: Any, step: Step, count: int) -> Any:
    """`count` steps from a value, in exact arithmetic."""
    if isinstance(value, str):
        raise ConfigurationError(f"{value!r} is a text; steps are counted between numbers or instants")
    return canonical(value + _width(step) * count)


def steps_between(low: Any, high: Any, step: Step) -> int:
    """How many steps from one value to another, the last one perhaps shorter."""
    whole, rest = divmod(high - low, _width(step))
    return int(whole) + bool(rest)


def say(value: Value) -> str:
    """A value as it stands in a name: equal values alike, different ones never."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, str) and not _WORD.fullmatch(value):
        import json

        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _width(step: Step) -> Any:
    return step if isinstance(step, timedelta) else canonical(step)


def _comparable(one: Value | None, other: Value | None) -> None:
    families = {_family(it) for it in (one, other) if it is not None}
    if len(families) > 1:
        raise ConfigurationError(f"{one!r} and {other!r} cannot be compared: use values of one type")


def _family(value: Value) -> str:
    if isinstance(value, datetime):
        return "instant"
    return "text" if isinstance(value, str) else "number"
