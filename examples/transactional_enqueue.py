"""An order and the job that ships it are stored together, or neither is.

python -m examples.transactional_enqueue
"""

from __future__ import annotations

import sys
import tempfile
from typing import TYPE_CHECKING, Any

from stepfast import Step, Stepfast

if TYPE_CHECKING:
    from stepfast import Transaction

app = Stepfast(f"sqlite:///{tempfile.mkdtemp()}/shop.db")


@app.job(queue="shipping")
def ship(step: Step, order_id: str) -> None:
    row = {"id": order_id, "job": step.job_id}
    step.effect(lambda tx: tx.execute("UPDATE orders SET shipped_by = :job WHERE id = :id", row))


def place_order(tx: Transaction, order_id: str, amount: int) -> None:
    """Business code: it gets a transaction and never commits."""
    tx.execute("INSERT INTO orders (id, amount) VALUES (:id, :amount)", {"id": order_id, "amount": amount})
    ship.enqueue(order_id=order_id, tx=tx, key=f"ship:{order_id}")
    if amount > 1_000:
        raise ValueError(f"order {order_id}: {amount} is above the limit of this customer")


def main() -> int:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, amount INTEGER, shipped_by TEXT)")

    for order_id, amount in (("A-1", 100), ("A-2", 5_000), ("A-3", 300)):
        try:
            with app.transaction() as tx:
                place_order(tx, order_id, amount)
        except ValueError as error:
            print(f"refused: {error}")

    orders, jobs = query("SELECT id FROM orders ORDER BY id"), query("SELECT unique_key FROM stepfast_job")
    print("orders:", [row["id"] for row in orders])
    print("jobs:  ", [row["unique_key"] for row in jobs])
    return 0 if len(orders) == len(jobs) == 2 else 1


def query(text: str) -> list[dict[str, Any]]:
    with app.transaction() as tx:
        return tx.query(text)


if __name__ == "__main__":
    sys.exit(main())
