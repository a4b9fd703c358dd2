"""Section: enqueue, in bulk and one by one."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.databases import NAMES, PRODUCTS, Product
from benchmarks.environments import interpreter
from benchmarks.figures import Figure, Measured, Sample, Section, at_least
from benchmarks.processes import Meter
from benchmarks.systems import MODULE

if TYPE_CHECKING:
    from benchmarks.bench import Bench

BATCHES = (1_000, 10_000)


def enqueueing(bench: Bench) -> Section:
    many, few = bench.size(50_000, 10_000), bench.size(1_000, 100)
    callers: dict[str, tuple[Product, tuple[str, ...]]] = {
        f"Stepfast on {NAMES[product]}": (product, (sys.executable, "-m", MODULE + "stepfast_enqueue"))
        for product in PRODUCTS
    }
    callers["PgQueuer"] = ("postgresql", (interpreter("pgqueuer"), "-m", MODULE + "pgqueuer_enqueue"))
    rates: dict[str, list[Measured]] = {}
    for _ in range(bench.rounds):
        for name, (product, command) in callers.items():
            for batch in (*BATCHES, 1):
                count = few if batch == 1 else many
                title = f"{name}, one by one" if batch == 1 else f"{name}, {batch:,} to a call"
                measure = partial(_rate, bench, product, command, count, batch)
                rate = bench.quietest(measure, lambda it: it.foreign)
                rates.setdefault(title, []).append(rate)
                bench.say(f"{title}: {rate.value:,.0f} jobs/s (foreign {rate.foreign:.2f} cores)")
    samples = {title: Sample.of(values, "jobs/s") for title, values in rates.items()}
    ours, theirs = (_best(samples, name) for name in ("Stepfast on PostgreSQL", "PgQueuer"))
    figures = []
    for title, sample in samples.items():
        goals = (at_least("of PgQueuer's best bulk", sample, samples[theirs], 2),) if title == ours else ()
        figures.append(Figure(title, sample, goals))
    return Section(
        "Enqueue",
        f"{many:,} jobs in bulk, {few:,} one by one, from one process; each call is a durable commit.",
        figures,
    )


def _best(samples: dict[str, Sample], name: str) -> str:
    bulk = [title for title in samples if title.startswith(name) and title.endswith("to a call")]
    return max(bulk, key=lambda title: samples[title].median)


def _rate(bench: Bench, product: Product, command: tuple[str, ...], count: int, batch: int) -> Measured:
    with bench.databases.place(product) as place:
        place.prepare()
        _, tally = bench.tally()
        mode = "single" if batch == 1 else "bulk"
        asked = [*command, mode, "noop", str(count), str(batch)]
        meter = Meter()
        seconds = float(bench.subject(asked, place, tally).answer())
        return Measured(count / seconds, meter.foreign())
