"""What a message about a run means: which job it names, as far as the database agrees.

A message is never the truth. One that comes twice, late or out of its order names a page that the partition has left
behind: it is stale, and nothing happens. One that nobody understands is told apart from one that names nothing we know,
because the latter may only be ahead of its time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast.database.statement import sql
from stepfast.runs.announcing import CONSOLIDATE, SCHEMA_VERSION, WORK_ITEM
from stepfast.runs.states import RunState

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

LONGEST_ID: Final = 128
LONGEST_NUMBER: Final = 9  # digits

# The job of each partition that was named. (A list is a list of texts for PostgreSQL, unless it is told.)
_PLACES = """
    SELECT p.number, p.job_id, p.epoch, p.next_offset,
           CASE WHEN p.state IN ('ready', 'running') THEN 1 ELSE 0 END
      FROM stepfast_partition p WHERE p.run_id = :run_id AND p.number {numbers}
"""
PLACES = sql(
    _PLACES.format(numbers="{any_of:numbers}"),
    postgresql=_PLACES.format(numbers="= ANY(CAST(:numbers AS INTEGER[]))"),
)
RUNS = sql("SELECT id, feed, state, stalled_in, epoch, job_id FROM stepfast_run WHERE id {any_of:ids}")


@dataclass(frozen=True)
class WorkItem:
    """A page is ready."""

    run_id: str
    number: int | None  # of the partition; None: a name that no partition of ours has
    epoch: int | None
    offset: int | None  # None: of an older sender; any page is meant


@dataclass(frozen=True)
class Consolidation:
    """What was read is ready to be consolidated; or somebody wants it to be, although a part is missing."""

    run_id: str
    epoch: int | None  # None: not one of ours
    force: bool


Hint = WorkItem | Consolidation


@dataclass(frozen=True)
class Unreadable:
    """Not understood: it is put aside with the reason, never acknowledged."""

    reason: str
    detail: str = ""
    subject: str = ""


@dataclass(frozen=True)
class Named:
    """It names this job, which may be taken if it is ready."""

    job_id: str


@dataclass(frozen=True)
class Stale:
    """The database is further."""

    why: str


@dataclass(frozen=True)
class Unknown:
    """It names something that is not there, or not yet."""

    why: str


@dataclass(frozen=True)
class Wish:
    """Somebody else than us asks that the run be consolidated as it is."""

    run_id: str


@dataclass(frozen=True)
class Foreign:
    """It is about a feed whose code is not here: for another worker."""

    feed: str


Verdict = Named | Stale | Unknown | Wish | Foreign


def read(body: str) -> Hint | Unreadable:
    """Understand a message, or say why not. Fields that we do not know are left alone."""
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return Unreadable("InvalidJson", str(error))
    if not isinstance(told, dict):
        return Unreadable("InvalidMessage", f"an object was expected, not {type(told).__name__}")
    kind = told.get("type")
    subject = kind if isinstance(kind, str) else ""
    if kind not in (WORK_ITEM, CONSOLIDATE):
        return Unreadable(
            "UnknownType", f"type is {kind!r:.80}; {WORK_ITEM} and {CONSOLIDATE} are known", subject[:80]
        )
    version = told.get("schemaVersion", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        return Unreadable(
            "UnknownSchemaVersion", f"schemaVersion is {version!r:.80}; {SCHEMA_VERSION} is known", subject
        )
    try:
        return _work_item(told) if kind == WORK_ITEM else _consolidation(told)
    except ValueError as error:
        return Unreadable("InvalidMessage", str(error), subject)


def judge(tx: Transaction, hints: Sequence[Hint], feeds: Collection[str]) -> list[Verdict]:
    """Ask the database about each; one look for all runs, and one for the partitions of each. `feeds` are here."""
    runs = {row[0]: row for row in tx.rows(RUNS, ids=sorted({it.run_id for it in hints}))} if hints else {}
    wanted: dict[str, set[int]] = defaultdict(set)
    for it in hints:
        if isinstance(it, WorkItem) and it.number is not None and it.run_id in runs:
            wanted[it.run_id].add(it.number)
    places = {
        (run_id, row[0]): row
        for run_id, numbers in wanted.items()
        for row in tx.rows(PLACES, run_id=run_id, numbers=sorted(numbers))
    }
    return [_judge(it, runs.get(it.run_id), places, feeds) for it in hints]


def _judge(
    hint: Hint,
    run: Sequence[Any] | None,
    places: Mapping[tuple[str, int], Sequence[Any]],
    feeds: Collection[str],
) -> Verdict:
    if run is None:
        return Unknown(f"there is no run {hint.run_id}")
    if run[1] not in feeds:
        return Foreign(run[1])
    if isinstance(hint, Consolidation):
        return _of_run(hint, run)
    place = None if hint.number is None else places.get((hint.run_id, hint.number))
    if place is None:
        return Unknown(f"run {hint.run_id} has no such partition")
    return _of_partition(hint, place)


def _of_partition(hint: WorkItem, place: Sequence[Any]) -> Verdict:
    _, job_id, epoch, offset, is_open = place
    if not is_open or job_id is None:
        return Stale("the partition has ended")
    if hint.epoch is not None and hint.epoch != epoch:
        return Stale(f"it is of epoch {hint.epoch}, the partition is in {epoch}")
    if hint.offset is not None and hint.offset != offset:
        return Stale(f"it is for row {hint.offset}, the partition goes on at {offset}")
    return Named(job_id)


def _of_run(hint: Consolidation, run: Sequence[Any]) -> Verdict:
    run_id, _, state, stalled_in, epoch, job_id = run
    ours = hint.epoch is not None
    if RunState(stalled_in or state) is RunState.APPLYING and job_id is not None:
        return Stale(f"it is of epoch {hint.epoch}") if ours and hint.epoch != epoch else Named(job_id)
    if hint.force and not ours and RunState(state) in (RunState.FAILED, RunState.FAILED_QUALITY):
        return Wish(run_id)
    return Stale(f"the run is {state}")


def _work_item(told: Mapping[str, Any]) -> WorkItem:
    name = told.get("partitionId")
    if not isinstance(name, str) or not name:
        raise ValueError(f"partitionId is {name!r:.80}, not a text")
    number = name.removeprefix("partition-")
    known = number.isascii() and number.isdecimal() and len(number) <= LONGEST_NUMBER
    if "offset" not in told and "offsetStart" not in told:
        raise ValueError("it has neither offset nor offsetStart")
    return WorkItem(
        _run_id(told),
        int(number) if known else None,
        _count(told, "epoch"),
        _count(told, "offset"),
    )


def _consolidation(told: Mapping[str, Any]) -> Consolidation:
    force = told.get("force", False)
    if force not in (True, False):
        raise ValueError(f"force is {force!r:.80}, not true or false")
    return Consolidation(_run_id(told), _count(told, "epoch"), bool(force))


def _run_id(told: Mapping[str, Any]) -> str:
    found = told.get("runId")
    if not isinstance(found, str) or not 0 < len(found) <= LONGEST_ID or "\0" in found:
        raise ValueError(f"runId is {found!r:.80}, not a text of 1 to {LONGEST_ID} characters")
    return found


def _count(told: Mapping[str, Any], field: str) -> int | None:
    found = told.get(field)
    if found is not None and (
        isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < 2**53
    ):
        raise ValueError(f"{field} is {found!r:.80}, not a whole number")
    return found
