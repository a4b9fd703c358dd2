"""The jobs a run is made of, each of a kind that its feed has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from stepfast.clock import new_id
from stepfast.steps.enqueue import enqueue, enqueue_many
from stepfast.steps.job import NewJob
from stepfast.steps.payload import to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.run import Run

# start: begins a run by the calendar. plan: finds its partitions. page: reads one of them. consolidate: makes target
# rows of raw rows. sweep: looks for rows that are gone. replay: tries rows in quarantine again; it belongs to no run.
Part = Literal["start", "plan", "page", "consolidate", "sweep", "replay"]
PARTS: tuple[Part, ...] = ("start", "plan", "page", "consolidate", "sweep", "replay")


def kind_of(feed: str, part: Part) -> str:
    return f"{feed}.{part}"


def new_job(declared: Declaration, run: Run, part: Part, **arguments: Any) -> NewJob:
    """A job of this run; it belongs to the run's trace, and has its priority."""
    return NewJob(
        id=new_id(),
        queue=declared.queue,
        kind=kind_of(declared.name, part),
        payload=to_json(arguments),
        priority=run.priority,
        trace=run.trace,
    )


def told_job(declared: Declaration, run: Run, part: Part, **arguments: Any) -> NewJob:
    """The same where a broker tells workers of it: at first only they may take it. The caller stages the message."""
    job = new_job(declared, run, part, **arguments)
    broker = declared.broker
    return job if broker is None else replace(job, head_start=broker.head_start_micros)


def enqueue_job(tx: Transaction, declared: Declaration, run: Run, part: Part, **arguments: Any) -> str:
    """Ask for one; returns its id."""
    return enqueue(tx, new_job(declared, run, part, **arguments)).id


def enqueue_jobs(tx: Transaction, jobs: Sequence[NewJob]) -> None:
    """Jobs that differ in nothing but their arguments, in one statement."""
    if jobs:
        enqueue_many(tx, jobs[0], [(it.id, None, it.payload) for it in jobs], "reject")
