"""Checks of SQLite: the file, the disk that it is on, and its one writer."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stepfast.admin.doctor.finding import Finding, fail, ok, warn
from stepfast.database.dialects import Plans
from stepfast.database.drivers import sqlite_path
from stepfast.database.statement import sql
from stepfast.errors import ContentionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database


PATIENCE: Final = 1.0  # seconds to wait for the write lock; our own transactions take milliseconds
LARGE_WAL: Final = 256 * 1024 * 1024
WRITE_LOCK: Final = 120  # the byte of the -shm file that the writer locks
NETWORK: Final = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "fuse.sshfs",
        "fuse.glusterfs",
        "lustre",
    }
)

SQLITE_VERSION = sql("SELECT sqlite_version()")
JOURNAL_MODE = sql("PRAGMA journal_mode")
SYNCHRONOUS = sql("PRAGMA synchronous")


def version(tx: Transaction) -> str:
    return f"SQLite {tx.first(SQLITE_VERSION)}"


def settings(tx: Transaction) -> list[Finding]:
    journal, synchronous = str(tx.first(JOURNAL_MODE)), int(tx.first(SYNCHRONOUS))
    text = f"journal_mode = {journal}, synchronous = {synchronous}"
    if journal == "wal" and synchronous >= 2:  # noqa: PLR2004 - 2 is FULL
        return [ok("durability", text)]
    return [fail("durability", f"{text}: a power cut may lose commits", "use a local disk that supports WAL")]


def file_system(path: Path, _: Transaction) -> list[Finding]:
    """WAL needs memory that all programs with the file share, which a network file system cannot give."""
    kind = disk_of(path)
    if kind in NETWORK:
        return [
            fail(
                "file system",
                f"the file is on a network file system ({kind}): locks and WAL do not work there",
                "move it to a local disk, or use PostgreSQL or MariaDB",
            )
        ]
    return [ok("file system", f"the file is on a local disk ({kind})")] if kind else []


def log_size(path: Path, _: Transaction) -> list[Finding]:
    wal = path.with_name(f"{path.name}-wal")
    size = wal.stat().st_size if wal.exists() else 0
    if size < LARGE_WAL:
        return []
    return [
        warn(
            "log size",
            f"{wal.name} has grown to {size // 2**20} MiB: somebody has been reading for too long",
            "end the programs that keep the file open, or restart them",
        )
    ]


def writer(database: Database, path: Path, _: Transaction) -> list[Finding]:
    """Take the write lock for a moment."""
    connection = database.connect()
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                connection.begin(database.dialect.begin[Plans.ENGINE])
            except ContentionError:
                if time.monotonic() > deadline:
                    return [
                        fail(
                            "writer",
                            f"{_holder(path)} has been holding the write lock for more than {PATIENCE:.0f} s",
                            "end its transaction: nobody else can write until then",
                        )
                    ]
                time.sleep(0.005)
            else:
                return [ok("writer", "the write lock is free")]
    finally:
        connection.rollback()
        connection.close()


def disk_of(path: Path) -> str:
    """The type of the file system that holds a file, or will; empty where the system does not say."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
    return kind_of_disk(mounts, path.resolve())


def kind_of_disk(mounts: str, path: Path) -> str:
    """The type of the file system that holds `path`, read from the text of /proc/self/mountinfo."""
    best, found = "", ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        point = fields.split()[4].replace("\\040", " ")
        inside = path.is_relative_to(point)
        if inside and len(point) >= len(best):
            best, found = point, rest.split()[0]
    return found


def lock_holder(locks: str, inode: int) -> int | None:
    """The process that has the write lock of the -shm file `inode`, read from the text of /proc/locks."""
    for line in locks.splitlines():
        fields = line.split()
        if "->" in fields or len(fields) < 8 or fields[3] != "WRITE":  # noqa: PLR2004 - the columns of a lock
            continue
        pid, place, first, last = fields[4:8]
        end = WRITE_LOCK if last == "EOF" else int(last)
        if int(place.rpartition(":")[2]) == inode and int(first) <= WRITE_LOCK <= end:
            return int(pid)
    return None


def _holder(path: Path) -> str:
    try:
        inode = path.with_name(f"{path.name}-shm").stat().st_ino
        pid = lock_holder(Path("/proc/locks").read_text(encoding="utf-8"), inode)
        if pid == os.getpid():
            return "this very process"
        if pid:
            return f"process {pid} ({Path(f'/proc/{pid}/comm').read_text(encoding='utf-8').strip()})"
    except OSError:
        pass
    return "another process"


def checks(database: Database) -> tuple[tuple[str, Callable[[Transaction], list[Finding]]], ...]:
    path = Path(sqlite_path(database.url))
    return (
        ("settings", settings),
        ("file system", partial(file_system, path)),
        ("log size", partial(log_size, path)),
        ("writer", partial(writer, database, path)),
    )
