"""How fast a full queue is emptied.

Jobs are loaded first. The clock runs from the first line of the first job until the queue's table shows nothing
unfinished: what was prefetched or answered but not yet written does not count as done.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.bench import Bench, wait_until
from benchmarks.figures import Figure, Goal, Measured, Sample
from benchmarks.processes import Meter, cpu_seconds

if TYPE_CHECKING:
    from benchmarks.databases import Place
    from benchmarks.systems import System


@dataclass(frozen=True)
class Run:
    rate: float
    foreign: float
    worker: float  # microseconds of CPU per job
    server: float


@dataclass(frozen=True)
class Drained:
    """The runs of one system."""

    system: System
    runs: tuple[Run, ...]

    @property
    def rate(self) -> Sample:
        return Sample.of((Measured(run.rate, run.foreign) for run in self.runs), "jobs/s")

    def figure(self, *goals: Goal) -> Figure:
        worker, server = (
            statistics.median(values)
            for values in zip(*((it.worker, it.server) for it in self.runs), strict=True)
        )
        spent = [f"{who} {used:.0f} µs" for who, used in (("worker", worker), ("server", server)) if used > 0]
        note = f"CPU per job: {', '.join(spent)}" if spent else ""
        return Figure(self.system.name, self.rate, goals, note)


def drains(
    bench: Bench, counts: Sequence[tuple[System, int]], rounds: int | None = None
) -> dict[str, Drained]:
    """Measure several systems in turns, so that a noisy minute hits all of them; by name."""
    runs: dict[str, list[Run]] = {system.name: [] for system, _ in counts}
    for _ in range(rounds or bench.rounds):
        for system, count in counts:
            run = bench.quietest(partial(drain, bench, system, count), lambda it: it.foreign)
            runs[system.name].append(run)
            bench.say(f"{system.name}: {run.rate:,.0f} jobs/s (foreign {run.foreign:.2f} cores)")
    return {system.name: Drained(system, tuple(runs[system.name])) for system, _ in counts}


def best(drained: dict[str, Drained], prefix: str) -> Drained:
    """The fastest of one system's configurations."""
    return max((it for name, it in drained.items() if name.startswith(prefix)), key=lambda it: it.rate.median)


def drain(bench: Bench, system: System, count: int) -> Run:
    with bench.databases.place(system.product) as place:
        load(bench, system, place, count)
        place.rest()
        return work(bench, system, place, count)


def load(bench: Bench, system: System, place: Place, count: int) -> float:
    """Enqueue by the system's own means; returns jobs per second."""
    if "stepfast_job" in system.unfinished:
        place.prepare()
    _, path = bench.tally()
    return count / float(bench.subject(system.loading(count), place, path, **system.settings).answer())


def work(bench: Bench, system: System, place: Place, count: int) -> Run:
    tally, path = bench.tally()
    with (
        place.connection() as cursor,
        bench.running(system.work, place, path, **system.settings) as worker,
    ):

        def finished() -> bool:
            cursor.execute(system.unfinished)
            return not cursor.fetchall()

        wait_until(lambda: tally.count, worker)
        meter, used, served = Meter(), worker.cpu_seconds(), _served(place)
        wait_until(lambda: tally.count >= count, worker)
        started = worker.cpu_seconds()  # the raw limit ends by itself: its CPU time cannot be read afterwards
        end = wait_until(finished, worker)
        elapsed = end - tally.first
        return Run(
            rate=count / elapsed,
            foreign=meter.foreign(),
            worker=(max(started, worker.cpu_seconds()) - used) / count * 1e6,
            server=(_served(place) - served) / count * 1e6,
        )


def _served(place: Place) -> float:
    return cpu_seconds(place.server) if place.server else 0.0
