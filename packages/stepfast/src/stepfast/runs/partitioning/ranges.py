"""Ranges of a source's items: bounds or values for some dimensions. `count` and `fetch` of a feed get the same range."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, Literal

from stepfast.errors import ConfigurationError

# Bounds: from one value to another, and whether the last one belongs to it.
#
# Neighbours of a source that includes both ends share their common bound, `[0, 250]` and `[250, 500]`: with `[0, 249]`
# and `[250, 500]` an item at 249.50 would be lost. An item on the bound is read twice and stored once.

Value = int | float | Decimal | str | datetime
Closed = Literal["both", "left"]
Step = int | float | Decimal | timedelta
RangeEdge = tuple[int, Any, int]  # where bounds begin or end, see `Bounds.start`

_WORD: Final = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)  # a text that can be mistaken for nothing else
_LARGEST: Final = 2**63  # what every reader of JSON takes for a number


@dataclass(frozen=True)
class Bounds:
    """Bounds of an ordered dimension. The last value belongs to them ("both") or not ("left"). None: no bound there."""

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
    def start(self) -> RangeEdge:
        """Where the bounds begin, in the order of edges: before a value (0) or immediately after it (1)."""
        return (-1, 0, 0) if self.from_ is None else (0, self.from_, 0)

    @property
    def end(self) -> RangeEdge:
        """The first edge that does not belong to the bounds any more."""
        return (1, 0, 0) if self.to is None else (0, self.to, int(self.closed == "both"))

    @property
    def text(self) -> str:
        last = "" if self.to is None else f"{'<' if self.closed == 'left' else ''}{say(self.to)}"
        return f"{'' if self.from_ is None else say(self.from_)}..{last}"

    def contains(self, value: Value) -> bool:
        here = canonical(value)
        _comparable(here, self.to if self.from_ is None else self.from_)
        return self.start <= (0, here, 0) < self.end

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
    families = {_family(value) for value in (one, other) if value is not None}
    if len(families) > 1:
        raise ConfigurationError(f"{one!r} and {other!r} cannot be compared: use values of one type")


def _family(value: Value) -> str:
    if isinstance(value, datetime):
        return "instant"
    return "text" if isinstance(value, str) else "number"


# Ranges: a part for each dimension that they name.

Part = Bounds | tuple[Value, ...]  # a stretch of an ordered dimension, or values one by one

ITEMS: Final = "items"  # the dimension of a fixed list
LONGEST_NAME: Final = 120

_DIMENSION: Final = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class Range:
    """A box: bounds, or a list of values, for each dimension it names. What it does not name is not restricted."""

    parts: tuple[tuple[str, Part], ...] = ()

    def __post_init__(self) -> None:
        parts = sorted((name, _part(name, part)) for name, part in dict(self.parts).items())
        object.__setattr__(self, "parts", tuple(parts))

    @classmethod
    def of(cls, parts: Mapping[str, Bounds | Iterable[Value]] | None = None, /, **named: Any) -> Range:
        """`Range.of(price=Bounds(0, 250), shape=["ROUND", "OVAL"])`."""
        return cls(tuple({**(parts or {}), **named}.items()))

    @property
    def name(self) -> str:
        """A text that is the same for equal ranges, and for no others."""
        text = ", ".join(f"{name} {_text(part)}" for name, part in self.parts) or "everything"
        if len(text) <= LONGEST_NAME:
            return text
        import hashlib

        digest = hashlib.sha256(text.encode()).hexdigest()[:24]
        return f"{text[: LONGEST_NAME - 25]}~{digest}"

    @property
    def items(self) -> tuple[Any, ...]:
        """The items of a fixed list."""
        return self.choices(ITEMS) or ()

    def bounds(self, dimension: str) -> Bounds:
        """The bounds in this dimension; none on either side if the range does not name it."""
        part = dict(self.parts).get(dimension, Bounds())
        if not isinstance(part, Bounds):
            raise ConfigurationError(f"{dimension} is a list of values here; ask choices({dimension!r})")
        return part

    def choices(self, dimension: str) -> tuple[Any, ...] | None:
        """The values in this dimension; None if the range does not name it."""
        part = dict(self.parts).get(dimension)
        if isinstance(part, Bounds):
            raise ConfigurationError(f"{dimension} has bounds here; ask bounds({dimension!r})")
        return part

    def with_part(self, dimension: str, part: Bounds | Iterable[Value]) -> Range:
        """The same range with another part in this dimension."""
        return Range.of({**dict(self.parts), dimension: part})

    def contains(self, values: Mapping[str, Value]) -> bool:
        """Whether an item with these values belongs to it. An item without a value lies in no part of its dimension."""
        return all(name in values and _holds(part, values[name]) for name, part in self.parts)

    def overlap(self, other: Range) -> Range | None:
        """What both contain; None if nothing."""
        common = dict(self.parts)
        for name, theirs in other.parts:
            shared = _shared(common[name], theirs) if name in common else theirs
            if not shared:
                return None
            common[name] = shared
        return Range.of(common)

    def split(self, dimension: str, at: Value) -> tuple[Range, Range]:
        """Two that tile it."""
        lower, upper = self.bounds(dimension).split(at)
        return self.with_part(dimension, lower), self.with_part(dimension, upper)

    def bisect(self, dimension: str, step: Step = 1) -> tuple[Range, Range] | None:
        """Two halves that tile it; None if it cannot be divided any further in this dimension."""
        part = dict(self.parts).get(dimension, Bounds())
        halves: tuple[Part, Part] | None
        if isinstance(part, Bounds):
            halves = part.bisect(step)
        else:
            middle = len(part) // 2
            halves = (part[:middle], part[middle:]) if middle else None
        return halves and (self.with_part(dimension, halves[0]), self.with_part(dimension, halves[1]))

    def to_json(self) -> dict[str, Any]:
        return {name: part.to_json() if isinstance(part, Bounds) else list(part) for name, part in self.parts}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Range:
        parts = {
            name: part if isinstance(part, list) else Bounds.from_json(part) for name, part in stored.items()
        }
        return cls.of(parts)


EVERYTHING: Final = Range()


def gap(domain: Range, ranges: Sequence[Range]) -> str | None:
    """Where the domain is not covered by the ranges, in words; None is the proof that they tile it.

    The ends of all bounds cut a dimension into stretches. Within a stretch the same ranges are there, and they must
    cover what is left: the other dimensions.
    """
    named = Counter(name for it in (domain, *ranges) for name, _ in it.parts)
    # The dimension that all ranges name leaves the fewest of them together.
    by_use = [name for name, _ in named.most_common()]
    found = _gap(dict(domain.parts), [dict(it.parts) for it in ranges], by_use)
    return None if found is None else ", ".join(found) or "everything"


def tiles(domain: Range, ranges: Sequence[Range]) -> bool:
    """Whether the ranges cover the whole domain."""
    return gap(domain, ranges) is None


def _gap(domain: dict[str, Part], there: list[dict[str, Part]], dimensions: list[str]) -> list[str] | None:
    """Where, dimension by dimension, nothing is there; an empty list if nothing is there at all."""
    if not there:
        return []
    if any(it.keys().isdisjoint(dimensions) for it in there):
        return None  # one of them leaves out nothing of what is left
    name, *others = (name for name in dimensions if any(name in it for it in there))
    whole = domain.get(name, Bounds())
    if isinstance(whole, Bounds):
        stretches = _stretches(name, whole, there)
    else:
        stretches = ((say(it), [other for other in there if _covers(other.get(name), it)]) for it in whole)
    for stretch, holding in stretches:
        found = _gap(domain, holding, others)
        if found is not None:
            return [f"{name} {stretch}", *found]
    return None


def _stretches(
    name: str, whole: Bounds, there: list[dict[str, Part]]
) -> Iterator[tuple[str, list[dict[str, Part]]]]:
    """The stretches of a dimension in their order, each with the ranges that cover it."""
    waiting = [(part, it) for it in there if isinstance(part := it.get(name, Bounds()), Bounds)]
    waiting.sort(key=lambda it: it[0].start, reverse=True)
    edges = {whole.start, whole.end, *(edge for part, _ in waiting for edge in (part.start, part.end))}
    inside = sorted(edge for edge in edges if whole.start <= edge <= whole.end)
    holding: list[tuple[Bounds, dict[str, Part]]] = []
    for here, following in pairwise(inside):
        while waiting and waiting[-1][0].start <= here:
            holding.append(waiting.pop())
        holding = [it for it in holding if it[0].end > here]
        yield _stretch(here, following), [it for _, it in holding]


def _stretch(here: RangeEdge, following: RangeEdge) -> str:
    if here[:2] == following[:2]:
        return say(here[1])
    first = "" if here[0] else f"{'>' if here[2] else ''}{say(here[1])}"
    last = "" if following[0] else f"{'' if following[2] else '<'}{say(following[1])}"
    return f"{first}..{last}"


def _covers(part: Part | None, value: Value) -> bool:
    return part is None or _holds(part, value)


def _part(name: str, part: Bounds | Iterable[Value]) -> Part:
    if not _DIMENSION.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is no name of a dimension; use a word such as price or updated_at"
        )
    if isinstance(part, Bounds):
        return part
    if isinstance(part, str) or not isinstance(part, Iterable):
        raise ConfigurationError(f"{name}={part!r}: give Bounds(from, to) or a list of values")
    values = tuple(canonical(value) for value in part)
    if wrong := [value for value in values if not isinstance(value, int | str)]:
        raise ConfigurationError(f"{name} lists {wrong[0]!r}; values one by one are texts or whole numbers")
    if not values or len(set(values)) < len(values):
        raise ConfigurationError(f"{name} lists {'a value twice' if values else 'no values'}: {values!r:.80}")
    return values


def _holds(part: Part, value: Value) -> bool:
    return part.contains(value) if isinstance(part, Bounds) else canonical(value) in part


def _shared(one: Part, other: Part) -> Part | None:
    if isinstance(one, Bounds) and isinstance(other, Bounds):
        return one.overlap(other)
    listed, holder = (other, one) if isinstance(one, Bounds) else (one, other)
    return tuple(value for value in listed if _holds(holder, value)) if isinstance(listed, tuple) else None


def _text(part: Part) -> str:
    return part.text if isinstance(part, Bounds) else " ".join(say(value) for value in part)
