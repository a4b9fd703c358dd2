"""A dimension as planning sees it: a row of ticks, from 0 to its size.

Cuts are made at ticks only, so all arithmetic of planning is with integers, and exact. Tick n is n steps from the
lowest value; of a list of values it is the n-th.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

from stepfast.clock import micros
from stepfast.errors import ConfigurationError
from stepfast.runs.partitioning.ranges import (
    Bounds,
    Closed,
    Part,
    Range,
    Step,
    Value,
    after,
    canonical,
    steps_between,
)

LARGEST_INT: Final = 2_147_483_647  # what sources with required integer bounds take for "no bound"
DENSE_UNTIL: Final = 5_000
DENSE_STEP: Final = 50
GROWTH: Final = 5  # how much wider each look above the dense zone is than the one before it
FIRST_LOOKS: Final = 16
HUGE: Final = 1_000_000  # ticks; above it equal steps would all miss where the rows are


@dataclass(frozen=True)
class Dimension:
    """An ordered dimension: numbers or instants from `low` to `high`, cut at whole steps.

    `closed` says what the source does with bounds: "both" if it includes them, "left" if it excludes the last one (or
    if every value is a whole number of steps: then ask it for `bounds.inclusive(step)`). With `below` the first
    partition has no lower bound, with `above` the last has no upper one. `dense_until` and `dense_step` say where most
    rows are, so that planning looks there first.
    """

    name: str
    low: Value
    high: Value
    step: Step = 1
    closed: Closed = "both"
    below: bool = field(default=False, kw_only=True)
    above: bool = field(default=False, kw_only=True)
    dense_until: Value | None = field(default=None, kw_only=True)
    dense_step: Step | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        # This checks the name and the bounds, too.
        whole = Range.of({self.name: Bounds(self.low, self.high, self.closed)})
        inside = whole.bounds(self.name)
        object.__setattr__(self, "low", inside.from_)
        object.__setattr__(self, "high", inside.to)
        if not isinstance(self.step, timedelta):
            object.__setattr__(self, "step", canonical(self.step))
        if isinstance(self.low, str):
            raise ConfigurationError(f"{whole.name}: texts have no steps; use KeyRanges for them")
        if isinstance(self.low, datetime) != isinstance(self.step, timedelta):
            raise ConfigurationError(
                f"{whole.name}: step={self.step!r} does not fit; instants have a timedelta, numbers a number"
            )
        if not (self.step > timedelta(0) if isinstance(self.step, timedelta) else self.step > 0):
            raise ConfigurationError(f"{whole.name}: step={self.step!r} leads nowhere")
        if self.dense_until is not None and not Bounds(self.low).start < Bounds(self.dense_until).start:
            raise ConfigurationError(f"{whole.name}: nothing lies below dense_until={self.dense_until!r}")

    @cached_property
    def size(self) -> int:
        return steps_between(self.low, self.high, self.step)

    def part(self, first: int, last: int) -> Part:
        """What lies between two ticks."""
        size = self.size
        low = None if self.below and first == 0 else self._value(first, size)
        high = None if self.above and last == size else self._value(last, size)
        return Bounds(low, high, self.closed)

    def ticks(self, part: Part) -> tuple[int, int] | None:
        """Between which ticks it lies; None if these are not our bounds."""
        if not isinstance(part, Bounds) or part.closed != self.closed:
            return None
        size = self.size
        first = (0 if self.below else None) if part.from_ is None else self._tick(part.from_, size)
        last = (size if self.above else None) if part.to is None else self._tick(part.to, size)
        found = None if first is None or last is None else (first, last)
        return found if found and self.part(*found) == part else None

    def within(self, part: Part) -> Dimension | None:
        """The same dimension inside these bounds; None if they leave nothing."""
        if not isinstance(part, Bounds) or part.closed != self.closed:
            return None
        low, high = (
            mine if it is None else it for it, mine in ((part.from_, self.low), (part.to, self.high))
        )
        if not Bounds(low).start < Bounds(high).start:
            return None
        dense = self.dense_until
        if dense is not None and not Bounds(low).start < Bounds(dense).start:
            dense = None
        return replace(
            self, low=low, high=high, below=part.from_ is None, above=part.to is None, dense_until=dense
        )

    def first_look(self, pieces: int) -> list[int]:
        """Where to cut a dimension about which nothing is known yet, except where its rows may be dense."""
        size = self.size
        if self.dense_until is not None:
            return self._look_dense(size, pieces)
        if size > HUGE:
            return [4**it for it in range(2, size.bit_length() // 2 + 1) if 4**it < size]
        looks = min(size, FIRST_LOOKS, 2 * pieces)
        return sorted({size * it // looks for it in range(1, looks)} - {0})

    def _look_dense(self, size: int, pieces: int) -> list[int]:
        """Even steps through the dense zone, then ever wider ones."""
        until = min(size, steps_between(self.low, self.dense_until, self.step))
        unit = (
            1
            if self.dense_step is None
            else max(1, steps_between(self.low, after(self.low, self.dense_step, 1), self.step))
        )
        looks = max(1, min(until // unit, 2 * max(2, pieces)))
        cuts = {until * it // looks // unit * unit for it in range(1, looks)} | {until}
        while until < size:
            until = max(until * GROWTH, until + 1)
            cuts.add(until)
        return sorted(it for it in cuts if 0 < it < size)

    def to_json(self) -> dict[str, Any]:
        stored = {"name": self.name, "bounds": Bounds(self.low, self.high, self.closed).to_json()}
        outer = {"below": self.below, "above": self.above}
        dense = (
            {}
            if self.dense_until is None
            else {"dense": steps_between(self.low, self.dense_until, self.step)}
        )
        unit = {} if self.dense_step is None else {"dense_step": _stored(self.dense_step)}
        return stored | outer | {"step": _stored(self.step)} | dense | unit

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Dimension:
        bounds, step = Bounds.from_json(stored["bounds"]), _restored(stored["step"])
        if bounds.from_ is None or bounds.to is None:
            raise ConfigurationError(f"the stored dimension {stored['name']} has no ends; plan again")
        return cls(
            stored["name"],
            bounds.from_,
            bounds.to,
            step,
            bounds.closed,
            below=stored["below"],
            above=stored["above"],
            dense_until=after(bounds.from_, step, stored["dense"]) if "dense" in stored else None,
            dense_step=_restored(stored["dense_step"]) if "dense_step" in stored else None,
        )

    def _value(self, tick: int, size: int) -> Value:
        value: Value = self.high if tick == size else after(self.low, self.step, tick)
        return value

    def _tick(self, value: Value, size: int) -> int | None:
        if value == self.high:
            return size
        if not Bounds(self.low, self.high).contains(value):
            return None
        # `part` shows whether it was a whole number of steps.
        return steps_between(self.low, value, self.step)


@dataclass(frozen=True)
class Choices:
    """A dimension of values one by one, such as shapes or colours; every value that an item may have."""

    name: str
    values: Sequence[Value]

    def __post_init__(self) -> None:
        checked = Range.of({self.name: self.values}).choices(self.name)
        object.__setattr__(self, "values", checked)

    @property
    def size(self) -> int:
        return len(self.values)

    def part(self, first: int, last: int) -> Part:
        return tuple(self.values[first:last])

    def ticks(self, part: Part) -> tuple[int, int] | None:
        if isinstance(part, Bounds) or part[0] not in self.values:
            return None
        first = self.values.index(part[0])
        last = first + len(part)
        return (first, last) if self.part(first, last) == part else None

    def within(self, part: Part) -> Choices | None:
        return None if isinstance(part, Bounds) else Choices(self.name, part)

    def first_look(self, pieces: int) -> list[int]:
        looks = min(self.size, FIRST_LOOKS, 2 * pieces)
        return sorted({self.size * it // looks for it in range(1, looks)} - {0})

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "values": list(self.values)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Choices:
        return cls(stored["name"], stored["values"])


Axis = Dimension | Choices


def prices(name: str) -> Dimension:
    """A dimension of whole prices without an upper end, dense below 5,000; the source includes both bounds."""
    return Dimension(name, 0, LARGEST_INT, dense_until=DENSE_UNTIL, dense_step=DENSE_STEP)


def axis_from_json(stored: Mapping[str, Any]) -> Axis:
    return Choices.from_json(stored) if "values" in stored else Dimension.from_json(stored)


def _stored(step: Step) -> Any:
    return {"microseconds": micros(step)} if isinstance(step, timedelta) else str(step)


def _restored(step: Any) -> Step:
    return timedelta(microseconds=step["microseconds"]) if isinstance(step, dict) else Decimal(step)
