"""Sections: the cost of a page compared with its bare statements, with few and with many raw rows."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.bench import wait_until
from benchmarks.databases import NAMES, PRODUCTS, Product
from benchmarks.figures import Figure, Goal, Measured, Sample, Section, at_least_in_turns
from benchmarks.processes import Meter, cpu_seconds
from benchmarks.subjects.pages import PAGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.bench import Bench
    from benchmarks.databases import Place

MODULE = "benchmarks.subjects."
LOAD = (sys.executable, "-m", MODULE + "pages_load")
OURS = (sys.executable, "-m", "stepfast", "worker", MODULE + "pages_app:app")
RAW = (sys.executable, "-m", MODULE + "pages_raw")
COMMITTED = "SELECT count(*) FROM stepfast_page WHERE got > 0"
LANES = 30  # partitions
FEW = 10_000
FLAT = 0.85  # of the rate with few rows
CHAIN = 40  # pages of one partition, where rows are there already


@dataclass(frozen=True)
class Reading:
    """Pages of one run that were committed."""

    rate: float
    foreign: float
    worker: float  # microseconds of CPU per page
    server: float


def page_commits(bench: Bench) -> Section:
    pages = bench.size(6_000, 600)
    figures: list[Figure] = []
    for product in PRODUCTS:
        limits = {
            f"raw limit of {NAMES[product]}, connections: {n}": (*RAW, str(n))
            for n in ((1,) if product == "sqlite" else (1, 4))
        }
        commands = {**limits, f"Stepfast on {NAMES[product]}": OURS}
        found = _in_turns(bench, product, commands, pages)
        best = max((_sample(found[name]) for name in limits), key=lambda it: it.median)
        for name, runs in found.items():
            goals = (
                ()
                if name in limits
                else (at_least_in_turns("of the raw limit's best", _sample(runs), best, 0.7),)
            )
            figures.append(_figure(name, runs, *goals))
    return Section(
        "Pages of a run",
        f"{pages:,} pages of {PAGE} new rows (300 bytes each) in {LANES} partitions, from a source that answers at once. A page "
        "is its looks and its commit: raw rows, rows seen, cursor, ledger, continuation. The raw limit sends the same "
        "statements with parameters made ready beforehand, by the bare driver.",
        figures,
    )


def pages_among_many(bench: Bench) -> Section:
    many, pages = bench.size(1_000_000, 100_000), bench.size(2_000, 320)
    figures: list[Figure] = []
    for product in PRODUCTS:
        bare = "its own statements alone"
        ways = {
            "neighbours": partial(_read, bench, product, OURS, pages),
            "scattered": partial(_read, bench, product, OURS, pages, scattered=True),
            bare: partial(_read, bench, product, (*RAW, "1"), pages, scattered=True),
        }
        runs: dict[tuple[str, int], list[Reading]] = {(way, rows): [] for way in ways for rows in (FEW, many)}
        for _ in range(bench.rounds_of(product)):
            for (way, rows), known in runs.items():
                known.append(bench.quietest(partial(ways[way], rows), lambda it: it.foreign))
                bench.say(f"{NAMES[product]}, {way}, {rows:,} rows: {known[-1].rate:,.0f} pages/s")
        for (way, rows), known in runs.items():
            few = _sample(runs[way, FEW])
            goal = at_least_in_turns(f"of the rate with {FEW:,}", _sample(known), few, FLAT)
            figures.append(
                _figure(
                    f"{NAMES[product]}, {way}, {rows:,} raw rows",
                    known,
                    *((goal,) if rows == many and way != bare else ()),
                    more=f"; {goal.value:.2f} of the rate with {FEW:,}"
                    if rows == many and way == bare
                    else "",
                )
            )
    return Section(
        "Pages of a run, among many raw rows",
        f"{pages:,} pages of {PAGE} rows that were there with another content. The rows of a page are neighbours in the table, as "
        f"from a source that is read by key; or scattered over all of it, as from one that sorts by price: {FEW:,} of them, "
        "again and again. The bare driver with the same statements shows what scattered rows cost the database itself.",
        figures,
    )


def _in_turns(
    bench: Bench, product: Product, commands: Mapping[str, Sequence[str]], pages: int
) -> dict[str, list[Reading]]:
    found: dict[str, list[Reading]] = {name: [] for name in commands}
    for _ in range(bench.rounds_of(product)):
        for name, command in commands.items():
            run = bench.quietest(partial(_read, bench, product, command, pages), lambda it: it.foreign)
            found[name].append(run)
            bench.say(f"{name}: {run.rate:,.0f} pages/s (foreign {run.foreign:.2f} cores)")
    return found


def _read(
    bench: Bench,
    product: Product,
    command: Sequence[str],
    pages: int,
    rows: int = 0,
    *,
    scattered: bool = False,
) -> Reading:
    chain = CHAIN if rows else pages // LANES
    settings = {"BENCH_LANES": str(pages // chain), "BENCH_PAGES": str(chain), "BENCH_DOMAIN": str(rows)}
    if scattered:
        settings |= {"BENCH_SCATTERED": "1", "BENCH_DOMAIN": str(FEW), "BENCH_STRIDE": str(rows // FEW)}
    _, unused = bench.tally()
    tally, path = bench.tally()
    with bench.databases.place(product) as place:
        place.prepare()
        place.rows("CREATE TABLE bench_item (id VARCHAR(50) NOT NULL PRIMARY KEY, price INTEGER NOT NULL)")
        bench.subject((*LOAD, str(rows)), place, unused, **settings).answer()
        place.rest()
        with place.connection() as cursor, bench.running(command, place, path, **settings) as worker:

            def committed() -> bool:
                cursor.execute(COMMITTED)
                return bool(cursor.fetchall()[0][0] >= pages)

            wait_until(lambda: tally.count, worker)
            meter, used, served = Meter(), worker.cpu_seconds(), _served(place)
            end = wait_until(committed, worker)
            return Reading(
                rate=pages / (end - tally.first),
                foreign=meter.foreign(),
                worker=(worker.cpu_seconds() - used) / pages * 1e6,
                server=(_served(place) - served) / pages * 1e6,
            )


def _served(place: Place) -> float:
    return cpu_seconds(place.server) if place.server else 0.0


def _sample(runs: Sequence[Reading]) -> Sample:
    return Sample.of((Measured(it.rate, it.foreign) for it in runs), "pages/s")


def _figure(name: str, runs: Sequence[Reading], *goals: Goal, more: str = "") -> Figure:
    spent = {
        "worker": statistics.median(it.worker for it in runs),
        "server": statistics.median(it.server for it in runs),
    }
    told = ", ".join(f"{who} {used:.0f} µs" for who, used in spent.items() if used > 0)
    return Figure(name, _sample(runs), goals, f"CPU per page: {told or 'not told'}{more}")
