"""The ways a feed may be paged, and what its source must keep for one pass to be proof that nothing was missed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from stepfast.config import is_whole
from stepfast.errors import ConfigurationError

PASSES: Final = 3
MOST_REQUESTS: Final = 100_000  # of one pass


@dataclass(frozen=True, kw_only=True)
class Offset:
    """Pages by offset. Each page begins `overlap` rows early and must begin with rows that were read before.

    `ties` says how many rows at most share one position in the source's order; the source may shuffle those. Ordered by
    `created_at, id` it is 1. None: that is not known, or rows move in the order. Then no single pass proves anything: two
    passes and the count between them must agree. `reversible`: every second pass is read backwards.
    """

    overlap: int = 3
    ties: int | None = 2
    reversible: bool = False
    passes: int = PASSES
    most_requests: int = MOST_REQUESTS

    # Pages of a pass that bring nothing new: one finds the end, and one after the count confirms it.
    closing_pages: ClassVar[int] = 2

    def __post_init__(self) -> None:
        _at_least(1, "Offset", passes=self.passes, most_requests=self.most_requests, overlap=self.overlap)
        if self.ties is None:
            _two_passes("Offset(ties=None)", self.passes)
            return
        _at_least(1, "Offset", ties=self.ties)
        if self.overlap < self.ties:
            raise ConfigurationError(
                f"Offset(overlap={self.overlap}, ties={self.ties}): a page must begin with {self.ties} rows that were "
                "read before, so it must overlap by as many"
            )

    @property
    def trusted(self) -> bool:
        """Whether one pass can be proof."""
        return self.ties is not None

    def check_page_size(self, page_size: int) -> None:
        if page_size <= 2 * self.overlap:
            raise ConfigurationError(
                f"page_size={page_size} with Offset(overlap={self.overlap}): pages need more than twice as many rows "
                f"as they overlap by; use at least {2 * self.overlap + 1}"
            )


@dataclass(frozen=True, kw_only=True)
class Token:
    """Each page names the next one in `Page.next`; the last one names none.

    `stable=False`: pages may slide while rows come and go, as where a token hides an offset.
    """

    stable: bool = True
    passes: int = PASSES
    most_requests: int = MOST_REQUESTS

    closing_pages: ClassVar[int] = 0  # the last page names no next one

    def __post_init__(self) -> None:
        _at_least(1, "Token", passes=self.passes, most_requests=self.most_requests)
        if not self.stable:
            _two_passes("Token(stable=False)", self.passes)

    @property
    def trusted(self) -> bool:
        return self.stable


@dataclass(frozen=True, kw_only=True)
class Keyset:
    """Each page begins after a key, in the order of a key that is unique and never changes.

    `Page.next` is the key of the page's last row, whenever it has rows; an empty page is the end.
    """

    passes: int = PASSES
    most_requests: int = MOST_REQUESTS

    closing_pages: ClassVar[int] = 1  # the empty one

    def __post_init__(self) -> None:
        _at_least(1, "Keyset", passes=self.passes, most_requests=self.most_requests)

    @property
    def trusted(self) -> bool:
        return True


Paging = Offset | Token | Keyset


def _at_least(least: int, what: str, **numbers: object) -> None:
    for name, value in numbers.items():
        if not is_whole(value) or value < least:
            raise ConfigurationError(f"{what}({name}={value!r}): a whole number, {least} or more")


def _two_passes(what: str, passes: int) -> None:
    if passes < 2:  # noqa: PLR2004 - one pass has nothing to be compared with
        raise ConfigurationError(f"{what}: only two passes together prove anything; allow passes=2 or more")
