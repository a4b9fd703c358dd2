"""What every measurement needs: databases, child processes, repetitions, and progress output."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.processes import PATIENCE, Subject
from benchmarks.tally import Tally

if TYPE_CHECKING:
    from rich.console import Console

    from benchmarks.databases import Databases, Place, Product
    from benchmarks.figures import Section


T = TypeVar("T")
TRIES = 3
QUIET = 0.25  # cores that others may use before a measurement is repeated


@dataclass
class Bench:
    databases: Databases
    console: Console
    quick: bool = False
    known: dict[str, Section] = field(default_factory=dict)
    _count: int = 0

    @property
    def rounds(self) -> int:
        return 1 if self.quick else 3

    def rounds_of(self, product: Product) -> int:
        """More rounds on SQLite: without a server one noisy core decides, and a round is short."""
        return 5 if product == "sqlite" and not self.quick else self.rounds

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def say(self, words: str) -> None:
        self.console.print(f"  [dim]{words}[/dim]", highlight=False)

    def section(self, name: str, measure: Callable[[Bench], Section]) -> Section:
        """Measured once in a run, however many others compare themselves with it."""
        if name not in self.known:
            self.known[name] = measure(self)
        return self.known[name]

    def quietest(self, measure: Callable[[], T], foreign: Callable[[T], float]) -> T:
        """Measure, and again if other programs were busy meanwhile, at most twice; the quietest try counts."""
        tries: list[T] = []
        while len(tries) < (1 if self.quick else TRIES) and (not tries or foreign(tries[-1]) > QUIET):
            tries.append(measure())
        return min(tries, key=foreign)

    def tally(self, moments: int = 0) -> tuple[Tally, Path]:
        self._count += 1
        path = self.databases.folder / f"tally-{self._count}"
        return Tally.create(path, moments), path

    def subject(self, command: Sequence[str], place: Place, tally: Path, **more: str) -> Subject:
        environment: Mapping[str, str] = {
            "STEPFAST_DATABASE_URL": place.url,
            "BENCH_URL": place.url,
            "BENCH_TALLY": str(tally),
            **more,
        }
        return Subject(command, environment, self.databases.folder / "subjects.log")

    @contextmanager
    def running(self, command: Sequence[str], place: Place, tally: Path, **more: str) -> Iterator[Subject]:
        """A program that is stopped at the end."""
        subject = self.subject(command, place, tally, **more)
        try:
            yield subject
        finally:
            if subject.process.poll() is None:
                subject.stop()


def wait_until(
    true: Callable[[], object], subject: Subject | None = None, patience: float = PATIENCE
) -> float:
    """Wait until the condition holds, checked every other millisecond; returns the moment."""
    deadline = time.monotonic() + patience
    while not true():
        if subject is not None:
            subject.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so after {patience:.0f} s")
        time.sleep(0.002)
    return time.monotonic()
