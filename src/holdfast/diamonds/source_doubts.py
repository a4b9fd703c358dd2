"""A page with errors beside its stones is asked for once more: a value that failed may come the second time.

What still fails then is a hole in the source, and the page is taken as it is. A field that keeps failing, as whole
enums do on staging, is not asked about again and again. All of this is remembered in the process alone: who forgets it
asks once too often.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.diamonds.answers import Problem

MOST_REMEMBERED: Final = 10_000
SETTLED: Final = 3  # times that a field has failed again


class Doubts:
    """Which pages have been doubted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._doubted: OrderedDict[Hashable, None] = OrderedDict()
        self._failed_again: Counter[str] = Counter()

    def arise(self, page: Hashable, problems: Iterable[Problem]) -> bool:
        """Whether this answer should be asked for once more."""
        fields = {_field(it) for it in problems}
        with self._lock:
            unsettled = {it for it in fields if self._failed_again[it] < SETTLED}
            if not unsettled:
                return False
            if page in self._doubted:
                del self._doubted[page]
                self._failed_again.update(unsettled)
                return False
            self._doubted[page] = None
            if len(self._doubted) > MOST_REMEMBERED:
                self._doubted.popitem(last=False)
            return True


def _field(problem: Problem) -> str:
    """Which field failed, whichever stone it was of."""
    return ".".join(it for it in problem.path if isinstance(it, str))
