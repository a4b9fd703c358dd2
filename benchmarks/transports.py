"""Section: messages through each transport, next to the bare SDK that does the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.figures import Figure, Goal, Measured, Sample, Section, at_least
from benchmarks.processes import Meter, Subject

if TYPE_CHECKING:
    from benchmarks.bench import Bench

SUBJECT = (sys.executable, "-m", "benchmarks.subjects.messages")
EMULATORS = {
    "service-bus": (
        (sys.executable, "-m", "stepfast_emulators.service_bus"),
        "AZURE_SERVICE_BUS_CONNECTION_STRING",
    ),
    "storage-queue": ((sys.executable, "-m", "stepfast.testing.azurite"), "AZURE_STORAGE_CONNECTION_STRING"),
}
NAMES = {
    "memory": "memory",
    "database": "the database (SQLite)",
    "storage-queue": "Azure Storage Queue (Azurite)",
    "service-bus": "Azure Service Bus (our emulator)",
}
COUNTS = {"memory": 20_000, "database": 4_000, "storage-queue": 1_000, "service-bus": 4_000}
AS_MANY = 10  # times fewer, when it has to be quick


class Rates(NamedTuple):
    sent: float
    received: float
    foreign: float


def transports(bench: Bench) -> Section:
    figures: list[Figure] = []
    for name, count in COUNTS.items():
        runs: dict[str, list[Rates]] = {
            who: [] for who in ("ours", "bare") if who == "ours" or name in EMULATORS
        }
        with _broker(bench, name) as environment:
            _measure(bench, (next(iter(reversed(runs))), name, "warm-up", "100"), environment)
            for number in range(bench.rounds):
                for who, known in runs.items():
                    lot = bench.size(count, count // AS_MANY)
                    asked = (who, name, f"{who}-{number}", str(lot))
                    measure = partial(_measure, bench, asked, environment)
                    known.append(bench.quietest(measure, lambda it: it.foreign))
                    bench.say(
                        f"{NAMES[name]}, {who}: {known[-1].sent:,.0f} sent/s, {known[-1].received:,.0f} received/s"
                    )
        figures += _figures(name, runs)
    return Section(
        "Messages through the transports",
        "Messages of a page (300 bytes) are sent in lots of 100, then received by 32 and completed, from one process. The bare "
        "SDK does the same. Emulators run beside it, so figures are for comparing, not for planning: Azure is far away.",
        figures,
    )


def _figures(name: str, runs: Mapping[str, list[Rates]]) -> list[Figure]:
    figures = []
    for what, place in (("send", 0), ("receive and complete", 1)):
        samples = {
            who: Sample.of((Measured(it[place], it.foreign) for it in found), "messages/s")
            for who, found in runs.items()
        }
        goals: tuple[Goal, ...] = ()
        if "bare" in samples:
            goals = (at_least("of the bare SDK", samples["ours"], samples["bare"], 0.7),)
            figures.append(Figure(f"{NAMES[name]}, bare SDK: {what}", samples["bare"]))
        figures.append(Figure(f"{NAMES[name]}: {what}", samples["ours"], goals))
    return figures


@contextmanager
def _broker(bench: Bench, name: str) -> Iterator[dict[str, str]]:
    """The environment variables of a measured program."""
    if name == "database":
        with bench.databases.place("sqlite") as place:
            place.prepare()
            yield {"STEPFAST_DATABASE_URL": place.url}
        return
    if name not in EMULATORS:
        yield {}
        return
    command, variable = EMULATORS[name]
    names = ["warm-up", *(f"{who}-{number}" for who in ("ours", "bare") for number in range(bench.rounds))]
    queues = [f"--queue={it},lock=2m,duplicates=10m" for it in names] if name == "service-bus" else []
    emulator = Subject((*command, *queues), {}, bench.databases.folder / "subjects.log")
    try:
        lines = emulator.process.stdout
        yield {variable: "" if lines is None else lines.readline().strip()}
    finally:
        emulator.stop()


def _measure(bench: Bench, asked: tuple[str, ...], environment: Mapping[str, str]) -> Rates:
    meter = Meter()
    subject = Subject((*SUBJECT, *asked), environment, bench.databases.folder / "subjects.log")
    sent, received = json.loads(subject.answer())
    return Rates(sent, received, meter.foreign())
