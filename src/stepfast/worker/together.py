"""Continuations that share a transaction: the pages of several partitions, say.

It is all of them or none. If one is refused, they are written again, each alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepfast.errors import ContentionError, LeaseLostError
from stepfast.steps.commit import commit, continue_here, more_urgent
from stepfast.steps.outcome import Continue
from stepfast.steps.reports import write_reports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.steps.outcome import Effect
    from stepfast.steps.step import Report
    from stepfast.worker.ended import Ended


class PartedError(Exception):
    """One of them was refused, or met a deadlock."""

    def __init__(self, error: ContentionError | LeaseLostError) -> None:
        super().__init__(str(error))
        self.contended = isinstance(error, ContentionError)


def joins(ended: Ended) -> bool:
    """Whether this step may be committed with others: its effect, if it has one, knows how to be applied with them.

    Each statement of such an effect names its rows, or inserts; it enqueues nothing.
    """
    ending, effects = ended.ending, ended.effects
    return (
        isinstance(ending, Continue)
        and type(ending.delay) is int  # what is no duration at all is told so alone
        and not ending.delay
        and (not effects or (len(effects) == 1 and hasattr(type(effects[0]), "apply_together")))
    )


def end_together(
    tx: Transaction,
    steps: Sequence[Ended],
    said: Mapping[str, list[Report]],
    may_stay: Callable[[Ended], bool],
) -> dict[str, int | None]:
    """Write what these steps end with, or raise; returns the new fence of each that stays here, and None for the others."""
    try:
        return _end(tx, steps, said, may_stay)
    except (ContentionError, LeaseLostError) as error:
        raise PartedError(error) from error


def _end(
    tx: Transaction,
    steps: Sequence[Ended],
    said: Mapping[str, list[Report]],
    may_stay: Callable[[Ended], bool],
) -> dict[str, int | None]:
    lines = [it for step in steps for it in said[step.lease.job_id]]
    write_reports(tx, lines)  # before the outcomes, which consume the fences
    wishes = {step.lease.job_id: (step.lease.queue, step.lease.priority) for step in steps if may_stay(step)}
    stays = {place: not more_urgent(tx, *place) for place in set(wishes.values())}
    here: list[Ended] = []
    for step in steps:
        place = wishes.get(step.lease.job_id)
        if place is not None and stays[place]:
            here.append(step)
        else:
            commit(tx, step.lease, step.ending)
    fences = continue_here(tx, [(it.lease, it.ending) for it in here if isinstance(it.ending, Continue)])
    sharing: dict[type[Any], list[Effect]] = {}
    for step in steps:
        for effect in step.effects:
            sharing.setdefault(type(effect), []).append(effect)
    for kind, effects in sharing.items():
        kind.apply_together(tx, effects)
    return {step.lease.job_id: fences.get(step.lease.job_id) for step in steps}
