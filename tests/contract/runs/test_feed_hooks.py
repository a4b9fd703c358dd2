"""Hooks of a feed: when a run begins, when a batch is mapped, and when rows are published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Sweep
from stepfast.errors import ConfigurationError, HeldError, StateError
from stepfast.testing import drain
from tests.support import rows
from tests.support.events import hearing, named
from tests.support.feeds import Catalogue, Shop, prepare, target
from tests.support.run_facts import begin, run_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast, Transaction
    from stepfast.runs.feed import Row

PINS = "CREATE TABLE pin (run_id VARCHAR(128) NOT NULL PRIMARY KEY, factor INTEGER NOT NULL)"
NOTES = "CREATE TABLE note (id VARCHAR(128) NOT NULL PRIMARY KEY, times INTEGER NOT NULL)"


def refusing(item: Any) -> Row:
    """What map() does; some items are bad."""
    if item.get("bad"):
        raise ValueError(f"item {item['id']} is bad")
    return {"id": item["id"], "price": item["price"]}


class Pinned(Catalogue):
    """Multiplies prices by a factor that it remembers for each run."""

    factor = 1

    def map(self, item: Any, /) -> Row:
        return refusing(item)

    def started(self, tx: Transaction, run_id: str, /) -> None:
        tx.execute(
            "INSERT INTO pin (run_id, factor) VALUES (:run_id, :factor)",
            {"run_id": run_id, "factor": self.factor},
        )

    def mapping(self, tx: Transaction, run_id: str | None, /) -> Callable[[Any], Row]:
        pins = tx.query("SELECT factor FROM pin WHERE run_id = :run_id", {"run_id": run_id})
        factor = int(pins[0]["factor"]) if pins else self.factor

        def to_row(item: Any) -> Row:
            row = self.map(item)
            return {**row, "price": row["price"] * factor}

        return to_row

    def published(self, tx: Transaction, run_id: str, /) -> None:
        if tx.execute("UPDATE note SET times = times + 1 WHERE id = :id", {"id": run_id}) == 0:
            tx.execute("INSERT INTO note (id, times) VALUES (:id, 1)", {"id": run_id})


def pinned(app: Stepfast, shop: Shop, **settings: Any) -> Pinned:
    make_tables(app)
    return app.feed(Pinned(shop, **settings))


def make_tables(app: Stepfast) -> None:
    prepare(app)
    connection = app.database.connect()
    connection.execute(PINS)
    connection.execute(NOTES)
    connection.close()


def notes(app: Stepfast) -> dict[str, int]:
    return {str(it["id"]): int(it["times"]) for it in rows.query(app, "SELECT id, times FROM note")}


def test_what_a_run_began_with_is_what_all_of_its_batches_are_mapped_with(app: Stepfast) -> None:
    shop = Shop.with_items(40)
    feed = pinned(app, shop, batch=10, chunk=10)
    feed.factor = 3
    begin(app)
    feed.factor = 7
    drain(app)

    assert target(app) == {name: 3 * price for name, price in shop.prices().items()}


def test_a_feed_can_refuse_that_a_run_begins(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StateError("not today")

    feed = pinned(app, Shop.with_items(3))
    monkeypatch.setattr(feed, "started", refuse)

    with pytest.raises(StateError, match="not today"):
        begin(app)
    assert rows.count(app, "stepfast_run") == rows.count(app, "stepfast_job") == 0


class Waiting(Pinned):
    """Cannot map before somebody has given it a stamp."""

    stamp: str | None = None

    def started(self, tx: Transaction, run_id: str, /) -> None:
        super().started(tx, run_id)
        self._need_stamp()

    def mapping(self, tx: Transaction, run_id: str | None, /) -> Callable[[Any], Row]:
        self._need_stamp()
        return super().mapping(tx, run_id)

    def _need_stamp(self) -> None:
        if self.stamp is None:
            raise HeldError("the stamp is missing; bring it with: stamps bring")


def test_a_run_whose_rows_cannot_be_mapped_yet_is_held_and_goes_on_by_itself(app: Stepfast) -> None:
    shop = Shop.with_items(30)
    make_tables(app)
    feed = app.feed(Waiting(shop, batch=10, chunk=10, shards=2, attempts_consolidation=1))
    run = begin(app)
    (told,) = app.operator.alerts()
    assert (told.title, "stamps bring" in told.body) == ("Run held", True)

    drain(app)
    for job in rows.query(app, "SELECT id FROM stepfast_job"):  # they look again, and wait again
        rows.make_due(app, job["id"])
    drain(app)

    shown = app.runs.show(run.id)
    assert (shown.run.state, target(app)) == ("applying", {})
    assert "it is held, and goes on by itself: the stamp is missing; bring it with: stamps bring" in [
        it.sentence for it in shown.why
    ]
    assert {it["failures"] for it in rows.query(app, "SELECT failures FROM stepfast_job")} == {0}
    assert [it.title for it in app.operator.alerts()] == ["Run held"]
    assert app.operator.alerts()[0].raised == 1, "once an hour, not once a look"

    feed.stamp = "brought"
    drain(app, with_scheduled=True)

    done = run_of(app, run.id)
    assert (done.state, done.reason) == ("completed", None)
    assert target(app) == shop.prices()


def test_a_run_that_is_held_in_the_middle_keeps_what_it_has_written(app: Stepfast) -> None:
    shop = Shop.with_items(30)
    make_tables(app)
    feed = app.feed(Waiting(shop, batch=10, chunk=10, shards=1))
    feed.stamp = "there"
    run = begin(app)
    while not target(app):
        drain(app, limit=1)
    feed.stamp = None
    with hearing() as heard:
        drain(app)

    assert 0 < len(target(app)) < 30
    assert [it["note"] for it in named(heard, "run.held")] == [
        "the stamp is missing; bring it with: stamps bring"
    ]
    feed.stamp = "there"
    drain(app, with_scheduled=True)
    assert run_of(app, run.id).state == "completed"
    assert target(app) == shop.prices()


def test_rows_that_are_tried_again_are_mapped_without_a_run(app: Stepfast) -> None:
    shop = Shop.with_items(3)
    shop.put("d00001", 9, bad=True)
    feed = pinned(app, shop, error_budget=1.0)
    begin(app)
    drain(app)
    feed.factor = 5
    feed.map = lambda it: {"id": it["id"], "price": it["price"]}  # type: ignore[method-assign]
    with app.transaction() as tx:
        tx.execute("UPDATE stepfast_quarantine SET state = 'replaying'")
        tx.execute("INSERT INTO stepfast_job (id, kind, payload) VALUES ('replay', 'catalogue.replay', '{}')")
    drain(app)

    assert target(app)["d00001"] == 45


def test_a_run_publishes_in_the_transaction_that_ends_it(app: Stepfast) -> None:
    pinned(app, Shop.with_items(5))
    run = begin(app)
    drain(app)

    assert notes(app) == {run.id: 1}


def test_a_run_that_is_not_to_be_trusted_publishes_nothing(app: Stepfast) -> None:
    shop = Shop.with_items(5)
    for name in [*shop.items]:
        shop.put(name, 1, bad=True)
    pinned(app, shop)
    run = begin(app)
    drain(app)

    assert run_of(app, run.id).state == "failed_quality"
    assert notes(app) == {}


def test_a_run_publishes_again_when_its_sweep_has_ended(app: Stepfast) -> None:
    shop = Shop.with_items(5)
    pinned(app, shop, sweep=Sweep(strikes=1, fuse=1.0))
    begin(app)
    drain(app)
    shop.remove("d00003")
    run = begin(app, kind="full")
    drain(app)

    assert len(target(app)) == 4
    assert notes(app)[run.id] == 2


def test_what_fails_while_it_publishes_leaves_the_run_where_it_was(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = pinned(app, Shop.with_items(5), attempts_consolidation=1)
    monkeypatch.setattr(feed, "published", lambda tx, _: tx.execute("UPDATE nowhere SET x = 1"))
    run = begin(app)
    drain(app, raise_errors=False)

    assert run_of(app, run.id).state == "failed"
    assert run_of(app, run.id).watermark_after is None


@pytest.mark.parametrize("method", ["started", "mapping", "published"])
def test_they_must_be_plain_functions(app: Stepfast, method: str) -> None:
    async def asynchronous(*_: object) -> None: ...

    feed = Catalogue(Shop())
    setattr(feed, method, asynchronous)

    with pytest.raises(ConfigurationError, match=rf"{method}\(\) .* must be a plain function"):
        app.feed(feed)


# Several feeds in one table

CREATE = """
    CREATE TABLE shared (source VARCHAR(50) NOT NULL, id VARCHAR(50) NOT NULL, price INTEGER NOT NULL,
                         deleted_at BIGINT, stale_since BIGINT, PRIMARY KEY (source, id))
"""


class Sharing(Catalogue):
    table, key, item_column, feed_column = "shared", ("source", "id"), "id", "source"
    stale, sweep, error_budget = "stale_since", Sweep(strikes=1, fuse=1.0), 1.0

    def map(self, item: Any, /) -> Row:
        return {"source": self.name, **refusing(item)}


def test_a_feed_marks_no_row_of_another_in_the_same_table(app: Stepfast) -> None:
    """Neither as stale nor as gone, though their items have the same ids. (F12, F32)"""
    connection = app.database.connect()
    connection.execute(CREATE)
    connection.close()
    shops = {name: Shop.with_items(4) for name in ("east", "west")}
    for name, shop in shops.items():
        app.feed(Sharing(shop, name=name))
        app.runs.start(name)
    drain(app)
    shops["east"].remove("d00001")
    shops["east"].put("d00002", 1, bad=True)
    app.runs.start("east", "full")
    drain(app)

    found = rows.query(app, "SELECT source, id, deleted_at, stale_since FROM shared ORDER BY source, id")
    assert [(it["source"], it["id"]) for it in found if it["deleted_at"] is not None] == [("east", "d00001")]
    assert [(it["source"], it["id"]) for it in found if it["stale_since"] is not None] == [("east", "d00002")]
