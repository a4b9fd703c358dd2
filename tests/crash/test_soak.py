"""Workers are killed, paused and stopped at random for a minute; then the history is checked.

In the words of Jepsen's queue checker: nothing lost, nothing doubled, and something recovered, or the run proved
nothing.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.crash.workers import Fleet, WorkerProcess

SECONDS = 60
WORKERS = 4
LEASE = 1
BRISK = {"stepfast.worker.maintenance.RESCUE_EVERY": 0.3}  # seconds; more happens in a minute
BACKLOG = 60  # jobs that wait or run at any time
PAGES = 4

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]


def test_a_minute_of_kills_and_pauses_loses_and_doubles_nothing(fleet: Fleet) -> None:
    chaos = Chaos(fleet, random.Random())
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        chaos.keep_busy()
        chaos.strike()
    chaos.calm()
    fleet.wait_until_done(120)

    history = History(fleet, chaos.steps)
    assert history.lost() == []
    assert history.doubled() == []
    assert history.recovered() > 0
    assert history.refused() > 0, "no zombie ever tried to write"
    assert {row["failures"] for row in fleet.archived().values()} == {0}, (
        "somebody paid for a neighbour's death"
    )
    assert chaos.strikes.keys() == {"kill", "pause", "stop"}


@dataclass
class Chaos:
    """Starts what is missing, and strikes at what is there."""

    fleet: Fleet
    dice: random.Random
    strikes: Counter[str] = field(default_factory=Counter)
    steps: dict[str, int] = field(default_factory=dict)  # of every job that was enqueued
    _alive: list[WorkerProcess] = field(default_factory=list)
    _timers: list[threading.Timer] = field(default_factory=list)

    def keep_busy(self) -> None:
        self._alive = [it for it in self._alive if it.runs()]
        while len(self._alive) < WORKERS:
            self._alive.append(self._worker())
        with self.fleet.app.transaction() as tx:
            for _ in range(BACKLOG - tx.query("SELECT count(*) AS n FROM stepfast_job")[0]["n"]):
                kind, steps, payload = self.dice.choice(
                    [
                        ("brief", 1, "{}"),
                        ("pages", PAGES, f'{{"count": {PAGES}, "seconds": 0.02}}'),
                        ("pages", 1, '{"count": 1, "seconds": 0.5}'),
                    ]
                )
                job_id = f"job-{len(self.steps)}"
                self.steps[job_id] = steps
                tx.execute(
                    "INSERT INTO stepfast_job (id, kind, payload) VALUES (:id, :kind, :payload)",
                    {"id": job_id, "kind": kind, "payload": payload},
                )

    def strike(self) -> None:
        """One blow, and a moment for it to work."""
        victim = self.dice.choice(self._alive)
        blow = self.dice.choice(["kill", "kill", "pause", "pause", "stop"])
        self.strikes[blow] += 1
        if blow == "kill":
            victim.kill()
        elif blow == "pause":
            victim.signal(signal.SIGSTOP)
            # By a timer: on SQLite we ourselves may wait for the lock that it holds.
            timer = threading.Timer(self.dice.uniform(0.5, 6 * LEASE), self._wake, [victim])
            timer.start()
            self._timers.append(timer)
        else:
            victim.signal(signal.SIGCONT)
            victim.signal(signal.SIGTERM)
        time.sleep(self.dice.uniform(0.1, 1.5))

    def calm(self) -> None:
        """All are awake, and one of them was never struck."""
        for timer in self._timers:
            timer.join()
        self._worker()

    def _worker(self) -> WorkerProcess:
        # Whoever is struck often must not look like poison.
        return self.fleet.worker(lease=LEASE, crash_limit=1000, grace=1, concurrency=5, constants=BRISK)

    def _wake(self, worker: WorkerProcess) -> None:
        if worker.runs():
            worker.signal(signal.SIGCONT)


@dataclass
class History:
    """What the journal, the archive and the effects say together."""

    fleet: Fleet
    steps: dict[str, int]

    def lost(self) -> list[str]:
        """Jobs that did not end, or ended without all their effects."""
        ended = self.fleet.archived()
        effects = self.fleet.effects()
        return [
            job_id
            for job_id, count in self.steps.items()
            if job_id not in ended
            or ended[job_id]["state"] != "done"
            or any(not effects[job_id, number] for number in range(count))
        ]

    def doubled(self) -> list[tuple[str, int]]:
        return [step for step, times in self.fleet.effects().items() if times > 1]

    def recovered(self) -> int:
        """Steps that were begun more than once, and have one effect."""
        begun = Counter((it["job"], it["step"]) for it in self.fleet.journal("started"))
        return sum(times > 1 for times in begun.values())

    def refused(self) -> int:
        return sum(worker.words().count("step.refused") for worker in self.fleet.workers)
