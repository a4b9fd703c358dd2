"""Sections: draining no-op jobs, and one transaction per step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.databases import NAMES, Product
from benchmarks.drain import best, drains
from benchmarks.figures import Sample, Section, at_least
from benchmarks.systems import pgqueuer, procrastinate, raw_drain, raw_effects, stepfast

if TYPE_CHECKING:
    from benchmarks.bench import Bench


def drain_postgresql(bench: Bench) -> Section:
    many, few = bench.size(30_000, 5_000), bench.size(2_000, 300)
    raw, ours = raw_drain("postgresql"), stepfast("postgresql")
    counts = [
        (raw, many),
        (ours, many),
        *((pgqueuer(batch), many) for batch in (200, 1_000)),
        *((procrastinate(concurrency), few) for concurrency in (10, 50)),
    ]
    found = drains(bench, counts)
    rate = found[ours.name].rate
    goals = (
        at_least("of PgQueuer's best", rate, best(found, "PgQueuer").rate, 2),
        at_least("of Procrastinate's best", rate, best(found, "Procrastinate").rate, 40),
        at_least("of the raw limit", rate, found[raw.name].rate, 0.5),
    )
    return Section(
        "Drain of no-op jobs, PostgreSQL",
        f"{many:,} jobs ({few:,} for Procrastinate), one worker process each. The raw limit is the claim and the "
        "acknowledgement that Stepfast sends, 1,000 at a time, by bare psycopg.",
        [it.figure(*goals) if it.system is ours else it.figure() for it in found.values()],
    )


def drain_elsewhere(bench: Bench) -> Section:
    count = bench.size(20_000, 3_000)
    products: tuple[Product, ...] = ("sqlite", "mariadb")
    systems = [(raw_drain(it), stepfast(it)) for it in products]
    found = drains(bench, [(system, count) for pair in systems for system in pair])
    figures = []
    for raw, ours in systems:
        limit = found[raw.name].rate
        goals = [at_least("of its raw limit", found[ours.name].rate, limit, 0.5)]
        if ours.product == "mariadb":
            rate = postgresql_rate(bench)
            goals.append(at_least("of Stepfast on PostgreSQL", found[ours.name].rate, rate, 0.25))
        figures += [found[raw.name].figure(), found[ours.name].figure(*goals)]
    return Section(
        "Drain of no-op jobs, SQLite and MariaDB",
        f"{count:,} jobs. SQLite with synchronous=FULL, MariaDB with innodb_flush_log_at_trx_commit=1.",
        figures,
    )


def effects(bench: Bench) -> Section:
    count = bench.size(3_000, 300)
    products: tuple[Product, ...] = ("postgresql", "mariadb", "sqlite")
    ours = {product: stepfast(product, "effect") for product in products}
    limits = {
        product: [raw_effects(product, n) for n in ((1,) if product == "sqlite" else (1, 4))]
        for product in products
    }
    found = drains(bench, [(it, count) for product in products for it in (*limits[product], ours[product])])
    peer = procrastinate_rate(bench)
    figures = []
    for product in products:
        limit = best(found, f"raw limit of {NAMES[product]}")
        rate = found[ours[product].name].rate
        goals = [at_least("of the raw limit's best", rate, limit.rate, 0.7)]
        if product == "postgresql":  # the peer has no other database
            goals.insert(0, at_least("of Procrastinate's drain", rate, peer, 3))
        figures += [found[it.name].figure() for it in limits[product]]
        figures.append(found[ours[product].name].figure(*goals))
    return Section(
        "One transaction per step, with an effect row",
        f"{count:,} steps, each of which upserts a row in its own commit. The raw limit is that transaction by the bare "
        "driver, on one connection and on as many as Stepfast uses.",
        figures,
    )


def postgresql_rate(bench: Bench) -> Sample:
    return _rate(bench, "Stepfast")


def procrastinate_rate(bench: Bench) -> Sample:
    return _rate(bench, "Procrastinate")


def _rate(bench: Bench, prefix: str) -> Sample:
    figures = bench.section("drain", drain_postgresql).figures
    return max((it.sample for it in figures if it.name.startswith(prefix)), key=lambda it: it.median)
