"""Sections: consolidation compared with the database's own INSERT … SELECT, with few and with many rows."""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.bench import wait_until
from benchmarks.databases import NAMES, PRODUCTS, Product
from benchmarks.figures import Figure, Measured, Sample, Section, at_least, at_least_in_turns
from benchmarks.processes import Meter, cpu_seconds
from benchmarks.subjects.stones import MARK, NEXT, TABLE, begin, insert_select
from stepfast import Stepfast

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.bench import Bench
    from benchmarks.databases import Place

MODULE = "benchmarks.subjects."
LOAD = (sys.executable, "-m", MODULE + "stones_load")
WORKER = (sys.executable, "-m", "stepfast", "worker", MODULE + "stones_app:app")
ENDED = "SELECT count(*) FROM stepfast_run WHERE state = 'completed'"
FAILED = "SELECT state, reason FROM stepfast_run WHERE ended_at IS NOT NULL AND state <> 'completed'"
ALIVE = "SELECT count(*) FROM stepfast_worker WHERE state = 'alive'"
FEW = 10_000
WAYS = ("inserted", "replaced")


@dataclass(frozen=True)
class Reading:
    """Rows of one run that were applied."""

    rate: float
    foreign: float
    client: float  # microseconds of CPU per row: the worker's, or SQLite's
    server: float


def consolidation(bench: Bench) -> Section:
    rows = bench.size(200_000, 20_000)
    figures: list[Figure] = []
    for product in PRODUCTS:
        found: dict[str, list[Reading]] = {}
        for _ in range(bench.rounds_of(product)):
            for name, by_us in (("INSERT … SELECT", False), ("Stepfast", True)):
                measure = partial(_both, bench, product, rows, by_us=by_us)
                for way, rate in zip(WAYS, bench.quietest(measure, _foreign), strict=True):
                    found.setdefault(f"{name}, {NAMES[product]}, {way}", []).append(rate)
                    bench.say(
                        f"{name} on {NAMES[product]}, {way}: {rate.rate:,.0f} rows/s (foreign {rate.foreign:.2f})"
                    )
        samples = {name: _sample(runs) for name, runs in found.items()}
        for name, sample in samples.items():
            bound = samples[name.replace("Stepfast", "INSERT … SELECT")]
            goals = (
                (at_least_in_turns("of INSERT … SELECT", sample, bound, 0.6),)
                if name.startswith("Stepfast")
                else ()
            )
            figures.append(Figure(name, sample, goals, _spent(found[name])))
    return Section(
        "Consolidation",
        f"{rows:,} raw rows of 300 bytes become target rows with 12 columns: inserted, then all replaced. Stepfast maps them "
        "in Python, from the begin of the consolidation to the completed run. The bound is the database alone: batches of "
        "2,000, each one INSERT … SELECT of the same columns and one UPDATE that marks the raw rows.",
        figures,
    )


def consolidation_of_many(bench: Bench) -> Section:
    many = bench.size(1_000_000, 100_000)
    figures: list[Figure] = []
    for product in PRODUCTS:
        rates: dict[int, list[Reading]] = {FEW: [], many: []}
        for rows, found in rates.items():
            for _ in range(bench.rounds if rows == FEW else 1):
                found.append(bench.quietest(partial(_rate, bench, product, rows), lambda it: it.foreign))
                bench.say(f"{NAMES[product]}, {rows:,} rows: {found[-1].rate:,.0f} rows/s")
        few, deep = (_sample(it) for it in rates.values())
        figures += [
            Figure(f"{NAMES[product]}, {FEW:,} raw rows", few, (), _spent(rates[FEW])),
            Figure(
                f"{NAMES[product]}, {many:,} raw rows",
                deep,
                (at_least(f"of the rate with {FEW:,}", deep, few, 0.85),),
                _spent(rates[many]),
            ),
        ]
    return Section(
        "Consolidation of many rows",
        "All rows of a feed, from the begin of the consolidation to the completed run, into an empty table.",
        figures,
    )


def _rate(bench: Bench, product: Product, rows: int) -> Reading:
    with bench.databases.place(product) as place:
        place.prepare()
        place.rows(TABLE)
        _load(bench, place, str(rows), "1")
        place.rest()
        return _ours(bench, place, rows, 1)


def _both(bench: Bench, product: Product, rows: int, *, by_us: bool) -> list[Reading]:
    """Into an empty table, then into the full one."""
    with bench.databases.place(product) as place:
        place.prepare()
        place.rows(TABLE)
        found = []
        for version in (1, 2):
            _load(bench, place, str(rows), str(version))
            place.rest()
            found.append(_ours(bench, place, rows, version) if by_us else _alone(place, rows))
        return found


def _ours(bench: Bench, place: Place, rows: int, runs: int) -> Reading:
    _, path = bench.tally()
    with bench.running(WORKER, place, path) as worker, place.connection() as cursor:

        def count(statement: str) -> int:
            cursor.execute(statement)
            return int(cursor.fetchall()[0][0])

        def ended() -> bool:
            cursor.execute(FAILED)
            if failed := cursor.fetchall():
                raise RuntimeError(f"the run ended as {failed[0]}")
            return count(ENDED) >= runs

        wait_until(lambda: count(ALIVE), worker)
        meter, used, served = Meter(), worker.cpu_seconds(), _served(place)
        with closing(Stepfast(place.url)) as app:
            began = time.monotonic()
            begin(app, rows)
        end = wait_until(ended, worker, patience=1_200)
        return Reading(
            rate=rows / (end - began),
            foreign=meter.foreign(),
            client=(worker.cpu_seconds() - used) / rows * 1e6,
            server=(_served(place) - served) / rows * 1e6,
        )


def _alone(place: Place, rows: int) -> Reading:
    insert, after = insert_select(place.product), ""
    meter, began, used, served = Meter(), time.monotonic(), time.process_time(), _served(place)
    with place.connection() as cursor:
        while True:
            cursor.execute(NEXT.format(after=after))
            last = cursor.fetchall()[0][0]
            if last is None:
                break
            cursor.execute("BEGIN")
            cursor.execute(insert.format(after=after, last=last))
            cursor.execute(MARK.format(after=after, last=last))
            cursor.execute("COMMIT")
            after = last
    return Reading(
        rate=rows / (time.monotonic() - began),
        foreign=meter.foreign(),
        client=(time.process_time() - used) / rows * 1e6,
        server=(_served(place) - served) / rows * 1e6,
    )


def _served(place: Place) -> float:
    return cpu_seconds(place.server) if place.server else 0.0


def _sample(runs: Sequence[Reading]) -> Sample:
    return Sample.of((Measured(it.rate, it.foreign) for it in runs), "rows/s")


def _spent(runs: Sequence[Reading]) -> str:
    client, server = (statistics.median(it) for it in ([r.client for r in runs], [r.server for r in runs]))
    return f"CPU per row: client {client:.0f} µs" + (f", server {server:.0f} µs" if server else "")


def _load(bench: Bench, place: Place, *words: str) -> None:
    _, path = bench.tally()
    bench.subject((*LOAD, *words), place, path).answer()


def _foreign(found: Iterable[Reading]) -> float:
    return max(it.foreign for it in found)
