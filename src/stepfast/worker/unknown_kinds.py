"""Jobs of a kind that nobody here knows: they go back for a while, perhaps a newer worker knows them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stepfast.errors import UnknownKindError
from stepfast.steps.failure import describe
from stepfast.steps.outcome import Again
from stepfast.steps.retry import Retry
from stepfast.telemetry import happened
from stepfast.worker.ended import Ended

if TYPE_CHECKING:
    from stepfast.steps.kinds import Kinds
    from stepfast.steps.lease import Lease

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
