"""Messages of a broker about runs: written with the work that they announce, and read as hints.

A transaction that makes a page or a consolidation ready stages a message about it. The message is a hint: its job is in
the database, ready, and at first reserved for the worker that gets the message; after the head start any worker may take
it. So a message that is lost, late or swallowed costs time and nothing else.

A message is never the truth. One that comes twice, late or out of its order names a page that the partition has left
behind: it is stale, and nothing happens. One that cannot be read is told apart from one that names unknown work, because
the latter may only be ahead of its time.

The messages are those of the first system of this kind, so that others can read and write them: WORK_ITEM for a page,
CONSOLIDATE, and WORK_DONE for the end of a partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast.database.statement import sql
from stepfast.jobs.payload import to_json
from stepfast.outbox.broker import broker_message
from stepfast.outbox.messages import Message, stage_many
from stepfast.runs.partition import PartitionState, partition_id
from stepfast.runs.partitioning.ranges import Bounds
from stepfast.runs.run import RunState
from stepfast.transports.body import json_inside

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.broker import Broker
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.partition import Partition
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.run import Run


# Writing.

SCHEMA_VERSION: Final = 1
WORK_ITEM: Final = "WORK_ITEM"
CONSOLIDATE: Final = "CONSOLIDATE"
WORK_DONE: Final = "WORK_DONE"
DONE_LIVES_FOR: Final = timedelta(hours=1)
PRICE: Final = "price"  # a dimension of this name is told by minPrice and maxPrice alone


@dataclass(frozen=True)
class NextPage:
    """What a message about the next page of a partition says."""

    number: int
    range: Range
    offset: int
    epoch: int
    seq: int
    total: int | None
    job_id: str | None


def next_page(partition: Partition, job_id: str, *, from_start: bool = False) -> NextPage:
    """The next page of a partition that begins its next epoch: where it stopped, or at its beginning."""
    offset, seq = (0, 0) if from_start else (partition.next_offset, partition.seq)
    return NextPage(
        partition.number, partition.range, offset, partition.epoch + 1, seq, partition.estimate, job_id
    )


def announce_pages(tx: Transaction, declared: Declaration, run: Run, pages: Sequence[NextPage]) -> None:
    """Stage a message for each page that this transaction makes ready."""
    if declared.broker is not None:
        stage_many(tx, [work_item(declared.broker, declared, run, page) for page in pages])


def announce_consolidation(tx: Transaction, declared: Declaration, run: Run, job_id: str) -> None:
    """Stage the message for a round of consolidation that this transaction makes ready."""
    broker = declared.broker
    if broker is None:
        return
    body = {
        "type": CONSOLIDATE,
        "runId": run.id,
        "traceId": run.trace_id,
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
    """Stage the message that a partition has ended, if the broker has a queue for it. It expires unread after an hour."""
    broker = declared.broker
    if broker is None or broker.work_done is None:
        return
    name, failed = partition.public_id, partition.state is PartitionState.FAILED
    body: dict[str, Any] = {
        "type": WORK_DONE,
        "runId": run.id,
        "traceId": run.trace_id,
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
        "traceId": run.trace_id,
        "partitionId": name,
        **_range(page.range, declared.price_dimension),
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


def _range(part: Range, price: str) -> dict[str, Any]:
    """A range of prices in the fields of the first system; any other range, and other prices, also as they are stored."""
    stored = part.to_json()
    named: dict[str, Any] = {}
    prices = dict(part.parts).get(price)
    if isinstance(prices, Bounds):
        named = {"minPrice": stored[price]["from"], "maxPrice": stored[price]["to"]}
    return named if set(stored) <= {PRICE} and named else {**named, "range": stored}


# Reading: a message becomes a hint, or is refused with a reason.

LONGEST_ID: Final = 128
LONGEST_NUMBER: Final = 9  # digits
LARGEST_HINT: Final = 64 * 1024  # characters of a message that is read at all; ours have a few hundred


@dataclass(frozen=True)
class WorkItemHint:
    """A message that a page is ready."""

    run_id: str
    number: int | None  # of the partition; None: a name that no partition of ours has
    epoch: int | None
    offset: int | None  # None: of an older sender; any page is meant


@dataclass(frozen=True)
class ConsolidationHint:
    """A message that a run is ready to be consolidated, or that its sender wants it although a part is missing."""

    run_id: str
    epoch: int | None  # None: not one of ours
    force: bool


Hint = WorkItemHint | ConsolidationHint


@dataclass(frozen=True)
class UnreadableHint:
    """A message that cannot be read: it is put aside with the reason, never acknowledged."""

    reason: str
    detail: str = ""
    subject: str = ""


def read_hint(body: str) -> Hint | UnreadableHint:  # noqa: PLR0911 - one line per problem
    """Read a message, whatever its JSON is wrapped in, or say why it cannot be read. Unknown fields are ignored."""
    if len(body) > LARGEST_HINT:
        return UnreadableHint(
            "TooLarge", f"it has {len(body):,} characters, at most {LARGEST_HINT:,} are read"
        )
    try:
        fields = msgspec.json.decode(json_inside(body))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return UnreadableHint("InvalidJson", str(error))
    if not isinstance(fields, dict):
        return UnreadableHint("InvalidMessage", f"an object was expected, not {type(fields).__name__}")
    kind = fields.get("type")
    subject = kind if isinstance(kind, str) else ""
    if kind not in (WORK_ITEM, CONSOLIDATE):
        return UnreadableHint(
            "UnknownType", f"type is {kind!r:.80}; {WORK_ITEM} and {CONSOLIDATE} are known", subject[:80]
        )
    version = fields.get("schemaVersion", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        return UnreadableHint(
            "UnknownSchemaVersion", f"schemaVersion is {version!r:.80}; {SCHEMA_VERSION} is known", subject
        )
    try:
        return _work_item(fields) if kind == WORK_ITEM else _consolidation(fields)
    except ValueError as error:
        return UnreadableHint("InvalidMessage", str(error), subject)


def _work_item(fields: Mapping[str, Any]) -> WorkItemHint:
    name = fields.get("partitionId")
    if not isinstance(name, str) or not name:
        raise ValueError(f"partitionId is {name!r:.80}, not a text")
    number = name.removeprefix("partition-")
    known = number.isascii() and number.isdecimal() and len(number) <= LONGEST_NUMBER
    if "offset" not in fields and "offsetStart" not in fields:
        raise ValueError("it has neither offset nor offsetStart")
    return WorkItemHint(
        _run_id(fields),
        int(number) if known else None,
        _count(fields, "epoch"),
        _count(fields, "offset"),
    )


def _consolidation(fields: Mapping[str, Any]) -> ConsolidationHint:
    force = fields.get("force", False)
    if force not in (True, False):
        raise ValueError(f"force is {force!r:.80}, not true or false")
    return ConsolidationHint(_run_id(fields), _count(fields, "epoch"), bool(force))


def _run_id(fields: Mapping[str, Any]) -> str:
    found = fields.get("runId")
    if not isinstance(found, str) or not 0 < len(found) <= LONGEST_ID or "\0" in found:
        raise ValueError(f"runId is {found!r:.80}, not a text of 1 to {LONGEST_ID} characters")
    return found


def _count(fields: Mapping[str, Any], name: str) -> int | None:
    found = fields.get(name)
    if found is not None and (
        isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < 2**53
    ):
        raise ValueError(f"{name} is {found!r:.80}, not a whole number")
    return found


# Judging: which job a hint names, as far as the database agrees.

# The job of each partition that was named. (PostgreSQL takes a list for a list of texts unless it is cast.)
_FIND_PARTITIONS = """
    SELECT p.number, p.job_id, p.epoch, p.next_offset,
           CASE WHEN p.state IN ('ready', 'running') THEN 1 ELSE 0 END
      FROM stepfast_partition p WHERE p.run_id = :run_id AND p.number {numbers}
"""
FIND_PARTITIONS = sql(
    _FIND_PARTITIONS.format(numbers="{any_of:numbers}"),
    postgresql=_FIND_PARTITIONS.format(numbers="= ANY(CAST(:numbers AS INTEGER[]))"),
)
FIND_RUNS = sql("SELECT id, feed, state, stalled_in, epoch, job_id FROM stepfast_run WHERE id {any_of:ids}")


@dataclass(frozen=True)
class NamedJob:
    """The hint names this job, which may be taken if it is ready."""

    job_id: str


@dataclass(frozen=True)
class StaleHint:
    """The database is further than the hint."""

    why: str


@dataclass(frozen=True)
class UnknownWork:
    """The hint names something that is not there, or not yet."""

    why: str


@dataclass(frozen=True)
class ForceRequest:
    """Another system asks that the run be consolidated as it is."""

    run_id: str


@dataclass(frozen=True)
class ForeignFeed:
    """The hint is about a feed whose code is not here: another worker has it."""

    feed: str


HintVerdict = NamedJob | StaleHint | UnknownWork | ForceRequest | ForeignFeed


def judge_hints(tx: Transaction, hints: Sequence[Hint], feeds: Collection[str]) -> list[HintVerdict]:
    """Compare each hint with the database: one look for all runs, and one for the partitions of each. `feeds`: those here."""
    runs = (
        {row[0]: row for row in tx.rows(FIND_RUNS, ids=sorted({hint.run_id for hint in hints}))}
        if hints
        else {}
    )
    wanted: dict[str, set[int]] = defaultdict(set)
    for hint in hints:
        if isinstance(hint, WorkItemHint) and hint.number is not None and hint.run_id in runs:
            wanted[hint.run_id].add(hint.number)
    partitions = {
        (run_id, row[0]): row
        for run_id, numbers in wanted.items()
        for row in tx.rows(FIND_PARTITIONS, run_id=run_id, numbers=sorted(numbers))
    }
    return [_judge(hint, runs.get(hint.run_id), partitions, feeds) for hint in hints]


def _judge(
    hint: Hint,
    run: Sequence[Any] | None,
    partitions: Mapping[tuple[str, int], Sequence[Any]],
    feeds: Collection[str],
) -> HintVerdict:
    if run is None:
        return UnknownWork(f"there is no run {hint.run_id}")
    if run[1] not in feeds:
        return ForeignFeed(run[1])
    if isinstance(hint, ConsolidationHint):
        return _of_run(hint, run)
    partition = None if hint.number is None else partitions.get((hint.run_id, hint.number))
    if partition is None:
        return UnknownWork(f"run {hint.run_id} has no such partition")
    return _of_partition(hint, partition)


def _of_partition(hint: WorkItemHint, partition: Sequence[Any]) -> HintVerdict:
    _, job_id, epoch, offset, is_open = partition
    if not is_open or job_id is None:
        return StaleHint("the partition has ended")
    if hint.epoch is not None and hint.epoch != epoch:
        return StaleHint(f"it is of epoch {hint.epoch}, the partition is in {epoch}")
    if hint.offset is not None and hint.offset != offset:
        return StaleHint(
            f"Offset mismatch, skipping duplicate: it is for row {hint.offset}, the partition goes on at {offset}"
        )
    return NamedJob(job_id)


def _of_run(hint: ConsolidationHint, run: Sequence[Any]) -> HintVerdict:
    run_id, _, state, stalled_in, epoch, job_id = run
    ours = hint.epoch is not None
    if RunState(stalled_in or state) is RunState.APPLYING and job_id is not None:
        return StaleHint(f"it is of epoch {hint.epoch}") if ours and hint.epoch != epoch else NamedJob(job_id)
    if hint.force and not ours and RunState(state) in (RunState.FAILED, RunState.FAILED_QUALITY):
        return ForceRequest(run_id)
    return StaleHint(f"the run is {state}")


# Whether a hint is about work that the database knows, whatever became of it: for callers that need no more than that.

NONE: Final = -1  # no partition has this number

# Runs, each with those of its partitions whose number is in a hint. (PostgreSQL takes a list for a list of texts unless
# it is cast.)
_FIND_KNOWN_WORK = """
    SELECT r.id, r.feed, p.number
      FROM stepfast_run r LEFT JOIN stepfast_partition p ON p.run_id = r.id AND p.number {numbers}
     WHERE r.id {{any_of:ids}}
"""
FIND_KNOWN_WORK = sql(
    _FIND_KNOWN_WORK.format(numbers="{any_of:numbers}"),
    postgresql=_FIND_KNOWN_WORK.format(numbers="= ANY(CAST(:numbers AS INTEGER[]))"),
)


def is_known_work(tx: Transaction, hints: Sequence[Hint], feeds: Collection[str]) -> list[bool]:
    """For each hint, whether it names a run, and a partition of that run. `feeds`: those here; of others a run is enough."""
    if not hints:
        return []
    numbers = {hint.number for hint in hints if isinstance(hint, WorkItemHint) and hint.number is not None}
    feed_of: dict[str, str] = {}
    partitions: dict[str, set[int]] = defaultdict(set)
    ids = sorted({hint.run_id for hint in hints})
    for run_id, feed, number in tx.rows(FIND_KNOWN_WORK, ids=ids, numbers=sorted(numbers) or [NONE]):
        feed_of[run_id] = feed
        partitions[run_id].add(number)
    return [
        hint.run_id in feed_of
        and (
            feed_of[hint.run_id] not in feeds
            or not isinstance(hint, WorkItemHint)
            or (hint.number is not None and hint.number in partitions[hint.run_id])
        )
        for hint in hints
    ]
