"""What a partitioner is: it asks for counts, a few at a time, and ends with partitions that tile its domain.

Everything it knows is its frontier, and a frontier is JSON. So planning is a chain of leased steps: each restores the
frontier, counts what it asks for, lets it learn the answers and stores it. A frontier carries the settings it was started
with: a deployment in the middle of planning changes nothing for the run that is being planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Protocol

from stepfast.errors import ConfigurationError
from stepfast.runs.partitioning.ranges import Range, gap

# Why a partition holds more rows than it should:
# dense: its rows share one value in every dimension that may be cut
# budget: the counts that planning may ask for were used up
# crowded: there would have been more partitions than allowed
# undivided: planning was a sample; its own job divides it before it is read
Problem = Literal["dense", "budget", "crowded", "undivided"]
Scope = Literal["complete", "partial"]

SHORTFALL: Final = 0.001  # of the baseline: above it the partitions miss rows


@dataclass(frozen=True)
class Planned:
    """A planned partition: its range, and how many rows the source has there.

    The source has counted them, or they are estimated from the counts of a sample. None: neither.
    """

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
            return ", ".join(planned.range.name for planned in self.left_out[:3])
        return (
            None if self.domain is None else gap(self.domain, [planned.range for planned in self.partitions])
        )

    @property
    def scope(self) -> Scope:
        """A partial run never moves the watermark and never sweeps. Proven from the ranges, not remembered."""
        return "complete" if self.gap is None else "partial"

    @property
    def rows(self) -> int | None:
        """Rows in all partitions; those on a common bound are counted in both. None: some were not counted."""
        known = [planned.estimate for planned in self.partitions if planned.estimate is not None]
        return sum(known) if len(known) == len(self.partitions) else None

    @property
    def shortfall(self) -> int:
        """Rows of the source that no partition seems to hold."""
        return 0 if self.baseline is None or self.rows is None else max(0, self.baseline - self.rows)

    @property
    def misses_rows(self) -> bool:
        """Whether an alert is due: the source's counts do not add up."""
        return self.baseline is not None and self.shortfall > SHORTFALL * self.baseline


def capped(plan: Plan, most_rows: int) -> Plan:
    """The first partitions of a plan, up to so many rows: for a trial. Its scope is partial, and it says what it lacks.

    A partition that was not counted may hold any number of rows: it is the last.
    """
    if most_rows < 1:
        raise ConfigurationError(f"a plan of {most_rows} rows reads nothing; allow at least one")
    kept: list[Planned] = []
    rows = 0
    for planned in plan.partitions:
        if rows >= most_rows:
            break
        kept.append(planned)
        rows += most_rows if planned.estimate is None else planned.estimate
    return beginning(plan, len(kept))


def beginning(plan: Plan, count: int) -> Plan:
    """The first `count` partitions of the plan; the others are left out."""
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
        """Learn answers, by the names of their ranges. A range that was not answered is asked for again."""
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


# The cost of a plan in requests, and partitions that have outgrown their estimate.

OVERLAP: Final = 3  # rows that a page by offset shares with the one before it
CLOSING_PAGES: Final = 2  # with which a partition by offset ends, though they bring nothing new
VERIFYING_COUNTS: Final = 2  # before its first page and after its last
FACTOR: Final = 2  # a partition that holds more than so many times its estimate is divided
LEAST_ROWS: Final = 1_000  # a partition that small is read to its end, whatever was planned


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Requests to the source."""

    planning: int  # counts that were needed to plan
    counts: int  # that will verify the partitions
    pages: int
    longest: int  # pages of the largest partition: they are read one after the other
    unknown: int  # partitions that were not counted; they are in none of the figures

    @property
    def requests(self) -> int:
        """Requests that are still to come."""
        return self.counts + self.pages

    def duration(self, per_second: float) -> timedelta:
        """How long that takes at a given rate, with as many workers as it takes to keep it."""
        if per_second <= 0:
            raise ConfigurationError(f"{per_second} requests per second never end; use a rate above 0")
        return timedelta(seconds=self.requests / per_second)


def estimate(
    plan: Plan,
    page_size: int,
    *,
    overlap: int = OVERLAP,
    closing: int = CLOSING_PAGES,
    counts: int = VERIFYING_COUNTS,
    passes: int = 1,
) -> Estimate:
    """The requests of a run with this plan, if the source stays as it is. Pages by token or by key do not overlap (0).

    `passes`: 2 where no single pass proves that nothing was missed. A partition without rows is one page, and one count.
    """
    if not 0 <= overlap < page_size:
        raise ConfigurationError(
            f"pages of {page_size} rows cannot overlap by {overlap}; use 0 to {page_size - 1}"
        )
    known = [it.estimate for it in plan.partitions if it.estimate is not None]
    pages = [passes * (_pages(it, page_size, overlap) + closing) if it else 1 for it in known]
    return Estimate(
        planning=plan.requests,
        counts=sum((counts + passes - 1 if it else 1) if counts else 0 for it in known),
        pages=sum(pages),
        longest=max(pages, default=0),
        unknown=len(plan.partitions) - len(known),
    )


def _pages(rows: int, page_size: int, overlap: int) -> int:
    """The first page is all new; each other one repeats `overlap` rows."""
    return min(1, rows) + max(0, -(-(rows - page_size) // (page_size - overlap)))


def outgrown(planned: int | None, rows: int, *, least: int = LEAST_ROWS) -> bool:
    """Whether a partition holds so many more rows than planned that several workers should share what it became."""
    return planned is not None and rows > FACTOR * planned and rows > least


def pieces_of(parent: Range, plan: Plan) -> tuple[Planned, ...]:
    """The partitions that replace one that was divided; none if it stays whole. They tile it, or nothing is divided."""
    given = dict(parent.parts)
    meant = {} if plan.domain is None else dict(plan.domain.parts)
    if any(meant.get(name) != part for name, part in given.items()):
        raise ConfigurationError(
            f"the plan is about {plan.domain and plan.domain.name}, not about {parent.name}"
        )
    if plan.gap is not None:
        raise ConfigurationError(f"{parent.name} cannot be divided so: nobody would read {plan.gap}")
    return plan.partitions if len(plan.partitions) > 1 else ()
