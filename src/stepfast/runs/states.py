"""The kinds of runs, the states of runs and of partitions, and the arrows between them.

A state is a column, never a guess: every UPDATE that changes it names the state it leaves, and the diagrams of the
documentation are drawn from these two tables.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal, TypeVar

from stepfast.errors import StateError

LATEST: Final = "latest"  # how people name the newest run of all
RunKind = Literal["full", "incremental", "backfill", "verify"]  # what somebody may ask the source for
AnyKind = RunKind | Literal["remap"]  # the last one asks nobody: it maps again what was read before


class RunState(StrEnum):
    PLANNING = "planning"  # its partitions are being found
    FETCHING = "fetching"  # partitions are read, page by page
    APPLYING = "applying"  # raw rows become target rows
    SWEEPING = "sweeping"  # rows that are gone at the source are looked for
    STALLED = "stalled"  # nothing has moved it for too long; somebody was told
    COMPLETED = "completed"  # every row of its window is in the target
    PUBLISHED_PARTIAL = "published_partial"  # forced: what was read is in the target, the rest are debts
    FAILED = "failed"  # planning, a partition or a consolidation gave up
    FAILED_QUALITY = "failed_quality"  # more rows in quarantine than the error budget allows
    CANCELLED = "cancelled"  # somebody asked it to stop


class PartitionState(StrEnum):
    READY = "ready"  # no page of it has been asked for
    RUNNING = "running"  # a job reads it
    DONE = "done"  # read, and shown to be complete
    DONE_UNVERIFIED = "done_unverified"  # read, but nothing shows that it is complete: a debt
    SPLIT = "split"  # outgrew its estimate; its pieces are read instead
    FAILED = "failed"  # its job gave up
    CANCELLED = "cancelled"  # its run was cancelled


RUN_TRANSITIONS: Final[dict[RunState, dict[RunState, str]]] = {
    RunState.PLANNING: {
        RunState.FETCHING: "partitions written",
        RunState.APPLYING: "nothing to fetch",
        RunState.STALLED: "no step for too long",
        RunState.FAILED: "planning gave up",
        RunState.CANCELLED: "cancel",
    },
    RunState.FETCHING: {
        RunState.APPLYING: "last partition ended, none failed",
        RunState.STALLED: "no step for too long",
        RunState.FAILED: "last partition ended, some failed",
        RunState.CANCELLED: "cancel",
    },
    RunState.APPLYING: {
        RunState.SWEEPING: "all rows applied, full and verified",
        RunState.COMPLETED: "all rows applied",
        RunState.PUBLISHED_PARTIAL: "all rows applied, forced",
        RunState.STALLED: "no step for too long",
        RunState.FAILED: "consolidation gave up",
        RunState.FAILED_QUALITY: "error budget spent",
        RunState.CANCELLED: "cancel",
    },
    RunState.SWEEPING: {
        RunState.COMPLETED: "swept",
        RunState.STALLED: "no step for too long",
        RunState.FAILED: "sweep gave up",
        RunState.CANCELLED: "cancel",
    },
    RunState.STALLED: {
        RunState.PLANNING: "a step, or resume",
        RunState.FETCHING: "a step, or resume",
        RunState.APPLYING: "a step, or resume",
        RunState.SWEEPING: "a step, or resume",
        RunState.FAILED: "gave up",
        RunState.CANCELLED: "cancel",
    },
    RunState.COMPLETED: {},
    RunState.PUBLISHED_PARTIAL: {},
    RunState.FAILED: {
        RunState.PLANNING: "retry the plan",
        RunState.FETCHING: "retry partitions",
        RunState.APPLYING: "consolidate, or force",
    },
    RunState.FAILED_QUALITY: {RunState.APPLYING: "consolidate, or force"},
    RunState.CANCELLED: {
        RunState.PLANNING: "resume",
        RunState.FETCHING: "resume",
        RunState.APPLYING: "resume",
    },
}

PARTITION_TRANSITIONS: Final[dict[PartitionState, dict[PartitionState, str]]] = {
    PartitionState.READY: {
        PartitionState.RUNNING: "first request",
        PartitionState.DONE: "one page, verified",
        PartitionState.DONE_UNVERIFIED: "one page, unverified",
        PartitionState.SPLIT: "outgrown",
        PartitionState.FAILED: "give up",
        PartitionState.CANCELLED: "cancel",
    },
    PartitionState.RUNNING: {
        PartitionState.RUNNING: "next request",
        PartitionState.DONE: "end, verified",
        PartitionState.DONE_UNVERIFIED: "end, unverified",
        PartitionState.SPLIT: "outgrown",
        PartitionState.FAILED: "give up",
        PartitionState.CANCELLED: "cancel",
    },
    PartitionState.DONE: {},
    PartitionState.DONE_UNVERIFIED: {PartitionState.READY: "retry from the start"},
    PartitionState.SPLIT: {},
    PartitionState.FAILED: {PartitionState.READY: "retry"},
    PartitionState.CANCELLED: {PartitionState.READY: "resume"},
}

# A run that is active keeps the next one of its feed from starting.
ACTIVE_RUN: Final = (
    RunState.PLANNING,
    RunState.FETCHING,
    RunState.APPLYING,
    RunState.SWEEPING,
    RunState.STALLED,
)
ENDED_RUN: Final = tuple(it for it in RunState if it not in ACTIVE_RUN)

# A run goes on to consolidation once none of its partitions is open.
OPEN_PARTITION: Final = (PartitionState.READY, PartitionState.RUNNING)
ENDED_PARTITION: Final = tuple(it for it in PartitionState if it not in OPEN_PARTITION)

S = TypeVar("S", RunState, PartitionState)


def arrow(source: S, target: S) -> str:
    """What moves a run or a partition from one state to another; a move that has no arrow is refused."""
    if isinstance(source, RunState):
        what, found = "run", RUN_TRANSITIONS[source].get(RunState(target))
    else:
        what, found = "partition", PARTITION_TRANSITIONS[source].get(PartitionState(target))
    if found is None:
        raise StateError(f"a {what} that is {source} cannot become {target}")
    return found
