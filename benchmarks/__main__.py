"""`python -m benchmarks [NAME…] [--quick] [--out FILE]`: measure, show, and write the documentation's page.

Without names everything is measured, and docs/benchmarks.md is written; `--quick` repeats nothing, measures less,
and writes only where it is told to.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks.backlog import backlog
from benchmarks.bench import Bench
from benchmarks.catalogue import catalogue
from benchmarks.consolidation import consolidation, consolidation_of_many
from benchmarks.databases import Databases
from benchmarks.enqueueing import enqueueing
from benchmarks.footprint import footprint
from benchmarks.idleness import idleness
from benchmarks.latency import latency
from benchmarks.limiting import for_later, limiting, many_keys
from benchmarks.long_transaction import long_transaction
from benchmarks.machine import machine
from benchmarks.page_commit import page_commits, pages_among_many
from benchmarks.processes import ROOT
from benchmarks.recovery import recovery
from benchmarks.report import page, show
from benchmarks.throughput import drain_elsewhere, drain_postgresql, effects
from benchmarks.transports import transports

if TYPE_CHECKING:
    from benchmarks.figures import Section

MEASUREMENTS: dict[str, Callable[[Bench], Section]] = {
    "drain": drain_postgresql,
    "elsewhere": drain_elsewhere,
    "effects": effects,
    "pages": page_commits,
    "many-rows": pages_among_many,
    "consolidation": consolidation,
    "many-consolidated": consolidation_of_many,
    "catalogue": catalogue,
    "enqueue": enqueueing,
    "latency": latency,
    "idle": idleness,
    "backlog": backlog,
    "long-transaction": long_transaction,
    "limits": limiting,
    "keys": many_keys,
    "for-later": for_later,
    "transports": transports,
    "recovery": recovery,
    "footprint": footprint,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(MEASUREMENTS)}")
    parser.add_argument("--quick", action="store_true", help="once each, with less work")
    parser.add_argument("--out", type=Path, help="where to write the page")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(MEASUREMENTS):
        parser.error(
            f"no such measurement: {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}"
        )
    out = asked.out or (None if asked.names or asked.quick else ROOT / "docs" / "benchmarks.md")
    console = Console(width=max(Console().width, 160))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and workers are stopped on the way out
    with Databases() as databases:
        bench = Bench(databases, console, quick=asked.quick)
        here = machine(databases)
        for line in here.lines():
            console.print(line, highlight=False)
        for name in asked.names or MEASUREMENTS:
            console.rule(name, align="left")
            show(console, bench.section(name, MEASUREMENTS[name]))
        sections = list(bench.known.values())
    if out is not None:
        command = " ".join(["python -m benchmarks", *asked.names, *(["--quick"] if asked.quick else [])])
        out.write_text(page(here, sections, command if asked.names or asked.quick else "make bench"))
    return 0 if all(goal.met for it in sections for figure in it.figures for goal in figure.goals) else 1


if __name__ == "__main__":
    sys.exit(main())
