"""A page with errors beside its stones is asked for once more: a value that failed may come the second time.

What still fails then is a hole in the source, and the page is taken as it is. Which try it is the database knows,
whichever process makes it. A field that keeps failing, as whole enums do on staging, is not asked about again and
again: that is remembered in the process alone, and who forgets it asks once too often.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stepfast.diamonds.answers import Problem

SETTLED: Final = 3  # times that a field has failed again


class Doubts:
    """Which fields have failed again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed_again: Counter[str] = Counter()

    def arise(self, attempt: int, problems: Iterable[Problem]) -> bool:
        """Whether this answer should be asked for once more."""
        fields = {_field(it) for it in problems}
        with self._lock:
            unsettled = {it for it in fields if self._failed_again[it] < SETTLED}
            if attempt > 1:
                self._failed_again.update(unsettled)
                return False
            return bool(unsettled)


def _field(problem: Problem) -> str:
    """Which field failed, whichever stone it was of."""
    return ".".join(it for it in problem.path if isinstance(it, str))
