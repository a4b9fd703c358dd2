"""Section: how soon a job starts on an idle queue."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.bench import wait_until
from benchmarks.databases import PRODUCTS
from benchmarks.environments import interpreter
from benchmarks.figures import Figure, Measured, Sample, Section, at_most
from benchmarks.processes import Meter
from benchmarks.systems import MODULE, System, pgqueuer, stepfast

if TYPE_CHECKING:
    from benchmarks.bench import Bench

SETTLING = 3.0  # seconds until a worker counts as idle


@dataclass(frozen=True)
class Pass:
    middle: float  # milliseconds
    late: float  # the 99th percentile
    foreign: float


def latency(bench: Bench) -> Section:
    count = bench.size(300, 100)
    ours = {
        stepfast(product, "moment").name: (
            stepfast(product, "moment"),
            (sys.executable, "-m", MODULE + "stepfast_enqueue"),
        )
        for product in PRODUCTS
    }
    peer = (pgqueuer(200), (interpreter("pgqueuer"), "-m", MODULE + "pgqueuer_enqueue"))
    systems: dict[str, tuple[System, tuple[str, ...]]] = {**ours, "PgQueuer": peer}
    passes: dict[str, list[Pass]] = {name: [] for name in systems}
    for _ in range(bench.rounds):
        for name, (system, enqueue) in systems.items():
            one = bench.quietest(partial(_pass, bench, system, enqueue, count), lambda it: it.foreign)
            passes[name].append(one)
            bench.say(
                f"{name}: p50 {one.middle:.1f} ms, p99 {one.late:.1f} ms (foreign {one.foreign:.2f} cores)"
            )
    figures = []
    for name, found in passes.items():
        middle = Sample.of((Measured(it.middle, it.foreign) for it in found), "ms")
        late = Sample.of((Measured(it.late, it.foreign) for it in found), "ms")
        promised = name in ours
        figures += [
            Figure(f"{name}, p50", middle, (at_most("p50", middle, 5),) if promised else ()),
            Figure(f"{name}, p99", late, (at_most("p99", late, 25),) if promised else ()),
        ]
    return Section(
        "Pick-up latency on an idle queue",
        f"{count} jobs, one every 20 ms, from before the enqueue call (its durable commit included) in one process to "
        "the first line of the job in another.",
        figures,
    )


def _pass(bench: Bench, system: System, enqueue: tuple[str, ...], count: int) -> Pass:
    with bench.databases.place(system.product) as place:
        place.prepare()
        if "pgqueuer" in system.unfinished:
            _, scratch = bench.tally()
            bench.subject([*enqueue, "bulk", "moment", "0", "1"], place, scratch).answer()  # its tables
        starts, path = bench.tally(count)
        calls, calls_path = bench.tally(count)
        with bench.running(system.work, place, path, **system.settings) as worker:
            time.sleep(SETTLING)
            meter = Meter()
            bench.subject(
                [*enqueue, "paced", "moment", str(count)], place, path, BENCH_CALLS=str(calls_path)
            ).answer()
            wait_until(lambda: starts.count >= count, worker)
            pairs = zip(calls.moments(), starts.moments(), strict=True)
            waits = sorted((start - call) * 1000 for call, start in pairs)
            return Pass(statistics.median(waits), waits[int(len(waits) * 0.99)], meter.foreign())
