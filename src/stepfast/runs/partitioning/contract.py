"""What a partitioner is: it asks for counts, a few at a time, and ends with partitions that tile its domain.

Everything it knows is its frontier, and a frontier is JSON. So planning is a chain of leased steps: each restores the
frontier, counts what it asks for, tells it the answers and stores it. A frontier carries the settings it was started
with: a deployment in the middle of planning changes nothing for the run that is being planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal, Protocol

from stepfast.errors import ConfigurationError
from stepfast.runs.ranges import Range, gap

# Why a partition holds more rows than it should:
# dense: its rows share one value in every dimension we may cut
# budget: the counts that planning may ask for were used up
# crowded: there would have been more partitions than allowed
Problem = Literal["dense", "budget", "crowded"]
Scope = Literal["complete", "partial"]

SHORTFALL: Final = 0.001  # of the baseline: above it the partitions miss rows


@dataclass(frozen=True)
class Planned:
    """A partition to be: where, and how many rows the source counted there (None: nobody asked)."""

    range: Range
    estimate: int | None = None
    problem: Problem | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What planning ends with."""

    partitions: tuple[Planned, ...]
    domain: Range | None  # None: the partitions themselves say what everything is
    baseline: int | None = None  # rows of the source without any partition
    requests: int = 0  # counts that were asked for
    left_out: tuple[Planned, ...] = ()  # see `capped`

    @property
    def gap(self) -> str | None:
        """Where the domain is not covered, in words; None if the partitions tile it."""
        if self.left_out:
            return ", ".join(it.range.name for it in self.left_out[:3])
        return None if self.domain is None else gap(self.domain, [it.range for it in self.partitions])

    @property
    def scope(self) -> Scope:
        """A partial run never moves the watermark and never sweeps. Proven from the ranges, not remembered."""
        return "complete" if self.gap is None else "partial"

    @property
    def rows(self) -> int | None:
        """Rows in all partitions; those on a common bound are counted in both. None: nobody counted."""
        known = [it.estimate for it in self.partitions if it.estimate is not None]
        return sum(known) if len(known) == len(self.partitions) else None

    @property
    def shortfall(self) -> int:
        """Rows of the source that no partition seems to hold."""
        return 0 if self.baseline is None or self.rows is None else max(0, self.baseline - self.rows)

    @property
    def misses_rows(self) -> bool:
        """Whether somebody should be told: the source's counts do not add up."""
        return self.baseline is not None and self.shortfall > SHORTFALL * self.baseline


def capped(plan: Plan, most_rows: int) -> Plan:
    """The first partitions of a plan, up to so many rows: for a trial. Its scope is partial, and it says what it lacks.

    One that nobody counted may hold any number: it is the last.
    """
    if most_rows < 1:
        raise ConfigurationError(f"a plan of {most_rows} rows reads nothing; allow at least one")
    kept: list[Planned] = []
    rows = 0
    for it in plan.partitions:
        if rows >= most_rows:
            break
        kept.append(it)
        rows += most_rows if it.estimate is None else it.estimate
    return beginning(plan, len(kept))


def beginning(plan: Plan, count: int) -> Plan:
    """So many of its partitions; the others are left out."""
    return replace(plan, partitions=plan.partitions[:count], left_out=plan.partitions[count:] + plan.left_out)


class Span(Protocol):
    """The window of a run, as far as partitioners look at it: half-open, on the source's clock."""

    @property
    def from_(self) -> datetime | None: ...

    @property
    def to(self) -> datetime: ...


class Frontier(Protocol):
    """What planning knows so far. A value: `learn` answers with a new one."""

    @property
    def finished(self) -> bool: ...

    def ask(self) -> list[Range]:
        """What to count next, a few at a time; nothing once planning is finished."""
        ...

    def learn(self, counts: Mapping[str, int]) -> Frontier:
        """Take answers by the names of their ranges. What was not answered is asked again."""
        ...

    def plan(self) -> Plan: ...

    def to_json(self) -> dict[str, Any]: ...


class Partitioner(Protocol):
    """How a feed says that it wants to be divided."""

    @property
    def counted(self) -> bool:
        """Whether planning asks for counts, so that the feed needs a count()."""
        ...

    def start(self, window: Span, prior: Sequence[Range] = ()) -> Frontier:
        """Begin to plan; `prior` are the partitions of the last run, to be counted again instead of found again."""
        ...

    def divide(self, outgrown: Range) -> Frontier | None:
        """Begin to plan the pieces of one partition; None if it cannot be divided."""
        ...

    def restore(self, stored: Mapping[str, Any]) -> Frontier:
        """A frontier from its JSON."""
        ...

    def ask(self, frontier: Frontier) -> list[Range]: ...

    def learn(self, frontier: Frontier, counts: Mapping[str, int]) -> Frontier: ...

    def finished(self, frontier: Frontier) -> bool: ...

    def partitions(self, frontier: Frontier) -> list[Planned]: ...


def ask(frontier: Frontier) -> list[Range]:
    return frontier.ask()


def learn(frontier: Frontier, counts: Mapping[str, int]) -> Frontier:
    return frontier.learn(counts)


def finished(frontier: Frontier) -> bool:
    return frontier.finished


def partitions(frontier: Frontier) -> list[Planned]:
    return list(frontier.plan().partitions)


def checked(counts: Mapping[str, Any]) -> Mapping[str, int]:
    """Answers of a source, refused if they are no counts."""
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ConfigurationError(
                f"the count of {name} is {count!r}; count() answers a number of rows, 0 or more"
            )
    return counts
