"""A shop whose orders are paid in the background. `test_shop.py` shows how to test it.

pytest examples/tested_shop
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from stepfast import Continue, Done, PermanentError, Retry, Step, Stepfast

if TYPE_CHECKING:
    from stepfast import Transaction

PAGE = 10

app = Stepfast()  # STEPFAST_DATABASE_URL says where; tests bring their own


class Bank:
    """The world outside: it answers sometimes, and knows an idempotency key when it sees it again."""

    def __init__(self) -> None:
        self.payments: dict[str, int] = {}
        self.calls = 0
        self.out_of_order = False

    def pay(self, amount: int, key: str) -> None:
        self.calls += 1
        if self.out_of_order:
            raise ConnectionError("the bank does not answer")
        if amount > 10_000:
            raise PermanentError(f"the bank refuses {amount}")
        self.payments[key] = amount


bank = Bank()


def create_tables() -> None:
    with closing(
        app.database.connect()
    ) as connection:  # outside any transaction: MariaDB makes no table in one
        connection.execute("CREATE TABLE orders (number VARCHAR(20) PRIMARY KEY, amount INTEGER NOT NULL)")
        connection.execute("CREATE TABLE account (name VARCHAR(20) PRIMARY KEY, balance INTEGER NOT NULL)")
        connection.execute("INSERT INTO account VALUES ('shop', 0)")


def place(number: str, amount: int) -> None:
    """The order and the job that charges it exist together, or neither does."""
    with app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (:number, :amount)", {"number": number, "amount": amount})
        charge.enqueue(number=number, amount=amount, key=f"charge:{number}", tx=tx)


@app.job(queue="payments", retry=Retry(attempts=3, first="1m"))
def charge(step: Step, number: str, amount: int) -> None:
    bank.pay(amount, key=step.idempotency_key)  # outside: perhaps twice, under the same key
    step.effect(lambda tx: book(tx, amount))  # in the database: once
    step.effect(lambda tx: ask_for_review.enqueue(number=number, delay="3d", tx=tx))


def book(tx: Transaction, amount: int) -> None:
    """Not idempotent: done twice, the balance would be wrong."""
    tx.execute("UPDATE account SET balance = balance + :amount WHERE name = 'shop'", {"amount": amount})


@app.job(queue="mail")
async def ask_for_review(number: str) -> str:
    return f"How do you like your order {number}?"


@app.job()
def close_the_day(step: Step) -> Continue | Done:
    """Ten orders a step: a crash repeats ten at most."""
    last = step.cursor or ""
    with app.reading() as tx:
        page = tx.query(
            "SELECT number FROM orders WHERE number > :last ORDER BY number LIMIT :page",
            {"last": last, "page": PAGE},
        )
    step.effect(lambda tx: book(tx, -len(page)))  # the bank's fee
    return Continue(page[-1]["number"]) if len(page) == PAGE else Done()
