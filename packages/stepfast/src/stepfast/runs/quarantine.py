"""Quarantine: rows that could not be identified, mapped or stored are put aside with their reason; the others go on.

An entry is open until its item is applied, in the same version by a replay or in a newer one by itself, or until an
operator discards it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from stepfast.database.connection import as_document
from stepfast.database.statement import sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction
    from stepfast.runs.run import Run


class QuarantineState(StrEnum):
    """The state of an entry; docs/reference/run-states.md draws its arrows."""

    OPEN = "open"  # waits for an operator, or for a newer version of its item
    REPLAYING = "replaying"  # an operator asked for it; a job will try it again
    REPLAYED = "replayed"  # tried again, and applied
    SUPERSEDED = "superseded"  # the item came again, and that version counts
    DISCARDED = "discarded"  # an operator does not want it


QUARANTINE_TRANSITIONS: dict[QuarantineState, dict[QuarantineState, str]] = {
    QuarantineState.OPEN: {
        QuarantineState.REPLAYING: "replay",
        QuarantineState.SUPERSEDED: "a newer version",
        QuarantineState.DISCARDED: "discard",
    },
    QuarantineState.REPLAYING: {
        QuarantineState.OPEN: "refused again",
        QuarantineState.REPLAYED: "applied",
        QuarantineState.SUPERSEDED: "a newer version",
        QuarantineState.DISCARDED: "discard",
    },
    QuarantineState.REPLAYED: {QuarantineState.OPEN: "refused in a newer version"},
    QuarantineState.SUPERSEDED: {QuarantineState.OPEN: "refused in a newer version"},
    QuarantineState.DISCARDED: {QuarantineState.OPEN: "refused in a newer version"},
}

# The same row refused again is one entry, with its newest reason and payload.
_INTO = """
    INSERT INTO stepfast_quarantine (feed, item_id, stage, code, message, content_hash, payload, mapper_version, run_id,
                                     first_seen_at, last_seen_at)
"""
_AGAIN = """
    ON CONFLICT (feed, item_id, stage) DO UPDATE
       SET code = excluded.code, message = excluded.message, run_id = excluded.run_id, payload = excluded.payload,
           mapper_version = excluded.mapper_version, content_hash = excluded.content_hash,
           last_seen_at = excluded.last_seen_at, hits = stepfast_quarantine.hits + 1, state = 'open', note = NULL
"""
PUT_INTO_QUARANTINE = sql(
    _INTO
    + """
    SELECT :feed, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
           json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
           json_extract(value, '$[6]'), json_extract(value, '$[7]'), {now}, {now}
      FROM json_each(:rows) WHERE true
    """
    + _AGAIN,
    postgresql=_INTO
    + """
    SELECT CAST(:feed AS TEXT), it ->> 0, it ->> 1, it ->> 2, it ->> 3, it ->> 4, it ->> 5, it ->> 6, it ->> 7, {now}, {now}
      FROM json_array_elements(CAST(:rows AS JSON)) AS refused (it)
    """
    + _AGAIN,
    mariadb=_INTO
    + """
    SELECT :feed, it.item_id, it.stage, it.code, it.message, it.content_hash, it.payload, it.mapper_version, it.run_id,
           {now}, {now}
      FROM JSON_TABLE(:rows, '$[*]' COLUMNS (
               item_id VARCHAR(200) PATH '$[0]', stage VARCHAR(20) PATH '$[1]', code VARCHAR(200) PATH '$[2]',
               message LONGTEXT PATH '$[3]', content_hash VARCHAR(64) PATH '$[4]', payload LONGTEXT PATH '$[5]',
               mapper_version VARCHAR(200) PATH '$[6]', run_id VARCHAR(128) PATH '$[7]')) AS it
    ON DUPLICATE KEY UPDATE code = VALUES(code), message = VALUES(message), run_id = VALUES(run_id),
        payload = VALUES(payload), mapper_version = VALUES(mapper_version), content_hash = VALUES(content_hash),
        last_seen_at = VALUES(last_seen_at), hits = hits + 1, state = 'open', note = NULL
    """,
)

# Entries between two items: one look along the unique index tells a batch whether any of its items has one.
FIND_OPEN_ENTRIES = sql("""
    SELECT item_id FROM stepfast_quarantine
     WHERE feed = :feed AND item_id >= :first AND item_id <= :last AND state IN ('open', 'replaying')
""")
SETTLE_ENTRIES = sql("""
    UPDATE stepfast_quarantine SET state = :target, last_seen_at = {now}
     WHERE feed = :feed AND item_id {any_of:ids} AND state IN ('open', 'replaying')
""")

COUNT_ENTRIES_OF_RUN = sql("""
    SELECT count(*) FROM stepfast_quarantine
     WHERE feed = :feed AND run_id = :run_id AND state IN ('open', 'replaying')
""")
SAMPLE_ENTRIES = sql("""
    SELECT code, min(message), count(*) FROM stepfast_quarantine
     WHERE feed = :feed AND run_id = :run_id AND state IN ('open', 'replaying')
     GROUP BY code ORDER BY count(*) DESC, code LIMIT :limit
""")


class RefusedRow(NamedTuple):
    """A row that cannot be used, and why."""

    item_id: str
    stage: str  # identify, map or store
    code: str
    message: str
    content_hash: str
    payload: str
    mapper_version: str | None = None
    run_id: str | None = None  # which run saw it; None: the one that puts it aside


class RefusalSample(NamedTuple):
    """How many rows were refused with one code, and one of their messages."""

    code: str
    message: str
    rows: int


def put_aside(tx: Transaction, feed: str, run_id: str, refused: Sequence[RefusedRow]) -> None:
    """Put rows into quarantine, in the order of their ids; `run_id` is for those that name no run."""
    if refused:
        rows = [row if row.run_id else row._replace(run_id=run_id) for row in sorted(refused, key=_order)]
        tx.run(PUT_INTO_QUARANTINE, feed=feed, rows=as_document(rows))


def _order(row: RefusedRow) -> tuple[str, str]:
    return row.item_id, row.stage


def items_with_open_entries(tx: Transaction, feed: str, first: str, last: str) -> set[str]:
    """Items between these two that have an open entry."""
    return {row[0] for row in tx.rows(FIND_OPEN_ENTRIES, feed=feed, first=first, last=last)}


def settle_entries(tx: Transaction, feed: str, ids: list[str], target: QuarantineState) -> None:
    """Settle the open entries of these items."""
    if ids:
        tx.run(SETTLE_ENTRIES, feed=feed, ids=ids, target=target.value)


def refused_rows(tx: Transaction, run: Run) -> int:
    """How many rows of this run are in quarantine; of those without identity, the same content is the same row."""
    return int(tx.first(COUNT_ENTRIES_OF_RUN, feed=run.feed, run_id=run.id))


def sample_refusals(tx: Transaction, run: Run, limit: int = 3) -> list[RefusalSample]:
    """The most frequent reasons for which rows of this run were refused."""
    return tx.all(SAMPLE_ENTRIES, RefusalSample, feed=run.feed, run_id=run.id, limit=limit)
