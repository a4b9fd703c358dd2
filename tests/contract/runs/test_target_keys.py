"""A target table or a mapper that cannot tell rows apart by the feed's key is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stepfast.runs.run import RunState
from tests.support import rows
from tests.support.consolidation import LATER, fetched, item, items, quarantine, run_of, waiting
from tests.support.engine import drain
from tests.support.feeds import Catalogue, Shop

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.declaration import Declaration


def catalogue(app: Stepfast, *statements: str, **settings: Any) -> Declaration:
    """A feed whose target is made by these."""
    connection = app.database.connect()
    for it in statements:
        connection.execute(it)
    connection.close()
    app.feed(Catalogue(Shop(), **settings))
    return app.feeds.get("catalogue")


@pytest.mark.parametrize(
    ("statements", "key"),
    [
        (("CREATE TABLE item (id VARCHAR(200), price INTEGER)",), "id"),
        (("CREATE TABLE item (id VARCHAR(200) PRIMARY KEY, price INTEGER)",), ("id", "price")),
        (("CREATE TABLE item (id VARCHAR(200), price INTEGER, PRIMARY KEY (id, price))",), "id"),
        (
            (
                "CREATE TABLE item (id VARCHAR(200), price INTEGER)",
                "CREATE INDEX item_by_id ON item (id)",
            ),
            "id",
        ),
    ],
    ids=["none", "of a part", "of more", "not unique"],
)
def test_a_target_that_cannot_tell_rows_apart_fails_the_run_with_the_cure(
    app: Stepfast, statements: tuple[str, ...], key: str | tuple[str, ...]
) -> None:
    declared = catalogue(app, *statements, key=key)
    run = fetched(app, declared, items(5))

    with app.worker():
        rows.eventually(lambda: run_of(app, run).ended_at)

    ended, columns = run_of(app, run), ", ".join((key,) if isinstance(key, str) else key)
    assert ended.state is RunState.FAILED
    assert f"CREATE UNIQUE INDEX item_key ON item ({columns})" in (ended.reason or "")
    assert rows.count(app, "item") == 0
    assert (quarantine(app), waiting(app)) == ([], 5)


@pytest.mark.parametrize(
    ("statements", "key"),
    [
        (
            ("CREATE TABLE item (id VARCHAR(200), price INTEGER)", "CREATE UNIQUE INDEX u ON item (id)"),
            "id",
        ),
        (("CREATE TABLE item (id VARCHAR(200), price INTEGER, PRIMARY KEY (price, id))",), ("id", "price")),
    ],
    ids=["an index", "in another order"],
)
def test_any_unique_index_over_the_key_will_do(
    app: Stepfast, statements: tuple[str, ...], key: str | tuple[str, ...]
) -> None:
    declared = catalogue(app, *statements, key=key)
    for at, window in ((1, LATER), (2, LATER)):
        run = fetched(app, declared, items(5), at=at, window=window)
        drain(app)
        assert run_of(app, run).state is RunState.COMPLETED
    assert rows.count(app, "item") == 5


def test_a_number_that_is_the_primary_key_will_do(app: Stepfast) -> None:
    declared = catalogue(
        app,
        "CREATE TABLE item (id INTEGER PRIMARY KEY, price INTEGER)",
        map=lambda it: {"id": int(it["id"][1:]), "price": it["price"]},
    )
    run = fetched(app, declared, items(3))

    drain(app)

    assert run_of(app, run).state is RunState.COMPLETED


def test_a_unique_index_over_some_rows_is_not_enough(app: Stepfast) -> None:
    part = "(id)" if app.database.dialect.name != "mariadb" else "(id(3))"
    some = "WHERE price > 0" if app.database.dialect.name != "mariadb" else ""
    declared = catalogue(
        app,
        "CREATE TABLE item (id VARCHAR(200), price INTEGER)",
        f"CREATE UNIQUE INDEX item_some ON item {part} {some}",
    )
    run = fetched(app, declared, items(1))

    with app.worker():
        rows.eventually(lambda: run_of(app, run).ended_at)

    assert run_of(app, run).state is RunState.FAILED
    assert "CREATE UNIQUE INDEX" in (run_of(app, run).reason or "")


def test_a_feed_that_stores_its_rows_itself_needs_no_index(app: Stepfast) -> None:
    class Own(Catalogue):
        def store(self, tx: Any, given: Any, /) -> None:
            for it in given:
                tx.execute("INSERT INTO item (id, price) VALUES (:id, :price)", it)

    connection = app.database.connect()
    connection.execute("CREATE TABLE item (id VARCHAR(200), price INTEGER)")
    connection.close()
    app.feed(Own(Shop()))
    run = fetched(app, app.feeds.get("catalogue"), items(2))

    drain(app)

    assert run_of(app, run).state is RunState.COMPLETED
    assert rows.count(app, "item") == 2


KEYED = "CREATE TABLE item (id VARCHAR(200) NOT NULL PRIMARY KEY, price INTEGER)"


def test_of_items_that_are_mapped_to_one_key_all_but_the_last_are_put_aside(app: Stepfast) -> None:
    declared = catalogue(
        app, KEYED, map=lambda it: {"id": it["id"][-1], "price": it["price"]}, error_budget=1.0
    )
    run = fetched(app, declared, [item(1), item(2), item(11), item(21)])

    drain(app)

    assert [(it["item_id"], it["code"]) for it in quarantine(app)] == [
        ("d00001", "same key"),
        ("d00011", "same key"),
    ]
    assert "the same key as item d00021" in quarantine(app)[0]["message"]
    assert rows.query(app, "SELECT id, price FROM item ORDER BY id") == [
        {"id": "1", "price": 21},
        {"id": "2", "price": 2},
    ]
    assert (run_of(app, run).applied, run_of(app, run).quarantined) == (2, 2)


@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_bin"])
def test_items_that_are_one_for_the_collation_of_the_target_are_told(app: Stepfast, collation: str) -> None:
    """Only MariaDB compares texts so; the other databases keep both rows, without an alert."""
    blurs = app.database.dialect.name == "mariadb" and collation != "utf8mb4_bin"
    named = f"CHARACTER SET utf8mb4 COLLATE {collation}" if app.database.dialect.name == "mariadb" else ""
    declared = catalogue(
        app, f"CREATE TABLE item (id VARCHAR(200) {named} NOT NULL PRIMARY KEY, price INTEGER)"
    )
    fetched(
        app, declared, [{"id": "ring", "price": 1}, {"id": "RING", "price": 2}, {"id": "band", "price": 3}]
    )

    drain(app)

    found = rows.query(app, "SELECT title, body FROM stepfast_alert")
    assert [it["title"] for it in found] == (["Items replace each other"] if blurs else [])
    assert rows.count(app, "item") == (2 if blurs else 3)
    if blurs:
        assert "'RING' and 'ring'" in found[0]["body"]
        assert "utf8mb4_bin" in found[0]["body"]
