"""Checks of MariaDB and MySQL: settings that decide whether a commit lasts, and sessions that hold our rows."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.admin.doctor.finding import Finding, Session, fail, ok, outline, warn
from stepfast.admin.doctor.tls import check_tls
from stepfast.database.statement import sql
from stepfast.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database


OLD_TRANSACTION: Final = 15  # seconds; ours end within ten
READING: Final = 60  # seconds that a transaction without locks may last before it is a finding
FRESH: Final = 0.15  # seconds; InnoDB repeats its last answer for a tenth of a second
CROWDED: Final = 0.8
SMALLEST_PACKET: Final = 4 * 1024 * 1024
OLDEST_MARIADB: Final = (10, 6)  # SKIP LOCKED
SORTING_MARIADB: Final = (10, 8)  # descending indexes
OLDEST_MYSQL: Final = (8, 0, 21)  # SKIP LOCKED, expressions as defaults, JSON_VALUE

SERVER_VERSION = sql("SELECT version()")

SERVER_VARIABLES = sql("""
    SHOW GLOBAL VARIABLES WHERE variable_name IN ('innodb_flush_log_at_trx_commit', 'max_connections', 'read_only',
                                                  'sql_mode', 'max_allowed_packet')
""")
SESSION_ISOLATION = sql(
    "SHOW SESSION VARIABLES WHERE variable_name IN ('tx_isolation', 'transaction_isolation')"
)
CLUSTER_STATUS = sql("""
    SHOW GLOBAL STATUS WHERE variable_name IN ('wsrep_ready', 'wsrep_cluster_status', 'wsrep_cluster_size',
                                               'wsrep_local_state_comment', 'Rpl_semi_sync_master_status',
                                               'Rpl_semi_sync_master_clients')
""")
IS_IN_CLUSTER = sql("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'")
COUNT_CONNECTIONS = sql("SHOW GLOBAL STATUS LIKE 'Threads_connected'")

OLD_SESSIONS = sql("""
    SELECT t.trx_mysql_thread_id, p.user, p.host, p.command, TIMESTAMPDIFF(SECOND, t.trx_started, NOW()),
           COALESCE(t.trx_query, p.info, ''), t.trx_rows_locked + t.trx_rows_modified
      FROM information_schema.innodb_trx t JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
     WHERE p.db = database() AND p.id <> connection_id() AND TIMESTAMPDIFF(SECOND, t.trx_started, NOW()) >= :age
     ORDER BY t.trx_started
""")

# Only locks that another session waits for are listed; MySQL keeps them elsewhere.
BLOCKING_SESSIONS = sql("""
    SELECT t.trx_mysql_thread_id, count(*)
      FROM information_schema.innodb_lock_waits w
      JOIN information_schema.innodb_locks l ON l.lock_id = w.blocking_lock_id
      JOIN information_schema.innodb_trx t ON t.trx_id = w.blocking_trx_id
     WHERE l.lock_table LIKE '%`stepfast%'
     GROUP BY t.trx_mysql_thread_id
""")


def version(tx: Transaction) -> str:
    text = str(tx.first(SERVER_VERSION))
    return f"MariaDB {text.partition('-')[0]}" if "mariadb" in text.lower() else f"MySQL {text}"


def settings(tx: Transaction) -> list[Finding]:
    values = {str(name).lower(): str(value) for name, value in tx.rows(SERVER_VARIABLES)}
    found = [age(version(tx)), durability(values["innodb_flush_log_at_trx_commit"])]
    isolation = str(tx.rows(SESSION_ISOLATION)[0][1])
    if isolation != "READ-COMMITTED":
        found.append(
            fail(
                "isolation",
                f"sessions of Stepfast run at {isolation}",
                "something between here and the server changes it; a pooler must keep session settings",
            )
        )
    if values["read_only"] not in {"OFF", "0"}:
        found.append(fail("role", "this server is read-only", "point the URL at the primary"))
    if "STRICT_TRANS_TABLES" not in values["sql_mode"] and "STRICT_ALL_TABLES" not in values["sql_mode"]:
        found.append(
            warn(
                "sql_mode",
                "the server's sql_mode is not strict: plain SQL that enqueues may be cut off silently",
                "add STRICT_TRANS_TABLES to sql_mode; sessions of Stepfast set it themselves",
            )
        )
    if int(values["max_allowed_packet"]) < SMALLEST_PACKET:
        found.append(
            warn(
                "max_allowed_packet",
                f"max_allowed_packet is {int(values['max_allowed_packet']):,} bytes; large payloads may be refused",
                f"set it to {SMALLEST_PACKET:,} or more",
            )
        )
    return found


def connections(tx: Transaction) -> list[Finding]:
    most = next(
        int(value) for name, value in tx.rows(SERVER_VARIABLES) if str(name).lower() == "max_connections"
    )
    used = int(tx.rows(COUNT_CONNECTIONS)[0][1])
    text = f"{used} of {most} connections are in use"
    if used < CROWDED * most:
        return [ok("connections", text)]
    return [warn("connections", text, "run fewer workers, or raise max_connections")]


def cluster(tx: Transaction) -> list[Finding]:
    """The state of Galera, or of semi-synchronous replication. No finding where there is neither."""
    status = {str(name).lower(): str(value) for name, value in tx.rows(CLUSTER_STATUS)}
    galera = any(str(value).upper() in {"ON", "1"} for _, value in tx.rows(IS_IN_CLUSTER))
    return judge_galera(status) if galera else judge_semi_sync(status)


def judge_galera(status: Mapping[str, str]) -> list[Finding]:
    """Whether this node of Galera belongs to a cluster that takes writes. Pure."""
    component, state = status.get("wsrep_cluster_status", "?"), status.get("wsrep_local_state_comment", "?")
    size = status.get("wsrep_cluster_size", "?")
    if component != "Primary" or status.get("wsrep_ready") != "ON":
        return [
            fail(
                "cluster",
                f"this Galera node is outside its cluster (wsrep_cluster_status = {component}, {state}): it takes no statements",
                "bring the other nodes and the network between them back; the proxy must lead to nodes whose wsrep_ready is ON",
            )
        ]
    text = f"Galera, {size} nodes, this one is {state}"
    if state != "Synced":
        return [warn("cluster", text, "let the proxy lead to nodes that are Synced")]
    return [ok("cluster", text)]


def judge_semi_sync(status: Mapping[str, str]) -> list[Finding]:
    """Whether replicas confirm commits. Pure."""
    if status.get("rpl_semi_sync_master_status") != "ON":
        return []
    replicas = status.get("rpl_semi_sync_master_clients", "?")
    if replicas == "0":
        return [
            warn(
                "replication",
                "semi-synchronous, and no replica is connected: commits wait for one, and then go on without",
                "bring the replica back",
            )
        ]
    return [ok("replication", f"semi-synchronous, replicas that confirm commits: {replicas}")]


def sessions(tx: Transaction) -> list[Finding]:
    """Sessions that hold our rows. InnoDB shows the tables of a lock only while another session waits for it."""
    time.sleep(FRESH)
    blockers = _blockers(tx)
    every = [_session(row, blockers) for row in tx.rows(OLD_SESSIONS, age=OLD_TRANSACTION)]
    long = timedelta(seconds=READING)
    found = [
        fail(
            "commits",
            f"{session} waits for its COMMIT",
            "leave it: it may be Stepfast's, and its rows are lost if it is ended; look for the replica or node that the commit "
            "waits for (SHOW STATUS LIKE 'wsrep%', 'Rpl_semi_sync%')",
        )
        if session.commits
        else fail(
            "sessions",
            f"{session} holds rows of Stepfast",
            f"end its transaction; if nobody owns it: KILL {session.id}",
        )
        if session.locks_ours
        else warn(
            "sessions",
            f"{session} {'has locked rows, perhaps of Stepfast' if session.pins else 'keeps old row versions alive'}",
            f"end its transaction; if nobody owns it: KILL {session.id}",
        )
        for session in every
        if session.commits or session.locks_ours or session.pins or session.age >= long
    ]
    return found or [ok("sessions", "no foreign transaction is in the way")]


def _blockers(tx: Transaction) -> dict[int, int]:
    try:
        with tx.savepoint():
            return {int(thread): int(waiting) for thread, waiting in tx.rows(BLOCKING_SESSIONS)}
    except DatabaseError:
        return {}


def _session(row: Sequence[Any], blockers: dict[int, int]) -> Session:
    number, user, host, command, seconds, query, rows = row
    # A session does not say which program it belongs to; a COMMIT under way may be ours.
    return Session(
        number,
        user,
        application=host,
        state=command.lower(),
        age=timedelta(seconds=max(0, seconds)),
        query=outline(query, "mariadb"),
        locks_ours=number in blockers,
        pins=rows > 0,
        blocks=blockers.get(number, 0),
        commits=query.strip().upper().startswith("COMMIT"),
    )


def age(product: str) -> Finding:
    """Whether this version has what our statements need."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", product)[:3])
    oldest = OLDEST_MARIADB if product.startswith("MariaDB") else OLDEST_MYSQL
    if numbers < oldest:
        return fail(
            "version", f"{product} lacks SKIP LOCKED", f"upgrade to {'.'.join(map(str, oldest))} or newer"
        )
    if product.startswith("MariaDB") and numbers < SORTING_MARIADB:
        return warn(
            "version",
            f"{product} ignores descending indexes, and claims must sort",
            "upgrade to 10.8 or newer",
        )
    return ok("version", product)


def durability(flush: str) -> Finding:
    """Whether a commit that was reported survives a power cut."""
    if flush == "1":
        return ok("durability", "innodb_flush_log_at_trx_commit = 1")
    return fail(
        "durability",
        f"innodb_flush_log_at_trx_commit = {flush}: a power cut loses commits that were already reported",
        "set it to 1",
    )


def checks(database: Database) -> tuple[tuple[str, Callable[[Transaction], list[Finding]]], ...]:
    return (
        ("tls", lambda _: check_tls(database)),  # on a connection of its own
        ("settings", settings),
        ("connections", connections),
        ("cluster", cluster),
        ("sessions", sessions),
    )
