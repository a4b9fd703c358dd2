"""How far each feed has been read, and what is still owed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from stepfast.admin.audit import Actor, record, whoever
from stepfast.admin.rows import reader
from stepfast.clock import instant, moment
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, NotFoundError, StateError
from stepfast.runs.lifecycle import refuse_active_run
from stepfast.runs.run import find_feed, lock_feed
from stepfast.runs.watermark import set_watermark as move

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import timedelta

    from stepfast.database.connection import Transaction
    from stepfast.runs.run import FeedRow


# Move a watermark by hand: written down with the reason, and only while nobody relies on it.

KNOWN = sql("SELECT id FROM stepfast_feed WHERE updated_at > 0 ORDER BY id")


@dataclass(frozen=True)
class WatermarkMoved:
    feed: str
    before: datetime | None
    after: datetime

    @property
    def consequence(self) -> str:
        """What this means for the runs to come."""
        if self.before is None:
            return f"the next run reads what the source has changed since {_said(self.after)}"
        if self.after < self.before:
            return f"the next run reads again what the source changed from {_said(self.after)} to {_said(self.before)}"
        return (
            f"no incremental run reads what the source changed from {_said(self.before)} to {_said(self.after)}; "
            "if it is not in the target, read it with a backfill"
        )


def set_watermark(
    tx: Transaction,
    feed: str,
    to: datetime,
    *,
    force: bool = False,
    by: Actor | None = None,
    declared: Collection[str] = (),
) -> WatermarkMoved:
    """Set it to an instant of the source's clock. Back only by force; never into the future, or under an active run.

    `declared`: feeds of the application. One that never ran must be among them.
    """
    by = by or whoever()
    if not by.reason:
        raise ConfigurationError("say why the watermark is moved; the reason is kept with it")
    watermark = instant(to, "to")
    if not find_feed(tx, feed).updated_at:
        _check_first(tx, feed, declared, force=force)
    row = lock_feed(tx, feed)
    refuse_active_run(tx, feed)
    _check(row, watermark, force=force)
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
    """A watermark for a feed that nobody knows would wait for ever for somebody to spell it so."""
    if feed not in declared:
        known = ", ".join(sorted({*declared, *(str(row[0]) for row in tx.rows(KNOWN))})) or "none"
        raise NotFoundError(
            f"feed {feed!r} has never run here, and no app that was given has it (known: {known}); is it spelled right? "
            "To give a new feed a first watermark, say where its app is with --app MODULE:APP, or STEPFAST_APP"
        )
    if not force:
        raise NotFoundError(
            f"feed {feed!r} has never run here; to give it a first watermark, say so with --force"
        )


def _check(row: FeedRow, watermark: int, *, force: bool) -> None:
    if watermark > row.now + row.skew:
        raise StateError(
            f"{_said(moment(watermark))} lies in the future of the source; nothing was read so far"
        )
    if watermark == row.watermark:
        raise StateError(f"the watermark of feed {row.feed} is at {_said(moment(watermark))} already")
    if row.watermark is not None and watermark < row.watermark and not force:
        raise StateError(
            f"the watermark of feed {row.feed} is at {_said(moment(row.watermark))}; moving it back reads everything "
            "since then again: if that is meant, say so with --force"
        )


def _said(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


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


_SELECT = """
    SELECT f.id, f.watermark, f.version, f.last_run,
           (SELECT r.completed_at FROM stepfast_run r WHERE r.id = f.last_run),
           (SELECT min(r.id) FROM stepfast_run r WHERE r.active_feed = f.id),
           (SELECT count(*) FROM stepfast_debt d WHERE d.feed = f.id AND d.state = 'open'),
           f.export_to, {now} + f.skew
      FROM stepfast_feed f
"""
LIST = sql(_SELECT + " ORDER BY f.id LIMIT :limit")
ONE = sql(_SELECT + " WHERE f.id = :feed")

_read = reader(WatermarkReport, watermark=moment, open_debts=int, source_now=moment)


def list_watermarks(tx: Transaction, *, limit: int = 200) -> list[WatermarkReport]:
    """By the names of the feeds."""
    return tx.all(LIST, _read, limit=limit)


def show_watermark(tx: Transaction, feed: str) -> WatermarkReport:
    found = tx.all(ONE, _read, feed=feed)
    if not found:
        raise NotFoundError(f"feed {feed!r} has never run here; see: stepfast watermark show")
    return found[0]
