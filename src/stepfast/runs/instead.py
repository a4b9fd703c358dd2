"""What to do about a run, or a partition, that an action does not fit: the sentence that refuses it ends with this."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.errors import StateError
from stepfast.runs.run import ACTIVE, already_active, find_run
from stepfast.runs.states import PartitionState, RunState
from stepfast.runs.sweep_state import is_held

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.partition import Partition
    from stepfast.runs.run import Run


def refuse_active(tx: Transaction, feed: str) -> None:
    """Refuse what cannot be done while a run of the feed is active. The caller holds the feed's row."""
    for run_id, state in tx.rows(ACTIVE, feed=feed):
        if is_held(find_run(tx, str(run_id))):
            told = f"feed {feed} has an active run {run_id} ({state})"
            raise StateError(f"{told}: {waits_for_approval(str(run_id))}")
        raise already_active(feed, str(run_id), str(state))


def not_again(it: Partition) -> str:
    told = f"partition-{it.number} ({it.name}) is {it.state}"
    match it.state:
        case PartitionState.DONE_UNVERIFIED:
            return f"{told}: it was read to its end; read it anew with --from-start"
        case PartitionState.SPLIT:
            return f"{told}: its pieces are read instead; retry those that failed"
        case PartitionState.DONE:
            return f"{told}: it was read, and shown to be complete"
        case _:
            return f"{told}: it is being read"


def consolidation_failed(run: Run) -> str:
    return (
        "all its partitions were read, what came after them failed; go on with: "
        f"stepfast runs consolidate {run.id}"
    )


def waits_for_approval(run_id: str) -> str:
    return (
        f'its sweep waits for a person; let the rows go with: stepfast sweeps approve {run_id} --reason "…", '
        f'or keep them with: stepfast sweeps decline {run_id} --reason "…"'
    )


def instead(run: Run) -> str:
    """What to do about a run that an action does not fit."""
    return waits_for_approval(run.id) if is_held(run) else _by_state(run)


def _by_state(run: Run) -> str:
    match run.state:
        case RunState.STALLED:
            return f"nothing has moved it for a while; let it go on with: stepfast runs resume {run.id}"
        case RunState.PLANNING | RunState.FETCHING | RunState.APPLYING | RunState.SWEEPING:
            return f"it goes on by itself; watch it with: stepfast runs watch {run.id}"
        case RunState.CANCELLED:
            return f"let it go on with: stepfast runs resume {run.id}"
        case RunState.FAILED_QUALITY:
            return (
                f"its rows are read, but too many are in quarantine: mend map(), have them tried again with: stepfast "
                f"quarantine replay --feed {run.feed}, then go on with: stepfast runs consolidate {run.id}"
            )
        case RunState.FAILED:
            return f"read again what failed with: stepfast runs retry {run.id}"
        case RunState.PUBLISHED_PARTIAL | RunState.COMPLETED:
            return f"it has ended; begin a new one with: stepfast runs start {run.feed}"
