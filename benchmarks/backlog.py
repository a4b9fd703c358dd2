"""Section: does a long queue, or one that fills after a quiet time, slow the worker down?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.bench import wait_until
from benchmarks.drain import load
from benchmarks.figures import Figure, Sample, Section, at_least
from benchmarks.processes import Meter, Subject
from benchmarks.systems import System, holdfast

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.databases import Place
    from benchmarks.tally import Tally

WINDOW = 10_000  # jobs over which a rate is taken
QUIET = 30  # single jobs before the burst: often enough for statements to be prepared and their plans kept

# The plain INSERT that the documentation promises to be a valid enqueue; the wake-up spares us the polling interval.
PLAIN = """
    INSERT INTO holdfast_job (id, kind, payload)
    SELECT 'plain-' || n, 'noop', CAST('{{"n":0}}' AS JSON) FROM generate_series({first}, {last}) AS n
"""
WAKE = "SELECT pg_notify('holdfast', 'default')"


def backlog(bench: Bench) -> Section:
    long, burst = bench.size(1_000_000, 100_000), bench.size(50_000, 20_000)
    system = holdfast("postgresql")
    at_short, at_burst, at_long = [], [], []
    meter = Meter()
    for _ in range(bench.rounds):
        with bench.databases.place("postgresql") as place:
            load(bench, system, place, WINDOW)
            place.rest()
            at_short.append(_window(bench, system, place))
        with bench.databases.place("postgresql") as place:
            place.prepare()
            at_burst.append(_burst(bench, system, place, burst))
    with bench.databases.place("postgresql") as place:
        bench.say(f"loading {long:,} jobs")
        load(bench, system, place, long)
        place.rest()
        at_long += [_window(bench, system, place) for _ in range(bench.rounds)]
    short, sudden, deep = (Sample(tuple(it), "jobs/s") for it in (at_short, at_burst, at_long))
    foreign = meter.foreign()
    same = f"of the rate at {WINDOW:,}"
    return Section(
        "A long queue, PostgreSQL",
        f"The first {WINDOW:,} jobs to be finished and acknowledged by a worker that has just started. The burst comes "
        "to a worker that has been waiting at an empty, vacuumed table, where kept query plans are worst.",
        [
            Figure(f"{WINDOW:,} ready jobs", short, (), foreign),
            Figure(f"{long:,} ready jobs", deep, (at_least(same, deep, short, 0.75),), foreign),
            Figure(
                f"burst of {burst:,} after a quiet time",
                sudden,
                (at_least(same, sudden, short, 0.5),),
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


def _burst(bench: Bench, system: System, place: Place, size: int) -> float:
    tally, path = bench.tally()
    with bench.running(system.work, place, path) as worker:
        _trickle(place, tally, worker, 0)
        place.rest()
        _trickle(place, tally, worker, QUIET)
        time.sleep(0.5)
        place.rows(PLAIN.format(first=2 * QUIET + 1, last=2 * QUIET + size))
        place.rows(WAKE)
        began = wait_until(lambda: tally.count > 2 * QUIET, worker)
        wait_until(lambda: tally.count >= 2 * QUIET + size, worker)
        end = wait_until(lambda: _finished(place) >= 2 * QUIET + size, worker)
    rate = size / (end - began)
    bench.say(f"burst of {size:,}: {rate:,.0f} jobs/s")
    return rate


def _trickle(place: Place, tally: Tally, worker: Subject, done: int) -> None:
    for n in range(done + 1, done + QUIET + 1):
        place.rows(PLAIN.format(first=n, last=n))
        place.rows(WAKE)
        wait_until(lambda n=n: tally.count >= n, worker)  # type: ignore[misc]


def _finished(place: Place) -> int:
    return int(place.rows("SELECT count(*) FROM holdfast_archive")[0][0])
