"""Section: a worker is killed with SIGKILL; how soon does its job run again?"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from benchmarks.bench import wait_until
from benchmarks.databases import NAMES, PRODUCTS, Product
from benchmarks.figures import Figure, Sample, Section, at_most
from benchmarks.systems import MODULE, stepfast

if TYPE_CHECKING:
    from benchmarks.bench import Bench

OBSERVING = 12.0  # seconds: a worker declares others dead only after it has run for a whole lease
ELSEWHERE = "UPDATE stepfast_worker SET process = 'another machine' WHERE state = 'alive'"


def recovery(bench: Bench) -> Section:
    cases = [(product, seen) for product in PRODUCTS for seen in (True, False)]
    waits: dict[tuple[Product, bool], list[float]] = {case: [] for case in cases}
    for _ in range(bench.rounds):
        with ThreadPoolExecutor(len(cases)) as together:  # they mostly wait
            for case, wait in zip(cases, together.map(lambda case: _wait(bench, *case), cases), strict=True):
                waits[case].append(wait)
                bench.say(f"{_title(*case)}: {wait:.1f} s")
    samples = {case: Sample(tuple(values), "s") for case, values in waits.items()}
    return Section(
        "Pick-up after SIGKILL",
        "Default settings, a second worker stands by. From the kill to the first line of the job's next run; first with "
        "the second worker on the same machine, then with the first one's process made unrecognisable, so that only "
        "the lease can tell.",
        [
            Figure(_title(*case), sample, (at_most("until it runs again", sample, 15),))
            for case, sample in samples.items()
        ],
    )


def _title(product: Product, seen: bool) -> str:  # noqa: FBT001 - private
    return f"{NAMES[product]}, {'same machine' if seen else 'lease only'}"


def _wait(bench: Bench, product: Product, seen: bool) -> float:  # noqa: FBT001 - private
    system = stepfast(product, "endless")
    enqueue = [sys.executable, "-m", MODULE + "stepfast_enqueue", "single", "endless", "1"]
    with bench.databases.place(product) as place:
        place.prepare()
        first, first_path = bench.tally()
        second, second_path = bench.tally()
        bench.subject(enqueue, place, second_path).answer()
        with bench.running(system.work, place, first_path) as victim:
            wait_until(lambda: first.count, victim)
            if not seen:
                place.rows(ELSEWHERE)
            with bench.running(system.work, place, second_path) as witness:
                time.sleep(OBSERVING)
                killed = time.monotonic()
                victim.kill()
                wait_until(lambda: second.count, witness)
                answer = second.first - killed
                witness.kill()
                return answer
