"""Rounds of a consolidation: how one is asked for, which jobs it has, and how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.runs import alerts
from stepfast.runs.announcing import announce_consolidation
from stepfast.runs.finishing import finish
from stepfast.runs.jobs import told_job
from stepfast.runs.pending import any_pending
from stepfast.runs.run import end_run, watch_job
from stepfast.runs.states import RunState
from stepfast.steps.enqueue import enqueue

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.run import Run


def begin_consolidation(tx: Transaction, declared: Declaration, run: Run) -> None:
    """Ask for the next round. The caller holds the run's row, and has moved it to `applying`."""
    arguments = {"run_id": run.id, "epoch": run.epoch, "round": run.rounds}
    job = told_job(declared, run, "consolidate", **arguments)
    watch_job(tx, run, enqueue(tx, job).id)
    announce_consolidation(tx, declared, run, job.id)


def shard_id(run: Run, shard: int) -> str:
    """The job of a shard of the run's current round: whoever watches over the run knows where to look."""
    return f"{run.id}.{run.epoch}.{run.rounds}.{shard}"


def shard_ids(declared: Declaration, run: Run) -> list[str]:
    """The jobs that the current round may have; how many of them have not ended is `run.shards`."""
    return [shard_id(run, number) for number in range(declared.shards)]


def consolidation_gave_up(tx: Transaction, declared: Declaration, run: Run, error: str) -> bool:  # noqa: ARG001
    """A job of the consolidation is dead: so is the run, and somebody is told. The caller holds the run's row."""
    ended = run.at is RunState.APPLYING and end_run(
        tx, run, RunState.FAILED, f"consolidation gave up: {error}"
    )
    if ended:
        alerts.consolidation_failed(tx, run, error)
    return ended


def end_round(tx: Transaction, declared: Declaration, run: Run) -> None:
    """Nothing of the round is left. A statement of its own after the lock: it sees what others have committed."""
    if any_pending(tx, declared.name):
        begin_consolidation(tx, declared, run)
    else:
        finish(tx, declared, run)
