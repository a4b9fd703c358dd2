"""Four processes drain one SQLite file as fast as they can: no heartbeat waits long, no lease runs out (rule 1)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stepfast import Stepfast
from tests.crash.conftest import fleet_on
from tests.crash.workers import PATIENCE
from tests.support import rows

if TYPE_CHECKING:
    from tests.crash.workers import Fleet

PROCESSES = 4
BACKLOG = 2_000  # jobs that are always waiting
LEASE, RENEWAL = 10, 1.0  # seconds; a heartbeat is due one second after the last
LONGEST_WAIT = 1.0


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """On a disk, where a commit takes its time; the other tests use memory."""
    with closing(Stepfast(f"sqlite:///{tmp_path}/work.db")) as app:
        app.migrate()
        yield from fleet_on(app, tmp_path, f"sqlite:///{tmp_path}/work.db")


def test_no_heartbeat_waits_longer_than_a_second_while_four_processes_drain_one_file(
    fleet: Fleet, pytestconfig: pytest.Config
) -> None:
    seconds = 30 if pytestconfig.getoption("chaos") else 4
    supervisor = fleet.worker(processes=PROCESSES, lease=LEASE, renew_at=round(100 * RENEWAL / LEASE))
    supervisor.says("worker.started", times=PROCESSES)
    beats: dict[int, list[int]] = {}
    jobs = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until or _one_has_done_nothing(fleet, until + PATIENCE):
        if rows.count(fleet.app, "stepfast_job") < BACKLOG:
            jobs += _enqueue_batch(fleet, jobs)
        for row in rows.query(fleet.app, "SELECT incarnation, beat_at FROM stepfast_worker"):
            seen = beats.setdefault(row["incarnation"], [row["beat_at"]])
            if seen[-1] != row["beat_at"]:
                seen.append(row["beat_at"])
    rows.change(fleet.app, "DELETE FROM stepfast_job WHERE state = 'ready'")
    rows.eventually(
        lambda: not rows.count(fleet.app, "stepfast_job"), 90
    )  # on a disk that others use as well

    waits = [(b - a) / rows.SECOND - RENEWAL for seen in beats.values() for a, b in itertools.pairwise(seen)]
    assert len(beats) == PROCESSES, "a process was declared dead and began anew"
    assert all(len(seen) > seconds / 2 for seen in beats.values())
    assert max(waits) < LONGEST_WAIT
    assert rows.count(fleet.app, "stepfast_worker", "state = 'alive'") == PROCESSES
    assert "declared-dead" not in supervisor.words()
    assert rows.count(fleet.app, "stepfast_archive", "crashes > 0 OR failures > 0") == 0
    assert max(fleet.effects().values()) == 1
    assert {it["pid"] for it in fleet.journal("started")} == set(supervisor.children()), "somebody starved"


def _one_has_done_nothing(fleet: Fleet, latest: float) -> bool:
    """On a busy machine a process may need more time for its first job."""
    return len({it["pid"] for it in fleet.journal("started")}) < PROCESSES and time.monotonic() < latest


def _enqueue_batch(fleet: Fleet, first: int) -> int:
    """Half of them with an effect, in a transaction each; the others are acknowledged together."""
    calls = [
        {"id": f"load-{first + n}", "kind": "brief" if n % 2 else "plain", "payload": "{}"}
        for n in range(BACKLOG)
    ]
    with fleet.app.transaction() as tx:
        tx.execute_many("INSERT INTO stepfast_job (id, kind, payload) VALUES (:id, :kind, :payload)", calls)
    return len(calls)
