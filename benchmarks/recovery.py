"""Section: a worker is killed with SIGKILL; how soon does its job run again?"""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

from benchmarks.bench import wait_until
from benchmarks.databases import NAMES, PRODUCTS, Product
from benchmarks.figures import Figure, Sample, Section, at_most
from benchmarks.systems import MODULE, stepfast
from devtools.processes import family

if TYPE_CHECKING:
    from benchmarks.bench import Bench

Death = Literal["guardian lives", "same machine", "lease only"]
DEATHS: tuple[Death, ...] = ("guardian lives", "same machine", "lease only")

OBSERVING = 12.0  # seconds: a worker declares others dead only after it has run for a whole lease
ELSEWHERE = "UPDATE stepfast_worker SET process = 'another machine', guardian = NULL WHERE state = 'alive'"


def recovery(bench: Bench) -> Section:
    cases = [(product, death) for product in PRODUCTS for death in DEATHS]
    waits: dict[tuple[Product, Death], list[float]] = {case: [] for case in cases}
    for _ in range(bench.rounds):
        with ThreadPoolExecutor(len(cases)) as together:  # they mostly wait
            for case, wait in zip(cases, together.map(lambda case: _wait(bench, *case), cases), strict=True):
                waits[case].append(wait)
                bench.say(f"{_title(*case)}: {wait:.1f} s")
    samples = {case: Sample(tuple(values), "s") for case, values in waits.items()}
    return Section(
        "Pick-up after SIGKILL",
        "Default settings, a second worker stands by. From the kill to the first line of the job's next run. First the worker's "
        "process is killed, its guardian lives, and the second worker is on another machine: its process is made unrecognisable. Then "
        "both processes are killed, with the second worker on the same machine, and on another one, so that only the lease can tell.",
        [
            Figure(
                _title(*case),
                sample,
                (at_most("until it runs again", sample, 4 if case[1] == DEATHS[0] else 15),),
            )
            for case, sample in samples.items()
        ],
    )


def _title(product: Product, death: Death) -> str:
    return f"{NAMES[product]}, {death}"


def _wait(bench: Bench, product: Product, death: Death) -> float:
    system = stepfast(product, "endless")
    enqueue = [sys.executable, "-m", MODULE + "stepfast_enqueue", "single", "endless", "1"]
    with bench.databases.place(product) as place:
        place.prepare()
        first, first_path = bench.tally()
        second, second_path = bench.tally()
        bench.subject(enqueue, place, second_path).answer()
        with bench.running(system.work, place, first_path) as victim:
            wait_until(lambda: first.count, victim)
            with bench.running(system.work, place, second_path) as witness:
                time.sleep(OBSERVING)
                if death != "same machine":
                    place.rows(ELSEWHERE)
                killed = time.monotonic()
                if death == "guardian lives":
                    os.kill(family(victim.process.pid)[1], signal.SIGKILL)
                else:
                    victim.kill()
                # The guardian starts another worker beside it, which may be the first to run the job again.
                wait_until(lambda: second.count or first.count > 1, witness)
                answer = (second.first if second.count else first.last) - killed
                witness.kill()
                return answer
