"""The whole examination: is the database there, is it set up well, do the tables fit, is work being done?

Each check has a transaction of its own, so that one that is refused (a missing privilege) spoils no other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Final

from stepfast.admin.doctor import mariadb, postgresql, sqlite
from stepfast.admin.doctor.finding import Finding, fail, healthy, ok, warn
from stepfast.admin.doctor.runs import check_feeds
from stepfast.admin.doctor.work import check_masks, check_outbox, judge_work, read_facts
from stepfast.admin.rows import now
from stepfast.database.drivers import masked
from stepfast.database.failures import is_read_only_server
from stepfast.database.migrate import CORE, schema_version
from stepfast.errors import DatabaseError, StepfastError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.broker import Broker


PRODUCTS: Final = {"sqlite": sqlite, "postgresql": postgresql, "mariadb": mariadb}
SLOW: Final = 0.050  # seconds for one statement; a claim needs a few
SKEW: Final = 1.0
WRITE_CHECKS: Final = {"role", "replication", "cluster"}  # where one fails, nothing can be written just now

Check = Callable[["Transaction"], list[Finding]]


def examine(
    database: Database, brokers: Collection[Broker] = (), fresh: Mapping[str, timedelta] | None = None
) -> list[Finding]:
    """Run all checks; `brokers` are those of the feeds that are known here, `fresh` how old their watermarks may be."""
    found = _reach(database)
    if not healthy(found):
        return found  # the database does not answer: there is nothing more to ask
    for name, check in PRODUCTS[database.dialect.name].checks(database):
        found += _checked(database, name, check)
    takes_writes = healthy(finding for finding in found if finding.name in WRITE_CHECKS)
    return [
        *found,
        *_schema(database, takes_writes=takes_writes, fresh=fresh),
        *_brokers_and_storage(database, brokers),
    ]


def _brokers_and_storage(database: Database, brokers: Collection[Broker]) -> list[Finding]:
    """Checks of brokers and storage, where feeds or the environment name any."""
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
            samples = sorted(_latency_and_skew(tx) for _ in range(5))
    except StepfastError as error:
        return [
            fail(
                "database",
                f"{masked(database.url)} does not answer: {error}",
                "let the URL, or the proxy that it names, lead to a server that takes writes"
                if is_read_only_server(error)
                else "check that it runs, and the URL, user, password and network",
            )
        ]
    latency, skew = samples[len(samples) // 2]
    text = f"{name} at {masked(database.url)} answers in {latency * 1000:.1f} ms"
    slow = warn("database", text, "run workers closer to the database: every claim and commit waits for it")
    return [ok("database", text) if latency < SLOW else slow, _clock(skew, latency)]


def _latency_and_skew(tx: Transaction) -> tuple[float, float]:
    """How long one statement takes, and how far the database's clock is ahead of ours."""
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


def _schema(
    database: Database, *, takes_writes: bool, fresh: Mapping[str, timedelta] | None
) -> list[Finding]:
    try:
        version, known = schema_version(database), CORE.version
    except DatabaseError as error:
        return [fail("tables", f"cannot be read: {error}", "check the privileges of this user")]
    if version == known:
        fits = ok("tables", f"version {version}, as this code wants it")
        if not takes_writes:
            # Workers cannot renew their leases here, and what we would advise about jobs could not be written.
            skipped = warn("work", "not looked at, since nothing can be written here now", "see above first")
            return [fits, skipped]
        checks: tuple[tuple[str, Check], ...] = (
            ("work", _check_work),
            ("feeds", partial(check_feeds, fresh=fresh)),
            ("outbox", check_outbox),
            ("masks", check_masks),
        )
        return [fits, *(finding for name, check in checks for finding in _checked(database, name, check))]
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


def _check_work(tx: Transaction) -> list[Finding]:
    return judge_work(read_facts(tx))


def _checked(database: Database, name: str, check: Check) -> list[Finding]:
    try:
        with database.reading() as tx:
            return check(tx)
    except DatabaseError as error:
        return [
            warn(
                name,
                f"could not look: {str(error).splitlines()[0]}",
                "give this user the privilege to watch (PostgreSQL: GRANT pg_monitor TO …; MariaDB: GRANT PROCESS ON *.* TO …)",
            )
        ]
