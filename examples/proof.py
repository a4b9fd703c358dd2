"""Prove from the database, after the crash, that every effect happened exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console


@dataclass(frozen=True)
class Crash:
    """The leases that the killed worker held, and how soon another worker continued them."""

    leases: int
    taken_back_after: float
    running_after: float


@dataclass(frozen=True)
class Expected:
    """What the tables must contain in the end."""

    jobs: int
    effects: int
    total: int  # the sum of all amounts


def prove(console: Console, crash: Crash, expected: Expected, folder: Path) -> int:
    """Compare the tables with what is expected, and print both; returns the exit code."""
    ledger = query(
        "SELECT count(*) AS entries, count(DISTINCT what || '/' || page) AS steps, sum(amount) AS total FROM ledger"
    )[0]
    jobs = query(
        "SELECT state, count(*) AS n, sum(failures) AS failures, sum(crashes) AS crashes "
        "FROM stepfast_archive GROUP BY state"
    )
    done = sum(row["n"] for row in jobs if row["state"] == "done")
    unfinished = query("SELECT count(*) AS n FROM stepfast_job")[0]["n"]
    runs = (folder / "outside-world.txt").read_text(encoding="utf-8").splitlines()
    lost, doubled = expected.effects - ledger["steps"], ledger["entries"] - ledger["steps"]
    proofs = [
        ("rows in the ledger", ledger["entries"], expected.effects),
        ("different steps among them", ledger["steps"], expected.effects),
        ("effects lost", lost, 0),
        ("effects doubled", doubled, 0),
        ("sum of the amounts", ledger["total"], expected.total),
        ("jobs done", done, expected.jobs),
        ("jobs unfinished, dead or cancelled", unfinished + sum(row["n"] for row in jobs) - done, 0),
    ]
    table = Table("from the database", "found", "expected", "", title="The proof")
    for name, found, wanted in proofs:
        table.add_row(name, str(found), str(wanted), "[green]right" if found == wanted else "[bold red]WRONG")
    console.print(table)
    facts = Table("the crash", "")
    facts.add_row("leases that the killed worker held", str(crash.leases))
    facts.add_row("rescued after the kill", f"{crash.taken_back_after:.1f} s")
    facts.add_row("the first of them ran again after", f"{crash.running_after:.1f} s")
    facts.add_row("attempts charged to a job", str(sum(row["failures"] for row in jobs)))
    facts.add_row("crashes charged to a job", str(sum(row["crashes"] for row in jobs)))
    facts.add_row("handler runs", f"{len(runs)} for {len(set(runs))} steps")
    console.print(facts)
    right = all(found == wanted for _, found, wanted in proofs)
    if right:
        console.print(
            f"Every effect is there exactly once. {len(runs) - len(set(runs))} handlers ran twice: what a handler "
            "does outside the database happens at least once, so pass step.idempotency_key to the other side.",
            style="green",
        )
    console.print("\nThe database is kept. Look at it:", style="bold")
    console.print(
        f"  export STEPFAST_DATABASE_URL=sqlite:///{folder}/work.db\n"
        "  stepfast jobs list\n  stepfast workers list --all\n  stepfast doctor\n"
        f"  sqlite3 {folder}/work.db 'SELECT * FROM processing_jobs LIMIT 10'\n"
        f"  rm -r {folder}",
        soft_wrap=True,
    )
    return 0 if right else 1


def query(text: str) -> list[dict[str, Any]]:
    from examples.invoices import app

    with app.database.reading() as tx:
        return tx.query(text)
