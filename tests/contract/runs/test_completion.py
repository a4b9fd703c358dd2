"""The last partition that ends decides about the run, exactly once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.database.database import persist
from stepfast.errors import TransientError
from stepfast.jobs.outcome import Done
from stepfast.runs.lifecycle import end_fetching, partition_ended
from stepfast.runs.page import PageCommit
from stepfast.runs.partition import PartitionState, end_partition, find_partition
from stepfast.runs.partitioning.partitioners import Fixed
from stepfast.testing import drain
from tests.support import rows
from tests.support.engine import together, wait_until_somebody_waits
from tests.support.feeds import Catalogue, Shop, prepare, price_ranges, target
from tests.support.rows import Snapshot
from tests.support.run_facts import (
    begin,
    check_complete,
    check_counters,
    consolidations,
    partitions,
    raw,
    run_of,
)
from tests.support.single_threaded_worker import Answer, SingleThreadedWorker

if TYPE_CHECKING:
    from stepfast import Stepfast, Transaction
    from stepfast.jobs.lease import Lease
    from stepfast.runs.run import Run

PAGE = "catalogue.page"
TWO = Fixed(price_ranges(500))
Ends = list[tuple["Lease", Answer]]


def at_their_ends(
    app: Stepfast, count: int = 2, **settings: Any
) -> tuple[Shop, Run, SingleThreadedWorker, Ends]:
    """A run whose partitions have all been read; the commits of their last pages are still to come."""
    shop = Shop.with_items(24)
    cuts = range(1_000 // count, 1_000, 1_000 // count)
    app.feed(Catalogue(shop, partitioner=Fixed(price_ranges(*cuts)), **settings))
    prepare(app)
    run = begin(app)
    worker = SingleThreadedWorker(app)
    ends: Ends = []
    while len(ends) < count:
        lease = worker.claim()
        assert lease is not None
        thought = worker.run_handler(lease)
        if lease.kind == PAGE and isinstance(thought.ending, Done):
            ends.append((lease, thought))
        else:
            worker.commit(lease, thought)
    return shop, run, worker, ends


def fail(tx: Transaction, app: Stepfast, row_id: str) -> None:
    """As a partition ends whose job has given up."""
    partition = find_partition(tx, row_id)
    assert partition is not None
    if end_partition(tx, partition, PartitionState.FAILED, "no answer"):
        failed = partition.moved(state=PartitionState.FAILED)
        partition_ended(tx, app.feeds.get("catalogue"), failed, "no answer")


def alerts(app: Stepfast) -> list[str]:
    return [str(it["title"]) for it in rows.query(app, "SELECT title FROM stepfast_alert")]


# The last one


def test_the_last_partition_begins_the_consolidation_and_no_other_does(app: Stepfast) -> None:
    """(F2, F3, F28)"""
    shop, run, worker, ends = at_their_ends(app, 4)

    for number, (lease, thought) in enumerate(ends, start=1):
        worker.commit(lease, thought)
        found = run_of(app, run.id)
        assert (found.completed, consolidations(app, run.id)) == (number, int(number == 4))
        assert found.state == ("applying" if number == 4 else "fetching")
        check_counters(app, run.id)

    worker.finish()
    check_complete(app, run.id, shop)


@pytest.mark.parametrize("count", [2, 4])
def test_partitions_that_end_at_the_same_moment_begin_one_consolidation(
    app: Stepfast, another_app: Callable[[], Stepfast], count: int
) -> None:
    """(F2, F28, F41, T20)"""
    shop, run, worker, ends = at_their_ends(app, count)
    others = [replace_app(worker, another_app()) for _ in ends]

    together([partial(one.commit, *end) for one, end in zip(others, ends, strict=True)])

    assert consolidations(app, run.id) == 1
    check_counters(app, run.id)
    worker.finish()
    check_complete(app, run.id, shop)


def replace_app(worker: SingleThreadedWorker, app: Stepfast) -> SingleThreadedWorker:
    """The worker, with connections of its own."""
    other = SingleThreadedWorker.__new__(SingleThreadedWorker)
    other.app, other.name, other.incarnation = app, worker.name, worker.incarnation
    other.app.kinds = worker.app.kinds
    return other


@pytest.mark.only_on("postgresql", "mariadb")
@pytest.mark.parametrize("first_fails", [False, True])
def test_the_second_to_end_waits_for_the_first_and_sees_it(
    app: Stepfast, another_app: Callable[[], Stepfast], *, first_fails: bool
) -> None:
    """It looks whether anything is open after it has the run, and not before. (F28, F41)"""
    _, run, worker, ends = at_their_ends(app)
    second = replace_app(worker, another_app())
    first_partition = partitions(app, run.id)[0]["id"]
    late = threading.Thread(target=lambda: second.commit(*ends[1]))

    with app.transaction() as tx:
        if first_fails:
            fail(tx, app, first_partition)
        else:
            for effect in ends[0][1].effects:
                effect.apply(tx)
        late.start()
        wait_until_somebody_waits(app)
    late.join(20)

    found = run_of(app, run.id)
    assert consolidations(app, run.id) == (0 if first_fails else 1)
    assert found.state == ("failed" if first_fails else "applying")
    assert found.completed + found.failed == found.partitions == 2
    assert alerts(app) == (["Consolidation Skipped"] if first_fails else [])
    check_counters(app, run.id)


# Every interleaving


class Gate:
    """Lets one connection pass so many statements, then holds it until it is opened."""

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self.passed = 0
        self.there = threading.Event()
        self.open = threading.Event()

    def __call__(self, phase: str, _: str) -> None:
        if phase == "before":
            if self.passed == self.stop:
                self.there.set()
                assert self.open.wait(20)
            self.passed += 1


@contextmanager
def gated(app: Stepfast, gate: Gate) -> Iterator[None]:
    """Every connection that the application opens from now on is watched by the gate."""
    connect = app.database._connect
    app.database.close()

    def watched() -> Any:
        connection = connect()
        connection.watch = gate
        return connection

    app.database._connect = watched
    try:
        yield
    finally:
        app.database._connect = connect
        app.database.close()


@pytest.mark.idempotency
@pytest.mark.only_on("postgresql", "mariadb")
def test_two_ends_interleaved_at_any_two_statements_begin_one_consolidation(
    app: Stepfast, another_app: Callable[[], Stepfast], *, chaos: bool
) -> None:
    """One stops before its n-th statement, the other before its m-th, both go on: for all n and m with --chaos. (T20)"""
    _, run, worker, ends = at_their_ends(app)
    workers = [replace_app(worker, another_app()) for _ in ends]
    pristine = Snapshot.taken(app)
    length = count_statements(workers[0], ends[0])
    pristine.restore(app)
    pairs = list(product(range(length), repeat=2))
    chosen = pairs if chaos else pairs[:: max(1, len(pairs) // 30)]

    for stops in chosen:
        gates = [Gate(stop) for stop in stops]
        threads = [
            threading.Thread(target=held_commit, args=(one, end, gate))
            for one, end, gate in zip(workers, ends, gates, strict=True)
        ]
        for thread, gate in zip(threads, gates, strict=True):
            thread.start()
            gate.there.wait(0.05)  # or it waits for the other one's lock: that is an interleaving, too
        for gate in gates:
            gate.open.set()
        for thread in threads:
            thread.join(20)

        where = f"stopped before statements {stops}"
        assert consolidations(app, run.id) == 1, where
        assert (run_of(app, run.id).state, run_of(app, run.id).completed) == ("applying", 2), where
        check_counters(app, run.id)
        pristine.restore(app)


def held_commit(worker: SingleThreadedWorker, end: tuple[Lease, Answer], gate: Gate) -> None:
    with gated(worker.app, gate):
        worker.commit(*end)
    gate.there.set()


def count_statements(worker: SingleThreadedWorker, end: tuple[Lease, Answer]) -> int:
    gate = Gate(-1)
    held_commit(worker, end, gate)
    return gate.passed


Action = Callable[["Transaction"], None]


@pytest.mark.only_on("sqlite")
def test_in_every_order_of_late_doubled_and_failing_ends_there_is_one_decision(app: Stepfast) -> None:
    """All orders of two last pages, each delivered twice, a job that gives up, and somebody who asks. (T20, F2, F3)

    Whole transactions in any order are all that SQLite allows; the tests above are about what happens inside them.
    """
    _, run, _, ends = at_their_ends(app)
    declared = app.feeds.get("catalogue")
    pages = [it for _, thought in ends for it in thought.effects if isinstance(it, PageCommit)]
    assert len(pages) == 2
    first = pages[0].partition.id
    actions: list[Action] = [
        *(partial(attempt, apply=it.apply) for it in pages),
        *(partial(attempt, apply=it.apply) for it in pages),
        lambda tx: fail(tx, app, first),
        lambda tx: end_fetching(tx, declared, run.id),
    ]
    orders = 0

    def explore(tx: Transaction, left: list[Action]) -> None:
        nonlocal orders
        if not left:
            orders += 1
            check_decision(tx, run)
            return
        for number in range(len(left)):
            if any(left[number] is it for it in left[:number]):
                continue
            with undone(tx):
                left[number](tx)
                check_state(tx, run)
                explore(tx, left[:number] + left[number + 1 :])

    with app.transaction() as tx:
        explore(tx, actions)

    assert orders == 720  # six factorial


class Undo(Exception):  # noqa: N818 - no error
    """Take back what was done since."""


@contextmanager
def undone(tx: Transaction) -> Iterator[None]:
    try:
        with tx.savepoint():
            yield
            raise Undo  # noqa: TRY301 - the savepoint is to see it
    except Undo:
        pass


def attempt(tx: Transaction, apply: Action) -> None:
    """A commit that is refused leaves nothing."""
    try:
        with tx.savepoint():
            apply(tx)
    except TransientError:
        pass


def check_state(tx: Transaction, run: Run) -> None:
    """At any time."""
    (found,) = tx.query("SELECT * FROM stepfast_run WHERE id = :id", {"id": run.id})
    states = [it["state"] for it in tx.query("SELECT state FROM stepfast_partition")]
    begun = tx.query("SELECT id FROM stepfast_job WHERE kind = 'catalogue.consolidate'")
    open_ = sum(it in ("ready", "running") for it in states)
    assert found["completed"] == states.count("done")
    assert found["failed"] == states.count("failed")
    assert (found["state"] == "fetching") == (open_ > 0)
    assert len(begun) == int(found["state"] == "applying")
    assert len(tx.query("SELECT id FROM stepfast_alert")) == int(found["state"] == "failed")


def check_decision(tx: Transaction, run: Run) -> None:
    (found,) = tx.query("SELECT * FROM stepfast_run WHERE id = :id", {"id": run.id})
    assert found["state"] == ("failed" if found["failed"] else "applying")
    assert found["completed"] + found["failed"] == 2


# Failures


def test_a_failed_partition_skips_the_consolidation_and_says_so_once(app: Stepfast) -> None:
    """Whether it is the last to end or not. The watermark stays, and the feed is free. (F40, F9, T7)"""
    _, run, worker, ends = at_their_ends(app)
    first, second = (it["id"] for it in partitions(app, run.id))

    persist(app.database, lambda tx: fail(tx, app, first))
    assert run_of(app, run.id).state == "fetching"
    persist(app.database, lambda tx: fail(tx, app, second))
    for lease, thought in ends:
        worker.commit(lease, thought)
    worker.finish()

    found = run_of(app, run.id)
    assert (found.state, found.failed, found.completed) == ("failed", 2, 0)
    assert found.reason == "2 of 2 partitions failed"
    assert found.ended_at is not None
    assert consolidations(app, run.id) == 0
    assert alerts(app) == ["Consolidation Skipped"]
    assert not target(app)
    assert rows.query(app, "SELECT watermark FROM stepfast_feed")[0]["watermark"] is None
    check_counters(app, run.id)


@pytest.mark.idempotency
def test_a_failure_that_is_reported_five_times_is_counted_once(app: Stepfast) -> None:
    """(F3, F38)"""
    _, run, _, _ = at_their_ends(app)
    first = partitions(app, run.id)[0]["id"]

    for _ in range(5):
        persist(app.database, lambda tx: fail(tx, app, first))

    assert run_of(app, run.id).failed == 1
    check_counters(app, run.id)


def test_what_a_failed_run_read_is_read_again_by_the_next_one(app: Stepfast) -> None:
    """Its window begins where the last good one ended. (F9, F12, T7)"""
    shop, run, worker, ends = at_their_ends(app)
    persist(app.database, lambda tx: fail(tx, app, partitions(app, run.id)[0]["id"]))
    for lease, thought in ends:
        worker.commit(lease, thought)
    worker.finish()

    following = begin(app)
    drain(app)

    assert (following.kind, following.window_from) == ("full", None)
    check_complete(app, following.id, shop)
    assert target(app) == raw(app) == shop.prices()


def test_a_run_that_stalled_goes_on_with_its_last_partition(app: Stepfast) -> None:
    shop, run, worker, ends = at_their_ends(app)
    rows.change(app, "UPDATE stepfast_run SET state = 'stalled', stalled_in = 'fetching'")

    for lease, thought in ends:
        worker.commit(lease, thought)
    worker.finish()

    check_complete(app, run.id, shop)


def test_a_cancelled_run_is_not_consolidated(app: Stepfast) -> None:
    """Pages that were under way find out, and write nothing. (F39)"""
    _, run, worker, ends = at_their_ends(app)
    rows.change(app, "UPDATE stepfast_partition SET state = 'cancelled', epoch = epoch + 1, ended_at = 1")
    rows.change(
        app, "UPDATE stepfast_run SET state = 'cancelled', epoch = 1, active_feed = NULL, ended_at = 1"
    )

    for lease, thought in ends:
        worker.commit(lease, thought)
    worker.finish()

    assert run_of(app, run.id).state == "cancelled"
    assert run_of(app, run.id).completed == 0
    assert consolidations(app, run.id) == 0


def test_the_end_of_fetching_is_noted_once(app: Stepfast) -> None:
    _, run, worker, ends = at_their_ends(app)
    for lease, thought in ends:
        worker.commit(lease, thought)
    declared = app.feeds.get("catalogue")
    (before,) = rows.query(app, "SELECT * FROM stepfast_run")

    persist(app.database, lambda tx: end_fetching(tx, declared, run.id))

    assert rows.query(app, "SELECT * FROM stepfast_run") == [before]
    assert before["fetched_at"] is not None


def test_rows_of_a_partition_count_once_in_the_run(app: Stepfast) -> None:
    """And they are those of all its pages, not of the last one. (F6)"""
    shop, run, worker, ends = at_their_ends(app)
    lease, thought = ends[0]
    (page,) = thought.effects
    assert isinstance(page, PageCommit)
    worker.commit(lease, thought)
    seen = run_of(app, run.id).seen

    with pytest.raises(TransientError):
        persist(app.database, replace(page, fresh=99).apply)

    assert run_of(app, run.id).seen == seen == page.partition.seen + page.fresh
    for rest in ends[1:]:
        worker.commit(*rest)
    read = [it["seen"] for it in partitions(app, run.id)]
    told = rows.query(app, "SELECT records_processed FROM worker_runs WHERE run_id = :id", id=run.id)
    assert min(read) > Catalogue.page_size, "else a partition is one page"
    assert sorted(it["records_processed"] for it in told) == sorted(read)
    assert run_of(app, run.id).seen == sum(read) >= len(shop.items)
    check_counters(app, run.id)
