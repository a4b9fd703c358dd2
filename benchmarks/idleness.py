"""Section: CPU and memory of an idle worker."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.databases import PRODUCTS
from benchmarks.figures import Figure, Measured, Sample, Section, at_most
from benchmarks.processes import Meter
from benchmarks.systems import stepfast

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.processes import Subject

SETTLING = 15.0  # seconds after which a worker counts as idle


def idleness(bench: Bench) -> Section:
    seconds = bench.size(20, 5)
    with ExitStack() as stack:
        workers: dict[str, Subject] = {}
        for product in PRODUCTS:
            place = stack.enter_context(bench.databases.place(product))
            place.prepare()
            system = stepfast(product)
            _, tally = bench.tally()
            workers[system.name] = stack.enter_context(bench.running(system.work, place, tally))
        time.sleep(SETTLING)
        shares: dict[str, list[Measured]] = {name: [] for name in workers}
        for _ in range(bench.rounds):
            used = {name: worker.cpu_seconds() for name, worker in workers.items()}
            began, meter = time.monotonic(), Meter()
            time.sleep(seconds)
            elapsed, foreign = time.monotonic() - began, meter.foreign()
            for name, worker in workers.items():
                share = 100 * (worker.cpu_seconds() - used[name]) / elapsed
                shares[name].append(Measured(share, foreign))
                bench.say(f"{name}: {share:.2f} % of a core (foreign {foreign:.2f} cores)")
        memory = {name: worker.memory() for name, worker in workers.items()}
    figures = []
    for name in workers:
        cpu = Sample.of(shares[name], "%")
        resident, proportional = (Sample((it,), "MB") for it in memory[name])
        figures += [
            Figure(f"{name}, CPU", cpu, (at_most("of a core", cpu, 0.5),)),
            Figure(
                f"{name}, resident memory",
                resident,
                (at_most("resident", resident, 60),),
                note=f"proportional {proportional.median:.0f} MB",
            ),
        ]
    return Section(
        "An idle worker",
        f"`stepfast worker` with default settings, {seconds} s at a time, nothing to do.",
        figures,
    )
