"""Raw rows: the newest observation of every item of a feed, as the source gave it.

    observe ──► pending ──► read in batches, mapped and stored (target.py) ──► marked as applied, or put aside

An observation carries the time at which its request began, on the source's clock. An older one never replaces a newer
one, whichever is written last. A row that is equal to what was consolidated is not consolidated again.

A row is marked only if it still has the content that was read, so that what arrives between reading and marking is
consolidated as well. A transaction that marks a row holds it until its commit: of two that read the same row, the later
one finds it marked, and leaves the target alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from stepfast.database.connection import BORDER, as_document, as_parameter
from stepfast.database.statement import sql
from stepfast.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.runs.run import Run


# Observations are written.

CHUNK: Final = 500  # rows of one statement
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")

_INSERT = "INSERT INTO stepfast_raw (feed, item_id, observed_at, run_id, content_hash, payload)"
_NEWER = """
    ON CONFLICT (feed, item_id) DO UPDATE
       SET observed_at = excluded.observed_at, run_id = excluded.run_id, payload = excluded.payload,
           content_hash = excluded.content_hash, strikes = 0, gone_at = NULL,
           pending = CASE WHEN stepfast_raw.applied_hash = excluded.content_hash AND stepfast_raw.gone_at IS NULL
                          THEN 0 ELSE 1 END
     WHERE excluded.observed_at > stepfast_raw.observed_at
"""
# MariaDB assigns from left to right: what decides comes last.
_NEWER_ON_MARIADB = """
    ON DUPLICATE KEY UPDATE
        run_id = IF(VALUES(observed_at) > observed_at, VALUES(run_id), run_id),
        payload = IF(VALUES(observed_at) > observed_at, VALUES(payload), payload),
        content_hash = IF(VALUES(observed_at) > observed_at, VALUES(content_hash), content_hash),
        strikes = IF(VALUES(observed_at) > observed_at, 0, strikes),
        pending = IF(VALUES(observed_at) > observed_at,
                     IF(applied_hash <=> VALUES(content_hash) AND gone_at IS NULL, 0, 1), pending),
        gone_at = IF(VALUES(observed_at) > observed_at, NULL, gone_at),
        observed_at = GREATEST(VALUES(observed_at), observed_at)
"""
OBSERVE_ROWS = sql(
    f"""
    {_INSERT}
    SELECT :feed, json_extract(value, '$[0]'), :observed_at, :run_id, json_extract(value, '$[1]'), json_extract(value, '$[2]')
      FROM json_each(:rows) WHERE true
    {_NEWER}
    """,
    postgresql=f"""
    {_INSERT}
    SELECT CAST(:feed AS TEXT), item.id, CAST(:observed_at AS BIGINT), CAST(:run_id AS TEXT), item.hash, item.payload
      FROM unnest(CAST(:ids AS TEXT[]), CAST(:hashes AS TEXT[]), CAST(:payloads AS TEXT[])) AS item (id, hash, payload)
    {_NEWER}
    """,
    mariadb=f"""
    {_INSERT}
    SELECT :feed, item.id, :observed_at, :run_id, item.hash, item.body
      FROM JSON_TABLE(:rows, '$[*]' COLUMNS (id VARCHAR(200) PATH '$[0]', hash VARCHAR(64) PATH '$[1]', body LONGTEXT PATH '$[2]')) AS item
    {_NEWER_ON_MARIADB}
    """,
)

FIND_SEEN = sql("""
    SELECT item_id, pass FROM stepfast_seen WHERE partition_id = :partition_id AND item_id {any_of:ids}
""")

# In which pass of its partition an item was read last.
REMEMBER_SEEN = sql(
    """
    INSERT INTO stepfast_seen (partition_id, item_id, pass)
    SELECT :partition_id, value, :pass FROM json_each(:rows) WHERE true
    ON CONFLICT (partition_id, item_id) DO UPDATE SET pass = excluded.pass
    """,
    postgresql="""
    INSERT INTO stepfast_seen (partition_id, item_id, pass)
    SELECT CAST(:partition_id AS TEXT), item_id, CAST(:pass AS INTEGER) FROM unnest(CAST(:ids AS TEXT[])) AS seen (item_id)
    ON CONFLICT (partition_id, item_id) DO UPDATE SET pass = excluded.pass
    """,
    mariadb="""
    INSERT INTO stepfast_seen (partition_id, item_id, pass)
    SELECT :partition_id, seen.id, :pass FROM JSON_TABLE(:rows, '$[*]' COLUMNS (id VARCHAR(200) PATH '$')) AS seen
    ON DUPLICATE KEY UPDATE pass = VALUES(pass)
    """,
)

# For rows that are expected to be new: one that was known makes the count of rows wrong, and everything is rolled back.
# (MariaDB counts a row twice that it changes, and once if it leaves it as it is.)
REMEMBER_NEW = sql(
    """
    INSERT INTO stepfast_seen (partition_id, item_id, pass)
    SELECT :partition_id, value, :pass FROM json_each(:rows) WHERE true
    ON CONFLICT (partition_id, item_id) DO NOTHING
    """,
    postgresql="""
    INSERT INTO stepfast_seen (partition_id, item_id, pass)
    SELECT CAST(:partition_id AS TEXT), item_id, CAST(:pass AS INTEGER) FROM unnest(CAST(:ids AS TEXT[])) AS seen (item_id)
    ON CONFLICT (partition_id, item_id) DO NOTHING
    """,
    mariadb="""
    INSERT INTO stepfast_seen (partition_id, item_id, pass)
    SELECT :partition_id, seen.id, :pass FROM JSON_TABLE(:rows, '$[*]' COLUMNS (id VARCHAR(200) PATH '$')) AS seen
    ON DUPLICATE KEY UPDATE pass = pass + 1
    """,
)


class Observation(NamedTuple):
    """One item as a page showed it."""

    item_id: str
    content_hash: str
    payload: str


def observed(item_id: str, item: Any, volatile: Collection[str] = ()) -> Observation:
    """An item with the hash of its content, without its `volatile` top-level fields.

    The hash covers its identity, too: no two items ever have one hash, so that a row can be told by it alone.
    """
    hashed = payload = _ENCODER.encode(item)
    if volatile and isinstance(item, dict):
        hashed = _ENCODER.encode({name: value for name, value in item.items() if name not in volatile})
    digest = hashlib.blake2b(f"{item_id}\0".encode() + hashed, digest_size=20).hexdigest()
    # What Observation(…) does in the end, without its Python: thousands are made in a second.
    return tuple.__new__(Observation, (item_id, digest, payload.decode()))


def observe(
    tx: Transaction, feed: str, run_id: str, observed_at: int, observations: Sequence[Observation]
) -> None:
    """Write observations in the order of their ids, one statement per chunk. Each id at most once."""
    tx.run_many(OBSERVE_ROWS, observation_parameters(tx, feed, run_id, observed_at, observations))


def observation_parameters(
    tx: Transaction, feed: str, run_id: str, observed_at: int, observations: Sequence[Observation]
) -> list[dict[str, Any]]:
    """The parameters of OBSERVE_ROWS, once per chunk."""
    shared = {"feed": feed, "run_id": run_id, "observed_at": observed_at}
    rows = sorted(observations)
    chunks = [rows[at : at + CHUNK] for at in range(0, len(rows), CHUNK)]
    if not tx.takes_columns:
        return [{**shared, "rows": as_document(chunk)} for chunk in chunks]
    columns = [
        [as_parameter(list(column), tx.dialect) for column in zip(*chunk, strict=True)] for chunk in chunks
    ]
    return [
        {**shared, "ids": ids, "hashes": hashes, "payloads": payloads} for ids, hashes, payloads in columns
    ]


def already_seen(tx: Transaction, partition_id: str, ids: Sequence[str]) -> dict[str, int]:
    """Which of these items the partition has read before, and in which pass last."""
    found: dict[str, int] = {}
    for start in range(0, len(ids), CHUNK):
        chunk = list(ids[start : start + CHUNK])
        found.update((row[0], row[1]) for row in tx.rows(FIND_SEEN, partition_id=partition_id, ids=chunk))
    return found


def remember_seen(tx: Transaction, partition_id: str, ids: Collection[str], pass_: int) -> None:
    """Remember that the partition has read these items in this pass."""
    if ids:
        tx.run(REMEMBER_SEEN, **seen_parameters(tx, partition_id, ids, pass_))


def seen_parameters(tx: Transaction, partition_id: str, ids: Collection[str], pass_: int) -> dict[str, Any]:
    """The parameters of REMEMBER_SEEN and REMEMBER_NEW."""
    listed = sorted(ids)
    rows = {"ids": as_parameter(listed, tx.dialect)} if tx.takes_columns else {"rows": as_document(listed)}
    return {"partition_id": partition_id, "pass": pass_, **rows}


# Rows that wait for consolidation are divided into ranges, and read in batches.

# `pending = 1` is a literal everywhere: bound as a parameter it would hide the partial index.
ANY_PENDING = sql("SELECT 1 FROM stepfast_raw WHERE feed = :feed AND pending = 1 LIMIT 1")
COUNT_PENDING = sql("SELECT count(*) FROM stepfast_raw WHERE feed = :feed AND pending = 1")
LAST_PENDING = sql("SELECT max(item_id) FROM stepfast_raw WHERE feed = :feed AND pending = 1")
END_OF_FIRST_SPAN = sql("""
    SELECT item_id FROM stepfast_raw WHERE feed = :feed AND pending = 1 ORDER BY item_id LIMIT 1 OFFSET :rows
""")
END_OF_NEXT_SPAN = sql("""
    SELECT item_id FROM stepfast_raw WHERE feed = :feed AND pending = 1 AND item_id > :after
     ORDER BY item_id LIMIT 1 OFFSET :rows
""")

_READ = """
    SELECT item_id, content_hash, payload FROM stepfast_raw
     WHERE feed = :feed AND pending = 1 AND {range}
     ORDER BY item_id LIMIT :limit
"""
READ_FIRST_PENDING = sql(_READ.format(range="item_id <= :until"))
READ_NEXT_PENDING = sql(_READ.format(range="item_id > :after AND item_id <= :until"))

# SQLite hands the interpreter's lock around with every row it returns, and the other shards are busy in Python: columns
# that are joined make one row.
_JOINED = f"""
    SELECT count(*), group_concat(item_id, :border), group_concat(content_hash, :border), group_concat(payload, :border)
      FROM ({_READ}) batch
"""
READ_FIRST_PENDING_JOINED = sql(_JOINED.format(range="item_id <= :until"))
READ_NEXT_PENDING_JOINED = sql(_JOINED.format(range="item_id > :after AND item_id <= :until"))


class PendingRow(NamedTuple):
    """A raw row that waits, as it was read."""

    item_id: str
    content_hash: str
    payload: str


class PendingRows(NamedTuple):
    """Raw rows that wait, column by column: a tuple for each would cost as much as mapping it."""

    ids: Sequence[str]
    hashes: Sequence[str]
    payloads: Sequence[str]

    @classmethod
    def of(cls, rows: Sequence[Sequence[str]]) -> PendingRows:
        return cls(*zip(*rows, strict=True)) if rows else cls((), (), ())

    def at(self, index: int) -> PendingRow:
        return PendingRow(self.ids[index], self.hashes[index], self.payloads[index])

    def only(self, indexes: Sequence[int]) -> PendingRows:
        """The rows at these positions, in this order."""
        return PendingRows(*([column[index] for index in indexes] for column in self))


class IdSpan(NamedTuple):
    """Item ids behind `after` (None: from the first one) up to and with `until`."""

    after: str | None
    until: str


def any_pending(tx: Transaction, feed: str) -> bool:
    return bool(tx.rows(ANY_PENDING, feed=feed))


def divide_pending(tx: Transaction, feed: str, most: int, batch: int) -> list[IdSpan]:
    """The rows that wait, as up to `most` ranges of about equal size; none of them is smaller than a batch."""
    waiting, last = int(tx.first(COUNT_PENDING, feed=feed)), tx.first(LAST_PENDING, feed=feed)
    if not waiting or last is None:
        return []
    parts = min(most, -(-waiting // batch))
    rows = -(-waiting // parts)
    spans: list[IdSpan] = []
    after: str | None = None
    while len(spans) < parts - 1:
        border = (
            tx.first(END_OF_FIRST_SPAN, feed=feed, rows=rows - 1)
            if after is None
            else tx.first(END_OF_NEXT_SPAN, feed=feed, after=after, rows=rows - 1)
        )
        if border is None or border >= last:
            break
        spans.append(IdSpan(after, border))
        after = border
    return [*spans, IdSpan(after, last)]


def read_pending(tx: Transaction, feed: str, span: IdSpan, limit: int) -> PendingRows:
    """The next rows of a range, in the order of their ids."""
    if tx.dialect.name == "sqlite" and (joined := _read_joined(tx, feed, span, limit)) is not None:
        return joined
    if span.after is None:
        return PendingRows.of(tx.rows(READ_FIRST_PENDING, feed=feed, until=span.until, limit=limit))
    return PendingRows.of(
        tx.rows(READ_NEXT_PENDING, feed=feed, after=span.after, until=span.until, limit=limit)
    )


def _read_joined(tx: Transaction, feed: str, span: IdSpan, limit: int) -> PendingRows | None:
    """The rows as one row of joined columns. None if the border stands in a value: an id may have anything, JSON not."""
    where = {"feed": feed, "until": span.until, "limit": limit, "border": BORDER}
    ((rows, *columns),) = (
        tx.rows(READ_FIRST_PENDING_JOINED, **where)
        if span.after is None
        else tx.rows(READ_NEXT_PENDING_JOINED, **where, after=span.after)
    )
    if not rows:
        return PendingRows.of(())
    lot = PendingRows(*(column.split(BORDER) for column in columns))
    return lot if all(len(column) == rows for column in lot) else None


# Rows are marked as they were read.

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


MARK_APPLIED = sql(
    _marking("sqlite", some_aside=False),
    postgresql=_marking("postgresql", some_aside=False),
    mariadb=_marking("mariadb", some_aside=False),
)
MARK_SOME_ROWS_ASIDE = sql(
    _marking("sqlite", some_aside=True),
    postgresql=_marking("postgresql", some_aside=True),
    mariadb=_marking("mariadb", some_aside=True),
)
# SQLite has one writer: what is so now stays so until the commit. Comparing all hashes of a range and marking the range
# takes half as long as looking each of them up.
PENDING_HASHES = sql("""
    SELECT group_concat(content_hash, '')
      FROM (SELECT content_hash FROM stepfast_raw
             WHERE feed = :feed AND item_id >= :first AND item_id <= :last AND pending = 1 ORDER BY item_id) range
""")
MARK_RANGE_APPLIED = sql("""
    UPDATE stepfast_raw SET applied_hash = content_hash, applied_at = {now}, pending = 0
     WHERE feed = :feed AND item_id >= :first AND item_id <= :last AND pending = 1
""")
LOCK_PENDING = sql("""
    SELECT item_id, content_hash FROM stepfast_raw
     WHERE feed = :feed AND item_id {any_of:ids} AND pending = 1
     ORDER BY item_id
    {for_update}
""")
# The target refused them after they were marked; this transaction has held them since.
PUT_APPLIED_ASIDE = sql("""
    UPDATE stepfast_raw SET pending = 2, applied_hash = NULL WHERE feed = :feed AND item_id {any_of:ids} AND pending = 0
""")


def mark_applied(
    tx: Transaction, feed: str, read: Mapping[str, str], bad: Collection[str]
) -> set[str] | None:
    """Mark rows if they still have the content that was read, those in `bad` as put aside.

    `read` has their hashes, in the order of their ids. Returns the ids of the rows that were still so, None for all.
    """
    try:
        with tx.savepoint():
            _mark_all(tx, feed, read, bad)
    except _ChangedError:
        hashes = {row[0]: row[1] for row in tx.rows(LOCK_PENDING, feed=feed, ids=list(read))}
        current = {
            item_id: content_hash
            for item_id, content_hash in read.items()
            if hashes.get(item_id) == content_hash
        }
        if current:
            _mark_all(tx, feed, current, bad)
        return set(current)
    return None


def put_applied_aside(tx: Transaction, feed: str, ids: list[str]) -> None:
    """Put rows aside that this transaction has marked as applied, and the target does not take."""
    tx.run(PUT_APPLIED_ASIDE, feed=feed, ids=ids)


def _mark_all(tx: Transaction, feed: str, read: Mapping[str, str], bad: Collection[str]) -> None:
    ids, hashes = list(read), list(read.values())
    where = {"feed": feed, "first": ids[0], "last": ids[-1]}
    if aside := [read[item_id] for item_id in bad if item_id in read]:
        marked = tx.run(MARK_SOME_ROWS_ASIDE, **where, hashes=hashes, bad=aside)
    elif tx.dialect.name == "sqlite" and tx.first(PENDING_HASHES, **where) == "".join(hashes):
        marked = tx.run(MARK_RANGE_APPLIED, **where)
    else:
        marked = tx.run(MARK_APPLIED, **where, hashes=hashes)
    if marked != len(read):
        raise _ChangedError


class _ChangedError(Exception):
    """Some of the rows have changed since they were read."""


# Rows that were applied wait again: all rows of a feed after its map() was mended, or those that a verify has seen.
#
# For a mended map() that is the beginning of a consolidation: steps that each take a range of ids, so that no other
# transaction waits long for the rows, and a crash costs one of the steps.

LOT: Final = 2_000  # rows of one step

END_OF_LOT = sql("""
    SELECT max(item_id) FROM (SELECT item_id FROM stepfast_raw WHERE feed = :feed AND item_id > :after
                               ORDER BY item_id LIMIT :limit) lot
""")
# They count as applied in no version: should the source show one of them again meanwhile, it waits all the same.
MAKE_PENDING_AGAIN = sql("""
    UPDATE stepfast_raw SET pending = 1, applied_hash = NULL
     WHERE feed = :feed AND item_id > :after AND item_id <= :until AND gone_at IS NULL AND pending IN (0, 2)
""")
COUNT_REMAPPED = sql("""
    UPDATE stepfast_run SET seen = seen + :rows, updated_at = {now}
     WHERE id = :id AND epoch = :epoch AND rounds = 0 AND state IN ('applying', 'stalled')
""")

# Only rows that this run has seen last; a row that has changed waits anyway.
MAKE_PENDING_TO_COMPARE = sql("""
    UPDATE stepfast_raw SET pending = 1, applied_hash = NULL
     WHERE feed = :feed AND item_id {any_of:ids} AND run_id = :run_id AND pending = 0
""")


def make_pending_to_compare(tx: Transaction, run: Run, ids: list[str]) -> None:
    """Rows that a verify has just seen wait for consolidation whether they have changed or not."""
    tx.run(MAKE_PENDING_TO_COMPARE, feed=run.feed, run_id=run.id, ids=ids)


def next_lot_to_remap(tx: Transaction, run: Run, after: str | None) -> MakePendingAgain | None:
    """The next rows that are made to wait again; None if there are no more."""
    until = tx.first(END_OF_LOT, feed=run.feed, after=after or "", limit=LOT)
    return None if until is None else MakePendingAgain(run, after or "", str(until))


@dataclass(frozen=True)
class MakePendingAgain:
    """Makes a range of rows wait for consolidation, except those that are gone at the source."""

    run: Run  # as the step saw it
    after: str
    until: str

    def apply(self, tx: Transaction, /) -> None:
        run = self.run
        rows = tx.run(MAKE_PENDING_AGAIN, feed=run.feed, after=self.after, until=self.until)
        if tx.run(COUNT_REMAPPED, id=run.id, epoch=run.epoch, rows=rows) != 1:
            raise TransientError(f"run {run.id} was moved on by somebody else; its rows do not wait", delay=0)
