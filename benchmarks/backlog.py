"""Section: does a long queue, or one that fills after a quiet time, slow the worker down?"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.bench import wait_until
from benchmarks.drain import load
from benchmarks.figures import Figure, Measured, Sample, Section, at_least
from benchmarks.processes import Meter, Subject
from benchmarks.systems import System, stepfast

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.databases import Place
    from benchmarks.tally import Tally

WINDOW = 10_000  # jobs over which a rate is taken
QUIET = 30  # single jobs before the burst: often enough for statements to be prepared and their plans kept

# The plain INSERT that the documentation promises to be a valid enqueue; the wake-up spares us the polling interval.
PLAIN = """
    INSERT INTO stepfast_job (id, kind, payload)
    SELECT 'plain-' || n, 'noop', CAST('{{"n":0}}' AS JSON) FROM generate_series({first}, {last}) AS n
"""
WAKE = "SELECT pg_notify('stepfast', 'default')"


def backlog(bench: Bench) -> Section:
    long, burst = bench.size(1_000_000, 100_000), bench.size(50_000, 20_000)
    system = stepfast("postgresql")
    at_short, at_burst, at_long = [], [], []
    for _ in range(bench.rounds):
        at_short.append(bench.quietest(partial(_short, bench, system), _foreign))
        at_burst.append(_burst(bench, system, burst))  # never repeated: this section looks for stalls
    with bench.databases.place("postgresql") as place:
        bench.say(f"loading {long:,} jobs")
        load(bench, system, place, long)
        place.rest()
        measure = partial(window, bench, system, place)
        at_long += [bench.quietest(measure, _foreign) for _ in range(bench.rounds)]
    short, sudden, deep = (Sample.of(it, "jobs/s") for it in (at_short, at_burst, at_long))
    same = f"of the rate at {WINDOW:,}"
    return Section(
        "A long queue, PostgreSQL",
        f"The first {WINDOW:,} jobs to be finished and acknowledged by a worker that has just started. The burst comes "
        "to a worker that has been waiting at an empty, vacuumed table, where kept query plans are worst.",
        [
            Figure(f"{WINDOW:,} ready jobs", short),
            Figure(f"{long:,} ready jobs", deep, (at_least(same, deep, short, 0.75),)),
            Figure(
                f"burst of {burst:,} after a quiet time",
                sudden,
                (at_least(same, sudden, short, 0.5),),
            ),
        ],
    )


def _short(bench: Bench, system: System) -> Measured:
    with bench.databases.place("postgresql") as place:
        load(bench, system, place, WINDOW)
        place.rest()
        return window(bench, system, place)


def window(bench: Bench, system: System, place: Place) -> Measured:
    """How fast the next jobs of a queue are finished."""
    tally, path = bench.tally()
    before = _finished(place)
    with bench.running(system.work, place, path) as worker:
        wait_until(lambda: tally.count, worker)
        meter = Meter()
        wait_until(lambda: tally.count >= WINDOW, worker)
        end = wait_until(lambda: _finished(place) - before >= WINDOW, worker)
        foreign = meter.foreign()
    rate = WINDOW / (end - tally.first)
    bench.say(f"window of {WINDOW:,}: {rate:,.0f} jobs/s (foreign {foreign:.2f} cores)")
    return Measured(rate, foreign)


def _burst(bench: Bench, system: System, size: int) -> Measured:
    tally, path = bench.tally()
    done = 2 * QUIET
    with bench.databases.place("postgresql") as place:
        place.prepare()
        with bench.running(system.work, place, path) as worker:
            _trickle(place, tally, worker, 0)
            place.rest()
            _trickle(place, tally, worker, QUIET)
            time.sleep(0.5)
            place.rows(PLAIN.format(first=done + 1, last=done + size))
            place.rows(WAKE)
            began, meter = wait_until(lambda: tally.count > done, worker), Meter()
            wait_until(lambda: tally.count >= done + size, worker)
            end = wait_until(lambda: _finished(place) >= done + size, worker)
            foreign = meter.foreign()
    rate = size / (end - began)
    bench.say(f"burst of {size:,}: {rate:,.0f} jobs/s (foreign {foreign:.2f} cores)")
    return Measured(rate, foreign)


def _trickle(place: Place, tally: Tally, worker: Subject, done: int) -> None:
    for n in range(done + 1, done + QUIET + 1):
        place.rows(PLAIN.format(first=n, last=n))
        place.rows(WAKE)
        wait_until(lambda n=n: tally.count >= n, worker)  # type: ignore[misc]


def _foreign(it: Measured) -> float:
    return it.foreign


def _finished(place: Place) -> int:
    return int(place.rows("SELECT count(*) FROM stepfast_archive")[0][0])
