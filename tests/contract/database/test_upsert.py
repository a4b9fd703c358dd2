"""Upserts in a step's commit: insert, replace, and all common column types."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from stepfast import Done, Upsert
from tests.support import rows
from tests.support.engine import commit_step, register_work, take, together

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast

TABLE = """
    CREATE TABLE stone (
        feed VARCHAR(20) NOT NULL, id VARCHAR(40) NOT NULL, price DECIMAL(12, 2), seen TIMESTAMP NULL,
        born DATE, sold BOOLEAN, detail {json}, PRIMARY KEY (feed, id)
    )
"""


@pytest.fixture(autouse=True)
def _stone(app: Stepfast) -> None:
    connection = app.database.connect()
    json = {"postgresql": "JSONB", "mariadb": "JSON", "sqlite": "TEXT"}[app.database.dialect.name]
    connection.execute(TABLE.format(json=json))
    connection.close()


def test_values_of_many_types_are_stored_and_replaced(app: Stepfast) -> None:
    stone = {
        "feed": "x",
        "id": UUID(int=1),
        "price": Decimal("1234.50"),
        "seen": datetime(2024, 2, 29, 12, 30, tzinfo=UTC).replace(tzinfo=None),
        "born": date(2024, 2, 28),
        "sold": False,
        "detail": {"cut": "round", "note": "50% :off 'quoted'"},
    }
    work = register_work(app)
    for price in (Decimal("1234.50"), Decimal("99.90")):
        work.enqueue()
        commit_step(app, take(app), Done(), Upsert("stone", ["feed", "id"], [{**stone, "price": price}]))

    (row,) = rows.query(app, "SELECT * FROM stone")
    assert (row["feed"], row["id"], str(row["born"])[:10]) == ("x", str(UUID(int=1)), "2024-02-28")
    assert Decimal(str(row["price"])) == Decimal("99.90")
    assert str(row["seen"])[:16] == "2024-02-29 12:30"
    assert not row["sold"]
    assert "50% :off 'quoted'" in str(row["detail"]).replace('\\"', '"')


def test_thousands_of_rows_are_written_with_one_step(app: Stepfast) -> None:
    register_work(app).enqueue()
    stones = [{"feed": "x", "id": str(n), "price": n} for n in range(3_000)]

    commit_step(app, take(app), Done(), Upsert("stone", ["feed", "id"], stones))

    assert rows.count(app, "stone") == 3_000


def test_two_steps_that_write_the_same_rows_in_opposite_order_both_commit(
    another_app: Callable[[], Stepfast],
) -> None:
    """Rows are written in key order, whatever order they came in: two writers then never meet head-on."""
    apps = [another_app() for _ in range(2)]
    stones = [{"feed": "x", "id": f"{n:03}", "price": n} for n in range(300)]
    work = register_work(apps[0])

    def write(n: int) -> None:
        for _ in range(5):
            with apps[n].transaction() as tx:
                Upsert("stone", ["feed", "id"], stones if n else stones[::-1]).apply(tx)

    work.enqueue()
    answers = together([lambda: write(0), lambda: write(1)])

    assert answers == [None, None]
    assert rows.count(apps[0], "stone") == 300
