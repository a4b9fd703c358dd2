"""Checks of PostgreSQL: settings that decide whether a commit lasts, sessions that hold our rows, and poolers."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.admin.doctor.finding import Finding, Session, fail, ok, outline, warn
from stepfast.admin.doctor.tls import check_tls
from stepfast.clock import counted
from stepfast.database.database import hears_itself
from stepfast.database.drivers import Pooler, backend, declared_pooler, split_url, stands_between
from stepfast.database.statement import sql

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.database.connection import Connection, Transaction
    from stepfast.database.database import Database


OLDEST_VERSION: Final = 13
OLD_TRANSACTION: Final = 15  # seconds; ours end within ten
PINNED: Final = 60  # seconds that a transaction may keep dead rows before it is a finding
MOST_DEAD_ROWS: Final = 50_000
CROWDED: Final = 0.8
POLLING: Final = "idle workers poll, every 50 ms and after a while every 250 ms, because LISTEN is lost"
SLOW_COMMIT: Final = 2  # seconds
APPLICATION: Final = "stepfast"  # the name of our own sessions
UNPREPARED: Final = "statements are not prepared"

SERVER_SETTINGS = sql("""
    SELECT current_setting('server_version'), CAST(current_setting('server_version_num') AS INTEGER),
           current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
           current_setting('autovacuum'), pg_is_in_recovery()
""")

COUNT_CONNECTIONS = sql("""
    SELECT count(*), CAST(current_setting('max_connections') AS INTEGER)
      FROM pg_stat_activity WHERE backend_type = 'client backend'
""")

OLD_SESSIONS = sql("""
    SELECT a.pid, COALESCE(a.usename, '?'), COALESCE(a.application_name, ''), COALESCE(a.state, ''),
           CAST(extract(epoch FROM clock_timestamp() - a.xact_start) AS DOUBLE PRECISION), COALESCE(a.query, ''),
           EXISTS (SELECT 1 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                    WHERE l.pid = a.pid AND l.granted AND l.mode <> 'AccessShareLock' AND l.database = a.datid
                      AND c.relname LIKE 'stepfast%'),
           a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL,
           COALESCE(a.wait_event, '') = 'SyncRep',
           (SELECT count(*) FROM pg_stat_activity w WHERE a.pid = ANY(pg_blocking_pids(w.pid)))
      FROM pg_stat_activity a
     WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
       AND a.xact_start < clock_timestamp() - CAST(:age AS INTEGER) * interval '1 second'
     ORDER BY a.xact_start
""")

# Commits that wait for a standby, and standbys: those that confirm commits, those whose state this user may see, all.
STANDBYS = sql("""
    SELECT current_setting('synchronous_standby_names'),
           (SELECT count(*) FROM pg_stat_activity
             WHERE wait_event = 'SyncRep' AND state_change < clock_timestamp() - CAST(:age AS INTEGER) * interval '1 second'),
           (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
           (SELECT count(sync_state) FROM pg_stat_replication),
           (SELECT count(*) FROM pg_stat_replication)
""")

PREPARED_TRANSACTIONS = sql("""
    SELECT gid, owner, CAST(extract(epoch FROM clock_timestamp() - prepared) AS DOUBLE PRECISION)
      FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared
""")

TABLES_WITH_DEAD_ROWS = sql("""
    SELECT relname, n_dead_tup, n_live_tup FROM pg_stat_user_tables
     WHERE relname LIKE 'stepfast%' AND n_dead_tup > :most AND n_dead_tup > 2 * n_live_tup
     ORDER BY n_dead_tup DESC
""")


def version(tx: Transaction) -> str:
    return f"PostgreSQL {tx.rows(SERVER_SETTINGS)[0][0]}"


def settings(tx: Transaction) -> list[Finding]:
    _, number, fsync, full_pages, synchronous, autovacuum, standby = tx.rows(SERVER_SETTINGS)[0]
    found = []
    if number < OLDEST_VERSION * 10_000:
        found.append(
            fail(
                "version",
                f"the server is older than {OLDEST_VERSION}",
                "upgrade PostgreSQL; nobody tests Stepfast on it",
            )
        )
    if standby:
        found.append(fail("role", "this server is a read-only standby", "point the URL at the primary"))
    found.append(durability(fsync, full_pages, synchronous))
    if autovacuum == "off":
        found.append(
            warn(
                "autovacuum",
                "autovacuum is off: dead rows of the queue pile up",
                "set autovacuum = on and reload",
            )
        )
    return found


def durability(fsync: str, full_pages: str, synchronous: str) -> Finding:
    """Whether a commit that was reported survives a power cut."""
    if fsync == "off" or full_pages == "off":
        return fail(
            "durability",
            f"fsync = {fsync}, full_page_writes = {full_pages}: a power cut can destroy the database",
            "set both to on in postgresql.conf and reload",
        )
    if synchronous == "off":
        return fail(
            "durability",
            "synchronous_commit = off: a crash of the server loses commits that were already reported",
            "set it to on, at least for this role: ALTER ROLE … SET synchronous_commit = on",
        )
    return ok("durability", f"fsync = on, synchronous_commit = {synchronous}")


def connections(tx: Transaction) -> list[Finding]:
    used, most = tx.rows(COUNT_CONNECTIONS)[0]
    text = f"{used} of {most} connections are in use"
    if used < CROWDED * most:
        return [ok("connections", text)]
    return [warn("connections", text, "run fewer workers, raise max_connections, or put a pooler in between")]


def replication(tx: Transaction) -> list[Finding]:
    """Whether standbys confirm commits, and whether commits wait for one. No finding where there is no standby."""
    return judge_replication(*tx.rows(STANDBYS, age=SLOW_COMMIT)[0])


def judge_replication(
    names: str, waiting: int, confirming: int, visible: int, standbys: int
) -> list[Finding]:
    """Pure: `names` is the setting synchronous_standby_names; the numbers are those of `STANDBYS`."""
    if waiting:
        there = f"{counted(standbys, 'standby', 'standbys')} connected" if standbys else "none is connected"
        return [
            fail(
                "replication",
                f"{counted(waiting, 'commit')} wait for a synchronous standby ({names!r}; {there})",
                "bring the standby back, or take it out of synchronous_standby_names and reload; do not end the sessions that "
                "wait: what they write would be on this server alone, and a failover would lose it",
            )
        ]
    if names and not standbys:
        return [
            fail(
                "replication",
                f"synchronous_standby_names = {names!r}, and no standby is connected: commits will wait",
                "bring the standby back, or take it out of synchronous_standby_names and reload",
            )
        ]
    if not standbys:
        return []
    if confirming:
        text = f"synchronous: {confirming} of {counted(standbys, 'standby', 'standbys')} confirm each commit"
    elif visible or not names:
        text = (
            f"asynchronous, {counted(standbys, 'standby', 'standbys')}: a failover to one of them loses the commits that it "
            "has not got by then"
        )
    else:
        text = f"{counted(standbys, 'standby', 'standbys')}, synchronous_standby_names = {names!r}"
    return [ok("replication", text)]


def sessions(tx: Transaction) -> list[Finding]:
    """Foreign sessions that hold our rows, or keep dead rows from being removed. Our own end by themselves."""
    old = [_session(*row) for row in tx.rows(OLD_SESSIONS, age=OLD_TRANSACTION)]
    every = [session for session in old if session.application != APPLICATION and not session.commits]
    holding = [session for session in every if session.locks_ours]
    pinning = [
        session
        for session in every
        if session.pins and not session.locks_ours and session.age >= timedelta(seconds=PINNED)
    ]
    found = [
        fail(
            "sessions",
            f"{session} holds rows or tables of Stepfast",
            f"end its transaction; if nobody owns it: SELECT pg_terminate_backend({session.id})",
        )
        for session in holding
    ] + [
        warn(
            "sessions",
            f"{session} keeps dead rows of the queue from being removed, and claims slow down",
            f"end its transaction; if nobody owns it: SELECT pg_terminate_backend({session.id})",
        )
        for session in pinning
    ]
    for gid, owner, seconds in tx.rows(PREPARED_TRANSACTIONS):
        found.append(
            warn(
                "sessions",
                f"prepared transaction {gid!r} of user {owner} has been waiting for {seconds:.0f} s",
                f"COMMIT PREPARED or ROLLBACK PREPARED '{gid}'",
            )
        )
    found += [
        warn(
            "own sessions",
            f"{session} is a transaction of Stepfast that takes long",
            "leave it: its limits end it (30 s a statement, 10 s without one), and a handler's own SQL may take its time",
        )
        for session in old
        if session.application == APPLICATION and session.locks_ours and not session.commits
    ]
    return found or [ok("sessions", "no foreign transaction is in the way")]


def dead_rows(tx: Transaction) -> list[Finding]:
    found = [
        warn(
            "dead rows",
            f"{table} has {counted(dead, 'dead row')} beside {live:,} living ones",
            f"look for long transactions (above), then: VACUUM {table}",
        )
        for table, dead, live in tx.rows(TABLES_WITH_DEAD_ROWS, most=MOST_DEAD_ROWS)
    ]
    return found or [ok("dead rows", "autovacuum keeps up")]


def _session(*row: Any) -> Session:
    number, user, application, state, seconds, query, locks, pins, commits, blocks = row
    return Session(
        number,
        user,
        application,
        state,
        age=timedelta(seconds=seconds),
        query=outline(query, "postgresql"),
        locks_ours=locks,
        pins=pins,
        commits=commits,
        blocks=blocks,
    )


# The pooler


def check_pooler(database: Database) -> list[Finding]:
    """Check what is lost by a pooler between us and the server; no finding where there is none."""
    declared = declared_pooler(split_url(database.url))
    woken = database.listen_elsewhere is not None
    with closing(database.connect()) as one:
        if stands_between(one.raw):
            with closing(database.connect()) as other:
                found = [judge_pooler(pooler_mode(one, other), declared, woken=woken)]
        else:
            found = needless_pooler(declared)
    return found + (check_wake_up(database) if woken else [])


def pooler_mode(one: Connection, other: Connection) -> Pooler:
    """The mode of the pooler: in session mode each client keeps its session, and no other client gets it."""
    mine = {backend(one.raw) for _ in range(2)}  # twice: some poolers hand out their sessions in turn
    theirs = {backend(other.raw)}
    mine.add(backend(one.raw))
    return Pooler.SESSION if len(mine) == 1 and not mine & theirs else Pooler.TRANSACTION


def judge_pooler(works: Pooler, declared: Pooler | None, *, woken: bool) -> Finding:
    """Whether the mode that the URL declares is the mode of the pooler."""
    if works is Pooler.SESSION and declared is Pooler.SESSION:
        return ok("pooler", "a pooler in session mode stands before the server; nothing is lost")
    if works is Pooler.SESSION:
        return warn(
            "pooler",
            "a pooler stands before the server; it seems to keep sessions, but nobody relies on that",
            "write pooler=session into the URL if its own settings say so: statements are prepared then, and workers woken",
        )
    if declared in {Pooler.SESSION, Pooler.NONE}:
        return fail(
            "pooler",
            f"the URL says pooler={declared}, but a pooler hands each transaction another session: "
            "prepared statements and LISTEN are lost on the way",
            "write pooler=transaction into the URL",
        )
    found = "a pooler in transaction mode stands before the server: " + UNPREPARED
    if woken:
        return ok("pooler", f"{found}; workers listen past it")
    if declared is Pooler.TRANSACTION:
        return ok("pooler", f"{found}, and {POLLING}")
    return warn(
        "pooler",
        f"{found}, and {POLLING}",
        "set STEPFAST_LISTEN_URL to a URL that leads to the server itself; or write pooler=transaction into the URL "
        "to say that polling is meant",
    )


def needless_pooler(declared: Pooler | None) -> list[Finding]:
    """Findings where no pooler stands between us and the server."""
    if declared is not Pooler.TRANSACTION:
        return []
    return [
        warn(
            "pooler",
            f"the URL says pooler=transaction, but the server itself answers: {UNPREPARED} and {POLLING}, for nothing",
            "leave pooler= out of the URL",
        )
    ]


def check_wake_up(database: Database) -> list[Finding]:
    """Whether notifications on the database reach STEPFAST_LISTEN_URL."""
    if hears_itself(database):
        return [ok("wake-up", "what is notified on the database is heard at STEPFAST_LISTEN_URL")]
    return [
        warn(
            "wake-up",
            "what is notified on the database is not heard at STEPFAST_LISTEN_URL: workers poll",
            "let it lead past the pooler, to the same server and the same database",
        )
    ]


def checks(database: Database) -> tuple[tuple[str, Callable[[Transaction], list[Finding]]], ...]:
    return (
        ("pooler", lambda _: check_pooler(database)),  # on connections of its own
        ("tls", lambda _: check_tls(database)),
        ("settings", settings),
        ("connections", connections),
        ("replication", replication),
        ("sessions", sessions),
        ("dead rows", dead_rows),
    )
