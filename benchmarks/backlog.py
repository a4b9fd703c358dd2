"""Section: does a long queue, or one that fills after a quiet time, slow the worker down?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.bench import wait_until
from benchmarks.drain import load
from benchmarks.figures import Figure, Sample, Section, at_least
from benchmarks.processes import Meter
from benchmarks.systems import System, holdfast

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.databases import Place

WINDOW = 10_000  # jobs over which a rate is taken


def backlog(bench: Bench) -> Section:
    long = bench.size(1_000_000, 100_000)
    system = holdfast("postgresql")
    short, burst, deep = [], [], []
    meter = Meter()
    for _ in range(bench.rounds):
        with bench.databases.place("postgresql") as place:
            load(bench, system, place, WINDOW)
            place.rest()
            short.append(_window(bench, system, place))
        burst.append(_burst(bench, system))
    with bench.databases.place("postgresql") as place:
        bench.say(f"loading {long:,} jobs")
        load(bench, system, place, long)
        place.rest()
        for _ in range(bench.rounds):
            deep.append(_window(bench, system, place))
    at_short, at_burst, at_long = (Sample(tuple(it), "jobs/s") for it in (short, burst, deep))
    foreign = meter.foreign()
    return Section(
        "A long queue, PostgreSQL",
        f"The first {WINDOW:,} jobs that are finished and acknowledged, by a worker that has just started. The burst: a "
        "worker that was idle on an empty, vacuumed table when the jobs arrived.",
        [
            Figure(f"{WINDOW:,} ready jobs", at_short, (), foreign),
            Figure(
                f"{long:,} ready jobs",
                at_long,
                (at_least(f"of the rate at {WINDOW:,}", at_long, at_short, 0.75),),
                foreign,
            ),
            Figure(
                f"burst of {WINDOW:,} after an idle time",
                at_burst,
                (at_least(f"of the rate at {WINDOW:,}", at_burst, at_short, 0.5),),
                foreign,
            ),
        ],
    )


def _window(bench: Bench, system: System, place: Place) -> float:
    tally, path = bench.tally()
    before = _finished(place)
    with bench.running(system.work, place, path) as worker:
        wait_until(lambda: tally.count >= WINDOW, worker)
        end = wait_until(lambda: _finished(place) - before >= WINDOW, worker)
    rate = WINDOW / (end - tally.first)
    bench.say(f"window of {WINDOW:,}: {rate:,.0f} jobs/s")
    return rate


def _burst(bench: Bench, system: System) -> float:
    with bench.databases.place("postgresql") as place:
        place.prepare()
        tally, path = bench.tally()
        with bench.running(system.work, place, path) as worker:
            for quiet in range(1, 31):  # often enough for every statement to be prepared and its plan kept
                load_one(bench, place)
                wait_until(lambda quiet=quiet: tally.count >= quiet, worker)  # type: ignore[misc]
            place.rest()
            for quiet in range(31, 61):
                load_one(bench, place)
                wait_until(lambda quiet=quiet: tally.count >= quiet, worker)  # type: ignore[misc]
            time.sleep(1)
            began = time.monotonic()
            bench.subject(system.loading(WINDOW), place, path).answer()
            end = wait_until(lambda: _finished(place) >= WINDOW + 60, worker)
    rate = WINDOW / (end - began)
    bench.say(f"burst of {WINDOW:,}: {rate:,.0f} jobs/s")
    return rate


def load_one(bench: Bench, place: Place) -> None:
    raise NotImplementedError


def _finished(place: Place) -> int:
    return int(place.rows("SELECT count(*) FROM holdfast_archive")[0][0])
