"""What stands between a claim and a start: the limits.

A claim takes jobs in their order, whatever they are. Those whose limits have no room are held, so that the
ones behind them are reached; the others start. The slots taken here are freed in the transaction that ends the
step, or by whoever finds that their fence has moved on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from stepfast.database.database import persist
from stepfast.errors import SealedError
from stepfast.limits.admission import Wanted, admit
from stepfast.limits.limit import limit_id
from stepfast.limits.release import free
from stepfast.sealing import is_sealed, keyring, opened
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.limits.limit import Limit
    from stepfast.steps.kinds import Kinds
    from stepfast.steps.lease import Lease


class Gate:
    """Asks for all jobs of a claim at once, and remembers whose slots were taken here."""

    def __init__(self, database: Database, kinds: Kinds) -> None:
        self._database = database
        self._kinds = kinds
        self._slots: dict[tuple[str, int], tuple[str, ...]] = {}  # (job, fence) → limits whose slot it has

    @property
    def open(self) -> bool:
        """Nothing here has a limit."""
        return not self._kinds.limited

    def limits(self, lease: Lease) -> bool:
        """Whether this job has limits; the next step of such a job has to ask again."""
        return not self.open and bool(self._kinds.limits_of(lease.kind, lease.queue))

    def admit(self, leases: list[Lease]) -> list[Lease]:
        """Those that may start now. The others are held, and no longer ours."""
        if self.open:
            return leases
        asking: dict[int, list[Wanted]] = defaultdict(list)  # by fence: one for each claim
        known: dict[tuple[str, str], list[tuple[str, Limit]]] = {}
        for lease in leases:
            place = (lease.kind, lease.queue)
            limits = known.get(place)
            if limits is None:
                limits = known[place] = self._kinds.limits_of(*place)
            if limits:
                arguments = _arguments(lease) if any(it.by for _, it in limits) else None
                named = tuple((limit_id(it, scope, arguments), it) for scope, it in limits)
                asking[lease.fence].append(Wanted(lease.job_id, named))
        held: set[str] = set()
        for fence, wanted in asking.items():
            held |= self._ask(wanted, fence)
        return [lease for lease in leases if lease.job_id not in held] if held else leases

    def _ask(self, wanted: list[Wanted], fence: int) -> set[str]:
        answer = persist(self._database, lambda tx: admit(tx, wanted, fence))
        held = set(answer.held)
        for it in wanted:
            taken = tuple(name for name, limit in it.limits if limit.slots)
            if taken and it.job_id not in held:
                self._slots[it.job_id, fence] = taken
        if held:
            happened("jobs.held", jobs=len(held), limits=len(set(answer.held.values())))
        return held

    def free(self, tx: Transaction, leases: Sequence[Lease]) -> None:
        """These steps end in this transaction."""
        if not self._slots:
            return
        by_fence: dict[int, list[str]] = defaultdict(list)
        freed: dict[int, Counter[str]] = defaultdict(Counter)
        for lease in leases:
            if taken := self._slots.get((lease.job_id, lease.fence)):
                by_fence[lease.fence].append(lease.job_id)
                freed[lease.fence].update(taken)
        for fence, ids in by_fence.items():
            free(tx, ids, fence, freed[fence])

    def forget(self, leases: Sequence[Lease]) -> None:
        """They have ended, one way or another."""
        if self._slots:
            for lease in leases:
                self._slots.pop((lease.job_id, lease.fence), None)


def _arguments(lease: Lease) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(opened(lease.payload, f"payload of {lease.kind}"))
    except (msgspec.DecodeError, SealedError):
        return {}  # the handler's own check says what is wrong with it
    if not isinstance(found, dict):
        return {}
    # A limit's name stands in the clear: of what is encrypted it holds a fingerprint.
    return {name: fingerprint(it) for name, it in found.items()} if is_sealed(lease.payload) else found


def fingerprint(value: Any) -> str:
    return keyring().sign(msgspec.json.encode(value).decode(), "limit").hex()[:32]
