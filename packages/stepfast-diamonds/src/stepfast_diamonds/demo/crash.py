"""Kill a worker in the middle of a page, and find out which workers take over what it held.

It is stopped first, so that it cannot finish a page between the look and the kill. What a page leaves behind is one
commit, so a partition that is running and leased is between two commits: in the middle of a page.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepfast import sql

if TYPE_CHECKING:
    from stepfast import Stepfast, Transaction


CLOCK = sql("SELECT {now}")
BUSIEST = sql("""
    SELECT w.worker_id, count(*) AS pages
      FROM stepfast_worker w
      JOIN stepfast_job j ON j.owner = w.incarnation AND j.state = 'leased'
      JOIN stepfast_partition p ON p.job_id = j.id AND p.state = 'running'
     WHERE w.state = 'alive' GROUP BY w.worker_id ORDER BY pages DESC, w.worker_id
""")
HELD = sql("""
    SELECT p.id, p.number, p.name, p.next_offset
      FROM stepfast_worker w
      JOIN stepfast_job j ON j.owner = w.incarnation AND j.state = 'leased'
      JOIN stepfast_partition p ON p.job_id = j.id AND p.state = 'running'
     WHERE w.worker_id = :worker_id AND w.state = 'alive' ORDER BY p.number
""")
NOTICED = sql("SELECT ended_at FROM stepfast_worker WHERE worker_id = :worker_id AND state = 'dead'")
READ_SINCE = sql("""
    SELECT partition_id, worker_id, at FROM stepfast_page
     WHERE partition_id {any_of:ids} AND at > :at ORDER BY at
""")


@dataclass(frozen=True)
class Held:
    """A partition under the lease of a worker, and how far its pages have come."""

    row_id: str
    number: int
    name: str
    offset: int


@dataclass(frozen=True)
class Crash:
    """The worker that was killed, when by the database's clock, and what it held."""

    worker: str
    pid: int
    at: int
    held: tuple[Held, ...]


@dataclass(frozen=True)
class TakenOver:
    """What it held, read on by another process."""

    held: Held
    by: str
    after: float  # seconds


def busiest(tx: Transaction) -> str | None:
    """The worker that holds most partitions whose pages are being read."""
    found = tx.rows(BUSIEST)
    return str(found[0][0]) if found else None


def kill(app: Stepfast) -> Crash | None:
    """Send SIGKILL to the busiest worker; None if none is in the middle of a page just now."""
    with app.reading() as tx:
        name = busiest(tx)
    if name is None or not name.startswith("worker-"):
        return None
    pid = next(it.pid for it in app.operator.workers() if it.worker_id == name)  # its guardian lives on
    os.kill(pid, signal.SIGSTOP)
    try:
        with app.reading() as tx:
            held = tuple(tx.all(HELD, Held, worker_id=name))
            at = int(tx.first(CLOCK))
    except BaseException:
        os.kill(pid, signal.SIGCONT)
        raise
    if not held:
        os.kill(pid, signal.SIGCONT)
        return None
    os.kill(pid, signal.SIGKILL)
    return Crash(name, pid, at, held)


def noticed_after(tx: Transaction, crash: Crash) -> float | None:
    """Seconds until another worker declared it dead."""
    at = tx.first(NOTICED, worker_id=crash.worker)
    return None if at is None else max(0.0, (int(at) - crash.at) / 1e6)


def taken_over(tx: Transaction, crash: Crash) -> list[TakenOver]:
    """Of what it held, what has been read since, in that order. It was stopped: no page of its own is among them."""
    held = {it.row_id: it for it in crash.held}
    found: dict[str, TakenOver] = {}
    for row_id, by, at in tx.rows(READ_SINCE, ids=list(held), at=crash.at):
        it = held[str(row_id)]
        found.setdefault(it.row_id, TakenOver(it, str(by), (int(at) - crash.at) / 1e6))
    return list(found.values())
