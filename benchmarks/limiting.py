"""Sections: what limits cost, with how many keys, and what a million jobs for later cost the claim."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.backlog import window
from benchmarks.bench import wait_until
from benchmarks.databases import NAMES, PRODUCTS
from benchmarks.drain import drains, load
from benchmarks.figures import Figure, Measured, Sample, Section, at_least
from benchmarks.processes import Meter
from benchmarks.systems import stepfast

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.databases import Place

LATER = """
    INSERT INTO stepfast_job (id, kind, state, ready_at, payload)
    SELECT 'later-' || n, 'noop', 'scheduled', 2000000000000000 + n, CAST('{{"n":0}}' AS JSON)
      FROM generate_series(1, {count}) AS n
"""


def limiting(bench: Bench) -> Section:
    count = bench.size(20_000, 3_000)
    figures = []
    for product in PRODUCTS:
        plain = dataclasses.replace(stepfast(product), name=f"{NAMES[product]}, no limits")
        limited = dataclasses.replace(
            stepfast(product, "limited"), name=f"{NAMES[product]}, with a rate and a concurrency limit"
        )
        found = drains(bench, [(plain, count), (limited, count)])
        goal = at_least("of the drain without limits", found[limited.name].rate, found[plain.name].rate, 0.5)
        figures += [found[plain.name].figure(), found[limited.name].figure(goal)]
    return Section(
        "What limits cost",
        f"Drain of {count:,} no-op jobs that all have to pass two limits, neither of which is ever full.",
        figures,
    )


def many_keys(bench: Bench) -> Section:
    count = bench.size(100_000, 10_000)
    firsts, lasts = [], []
    for _ in range(bench.rounds):
        first, last = _keys(bench, count)
        firsts.append(first)
        lasts.append(last)
    begin, end = Sample.of(firsts, "jobs/s"), Sample.of(lasts, "jobs/s")
    part = count // 5
    return Section(
        "Limits by key, PostgreSQL",
        f"{count:,} jobs, each with a key of its own and two limits by it: {2 * count:,} limits are made on the way.",
        [
            Figure(f"the first {part:,}", begin),
            Figure(f"the last {part:,}", end, (at_least("of the rate at the start", end, begin, 0.75),)),
        ],
    )


def _keys(bench: Bench, count: int) -> tuple[Measured, Measured]:
    system, part = stepfast("postgresql", "keyed"), count // 5
    tally, path = bench.tally()
    with bench.databases.place("postgresql") as place:
        load(bench, system, place, count)
        place.rest()
        with bench.running(system.work, place, path) as worker:
            marks, foreign = [], []
            for reached in (1, part, count - part, count):
                meter = Meter()
                marks.append(wait_until(lambda reached=reached: tally.count >= reached, worker))  # type: ignore[misc]
                foreign.append(meter.foreign())
    first, last = part / (marks[1] - marks[0]), part / (marks[3] - marks[2])
    bench.say(f"keys: first {first:,.0f}, last {last:,.0f} jobs/s (foreign {max(foreign):.2f} cores)")
    return Measured(first, foreign[1]), Measured(last, foreign[3])


def for_later(bench: Bench) -> Section:
    many = bench.size(1_000_000, 100_000)
    alone = [bench.quietest(partial(_drained, bench, 0), lambda it: it.foreign) for _ in range(bench.rounds)]
    beside = [
        bench.quietest(partial(_drained, bench, many), lambda it: it.foreign) for _ in range(bench.rounds)
    ]
    without, with_them = Sample.of(alone, "jobs/s"), Sample.of(beside, "jobs/s")
    return Section(
        "Jobs scheduled for later, PostgreSQL",
        "The drain of ready jobs while others, which are not due, wait in the same table.",
        [
            Figure("none for later", without),
            Figure(
                f"{many:,} for later",
                with_them,
                (at_least("of the rate without them", with_them, without, 0.9),),
            ),
        ],
    )


def _drained(bench: Bench, later: int) -> Measured:
    system = stepfast("postgresql")
    with bench.databases.place("postgresql") as place:
        load(bench, system, place, bench.size(20_000, 10_000))
        _fill(place, later)
        place.rest()
        return window(bench, system, place)


def _fill(place: Place, later: int) -> None:
    if later:
        place.rows(LATER.format(count=later))
