"""The result of a measurement: several runs of the same thing, compared with the targets."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Measured:
    """One value, and how many cores other programs used meanwhile."""

    value: float
    foreign: float


@dataclass(frozen=True)
class Sample:
    """The same thing measured several times; the median is its value."""

    values: tuple[float, ...]
    unit: str
    foreign: float | None = None  # in the worst case

    @classmethod
    def of(cls, measured: Iterable[Measured], unit: str) -> Sample:
        every = list(measured)
        return cls(tuple(it.value for it in every), unit, max(it.foreign for it in every))

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        low, high = min(self.values), max(self.values)
        return f"{_number(self.median)} {self.unit} [{_number(low)} to {_number(high)}]"


@dataclass(frozen=True)
class Goal:
    """A target: `value` must reach `bound`, from below or from above."""

    words: str
    value: float
    bound: float
    at_most: bool = False
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def __str__(self) -> str:
        sign = "≤" if self.at_most else "≥"
        return f"{_number(self.value)}{self.unit} {self.words} ({sign} {self.bound:g})"


@dataclass(frozen=True)
class Figure:
    name: str
    sample: Sample
    goals: tuple[Goal, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Section:
    """One question, its method in a sentence or two, and its figures."""

    title: str
    method: str
    figures: list[Figure] = field(default_factory=list)


def at_least(words: str, sample: Sample, other: Sample, bound: float) -> Goal:
    """`sample` is to be at least `bound` times `other`."""
    return Goal(words, sample.median / other.median, bound)


def at_least_in_turns(words: str, sample: Sample, other: Sample, bound: float) -> Goal:
    """The same where each value was measured right after that of `other`: the median of their ratios.

    What slows the machine for a minute slows both of a pair; of two medians it may slow one.
    """
    pairs = zip(sample.values, other.values, strict=True)
    return Goal(words, statistics.median(mine / theirs for mine, theirs in pairs), bound)


def at_most(words: str, sample: Sample, bound: float) -> Goal:
    """`sample` itself is to stay within `bound`."""
    return Goal(words, sample.median, bound, at_most=True, unit=f" {sample.unit}")


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
