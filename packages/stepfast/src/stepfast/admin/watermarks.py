"""Watermarks: how far each feed has been read, and moving one by hand, with a reason, while no run of it is active."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from stepfast.admin.audit import Actor, record, require_reason
from stepfast.admin.rows import reader
from stepfast.clock import instant, moment
from stepfast.database.statement import sql
from stepfast.errors import NotFoundError, StateError
from stepfast.outbox.exports import edited_sentence, instant_of, written_by_others
from stepfast.runs.lifecycle import refuse_active_run
from stepfast.runs.run import find_feed, lock_feed
from stepfast.runs.watermark import set_watermark as move

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import timedelta

    from stepfast.database.connection import Transaction
    from stepfast.runs.run import FeedRow


@dataclass(frozen=True)
class WatermarkReport:
    """Everything that the source changed before `watermark`, on its own clock, is in the target, but for the debts."""

    feed: str
    watermark: datetime | None
    version: int  # how often it was moved
    last_run: str | None  # the last run that moved it
    last_run_completed_at: datetime | None
    active_run: str | None
    open_debts: int
    export_to: str | None
    source_now: datetime

    @property
    def age(self) -> timedelta | None:
        return None if self.watermark is None else self.source_now - self.watermark


@dataclass(frozen=True)
class WatermarkMoved:
    """A watermark before and after it was moved by hand."""

    feed: str
    before: datetime | None
    after: datetime

    @property
    def consequence(self) -> str:
        """What the move means for later runs."""
        if self.before is None:
            return f"the next run reads what the source has changed since {_utc(self.after)}"
        if self.after < self.before:
            return f"the next run reads again what the source changed from {_utc(self.after)} to {_utc(self.before)}"
        return (
            f"no incremental run reads what the source changed from {_utc(self.before)} to {_utc(self.after)}; "
            "if it is not in the target, read it with a backfill"
        )


# Look

_SELECT = """
    SELECT f.id, f.watermark, f.version, f.last_run,
           (SELECT r.completed_at FROM stepfast_run r WHERE r.id = f.last_run),
           (SELECT min(r.id) FROM stepfast_run r WHERE r.active_feed = f.id),
           (SELECT count(*) FROM stepfast_debt d WHERE d.feed = f.id AND d.state = 'open'),
           f.export_to, {now} + f.skew
      FROM stepfast_feed f
"""
LIST_WATERMARKS = sql(_SELECT + " ORDER BY f.id LIMIT :limit")
ONE_WATERMARK = sql(_SELECT + " WHERE f.id = :feed")

_read_watermark = reader(WatermarkReport, watermark=moment, open_debts=int, source_now=moment)


def list_watermarks(tx: Transaction, *, limit: int = 200) -> list[WatermarkReport]:
    """The watermarks of all feeds, by name."""
    return tx.all(LIST_WATERMARKS, _read_watermark, limit=limit)


def show_watermark(tx: Transaction, feed: str) -> WatermarkReport:
    """The watermark of one feed."""
    found = tx.all(ONE_WATERMARK, _read_watermark, feed=feed)
    if not found:
        raise NotFoundError(f"feed {feed!r} has never run here; see: stepfast watermark show")
    return found[0]


def edited_export(report: WatermarkReport) -> str | None:
    """What it means that others have written the exported document; None: they have not, as far as can be seen from here."""
    text = None if report.export_to is None else written_by_others(report.export_to)
    if report.export_to is None or text is None or instant_of(text) == report.watermark:
        return None
    return edited_sentence(report.feed, report.export_to, text)


# Act

KNOWN_FEEDS = sql("SELECT id FROM stepfast_feed WHERE updated_at > 0 ORDER BY id")


def set_watermark(
    tx: Transaction,
    feed: str,
    to: datetime,
    *,
    force: bool = False,
    by: Actor | None = None,
    declared: Collection[str] = (),
) -> WatermarkMoved:
    """Set a watermark to an instant of the source's clock. Back only by force; never into the future, or under an active run.

    `declared`: feeds of the application. A feed that never ran must be among them.
    """
    by = require_reason(by, "say why the watermark is moved; the reason is kept with it")
    watermark = instant(to, "to")
    if not find_feed(tx, feed).updated_at:
        _check_first(tx, feed, declared, force=force)
    row = lock_feed(tx, feed)
    refuse_active_run(tx, feed)
    _check_move(row, watermark, force=force)
    move(tx, row, watermark)
    moved = WatermarkMoved(feed, None if row.watermark is None else moment(row.watermark), moment(watermark))
    record(
        tx,
        by,
        "watermark.set",
        feed,
        detail={
            "before": None if moved.before is None else moved.before.isoformat(),
            "after": moved.after.isoformat(),
            "forced": int(force),
        },
    )
    return moved


def _check_first(tx: Transaction, feed: str, declared: Collection[str], *, force: bool) -> None:
    """Refuse a feed that never ran, unless the application has it: the name may be misspelt."""
    if feed not in declared:
        known = ", ".join(sorted({*declared, *(str(row[0]) for row in tx.rows(KNOWN_FEEDS))})) or "none"
        raise NotFoundError(
            f"feed {feed!r} has never run here, and no app that was given has it (known: {known}); is it spelled right? "
            "To give a new feed a first watermark, say where its app is with --app MODULE:APP, or STEPFAST_APP"
        )
    if not force:
        raise NotFoundError(
            f"feed {feed!r} has never run here; to give it a first watermark, say so with --force"
        )


def _check_move(row: FeedRow, watermark: int, *, force: bool) -> None:
    if watermark > row.now + row.skew:
        raise StateError(
            f"{_utc(moment(watermark))} lies in the future of the source; nothing was read so far"
        )
    if watermark == row.watermark:
        raise StateError(f"the watermark of feed {row.feed} is at {_utc(moment(watermark))} already")
    if row.watermark is not None and watermark < row.watermark and not force:
        raise StateError(
            f"the watermark of feed {row.feed} is at {_utc(moment(row.watermark))}; moving it back reads everything "
            "since then again: if that is meant, say so with --force"
        )


def _utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
