"""Section: a whole catalogue, from the first count to the completed run, and where its time goes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from benchmarks.figures import Figure, Goal, Sample, Section
from benchmarks.processes import Meter, cpu_seconds
from devtools.processes import family
from stepfast import Stepfast
from stepfast_diamonds.feed import NATURAL, nivoda
from stepfast_diamonds.schema import prepare
from stepfast_diamonds.settings import NivodaSettings

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.databases import Place
    from benchmarks.processes import Subject

SIMULATE = (sys.executable, "-m", "stepfast", "diamonds", "simulate", "--json", "--port", "0", "--speed", "0")
BARE = (sys.executable, "-m", "benchmarks.subjects.catalogue_bare")
OF_WORKER = ("benchmarks.subjects.catalogue_app:app", "--processes", "2", "--concurrency", "10")
WORKER = (sys.executable, "-m", "stepfast", "worker", *OF_WORKER)
STAGES = "SELECT state, reason, started_at, planned_at, fetched_at, completed_at, ended_at FROM stepfast_run"
PATIENCE = 1_200.0
MEGABYTES = 250


@dataclass(frozen=True)
class Sync:
    """One full run: its requests, times, CPU and memory."""

    stones: int
    page_size: int
    counts: int  # requests that planned it
    pages: int
    partitions: int
    plan: float  # seconds
    fetch: float
    apply: float
    spent: dict[str, float]  # seconds of CPU, by process
    memory: float  # megabytes of the larger worker process, at most
    foreign: float
    bare: float  # pages per second of the bare client

    @property
    def total(self) -> float:
        return self.plan + self.fetch + self.apply


def catalogue(bench: Bench) -> Section:
    small, large = bench.size(50_000, 5_000), bench.size(500_000, 20_000)
    figures: list[Figure] = []
    for page_size in (30, 50):
        found = {stones: _sync(bench, stones, page_size) for stones in (small, large)}
        for it in found.values():
            bench.say(
                f"{it.stones:,} stones, {page_size} a page: {it.total:.1f} s (foreign {it.foreign:.2f} cores)"
            )
        figures += _figures(found[small], found[large])
    return Section(
        "A whole catalogue",
        f"A full run over {large:,} natural stones on PostgreSQL, by two worker processes with 10 requests each under way; the "
        "simulator answers at once and has no limits, and shares the two cores with the worker and the server. From the "
        "first count to the completed run, the mapping, pricing and rating of every stone included. The bare client asks "
        "for pages of the same size and throws the answers away.",
        figures,
    )


def _figures(small: Sync, large: Sync) -> Iterator[Figure]:
    name = f"{large.page_size} a page"
    total = Sample((large.total,), "s", large.foreign)
    spent = ", ".join(f"{who} {seconds:.0f} s" for who, seconds in large.spent.items())
    yield Figure(
        f"{name}: all of it",
        total,
        (Goal("in all", large.total, 180, at_most=True, unit=" s"),),
        f"planning {large.plan:.1f} s, pages {large.fetch:.1f} s, consolidation {large.apply:.1f} s; CPU: {spent}",
    )
    yield Figure(
        f"{name}: planning",
        Sample((float(large.counts),), "requests", large.foreign),
        (),
        f"{large.partitions} partitions; {small.counts} requests for {small.stones:,} stones",
    )
    rate = Sample((large.pages / large.fetch,), "pages/s", large.foreign)
    yield Figure(
        f"{name}: pages",
        rate,
        (),
        f"{large.pages:,} pages; {small.pages / small.fetch:,.0f} pages/s for {small.stones:,} stones; the bare client alone: "
        f"{large.bare:,.0f} pages/s",
    )
    yield Figure(
        f"{name}: consolidation",
        Sample((large.stones / large.apply,), "rows/s", large.foreign),
        (),
        f"{small.stones / small.apply:,.0f} rows/s for {small.stones:,} stones",
    )
    yield Figure(
        f"{name}: growth",
        Sample(
            (large.total / small.total / (large.stones / small.stones),),
            "times the time per stone",
            large.foreign,
        ),
        (),
        f"{small.total:.1f} s for {small.stones:,} stones",
    )
    memory = Sample((large.memory,), "MB", large.foreign)
    yield Figure(
        f"{name}: memory of a worker process",
        memory,
        (Goal("at most", large.memory, MEGABYTES, at_most=True, unit=" MB"),),
        f"{small.memory:.0f} MB for {small.stones:,} stones",
    )


def _sync(bench: Bench, stones: int, page_size: int) -> Sync:
    with ExitStack() as stack:
        place = stack.enter_context(bench.databases.place("postgresql"))
        place.prepare()
        source = stack.enter_context(_simulator(bench, place, stones))
        account = {
            "NIVODA_URL": source.facts["url"],
            "NIVODA_USERNAME": source.facts["username"],
            "NIVODA_PASSWORD": source.facts["password"],
            "NIVODA_PAGE_SIZE": str(page_size),
            "NIVODA_RATE": "0",
            "NIVODA_CONCURRENCY": "0",
        }
        _, path = bench.tally()
        bare = float(
            bench.subject(
                (*BARE, str(bench.size(2_000, 200)), str(page_size)), place, path, **account
            ).answer()
        )
        app = stack.enter_context(closing(Stepfast(place.url)))
        prepare(app)
        nivoda(app, settings=NivodaSettings(url=account["NIVODA_URL"], username=account["NIVODA_USERNAME"],
                                            password=account["NIVODA_PASSWORD"], page_size=page_size, rate=0, concurrency=0))  # fmt: skip
        asked = source.statistics()
        worker = stack.enter_context(bench.running(WORKER, place, path, **account))
        meter, before = Meter(), _spent(worker, place, source)
        app.runs.start(NATURAL)
        stages, memory, planning = _watch(place, worker, source)
        after, told = _spent(worker, place, source), source.statistics()
        began, planned, fetched, completed = stages
        return Sync(
            stones=stones,
            page_size=page_size,
            counts=planning - asked["counts"],
            pages=told["pages"] - asked["pages"],
            partitions=int(place.rows("SELECT count(*) FROM stepfast_partition")[0][0]),
            plan=planned - began,
            fetch=fetched - planned,
            apply=completed - fetched,
            spent={who: after[who] - before[who] for who in after},
            memory=memory,
            foreign=meter.foreign(),
            bare=bare,
        )


@dataclass(frozen=True)
class Source:
    """The simulator, in a process of its own."""

    subject: Subject
    facts: dict[str, Any]

    def statistics(self) -> dict[str, int]:
        address = self.facts["oracle"] + "statistics"
        with urlopen(address) as answer:  # noqa: S310 - our own, on loopback
            told: dict[str, int] = {"counts": 0, "pages": 0, **json.load(answer)}
        return told


@contextmanager
def _simulator(bench: Bench, place: Place, stones: int) -> Iterator[Source]:
    _, path = bench.tally()
    command = (*SIMULATE, "--profile", str(stones), "--faults", "none")
    with bench.running(command, place, path) as subject:
        assert subject.process.stdout is not None  # noqa: S101 - it is a pipe
        yield Source(subject, json.loads(subject.process.stdout.readline()))


def _watch(
    place: Place, worker: Subject, source: Source
) -> tuple[tuple[float, float, float, float], float, int]:
    """Wait for the end of the run; returns when its stages began, the highest memory of the worker, and the counts of its planning."""
    memory, planning, deadline = 0.0, None, time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        worker.check()
        ((state, reason, began, planned, fetched, completed, ended),) = place.rows(STAGES)
        memory = max(memory, *map(_peak, family(worker.process.pid)))
        if planning is None and planned is not None:
            planning = source.statistics()["counts"]
        if completed is not None:
            stages = (began / 1e6, planned / 1e6, fetched / 1e6, completed / 1e6)
            return stages, memory, planning or 0
        if ended is not None:
            raise RuntimeError(f"the run ended as {state}: {reason}")
        time.sleep(0.1)
    raise TimeoutError(f"the run has not ended after {PATIENCE:.0f} s")


def _peak(pid: int) -> float:
    """The highest memory of a process, in megabytes."""
    with suppress(OSError):  # it has ended
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _spent(worker: Subject, place: Place, source: Source) -> dict[str, float]:
    return {
        "worker": worker.cpu_seconds(),
        "PostgreSQL": cpu_seconds(place.server) if place.server else 0.0,
        "simulator": source.subject.cpu_seconds(),
    }
