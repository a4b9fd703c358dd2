"""The whole examination: is the database there, is it set up well, do the tables fit, is work being done?

Each look has a transaction of its own, so that one that is refused (a missing privilege) spoils no other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stepfast.admin.doctor import mariadb, postgresql, sqlite
from stepfast.admin.doctor.finding import Finding, fail, healthy, ok, warn
from stepfast.admin.doctor.work import judge
from stepfast.admin.rows import now
from stepfast.admin.workers import QueueReport, WorkerReport, count_leases, list_queues, list_workers
from stepfast.clock import counted
from stepfast.database.drivers import masked
from stepfast.database.migrate import CORE, schema_version
from stepfast.database.statement import sql
from stepfast.errors import DatabaseError, StepfastError
from stepfast.jobs.dead_letters import FailureGroup, failure_groups
from stepfast.jobs.dependencies import find_stranded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.broker import Broker


# What our own tables say, gathered once for all judgements.

OVERDUE = sql("""
    SELECT count(*), COALESCE(max({now} - ready_at), 0) FROM stepfast_job WHERE state = 'scheduled' AND ready_at <= {now}
""")

SUSPECTS = sql("SELECT COALESCE(max({now} - ready_at), 0) FROM stepfast_job WHERE state = 'suspect'")

# What a worker writes when it meets a kind it has no handler for; the job is put back without a charge.
UNKNOWN_KINDS = sql("""
    SELECT kind, count(*) FROM stepfast_job
     WHERE state IN ('ready', 'scheduled') AND error_group LIKE 'UnknownKindError%' GROUP BY kind ORDER BY kind
""")

# Jobs that wait for one that only an operator can bring back, and one of those.
WAIT_FOR_THE_DEAD = sql("""
    SELECT count(DISTINCT d.child_id), min(d.parent_id)
      FROM stepfast_archive a JOIN stepfast_dependency d ON d.parent_id = a.id
     WHERE a.state IN ('dead', 'cancelled') AND d.state = 'open'
""")


@dataclass(frozen=True, kw_only=True)
class Facts:
    workers: Sequence[WorkerReport] = ()
    queues: Sequence[QueueReport] = ()
    leases: int = 0
    expired_leases: int = 0
    overdue: int = 0  # scheduled jobs whose time has come
    overdue_seconds: float = 0.0
    suspect_seconds: float = 0.0  # how long the longest has been waiting
    unknown_kinds: Sequence[tuple[str, int]] = ()
    dead: Sequence[FailureGroup] = ()
    wait_for_dead: int = 0  # jobs that come after one that died or was cancelled, and wait
    dead_parent: str | None = None  # one that they wait for
    stranded: Sequence[str] = ()  # jobs that have ended, while others wait for them

    @property
    def running(self) -> list[WorkerReport]:
        return [worker for worker in self.workers if worker.running]

    @property
    def open_queues(self) -> list[QueueReport]:
        return [queue for queue in self.queues if queue.paused_at is None]

    @property
    def waiting(self) -> int:
        """Jobs that somebody should take now."""
        return sum(queue.ready + queue.suspect + queue.held for queue in self.open_queues) + self.overdue


def gather(tx: Transaction) -> Facts:
    leases, expired = count_leases(tx)
    overdue, overdue_age = tx.rows(OVERDUE)[0]
    wait_for_dead, dead_parent = tx.rows(WAIT_FOR_THE_DEAD)[0]
    return Facts(
        workers=list_workers(tx),
        queues=list_queues(tx),
        leases=leases,
        expired_leases=expired,
        overdue=int(overdue),
        overdue_seconds=int(overdue_age) / 1e6,
        suspect_seconds=int(tx.first(SUSPECTS)) / 1e6,
        unknown_kinds=[(str(kind), int(count)) for kind, count in tx.rows(UNKNOWN_KINDS)],
        dead=failure_groups(tx, limit=1_000),
        wait_for_dead=int(wait_for_dead),
        dead_parent=dead_parent,
        stranded=find_stranded(tx),
    )


# Does what should leave the database leave it? Says something only if it does not.

OVERDUE_OUTBOX: Final = 60 * 1_000_000  # microseconds; a relay looks every second

DEAD = sql("SELECT count(*) FROM stepfast_outbox WHERE state = 'dead' AND ended_at IS NOT NULL")
STUCK = sql("""
    SELECT count(DISTINCT o.destination) FROM stepfast_outbox o
     WHERE o.state = 'waiting' AND o.due_at < {now} - :overdue
       AND NOT EXISTS (SELECT 1 FROM stepfast_outbox h
                        WHERE h.state = 'waiting' AND h.destination = o.destination AND h.seq < o.seq)
       AND NOT EXISTS (SELECT 1 FROM stepfast_destination d WHERE d.id = o.destination AND d.leased_until > {now})
""")
WAITING_FOR_SETTINGS = sql("""
    SELECT count(*), max(last_error) FROM stepfast_outbox
     WHERE state = 'waiting' AND attempts = 0 AND last_error IS NOT NULL
""")
UNTOLD = sql("SELECT count(*) FROM stepfast_alert WHERE notify_at < {now} - :overdue")


def look(tx: Transaction) -> list[Finding]:
    """Messages that nobody sends, messages that were given up, alerts that nobody can tell."""
    found: list[Finding] = []
    if stuck := int(tx.first(STUCK, overdue=OVERDUE_OUTBOX)):
        said = f"{counted(stuck, 'destination')} should have been served by now, and nobody does"
        found.append(warn("outbox", said, "start a worker; is STEPFAST_OUTBOX_RELAY off for all of them?"))
    waiting, why = tx.rows(WAITING_FOR_SETTINGS)[0]
    if waiting:
        said = f"{counted(int(waiting), 'message')} cannot be sent by the workers as they are set up: {why}"
        found.append(
            warn("outbox", said, "set up a worker so that it can; the messages wait, and lose no try")
        )
    if dead := int(tx.first(DEAD)):
        cure = "stepfast outbox list --state dead; then stepfast outbox retry, or purge"
        found.append(warn("dead messages", f"{counted(dead, 'message')} given up", cure))
    if untold := int(tx.first(UNTOLD, overdue=OVERDUE_OUTBOX)):
        said = f"{counted(untold, 'alert')} that nobody was told"
        found.append(
            warn("alerts", said, "set STEPFAST_ALERT_URLS for a worker; read them: stepfast alerts list")
        )
    return found


PRODUCTS: Final = {"sqlite": sqlite, "postgresql": postgresql, "mariadb": mariadb}
SLOW: Final = 0.050  # seconds for one question; a claim asks a few
SKEW: Final = 1.0

Look = Callable[["Transaction"], list[Finding]]


def examine(database: Database, brokers: Collection[Broker] = ()) -> list[Finding]:
    """Look at everything, and say what to do about what is wrong; `brokers` are those of feeds that are known here."""
    found = _reach(database)
    if not healthy(found):
        return found  # nobody answers: there is nothing more to ask
    for name, look in PRODUCTS[database.dialect.name].checks(database):
        found += _looked(database, name, look)
    return [*found, *_schema(database), *_surroundings(database, brokers)]


def _surroundings(database: Database, brokers: Collection[Broker]) -> list[Finding]:
    """What else feeds and the environment name; most name nothing, and need none of this."""
    named = ("AZURE_STORAGE_", "AZURE_SERVICE_BUS_", "SERVICEBUS_", "STEPFAST_TRANSPORT")
    if not brokers and not any(name.startswith(named) and text.strip() for name, text in os.environ.items()):
        return []
    from stepfast.admin.doctor import broker

    return broker.look(database, brokers)


def _reach(database: Database) -> list[Finding]:
    product = PRODUCTS[database.dialect.name]
    try:
        with database.reading() as tx:
            name = product.version(tx)
            samples = sorted(_asked(tx) for _ in range(5))
    except StepfastError as error:
        return [
            fail(
                "database",
                f"{masked(database.url)} does not answer: {error}",
                "check that it runs, and the URL, user, password and network",
            )
        ]
    latency, skew = samples[len(samples) // 2]
    said = f"{name} at {masked(database.url)} answers in {latency * 1000:.1f} ms"
    slow = warn("database", said, "run workers closer to the database: every claim and commit waits for it")
    return [ok("database", said) if latency < SLOW else slow, _clock(skew, latency)]


def _asked(tx: Transaction) -> tuple[float, float]:
    """How long one question takes, and how far the database's clock is ahead of ours."""
    began, ours = time.perf_counter(), time.time()
    theirs = now(tx) / 1e6
    took = time.perf_counter() - began
    return took, theirs - (ours + took / 2)


def _clock(skew: float, latency: float) -> Finding:
    if abs(skew) <= SKEW + latency:
        return ok("clock", f"the database's clock and ours agree ({skew * 1000:+.0f} ms)")
    direction = "ahead of" if skew > 0 else "behind"
    return warn(
        "clock",
        f"the database's clock is {abs(skew):.1f} s {direction} this machine's",
        "synchronize both (NTP); leases are safe, since only the database's clock counts, but run_at is read by it too",
    )


def _schema(database: Database) -> list[Finding]:
    try:
        version, known = schema_version(database), CORE.version
    except DatabaseError as error:
        return [fail("tables", f"cannot be read: {error}", "check the privileges of this user")]
    if version == known:
        fits = ok("tables", f"version {version}, as this code wants it")
        return [fits, *_looked(database, "work", _work), *_looked(database, "outbox", look)]
    if version is None:
        return [fail("tables", "the database has no Stepfast tables", "stepfast migrate")]
    if version < known:
        return [fail("tables", f"version {version}, this code needs {known}", "stepfast migrate")]
    return [
        fail(
            "tables",
            f"version {version}, newer than this code knows ({known})",
            "upgrade stepfast here; do not downgrade the tables",
        )
    ]


def _work(tx: Transaction) -> list[Finding]:
    return judge(gather(tx))


def _looked(database: Database, name: str, look: Look) -> list[Finding]:
    try:
        with database.reading() as tx:
            return look(tx)
    except DatabaseError as error:
        return [
            warn(
                name,
                f"could not look: {str(error).splitlines()[0]}",
                "give this user the privilege to watch (PostgreSQL: GRANT pg_monitor TO …; MariaDB: GRANT PROCESS ON *.* TO …)",
            )
        ]
