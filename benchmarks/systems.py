"""The systems that are measured: how to enqueue, how to start the worker, and how to see that it has finished."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.databases import NAMES, Place, Product
from benchmarks.environments import interpreter

MODULE = "benchmarks.subjects."
STEPFAST_UNFINISHED = "SELECT 1 FROM stepfast_job LIMIT 1"


@dataclass(frozen=True)
class System:
    name: str
    product: Product
    load: tuple[str, ...]  # a command; the number of jobs is put where it says COUNT
    work: tuple[str, ...]
    unfinished: str  # a query that finds nothing when everything is finished and acknowledged
    settings: Mapping[str, str] = field(default_factory=dict)

    def environment(self, place: Place) -> dict[str, str]:
        return {"STEPFAST_DATABASE_URL": place.url, "BENCH_URL": place.url, **self.settings}

    def loading(self, count: int) -> list[str]:
        return [str(count) if word == "COUNT" else word for word in self.load]


def stepfast(product: Product, kind: str = "noop", *options: str) -> System:
    """Started as a user does: `stepfast worker module:app`, default settings unless options are named."""
    worker = (sys.executable, "-m", "stepfast", "worker", MODULE + "stepfast_app:app", *options)
    name = " ".join(("Stepfast", "on", NAMES[product], *options))
    return System(name, product, _stepfast_load(kind), worker, STEPFAST_UNFINISHED)


def raw_drain(product: Product, batch: int = 1_000) -> System:
    worker = (sys.executable, "-m", MODULE + "raw_limit", "drain", str(batch))
    return System(
        f"raw limit of {NAMES[product]}", product, _stepfast_load("noop"), worker, STEPFAST_UNFINISHED
    )


def raw_effects(product: Product, connections: int) -> System:
    worker = (sys.executable, "-m", MODULE + "raw_limit", "effects", str(connections))
    name = f"raw limit of {NAMES[product]}, connections: {connections}"
    return System(name, product, _stepfast_load("effect"), worker, STEPFAST_UNFINISHED)


def pgqueuer(batch: int) -> System:
    python = interpreter("pgqueuer")
    return System(
        f"PgQueuer, batch {batch}",
        "postgresql",
        (python, "-m", MODULE + "pgqueuer_enqueue", "bulk", "noop", "COUNT", "1000"),
        (python, "-m", MODULE + "pgqueuer_worker"),
        "SELECT 1 FROM pgqueuer LIMIT 1",
        {"BENCH_BATCH": str(batch)},
    )


def procrastinate(concurrency: int) -> System:
    program = (interpreter("procrastinate"), "-m", MODULE + "procrastinate_app")
    return System(
        f"Procrastinate, concurrency {concurrency}",
        "postgresql",
        (*program, "bulk", "COUNT"),
        (*program, "work", str(concurrency)),
        "SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing') LIMIT 1",
    )


def _stepfast_load(kind: str) -> tuple[str, ...]:
    return (sys.executable, "-m", MODULE + "stepfast_enqueue", "bulk", kind, "COUNT", "5000")
