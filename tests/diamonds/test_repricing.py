"""Stones get the prices of the active rule set, also if a repricing is interrupted. (T14)"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.database.database import persist
from stepfast.errors import NotFoundError, StateError
from stepfast.testing import drain, kill_worker
from stepfast_diamonds import repricing as jobs
from stepfast_diamonds import repricing as repricing_rows
from stepfast_diamonds.datasets import dataset_version
from stepfast_diamonds.money import stored
from stepfast_diamonds.repricing import dry_run, list_repricings, undo_repricing
from stepfast_diamonds.rule_sets import find_rules
from stepfast_diamonds.rules_file import read_rules
from tests.diamonds.offers import catalogue, offer, stones
from tests.diamonds.test_rules import active, add, flat, prices, switch, sync
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Continue, Done, Stepfast
    from stepfast_diamonds.repricing import Repricing

STONES = 55


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "BATCH", 20)


def synced(app: Stepfast, count: int = STONES, **settings: Any) -> Repricing:
    """Stones that cost from 100 to 5,500, priced by the default rules."""
    _, repricing = catalogue(app, [offer(f"s{n:03}", 10_000 * n) for n in range(1, count + 1)], **settings)
    sync(app)
    return repricing


def repricings(app: Stepfast) -> list[tuple[str, int | None, int, int]]:
    with app.reading() as tx:
        return [(it.state, it.from_version, it.to_version, it.changed) for it in list_repricings(tx)]


def newest(app: Stepfast) -> str:
    with app.reading() as tx:
        return list_repricings(tx)[0].id


def taken_back(app: Stepfast, repricing: Repricing, name: str) -> None:
    def work(tx: Any) -> None:
        undo_repricing(tx, name)
        repricing.take_back(tx, name)

    persist(app.database, work)


def doubled() -> dict[str, tuple[Decimal, int]]:
    return {f"s{n:03}": (Decimal(200 * n), 2) for n in range(1, STONES + 1)}


# Repricing


def test_all_stones_get_the_prices_of_the_active_set(app: Stepfast) -> None:
    repricing = synced(app)
    switch(app, add(app, flat(60)))
    job = repricing.ask()
    drain(app)

    assert prices(app) == doubled()
    assert job.wait(5).result == {"version": 2, "looked_at": STONES, "changed": STONES}
    assert repricings(app) == [("completed", 1, 2, STONES)]


def test_only_stones_that_another_set_has_priced_are_touched(app: Stepfast) -> None:
    repricing = synced(app)
    before = {it["id"]: it["updated_at"] for it in stones(app)}
    repricing.ask()
    drain(app)
    assert {it["id"]: it["updated_at"] for it in stones(app)} == before
    assert repricings(app) == []


def test_a_stone_whose_price_stays_gets_the_new_version_and_no_snapshot(app: Stepfast) -> None:
    repricing = synced(app)
    switch(app, add(app, flat(3)))  # as the tier from 1,000 to 3,000
    repricing.ask()
    drain(app)

    assert {version for _, version in prices(app).values()} == {2}
    snapshots = rows.query(app, "SELECT count(*) AS n FROM repricing_snapshots")[0]["n"]
    assert (int(snapshots), repricings(app)) == (35, [("completed", 1, 2, 35)])


def test_asking_twice_is_one_repricing(app: Stepfast) -> None:
    repricing = synced(app)
    switch(app, add(app, flat(60)))

    assert repricing.ask().id == repricing.ask().id


def test_ratings_are_given_anew(app: Stepfast) -> None:
    repricing = synced(app)
    rating = [
        {"priority": 1, "rating": 9, "price": {"min": 1000}, "cut": ["EXCELLENT"], "ratio": {"max": "1.006"}}
    ]
    switch(app, add(app, flat(60, rating=rating, rating_fallback=2)))
    repricing.ask()
    drain(app)

    assert {it["supplier_stone_id"]: it["rating"] for it in stones(app)} == {
        f"s{n:03}": 9 if n >= 10 else 2 for n in range(1, STONES + 1)
    }


def test_progress_is_seen_and_caches_are_told(app: Stepfast) -> None:
    repricing = synced(app)
    with app.reading() as tx:
        before = dataset_version(tx, "nivoda-natural")
    switch(app, add(app, flat(60)))
    job = repricing.ask()
    drain(app)

    with app.reading() as tx:
        assert dataset_version(tx, "nivoda-natural") == before + 3
    assert app.result_of(job.id).note == "55 of 55, 55 changed"


def test_a_stone_that_a_run_writes_meanwhile_is_not_overwritten_with_what_was_read(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    repricing = synced(app)
    switch(app, add(app, flat(60)))
    read = repricing_rows.read_batch

    def and_then_written(*given: Any) -> Any:
        found = read(*given)
        rows.change(
            app,
            "UPDATE diamonds SET feed_price = 7, price_model_price = 10, updated_at = updated_at + 1 "
            "WHERE supplier_stone_id = 's001' AND feed_price <> 7",
        )
        return found

    monkeypatch.setattr(jobs, "read_batch", and_then_written)
    repricing.ask()
    drain(app)

    assert prices(app) == doubled() | {"s001": (Decimal(14), 2)}


def test_a_set_that_becomes_active_meanwhile_is_what_it_ends_with(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    repricing = synced(app)
    switch(app, add(app, flat(160)))
    third = add(app, flat(60))
    priced = repricing_rows.Batch.priced
    steps: list[int] = []

    def and_then_activated(*given: Any) -> Any:
        steps.append(1)
        if len(steps) == 2:
            switch(app, third)
        return priced(*given)

    monkeypatch.setattr(repricing_rows.Batch, "priced", staticmethod(and_then_activated))
    repricing.ask()
    drain(app)

    assert prices(app) == {name: (price, 3) for name, (price, _) in doubled().items()}
    assert repricings(app) == [("completed", 2, 3, STONES), ("superseded", 1, 2, 40)]


def test_what_a_run_with_older_rules_writes_meanwhile_is_taken_in_another_pass(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends when no stone is left behind, never because it came to the end of the table. (T14)"""
    repricing = synced(app)
    switch(app, add(app, flat(60)))
    looks: list[int] = []
    read = repricing_rows.read_batch

    def and_then_written(*given: Any) -> Any:
        found = read(*given)
        if not found and not looks:
            looks.append(1)
            rows.change(app, "UPDATE diamonds SET ruleset_version = 1, price_model_price = 1 WHERE id <= 3")
        return found

    monkeypatch.setattr(jobs, "read_batch", and_then_written)
    repricing.ask()
    drain(app)

    assert prices(app) == doubled()


def activate_rules_for_another_feed(app: Stepfast) -> None:
    """As if the stones had come after the check of the activation."""
    pricing = [{"priority": 1, "price_min": 0, "margin_modifier": 60, "feed": "demo"}]
    version = add(app, read_rules(json.dumps({"pricing": pricing})))
    rows.change(app, "UPDATE pricing_active SET previous = 1, version = :version", version=version)


def test_a_stone_that_no_rule_is_for_keeps_its_price_and_is_marked_stale(app: Stepfast) -> None:
    repricing = synced(app)
    activate_rules_for_another_feed(app)
    repricing.ask()
    drain(app)

    assert {version for _, version in prices(app).values()} == {2}
    assert all(it["stale_since"] is not None for it in stones(app))
    assert repricings(app) == [("completed", 1, 2, 0)]


@pytest.mark.parametrize("modifier", [61, 3], ids=["another price", "the same price"])
def test_a_stone_that_has_a_rule_again_is_no_longer_stale(app: Stepfast, modifier: int) -> None:
    _, repricing = catalogue(app, [offer("a", 100_000)])
    sync(app)
    activate_rules_for_another_feed(app)
    repricing.ask()
    drain(app)
    switch(app, add(app, flat(modifier)))
    repricing.ask()
    drain(app)

    (stone,) = stones(app)
    assert (stone["ruleset_version"], stone["stale_since"]) == (3, None)


def test_a_repricing_does_not_freshen_what_the_source_said_last_and_nobody_could_read(app: Stepfast) -> None:
    feed, repricing = catalogue(app, [offer("a", 100_000)])
    sync(app)
    feed.offers = [offer("a", 100_000, shape=None)]
    sync(app)
    switch(app, add(app, flat(60)))
    repricing.ask()
    drain(app)

    (stone,) = stones(app)
    assert stone["ruleset_version"] == 2
    assert stone["stale_since"] is not None


def test_stones_that_were_left_with_older_prices_keep_them_when_a_repricing_is_taken_back(
    app: Stepfast,
) -> None:
    feed, repricing = catalogue(app, [offer("a", 100_000), offer("b", 100_000)])
    sync(app)
    switch(app, add(app, flat(60)))
    feed.offers = [offer("a", 100_000), offer("b", 200_000)]
    sync(app)
    mixed = prices(app)
    switch(app, add(app, flat(70)))
    repricing.ask()
    drain(app)
    taken_back(app, repricing, newest(app))
    drain(app)

    assert prices(app) == mixed


def test_a_repricing_can_be_cancelled_and_asked_for_again(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    repricing = synced(app)
    switch(app, add(app, flat(60)))
    job = repricing.ask()
    outcome = jobs.Repricing._reprice

    def and_then_cancelled(self: Any, step: Any, scope: Any) -> Done | Continue:
        if step.number == 1:
            app.operator.cancel(job.id, "not now")
        return outcome(self, step, scope)

    monkeypatch.setattr(jobs.Repricing, "_reprice", and_then_cancelled)
    drain(app)
    halfway = [version for _, version in prices(app).values()]
    assert app.result_of(job.id).state == "cancelled"
    assert (halfway.count(1), halfway.count(2)) in {(35, 20), (15, 40)}

    monkeypatch.setattr(jobs.Repricing, "_reprice", outcome)
    repricing.ask()
    drain(app)
    assert prices(app) == doubled()


# Killed


@pytest.mark.parametrize(
    "point",
    [
        "before handler",
        "after handler",
        "before INSERT INTO repricings",
        "before repricing_snapshots",
        "before UPDATE diamonds",
        "after UPDATE diamonds",
        "before UPDATE repricings",
        "before INSERT INTO dataset_versions",
        "before commit",
        "after commit",
    ],
)
def test_a_worker_that_is_killed_in_the_middle_leaves_whole_steps(app: Stepfast, point: str) -> None:
    """SIGKILL: each stone has the old price and version or the new ones, and a snapshot if it changed. (T14)"""
    repricing = synced(app)
    old = prices(app)
    switch(app, add(app, flat(60)))
    repricing.ask()

    kill_worker(app, point, nth=2)

    found, new = prices(app), doubled()
    assert all(found[name] in (old[name], new[name]) for name in found)
    changed = [name for name in found if found[name] == new[name]]
    assert rows.count(app, "repricing_snapshots") == len(changed)
    assert len(changed) in {0, 20, 40}
    drain(app)
    assert prices(app) == new
    assert rows.count(app, "repricing_snapshots") == STONES
    assert repricings(app) == [("completed", 1, 2, STONES)]


@pytest.mark.parametrize("point", ["before UPDATE diamonds", "after commit"])
def test_a_worker_that_is_killed_while_prices_are_restored_leaves_whole_steps(
    app: Stepfast, point: str
) -> None:
    repricing = synced(app)
    old = prices(app)
    switch(app, add(app, flat(60)))
    repricing.ask()
    drain(app)
    taken_back(app, repricing, newest(app))

    kill_worker(app, point, nth=2)
    drain(app)

    assert prices(app) == old


# Taken back


def test_a_repricing_is_taken_back_to_the_cent(app: Stepfast) -> None:
    repricing = synced(app)
    old = prices(app)
    switch(app, add(app, flat(60)))
    repricing.ask()
    drain(app)

    taken_back(app, repricing, newest(app))
    drain(app)

    assert prices(app) == old
    assert active(app) == 1
    assert repricings(app) == [("reverted", 1, 2, STONES)]


def test_a_stone_that_was_written_since_is_not_restored_but_priced_anew(app: Stepfast) -> None:
    feed, repricing = catalogue(app, [offer("a", 100_000), offer("b", 100_000)])
    sync(app)
    switch(app, add(app, flat(60)))
    repricing.ask()
    drain(app)
    feed.offers = [offer("a", 100_000), offer("b", 300_000)]
    sync(app)

    taken_back(app, repricing, newest(app))
    drain(app)

    assert prices(app) == {"a": (Decimal("1430.00"), 1), "b": (Decimal("4200.00"), 1)}


def test_a_stone_that_was_written_since_at_the_same_price_gets_no_old_rating(app: Stepfast) -> None:
    feed, repricing = catalogue(app, [offer("a", 100_000)])
    by_cut = [{"priority": 1, "rating": 9, "cut": ["EXCELLENT"]}]
    switch(app, add(app, flat(40, rating=by_cut, rating_fallback=2)))
    sync(app)
    switch(app, add(app, flat(60)))
    repricing.ask()
    drain(app)
    feed.offers = [offer("a", 100_000, cut="GD")]
    sync(app)

    taken_back(app, repricing, newest(app))
    drain(app)

    assert [(it["rating"], it["ruleset_version"]) for it in stones(app)] == [(2, 2)]


def test_what_cannot_be_taken_back_is_refused_with_the_reason(app: Stepfast) -> None:
    repricing = synced(app)
    switch(app, add(app, flat(60)))
    repricing.ask()
    drain(app)
    name = newest(app)
    switch(app, add(app, flat(61)))

    with pytest.raises(NotFoundError, match="no repricing nobody"):
        taken_back(app, repricing, "nobody")
    with pytest.raises(StateError, match="but 3 is active by now"):
        taken_back(app, repricing, name)
    switch(app, 2)
    with app.transaction() as tx:
        tx.execute("UPDATE repricings SET state = 'reverted'")
    with pytest.raises(StateError, match="is reverted"):
        taken_back(app, repricing, name)
    assert active(app) == 2


def test_snapshots_of_long_ago_are_forgotten_bit_by_bit(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repricing_rows, "KEPT_REPRICINGS", 1)
    monkeypatch.setattr(repricing_rows, "FORGOTTEN_AT_ONCE", 10)
    repricing = synced(app, 20)
    for n in range(6):
        switch(app, add(app, flat(60 + n)))
        repricing.ask()
        drain(app)

    kept = rows.query(app, "SELECT DISTINCT repricing_id AS id FROM repricing_snapshots")
    assert newest(app) in {it["id"] for it in kept}
    assert rows.count(app, "repricing_snapshots") < 6 * 20


# Tried before


def test_a_dry_run_tells_what_would_change_and_changes_nothing(app: Stepfast) -> None:
    synced(app)
    before = prices(app)
    version = add(app, flat(3))

    with app.reading() as tx:
        found = dry_run(tx, find_rules(tx, version), examples=3)

    assert (found.stones, found.dearer, found.cheaper, found.unpriced) == (STONES, 26, 9, 0)
    assert found.after - found.before == sum(
        stored(it["feed_price"]) * Decimal("1.43") - stored(it["price_model_price"]) for it in stones(app)
    )
    assert [(it.supplier_stone_id, str(it.before), str(it.after)) for it in found.examples] == [
        ("s055", "7700.00", "7865.00"),
        ("s054", "7560.00", "7722.00"),
        ("s053", "7420.00", "7579.00"),
    ]
    assert prices(app) == before


def test_a_dry_run_agrees_with_the_repricing(app: Stepfast) -> None:
    repricing = synced(app)
    version = add(app, flat(3))
    with app.reading() as tx:
        told = dry_run(tx, find_rules(tx, version))
    switch(app, version)
    repricing.ask()
    drain(app)

    with app.reading() as tx:
        (done,) = list_repricings(tx)
    assert done.changed == told.changed
    assert sum(price for price, _ in prices(app).values()) == told.after


def test_a_repricing_beside_a_run_converges(app: Stepfast) -> None:
    """Rules change while a run writes the same stones: in the end all have the prices of the last set. (T14)"""
    feed, repricing = catalogue(
        app, [offer(f"s{n:03}", 10_000 * n) for n in range(1, 301)], batch=25, chunk=25, shards=3
    )
    sync(app)
    versions = [add(app, flat(60)), add(app, flat(160))]
    with app.worker(concurrency=4):
        feed.offers = [offer(f"s{n:03}", 20_000 * n) for n in range(1, 301)]
        app.runs.start("nivoda-natural", "full")
        for version in versions:
            switch(app, version)
            repricing.ask()
        rows.eventually(lambda: rows.count(app, "stepfast_job") == 0, patience=60)

    assert prices(app) == {f"s{n:03}": (Decimal(600 * n), 3) for n in range(1, 301)}
