"""Rows that cannot be mapped or stored are quarantined; other rows go on, and a replay applies them after a fix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stepfast.admin.quarantine import Entries
from stepfast.database.upsert import BulkUpsert
from stepfast.errors import ConfigurationError, ContentionError, NotFoundError, StateError
from stepfast.runs.quarantine import QuarantineState, RefusedRow, put_aside
from stepfast.runs.run import RunState, find_run
from tests.support import rows
from tests.support.consolidation import (
    LATER,
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
    from collections.abc import Sequence

    from stepfast import Stepfast
    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.feed import Row
    from stepfast.runs.run import Run

TOO_LARGE = 3_000_000_000  # for the target's INTEGER


def strict(item: Any) -> Row:
    """Maps what has a price."""
    if item.get("poison"):
        raise KeyError("price")
    return {"id": item["id"], "price": item["price"]}


def lenient(item: Any) -> Row:
    return {"id": item["id"], "price": item["price"]}


def spoiled(app: Stepfast, *, bad: int = 2, **settings: Any) -> tuple[Declaration, Run]:
    """A run of ten rows, the first of which could not be mapped."""
    declared = catalogue(app, map=strict, **{"error_budget": 1, **settings})
    run = fetched(app, declared, [item(n, poison=n < bad) for n in range(10)])
    drain(app)
    return declared, run


def mend(declared: Declaration, **settings: Any) -> None:
    """Deploy the fix."""
    for name, value in {"map": lenient, **settings}.items():
        setattr(declared.feed, name, value)


def alerts(app: Stepfast) -> list[dict[str, Any]]:
    return rows.query(app, "SELECT title, body FROM stepfast_alert")


def test_a_row_that_cannot_be_mapped_is_put_aside_with_its_reason_and_the_others_are_applied(
    app: Stepfast,
) -> None:
    declared = catalogue(app, map=strict, error_budget=0.5, mapper_version="7")
    run = fetched(app, declared, [item(0), item(1, poison=True, note="café"), item(2)])

    drain(app)

    (entry,) = quarantine(app)
    assert (entry["feed"], entry["item_id"], entry["stage"], entry["state"]) == (
        "catalogue",
        "d00001",
        "map",
        "open",
    )
    assert (entry["code"], entry["message"], entry["mapper_version"]) == ("KeyError", "'price'", "7")
    assert (entry["run_id"], entry["hits"]) == (run.id, 1)
    assert "café" in entry["payload"]
    assert target(app) == {"d00000": 0, "d00002": 2}
    done = run_of(app, run)
    assert (done.state, done.applied, done.quarantined) == (RunState.COMPLETED, 2, 1)


def test_more_bad_rows_than_a_batch_holds_do_not_keep_the_others_waiting(app: Stepfast) -> None:
    """2,500 rows at the head that cannot be mapped: the rest is applied, and the run ends. (F33, T8)"""
    declared = catalogue(app, map=strict, error_budget=0.7)
    run = fetched(app, declared, [item(n, poison=n < 2_500) for n in range(4_000)])

    drain(app)

    done = run_of(app, run)
    assert (done.state, done.applied, done.quarantined) == (RunState.COMPLETED, 1_500, 2_500)
    assert len(quarantine(app)) == 2_500
    assert len(target(app)) == 1_500
    assert waiting(app) == 0


def test_a_mapper_that_fails_for_every_row_fails_the_run_and_holds_the_watermark(app: Stepfast) -> None:
    """A source that changed its shape must not look like success. (F52, T9)"""

    def broken(item: Any) -> Row:
        raise TypeError(f"prize instead of price; token=hunter2 of {item['id']}")

    declared = catalogue(app, map=broken, batch=100, shards=2)
    run = fetched(app, declared, items(1_000))

    drain(app)

    ended = run_of(app, run)
    assert ended.state is RunState.FAILED_QUALITY
    assert "error budget of 5.0%" in str(ended.reason)
    assert ended.quarantined <= 300  # it does not try the other rows: the verdict stands
    (row,) = rows.query(app, "SELECT completed_at, watermark_after, active_feed FROM stepfast_run")
    assert set(row.values()) == {None}
    assert rows.count(app, "stepfast_feed", "watermark IS NOT NULL") == 0
    (alert,) = alerts(app)
    assert alert["title"] == "Consolidation Failed"
    assert "of 1,000 rows are in quarantine" in alert["body"]
    assert "TypeError: prize instead of price; token=***" in alert["body"]
    assert "hunter2" not in str(quarantine(app))


def test_the_error_budget_is_a_share_of_what_the_run_read(app: Stepfast) -> None:
    declared = catalogue(app, map=strict, error_budget=0.2)

    within = fetched(app, declared, [item(n, poison=n < 20) for n in range(100)])
    drain(app)
    beyond = fetched(app, declared, [item(n, n + 1, poison=n < 21) for n in range(100)], at=2, window=LATER)
    drain(app)

    assert run_of(app, within).state is RunState.COMPLETED
    assert run_of(app, beyond).state is RunState.FAILED_QUALITY


def test_the_error_limit_counts_rows_whatever_their_share(app: Stepfast) -> None:
    declared = catalogue(app, map=strict, error_budget=1, error_limit=2)

    run = fetched(app, declared, [item(n, poison=n < 3) for n in range(100)])
    drain(app)

    assert run_of(app, run).state is RunState.FAILED_QUALITY
    assert "more than the error limit of 2" in str(run_of(app, run).reason)


def test_rows_without_identity_count_against_the_budget(app: Stepfast) -> None:
    declared = catalogue(app)
    strangers = [
        RefusedRow(f"?{n}", "identify", "no identity", "identify() answered None", str(n), "{}")
        for n in range(12)
    ]
    run = fetched(
        app,
        declared,
        items(10),
        rejected=12,
        between=lambda tx, run: put_aside(tx, run.feed, run.id, strangers),
    )

    drain(app)

    assert run_of(app, run).state is RunState.FAILED_QUALITY
    assert "12 of 22 rows" in str(run_of(app, run).reason)


def test_a_forced_run_is_not_judged(app: Stepfast) -> None:
    declared = catalogue(app, map=strict, error_budget=0)
    run = fetched(app, declared, [item(n, poison=n < 5) for n in range(10)])
    rows.change(app, "UPDATE stepfast_run SET forced = 1 WHERE id = :id", id=run.id)

    drain(app)

    assert run_of(app, run).state is RunState.PUBLISHED_PARTIAL
    assert len(target(app)) == 5


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (None, "no row", "map() answered NoneType; a row is a dict of columns"),
        ([1], "no row", "map() answered list"),
        ({"price": 1}, "no key", "map() answered no id, which is in the key of item"),
        ({"id": None, "price": 1}, "no key", "map() answered no id"),
        ({"id": "x", "prize": 1}, "unknown column", "map() answered prize, which table item does not have"),
    ],
    ids=["nothing", "a list", "no key", "an empty key", "an unknown column"],
)
def test_an_answer_that_is_no_row_gets_a_clear_reason(
    app: Stepfast, answer: Any, code: str, words: str
) -> None:
    declared = catalogue(app, error_budget=1, map=lambda it: answer if it["price"] == 1 else lenient(it))
    fetched(app, declared, items(3))

    drain(app)

    (entry,) = quarantine(app)
    assert (entry["item_id"], entry["stage"], entry["code"]) == ("d00001", "map", code)
    assert words in entry["message"]
    assert target(app) == {"d00000": 0, "d00002": 2}


def null_price(it: Any) -> Row:
    return {"id": it["id"], "price": it["price"] if it["price"] >= 0 else None}


def test_rows_that_the_table_refuses_are_found_and_their_neighbours_written(app: Stepfast) -> None:
    """One bad row does not take its batch with it: it is isolated by halves. (F33)"""
    guilty = {3, 4, 17, 49}
    declared = catalogue(app, map=null_price, error_budget=0.1, batch=50, chunk=10)
    run = fetched(app, declared, [item(n, -1 if n in guilty else n) for n in range(50)])

    drain(app)

    assert [it["item_id"] for it in quarantine(app)] == [f"d{n:05}" for n in sorted(guilty)]
    assert {it["stage"] for it in quarantine(app)} == {"store"}
    assert {it["code"] for it in quarantine(app)} == {"ConstraintError"}
    assert target(app) == {f"d{n:05}": n for n in range(50) if n not in guilty}
    done = run_of(app, run)
    assert (done.state, done.applied, done.quarantined) == (RunState.COMPLETED, 46, 4)
    assert rows.count(app, "stepfast_raw", "pending = 2 AND applied_hash IS NULL") == 4


def test_a_batch_of_nothing_but_bad_rows_is_put_aside(app: Stepfast) -> None:
    declared = catalogue(app, map=null_price, error_budget=1)
    run = fetched(app, declared, [item(n, -1) for n in range(20)])

    drain(app)

    assert run_of(app, run).state is RunState.COMPLETED
    assert len(quarantine(app)) == 20


@pytest.mark.only_on("postgresql", "mariadb")  # SQLite holds any number
def test_a_value_that_the_table_cannot_hold_is_the_rows_own_fault(app: Stepfast) -> None:
    declared = catalogue(app, map=lenient, error_budget=1)
    fetched(app, declared, [item(1), item(2, TOO_LARGE)])

    drain(app)

    assert [(it["item_id"], it["stage"]) for it in quarantine(app)] == [("d00002", "store")]
    assert target(app) == {"d00001": 1}


class Picky(Catalogue):
    """Writes the target itself, and likes no odd prices."""

    name = "picky"
    error_budget = 1

    def store(self, tx: Transaction, rows: Sequence[Row], /) -> None:
        super().store(tx, rows)
        for row in rows:
            if row["price"] % 2:
                raise ValueError(f"{row['price']} is odd")


def test_what_a_store_of_the_feed_raises_puts_the_guilty_rows_aside(app: Stepfast) -> None:
    catalogue(app)
    app.feed(Picky(Shop()))
    fetched(app, app.feeds.get("picky"), items(6))

    drain(app)

    assert [(it["item_id"], it["code"]) for it in quarantine(app)] == [
        ("d00001", "ValueError"),
        ("d00003", "ValueError"),
        ("d00005", "ValueError"),
    ]
    assert target(app) == {"d00000": 0, "d00002": 2, "d00004": 4}


class Unlucky(Catalogue):
    """Its first write meets a deadlock."""

    name = "unlucky"
    tries = 0

    def store(self, tx: Transaction, rows: Sequence[Row], /) -> None:
        self.tries += 1
        if self.tries == 1:
            raise ContentionError("deadlock detected")
        super().store(tx, rows)


def test_a_deadlock_is_nobodys_fault(app: Stepfast) -> None:
    """No row is blamed for it: the whole step is written again. (F33)"""
    catalogue(app)
    feed = app.feed(Unlucky(Shop()))
    run = fetched(app, app.feeds.get("unlucky"), items(4))

    drain(app)

    assert feed.tries == 2
    assert quarantine(app) == []
    assert (run_of(app, run).state, run_of(app, run).applied) == (RunState.COMPLETED, 4)


def test_a_good_version_settles_the_entry_of_the_bad_one(app: Stepfast) -> None:
    declared, _ = spoiled(app)

    fetched(app, declared, [item(0, 100)], at=2, window=LATER)
    drain(app)

    assert [it["state"] for it in quarantine(app)] == ["superseded", "open"]
    assert target(app)["d00000"] == 100


def test_a_source_that_goes_back_to_the_version_that_was_applied_settles_the_entry(app: Stepfast) -> None:
    declared = catalogue(app, map=strict, error_budget=1)
    for at, seen in enumerate((item(1, 1), item(1, 2, poison=True), item(1, 1)), start=1):
        fetched(app, declared, [seen], at=at, kind="backfill")
        drain(app)

    assert [it["state"] for it in quarantine(app)] == ["superseded"]
    assert target(app) == {"d00001": 1}


def test_the_same_row_refused_again_is_one_entry_with_its_newest_reason(app: Stepfast) -> None:
    declared, _ = spoiled(app, bad=1)
    mend(declared, map=lambda it: {"id": it["id"]}["nothing"])

    again = fetched(app, declared, [item(0, 5)], at=2, window=LATER)
    drain(app)

    (entry,) = quarantine(app)
    assert (entry["hits"], entry["message"], entry["run_id"], entry["state"]) == (
        2,
        "'nothing'",
        again.id,
        "open",
    )


def test_a_target_row_says_since_when_its_newest_version_is_refused(app: Stepfast) -> None:
    """Otherwise the old price stays on sale, and nothing shows that it is old. (F56)"""
    declared = catalogue(app, map=strict, error_budget=1, stale="stale_since")
    before = rows.now(app)
    fetched(app, declared, [item(1), item(2)])
    drain(app)

    fetched(app, declared, [item(1, 5, poison=True), item(2, 6)], at=2, window=LATER)
    drain(app)
    stale = {it["id"]: it["stale_since"] for it in rows.query(app, "SELECT * FROM item")}
    fetched(app, declared, [item(1, 7)], at=3, kind="backfill")
    drain(app)

    assert stale["d00002"] is None
    assert before < int(stale["d00001"]) <= rows.now(app)
    assert rows.count(app, "item", "stale_since IS NOT NULL") == 0
    assert target(app) == {"d00001": 7, "d00002": 6}


# Replay and discard


def test_a_replay_applies_the_rows_after_the_fix(app: Stepfast) -> None:
    declared, run = spoiled(app, bad=3, batch=2, chunk=1)
    mend(declared)

    assert app.operator.by("alice", reason="mapper 2").quarantine.replay(Entries(feed="catalogue")) == 3
    drain(app)

    assert {it["state"] for it in quarantine(app)} == {"replayed"}
    assert target(app) == {it["id"]: it["price"] for it in items(10)}
    assert rows.count(app, "stepfast_raw", "pending <> 0") == 0
    assert run_of(app, run).state is RunState.COMPLETED
    (audit,) = rows.query(app, "SELECT who, what, subject, why, touched FROM stepfast_audit")
    assert tuple(audit.values()) == ("alice", "quarantine.replay", "catalogue", "mapper 2", 3)


def test_a_replay_without_a_fix_refreshes_the_reason(app: Stepfast) -> None:
    declared, run = spoiled(app, bad=1)
    mend(declared, map=lambda it: it["cut"], mapper_version="2")

    app.operator.quarantine.replay()
    drain(app)

    (entry,) = quarantine(app)
    assert (entry["state"], entry["message"], entry["hits"], entry["run_id"]) == ("open", "'cut'", 2, run.id)
    assert rows.count(app, "stepfast_raw", "pending = 2") == 1
    assert len(target(app)) == 9


def test_a_row_that_can_be_mapped_now_but_not_stored_changes_its_stage(app: Stepfast) -> None:
    declared, _ = spoiled(app, bad=1)
    mend(declared, map=lambda it: {"id": it["id"], "price": None})

    app.operator.quarantine.replay()
    drain(app)

    assert [(it["stage"], it["state"]) for it in quarantine(app)] == [("map", "replayed"), ("store", "open")]


def test_a_newer_version_wins_over_a_replay(app: Stepfast) -> None:
    declared, _ = spoiled(app, bad=1)
    mend(declared)
    app.operator.quarantine.replay()
    see(app, "a-newer-run", [item(0, 999)], at=5)

    drain(app)

    assert [it["state"] for it in quarantine(app)] == ["superseded"]
    assert "d00000" not in target(app)  # it waits for its own run
    fetched(app, declared, [], window=LATER)
    drain(app)
    assert target(app)["d00000"] == 999


def test_a_version_that_comes_while_a_replay_is_on_its_way_wins(app: Stepfast) -> None:
    declared, _ = spoiled(app, bad=1)
    mend(declared)
    app.operator.quarantine.replay()

    play(app, declared, between=lambda: see(app, "a-newer-run", [item(0, 999)], at=5))
    drain(app)

    assert "d00000" not in target(app)
    assert waiting(app) == 1


def test_a_row_without_identity_gets_one_with_the_fix_and_is_applied(app: Stepfast) -> None:
    declared = catalogue(app, error_budget=1)
    stranger = RefusedRow(
        "?x", "identify", "no identity", "identify() answered None", "x", '{"name":"d00007","price":70}'
    )
    fetched(
        app,
        declared,
        items(1),
        rejected=1,
        between=lambda tx, run: put_aside(tx, run.feed, run.id, [stranger]),
    )
    drain(app)
    app.operator.quarantine.replay()
    drain(app)
    assert [it["state"] for it in quarantine(app)] == ["open"]

    mend(
        declared,
        identify=lambda it: it.get("id") or it["name"],
        map=lambda it: {"id": it.get("id") or it["name"], "price": it["price"]},
    )
    app.operator.quarantine.replay()
    drain(app)

    assert target(app) == {"d00000": 0, "d00007": 70}
    assert [(it["item_id"], it["state"]) for it in quarantine(app)] == [("?x", "replayed")]
    assert rows.count(app, "stepfast_raw", "item_id = 'd00007' AND pending = 0") == 1


def test_after_a_replay_the_run_that_failed_for_its_quality_completes(app: Stepfast) -> None:
    declared, run = spoiled(app, bad=8, error_budget=0.1)
    assert run_of(app, run).state is RunState.FAILED_QUALITY
    mend(declared)
    app.operator.quarantine.replay()
    drain(app)

    app.runs.consolidate(run.id)
    drain(app)

    assert run_of(app, run).state is RunState.COMPLETED
    assert target(app) == {it["id"]: it["price"] for it in items(10)}


def test_a_replay_names_the_queue_of_the_feed(app: Stepfast) -> None:
    spoiled(app, bad=1, queue="catalogues")
    app.operator.quarantine.replay()

    (job,) = rows.query(app, "SELECT kind, queue FROM stepfast_job")
    assert (job["kind"], job["queue"]) == ("catalogue.replay", "catalogues")

    rows.change(app, "DELETE FROM stepfast_archive")
    with pytest.raises(ConfigurationError, match="nobody remembers in which queue"):
        app.operator.quarantine.replay()
    assert app.operator.quarantine.replay(queue="elsewhere") == 1


def test_a_discarded_row_is_not_tried_again_and_its_reason_is_kept(app: Stepfast) -> None:
    declared, _ = spoiled(app)
    (first, _) = quarantine(app)
    bob = app.operator.by("bob", reason="a test item").quarantine

    assert bob.discard(Entries(id=first["id"])) == 1
    mend(declared)
    assert app.operator.quarantine.replay() == 1
    drain(app)

    assert [(it["state"], it["note"]) for it in quarantine(app)] == [
        ("discarded", "a test item"),
        ("replayed", None),
    ]
    assert sorted(set(map("d{:05}".format, range(10))) - set(target(app))) == ["d00000"]
    with pytest.raises(StateError, match="is discarded"):
        bob.discard(Entries(id=first["id"]))
    with pytest.raises(NotFoundError, match="no entry 999999"):
        bob.replay(Entries(id=999_999))
    with pytest.raises(ConfigurationError, match="say why"):
        app.operator.quarantine.discard(Entries())


def test_entries_are_found_by_feed_stage_code_and_run_and_counted_in_groups(app: Stepfast) -> None:
    _, run = spoiled(app, bad=3)
    look = app.operator.quarantine

    assert [it.item_id for it in look.entries()] == ["d00002", "d00001", "d00000"]
    assert look.entries(Entries(stage="store")) == []
    assert len(look.entries(Entries("catalogue", "map", "KeyError", run.id), limit=2)) == 2
    (group,) = look.groups()
    assert (group.feed, group.stage, group.code, group.rows, group.example) == (
        "catalogue",
        "map",
        "KeyError",
        3,
        "'price'",
    )
    shown = look.show(look.entries()[0].id)
    assert shown.entry.state is QuarantineState.OPEN
    assert shown.payload["id"] == "d00002"
    with pytest.raises(NotFoundError):
        look.show(0)


def test_many_types_reach_the_table_as_they_are(app: Stepfast) -> None:
    """Bulk rows mean what single ones mean, and nothing is cut to fit."""
    connection = app.database.connect()
    types = {
        "postgresql": ("BYTEA", "JSONB", "INTEGER[]"),
        "mariadb": ("BLOB", "JSON", "TEXT"),
        "sqlite": ("BLOB", "TEXT", "TEXT"),
    }
    blob, json, array = types[app.database.dialect.name]
    connection.execute(
        f"CREATE TABLE odd (id INTEGER NOT NULL PRIMARY KEY, name VARCHAR(5), data {blob}, doc {json}, many {array}, share DOUBLE PRECISION, yes BOOLEAN)"
    )
    connection.close()
    lists = "{1,2}" if array == "INTEGER[]" else "1,2"
    written: list[Row] = [
        {
            "id": 1,
            "name": "a'\\b",
            "data": b"\x00\xff'",
            "doc": {"a": ["\\", "'"]},
            "many": lists,
            "share": 0.1,
            "yes": True,
        },
        {"id": 2, "name": "%s:x", "data": None, "doc": '{"b":1}', "many": None, "share": 1e300, "yes": False},
        {"id": 2, "name": "\x1f,é", "data": b"", "doc": None, "many": lists, "share": None, "yes": None},
    ]

    with app.transaction() as tx:
        BulkUpsert("odd", ("id",), written, 2).apply(tx)

    first, second = rows.query(app, "SELECT * FROM odd ORDER BY id")
    assert (first["name"], bytes(first["data"]), first["share"], bool(first["yes"])) == (
        "a'\\b",
        b"\x00\xff'",
        0.1,
        True,
    )
    assert first["doc"] in ({"a": ["\\", "'"]}, '{"a":["\\\\","\'"]}')
    assert (second["name"], bytes(second["data"]), second["doc"], second["yes"]) == (
        "\x1f,é",
        b"",
        None,
        None,
    )
    assert str(first["many"]) in {"[1, 2]", "1,2"}
    if app.database.dialect.name != "sqlite":
        with pytest.raises(Exception, match=r"(?i)too long"), app.transaction() as tx:
            BulkUpsert("odd", ("id",), [{"id": 3, "name": "longer than five"}], 2).apply(tx)


def test_find_run_knows_what_was_counted(app: Stepfast) -> None:
    """Counters of a run follow its batches, whichever way they went."""
    _, run = spoiled(app, bad=4, batch=3, chunk=1, shards=2)

    with app.reading() as tx:
        found = find_run(tx, run.id)
    assert (found.applied, found.quarantined, found.seen) == (6, 4, 10)
