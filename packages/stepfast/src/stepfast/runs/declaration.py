"""A feed, checked: what is wrong with it is reported when it is registered, not at two in the morning."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import Duration, duration
from stepfast.config import checked_name, is_whole
from stepfast.errors import ConfigurationError
from stepfast.jobs.kinds import checked_priority, is_async
from stepfast.limits.limit import Limit, checked_limits
from stepfast.outbox.exports import problem_of_export
from stepfast.runs.feed import Feed, Sweep
from stepfast.runs.paging.paginators import Keyset, Offset, Token
from stepfast.runs.run import LATEST
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from stepfast.runs.broker import Broker
    from stepfast.runs.paging.paginators import Paging
    from stepfast.runs.partitioning.contract import Partitioner


TABLE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", re.ASCII)
COLUMN: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
LONGEST_VERSION: Final = 200
LONGEST_NAME: Final = 100
MOST: Final = {
    "page_size": 10_000,
    "attempts_page": 100,
    "attempts_consolidation": 100,
    "shards": 100,
    "batch": 100_000,
    "chunk": 10_000,
    "confirm_lot": 500,
}
PARAMETERS: Final = {
    "plan": ("window",),
    "count": ("range", "window"),
    "fetch": ("range", "window", "cursor"),
    "identify": ("item",),
    "map": ("item",),
    "store": ("tx", "rows"),
    "started": ("tx", "run_id"),
    "mapping": ("tx", "run_id"),
    "published": ("tx", "run_id"),
    "still_there": ("ids",),
    "now": (),
}
PLAIN: Final = ("identify", "map", "store", "started", "mapping", "published")
NEEDED: Final = {
    "fetch": "read a page",
    "identify": "tell one item from another",
    "map": "make a target row of an item",
}
_SETTINGS: Final = [name for name in vars(Feed) if not name.startswith("_") and name not in PARAMETERS]


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """The settings of a feed, in the types that the engine uses."""

    feed: Feed
    name: str
    page_size: int
    schedule: str | None
    tz: str
    paging: Paging
    partitioner: Partitioner | None  # None: the feed has a plan() of its own
    counts: bool  # whether the feed has a count()
    lookback: timedelta
    settle: timedelta
    ahead_at_most: timedelta
    queue: str
    price_dimension: str
    priority: int
    limits: tuple[Limit, ...]
    timeout: timedelta
    wait_at_most: timedelta
    stall_after: timedelta
    fresh_within: timedelta | None
    attempts_page: int
    attempts_consolidation: int
    shards: int
    batch: int
    chunk: int
    error_budget: float
    error_limit: int | None
    table: str
    key: tuple[str, ...]
    item_column: str | None  # None: target rows cannot be found by their items
    feed_column: str | None  # None: all rows of the target are of this feed
    stale: str | None
    stores: bool  # whether the feed has a store() of its own
    mapping_phase: str
    mapper_version: str
    volatile: tuple[str, ...]
    sweep: Sweep | None
    confirms: bool  # whether the source is asked before rows go
    confirm_lot: int
    export: str | None
    broker: Broker | None

    @property
    def cleared(self) -> dict[str, None]:
        """Columns that every good row clears: it is neither stale nor gone."""
        swept = None if self.sweep is None else self.sweep.column
        return {name: None for name in (self.stale, swept) if name is not None}


def declare(feed: object) -> Declaration:
    """Read a feed, or refuse it with a sentence that says what to change."""
    if not isinstance(feed, Feed):
        cure = f"{feed.__name__}()" if isinstance(feed, type) and issubclass(feed, Feed) else None
        hint = f"register an instance: {cure}" if cure else "subclass stepfast.Feed"
        raise ConfigurationError(f"{feed!r:.80} is no feed; {hint}")
    named = f"feed {feed.name!r}" if feed.name else f"feed {type(feed).__name__}"
    try:
        return _declared(feed)
    except ConfigurationError as error:
        text = str(error)
        raise ConfigurationError(text if text.startswith("feed ") else f"{named}: {text}") from error


def writes(feed: Feed, method: str) -> bool:
    """Whether the feed has written this method itself."""
    return getattr(type(feed), method) is not getattr(Feed, method)


def _declared(feed: Feed) -> Declaration:
    _check_spelling(feed)
    name = checked_name("feed", feed.name)
    if name == LATEST:
        raise ConfigurationError(f"{LATEST} is how commands name the newest run of all; give it another name")
    if len(name) > LONGEST_NAME:
        raise ConfigurationError(f"a name of {len(name)} characters; at most {LONGEST_NAME} fit")
    _check_methods(feed)
    numbers = {it: checked_number(it, getattr(feed, it), most) for it, most in MOST.items()}
    if numbers["chunk"] > numbers["batch"]:
        raise ConfigurationError(
            f"chunk={feed.chunk} is larger than batch={feed.batch}; a batch is written in chunks"
        )
    table = checked_identifier("table", name if feed.table is None else feed.table, TABLE)
    return Declaration(
        feed=feed,
        name=name,
        schedule=checked_text("schedule", feed.schedule),
        tz=checked_text("tz", feed.tz) or "UTC",
        paging=_paging(feed, numbers["page_size"]),
        partitioner=_partitioner(feed),
        counts=writes(feed, "count"),
        lookback=duration(feed.lookback, "lookback"),
        settle=duration(feed.settle, "settle"),
        ahead_at_most=checked_span("ahead_at_most", feed.ahead_at_most),
        queue=checked_name("queue", feed.queue),
        price_dimension=checked_name("price_dimension", feed.price_dimension),
        priority=checked_priority(feed.priority),
        limits=_limits(name, feed.limits),
        timeout=checked_span("timeout", feed.timeout),
        wait_at_most=checked_span("wait_at_most", feed.wait_at_most),
        stall_after=checked_span("stall_after", feed.stall_after),
        fresh_within=None if feed.fresh_within is None else checked_span("fresh_within", feed.fresh_within),
        error_budget=checked_share("error_budget", feed.error_budget),
        error_limit=None if feed.error_limit is None else checked_count("error_limit", feed.error_limit),
        table=table,
        key=(key := checked_columns("key", feed.key)),
        item_column=_item_column(feed, key),
        feed_column=None
        if feed.feed_column is None
        else checked_identifier("feed_column", feed.feed_column, COLUMN),
        stale=None if feed.stale is None else checked_identifier("stale", feed.stale, COLUMN),
        stores=writes(feed, "store"),
        mapping_phase=checked_version("mapping_phase", feed.mapping_phase),
        mapper_version=checked_version("mapper_version", feed.mapper_version),
        volatile=checked_fields("volatile", feed.volatile),
        sweep=_sweep(feed.sweep),
        confirms=_confirms(feed),
        export=_export(feed.export),
        broker=_broker(feed.transport),
        **numbers,
    )


def _check_spelling(feed: Feed) -> None:
    """Refuse an attribute that is nearly the name of a setting: it was meant to be it."""
    own = {name for it in type(feed).__mro__ if it not in Feed.__mro__ for name in vars(it)} | set(vars(feed))
    for name in sorted(it for it in own if not it.startswith("_") and not hasattr(Feed, it)):
        near = get_close_matches(name, [*_SETTINGS, *PARAMETERS], n=1, cutoff=0.85)
        if near:
            raise ConfigurationError(f"{name} is no setting of a feed; did you mean {near[0]}?")


def _check_methods(feed: Feed) -> None:
    missing = [f"{it}() to {why}" for it, why in NEEDED.items() if not writes(feed, it)]
    if missing:
        raise ConfigurationError(f"it has no {', no '.join(missing)}")
    for method, parameters in PARAMETERS.items():
        own = getattr(feed, method)
        try:
            inspect.signature(own).bind(*parameters)
        except TypeError:
            wanted = ", ".join(("self", *parameters))
            raise ConfigurationError(f"write {method}({wanted}), not {method}{_signature(own)}") from None
        if method in PLAIN and is_async(own):
            raise ConfigurationError(
                f"{method}() is called by the engine in the middle of its work and must be a plain function: def {method}"
            )


def _signature(method: Any) -> str:
    return "(" + ", ".join(("self", *inspect.signature(method).parameters)) + ")"


def _paging(feed: Feed, page_size: int) -> Paging:
    paging = feed.paging
    if isinstance(paging, type) and issubclass(paging, Offset | Token | Keyset):
        raise ConfigurationError(f"paging={paging.__name__}: write {paging.__name__}()")
    if not isinstance(paging, Offset | Token | Keyset):
        raise ConfigurationError(f"paging={paging!r:.80}: use Offset(), Token() or Keyset()")
    if isinstance(paging, Offset):
        paging.check_page_size(page_size)
    if not writes(feed, "count") and (isinstance(paging, Offset) or not paging.trusted):
        raise ConfigurationError(
            f"{paging} needs count(range, window): without it nobody can tell the end from a hole"
        )
    return paging


def _partitioner(feed: Feed) -> Partitioner | None:
    given = feed.partitioner
    if writes(feed, "plan") == (given is not None):
        what = "both plan() and a partitioner" if given is not None else "neither plan() nor a partitioner"
        raise ConfigurationError(
            f"it has {what}; give one of them: plan(window) lists the ranges, or partitioner = Fixed([…])"
        )
    if given is not None and (isinstance(given, type) or not callable(getattr(given, "start", None))):
        raise ConfigurationError(
            f"partitioner={given!r:.80}: use an instance, such as Fixed([…]) or Heatmap(…)"
        )
    return given


def _limits(name: str, given: Sequence[Limit]) -> tuple[Limit, ...]:
    """The limits of a feed, shared by all its jobs that ask the source."""
    found = checked_limits(f"feed {name}", given, ())
    return tuple(replace(limit, name=f"feed:{name}") if limit.name is None else limit for limit in found)


def _item_column(feed: Feed, key: tuple[str, ...]) -> str | None:
    if feed.item_column is not None:
        return checked_identifier("item_column", feed.item_column, COLUMN)
    if len(key) == 1:
        return key[0]
    if feed.stale is not None or feed.sweep is not None:
        what = "sweep" if feed.stale is None else f"stale={feed.stale!r}"
        raise ConfigurationError(
            f"{what} needs item_column: which column of {', '.join(key)} is what identify() answers?"
        )
    return None


def _sweep(given: object) -> Sweep | None:
    if given is not None and not isinstance(given, Sweep):
        raise ConfigurationError(f"sweep={given!r:.80}: use Sweep(), or None to leave rows that are gone")
    return given


def _confirms(feed: Feed) -> bool:
    wanted = checked_switch("confirm_gone", feed.confirm_gone)
    return wanted and feed.sweep is not None and writes(feed, "still_there")


def _broker(given: str | Broker | None) -> Broker | None:
    if given is None:
        return None
    from stepfast.runs.broker import checked_broker

    return checked_broker(given)


def _export(given: str | None) -> str | None:
    if given is not None and (problem := problem_of_export(given)) is not None:
        raise ConfigurationError(f"export={without_secrets(str(given))!r:.200}: {problem}")
    return given


# Checks of single settings: another value is refused with what would be right.


def checked_number(name: str, value: object, most: int) -> int:
    if not is_whole(value) or not 1 <= value <= most:
        raise ConfigurationError(f"{name}={value!r}: a whole number from 1 to {most:,}")
    return value


def checked_count(name: str, value: object) -> int:
    if not is_whole(value) or value < 0:
        raise ConfigurationError(f"{name}={value!r}: a number of rows, or None for any")
    return value


def checked_switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name}={value!r:.80}: True or False")
    return value


def checked_span(name: str, value: Duration) -> timedelta:
    found = duration(value, name)
    if not found:
        raise ConfigurationError(f"{name}={value!r}: more than no time at all; '30m' is half an hour")
    return found


def checked_share(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigurationError(f"{name}={value!r}: a share of the rows, from 0 to 1; 0.05 is one in twenty")
    return float(value)


def checked_text(name: str, value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise ConfigurationError(f"{name}={value!r}: a text, or leave it out")
    return value


def checked_version(name: str, value: object) -> str:
    text = checked_text(name, str(value)) or ""
    if len(text) > LONGEST_VERSION:
        raise ConfigurationError(f"{name} has {len(text):,} characters; at most {LONGEST_VERSION} fit")
    return text


def checked_fields(name: str, value: object) -> tuple[str, ...]:
    """Names of fields; one text is one field."""
    fields = (value,) if isinstance(value, str) else value
    if not isinstance(fields, Collection) or not all(isinstance(field, str) and field for field in fields):
        raise ConfigurationError(f"{name}={value!r:.80}: names of fields, such as ['seen_at']")
    return tuple(fields)


def checked_columns(name: str, value: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(value, Collection):
        raise ConfigurationError(f"{name}={value!r:.80}: a column, or a list of them")
    columns = (value,) if isinstance(value, str) else tuple(value)
    if not columns or len(set(columns)) < len(columns):
        raise ConfigurationError(f"{name}={value!r}: one column or more, each once")
    return tuple(checked_identifier(name, column, COLUMN) for column in columns)


def checked_identifier(what: str, value: object, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ConfigurationError(
            f"{what}={value!r}: letters, digits and _, as the database has it"
            + ("; set table, if the feed's name is not the table's" if what == "table" else "")
        )
    return value
