"""Rows in quarantine: one by one, or grouped by what they were refused for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast.admin.audit import Actor, Command, whoever
from stepfast.admin.rows import reader
from stepfast.clock import new_id
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, NotFoundError, StateError
from stepfast.jobs.enqueue import enqueue
from stepfast.jobs.state import NewJob
from stepfast.runs.quarantine import QuarantineState
from stepfast.runs.run import kind_of
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database


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
    state: QuarantineState
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

_entry = reader(EntryReport, state=QuarantineState)


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


# What an operator may do about rows in quarantine: have them tried again after a fix, or let them go.

BATCH: Final = 500
LONGEST_NOTE: Final = 500

Progress = Callable[[int], object]  # told how many are behind us

CHOOSE = sql(f"""
    SELECT id, feed FROM stepfast_quarantine
     WHERE id > :after AND state IN ('open', 'replaying') AND {MATCHES}
     ORDER BY id LIMIT :limit
    {{for_update}}
""")
COUNT = sql(f"SELECT count(*) FROM stepfast_quarantine WHERE state IN ('open', 'replaying') AND {MATCHES}")
STATE = sql("SELECT state FROM stepfast_quarantine WHERE id = :id")
REPLAY = sql("""
    UPDATE stepfast_quarantine SET state = 'replaying', note = :note
     WHERE id = :id AND state IN ('open', 'replaying')
""")
DISCARD = sql("""
    UPDATE stepfast_quarantine SET state = 'discarded', note = :note
     WHERE id = :id AND state IN ('open', 'replaying')
""")
# Where the jobs of the feed's last runs waited: its workers listen there.
QUEUE = sql("""
    SELECT j.queue, r.started_at FROM stepfast_run r JOIN stepfast_job j ON j.id = r.job_id WHERE r.feed = :feed
     UNION ALL
    SELECT a.queue, r.started_at FROM stepfast_run r JOIN stepfast_archive a ON a.id = r.job_id WHERE r.feed = :feed
     ORDER BY 2 DESC LIMIT 1
""")


class Quarantine:
    """Looks at rows that were refused, and steps in. What it changes is written down with who did it, and why."""

    def __init__(self, database: Database, actor: Actor | None = None) -> None:
        self._database = database
        self._actor = actor  # None: whoever runs this process

    def by(self, name: str, *, reason: str | None = None) -> Quarantine:
        """The same, in this one's name."""
        return Quarantine(self._database, Actor(name, reason))

    def entries(
        self, which: Entries | None = None, *, everything: bool = False, limit: int = 50
    ) -> list[EntryReport]:
        """Rows that wait for a fix, or with `everything` all that ever did; the latest first."""
        with self._database.reading() as tx:
            return list_entries(tx, which, everything=everything, limit=limit)

    def groups(
        self, which: Entries | None = None, *, everything: bool = False, limit: int = 50
    ) -> list[EntryGroup]:
        """By what they were refused for, the largest group first."""
        with self._database.reading() as tx:
            return entry_groups(tx, which, everything=everything, limit=limit)

    def show(self, entry_id: int) -> EntryDetail:
        """One, with its payload."""
        with self._database.reading() as tx:
            return show_entry(tx, entry_id)

    def count(self, which: Entries | None = None) -> int:
        """How many wait."""
        with self._database.reading() as tx:
            return int(tx.first(COUNT, **(which or Entries()).asked()))

    def replay(
        self, which: Entries | None = None, *, queue: str | None = None, progress: Progress | None = None
    ) -> int:
        """Have those that match (none given: all) tried again by a worker; returns how many.

        `queue`: where the feed's workers listen; None: where the jobs of its last run waited.
        """

        def work(tx: Transaction, found: dict[str, list[int]], note: str | None) -> int:
            for feed in sorted(found):
                enqueue(tx, _replay_job(feed, queue or _queue_of(tx, feed)))
            ids = sorted(it for of_feed in found.values() for it in of_feed)
            tx.run_many(REPLAY, [{"id": it, "note": note} for it in ids])
            return len(ids)

        return self._each_batch("quarantine.replay", which or Entries(), work, progress)

    def discard(self, which: Entries, *, progress: Progress | None = None) -> int:
        """Let those that match go, with a reason; returns how many. A newer version of an item comes anew."""
        if not (self._actor and self._actor.reason):
            raise ConfigurationError("say why these rows are not wanted; the reason is kept with them")

        def work(tx: Transaction, found: dict[str, list[int]], note: str | None) -> int:
            ids = sorted(it for of_feed in found.values() for it in of_feed)
            tx.run_many(DISCARD, [{"id": it, "note": note} for it in ids])
            return len(ids)

        return self._each_batch("quarantine.discard", which, work, progress)

    def _each_batch(
        self,
        what: str,
        which: Entries,
        work: Callable[[Transaction, dict[str, list[int]], str | None], int],
        progress: Progress | None,
    ) -> int:
        """Each batch in a transaction of its own, by rising ids: none is chosen twice."""
        by = self._actor or whoever()
        note = None if by.reason is None else without_secrets(by.reason)[:LONGEST_NOTE]
        detail = {"feed": which.feed, "stage": which.stage, "code": which.code, "run_id": which.run_id}
        subject = str(which.id) if which.id is not None else which.feed or "all"
        command = Command(self._database, by, what, subject, detail)
        after, done = 0, 0

        def batch(tx: Transaction) -> tuple[tuple[int, int], int | None]:
            rows = tx.rows(CHOOSE, **which.asked(), after=after, limit=BATCH)
            found: dict[str, list[int]] = {}
            for entry_id, feed in rows:
                found.setdefault(str(feed), []).append(int(entry_id))
            count = work(tx, found, note) if rows else 0
            return (int(rows[-1][0]) if rows else after, count), count or None

        while (told := command.run(batch))[1]:
            after, done = told[0], done + told[1]
            if progress is not None:
                progress(done)
        command.end()
        if not done and which.id is not None:
            self._refuse(which.id)
        return done

    def _refuse(self, entry_id: int) -> None:
        with self._database.reading() as tx:
            state = tx.first(STATE, id=entry_id)
        if state is None:
            raise no_entry(entry_id)
        raise StateError(f"entry {entry_id} is {state}; only open ones are replayed or discarded")


def _replay_job(feed: str, queue: str) -> NewJob:
    return NewJob(id=new_id(), queue=queue, kind=kind_of(feed, "replay"), payload="{}")


def _queue_of(tx: Transaction, feed: str) -> str:
    found = tx.first(QUEUE, feed=feed)
    if found is None:
        raise ConfigurationError(
            f"nobody remembers in which queue the jobs of feed {feed} wait; name it with --queue"
        )
    return str(found)
