"""A database of MariaDB is used again: it cannot be copied, and migrating one takes longer than most tests.

It is emptied after a test. If a test changed a table of Stepfast, or somebody will not leave, it is thrown away instead.
"""

from __future__ import annotations

import re
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pymysql

from devtools.server import USER

if TYPE_CHECKING:
    from pymysql.cursors import Cursor

    from devtools.server import Server

PATIENCE = 2.0  # seconds, for sessions that were told to leave
KEPT = "stepfast_schema"  # its rows are part of the structure
LASTING = {KEPT, "stepfast_installation"}  # their rows stay

Structure = dict[str, str]


def structure(server: Server, name: str) -> Structure:
    """How every table and view was made."""
    with closing(_connect(server, name)) as connection, connection.cursor() as cursor:
        return {table: _made(cursor, table) for table in _tables(cursor)}


def emptied(server: Server, name: str, wanted: Structure) -> bool:
    """Bring a used database back to how it was when it was new; False if that cannot be done."""
    with closing(_connect(server, name)) as connection, connection.cursor() as cursor:
        if not _alone(cursor, name):
            return False
        try:
            cursor.execute(f"SET lock_wait_timeout = {PATIENCE:.0f}")
            tables = _tables(cursor)
            for table in tables.keys() - wanted.keys():
                cursor.execute(f"DROP {tables[table]} `{table}`")
            if any(table not in tables or _made(cursor, table) != text for table, text in wanted.items()):
                return False
            for table in _used(cursor, [it for it in wanted if tables[it] == "TABLE" and it not in LASTING]):
                cursor.execute(f"TRUNCATE TABLE `{table}`")
        except pymysql.MySQLError:
            return False
        return True


def _connect(server: Server, name: str) -> pymysql.Connection[Cursor]:
    return pymysql.connect(
        host="127.0.0.1",
        port=server.site.port,
        user=USER,
        password=server.site.password,
        database=name,
        autocommit=True,
        ssl_disabled=True,
    )


def _alone(cursor: Cursor, name: str) -> bool:
    """Send everybody else away, and wait until they have gone: what they had not committed goes with them."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        cursor.execute(
            "SELECT id FROM information_schema.processlist WHERE db = %s AND id <> connection_id()", (name,)
        )
        others = cursor.fetchall()
        if not others:
            return True
        for (client,) in others:
            with suppress(pymysql.err.OperationalError):  # left by itself
                cursor.execute("KILL %s", (client,))
        time.sleep(0.002)
    return False


def _tables(cursor: Cursor) -> dict[str, str]:
    cursor.execute("SHOW FULL TABLES")
    return {name: "VIEW" if kind == "VIEW" else "TABLE" for name, kind in cursor.fetchall()}


def _made(cursor: Cursor, table: str) -> str:
    cursor.execute(f"SHOW CREATE TABLE `{table}`")
    row = cursor.fetchone()
    assert row is not None
    text = re.sub(r" AUTO_INCREMENT=\d+", "", str(row[1]))
    if table != KEPT:
        return text
    cursor.execute(f"SELECT version, name FROM `{KEPT}` ORDER BY version")
    return f"{text} {cursor.fetchall()}"


def _used(cursor: Cursor, tables: list[str]) -> list[str]:
    """Those that have rows, or have given out numbers."""
    cursor.execute(
        " UNION ALL ".join(f"SELECT '{it}' FROM DUAL WHERE EXISTS (SELECT 1 FROM `{it}`)" for it in tables)
    )
    filled = {row[0] for row in cursor.fetchall()}
    cursor.execute("SHOW TABLE STATUS WHERE Auto_increment > 1")
    return sorted(filled | ({row[0] for row in cursor.fetchall()} & set(tables)))
