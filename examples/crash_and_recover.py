"""A worker is killed in the middle of its work, and every effect is there exactly once at the end.

    python -m examples.crash_and_recover

320 jobs, 400 steps, one row per step. The first worker gets SIGKILL, a second one is started, and the
proof is computed from the database. Exits with 1 if anything is missing or doubled. Takes about 15 seconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from examples.display import Display, Tally
from examples.proof import Crash, Expected, prove, query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]
FAST, SLOW, REPORTS, PAGES = 280, 20, 20, 5
JOBS, EFFECTS = FAST + SLOW + REPORTS, FAST + SLOW + REPORTS * PAGES
TOTAL = sum(range(FAST)) + sum(range(SLOW)) + REPORTS * PAGES
PARTS = 4
CONCURRENCY = 5
KILL_AT = 0.4  # of the effects
DEADLINE = 60.0  # seconds; then the example fails
SHOWN = {
    "worker.declared-dead",
    "jobs.rescued",
    "suspects.isolated",
    "step.refused",
    "job.died",
    "step.failed",
}


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="stepfast-demo-"))
    os.environ["STEPFAST_DATABASE_URL"] = f"sqlite:///{folder}/work.db"  # for us and for the workers
    os.environ["DEMO_OUTSIDE_WORLD"] = str(folder / "outside-world.txt")
    console = Console(highlight=False)
    console.rule("Stepfast: 320 jobs, 400 steps, one kill -9")
    with Display(console) as display:
        enqueue(display)
        crash = work(display)
    return prove(console, crash, Expected(JOBS, EFFECTS, TOTAL), folder)


def enqueue(display: Display) -> None:
    from examples import invoices  # here: the app reads its URL from the environment

    invoices.create_ledger()
    for part in range(PARTS):  # a mixed queue: fast and slow ones, and jobs of several steps
        invoices.issue_invoice.enqueue_many(
            {"number": f"F-{n}", "amount": n} for n in range(part, FAST, PARTS)
        )
        invoices.print_invoice.enqueue_many(
            {"number": f"S-{n}", "amount": n} for n in range(part, SLOW, PARTS)
        )
        invoices.write_report.enqueue_many({"name": f"R-{n}"} for n in range(part, REPORTS, PARTS))
    display.event(f"enqueued {FAST + SLOW} invoices and {REPORTS} reports of {PAGES} pages")


def work(display: Display) -> Crash:
    with worker(display, "first worker") as first:
        watch(display, f"first worker {first.pid}", lambda tally: tally.effects >= KILL_AT * EFFECTS)
        cut_power()
        first.wait()
        killed_at = time.time()
    held = [row["id"] for row in query("SELECT id FROM stepfast_job WHERE state = 'leased'")]
    display.event(f"kill -9 {first.pid}: it held {len(held)} leases", "bold red")
    with worker(display, "second worker") as second:
        running_after = wait_until_taken_again(held, killed_at)
        watch(display, f"second worker {second.pid}", lambda tally: tally.done == JOBS)
        display.event("all jobs are done; SIGTERM to the second worker", "bold green")
        second.terminate()
        display.event(f"it left with exit code {second.wait(DEADLINE)}")
    ended_at = query("SELECT ended_at FROM stepfast_worker WHERE state = 'dead'")[0]["ended_at"]
    return Crash(len(held), ended_at / 1e6 - killed_at, running_after)


def cut_power() -> None:
    """Kill the worker, and its guardian (its parent) before that can tell anybody, as if the machine were gone."""
    (alive,) = query("SELECT pid, guardian_pid FROM stepfast_worker WHERE state = 'alive'")
    for pid in (alive["pid"], alive["guardian_pid"]):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def worker(display: Display, name: str) -> Iterator[subprocess.Popen[str]]:
    """Run `stepfast worker examples.invoices:app` and show its log as events."""
    stepfast = str(Path(sys.executable).with_name("stepfast"))
    command = [stepfast, "worker", "examples.invoices:app", "--concurrency", str(CONCURRENCY)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    display.event(f"{name} started: pid {process.pid}")
    threading.Thread(target=show_log, args=(process, display), daemon=True).start()
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def show_log(process: subprocess.Popen[str], display: Display) -> None:
    """Show the lines of the worker's log that belong to the crash."""
    for line in process.stderr or ():
        event = line.split()[3:4]
        if set(event) & SHOWN:
            display.event("log: " + " ".join(line.split()[3:]), "yellow")
        elif "Traceback" in line or "rror" in line:
            display.event(f"log: {line.strip()}", "red")


def watch(display: Display, name: str, enough: Callable[[Tally], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not enough(tally := look(name)):
        display.tally(tally)
        if time.monotonic() > deadline:
            raise SystemExit(f"gave up after {DEADLINE:.0f} s: {tally}")
        time.sleep(0.05)
    display.tally(tally)


def look(name: str) -> Tally:
    states = query(
        "SELECT state, count(*) AS n FROM stepfast_job GROUP BY state "
        "UNION ALL SELECT state, count(*) FROM stepfast_archive GROUP BY state"
    )
    count = {row["state"]: row["n"] for row in states}
    return Tally(
        jobs=JOBS,
        done=count.get("done", 0),
        leased=count.get("leased", 0),
        waiting=count.get("ready", 0) + count.get("scheduled", 0),
        suspects=count.get("suspect", 0),
        effects=query("SELECT count(*) AS n FROM ledger")[0]["n"],
        expected=EFFECTS,
        worker=name,
    )


def wait_until_taken_again(held: list[str], since: float) -> float:
    """Seconds until the first of the abandoned jobs was leased once more."""
    taken = f"leased_at > {since * 1e6:.0f} AND id IN ({', '.join(repr(it) for it in held)})"
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        found = query(
            f"SELECT min(leased_at) AS at FROM (SELECT id, leased_at FROM stepfast_job "
            f"UNION ALL SELECT id, leased_at FROM stepfast_archive) WHERE {taken}"
        )
        if found[0]["at"]:
            return float(found[0]["at"] / 1e6 - since)
        time.sleep(0.02)
    raise SystemExit("no worker took the abandoned jobs")


if __name__ == "__main__":
    sys.exit(main())
