"""An async program stores an order and the job that ships it in one transaction.

python -m examples.async_enqueue
"""

from __future__ import annotations

import asyncio
import sys
import tempfile

import aiosqlite

from stepfast import DuplicateKeyError, Stepfast

PATH = f"{tempfile.mkdtemp()}/shop.db"
app = Stepfast(f"sqlite:///{PATH}")


@app.job(queue="shipping")
def ship(order_id: str) -> None: ...


async def place_order(order_id: str, *, paid: bool) -> None:
    async with aiosqlite.connect(PATH) as connection:
        await connection.execute("INSERT INTO orders VALUES (?)", [order_id])
        await ship.enqueue_async(order_id=order_id, key=f"ship:{order_id}", tx=connection)
        if paid:
            await connection.commit()
        else:
            await connection.rollback()


async def shop() -> tuple[list[str], list[str]]:
    async with aiosqlite.connect(PATH) as connection:
        await connection.execute("CREATE TABLE orders (id TEXT PRIMARY KEY)")
    await asyncio.gather(place_order("A-1", paid=True), place_order("A-2", paid=False))
    try:
        await ship.enqueue_async(order_id="A-1", key="ship:A-1")
    except DuplicateKeyError as refusal:
        print("refused:", refusal)
    async with aiosqlite.connect(PATH) as connection:
        orders = await connection.execute_fetchall("SELECT id FROM orders")
        jobs = await connection.execute_fetchall("SELECT unique_key FROM stepfast_job")
    return [row[0] for row in orders], [row[0] for row in jobs]


def main() -> int:
    app.migrate()
    orders, jobs = asyncio.run(shop())
    print("orders:", orders)
    print("jobs:  ", jobs)
    return 0 if (orders, jobs) == (["A-1"], ["ship:A-1"]) else 1


if __name__ == "__main__":
    sys.exit(main())
