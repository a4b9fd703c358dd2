"""Rule sets are stored once, activated one at a time, and pinned to runs. On every database."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.database.database import persist
from stepfast.errors import NotFoundError, SchemaError, StateError
from stepfast.testing import drain
from stepfast_diamonds.datasets import dataset_version
from stepfast_diamonds.money import stored
from stepfast_diamonds.repricing import Repricing
from stepfast_diamonds.rule_sets import (
    Activated,
    activate,
    active_version,
    find_rules,
    import_rules,
    list_rules,
    version_of,
)
from stepfast_diamonds.rules import RuleSet, default_rules
from stepfast_diamonds.rules_file import read_rules
from stepfast_diamonds.schema import prepare
from tests.diamonds.offers import Stones, catalogue, offer, stones
from tests.support import rows
from tests.support.engine import together

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast


def flat(modifier: int, **more: Any) -> RuleSet:
    """One tier for everything."""
    pricing = [{"priority": 1, "price_min": 0, "margin_modifier": modifier}]
    return read_rules(json.dumps({"pricing": pricing, **more}))


def add(app: Stepfast, rules: RuleSet) -> int:
    return persist(app.database, lambda tx: import_rules(tx, rules, "tester")).version


def switch(app: Stepfast, version: int) -> Activated:
    return persist(app.database, lambda tx: activate(tx, version))


def active(app: Stepfast) -> int:
    with app.reading() as tx:
        return active_version(tx)


def prices(app: Stepfast) -> dict[str, tuple[Decimal, int]]:
    return {
        it["supplier_stone_id"]: (stored(it["price_model_price"]), it["ruleset_version"])
        for it in stones(app)
    }


def sync(app: Stepfast) -> str:
    run = app.runs.start("nivoda-natural", "full")
    drain(app)
    return run.id


# Stored


def test_a_catalogue_begins_with_the_default_tiers(app: Stepfast) -> None:
    prepare(app)

    with app.reading() as tx:
        assert find_rules(tx, 1) == replace(default_rules(), version=1)
        assert active_version(tx) == 1


def test_preparing_again_changes_nothing(app: Stepfast) -> None:
    prepare(app)
    switch(app, add(app, flat(3)))

    prepare(app)

    assert active(app) == 2
    assert rows.count(app, "pricing_rule_sets") == 2


def test_many_processes_may_prepare_at_once(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    others = [another_app() for _ in range(4)]

    assert together([lambda it=it: prepare(it) for it in (app, *others)]) == [None] * 5  # type: ignore[misc]
    assert rows.count(app, "pricing_rule_sets") == 1


def test_a_set_comes_out_as_it_went_in(app: Stepfast) -> None:
    prepare(app)
    rating = [
        {"priority": 5, "rating": 9, "lab_grown": False, "ratio": {"max": "1.025"}, "cut": ["EX", "ID"]},
        {"priority": 6, "rating": 2, "feed": "demo", "price": {"min": "0.01", "max": 99999999.99}},
    ]
    rules = flat(-12, rating=rating, rating_fallback=4, name="spring", base_margins={"lab": "60.55"})

    version = add(app, rules)

    with app.reading() as tx:
        assert find_rules(tx, version) == replace(rules, version=version)


def test_the_same_rules_are_stored_once(app: Stepfast) -> None:
    prepare(app)

    assert add(app, flat(3)) == add(app, flat(3, name="other")) == 2
    assert add(app, flat(4)) == 3


def test_sets_that_are_imported_at_once_get_numbers_of_their_own(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    prepare(app)
    others = [another_app() for _ in range(3)]

    found = together([lambda n=n, it=it: add(it, flat(n)) for n, it in enumerate((app, *others))])  # type: ignore[misc]

    assert sorted(found) == [2, 3, 4, 5]


def test_without_the_tables_the_cure_is_named(app: Stepfast) -> None:
    app.feed(Stones())

    with pytest.raises(SchemaError, match="run `stepfast diamonds migrate` once"):
        app.runs.start("nivoda-natural")


# Activated


def test_one_set_counts_and_the_one_before_is_remembered(app: Stepfast) -> None:
    prepare(app)
    version = add(app, flat(3))

    assert active(app) == 1
    assert switch(app, version) == (1, 2)
    assert active(app) == 2
    with app.reading() as tx:
        assert [(it.version, it.active) for it in list_rules(tx)] == [(2, True), (1, False)]


def test_activating_what_is_not_there_or_active_is_refused(app: Stepfast) -> None:
    prepare(app)

    with pytest.raises(NotFoundError, match="no rule set 7"):
        switch(app, 7)
    with pytest.raises(StateError, match="active already"):
        switch(app, 1)


def test_a_stored_set_with_a_hole_is_not_activated(app: Stepfast) -> None:
    """What is in the table is checked, not only what was in a file. (F35)"""
    prepare(app)
    version = add(app, flat(3))
    rows.change(app, "UPDATE pricing_rules SET price_min = 5 WHERE version = :version", version=version)

    with pytest.raises(StateError, match="rule set 2 cannot be used: no pricing rule is for natural stones"):
        switch(app, version)
    assert active(app) == 1


def test_an_empty_set_is_activated_only_if_it_is_declared(app: Stepfast) -> None:
    """(F35)"""
    prepare(app)
    version = add(app, flat(3))
    rows.change(app, "DELETE FROM pricing_rules WHERE version = :version", version=version)

    with pytest.raises(StateError, match="there is no pricing rule"):
        switch(app, version)
    assert switch(app, add(app, read_rules('{"empty": true}'))).version == 3


def test_a_set_without_rules_for_stones_that_are_there_is_not_activated(app: Stepfast) -> None:
    catalogue(app, [offer("a")])
    sync(app)
    elsewhere = [{"priority": 1, "price_min": 0, "margin_modifier": 3, "feed": "demo"}]
    version = add(app, read_rules(json.dumps({"pricing": elsewhere})))

    with pytest.raises(StateError, match="natural stones of feed nivoda-natural from 0 and above"):
        switch(app, version)


def test_of_sets_that_are_activated_at_once_one_counts_and_each_knew_the_one_before(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    prepare(app)
    versions = [add(app, flat(n)) for n in range(4)]
    others = [app, *(another_app() for _ in range(3))]

    found = together([lambda n=n, it=it: switch(it, n) for n, it in zip(versions, others, strict=True)])  # type: ignore[misc]

    before = {it.version: it.before for it in found}
    chain = [active(app)]
    while chain[-1] != 1:
        chain.append(before[chain[-1]])
    assert len(chain) == 5, f"each was activated on top of another: {before}"


# Pinned


def test_a_run_keeps_the_set_that_counted_when_it_began(app: Stepfast) -> None:
    """F35: rules that changed in the middle of a run left mixed prices."""
    feed, _ = catalogue(app, [offer(f"s{n}", 100_000) for n in range(30)], batch=10, chunk=10, shards=2)
    feed.repricing = None
    run = app.runs.start("nivoda-natural")
    switch(app, add(app, flat(60)))
    drain(app)

    assert set(prices(app).values()) == {(Decimal("1430.00"), 1)}
    with app.reading() as tx:
        assert (version_of(tx, run.id), version_of(tx, None)) == (1, 2)

    feed.offers = [offer(f"s{n}", 200_000) for n in range(30)]
    sync(app)
    assert set(prices(app).values()) == {(Decimal("4000.00"), 2)}


def test_a_run_that_ends_under_newer_rules_asks_for_a_repricing(app: Stepfast) -> None:
    catalogue(app, [offer("a", 100_000)])
    app.runs.start("nivoda-natural")
    switch(app, add(app, flat(60)))
    drain(app)

    assert prices(app) == {"a": (Decimal("2000.00"), 2)}


def test_what_a_run_with_the_active_rules_does_not_write_keeps_its_old_price(app: Stepfast) -> None:
    """An activation without a repricing changes a price when the stone changes, and not before."""
    feed, repricing = catalogue(app, [offer("a", 100_000), offer("b", 100_000)])
    sync(app)
    switch(app, add(app, flat(60)))
    feed.offers = [offer("a", 100_000), offer("b", 200_000)]
    sync(app)
    assert prices(app) == {"a": (Decimal("1430.00"), 1), "b": (Decimal("4000.00"), 2)}

    repricing.ask()
    drain(app)
    assert prices(app) == {"a": (Decimal("2000.00"), 2), "b": (Decimal("4000.00"), 2)}


def test_a_run_that_ends_under_newer_rules_reprices_what_it_wrote_and_nothing_else(app: Stepfast) -> None:
    feed, _ = catalogue(app, [offer("a", 100_000), offer("b", 100_000)])
    sync(app)
    feed.offers = [offer("a", 100_000), offer("b", 200_000)]
    app.runs.start("nivoda-natural", "full")
    switch(app, add(app, flat(60)))
    drain(app)

    assert prices(app) == {"a": (Decimal("1430.00"), 1), "b": (Decimal("4000.00"), 2)}


# Missing, unreadable or gone: a run is held, and no stone gets a price that nobody has chosen


def lose(app: Stepfast, *statements: str) -> None:
    for statement in statements:
        rows.change(app, statement)


DAMAGES = {
    "no set is active": ["UPDATE pricing_active SET version = 0"],
    "no row says which is active": ["DELETE FROM pricing_active"],
    "the set is gone": ["DELETE FROM pricing_rule_sets"],
    "its rules are gone": ["DELETE FROM pricing_rules"],
    "one rule is gone": ["DELETE FROM pricing_rules WHERE number = 3"],
    "a rule was changed": ["UPDATE pricing_rules SET margin_modifier = 99 WHERE number = 1"],
    "a rule cannot be read": ["UPDATE pricing_rules SET stone_type = 'wood' WHERE number = 1"],
}
HELD = "it is held, and goes on by itself: stones cannot be priced: "


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_run_without_rules_is_held_and_goes_on_after_the_import(app: Stepfast, damage: list[str]) -> None:
    """CE4 of the flowchart: it reads everything, writes nothing, spends no attempt. (F35)"""
    feed, _ = catalogue(app, [offer("a", 100_000)])
    lose(app, *damage)
    run = app.runs.start("nivoda-natural")
    assert [it.title for it in app.operator.alerts()] == ["Run held"]
    drain(app)

    shown = app.runs.show(run.id)
    assert (shown.run.state, shown.run.seen, shown.run.quarantined) == ("applying", 1, 0)
    assert shown.why[-1].sentence.startswith(HELD), shown.why
    assert "stepfast diamonds rules import FILE" in shown.why[-1].sentence
    assert stones(app) == []
    assert {it["failures"] for it in rows.query(app, "SELECT failures FROM stepfast_job")} == {0}

    feed._known.clear()
    version = add(app, flat(60))
    drain(app, with_scheduled=True)

    assert app.runs.show(run.id).run.state == "completed"
    assert prices(app) == {"a": (Decimal("2000.00"), version)}
    assert (version, active(app)) == (2, 2), "a number is never given twice"


IN_THE_MIDDLE = ("no set is active", "the set is gone", "one rule is gone")


@pytest.mark.parametrize("damage", [DAMAGES[it] for it in IN_THE_MIDDLE], ids=IN_THE_MIDDLE)
def test_rules_that_vanish_in_the_middle_hold_the_run_and_leave_no_mixed_prices(
    app: Stepfast, damage: list[str]
) -> None:
    feed, _ = catalogue(app, [offer(f"s{n}", 100_000) for n in range(30)], batch=10, chunk=10, shards=1)
    run = app.runs.start("nivoda-natural")
    while not stones(app):
        drain(app, limit=1)
    lose(app, *damage)
    feed._known.clear()  # as in a process that has not read them yet
    drain(app)
    kept = "active" in damage[0]  # the set that the run began with is whole

    if not kept:
        shown = app.runs.show(run.id)
        assert (shown.run.state, len(stones(app))) == ("applying", 10)
        assert shown.why[-1].sentence.startswith(HELD)
        assert [it.title for it in app.operator.alerts()] == ["Run held"]
    version = add(app, flat(60))
    drain(app, with_scheduled=True)

    assert app.runs.show(run.id).run.state == "completed"
    expected = {(Decimal("1430.00"), 1)} if kept else {(Decimal("2000.00"), version)}
    assert set(prices(app).values()) == expected
    assert rows.count(app, "stepfast_quarantine") == 0


def test_the_same_rules_imported_again_mend_a_damaged_set_under_its_number(app: Stepfast) -> None:
    catalogue(app, [offer("a", 100_000)])
    switch(app, add(app, flat(60)))
    lose(
        app, "DELETE FROM pricing_rules WHERE version = 2", "UPDATE pricing_rule_sets SET margin_natural = 1"
    )
    run = app.runs.start("nivoda-natural")
    drain(app)
    assert app.runs.show(run.id).run.state == "applying"

    done = persist(app.database, lambda tx: import_rules(tx, flat(60), "tester"))
    drain(app, with_scheduled=True)

    assert (done.version, done.created, done.restored, done.activated) == (2, False, True, False)
    assert prices(app) == {"a": (Decimal("2000.00"), 2)}
    with app.reading() as tx:
        assert find_rules(tx, 2) == replace(flat(60), version=2)


def test_a_run_that_lost_its_set_goes_on_with_the_active_one(app: Stepfast) -> None:
    feed, _ = catalogue(app, [offer("a", 100_000)])
    run = app.runs.start("nivoda-natural")
    switch(app, add(app, flat(60)))
    lose(app, "DELETE FROM pricing_rule_sets WHERE version = 1")
    feed._known.clear()
    drain(app)

    assert app.runs.show(run.id).run.state == "completed"
    assert prices(app) == {"a": (Decimal("2000.00"), 2)}


def test_a_table_of_rules_that_is_missing_holds_the_run_too(app: Stepfast) -> None:
    feed, _ = catalogue(app, [offer("a")])
    run = app.runs.start("nivoda-natural")
    feed._known.clear()
    with closing(app.database.connect()) as connection:  # MariaDB would end a transaction
        connection.execute("DROP TABLE rating_rules")
    drain(app)

    shown = app.runs.show(run.id)
    assert shown.run.state == "applying"
    assert "run `stepfast diamonds migrate` once" in shown.why[-1].sentence


def test_an_import_leaves_a_usable_set_active(app: Stepfast) -> None:
    prepare(app)

    done = persist(app.database, lambda tx: import_rules(tx, flat(60), "tester"))

    assert (done.activated, active(app)) == (False, 1)


def test_default_rules_do_not_replace_rules_that_were_lost(app: Stepfast) -> None:
    prepare(app)
    switch(app, add(app, flat(60)))
    lose(app, "DELETE FROM pricing_rule_sets", "UPDATE pricing_active SET version = 0")

    prepare(app)

    with app.reading() as tx:
        assert version_of(tx, None) == 0
        assert list_rules(tx) == []


def test_a_repricing_waits_for_rules_that_are_gone(app: Stepfast) -> None:
    _, repricing = catalogue(app, [offer("a", 100_000)])
    sync(app)
    switch(app, add(app, flat(60)))
    lose(app, "DELETE FROM pricing_rules WHERE version = 2")
    job = repricing.ask()
    drain(app, raise_errors=False)
    assert (rows.live(app, job.id) or {})["failures"] == 0

    add(app, flat(60))
    drain(app, with_scheduled=True)

    assert prices(app) == {"a": (Decimal("2000.00"), 2)}


# Published


def test_a_dataset_gets_a_new_number_with_every_run_that_publishes(app: Stepfast) -> None:
    feed, _ = catalogue(app, [offer("a")], error_limit=0)

    def number() -> int:
        with app.reading() as tx:
            return dataset_version(tx, "nivoda-natural")

    assert number() == 0
    sync(app)
    first = number()
    sync(app)
    assert (first > 0, number() > first) == (True, True)
    feed.offers = [offer("b", shape=None)]
    before = number()
    sync(app)
    assert number() == before, "a run that is not to be trusted publishes nothing"


def test_a_rejected_stone_waits_in_quarantine_and_its_old_row_says_that_it_is_stale(app: Stepfast) -> None:
    """F56: an old price stayed on sale, and nothing showed that it was old."""
    feed, _ = catalogue(app, [offer("a"), offer("b")], needs=frozenset({"image"}))
    sync(app)
    feed.offers = [offer("a", diamond={"image": None}, product_images=[]), offer("b", 222_200)]
    sync(app)

    (entry,) = rows.query(app, "SELECT code, message FROM stepfast_quarantine WHERE state = 'open'")
    assert (entry["code"], entry["message"]) == ("no image", "the stone has no image; it cannot be shown")
    a, b = stones(app)
    assert a["stale_since"] is not None
    assert (b["stale_since"], stored(b["feed_price"])) == (None, Decimal("2222.00"))

    feed.offers = [offer("a", 333_300), offer("b", 222_200)]
    sync(app)
    assert [it["stale_since"] for it in stones(app)] == [None, None]


def test_a_stone_that_is_gone_is_marked_and_comes_back(app: Stepfast) -> None:
    everything = [offer(f"s{n:03}") for n in range(60)]
    feed, _ = catalogue(app, everything)
    sync(app)
    feed.offers = everything[1:]
    sync(app)
    sync(app)
    assert [it["supplier_stone_id"] for it in stones(app) if it["status"] == "deleted"] == ["s000"]

    feed.offers = everything
    sync(app)
    assert {it["status"] for it in stones(app)} == {"active"}


def test_raw_stones_can_be_looked_at(app: Stepfast) -> None:
    catalogue(app, [offer("a"), offer("b", shape=None)])
    sync(app)

    found = rows.query(app, "SELECT * FROM raw_diamonds_nivoda ORDER BY supplier_stone_id")
    assert [(it["supplier_stone_id"], it["offer_id"], bool(it["consolidated"])) for it in found] == [
        ("a", "DIAMOND/a", True),
        ("b", "DIAMOND/b", False),
    ]
    assert found[0]["observed_at"] is not None


def test_money_is_stored_to_the_cent(app: Stepfast) -> None:
    catalogue(app, [offer("a", 99_999_999_99), offer("b", 1), offer("c", 499_99)])
    sync(app)

    found = {
        it["supplier_stone_id"]: (stored(it["feed_price"]), stored(it["price_model_price"]))
        for it in stones(app)
    }
    assert found == {
        "a": (Decimal("99999999.99"), Decimal("125999999.99")),
        "b": (Decimal("0.01"), Decimal("0.01")),
        "c": (Decimal("499.99"), Decimal("729.99")),
    }


def test_two_jobs_of_one_name_are_not_registered_by_two_feeds(app: Stepfast) -> None:
    """Natural and lab-grown share the jobs, and the table: each row says of which feed it is. (F12, F32)"""
    prepare(app)
    repricing = Repricing(app)
    app.feed(Stones([offer("a")], repricing=repricing))
    app.feed(Stones([offer("a"), offer("z")], repricing=repricing, name="nivoda-labgrown", lab_grown=True))
    app.runs.start("nivoda-natural")
    app.runs.start("nivoda-labgrown")
    drain(app)

    found = rows.query(
        app, "SELECT feed, supplier_stone_id, lab_grown FROM diamonds ORDER BY feed, supplier_stone_id"
    )
    assert [tuple(it.values()) for it in found] == [
        ("nivoda-labgrown", "a", 1),
        ("nivoda-labgrown", "z", 1),
        ("nivoda-natural", "a", 0),
    ]
