"""The newest observation of an item wins, in whichever order they are written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from stepfast.database.database import persist
from stepfast.runs.raw_rows import already_seen, observe, observed, remember_seen
from tests.support import rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepfast import Stepfast

RUN, LATER = "run 1", "run 2"


def see(
    app: Stepfast,
    at: int,
    price: int,
    *,
    run: str = RUN,
    item: str = "a",
    feed: str = "shop",
    more: Mapping[str, object] | None = None,
) -> None:
    seen = observed(item, {"id": item, "price": price, **(more or {})}, ("looked_at",))
    persist(app.database, lambda tx: observe(tx, feed, run, at, [seen]))


def row(app: Stepfast, item: str = "a", feed: str = "shop") -> rows.Row:
    (found,) = rows.query(
        app, "SELECT * FROM stepfast_raw WHERE item_id = :item AND feed = :feed", item=item, feed=feed
    )
    return found


def price(app: Stepfast) -> int:
    return int(json.loads(row(app)["payload"])["price"])


def apply(app: Stepfast) -> None:
    """As consolidation marks what it has read."""
    rows.change(app, "UPDATE stepfast_raw SET pending = 0, applied_hash = content_hash")


def test_an_older_observation_after_a_newer_one_is_ignored(app: Stepfast) -> None:
    """A worker was paused for an hour before it wrote its page. (F34, T13)"""
    see(app, 2_000, 20, run=LATER)
    apply(app)
    before = row(app)

    see(app, 1_000, 10)

    assert row(app) == before


def test_of_two_observations_of_one_instant_the_first_stays(app: Stepfast) -> None:
    """(T13)"""
    see(app, 1_000, 10)
    see(app, 1_000, 11)

    assert price(app) == 10


def test_a_newer_observation_replaces_everything_and_waits_to_be_consolidated(app: Stepfast) -> None:
    """(F31, F34)"""
    see(app, 1_000, 10)
    apply(app)
    first = row(app)

    see(app, 2_000, 20, run=LATER)

    it = row(app)
    assert (it["observed_at"], it["run_id"], it["pending"], price(app)) == (2_000, LATER, 1, 20)
    assert it["applied_hash"] == first["content_hash"] != it["content_hash"]


def test_what_is_equal_to_what_was_consolidated_is_not_consolidated_again(app: Stepfast) -> None:
    """But it was seen: a sweep must know. (F34)"""
    see(app, 1_000, 10)
    apply(app)

    see(app, 2_000, 10, run=LATER)

    it = row(app)
    assert (it["observed_at"], it["run_id"], it["pending"]) == (2_000, LATER, 0)


def test_what_was_changed_and_changed_back_before_anybody_looked_is_consolidated_no_more(
    app: Stepfast,
) -> None:
    """(F31)"""
    see(app, 1_000, 10)
    apply(app)
    see(app, 2_000, 20)
    assert row(app)["pending"] == 1

    see(app, 3_000, 10)

    assert row(app)["pending"] == 0


@pytest.mark.parametrize("change", [{"stock": 0}, {"media": ["x"]}, {"certificate": None}])
def test_any_field_that_changes_makes_a_new_version(app: Stepfast, change: dict[str, object]) -> None:
    """Not only fields that the feed names. (F34)"""
    see(app, 1_000, 10, more={"stock": 1})
    apply(app)

    see(app, 2_000, 10, more={"stock": 1} | change)

    assert row(app)["pending"] == 1


def test_fields_that_mean_nothing_make_no_new_version(app: Stepfast) -> None:
    see(app, 1_000, 10, more={"looked_at": 1})
    apply(app)

    see(app, 2_000, 10, more={"looked_at": 2})

    assert row(app)["pending"] == 0
    assert json.loads(row(app)["payload"])["looked_at"] == 2


def test_the_order_of_fields_is_no_content() -> None:
    assert observed("a", {"x": 1, "y": {"b": 1, "a": 2}}) == observed("a", {"y": {"a": 2, "b": 1}, "x": 1})


def test_what_was_gone_and_comes_back_unchanged_is_consolidated_again(app: Stepfast) -> None:
    """(F37)"""
    see(app, 1_000, 10)
    apply(app)
    rows.change(app, "UPDATE stepfast_raw SET gone_at = 5, strikes = 2")

    see(app, 2_000, 10)

    it = row(app)
    assert (it["pending"], it["strikes"], it["gone_at"]) == (1, 0, None)


def test_an_old_observation_brings_nothing_back(app: Stepfast) -> None:
    """(F34, F37)"""
    see(app, 2_000, 10)
    rows.change(app, "UPDATE stepfast_raw SET gone_at = 5, strikes = 2, pending = 0")

    see(app, 1_000, 10)

    it = row(app)
    assert (it["pending"], it["strikes"], it["gone_at"]) == (0, 2, 5)


def test_feeds_do_not_overwrite_each_other(app: Stepfast) -> None:
    """(F32)"""
    see(app, 1_000, 10)
    see(app, 2_000, 20, feed="other")

    assert price(app) == 10
    assert json.loads(row(app, feed="other")["payload"])["price"] == 20


@pytest.mark.parametrize("count", [1, 500, 501, 1_234])
def test_any_number_of_rows_is_written(app: Stepfast, count: int) -> None:
    found = [observed(f"{n:05}", {"n": n, "text": "ü'\"\\\n\u2028🙂%s :x"}) for n in range(count)]

    persist(app.database, lambda tx: observe(tx, "shop", RUN, 1, found))
    persist(app.database, lambda tx: remember_seen(tx, "p", [it.item_id for it in found], 1))

    kept = rows.query(app, "SELECT item_id, payload, content_hash FROM stepfast_raw ORDER BY item_id")
    assert [(it["item_id"], it["content_hash"], it["payload"]) for it in kept] == [tuple(it) for it in found]
    with app.reading() as tx:
        assert len(already_seen(tx, "p", [it.item_id for it in found])) == count


def test_ids_that_only_a_person_would_take_for_the_same_are_different(app: Stepfast) -> None:
    """Capitals, accents, widths and spaces tell items apart, on every database."""
    ids = ["a", "A", "á", " a", "a a", "\uff41", "ß", "ss"]
    found = [observed(it, {"id": it}) for it in ids]

    persist(app.database, lambda tx: observe(tx, "shop", RUN, 1, found))
    persist(app.database, lambda tx: remember_seen(tx, "p", ids, 1))

    assert {it["item_id"] for it in rows.query(app, "SELECT item_id FROM stepfast_raw")} == set(ids)
    with app.reading() as tx:
        assert already_seen(tx, "p", [*ids, "b"]) == dict.fromkeys(ids, 1)


def test_a_partition_remembers_in_which_pass_it_read_an_item_last(app: Stepfast) -> None:
    persist(app.database, lambda tx: remember_seen(tx, "p", ["a", "b"], 1))
    persist(app.database, lambda tx: remember_seen(tx, "p", ["b"], 2))
    persist(app.database, lambda tx: remember_seen(tx, "other", ["c"], 1))
    persist(app.database, lambda tx: remember_seen(tx, "p", [], 3))

    with app.reading() as tx:
        assert already_seen(tx, "p", ["a", "b", "c"]) == {"a": 1, "b": 2}
