"""The watermark of a feed: every change that its source made before this instant is in the target.

It moves in the transaction that completes a run, to the end of that run's window, and never back. Only an operator
may move it elsewhere, and only while no run is active.

`lifecycle.complete` moves it, `Run.moves_the_watermark` says which runs do, and `window.py` makes the window of the next run
from it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from stepfast.clock import instant, moment
from stepfast.database.statement import sql
from stepfast.errors import StateError
from stepfast.outbox.alerts import raise_alert
from stepfast.outbox.exports import (
    edited_document,
    edited_sentence,
    export_message,
    instant_of,
    owner_of_feed,
    written_by_others,
)
from stepfast.outbox.messages import stage
from stepfast.runs.run import FeedRow, lock_feed
from stepfast.telemetry import when_committed

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.run import Run

T = TypeVar("T", int, datetime)


# `version` counts the moves, and is the guard: it shows that the watermark is the one that was read.
MOVE_WATERMARK = sql("""
    UPDATE stepfast_feed
       SET watermark = :watermark, version = version + 1, last_run = :run_id, last_took = :took,
           export_to = :export_to, updated_at = {now}
     WHERE id = :feed AND version = :version
""")
SET_WATERMARK = sql("""
    UPDATE stepfast_feed SET watermark = :watermark, version = version + 1, updated_at = {now}
     WHERE id = :feed AND version = :version
""")


def advance_watermark(tx: Transaction, declared: Declaration, run: Run) -> int | None:
    """Move the watermark to the end of a run's window; returns where it is now. None: this run does not move it.

    The caller completes the run in this transaction, and holds its row.
    """
    if not run.moves_the_watermark:
        return None
    row = lock_feed(tx, run.feed)
    if leaves_a_gap(row.watermark, run.window_from):
        return None
    watermark = watermark_after(row.watermark, run.window_to)
    moved = tx.run(
        MOVE_WATERMARK,
        feed=run.feed,
        version=row.version,
        watermark=watermark,
        run_id=run.id,
        took=max(0, row.now - run.started_at),
        export_to=declared.export,
    )
    _require(moved, run.feed)
    _export(tx, declared.export, row, watermark, run.id)
    return watermark


def watermark_after(before: T | None, window_to: T) -> T:
    """The watermark once everything in a window up to `window_to` is in the target. It never moves back."""
    return window_to if before is None else max(before, window_to)


def leaves_a_gap(watermark: int | None, window_from: int | None) -> bool:
    """Whether the window begins after the watermark: an operator set the watermark back after the run had begun."""
    return window_from is not None and (watermark is None or watermark < window_from)


def set_watermark(tx: Transaction, row: FeedRow, watermark: int) -> None:
    """Set the watermark where an operator wants it. The caller holds the feed's row; no run of the feed is active."""
    _require(tx.run(SET_WATERMARK, feed=row.feed, version=row.version, watermark=watermark), row.feed)
    _export(tx, row.export_to, row, watermark, row.last_run)


def _require(moved: int, feed: str) -> None:
    if moved != 1:
        raise StateError(
            f"the watermark of feed {feed} was moved by somebody else meanwhile; nothing was done"
        )


# When the run that is named ended; of one that is being completed in this transaction, `completed_at` is not set yet.
RUN_COMPLETED_AT = sql("SELECT COALESCE(completed_at, ended_at) FROM stepfast_run WHERE id = :id")


# The export: the watermark as a small JSON document for others, in the shape that operators know.
#
# It is staged in the transaction that moves the watermark, and written by the relay after the commit. The database
# stays the truth: what is written into the document by others moves nothing.


def _export(tx: Transaction, address: str | None, row: FeedRow, watermark: int, run_id: str | None) -> None:
    if address is not None:
        document = WatermarkDocument(
            feed=row.feed,
            watermark=watermark,
            run_id=run_id,
            completed_at=None if run_id is None else tx.first(RUN_COMPLETED_AT, id=run_id),
            version=row.version + 1,
            made_at=row.now,
        )
        export(tx, address, document)


@dataclass(frozen=True, kw_only=True)
class WatermarkDocument:
    """The watermark of a feed as it was after one move."""

    feed: str
    watermark: int
    run_id: str | None  # the last run that moved it; None: an operator set it before there was one
    completed_at: int | None  # when that run completed
    version: int  # which move it was
    made_at: int  # when it was moved, by the run or by an operator

    def to_json(self) -> str:
        document = {
            "lastUpdatedAt": _written(self.watermark),
            "lastRunId": self.run_id,
            "lastRunCompletedAt": None if self.completed_at is None else _written(self.completed_at),
        }
        return msgspec.json.encode(document).decode()


def export(tx: Transaction, address: str, document: WatermarkDocument) -> None:
    """Stage the document: it is written after the commit, after all earlier ones and never over a newer one."""
    message = export_message(
        address,
        document.to_json(),
        owner=owner_of_feed(document.feed),
        version=document.version,
        made_at=document.made_at,
    )
    stage(tx, message)


# A document that was edited by hand, which moves nothing: noticed when a run begins, and when the document is replaced.

LONGEST_LOOK: Final = 10.0  # seconds


async def find_edit(declared: Declaration, run: Run) -> list[EditedDocument]:
    """The exported document, if others have written it and it names another watermark than the run begins with."""
    address = declared.export
    if address is None:
        return []
    try:
        async with asyncio.timeout(LONGEST_LOOK):
            text = await asyncio.to_thread(written_by_others, address)
    except TimeoutError:
        return []
    if text is None or ((at := instant_of(text)) is not None and instant(at) == run.watermark_before):
        return []
    return [EditedDocument(run, address, text)]


@dataclass(frozen=True)
class EditedDocument:
    """An effect of the run's first step: an alert says what a document that was edited means."""

    run: Run
    address: str
    text: str

    def apply(self, tx: Transaction, /) -> None:
        feed = self.run.feed
        raise_alert(tx, edited_document(feed, self.address, self.text))
        note = edited_sentence(feed, self.address, self.text)
        when_committed(tx, "watermark.edited", self.run, note=note)


def _written(at: int) -> str:
    """2024-01-16T02:00:00Z; a fraction only if there is one."""
    return moment(at).isoformat().replace("+00:00", "Z")
