"""What an operator may do to a run: retry, consolidate, cancel and resume it.

Each is one transaction along the arrows of `states`. Whoever comes too late, or asks for what cannot be, is told in
which state the run is and what to do instead; nothing has changed then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, ContentionError, StateError
from stepfast.runs.completion import evaluate
from stepfast.runs.instead import consolidation_failed, instead, not_again
from stepfast.runs.partition import Partition, end_partition
from stepfast.runs.restarting import (
    FORGET_FRONTIER,
    OF_THE_WHOLE,
    ask_for,
    blocked_by,
    live_jobs,
    locked,
    owe,
    recount,
    renew_jobs,
    reopen,
    restart_partitions,
    was_planned,
)
from stepfast.runs.rounds import begin_consolidation
from stepfast.runs.run import Run, end_run, find_run, move_run
from stepfast.runs.states import ACTIVE_RUN, PartitionState, RunState
from stepfast.runs.sweep_state import is_held
from stepfast.steps.cancellation import cancel_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.jobs import Part

NEXT_EPOCH = sql(
    "UPDATE stepfast_run SET epoch = epoch + 1, updated_at = {now} WHERE id = :id AND epoch = :epoch"
)

WORK: tuple[Part, ...] = ("plan", "page", "consolidate", "sweep")
MISSING = (PartitionState.FAILED, PartitionState.CANCELLED)


@dataclass(frozen=True)
class Repaired:
    """What became of it. A run that is in the way of another one is not touched: what it lacks is owed instead."""

    run: Run  # as it is now
    was: RunState
    partitions: tuple[Partition, ...] = ()  # read again, or stopped
    debts: int = 0  # ranges that a later run must read
    new_debts: int = 0  # those of them that this action made one
    blocked_by: str | None = None  # the run that is newer, or active


def retry(
    tx: Transaction,
    declared: Declaration,
    run_id: str,
    wanted: Sequence[str] = (),
    *,
    from_start: bool = False,
) -> Repaired:
    """Read again what failed, from where it stopped. `wanted`: only these partitions, by number or name.

    With `from_start` at the beginning, and also what could not be verified. A run whose planning failed is planned.
    """
    partitions, run = locked(tx, run_id)
    if run.state is RunState.FAILED and not was_planned(tx, run):
        return _plan_again(tx, declared, run, wanted, from_start=from_start)
    if run.state not in (RunState.FAILED, RunState.CANCELLED) and run.at is not RunState.FETCHING:
        raise StateError(f"run {run.id} is {run.state}: {instead(run)}")
    if run.state is RunState.CANCELLED and wanted:
        raise StateError(
            f"run {run.id} is cancelled: all of it goes on, or nothing; resume it with: stepfast runs resume {run.id}"
        )
    chosen = _chosen(run, partitions, wanted, from_start=from_start)
    if run.ended_at is not None:
        if blocker := blocked_by(tx, run):
            return _blocked(tx, run, blocker, _missing(partitions))
        restart_partitions(tx, declared, run, chosen, from_start=from_start)
        return Repaired(reopen(tx, run, RunState.FETCHING), run.state, tuple(chosen))
    if run.state is RunState.STALLED:
        move_run(tx, run, RunState.FETCHING)
    restart_partitions(tx, declared, run, chosen, from_start=from_start)
    recount(tx, run)
    return Repaired(find_run(tx, run.id), run.state, tuple(chosen))


def consolidate(tx: Transaction, declared: Declaration, run_id: str, *, force: bool = False) -> Repaired:
    """Make target rows of what was read, once more. With `force` also if a part of it is missing.

    Then the run ends as published in part: the watermark stays, and what is missing is owed.
    """
    partitions, run = locked(tx, run_id)
    if run.state not in (RunState.FAILED, RunState.FAILED_QUALITY):
        raise StateError(f"run {run.id} is {run.state}: {instead(run)}")
    if not was_planned(tx, run):
        raise StateError(
            f"run {run.id} failed before it had partitions; plan it again with: stepfast runs retry {run.id}"
        )
    missing = _missing(partitions)
    if missing and not force:
        raise StateError(
            f"run {run.id} is failed: {len(missing)} of its {run.partitions} partitions are missing; read them with: "
            f"stepfast runs retry {run.id}, or publish what is there with: stepfast runs consolidate {run.id} --force"
        )
    if blocker := blocked_by(tx, run):
        return _blocked(tx, run, blocker, missing)
    owed, new = owe(tx, run, missing)
    forced = force and (bool(missing) or run.state is RunState.FAILED_QUALITY)
    now = reopen(tx, run, RunState.APPLYING, forced=forced or bool(run.forced))
    begin_consolidation(tx, declared, now)
    return Repaired(find_run(tx, run.id), run.state, tuple(missing), owed, new)


def cancel(tx: Transaction, run_id: str, reason: str) -> Repaired:
    """Stop it: what waits ends, what runs is told, and whatever it still commits is stale. It can be resumed."""
    seen = find_run(tx, run_id)
    _refuse_ended(seen)
    jobs = live_jobs(tx, seen, *WORK)
    cancel_jobs(tx, jobs, reason)
    partitions, run = locked(tx, run_id)
    _refuse_ended(run)
    if not set(jobs).issuperset(live_jobs(tx, run, *WORK)):
        raise ContentionError(f"run {run_id} got jobs while we looked; try again")
    stopped = [it for it in partitions if it.is_open]
    for it in stopped:
        end_partition(tx, it, PartitionState.CANCELLED, it.last_error, restart=True)
    tx.run(NEXT_EPOCH, id=run.id, epoch=run.epoch)
    end_run(tx, find_run(tx, run_id), RunState.CANCELLED, reason)
    return Repaired(find_run(tx, run_id), run.state, tuple(stopped))


def resume(tx: Transaction, declared: Declaration, run_id: str) -> Repaired:
    """Back to where it was when it was cancelled, or when it stopped moving."""
    partitions, run = locked(tx, run_id)
    if is_held(run):
        raise StateError(f"run {run.id} is {run.state}: {instead(run)}")
    if run.state is RunState.STALLED:
        return _wake(tx, declared, run, partitions)
    if run.state is not RunState.CANCELLED:
        raise StateError(f"run {run.id} is {run.state}: {instead(run)}")
    stopped = [it for it in partitions if it.state is PartitionState.CANCELLED]
    if blocker := blocked_by(tx, run):
        return _blocked(tx, run, blocker, _missing(partitions))
    forced = bool(run.forced)
    if not was_planned(tx, run):
        ask_for(tx, declared, now := reopen(tx, run, RunState.PLANNING), "plan")
    elif stopped or (run.failed and not forced):
        restart_partitions(tx, declared, run, stopped, from_start=False)
        now = reopen(tx, run, RunState.FETCHING)
        evaluate(tx, declared, run.id)
    else:
        now = reopen(tx, run, RunState.APPLYING, forced=forced)
        begin_consolidation(tx, declared, now)
    return Repaired(find_run(tx, run.id), run.state, tuple(stopped))


def _plan_again(
    tx: Transaction, declared: Declaration, run: Run, wanted: Sequence[str], *, from_start: bool
) -> Repaired:
    if wanted:
        raise StateError(
            f"run {run.id} failed before it had partitions; plan it again with: stepfast runs retry {run.id}"
        )
    if blocker := blocked_by(tx, run):
        return _blocked(tx, run, blocker, [])
    now = reopen(tx, run, RunState.PLANNING)
    if from_start:
        tx.run(FORGET_FRONTIER, id=now.id, epoch=now.epoch)
    ask_for(tx, declared, now, "plan")
    return Repaired(find_run(tx, run.id), run.state)


def _blocked(tx: Transaction, run: Run, blocker: str, missing: Sequence[Partition]) -> Repaired:
    """It stays as it is: another run has its place. What it lacks is not forgotten."""
    owed, new = owe(tx, run, missing)
    return Repaired(run, run.state, (), owed, new, blocked_by=blocker)


def _wake(tx: Transaction, declared: Declaration, run: Run, partitions: Sequence[Partition]) -> Repaired:
    """A stalled run goes on; whatever has lost its job gets another one."""
    at = run.at
    orphans: list[Partition] = []
    if at is RunState.FETCHING:
        move_run(tx, run, at)
        alive = set(live_jobs(tx, run, "page"))
        orphans = [it for it in partitions if it.is_open and it.job_id not in alive]
        renew_jobs(tx, declared, run, orphans)
        evaluate(tx, declared, run.id)
    elif live_jobs(tx, run, *OF_THE_WHOLE):
        move_run(tx, run, at)
    else:
        now = reopen(tx, run, at, forced=bool(run.forced))
        if at is RunState.APPLYING:
            begin_consolidation(tx, declared, now)
        else:
            ask_for(tx, declared, now, "plan" if at is RunState.PLANNING else "sweep")
    return Repaired(find_run(tx, run.id), run.state, tuple(orphans))


def _missing(partitions: Sequence[Partition]) -> list[Partition]:
    return [it for it in partitions if it.state in MISSING]


def _chosen(
    run: Run, partitions: Sequence[Partition], wanted: Sequence[str], *, from_start: bool
) -> list[Partition]:
    """The partitions to read again; each one that was named must be one that can be."""
    may = {*MISSING, PartitionState.DONE_UNVERIFIED} if from_start else {*MISSING}
    if not wanted:
        if chosen := [it for it in partitions if it.state in may]:
            return chosen
        cure = "no partition of it failed" if run.ended_at is None else consolidation_failed(run)
        if run.state is RunState.CANCELLED:
            cure = f"no partition of it is missing; {instead(run)}"
        raise StateError(f"run {run.id} is {run.state}: {cure}")
    chosen = [named(partitions, name) for name in dict.fromkeys(wanted)]
    for it in chosen:
        if it.state not in may:
            raise StateError(not_again(it))
    return sorted({it.id: it for it in chosen}.values(), key=lambda it: it.id)


def named(partitions: Sequence[Partition], name: str) -> Partition:
    """`5`, `partition-5` or the partition's name."""
    number = name.removeprefix("partition-")
    for it in partitions:
        if it.name == name or (number.isdecimal() and it.number == int(number)):
            return it
    last = max((it.number for it in partitions), default=None)
    there = "it has none" if last is None else f"it has partition-0 to partition-{last}"
    raise ConfigurationError(
        f"the run has no partition {name!r}; {there}, see: stepfast partitions list --run RUN"
    )


def _refuse_ended(run: Run) -> None:
    if run.state not in ACTIVE_RUN:
        raise StateError(f"run {run.id} is {run.state}: it has ended, there is nothing to cancel")
