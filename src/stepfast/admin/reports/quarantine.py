"""Rows in quarantine: one by one, or grouped by what they were refused for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepfast.admin.rows import reader
from stepfast.database.statement import sql
from stepfast.errors import NotFoundError
from stepfast.runs.quarantine import EntryState

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.connection import Transaction


@dataclass(frozen=True)
class Entries:
    """Which entries are meant; what is None may be anything."""

    feed: str | None = None
    stage: str | None = None  # identify, map or store
    code: str | None = None
    run_id: str | None = None
    id: int | None = None

    def asked(self) -> dict[str, Any]:
        """As parameters of `MATCHES`."""
        given = {
            "feed": self.feed,
            "stage": self.stage,
            "code": self.code,
            "run_id": self.run_id,
            "id": self.id,
        }
        return given | {f"any_{name}": int(value is None) for name, value in given.items()}


@dataclass(frozen=True)
class EntryReport:
    """A row that was refused, in one line."""

    id: int
    feed: str
    item_id: str
    stage: str
    state: EntryState
    code: str
    message: str
    hits: int
    mapper_version: str | None
    run_id: str
    first_seen_at: datetime
    last_seen_at: datetime
    note: str | None


@dataclass(frozen=True)
class EntryDetail:
    """A row that was refused, with its payload."""

    entry: EntryReport
    content_hash: str
    payload: Any


@dataclass(frozen=True)
class EntryGroup:
    """Rows that were refused for one reason."""

    feed: str
    stage: str
    code: str
    rows: int
    first_seen_at: datetime
    last_seen_at: datetime
    example: str


MATCHES = """(:any_feed = 1 OR feed = :feed) AND (:any_stage = 1 OR stage = :stage) AND (:any_code = 1 OR code = :code)
       AND (:any_run_id = 1 OR run_id = :run_id) AND (:any_id = 1 OR id = :id)"""

_COLUMNS = """id, feed, item_id, stage, state, code, message, hits, mapper_version, run_id, first_seen_at, last_seen_at,
           note"""
LIST = sql(f"""
    SELECT {_COLUMNS} FROM stepfast_quarantine
     WHERE {MATCHES} AND (:everything = 1 OR state IN ('open', 'replaying'))
     ORDER BY id DESC LIMIT :limit
""")
GROUPS = sql(f"""
    SELECT feed, stage, code, count(*), min(first_seen_at), max(last_seen_at), min(message) FROM stepfast_quarantine
     WHERE {MATCHES} AND (:everything = 1 OR state IN ('open', 'replaying'))
     GROUP BY feed, stage, code ORDER BY count(*) DESC, feed, stage, code LIMIT :limit
""")
SHOW = sql(f"SELECT {_COLUMNS}, content_hash, payload FROM stepfast_quarantine WHERE id = :id")

_entry = reader(EntryReport, state=EntryState)


def list_entries(
    tx: Transaction, which: Entries | None = None, *, everything: bool = False, limit: int = 50
) -> list[EntryReport]:
    """Those that wait, or with `everything` all; the latest first."""
    return tx.all(LIST, _entry, **(which or Entries()).asked(), everything=int(everything), limit=limit)


def entry_groups(
    tx: Transaction, which: Entries | None = None, *, everything: bool = False, limit: int = 50
) -> list[EntryGroup]:
    """By feed, stage and code; the largest group first."""
    asked = (which or Entries()).asked()
    return tx.all(GROUPS, reader(EntryGroup), **asked, everything=int(everything), limit=limit)


def show_entry(tx: Transaction, entry_id: int) -> EntryDetail:
    found = tx.rows(SHOW, id=entry_id)
    if not found:
        raise no_entry(entry_id)
    *columns, content_hash, payload = found[0]
    return EntryDetail(_entry(*columns), content_hash, json.loads(payload))


def no_entry(entry_id: int) -> NotFoundError:
    return NotFoundError(f"there is no entry {entry_id} in quarantine; see: stepfast quarantine list")
