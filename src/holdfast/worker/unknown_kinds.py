"""Jobs of a kind that nobody here knows: they go back for a while, perhaps a newer worker knows them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from holdfast.errors import UnknownKindError
from holdfast.steps.failure import describe
from holdfast.steps.outcome import Again
from holdfast.steps.retry import Retry
from holdfast.telemetry import happened
from holdfast.worker.ended import Ended

if TYPE_CHECKING:
    from holdfast.steps.kinds import Kinds
    from holdfast.steps.lease import Lease

UNKNOWN_KIND_DELAY: Final = timedelta(seconds=15)  # a rolling deployment may bring the code
DEFAULT_RETRY: Final = Retry()


class UnknownKinds:
    """Postpones them, and says so once for each kind: a backlog of them would flood the log."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._announced: set[str] = set()

    def postponed(self, lease: Lease) -> Ended:
        error = UnknownKindError(lease.kind, self._kinds.names())
        if lease.kind not in self._announced:
            self._announced.add(lease.kind)
            happened("kind.unknown", lease, error=error)
        text = describe(error)
        return Ended(lease, Again(UNKNOWN_KIND_DELAY, text, text[:200], charged=False), (), DEFAULT_RETRY)
