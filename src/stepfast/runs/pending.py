"""Raw rows that wait for consolidation: divided into ranges, read in batches, and marked as they were read.

A row is marked only if it still has the content that was read, so that what arrives between reading and marking is
consolidated as well. Whoever marks a row holds it until the commit: of two that read the same row, the later one finds
it marked, and leaves the target alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepfast.database import lists
from stepfast.database.statement import sql

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from stepfast.database.connection import Transaction

# `pending = 1` is a literal everywhere: bound as a parameter it would hide the partial index.
ANY = sql("SELECT 1 FROM stepfast_raw WHERE feed = :feed AND pending = 1 LIMIT 1")
COUNT = sql("SELECT count(*) FROM stepfast_raw WHERE feed = :feed AND pending = 1")
LAST = sql("SELECT max(item_id) FROM stepfast_raw WHERE feed = :feed AND pending = 1")
FIRST_BORDER = sql("""
    SELECT item_id FROM stepfast_raw WHERE feed = :feed AND pending = 1 ORDER BY item_id LIMIT 1 OFFSET :rows
""")
BORDER = sql("""
    SELECT item_id FROM stepfast_raw WHERE feed = :feed AND pending = 1 AND item_id > :after
     ORDER BY item_id LIMIT 1 OFFSET :rows
""")

_READ = """
    SELECT item_id, content_hash, payload FROM stepfast_raw
     WHERE feed = :feed AND pending = 1 AND {range}
     ORDER BY item_id LIMIT :limit
"""
READ_FIRST = sql(_READ.format(range="item_id <= :until"))
READ_NEXT = sql(_READ.format(range="item_id > :after AND item_id <= :until"))

# SQLite hands the interpreter's lock around with every row it returns, and the other shards are busy in Python: columns
# that are joined make one row.
_JOINED = f"""
    SELECT count(*), group_concat(item_id, :border), group_concat(content_hash, :border), group_concat(payload, :border)
      FROM ({_READ}) batch
"""
READ_FIRST_JOINED = sql(_JOINED.format(range="item_id <= :until"))
READ_NEXT_JOINED = sql(_JOINED.format(range="item_id > :after AND item_id <= :until"))

# What was put aside has been applied in no version: should the source go back to the last one that was, it is applied
# again, and says so. No two items have one hash, so the hashes tell the rows; the range tells the index.
_MARK = """
    UPDATE stepfast_raw {index} SET applied_hash = {hash}, applied_at = {{now}}, pending = {pending}
     WHERE feed = :feed AND item_id >= :first AND item_id <= :last AND {read} AND pending = 1
"""
# PostgreSQL would search a list anew for every row, and may join with it in a way that walks over all rows of the feed
# (1,091 ms for a batch against 14, with statistics of yesterday). Asked like this, it hashes the list once.
_OF = "content_hash IN (SELECT unnest(CAST(:{} AS TEXT[])))"
READ_HASHES = {
    "sqlite": "content_hash {any_of:hashes}",
    "postgresql": f"({_OF.format('hashes')}) IS TRUE",
    "mariadb": "content_hash {any_of:hashes}",
}
_BAD_HASHES = {
    "sqlite": "content_hash {any_of:bad}",
    "postgresql": _OF.format("bad"),
    "mariadb": "content_hash {any_of:bad}",
}
_INDEX = {"sqlite": "", "postgresql": "", "mariadb": "FORCE INDEX (PRIMARY)"}


def _marking(name: str, *, some_aside: bool) -> str:
    bad = _BAD_HASHES[name]
    return _MARK.format(
        index=_INDEX[name],
        read=READ_HASHES[name],
        hash=f"CASE WHEN {bad} THEN NULL ELSE content_hash END" if some_aside else "content_hash",
        pending=f"CASE WHEN {bad} THEN 2 ELSE 0 END" if some_aside else "0",
    )


MARK = sql(
    _marking("sqlite", some_aside=False),
    postgresql=_marking("postgresql", some_aside=False),
    mariadb=_marking("mariadb", some_aside=False),
)
MARK_SOME_ASIDE = sql(
    _marking("sqlite", some_aside=True),
    postgresql=_marking("postgresql", some_aside=True),
    mariadb=_marking("mariadb", some_aside=True),
)
# SQLite has one writer: what is so now stays so until the commit. Comparing all hashes of a range and marking the range
# takes half as long as looking each of them up.
HASHES = sql("""
    SELECT group_concat(content_hash, '')
      FROM (SELECT content_hash FROM stepfast_raw
             WHERE feed = :feed AND item_id >= :first AND item_id <= :last AND pending = 1 ORDER BY item_id) range
""")
MARK_RANGE = sql("""
    UPDATE stepfast_raw SET applied_hash = content_hash, applied_at = {now}, pending = 0
     WHERE feed = :feed AND item_id >= :first AND item_id <= :last AND pending = 1
""")
LOCK = sql("""
    SELECT item_id, content_hash FROM stepfast_raw
     WHERE feed = :feed AND item_id {any_of:ids} AND pending = 1
     ORDER BY item_id
    {for_update}
""")
# The target refused them after they were marked; nobody else can have touched them since.
PUT_ASIDE = sql("""
    UPDATE stepfast_raw SET pending = 2, applied_hash = NULL WHERE feed = :feed AND item_id {any_of:ids} AND pending = 0
""")


class Waiting(NamedTuple):
    """A raw row as it was read."""

    item_id: str
    content_hash: str
    payload: str


class Lot(NamedTuple):
    """Raw rows as they were read, column by column: a tuple for each would cost as much as mapping it."""

    ids: Sequence[str]
    hashes: Sequence[str]
    payloads: Sequence[str]

    @classmethod
    def of(cls, rows: Sequence[Sequence[str]]) -> Lot:
        return cls(*zip(*rows, strict=True)) if rows else cls((), (), ())

    def at(self, place: int) -> Waiting:
        return Waiting(self.ids[place], self.hashes[place], self.payloads[place])

    def only(self, places: Sequence[int]) -> Lot:
        """Those at these places, in this order."""
        return Lot(*([column[place] for place in places] for column in self))


class Span(NamedTuple):
    """Ids behind `after` (None: from the first one) up to and with `until`."""

    after: str | None
    until: str


def any_pending(tx: Transaction, feed: str) -> bool:
    return bool(tx.rows(ANY, feed=feed))


def divide(tx: Transaction, feed: str, most: int, batch: int) -> list[Span]:
    """What waits, as up to `most` ranges of about equal size; none of them is smaller than a batch."""
    waiting, last = int(tx.first(COUNT, feed=feed)), tx.first(LAST, feed=feed)
    if not waiting or last is None:
        return []
    parts = min(most, -(-waiting // batch))
    rows = -(-waiting // parts)
    spans: list[Span] = []
    after: str | None = None
    while len(spans) < parts - 1:
        border = (
            tx.first(FIRST_BORDER, feed=feed, rows=rows - 1)
            if after is None
            else tx.first(BORDER, feed=feed, after=after, rows=rows - 1)
        )
        if border is None or border >= last:
            break
        spans.append(Span(after, border))
        after = border
    return [*spans, Span(after, last)]


def read_pending(tx: Transaction, feed: str, span: Span, limit: int) -> Lot:
    """The next rows of a range, in the order of their ids."""
    if tx.dialect.name == "sqlite" and (joined := _read_joined(tx, feed, span, limit)) is not None:
        return joined
    if span.after is None:
        return Lot.of(tx.rows(READ_FIRST, feed=feed, until=span.until, limit=limit))
    return Lot.of(tx.rows(READ_NEXT, feed=feed, after=span.after, until=span.until, limit=limit))


def _read_joined(tx: Transaction, feed: str, span: Span, limit: int) -> Lot | None:
    """None if the border is in one of the values: JSON has it nowhere, an id may have anything."""
    where = {"feed": feed, "until": span.until, "limit": limit, "border": lists.BORDER}
    ((rows, *columns),) = (
        tx.rows(READ_FIRST_JOINED, **where)
        if span.after is None
        else tx.rows(READ_NEXT_JOINED, **where, after=span.after)
    )
    if not rows:
        return Lot.of(())
    lot = Lot(*(column.split(lists.BORDER) for column in columns))
    return lot if all(len(column) == rows for column in lot) else None


def mark(tx: Transaction, feed: str, read: Mapping[str, str], bad: Collection[str]) -> set[str] | None:
    """Mark rows if they still have the content that was read, those in `bad` as put aside.

    `read` has their hashes, in the order of their ids. Returns those that were still so, None for all.
    """
    try:
        with tx.savepoint():
            _mark_all(tx, feed, read, bad)
    except _ChangedError:
        hashes = {row[0]: row[1] for row in tx.rows(LOCK, feed=feed, ids=list(read))}
        current = {item_id: it for item_id, it in read.items() if hashes.get(item_id) == it}
        if current:
            _mark_all(tx, feed, current, bad)
        return set(current)
    return None


def set_aside(tx: Transaction, feed: str, ids: list[str]) -> None:
    """Rows that this transaction has marked, and the target does not take."""
    tx.run(PUT_ASIDE, feed=feed, ids=ids)


def _mark_all(tx: Transaction, feed: str, read: Mapping[str, str], bad: Collection[str]) -> None:
    ids, hashes = list(read), list(read.values())
    where = {"feed": feed, "first": ids[0], "last": ids[-1]}
    if aside := [read[item_id] for item_id in bad if item_id in read]:
        marked = tx.run(MARK_SOME_ASIDE, **where, hashes=hashes, bad=aside)
    elif tx.dialect.name == "sqlite" and tx.first(HASHES, **where) == "".join(hashes):
        marked = tx.run(MARK_RANGE, **where)
    else:
        marked = tx.run(MARK, **where, hashes=hashes)
    if marked != len(read):
        raise _ChangedError


class _ChangedError(Exception):
    """Some of the rows have changed since they were read."""
