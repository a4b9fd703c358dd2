"""The jobs of the crash example: invoices that take one step, reports that take a step per page.

Every step writes one row into `ledger`. That table has no unique key on purpose: if a step's effect were
applied twice, there would be two rows. Every handler also writes a line to a file, which represents the
world outside the database: a letter sent, a card charged.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from stepfast import Continue, Done, Step, Stepfast

if TYPE_CHECKING:
    from stepfast import Transaction

PAGES = 5
OUTSIDE = Path(os.environ.get("DEMO_OUTSIDE_WORLD", os.devnull))

app = Stepfast()  # STEPFAST_DATABASE_URL says where


def create_ledger() -> None:
    with app.transaction() as tx:
        tx.execute(
            "CREATE TABLE ledger (entry INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT NOT NULL, "
            "page INTEGER NOT NULL, amount INTEGER NOT NULL, worker_pid INTEGER NOT NULL)"
        )


@app.job()
async def issue_invoice(step: Step, number: str, amount: int) -> None:
    """A fast job: it mostly waits for another system."""
    act_outside(step)
    await asyncio.sleep(0.05)
    step.effect(Entry(number, 0, amount))


@app.job()
def print_invoice(step: Step, number: str, amount: int) -> None:
    """A slow job, in plain blocking code."""
    act_outside(step)
    step.wait(1.0)
    step.effect(Entry(number, 0, amount))


@app.job()
async def write_report(step: Step, name: str) -> Continue | Done:
    """Five pages, a step each: a crash repeats one page at most."""
    page = step.cursor or 0
    act_outside(step)
    await asyncio.sleep(0.2)
    step.effect(Entry(name, page, 1))
    return Continue(page + 1) if page + 1 < PAGES else Done({"pages": PAGES})


class Entry:
    """A row in the ledger, written by the transaction that ends the step, or not at all."""

    def __init__(self, what: str, page: int, amount: int) -> None:
        self.row = {"what": what, "page": page, "amount": amount, "pid": os.getpid()}

    def apply(self, tx: Transaction) -> None:
        tx.execute(
            "INSERT INTO ledger (what, page, amount, worker_pid) VALUES (:what, :page, :amount, :pid)",
            self.row,
        )


def act_outside(step: Step) -> None:
    """Act outside the database, where nothing can be rolled back. The key is the same for every try of a step."""
    with OUTSIDE.open("a", encoding="utf-8") as file:
        file.write(f"{step.idempotency_key}\n")
