"""The window of the next run. Pure: the clocks come in as arguments.

A run reads what changed in `[from, to)`, and both ends are fixed before it begins. `to` is a little while ago on the
source's clock, so that every change before it is visible. When the run has completed, its watermark is `to`, never the
time at which it completed: what changed while it was reading belongs to the next one. That begins a little before the
watermark, in case a change became visible late after all. So windows overlap, and leave nothing between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, assert_never

from stepfast.clock import instant, moment, utc
from stepfast.errors import ConfigurationError

if TYPE_CHECKING:
    from stepfast.runs.run import RunKind


@dataclass(frozen=True)
class Window:
    """From when to when the rows of a run were changed, half-open, on the source's clock. It never changes in a run.

    `from_` None: since ever.
    """

    from_: datetime | None
    to: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "to", utc(self.to, "a window's end"))
        if self.from_ is None:
            return
        object.__setattr__(self, "from_", utc(self.from_, "a window's beginning"))
        if self.from_ > self.to:
            raise ConfigurationError(
                f"a window from {self.from_:%Y-%m-%d %H:%M:%S} to {self.to:%Y-%m-%d %H:%M:%S} ends before it begins; "
                "a source may answer anything to that"
            )

    @property
    def is_empty(self) -> bool:
        """Whether nothing lies in the window: then the source is not asked."""
        return self.from_ == self.to

    @property
    def micros(self) -> tuple[int | None, int]:
        """The window as it is stored."""
        return None if self.from_ is None else instant(self.from_), instant(self.to)

    @classmethod
    def of(cls, from_: int | None, to: int) -> Window:
        """A window from how it is stored."""
        return cls(None if from_ is None else moment(from_), moment(to))

    def to_json(self) -> dict[str, str | None]:
        return {"from": None if self.from_ is None else self.from_.isoformat(), "to": self.to.isoformat()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Window:
        begins = stored["from"]
        return cls(
            None if begins is None else datetime.fromisoformat(begins), datetime.fromisoformat(stored["to"])
        )


NEVER = timedelta(0)


def next_window(
    kind: RunKind,
    *,
    watermark: datetime | None,
    source_now: datetime,
    lookback: timedelta,
    settle: timedelta,
    last_took: timedelta = NEVER,
) -> Window:
    """The window of a run that starts now. `last_took`: how long the last run of this feed took.

    It ends no earlier than the watermark, whatever a clock that was set back says.
    """
    to = source_now - settle if watermark is None else max(source_now - settle, watermark)
    match kind:
        case "full" | "verify":
            return Window(None, to)
        case "incremental":
            # A page that was read early in a long run is as old as the run is long.
            return Window(None if watermark is None else watermark - max(lookback, last_took), to)
        case "backfill":
            raise ConfigurationError(
                "a backfill reads the window that its operator gives; say from when to when"
            )
        case _:
            assert_never(kind)


def backfill_window(
    from_: datetime | None, to: datetime | None, *, source_now: datetime, settle: timedelta
) -> Window:
    """The window an operator asks for; without an end it ends where that of a run would."""
    latest = source_now - settle
    if to is not None and to > latest:
        raise ConfigurationError(
            f"a backfill up to {to.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC reads what the source may not show yet; "
            f"end it at {latest.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC or before"
        )
    window = Window(from_, latest if to is None else to)
    if window.is_empty:
        raise ConfigurationError("a backfill that ends where it begins reads nothing")
    return window


def skew(source_time: datetime, answered_at: datetime) -> timedelta:
    """How far the source's clock is ahead of ours, at least: it showed `source_time` before its answer reached us."""
    return source_time - answered_at


def source_time(ours: datetime, ahead: timedelta) -> datetime:
    """What the source's clock shows when ours shows this."""
    return ours + ahead
