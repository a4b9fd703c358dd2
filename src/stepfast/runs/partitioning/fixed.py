"""A fixed list of partitions: regions, tenants, files, or ranges that somebody worked out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from stepfast.errors import ConfigurationError
from stepfast.runs.partitioning.contract import ask, finished, learn, partitions
from stepfast.runs.partitioning.listed import Listed
from stepfast.runs.partitioning.restoring import restore
from stepfast.runs.ranges import ITEMS, Range, gap

if TYPE_CHECKING:
    from stepfast.runs.bounds import Value
    from stepfast.runs.partitioning.contract import Span

AT_ONCE: Final = 3


class Fixed:
    """`Fixed(["EU", "US"])`, `Fixed([["EU", "UK"], "US"])` or `Fixed([Range.of(…), …], domain=Range.of(…))`.

    With a `domain` the ranges must tile it. With `counted` each is counted while planning, so that its size is known.
    """

    ask = staticmethod(ask)
    learn = staticmethod(learn)
    finished = staticmethod(finished)
    partitions = staticmethod(partitions)
    restore = staticmethod(restore)

    def __init__(
        self,
        entries: Iterable[Range | Value | Sequence[Value]],
        *,
        domain: Range | None = None,
        counted: bool = False,
    ) -> None:
        if isinstance(entries, str) or not isinstance(entries, Iterable):
            raise ConfigurationError(
                f"Fixed({entries!r:.80}): give a list of them, such as Fixed([{entries!r:.80}])"
            )
        self.ranges = tuple(_range(it) for it in entries)
        if not self.ranges:
            raise ConfigurationError(
                "Fixed([]): nothing would ever be read; give at least one range, such as Fixed([Range()])"
            )
        self.domain = domain
        self.counted = counted
        names = [it.name for it in self.ranges]
        if twice := sorted({it for it in names if names.count(it) > 1}):
            raise ConfigurationError(f"Fixed lists {twice[0]} twice; each partition is read once")
        if domain is not None and (found := gap(domain, self.ranges)):
            raise ConfigurationError(f"Fixed leaves a gap in {domain.name}: nobody would read {found}")

    def start(self, window: Span | None = None, prior: Sequence[Range] = ()) -> Listed:  # noqa: ARG002 - it is fixed
        return self._listed(self.ranges, self.domain)

    def divide(self, outgrown: Range) -> Listed | None:
        """Half of the items each; None if there is only one, or none."""
        halves = outgrown.bisect(ITEMS)
        return self._listed(halves, outgrown) if halves else None

    def _listed(self, ranges: tuple[Range, ...], domain: Range | None) -> Listed:
        return Listed(ranges=ranges, domain=domain, at_once=AT_ONCE if self.counted else 0)


def _range(entry: Range | Value | Sequence[Value]) -> Range:
    if isinstance(entry, Range):
        return entry
    if isinstance(entry, Sequence) and not isinstance(entry, str):
        return Range.of({ITEMS: entry})
    return Range.of({ITEMS: [entry]})
