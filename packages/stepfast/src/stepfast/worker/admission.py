"""Between claim and run: ask the limits of claimed jobs. A job whose limits have no room is held; the others start.

The arithmetic of a limit is in `limits/limit.py`, its rows are in `limits/limit_rows.py`; `Promotion` in
`worker/maintenance.py` lets held jobs go when there is room.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from stepfast.database.database import persist
from stepfast.encryption import is_sealed, keyring, opened
from stepfast.errors import SealedError
from stepfast.limits.limit import limit_id
from stepfast.limits.limit_rows import LimitedStep, admit, pass_on_slots
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.kinds import Kinds
    from stepfast.jobs.lease import Lease
    from stepfast.limits.limit import Limit


class Admission:
    """Asks the limits of all jobs of a claim at once, and remembers which slots were taken here.

    The slots are freed in the transaction that ends the step, or by the worker that finds that their fence has moved on.
    """

    def __init__(self, database: Database, kinds: Kinds) -> None:
        self._database = database
        self.kinds = kinds
        self.slots: dict[tuple[str, int], tuple[str, ...]] = {}  # (job, fence) → limits whose slot it has

    def has_limits(self, lease: Lease) -> bool:
        """Whether this job has limits; its next step has to ask them again."""
        return bool(self.kinds.limits_of(lease.kind, lease.queue))

    def admit(self, leases: list[Lease]) -> list[Lease]:
        """The leases that may start now. The jobs of the others are held, and no longer ours."""
        if not self.kinds.limited:
            return leases
        asking: dict[int, list[LimitedStep]] = defaultdict(list)  # by fence: one for each claim
        known: dict[tuple[str, str], list[tuple[str, Limit]]] = {}
        for lease in leases:
            place = (lease.kind, lease.queue)
            limits = known.get(place)
            if limits is None:
                limits = known[place] = self.kinds.limits_of(*place)
            if limits:
                arguments = _arguments(lease) if any(limit.by for _, limit in limits) else None
                named = tuple((limit_id(limit, scope, arguments), limit) for scope, limit in limits)
                asking[lease.fence].append(LimitedStep(lease.job_id, named))
        held: set[str] = set()
        for fence, asked in asking.items():
            held |= self._ask(asked, fence)
        return [lease for lease in leases if lease.job_id not in held] if held else leases

    def _ask(self, asked: list[LimitedStep], fence: int) -> set[str]:
        """Take a slot of each limit for these jobs, or hold them; returns the jobs that are held."""
        answer = persist(self._database, lambda tx: admit(tx, asked, fence))
        held = set(answer.held)
        for job in asked:
            taken = tuple(name for name, limit in job.limits if limit.slots)
            if taken and job.job_id not in held:
                self.slots[job.job_id, fence] = taken
        if held:
            happened("jobs.held", jobs=len(held), limits=len(set(answer.held.values())))
        return held

    def free(self, tx: Transaction, leases: Sequence[Lease]) -> None:
        """Free the slots of these leases in the transaction that ends their steps."""
        by_fence: dict[int, list[str]] = defaultdict(list)
        freed: dict[int, Counter[str]] = defaultdict(Counter)
        for lease in leases:
            if taken := self.slots.get((lease.job_id, lease.fence)):
                by_fence[lease.fence].append(lease.job_id)
                freed[lease.fence].update(taken)
        for fence, ids in by_fence.items():
            pass_on_slots(tx, ids, fence, freed[fence])

    def forget(self, leases: Sequence[Lease]) -> None:
        """These steps have ended: their slots are freed, or belong to another fence."""
        for lease in leases:
            self.slots.pop((lease.job_id, lease.fence), None)


def _arguments(lease: Lease) -> dict[str, Any]:
    """The arguments that a limit's `by` may name; of an encrypted payload, fingerprints of them."""
    try:
        found = msgspec.json.decode(opened(lease.payload, f"payload of {lease.kind}", lease.job_id))
    except (msgspec.DecodeError, SealedError):
        return {}  # the handler's own check says what is wrong with it
    if not isinstance(found, dict):
        return {}
    # The name of a limit is stored in the clear.
    return {name: _fingerprint(value) for name, value in found.items()} if is_sealed(lease.payload) else found


def _fingerprint(value: Any) -> str:
    return keyring().sign(msgspec.json.encode(value).decode(), "limit").hex()[:32]
