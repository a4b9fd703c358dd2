"""A verify reads everything, compares it with the target, and repairs what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stepfast.runs.run import RunState
from tests.support import rows
from tests.support.engine import drain
from tests.support.feeds import Catalogue, Shop, prepare, target

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.admin.run_reports import RunReport


def synced(app: Stepfast, shop: Shop, **settings: Any) -> None:
    prepare(app)
    app.feed(Catalogue(shop, **settings))
    app.runs.start("catalogue")
    drain(app)
    assert target(app) == shop.prices()


def verify(app: Stepfast) -> RunReport:
    run = app.runs.start("catalogue", "verify")
    drain(app)
    return app.runs.show(run.id).run


def test_a_target_that_is_right_has_no_differences(app: Stepfast) -> None:
    shop = Shop.with_items(40)
    synced(app, shop)

    done = verify(app)

    assert (done.state, done.applied, done.differences) == (RunState.COMPLETED, 40, 0)


def test_rows_that_are_missing_or_differ_are_counted_and_repaired(app: Stepfast) -> None:
    shop = Shop.with_items(40)
    synced(app, shop, batch=15, chunk=5)
    before = rows.query(app, "SELECT watermark FROM stepfast_feed")
    rows.change(app, "DELETE FROM item WHERE id IN ('d00003', 'd00039')")
    rows.change(app, "UPDATE item SET price = price + 1 WHERE id = 'd00007'")
    rows.change(app, "UPDATE item SET deleted_at = 5 WHERE id = 'd00008'")  # of no business of this feed

    done = verify(app)

    assert (done.state, done.applied, done.differences) == (RunState.COMPLETED, 40, 3)
    assert done.watermark_after is None
    assert rows.query(app, "SELECT watermark FROM stepfast_feed") == before
    rows.change(app, "UPDATE item SET deleted_at = NULL")
    assert target(app) == shop.prices()
    assert verify(app).differences == 0


def test_what_is_new_at_the_source_is_a_difference_too(app: Stepfast) -> None:
    shop = Shop.with_items(10)
    synced(app, shop)
    shop.put("d00003", 999)
    shop.put("new", 5)

    assert verify(app).differences == 2
    assert target(app) == shop.prices()


@pytest.mark.parametrize("kind", ["full", "incremental"])
def test_other_runs_compare_nothing(app: Stepfast, kind: Any) -> None:
    shop = Shop.with_items(10)
    synced(app, shop)
    rows.change(app, "DELETE FROM item WHERE id = 'd00003'")

    run = app.runs.start("catalogue", kind)
    drain(app)

    done = app.runs.show(run.id).run
    assert (done.state, done.differences) == (RunState.COMPLETED, 0)
    assert len(target(app)) == 9


def test_rows_with_keys_of_several_columns_and_of_numbers_are_compared(app: Stepfast) -> None:
    connection = app.database.connect()
    connection.execute(
        "CREATE TABLE pair (shop INTEGER NOT NULL, code VARCHAR(50) NOT NULL, price DECIMAL(10, 2), PRIMARY KEY (shop, code))"
    )
    connection.close()

    def mapped(it: Any) -> dict[str, Any]:
        return {"shop": 7, "code": it["id"], "price": it["price"] / 2}

    app.feed(Catalogue(Shop.with_items(12), table="pair", key=("shop", "code"), map=mapped))
    app.runs.start("catalogue")
    drain(app)
    rows.change(app, "UPDATE pair SET price = 1 WHERE code = 'd00004'")

    assert verify(app).differences == 1
    assert verify(app).differences == 0
