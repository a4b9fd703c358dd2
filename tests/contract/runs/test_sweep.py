"""The sweep marks rows that are gone at the source, only if the run proves it; it can be undone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.database.database import persist
from stepfast.errors import ConfigurationError, NotFoundError, StateError, TransientError
from stepfast.runs import lifecycle as finishing
from stepfast.runs import sweep_rows as gone
from stepfast.runs.feed import Sweep
from stepfast.runs.lifecycle import begin_sweep, may_sweep
from stepfast.runs.run import RunState, enqueue_job
from stepfast.runs.sweep_rows import (
    SweepState,
    UnseenBy,
    count_stretch,
    is_held,
    keep_sweep,
    strike_rows,
    sweep_state,
)
from stepfast.runs.watchdog import repair_run, stall_run
from stepfast.testing import drain
from tests.contract.runs.test_watermark import synced
from tests.support import rows
from tests.support.engine import together
from tests.support.feeds import Catalogue, Shop, prepare, target
from tests.support.run_facts import begin, run_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepfast import Stepfast
    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.feed import Row
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.run import Run
    from stepfast.runs.window import Window

LAST = "d00039"


def shop_with(app: Stepfast, count: int = 40, sweep: Sweep | None = None, **settings: Any) -> Shop:
    """A feed that sweeps, whose rows are all in the target."""
    shop = Shop.with_items(count)
    app.feed(Catalogue(shop, sweep=sweep or Sweep(), **settings))
    prepare(app)
    synced(app)
    return shop


def full(app: Stepfast) -> Run:
    return synced(app, kind="full")


def lose(shop: Shop, numbers: Iterable[int]) -> None:
    for number in numbers:
        shop.remove(f"d{number:05}")


def raw(app: Stepfast, item_id: str = LAST) -> rows.Row:
    found = rows.query(app, "SELECT * FROM stepfast_raw WHERE item_id = :id", id=item_id)
    return found[0]


def sweep_of(app: Stepfast, run: Run) -> SweepState:
    found = sweep_state(run_of(app, run.id))
    assert found is not None
    return found


def held_run(app: Stepfast, count: int = 40) -> tuple[Shop, Run]:
    """A run that would mark a tenth of all rows as gone, and waits."""
    shop = shop_with(app, count, Sweep(strikes=1, fuse=0.05))
    lose(shop, range(count // 10))
    run = full(app)
    assert run.state is RunState.SWEEPING
    return shop, run


def test_a_row_goes_when_two_full_runs_in_a_row_have_not_seen_it(app: Stepfast) -> None:
    """(F37)"""
    shop = shop_with(app, sweep=Sweep(fuse=0.5))
    shop.remove(LAST)

    first = full(app)
    assert (first.state, first.gone, LAST in target(app), raw(app)["strikes"]) == ("completed", 0, True, 1)

    second = full(app)
    assert (second.state, second.gone, raw(app)["strikes"]) == ("completed", 1, 2)
    assert target(app) == shop.prices()
    assert raw(app)["gone_at"] is not None
    assert rows.count(app, "item") == 40


def test_a_row_that_is_seen_between_two_runs_begins_anew(app: Stepfast) -> None:
    shop = shop_with(app, sweep=Sweep(fuse=0.5))
    item = dict(shop.items[LAST])
    shop.remove(LAST)
    full(app)
    shop.items[LAST] = item
    full(app)
    assert raw(app)["strikes"] == 0
    shop.remove(LAST)

    run = full(app)

    assert (run.gone, raw(app)["strikes"]) == (0, 1)
    assert LAST in target(app)


@pytest.mark.parametrize("price", [None, 7], ids=["unchanged", "changed"])
def test_a_row_that_is_seen_again_is_back(app: Stepfast, price: int | None) -> None:
    """Also if it is just as it was, and nothing else would write it. (T11)"""
    shop = shop_with(app, sweep=Sweep(strikes=1, fuse=0.5))
    item = dict(shop.items[LAST])
    shop.remove(LAST)
    full(app)
    assert LAST not in target(app)

    shop.items[LAST] = item if price is None else {**item, "price": price}
    run = full(app)

    assert target(app) == shop.prices()
    assert (raw(app)["gone_at"], raw(app)["strikes"], raw(app)["pending"]) == (None, 0, 0)
    assert run.applied == 1


@pytest.mark.parametrize(
    "request_",
    [{"kind": "incremental"}, {"kind": "verify"}, {"kind": "backfill"}, {"kind": "full", "most_rows": 10}],
    ids=["incremental", "verify", "backfill", "capped"],
)
def test_a_run_that_does_not_read_everything_strikes_nobody(app: Stepfast, request_: dict[str, Any]) -> None:
    """Not seen is not gone. (F37, T11)"""
    shop = shop_with(app, sweep=Sweep(strikes=1, fuse=1))
    lose(shop, range(20))

    run = synced(app, **request_)

    assert (run.state, run.gone, sweep_state(run)) == ("completed", 0, None)
    assert rows.count(app, "stepfast_raw", "strikes > 0 OR gone_at IS NOT NULL") == 0
    assert len(target(app)) == 40


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "incremental"},
        {"scope": "partial"},
        {"forced": 1},
        {"failed": 1},
        {"unverified": 1},
        {"window_from": 1},
    ],
    ids=lambda it: next(iter(it)),
)
def test_a_run_that_shows_nothing_may_not_sweep_even_if_it_is_asked_to(
    app: Stepfast, changes: dict[str, Any]
) -> None:
    """(F37)"""
    shop = shop_with(app, sweep=Sweep(strikes=1, fuse=1))
    lose(shop, range(20))
    declared = app.feeds.get("catalogue")
    run = begin(app, kind="full")
    assert may_sweep(declared, run)
    rows.change(app, "UPDATE stepfast_run SET state = 'sweeping' WHERE id = :id", id=run.id)

    persist(app.database, lambda tx: begin_sweep(tx, declared, replace(run, **changes)))
    drain(app)

    assert sweep_of(app, run).phase == "skipped"
    assert len(target(app)) == 40


def test_a_run_that_is_not_verified_strikes_nobody(app: Stepfast) -> None:
    """(F37)"""

    class Doubtful(Catalogue):
        hides = 0

        async def count(self, part: Range, window: Window, /) -> int:
            return await super().count(part, window) + self.hides

    shop = Shop.with_items(40)
    feed = Doubtful(shop, sweep=Sweep(strikes=1, fuse=1))
    app.feed(feed)
    prepare(app)
    synced(app)
    lose(shop, range(20))
    feed.hides = 1

    run = full(app)

    assert (run.state, run.unverified > 0, run.gone) == ("completed", True, 0)
    assert len(target(app)) == 40


def test_nobody_is_struck_while_a_debt_is_open_that_the_run_does_not_cover(app: Stepfast) -> None:
    """The rows that it did not see may be those of the unverified range."""
    shop = shop_with(app, sweep=Sweep(strikes=1, fuse=1))
    lose(shop, range(3))
    rows.change(
        app,
        "INSERT INTO stepfast_debt (digest, feed, name, span, window_to, run_id, opened_at, tries)"
        " VALUES ('x', 'catalogue', 'everything', '{}', :later, 'r', 0, 3)",
        later=rows.now(app) + rows.HOUR,
    )

    run = full(app)

    assert (run.state, run.gone, sweep_of(app, run).phase) == ("completed", 0, "skipped")
    assert len(target(app)) == 40


def test_rows_of_another_feed_are_left_alone(app: Stepfast) -> None:
    """(F12)"""
    shop = shop_with(app, sweep=Sweep(strikes=1, fuse=1))
    app.feed(Catalogue(Shop.with_items(50), name="other"))
    begin(app, "other")
    drain(app)
    lose(shop, range(40))

    run = full(app)

    assert run.gone == 40
    assert rows.count(app, "stepfast_raw", "feed = 'other' AND gone_at IS NULL AND strikes = 0") == 50


def test_more_than_the_fuse_allows_waits_for_a_person(app: Stepfast) -> None:
    """(F37, T11)"""
    _, run = held_run(app)

    assert is_held(run)
    assert run.reason == "4 of 40 rows would go (10.0%), more than 5.0%"
    assert rows.count(app, "stepfast_raw", "strikes > 0 OR gone_at IS NOT NULL") == 0
    assert len(target(app)) == 40
    told = app.operator.alerts()[0]
    assert told.title == "Sweep held"
    assert f"stepfast sweeps approve {run.id}" in told.body
    assert [it.phase for it in app.operator.sweeps()] == ["held", "done"]


def test_a_number_of_rows_is_a_fuse_as_well(app: Stepfast) -> None:
    shop = shop_with(app, sweep=Sweep(strikes=1, fuse=1, most=1))
    lose(shop, range(2))

    run = full(app)

    assert run.state is RunState.SWEEPING
    assert run.reason == "2 rows would go, more than 1"


def test_first_strikes_wait_for_nobody(app: Stepfast) -> None:
    """They mark nothing; the fuse is asked when rows would go."""
    shop = shop_with(app, sweep=Sweep(strikes=2, fuse=0.01))
    lose(shop, range(20))

    assert full(app).state is RunState.COMPLETED
    assert full(app).state is RunState.SWEEPING


def test_rows_without_identity_may_be_among_those_that_seem_to_be_gone(app: Stepfast) -> None:
    shop = shop_with(app, sweep=Sweep(strikes=1, fuse=1))
    lose(shop, range(2))
    run = begin(app, kind="full")
    rows.change(app, "UPDATE stepfast_run SET rejected = 1, seen = 1000 WHERE id = :id", id=run.id)

    drain(app)

    assert is_held(run_of(app, run.id))
    assert "1 had no identity" in str(run_of(app, run.id).reason)


def test_what_is_approved_goes_and_the_run_completes(app: Stepfast) -> None:
    shop, run = held_run(app)

    held = app.operator.by("alice", reason="a supplier left").approve_sweep(run.id)
    drain(app)

    done = run_of(app, run.id)
    assert (held.going, done.state, done.gone, done.reason) == (4, "completed", 4, None)
    assert done.watermark_after == done.window_to
    assert target(app) == shop.prices()
    entry = app.operator.audit(what="sweep.approve")[0]
    assert (entry.who, entry.why, entry.subject) == ("alice", "a supplier left", run.id)


def test_what_is_declined_stays_and_the_run_completes(app: Stepfast) -> None:
    _, run = held_run(app)

    app.operator.by("alice", reason="the source lost them").decline_sweep(run.id)
    drain(app)

    done = run_of(app, run.id)
    assert (done.state, done.gone, sweep_of(app, run).phase) == ("completed", 0, "declined")
    assert done.watermark_after == done.window_to
    assert rows.count(app, "stepfast_raw", "strikes > 0 OR gone_at IS NOT NULL") == 0
    assert len(target(app)) == 40
    assert app.operator.audit(what="sweep.decline")[0].subject == run.id


def test_more_rows_than_were_counted_are_counted_again_and_held_again(app: Stepfast) -> None:
    """An earlier sweep may be undone between the count and the strikes: those rows were not approved."""
    shop, run = held_run(app)
    was = sweep_of(app, run)
    one = was.then(phase="striking", after="", unseen=1, going=1, note=None)
    persist(app.database, lambda tx: keep_sweep(tx, run, was, one))
    rows.change(app, "UPDATE stepfast_job SET state = 'ready', ready_at = 0 WHERE kind = 'catalogue.sweep'")

    drain(app)

    assert is_held(run_of(app, run.id))
    assert (sweep_of(app, run).going, run_of(app, run.id).gone) == (4, 0)
    app.operator.by("alice", reason="they left").approve_sweep(run.id)
    drain(app)
    assert target(app) == shop.prices()


def test_a_held_run_is_neither_stalled_nor_given_another_job(app: Stepfast) -> None:
    _, run = held_run(app)
    declared = app.feeds.get("catalogue")
    rows.change(app, "UPDATE stepfast_run SET updated_at = 0 WHERE id = :id", id=run.id)

    assert persist(app.database, lambda tx: stall_run(tx, declared, run.id)) is None
    assert persist(app.database, lambda tx: repair_run(tx, declared, run.id)) is None

    assert run_of(app, run.id).state is RunState.SWEEPING
    assert rows.count(app, "stepfast_job", "kind = 'catalogue.sweep'") == 1


def test_a_decision_is_taken_once(app: Stepfast) -> None:
    _, run = held_run(app)
    operator = app.operator.by("alice", reason="why not")
    operator.decline_sweep(run.id)

    with pytest.raises(StateError, match="not held"):
        operator.approve_sweep(run.id)
    drain(app)
    with pytest.raises(StateError, match="not held"):
        operator.decline_sweep(run.id)

    assert [it.what for it in app.operator.audit()] == ["sweep.decline"]


def test_of_two_who_decide_at_once_one_does(app: Stepfast) -> None:
    _, run = held_run(app)
    alice, bob = app.operator.by("alice", reason="they left"), app.operator.by("bob", reason="a mistake")

    answers = together([lambda: alice.approve_sweep(run.id), lambda: bob.decline_sweep(run.id)])
    drain(app)

    refused = [it for it in answers if isinstance(it, StateError | TransientError)]
    (entry,) = app.operator.audit()
    assert len(refused) == 1
    assert run_of(app, run.id).state is RunState.COMPLETED
    assert len(target(app)) == (36 if entry.who == "alice" else 40)


def test_wrong_moves_are_refused_in_words(app: Stepfast) -> None:
    _, run = held_run(app)
    operator = app.operator.by("alice", reason="why not")

    for act in (app.operator.approve_sweep, app.operator.decline_sweep, app.operator.undo_sweep):
        with pytest.raises(ConfigurationError, match="say why"):
            act(run.id)
    with pytest.raises(NotFoundError, match="nobody"):
        operator.approve_sweep("nobody")
    with pytest.raises(StateError, match="wait for its end"):
        operator.undo_sweep(run.id)
    incremental = rows.query(app, "SELECT id FROM stepfast_run ORDER BY id")[0]["id"]
    rows.change(app, "UPDATE stepfast_run SET frontier = NULL WHERE id = :id", id=incremental)
    with pytest.raises(StateError, match="has not swept"):
        operator.undo_sweep(incremental)

    assert app.operator.audit() == []


def test_everything_that_a_run_marked_as_gone_can_be_brought_back(app: Stepfast) -> None:
    """(F37)"""
    shop = shop_with(app, sweep=Sweep(strikes=1, fuse=1))
    lose(shop, [0])
    earlier = full(app)
    lose(shop, range(1, 8))
    run = full(app)
    assert len(target(app)) == 32

    back = app.operator.by("alice", reason="the source was wrong").undo_sweep(run.id)

    assert back == 7
    assert len(target(app)) == 39
    assert "d00000" not in target(app)
    assert (run_of(app, run.id).gone, run_of(app, earlier.id).gone) == (0, 1)
    assert rows.count(app, "stepfast_raw", "gone_at IS NOT NULL") == 1
    entry = app.operator.audit(what="sweep.undo")[0]
    assert (entry.touched, entry.subject, entry.ended_at is None) == (7, run.id, False)
    assert app.operator.by("alice", reason="again").undo_sweep(run.id) == 0


def test_what_was_brought_back_is_not_applied_again_unless_it_has_changed(app: Stepfast) -> None:
    shop = shop_with(app, sweep=Sweep(strikes=1, fuse=1))
    item = dict(shop.items[LAST])
    shop.remove(LAST)
    run = full(app)
    app.operator.by("alice", reason="the source was wrong").undo_sweep(run.id)
    shop.items[LAST] = item

    assert full(app).applied == 0
    assert target(app) == shop.prices()


def test_a_large_feed_is_swept_and_undone_in_small_pieces(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = shop_with(app, 60, Sweep(strikes=1, fuse=1))
    make_small(monkeypatch)
    lose(shop, [*range(5, 30), *range(40, 43), 59])

    run = full(app)
    assert (run.gone, sweep_of(app, run).living, sweep_of(app, run).going) == (29, 60, 29)
    assert sweep_of(app, run).struck == 29
    assert target(app) == shop.prices()

    assert app.operator.by("alice", reason="all wrong").undo_sweep("catalogue") == 29
    assert len(target(app)) == 60


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of seven rows, batches of three."""
    from stepfast.admin import sweeps
    from stepfast.runs import sweep as sweeping

    for module in (gone, sweeping):
        monkeypatch.setattr(module, "STRETCH", 7)
    for module in (gone, sweeping, sweeps):
        monkeypatch.setattr(module, "BATCH", 3)


def test_no_run_strikes_a_row_twice_however_often_its_sweep_begins(app: Stepfast) -> None:
    """One that is cancelled in its sweep and resumed would count as two."""
    shop = shop_with(app, sweep=Sweep(strikes=2, fuse=1))
    lose(shop, range(5))
    run = full(app)
    rows.change(
        app, "UPDATE stepfast_run SET state = 'sweeping', ended_at = NULL, gone = 0 WHERE id = :id", id=run.id
    )

    persist(app.database, lambda tx: begin_sweep(tx, app.feeds.get("catalogue"), run_of(app, run.id)))
    drain(app)

    assert rows.count(app, "stepfast_raw", "strikes = 1") == 5
    assert rows.count(app, "stepfast_raw", "strikes > 1 OR gone_at IS NOT NULL") == 0


def test_a_step_that_was_overtaken_writes_nothing(app: Stepfast) -> None:
    """Two jobs may sweep for one run, if one was taken for lost."""
    _, run = held_run(app)
    was = sweep_of(app, run)
    persist(app.database, lambda tx: keep_sweep(tx, run, was, was.then(phase="striking"), gone=1))

    with pytest.raises(TransientError, match="moved on by somebody else"):
        persist(app.database, lambda tx: keep_sweep(tx, run, was, was.then(phase="declined"), gone=1))

    assert (sweep_of(app, run).phase, run_of(app, run.id).gone) == ("striking", 1)


def test_two_jobs_that_sweep_for_one_run_count_every_row_once(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = shop_with(app, 60, Sweep(strikes=1, fuse=1))
    make_small(monkeypatch)
    lose(shop, range(30))
    run = begin(app, kind="full")
    twice: list[str] = []

    def begin_twice(tx: Transaction, declared: Declaration, swept: Run) -> None:
        begin_sweep(tx, declared, swept)
        twice.append(enqueue_job(tx, declared, swept, "sweep", run_id=swept.id, epoch=swept.epoch))

    monkeypatch.setattr(finishing, "begin_sweep", begin_twice)
    drain(app, concurrency=4)

    done = run_of(app, run.id)
    assert twice
    assert (done.state, done.gone, sweep_of(app, run).struck) == ("completed", 30, 30)
    assert target(app) == shop.prices()
    assert rows.count(app, "stepfast_job") == 0


def test_a_row_that_is_observed_after_it_was_found_is_not_struck(app: Stepfast) -> None:
    shop_with(app, sweep=Sweep(strikes=1, fuse=1))
    seen_at = raw(app)["observed_at"]
    target_column = sweep_of(app, run_of(app, newest(app))).target

    def struck(tx: Transaction, before: int) -> int:
        it = UnseenBy("catalogue", "another run", before, 1)
        return strike_rows(tx, it, [LAST], target_column, "bigint").gone

    assert persist(app.database, lambda tx: struck(tx, seen_at)) == 0
    assert LAST in target(app)
    assert persist(app.database, lambda tx: struck(tx, seen_at + 1)) == 1
    assert LAST not in target(app)


def test_what_a_run_has_seen_itself_is_never_struck_whatever_the_clocks_say(app: Stepfast) -> None:
    shop_with(app)

    def unseen_by(tx: Transaction, run_id: str) -> int:
        return count_stretch(tx, UnseenBy("catalogue", run_id, before=2**60, strikes=1), "").going

    assert persist(app.database, lambda tx: unseen_by(tx, newest(app))) == 0
    assert persist(app.database, lambda tx: unseen_by(tx, "another run")) == 40


def test_a_job_of_an_older_epoch_changes_nothing(app: Stepfast) -> None:
    _, run = held_run(app)
    rows.change(app, "UPDATE stepfast_run SET epoch = epoch + 1 WHERE id = :id", id=run.id)
    rows.change(app, "UPDATE stepfast_job SET state = 'ready', ready_at = 0 WHERE kind = 'catalogue.sweep'")
    before = run_of(app, run.id)

    drain(app, limit=1)

    assert run_of(app, run.id).frontier == before.frontier
    assert len(target(app)) == 40


def test_what_is_gone_for_long_enough_is_forgotten_and_its_target_row_stays_marked(app: Stepfast) -> None:
    shop = shop_with(app, sweep=Sweep(strikes=1, fuse=1, keep="1d"))
    lose(shop, range(5))
    full(app)
    rows.change(
        app, "UPDATE stepfast_raw SET gone_at = gone_at - :days WHERE item_id < 'd00003'", days=2 * rows.DAY
    )

    full(app)

    assert rows.count(app, "stepfast_raw") == 37
    assert rows.count(app, "stepfast_raw", "gone_at IS NOT NULL") == 2
    assert target(app) == shop.prices()
    shop.put("d00000", 9)
    full(app)
    assert target(app) == shop.prices()


def test_the_mark_is_a_time_and_the_identity_a_number_where_the_table_has_them_so(app: Stepfast) -> None:
    class Numbered(Catalogue):
        def identify(self, item: Any, /) -> str:
            return str(int(item["id"][1:]))

        def map(self, item: Any, /) -> dict[str, Any]:
            return {"number": int(item["id"][1:]), "price": item["price"]}

    shop = Shop.with_items(20)
    app.feed(
        Numbered(shop, table="numbered", key="number", sweep=Sweep(strikes=1, fuse=1, column="removed_at"))
    )
    connection = app.database.connect()
    kind = "TIMESTAMP" if app.database.dialect.name == "postgresql" else "DATETIME"
    connection.execute(
        f"CREATE TABLE numbered (number INTEGER NOT NULL PRIMARY KEY, price INTEGER, removed_at {kind} NULL)"
    )
    connection.close()
    full(app)
    lose(shop, [3, 11])

    run = full(app)

    found = rows.query(
        app, "SELECT number, removed_at FROM numbered WHERE removed_at IS NOT NULL ORDER BY number"
    )
    assert [it["number"] for it in found] == [3, 11]
    assert str(found[0]["removed_at"]).startswith("20")
    app.operator.by("alice", reason="no").undo_sweep(run.id)
    assert rows.count(app, "numbered", "removed_at IS NULL") == 20


def test_a_row_that_is_gone_does_not_come_back_out_of_the_quarantine(app: Stepfast) -> None:
    class Strict(Catalogue):
        strict = True

        def map(self, item: Any, /) -> Row:
            if self.strict and "odd" in item:
                raise ValueError("odd")
            return super().map(item)

    shop = Shop.with_items(40)
    feed = Strict(shop, sweep=Sweep(strikes=1, fuse=1))
    app.feed(feed)
    prepare(app)
    full(app)
    shop.put(LAST, 975, odd=True)
    full(app)
    shop.remove(LAST)
    assert full(app).gone == 1
    feed.strict = False

    app.operator.quarantine.replay()
    drain(app)

    assert LAST not in target(app)
    assert raw(app)["gone_at"] is not None


def test_a_column_that_the_target_does_not_have_is_named(app: Stepfast) -> None:
    shop = Shop.with_items(5)
    app.feed(Catalogue(shop, sweep=Sweep(column="vanished_at"), attempts_consolidation=1))
    prepare(app)
    run = begin(app)

    drain(app, raise_errors=False)

    assert run_of(app, run.id).state is RunState.FAILED
    assert "vanished_at" in str(run_of(app, run.id).reason)


def newest(app: Stepfast) -> str:
    return str(rows.query(app, "SELECT id FROM stepfast_run ORDER BY started_at DESC")[0]["id"])
