"""A job, and the states it may pass through."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class JobState(StrEnum):
    SCHEDULED = "scheduled"  # waits for `ready_at`: a delay, a retry, a snooze
    READY = "ready"  # may be leased
    SUSPECT = "suspect"  # was running when a worker died; may be leased, apart from other jobs
    LEASED = "leased"  # one living worker holds it
    HELD = "held"  # waits for room in a limit, or for the end of the job whose key it will have
    WAITING = "waiting"  # comes after other jobs, which are not done
    DONE = "done"  # its effects are committed
    DEAD = "dead"  # out of attempts, rejected, or killed its workers; waits for an operator
    CANCELLED = "cancelled"  # it was asked to stop


LIVE = (
    JobState.SCHEDULED,
    JobState.READY,
    JobState.SUSPECT,
    JobState.LEASED,
    JobState.HELD,
    JobState.WAITING,
)  # rows of stepfast_job
ENDED = (JobState.DONE, JobState.DEAD, JobState.CANCELLED)  # rows of stepfast_archive

TRANSITIONS: dict[JobState, dict[JobState, str]] = {
    JobState.SCHEDULED: {
        JobState.READY: "promote, retry, an event, or replace",
        JobState.SUSPECT: "promote or retry, after crashes",
        JobState.WAITING: "replace, after others",
        JobState.CANCELLED: "cancel",
    },
    JobState.READY: {
        JobState.LEASED: "claim",
        JobState.SCHEDULED: "replace, for later",
        JobState.WAITING: "replace, after others",
        JobState.CANCELLED: "cancel",
    },
    JobState.SUSPECT: {
        JobState.LEASED: "claim alone",
        JobState.READY: "replace",
        JobState.SCHEDULED: "replace, for later",
        JobState.WAITING: "replace, after others",
        JobState.CANCELLED: "cancel",
    },
    JobState.LEASED: {
        JobState.LEASED: "continue here",
        JobState.READY: "continue, give back, retry, snooze, or replace",
        JobState.SCHEDULED: "retry, snooze, or replace for later",
        JobState.SUSPECT: "rescue; give back, retry or snooze, after crashes",
        JobState.HELD: "a limit is exhausted",
        JobState.WAITING: "replace, after others",
        JobState.DONE: "commit",
        JobState.DEAD: "give up or reject",
        JobState.CANCELLED: "cancel",
    },
    JobState.HELD: {
        JobState.READY: "the limit has room, the job before it ended, or replace",
        JobState.SUSPECT: "the limit has room, after crashes",
        JobState.SCHEDULED: "the job before it ended, or replace, for later",
        JobState.WAITING: "replace, after others",
        JobState.CANCELLED: "cancel",
    },
    JobState.WAITING: {
        JobState.READY: "all that it comes after are done, or replace",
        JobState.SUSPECT: "all that it comes after are done, after crashes",
        JobState.SCHEDULED: "all that it comes after are done, before its time; or replace, for later",
        JobState.DEAD: "a job that it comes after died",
        JobState.CANCELLED: "cancel",
    },
    JobState.DONE: {},
    JobState.DEAD: {
        JobState.READY: "revive",
        JobState.WAITING: "revive, after jobs that are not done",
        JobState.SUSPECT: "revive, after crashes",
        JobState.CANCELLED: "another job does its work",
    },
    JobState.CANCELLED: {
        JobState.READY: "revive",
        JobState.SUSPECT: "revive, after crashes",
        JobState.WAITING: "revive, after jobs that are not done",
    },
}


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job to be stored."""

    id: str
    queue: str
    kind: str
    payload: str
    priority: int = 0
    delay: int = 0  # microseconds from now, on the database's clock
    run_at: int | None = None  # an instant; wins over `delay`
    key: str | None = None  # unique while unfinished
    trace: str | None = None  # what this job belongs to; None: a trace of its own
    waits: bool = False  # for other jobs
    key_until: int | None = None  # remember the key for so many microseconds, also after the job has ended
    key_window: int = 1  # ... counted from the beginning of the current window of so many microseconds
    head_start: int = 0  # microseconds in which it is reserved for the worker that gets a broker's message


class Enqueued(NamedTuple):
    """The answer of the database to an enqueue: which job will do it, and whether this call created it."""

    id: str
    created: bool
    replaced: bool = False  # whether an unfinished job got our payload
