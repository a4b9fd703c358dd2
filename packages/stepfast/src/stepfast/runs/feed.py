"""A feed: where data comes from, how it is read, and where it goes. What a user of runs writes."""

# ruff: noqa: ARG002 - a method that a feed has not written looks at nothing

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import Duration, duration, utc
from stepfast.config import is_whole
from stepfast.database.upsert import BulkUpsert
from stepfast.errors import AnswerError, ConfigurationError
from stepfast.runs.paging.paginators import Offset, Paging

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.limits.limit import Limit
    from stepfast.runs.broker import Broker
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.contract import Partitioner
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.window import Window


Row = Mapping[str, Any]  # a row of the target: its columns


@dataclass(frozen=True)
class Page:
    """What a source answered. `next` leads to the following page where the feed is paged by token or key."""

    items: Sequence[Any]
    next: Any = None
    total: int | None = None  # for people; ends are decided by count()
    observed_at: datetime | None = None  # when the request began, on the source's clock, if that is known

    def __post_init__(self) -> None:
        if isinstance(self.items, str | bytes | Mapping) or not isinstance(self.items, Sequence):
            raise AnswerError("page", f"has {type(self.items).__name__} for items; give a list of them")
        if self.observed_at is not None:
            object.__setattr__(self, "observed_at", utc(self.observed_at, "a page's observed_at"))


class Feed:
    """Subclass it, set what differs, and register an instance.

    `plan`, `count`, `fetch`, `still_there` and `now` may be async.
    """

    name: str = ""
    page_size: int = 30
    schedule: str | None = None  # cron; None: runs are started by hand
    tz: str = "UTC"
    paging: Paging = Offset()
    partitioner: Partitioner | None = None  # or write plan()

    lookback: Duration = "15m"  # how far before the watermark an incremental run begins
    settle: Duration = "120s"  # how long the source may take to show a change; a run ends so long before now
    ahead_at_most: Duration = "15m"  # of the source's clock before the database's; beyond it no run begins

    queue: str = "default"  # where the jobs of its runs wait
    transport: str | Broker | None = None  # a broker that announces them: "service-bus://"; None: as the app
    price_dimension: str = "price"  # whose bounds messages of a broker carry as minPrice and maxPrice
    priority: int = 0
    limits: Sequence[Limit] = ()  # for everything that asks the source: Rate(25, per="1s")
    timeout: Duration = "55s"  # of one request to the source, with its commit

    wait_at_most: Duration = "24h"  # how long a partition or a plan waits for a source in trouble
    stall_after: Duration = "30m"  # a run that nothing has moved for so long is stalled; an alert is raised
    fresh_within: Duration | None = None  # how old the watermark may be before an alert is raised

    attempts_page: int = 5
    attempts_consolidation: int = 3
    shards: int = 5  # consolidations at a time
    batch: int = 2_000  # raw rows of one consolidation step
    chunk: int = 100  # target rows of one statement; on SQLite up to ten chunks are one
    error_budget: float = 0.05  # the share of a run's rows that may end in quarantine
    error_limit: int | None = None  # and how many, whatever the share; None: any number

    table: str | None = None  # of the target rows; None: as the feed is called
    key: str | Sequence[str] = "id"  # columns by which target rows replace each other
    item_column: str | None = None  # of the target: the item's identity; None: the key, if that is one column
    feed_column: str | None = None  # of the target: the feed of a row, where several write into one table
    stale: str | None = None  # of the target: since when a row's newest version is in quarantine
    mapping_phase: str = "mapping"  # what `runs show` calls the phase in which rows are mapped
    mapper_version: str = "1"  # change it with map(), so that quarantined rows can be told apart
    volatile: Sequence[str] = ()  # fields of an item that change without meaning anything

    sweep: Sweep | None = None  # how rows that are gone at the source are marked; None: they stay
    confirm_gone: bool = True  # whether still_there(), if the feed has one, is called before rows go
    confirm_lot: int = 50  # ids that still_there() gets at once
    export: str | None = None  # where the watermark is written for others: file:///var/lib/app/watermark.json

    def plan(self, window: Window, /) -> list[Range] | Awaitable[list[Range]]:
        """The partitions of a run; they must tile everything the feed reads."""
        raise _unwritten(self, "plan")

    def count(self, part: Range, window: Window, /) -> int | Awaitable[int]:
        """How many rows the source has in this range and window."""
        raise _unwritten(self, "count")

    def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page | Awaitable[Page]:
        """One page of this range and window, at `cursor`."""
        raise _unwritten(self, "fetch")

    def identify(self, item: Any, /) -> str:
        """What makes an item this one, for ever."""
        raise _unwritten(self, "identify")

    def map(self, item: Any, /) -> Row:
        """The target row of an item. Raising puts the item into quarantine, with the reason."""
        raise _unwritten(self, "map")

    def store(self, tx: Transaction, rows: Sequence[Row], /) -> None:
        """Write target rows, in the transaction that marks them as applied: no I/O here. As it is: an upsert."""
        key = (self.key,) if isinstance(self.key, str) else tuple(self.key)
        BulkUpsert(self.table or self.name, key, rows, self.chunk).apply(tx)

    def started(self, tx: Transaction, run_id: str, /) -> None:
        """A run begins with this transaction: keep here what must stay the same to its end.

        Raising refuses the run. With HeldError it begins, and an alert says what it will be held for.
        """

    def mapping(self, tx: Transaction, run_id: str | None, /) -> Callable[[Any], Row]:
        """The map() of a batch of this run, which `tx` may look something up for. None: rows are tried again without a run.

        HeldError holds the run until this succeeds.
        """
        return self.map

    def published(self, tx: Transaction, run_id: str, /) -> None:
        """What the run has read is in the target with this transaction; once more, when its sweep has ended."""

    def still_there(self, ids: Sequence[str], /) -> Collection[str] | Awaitable[Collection[str]]:
        """Which of these ids the source still has; asked before rows go. Without it the source is not asked."""
        raise _unwritten(self, "still_there")

    def now(self) -> datetime | Awaitable[datetime | None] | None:
        """The source's clock, such as the Date of an HTTP answer; None: it goes like ours."""
        return None


def _unwritten(feed: Feed, method: str) -> ConfigurationError:
    return ConfigurationError(
        f"feed {feed.name or type(feed).__name__}: write {method}(); it has none of its own"
    )


# The sweep: rows that are gone at the source are marked as deleted, never removed. Off unless a feed asks for it.
#
# In most runs a row that was not seen proves nothing. Only a run that was full, complete and verified strikes the rows
# that it did not see, and a row goes only after several such runs in a row. If more rows would go at once than a fuse
# allows, a person decides. A row that is seen again is back.

MOST_STRIKES: Final = 100
_COLUMN: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """How rows that are gone at the source are marked.

    `fuse`: the share of the living rows that may go in one run without a person; `most`: how many, whatever the share.
    `keep`: how long what is known about a row is kept after it has gone; None for ever. Undoing ends with it.
    """

    column: str = "deleted_at"  # of the target: since when the row is gone, NULL while it is there
    strikes: int = 2  # full runs in a row that did not see it
    fuse: float = 0.02
    most: int | None = None
    keep: Duration | None = None

    def __post_init__(self) -> None:
        for name, fits, wanted in (
            ("column", _is_column, "the name of a column of the target"),
            ("strikes", _is_strikes, f"a whole number from 1 to {MOST_STRIKES}"),
            ("fuse", _is_share, "a share of the rows, from 0 to 1; 0.02 is one in fifty"),
            ("most", _is_most, "a number of rows, or None"),
        ):
            value = getattr(self, name)
            if not fits(value):
                raise ConfigurationError(f"Sweep({name}={value!r:.80}): {wanted}")
        if self.keep is not None:
            duration(self.keep, "Sweep(keep=…)")

    @property
    def keeps(self) -> timedelta | None:
        return None if self.keep is None else duration(self.keep, "Sweep(keep=…)")

    def holds(self, going: int, living: int) -> str | None:
        """Why so many of so many living rows may not go without a person; None if they may."""
        if self.most is not None and going > self.most:
            return f"{going:,} rows would go, more than {self.most:,}"
        if going > self.fuse * living:
            return f"{going:,} of {living:,} rows would go ({going / living:.1%}), more than {self.fuse:.1%}"
        return None


def _is_column(value: object) -> bool:
    return isinstance(value, str) and bool(_COLUMN.fullmatch(value))


def _is_strikes(value: object) -> bool:
    return is_whole(value) and 1 <= value <= MOST_STRIKES


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_most(value: object) -> bool:
    return value is None or (is_whole(value) and value >= 0)
