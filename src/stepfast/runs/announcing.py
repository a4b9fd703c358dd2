"""Runs over a broker: whoever makes a page or a consolidation ready says so in a message, in the same transaction.

The message is a hint. Its job is in the database, ready, and only those who were told of it may take it at first; after
the head start anybody may. So a message that is lost, late or swallowed costs time and nothing else.

The messages are those of the first system of this kind, so that others can read and write them: WORK_ITEM for a page,
CONSOLIDATE, and WORK_DONE for whoever wants to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.outbox.broker import broker_message
from stepfast.outbox.messages import Message, stage_many
from stepfast.runs.bounds import Bounds
from stepfast.runs.states import PartitionState
from stepfast.steps.payload import to_json

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.broker import Broker
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.partition import Partition
    from stepfast.runs.ranges import Range
    from stepfast.runs.run import Run

SCHEMA_VERSION: Final = 1
WORK_ITEM: Final = "WORK_ITEM"
CONSOLIDATE: Final = "CONSOLIDATE"
WORK_DONE: Final = "WORK_DONE"
DONE_LIVES_FOR: Final = timedelta(hours=1)
PRICE: Final = "price"


@dataclass(frozen=True)
class NextPage:
    """Where a partition stands: what a message about its next page says."""

    number: int
    range: Range
    offset: int
    epoch: int
    seq: int
    total: int | None
    job_id: str | None


def next_page(partition: Partition, job_id: str, *, from_start: bool = False) -> NextPage:
    """Of a partition that begins its next epoch: where it stopped, or at its beginning."""
    place = (0, 0) if from_start else (partition.next_offset, partition.seq)
    offset, seq = place
    return NextPage(
        partition.number, partition.range, offset, partition.epoch + 1, seq, partition.estimate, job_id
    )


def announce_pages(tx: Transaction, declared: Declaration, run: Run, pages: Sequence[NextPage]) -> None:
    """Stage a message for each page that this transaction makes ready."""
    if declared.broker is not None:
        stage_many(tx, [work_item(declared.broker, declared, run, it) for it in pages])


def announce_consolidation(tx: Transaction, declared: Declaration, run: Run, job_id: str) -> None:
    """Stage the message for a round of consolidation that this transaction makes ready."""
    broker = declared.broker
    if broker is None:
        return
    body = {
        "type": CONSOLIDATE,
        "runId": run.id,
        "traceId": trace_id(run),
        "force": bool(run.forced),
        "schemaVersion": SCHEMA_VERSION,
        "epoch": run.epoch,
    }
    message = broker_message(
        broker.url,
        broker.consolidate,
        id=f"consolidate:{run.id}:e{run.epoch}.{run.rounds}",
        body=to_json(body),
        subject=CONSOLIDATE,
        properties={"runId": run.id},
        job_id=job_id,
        trace=run.trace,
    )
    stage_many(tx, [message])


def announce_end(
    tx: Transaction, declared: Declaration, run: Run, partition: Partition, error: str | None
) -> None:
    """Stage the news that a partition has ended, where somebody wants to hear it. Nobody needs to: it vanishes."""
    broker = declared.broker
    if broker is None or broker.work_done is None:
        return
    name, failed = partition_id(partition.number), partition.state is PartitionState.FAILED
    body: dict[str, Any] = {
        "type": WORK_DONE,
        "runId": run.id,
        "traceId": trace_id(run),
        "partitionId": name,
        "recordsProcessed": partition.seen,
        "status": "failed" if failed else "completed",
        "schemaVersion": SCHEMA_VERSION,
        "epoch": partition.epoch,
    }
    if failed:
        body["error"] = error or ""
    message = broker_message(
        broker.url,
        broker.work_done,
        id=f"done:{run.id}:{name}:e{partition.epoch}",
        body=to_json(body),
        subject=WORK_DONE,
        properties={"runId": run.id, "partitionId": name},
        lives_for=DONE_LIVES_FOR,
        trace=run.trace,
    )
    stage_many(tx, [message])


def work_item(broker: Broker, declared: Declaration, run: Run, page: NextPage) -> Message:
    """The message for one page.

    Its id names the page and the epoch, because a broker that detects duplicates swallows what it has seen; `seq` tells
    two requests at the same offset apart.
    """
    name, limit = partition_id(page.number), declared.page_size
    body: dict[str, Any] = {
        "type": WORK_ITEM,
        "runId": run.id,
        "traceId": trace_id(run),
        "partitionId": name,
        **_range(page.range),
        "totalRecords": page.total,
        "offset": page.offset,
        "limit": limit,
        "offsetStart": page.offset,
        "offsetEnd": page.offset + limit,
        "schemaVersion": SCHEMA_VERSION,
        "epoch": page.epoch,
    }
    return broker_message(
        broker.url,
        broker.work_items,
        id=f"{run.id}:{name}:{page.offset}:e{page.epoch}.{page.seq}",
        body=to_json(body),
        subject=WORK_ITEM,
        properties={"runId": run.id, "partitionId": name, "offset": page.offset, "limit": limit},
        job_id=page.job_id,
        trace=run.trace,
    )


def partition_id(number: int) -> str:
    """As operators and the views call it."""
    return f"partition-{number}"


def trace_id(run: Run) -> str:
    return run.id if run.trace is None else run.trace.split("-")[1]


def _range(part: Range) -> dict[str, Any]:
    """A range of prices in the words of the first system; anything else as it is."""
    stored = part.to_json()
    named: dict[str, Any] = {}
    prices = dict(part.parts).get(PRICE)
    if isinstance(prices, Bounds):
        named = {"minPrice": stored[PRICE]["from"], "maxPrice": stored[PRICE]["to"]}
    return named if set(stored) <= {PRICE} and named else {**named, "range": stored}
