"""Every raw row becomes a target row once, with any number of workers and rows that arrive meanwhile."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.clock import moment
from stepfast.errors import ConfigurationError, TransientError
from stepfast.runs.lifecycle import begin_consolidation, job_died, shard_id
from stepfast.runs.run import RunState, lock_run
from tests.support import rows
from tests.support.consolidation import (
    LATER,
    WINDOW,
    catalogue,
    fetched,
    item,
    items,
    play,
    quarantine,
    run_of,
    see,
    waiting,
)
from tests.support.engine import drain
from tests.support.feeds import Catalogue, Shop, target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast import Stepfast
    from stepfast.database.connection import Transaction
    from stepfast.runs.feed import Row


def prices(count: int) -> dict[str, int]:
    return {it["id"]: it["price"] for it in items(count)}


def watermark(app: Stepfast) -> Any:
    found = rows.query(app, "SELECT watermark FROM stepfast_feed WHERE id = 'catalogue'")
    return moment(found[0]["watermark"]) if found and found[0]["watermark"] is not None else None


def test_every_raw_row_is_in_the_target_when_the_run_completes(app: Stepfast) -> None:
    declared = catalogue(app, batch=10, chunk=4, shards=3)
    run = fetched(app, declared, items(95))

    drain(app)

    done = run_of(app, run)
    assert done.state is RunState.COMPLETED
    assert target(app) == prices(95)
    assert (done.applied, done.quarantined, done.shards, done.rounds) == (95, 0, 0, 1)
    assert waiting(app) == 0
    assert rows.count(app, "stepfast_archive", "kind = 'catalogue.consolidate'") == 1 + 3
    assert watermark(app) == WINDOW.to


def test_a_batch_of_many_chunks_and_a_rest_is_written_whole(app: Stepfast) -> None:
    """SQLite takes ten chunks at once, then one by one, then what is less than a chunk."""
    run = fetched(app, catalogue(app, batch=60, chunk=4, shards=1), items(57))

    drain(app)

    assert run_of(app, run).applied == 57
    assert target(app) == prices(57)


def test_a_run_that_read_nothing_completes(app: Stepfast) -> None:
    run = fetched(app, catalogue(app))

    drain(app)

    assert run_of(app, run).state is RunState.COMPLETED
    assert watermark(app) == WINDOW.to


@pytest.mark.parametrize("odd", ["a\x1fb", "a,b", "a'b", "é", "\x1f"])
def test_an_id_may_have_any_character(app: Stepfast, odd: str) -> None:
    """Whatever stands between the rows of a batch when they are read at once."""
    run = fetched(app, catalogue(app), [*items(3), {"id": odd, "price": 7}])

    drain(app)

    assert run_of(app, run).state is RunState.COMPLETED
    assert target(app) == {**prices(3), odd: 7}


def test_few_rows_are_one_shard_and_many_are_as_many_as_the_feed_says(app: Stepfast) -> None:
    declared = catalogue(app, batch=10, chunk=10, shards=5)
    few = fetched(app, declared, items(10))
    drain(app)
    assert rows.count(app, "stepfast_archive", "kind = 'catalogue.consolidate'") == 1 + 1

    many = fetched(app, declared, [item(n, n + 1) for n in range(200)], at=2, window=LATER)
    drain(app)

    assert rows.count(app, "stepfast_archive", "kind = 'catalogue.consolidate'") == 2 + 1 + 5
    assert {run_of(app, it).state for it in (few, many)} == {RunState.COMPLETED}
    assert shard_id(run_of(app, many), 0).startswith(many.id)


def test_four_workers_apply_every_row_once(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    """However many consolidate, the run completes once, and not before the last of them. (F30)"""
    declared = catalogue(app, batch=20, chunk=10, shards=8)
    run = fetched(app, declared, items(1_000))
    others = [another_app() for _ in range(3)]
    for other in others:
        other.feed(declared.feed)

    with others[0].worker(), others[1].worker(), others[2].worker():
        drain(app)

    done = run_of(app, run)
    assert (done.state, done.applied, done.rounds) == (RunState.COMPLETED, 1_000, 1)
    assert target(app) == prices(1_000)


def test_a_short_batch_does_not_end_a_run_while_others_work(app: Stepfast) -> None:
    """Two shards: one ends with a short batch while the other has not begun; the run goes on. (F30)"""
    declared = catalogue(app, batch=10, chunk=10, shards=2)
    run = fetched(app, declared, items(15))
    play(app, declared)  # the division
    play(app, declared)  # one shard

    now = run_of(app, run)
    assert (now.state, now.shards, now.applied) == (RunState.APPLYING, 1, 8)
    assert watermark(app) is None

    drain(app)

    assert run_of(app, run).state is RunState.COMPLETED
    assert target(app) == prices(15)


def test_t12_what_arrives_between_reading_and_marking_is_applied(app: Stepfast) -> None:
    """The second version of a row comes while the first is on its way into the target. (F31, T12)"""
    declared = catalogue(app)
    run = fetched(app, declared, items(3))
    play(app, declared)  # the division

    play(app, declared, between=lambda: see(app, run.id, [item(1, 777)], at=2))

    assert target(app) == {"d00000": 0, "d00002": 2}  # of the row that changed nothing is written
    assert run_of(app, run).state is RunState.APPLYING
    drain(app)
    assert target(app) == {"d00000": 0, "d00001": 777, "d00002": 2}
    done = run_of(app, run)
    assert (done.state, done.applied, done.rounds) == (RunState.COMPLETED, 3, 2)


@pytest.mark.idempotency
def test_an_older_version_never_replaces_a_newer_one_in_the_target(app: Stepfast) -> None:
    """A slow step has read the old version; another run applies the new one before it commits. (F34, T13)"""
    declared = catalogue(app)
    slow = fetched(app, declared, [item(1, 1)], kind="backfill")
    play(app, declared)

    def overtake() -> None:
        quick = fetched(app, declared, [item(1, 2)], at=2, kind="backfill")
        play(app, declared)
        play(app, declared)
        assert run_of(app, quick).state is RunState.COMPLETED

    play(app, declared, between=overtake)

    assert target(app) == {"d00001": 2}
    assert run_of(app, slow).state is RunState.COMPLETED


def test_an_older_observation_is_ignored(app: Stepfast) -> None:
    """Whichever is written last, the newest observation counts. (F34, T13)"""
    declared = catalogue(app)
    fetched(app, declared, [item(1, 2)], at=20)
    drain(app)

    fetched(app, declared, [item(1, 1)], at=10, window=LATER)
    drain(app)

    assert target(app) == {"d00001": 2}


def test_a_change_that_only_this_version_knows_is_applied(app: Stepfast) -> None:
    """Any changed field makes a new version of an item, known to the mapper or not. (F34)"""
    declared = catalogue(app, map=lambda it: {"id": it["id"], "price": len(it.get("media", ""))})
    fetched(app, declared, [item(1, 5, media="a")])
    drain(app)

    fetched(app, declared, [item(1, 5, media="abc")], at=2, window=LATER)
    drain(app)

    assert target(app) == {"d00001": 3}


def test_what_has_not_changed_is_not_applied_again(app: Stepfast) -> None:
    declared = catalogue(app)
    fetched(app, declared, items(5))
    drain(app)

    again = fetched(app, declared, items(5), at=2, window=LATER)
    drain(app)

    assert (run_of(app, again).state, run_of(app, again).applied) == (RunState.COMPLETED, 0)


class Another(Catalogue):
    """Another feed whose items have the same ids, and which writes into the same table."""

    name = "another"

    def map(self, item: Any, /) -> Row:
        return {"id": f"another-{item['id']}", "price": item["price"]}


def test_two_feeds_with_the_same_ids_do_not_touch_each_other(app: Stepfast) -> None:
    """Raw rows, marks and quarantine belong to a feed. (F12, F32)"""
    declared = catalogue(app)
    app.feed(Another(Shop()))
    another = app.feeds.get("another")
    fetched(app, declared, [item(1, 10)])
    see(app, "of-nobody", [item(1, 20)], feed="another")  # a run of the other feed is still fetching
    drain(app)
    assert target(app) == {"d00001": 10}
    assert waiting(app) == 1

    fetched(app, another, [item(2, 30)])
    drain(app)

    assert target(app) == {"d00001": 10, "another-d00001": 20, "another-d00002": 30}


def test_rows_that_a_cancelled_run_saw_are_applied_by_the_next(app: Stepfast) -> None:
    """A parallel backfill may have seen an item last, and then be cancelled: the row still counts."""
    declared = catalogue(app)
    see(app, "a-run-that-was-cancelled", [item(7, 70)])

    run = fetched(app, declared, items(1))
    drain(app)

    assert target(app) == {"d00000": 0, "d00007": 70}
    assert run_of(app, run).applied == 2


class Twice(Catalogue):
    """Writes the target itself, and doubles the prices."""

    name = "twice"

    def map(self, item: Any, /) -> Row:
        return {"name": item["id"], "n": item["price"]}

    def store(self, tx: Transaction, rows: Sequence[Row], /) -> None:
        for row in rows:
            tx.execute(
                "INSERT INTO item (id, price) VALUES (:id, :price)",
                {"id": row["name"], "price": row["n"] * 2},
            )


def test_a_feed_may_write_the_target_itself(app: Stepfast) -> None:
    catalogue(app)
    app.feed(Twice(Shop()))
    run = fetched(app, app.feeds.get("twice"), items(3))

    drain(app)

    assert run_of(app, run).state is RunState.COMPLETED
    assert target(app) == {"d00000": 0, "d00001": 2, "d00002": 4}


def test_rows_may_leave_out_columns_which_then_stay(app: Stepfast) -> None:
    def mapped(it: Any) -> Row:
        full = {"id": it["id"], "price": it["price"]}
        return full if it.get("full", True) else {**full, "deleted_at": 5}

    declared = catalogue(app, map=mapped)
    fetched(app, declared, [item(1), item(2, full=False), item(3)])
    drain(app)

    found = rows.query(app, "SELECT id, deleted_at FROM item ORDER BY id")
    assert [it["deleted_at"] for it in found] == [None, 5, None]


def test_a_step_of_an_older_epoch_changes_nothing(app: Stepfast) -> None:
    declared = catalogue(app)
    run = fetched(app, declared, items(5))
    play(app, declared)
    rows.change(app, "UPDATE stepfast_run SET epoch = epoch + 1 WHERE id = :id", id=run.id)

    drain(app)

    assert target(app) == {}
    assert run_of(app, run).state is RunState.APPLYING


def test_a_run_that_was_restarted_while_a_batch_was_mapped_gets_nothing_of_it(app: Stepfast) -> None:
    declared = catalogue(app)
    run = fetched(app, declared, items(5))
    play(app, declared)

    def restart() -> None:
        rows.change(app, "UPDATE stepfast_run SET epoch = epoch + 1 WHERE id = :id", id=run.id)

    with pytest.raises(TransientError, match="moved on"):
        play(app, declared, between=restart)

    assert target(app) == {}
    assert waiting(app) == 5


def test_an_unknown_run_is_a_dead_letter_with_its_reason(app: Stepfast) -> None:
    declared = catalogue(app)
    run = fetched(app, declared, items(1))
    rows.change(app, "DELETE FROM stepfast_run WHERE id = :id", id=run.id)

    with app.worker():
        rows.eventually(lambda: rows.count(app, "stepfast_archive", "state = 'dead'"))

    (dead,) = rows.query(app, "SELECT last_error FROM stepfast_archive WHERE state = 'dead'")
    assert f"there is no run {run.id}" in dead["last_error"]


def test_a_missing_table_fails_the_step_and_blames_no_row(app: Stepfast) -> None:
    declared = catalogue(app, attempts_consolidation=1)
    connection = app.database.connect()
    connection.execute("DROP TABLE item")
    connection.close()
    fetched(app, declared, items(3))

    with app.worker():
        rows.eventually(lambda: rows.count(app, "stepfast_archive", "state = 'dead'"))

    (dead,) = rows.query(app, "SELECT last_error FROM stepfast_archive WHERE state = 'dead'")
    assert "there is no table item" in dead["last_error"]
    assert quarantine(app) == []
    assert waiting(app) == 3


def test_a_consolidation_that_gave_up_fails_the_run_and_tells_somebody(app: Stepfast) -> None:
    declared = catalogue(app)
    run = fetched(app, declared, items(1))

    with app.transaction() as tx:
        assert job_died(tx, lock_run(tx, run.id), "OSError: the disk is on fire")

    ended = run_of(app, run)
    assert ended.state is RunState.FAILED
    assert "the disk is on fire" in str(ended.reason)
    (alert,) = rows.query(app, "SELECT title, body FROM stepfast_alert")
    assert alert["title"] == "Consolidation Failed"
    assert "Watermark NOT advanced" in alert["body"]
    with app.transaction() as tx:
        assert not job_died(tx, lock_run(tx, run.id), "again")


def test_a_forced_run_publishes_what_is_there_and_holds_the_watermark(app: Stepfast) -> None:
    declared = catalogue(app)
    run = fetched(app, declared, items(3))
    rows.change(app, "UPDATE stepfast_run SET forced = 1 WHERE id = :id", id=run.id)

    drain(app)

    (row,) = rows.query(app, "SELECT * FROM stepfast_run")
    assert row["state"] == "published_partial"
    assert (row["completed_at"], row["watermark_after"], watermark(app)) == (None, None, None)
    assert target(app) == prices(3)


def test_a_stalled_run_that_moves_again_completes(app: Stepfast) -> None:
    declared = catalogue(app)
    run = fetched(app, declared, items(3))
    rows.change(
        app, "UPDATE stepfast_run SET state = 'stalled', stalled_in = 'applying' WHERE id = :id", id=run.id
    )

    drain(app)

    assert run_of(app, run).state is RunState.COMPLETED


@pytest.mark.idempotency
def test_a_second_consolidation_of_the_same_run_does_nothing(app: Stepfast) -> None:
    declared = catalogue(app)
    run = fetched(app, declared, items(30))
    with app.transaction() as tx:
        begin_consolidation(tx, declared, lock_run(tx, run.id))

    drain(app)

    assert run_of(app, run).state is RunState.COMPLETED
    assert run_of(app, run).applied == 30
    assert rows.count(app, "stepfast_archive", "state <> 'done'") == 0


def test_a_store_that_is_a_coroutine_is_refused(app: Stepfast) -> None:
    class Wrong(Another):
        async def store(self, tx: Any, given: Any, /) -> None:  # type: ignore[override]
            """Nobody would wait for it."""

    with pytest.raises(ConfigurationError, match=r"store\(\) .* must be a plain function"):
        app.feed(Wrong(Shop()))


def test_pages_of_another_run_do_not_wait_for_a_consolidation(app: Stepfast) -> None:
    """Another thread writes rows while a batch is mapped: it does not wait for the mapper."""
    written = threading.Event()

    def slow(it: Any) -> Row:
        if not written.is_set():
            see(app, "another-run", [item(50, 5)], at=9)
            written.set()
        return {"id": it["id"], "price": it["price"]}

    declared = catalogue(app, map=slow)
    run = fetched(app, declared, items(3))
    drain(app)

    assert run_of(app, run).state is RunState.COMPLETED
    assert target(app) == {**prices(3), "d00050": 5}
