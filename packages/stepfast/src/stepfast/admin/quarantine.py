"""Rows in quarantine: list them one by one or by reason, have them tried again after a fix, or discard them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast.admin.audit import Actor, Command, Progress, actor_named
from stepfast.admin.rows import reader
from stepfast.clock import new_id
from stepfast.database.statement import sql
from stepfast.database.stored import stored_document
from stepfast.errors import ConfigurationError, NotFoundError, StateError
from stepfast.jobs.enqueue import enqueue
from stepfast.jobs.state import NewJob
from stepfast.runs.quarantine import QuarantineState
from stepfast.runs.run import kind_of
from stepfast.telemetry.masking import masked_document, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.database.statement import Statement


BATCH: Final = 500
LONGEST_NOTE: Final = 500


@dataclass(frozen=True)
class Entries:
    """Which entries are meant; a filter that is None matches everything."""

    feed: str | None = None
    stage: str | None = None  # identify, map or store
    code: str | None = None
    run_id: str | None = None
    id: int | None = None

    def asked(self) -> dict[str, Any]:
        """The filter as parameters of `MATCHES`."""
        given = {
            "feed": self.feed,
            "stage": self.stage,
            "code": self.code,
            "run_id": self.run_id,
            "id": self.id,
        }
        return given | {f"any_{name}": int(value is None) for name, value in given.items()}


@dataclass(frozen=True)
class ChosenEntry:
    """An entry that a command works on."""

    id: int
    feed: str


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
LIST_ENTRIES = sql(f"""
    SELECT {_COLUMNS} FROM stepfast_quarantine
     WHERE {MATCHES} AND (:everything = 1 OR state IN ('open', 'replaying'))
     ORDER BY id DESC LIMIT :limit
""")
ENTRY_GROUPS = sql(f"""
    SELECT feed, stage, code, count(*), min(first_seen_at), max(last_seen_at), min(message) FROM stepfast_quarantine
     WHERE {MATCHES} AND (:everything = 1 OR state IN ('open', 'replaying'))
     GROUP BY feed, stage, code ORDER BY count(*) DESC, feed, stage, code LIMIT :limit
""")
SHOW_ENTRY = sql(f"SELECT {_COLUMNS}, content_hash, payload FROM stepfast_quarantine WHERE id = :id")

_read_entry = reader(EntryReport, state=QuarantineState)


def list_entries(
    tx: Transaction, which: Entries | None = None, *, everything: bool = False, limit: int = 50
) -> list[EntryReport]:
    """Entries that wait for a fix, or with `everything` all; the latest first."""
    return tx.all(
        LIST_ENTRIES, _read_entry, **(which or Entries()).asked(), everything=int(everything), limit=limit
    )


def entry_groups(
    tx: Transaction, which: Entries | None = None, *, everything: bool = False, limit: int = 50
) -> list[EntryGroup]:
    """Entries by feed, stage and code; the largest group first."""
    asked = (which or Entries()).asked()
    return tx.all(ENTRY_GROUPS, reader(EntryGroup), **asked, everything=int(everything), limit=limit)


def show_entry(tx: Transaction, entry_id: int) -> EntryDetail:
    """One entry, with its payload."""
    found = tx.rows(SHOW_ENTRY, id=entry_id)
    if not found:
        raise no_entry(entry_id)
    *columns, content_hash, payload = found[0]
    return EntryDetail(_read_entry(*columns), content_hash, masked_document(stored_document(payload)))


def no_entry(entry_id: int) -> NotFoundError:
    return NotFoundError(f"there is no entry {entry_id} in quarantine; see: stepfast quarantine list")


CHOOSE_ENTRIES = sql(f"""
    SELECT id, feed FROM stepfast_quarantine
     WHERE id > :after AND state IN ('open', 'replaying') AND {MATCHES}
     ORDER BY id LIMIT :limit
    {{for_update}}
""")
COUNT_ENTRIES = sql(
    f"SELECT count(*) FROM stepfast_quarantine WHERE state IN ('open', 'replaying') AND {MATCHES}"
)
ENTRY_STATE = sql("SELECT state FROM stepfast_quarantine WHERE id = :id")
REPLAY_ENTRY = sql("""
    UPDATE stepfast_quarantine SET state = 'replaying', note = :note
     WHERE id = :id AND state IN ('open', 'replaying')
""")
DISCARD_ENTRY = sql("""
    UPDATE stepfast_quarantine SET state = 'discarded', note = :note
     WHERE id = :id AND state IN ('open', 'replaying')
""")
# Where the jobs of the feed's last runs waited: its workers listen there.
QUEUE_OF_FEED = sql("""
    SELECT j.queue, r.started_at FROM stepfast_run r JOIN stepfast_job j ON j.id = r.job_id WHERE r.feed = :feed
     UNION ALL
    SELECT a.queue, r.started_at FROM stepfast_run r JOIN stepfast_archive a ON a.id = r.job_id WHERE r.feed = :feed
     ORDER BY 2 DESC LIMIT 1
""")


class Quarantine:
    """Looks at rows in quarantine, replays and discards them. Every change is in the audit, with its actor and reason."""

    def __init__(self, database: Database, actor: Actor | None = None) -> None:
        self._database = database
        self._actor = actor  # None: the user of this process

    def by(self, name: str | None = None, *, reason: str | None = None) -> Quarantine:
        """The quarantine for the actor of this name; without one for the user of this process."""
        return Quarantine(self._database, actor_named(name, reason))

    def entries(
        self, which: Entries | None = None, *, everything: bool = False, limit: int = 50
    ) -> list[EntryReport]:
        """Rows that wait for a fix, or with `everything` all entries; the latest first."""
        with self._database.reading() as tx:
            return list_entries(tx, which, everything=everything, limit=limit)

    def groups(
        self, which: Entries | None = None, *, everything: bool = False, limit: int = 50
    ) -> list[EntryGroup]:
        """Entries by feed, stage and code, the largest group first."""
        with self._database.reading() as tx:
            return entry_groups(tx, which, everything=everything, limit=limit)

    def show(self, entry_id: int) -> EntryDetail:
        """One entry, with its payload."""
        with self._database.reading() as tx:
            return show_entry(tx, entry_id)

    def count(self, which: Entries | None = None) -> int:
        """How many entries that match wait for a fix."""
        with self._database.reading() as tx:
            return int(tx.first(COUNT_ENTRIES, **(which or Entries()).asked()))

    def replay(
        self, which: Entries | None = None, *, queue: str | None = None, progress: Progress | None = None
    ) -> int:
        """Have the entries that match (none given: all) tried again by a worker; returns how many.

        `queue`: where the feed's workers listen; None: where the jobs of its last run waited.
        """

        note = self._note()

        def work(tx: Transaction, entries: Sequence[ChosenEntry]) -> int:
            for feed in sorted({entry.feed for entry in entries}):
                enqueue(tx, _replay_job(feed, queue or _queue_of(tx, feed)))
            return self._mark(tx, REPLAY_ENTRY, entries, note)

        return self._each("quarantine.replay", which or Entries(), work, progress)

    def discard(self, which: Entries, *, progress: Progress | None = None) -> int:
        """Discard the entries that match, with a reason; returns how many. A newer version of an item comes anew."""
        if not (self._actor and self._actor.reason):
            raise ConfigurationError("say why these rows are not wanted; the reason is kept with them")
        note = self._note()

        def work(tx: Transaction, entries: Sequence[ChosenEntry]) -> int:
            return self._mark(tx, DISCARD_ENTRY, entries, note)

        return self._each("quarantine.discard", which, work, progress)

    def _each(
        self,
        what: str,
        which: Entries,
        work: Callable[[Transaction, Sequence[ChosenEntry]], int],
        progress: Progress | None,
    ) -> int:
        """Walk over the entries that match by rising ids: none is chosen twice."""

        def choose(tx: Transaction, last: ChosenEntry | None) -> Sequence[ChosenEntry]:
            after = 0 if last is None else last.id
            return tx.all(CHOOSE_ENTRIES, ChosenEntry, **which.asked(), after=after, limit=BATCH)

        detail = {"feed": which.feed, "stage": which.stage, "code": which.code, "run_id": which.run_id}
        subject = str(which.id) if which.id is not None else which.feed or "all"
        command = Command(self._database, self._actor, what, subject, detail)
        _, changed = command.each_batch(choose, work, progress)
        if not changed and which.id is not None:
            self._refuse(which.id)
        return changed

    def _mark(
        self, tx: Transaction, statement: Statement, entries: Sequence[ChosenEntry], note: str | None
    ) -> int:
        tx.run_many(statement, [{"id": entry.id, "note": note} for entry in entries])
        return len(entries)

    def _note(self) -> str | None:
        """The reason, as it is kept with each entry."""
        reason = None if self._actor is None else self._actor.reason
        return None if reason is None else without_secrets(reason)[:LONGEST_NOTE]

    def _refuse(self, entry_id: int) -> None:
        with self._database.reading() as tx:
            state = tx.first(ENTRY_STATE, id=entry_id)
        if state is None:
            raise no_entry(entry_id)
        raise StateError(f"entry {entry_id} is {state}; only open ones are replayed or discarded")


def _replay_job(feed: str, queue: str) -> NewJob:
    return NewJob(id=new_id(), queue=queue, kind=kind_of(feed, "replay"), payload="{}")


def _queue_of(tx: Transaction, feed: str) -> str:
    found = tx.first(QUEUE_OF_FEED, feed=feed)
    if found is None:
        raise ConfigurationError(
            f"nobody remembers in which queue the jobs of feed {feed} wait; name it with --queue"
        )
    return str(found)
