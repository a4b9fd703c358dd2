"""What a plan will cost in requests, and whether a partition has outgrown what was planned for it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stepfast.errors import ConfigurationError

if TYPE_CHECKING:
    from stepfast.runs.partitioning.contract import Plan, Planned
    from stepfast.runs.ranges import Range

OVERLAP: Final = 3  # rows that a page by offset shares with the one before it
CLOSING_PAGES: Final = 1  # a partition ends with a page that brings nothing new
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
    unknown: int  # partitions that nobody counted; they are in none of the figures

    @property
    def requests(self) -> int:
        """What is still to come."""
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
) -> Estimate:
    """The requests of a run with this plan. Pages by token or by key do not overlap (0)."""
    if not 0 <= overlap < page_size:
        raise ConfigurationError(
            f"pages of {page_size} rows cannot overlap by {overlap}; use 0 to {page_size - 1}"
        )
    known = [it.estimate for it in plan.partitions if it.estimate is not None]
    pages = [_pages(it, page_size, overlap) + closing for it in known]
    return Estimate(
        planning=plan.requests,
        counts=counts * len(known),
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
