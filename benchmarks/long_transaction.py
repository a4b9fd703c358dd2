"""Section: a foreign transaction stays open, so that no dead row can be removed, and work goes on."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.bench import wait_until
from benchmarks.figures import Figure, Measured, Sample, Section, at_least
from benchmarks.processes import Meter
from benchmarks.systems import MODULE, stepfast

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.tally import Tally

AHEAD = 5_000  # ready jobs that the enqueuer keeps in front of the worker
WINDOW = 3.0
LATER = 15.0


def long_transaction(bench: Bench) -> Section:
    pairs = []
    for _ in range(bench.rounds):
        first, second = bench.quietest(partial(_pair, bench), lambda pair: max(it.foreign for it in pair))
        pairs.append((first, second))
        bench.say(f"{first.value:,.0f} jobs/s at the start, {second.value:,.0f} after {LATER:.0f} s")
    start, later = (Sample.of(values, "jobs/s") for values in zip(*pairs, strict=True))
    return Section(
        "A foreign transaction held open, PostgreSQL",
        f"A REPEATABLE READ transaction with a snapshot in another session; a process enqueues steadily ({AHEAD:,} jobs "
        f"ahead of the worker); jobs started in windows of {WINDOW:.0f} s.",
        [
            Figure("at the start", start),
            Figure(
                f"after {LATER:.0f} s",
                later,
                (at_least("of the rate at the start", later, start, 0.6),),
            ),
        ],
    )


def _pair(bench: Bench) -> tuple[Measured, Measured]:
    system = stepfast("postgresql")
    enqueue = [sys.executable, "-m", MODULE + "stepfast_enqueue", "steady", "noop", str(AHEAD)]
    with bench.databases.place("postgresql") as place:
        place.prepare()
        place.rest()
        tally, path = bench.tally()
        with place.connection() as holder, bench.running(enqueue, place, path):
            holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT count(*) FROM stepfast_job")  # takes the snapshot
            with bench.running(system.work, place, path) as worker:
                began = wait_until(lambda: tally.count >= AHEAD, worker)
                first = _rate(tally)
                time.sleep(max(0.0, began + LATER - time.monotonic()))
                second = _rate(tally)
    return first, second


def _rate(tally: Tally) -> Measured:
    before, began, meter = tally.count, time.monotonic(), Meter()
    time.sleep(WINDOW)
    rate = (tally.count - before) / (time.monotonic() - began)
    return Measured(rate, meter.foreign())
