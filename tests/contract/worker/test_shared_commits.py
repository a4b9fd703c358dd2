"""Steps that continue share a transaction; if it is refused, each is committed alone, and only the faulty one fails."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Concurrency, Continue, Page
from stepfast.database.connection import Connection
from stepfast.errors import ContentionError, UnreachableError
from stepfast.runs.page import INSERT_PAGE
from stepfast.runs.partition import ADVANCE_PARTITION
from stepfast.runs.partitioning.partitioners import Fixed
from stepfast.worker import committer
from tests.contract.runs.test_page_position import Ear
from tests.contract.runs.test_skipped_lookup import ByToken
from tests.crash.kill_points import watched
from tests.support import rows
from tests.support.engine import wait_until_somebody_waits
from tests.support.events import Told, hearing, named
from tests.support.feeds import Catalogue, Shop, prepare, price_ranges
from tests.support.run_facts import begin, check_complete, check_counters, pages, partitions, raw, run_of
from tests.support.single_threaded_worker import GroupCommittingWorker, SingleThreadedWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast import Cursor, Range, Stepfast, Window
    from stepfast.jobs.lease import Lease
    from stepfast.runs.run import Run
    from stepfast.worker.running import Ended

PARTS = 4


def reading(
    app: Stepfast, feed: type[Catalogue] = Catalogue, **settings: Any
) -> tuple[GroupCommittingWorker, Run, Shop]:
    """A run of four partitions, three pages each."""
    shop = Shop.with_items(100)
    app.feed(feed(shop, **settings))
    prepare(app)
    worker = GroupCommittingWorker(app)
    return worker, begin(app), shop


def finish(app: Stepfast, worker: GroupCommittingWorker, run: Run, shop: Shop) -> None:
    """Let another worker take over and bring the run to its end: everything is there once."""
    survivor = SingleThreadedWorker(app, "survivor")
    survivor.declare_others_dead()
    survivor.finish()
    check_complete(app, run.id, shop)
    assert worker.committer._stays


def transactions(act: Callable[[], object]) -> int:
    """How many were committed meanwhile."""
    sent: list[tuple[str, str]] = []
    with watched(Ear(sent)):
        act()
    return sent.count(("after", "COMMIT"))


def job(app: Stepfast, lease: Lease) -> rows.Row:
    found = rows.live(app, lease.job_id)
    assert found is not None
    return found


def fences(app: Stepfast) -> dict[str, int]:
    return {row["id"]: row["fence"] for row in rows.query(app, "SELECT id, fence FROM stepfast_job")}


def written(app: Stepfast, run: Run) -> dict[str, int]:
    """How many requests of each partition are in the ledger, by its job."""
    ledger = [it["partition_id"] for it in pages(app, run.id)]
    return {it["job_id"]: ledger.count(it["id"]) for it in partitions(app, run.id)}


def words(told: Told) -> list[str]:
    return [name for name, _ in told if name in ("commit.parted", "step.refused", "worker.failed")]


# One transaction


def test_pages_of_several_partitions_are_one_transaction(app: Stepfast) -> None:
    worker, run, shop = reading(app)
    group = worker.first_pages(PARTS)

    with hearing() as told:
        assert transactions(lambda: worker.commit_group(group)) == 1

    assert set(written(app, run).values()) == {2}
    assert sum(it["seen"] for it in partitions(app, run.id)) == len(raw(app)) == 10 * PARTS
    assert [it["outcome"] for it in named(told, "step.committed")] == ["continued"] * PARTS
    check_counters(app, run.id)
    finish(app, worker, run, shop)


def test_each_goes_on_here_under_a_fence_of_its_own(app: Stepfast) -> None:
    worker, _, _ = reading(app)
    group = worker.run_handlers(worker.take_pages(PARTS))

    worker.commit_group(group)

    stayed = worker.take_continued()
    assert {it.job_id: it.fence for it in stayed} == fences(app)
    assert len({it.fence for it in stayed}) == PARTS
    assert [(it.job_id, it.step) for it in stayed] == [(it.lease.job_id, 1) for it in group]
    assert worker.ended == [it.lease for it in group]


def test_what_the_steps_said_is_written_with_them(app: Stepfast) -> None:
    worker, _, _ = reading(app)
    group = worker.run_handlers(worker.take_pages(PARTS))
    for it in group:
        worker.say(it.lease, f"I am {it.lease.job_id}")

    assert transactions(lambda: worker.commit_group(group)) == 1

    assert [rows.logs(app, it.lease.job_id) for it in group] == [[f"I am {it.lease.job_id}"] for it in group]


def test_slots_are_freed_in_the_transaction_of_the_group(app: Stepfast) -> None:
    def work() -> Continue:
        return Continue(1)

    app.job(limits=[Concurrency(3)])(work).enqueue_many([{}] * 3)
    worker = GroupCommittingWorker(app)
    taken = worker.take(3)
    assert rows.count(app, "stepfast_slot") == 3

    worker.commit_group(worker.run_handlers(taken))

    assert rows.count(app, "stepfast_slot") == 0
    assert worker.stayed == []  # the next step has to ask again
    assert rows.count(app, "stepfast_job", "state = 'ready' AND step = 1") == 3


# One of them is refused


def test_a_lost_fence_leaves_nothing_and_the_others_are_written(app: Stepfast) -> None:
    worker, run, shop = reading(app)
    group = worker.first_pages(PARTS)
    lost = group[1].lease.job_id
    rows.change(app, "UPDATE stepfast_job SET fence = fence + 1 WHERE id = :id", id=lost)

    with hearing() as told:
        worker.commit_group(group)

    assert written(app, run) == {it.lease.job_id: 1 if it.lease.job_id == lost else 2 for it in group}
    assert {it.job_id for it in worker.stayed} == {it.lease.job_id for it in group} - {lost}
    assert words(told) == ["commit.parted", "step.refused"]
    assert worker.ended[-PARTS:] == [it.lease for it in group]
    check_counters(app, run.id)
    finish(app, worker, run, shop)


def test_what_was_said_is_written_once_although_the_group_was_parted(app: Stepfast) -> None:
    worker, _, _ = reading(app)
    group = worker.run_handlers(worker.take_pages(PARTS))
    for it in group:
        worker.say(it.lease, "hello")
    rows.change(app, "UPDATE stepfast_job SET fence = fence + 1 WHERE id = :id", id=group[0].lease.job_id)

    worker.commit_group(group)

    assert [rows.logs(app, it.lease.job_id) for it in group] == [[], ["hello"], ["hello"], ["hello"]]


@pytest.mark.parametrize(
    "change",
    ["seq = seq + 1", "epoch = epoch + 1", "state = 'failed'"],
    ids=["moved on", "restarted", "ended"],
)
def test_a_partition_that_somebody_moved_is_looked_at_again_and_the_others_are_written(
    app: Stepfast, change: str
) -> None:
    worker, run, _ = reading(app)
    group = worker.first_pages(PARTS)
    guilty = group[2].lease
    rows.change(app, f"UPDATE stepfast_partition SET {change} WHERE job_id = :id", id=guilty.job_id)

    with hearing() as told:
        worker.commit_group(group)

    assert written(app, run) == {it.lease.job_id: 1 if it.lease == guilty else 2 for it in group}
    assert len(raw(app)) == 30
    row = job(app, guilty)
    assert (row["state"], row["failures"], row["step"]) == ("ready", 0, 1)
    assert "moved on by somebody else" in row["last_error"]
    assert words(told) == ["commit.parted"]


class Stuttering(ByToken):
    """Gives rows again in one of its partitions."""

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        self.again = 2 if part.contains({"price": 300}) else 0
        return await super().fetch(part, window, cursor)


def test_a_row_that_comes_again_makes_only_its_own_page_judged_again(app: Stepfast) -> None:
    worker, run, shop = reading(app, Stuttering)
    worker.commit_group(worker.first_pages(PARTS))
    group = worker.run_handlers(worker.take_continued())
    guilty = next(it["job_id"] for it in partitions(app, run.id) if it["number"] == 1)

    with hearing() as told:
        worker.commit_group(group)

    assert words(told) == ["commit.parted"]
    assert written(app, run) == {it.lease.job_id: 2 if it.lease.job_id == guilty else 3 for it in group}
    row = rows.live(app, guilty)
    assert row is not None
    assert (row["state"], row["failures"]) == ("ready", 0)
    check_counters(app, run.id)
    finish(app, worker, run, shop)


def test_a_cancelled_job_ends_with_its_page_and_the_others_go_on(app: Stepfast) -> None:
    worker, run, _ = reading(app)
    group = worker.first_pages(PARTS)
    cancelled = group[0].lease.job_id
    app.operator.cancel(cancelled)

    worker.commit_group(group)

    assert set(written(app, run).values()) == {2}
    assert rows.state(app, cancelled) == "cancelled"
    assert {it.job_id for it in worker.stayed} == {it.lease.job_id for it in group[1:]}


def test_a_cursor_that_cannot_be_stored_fails_alone(app: Stepfast) -> None:
    worker, run, _ = reading(app)
    group = worker.run_handlers(worker.take_pages(PARTS))
    group[3] = group[3]._replace(ending=Continue(object()))

    worker.commit_group(group)

    assert written(app, run) == {it.lease.job_id: int(it is not group[3]) for it in group}
    assert rows.state(app, group[3].lease.job_id) == "dead"


# Whether they stay


def paused(app: Stepfast) -> None:
    app.operator.pause("default")


def more_urgent(app: Stepfast) -> None:
    app.job(name="urgent")(lambda: None).enqueue(priority=100)


@pytest.mark.parametrize("reason", [paused, more_urgent])
def test_a_group_does_not_stay_in_the_way(app: Stepfast, reason: Callable[[Stepfast], None]) -> None:
    worker, run, _ = reading(app)
    group = worker.first_pages(PARTS)
    reason(app)

    assert transactions(lambda: worker.commit_group(group)) == 1

    assert set(written(app, run).values()) == {2}
    assert worker.stayed == []
    assert (
        rows.count(app, "stepfast_job", "kind = 'catalogue.page' AND state = 'ready' AND owner IS NULL")
        == PARTS
    )


def test_those_that_have_stayed_long_enough_leave_in_the_same_transaction(app: Stepfast) -> None:
    worker, _, _ = reading(app)
    group = worker.run_handlers(worker.take_pages(PARTS))
    group[1] = group[1]._replace(chain=committer.STICKY_STEPS, chain_since=1.0)

    assert transactions(lambda: worker.commit_group(group)) == 1

    assert {it.job_id for it in worker.stayed} == {it.lease.job_id for it in group if it is not group[1]}
    assert rows.state(app, group[1].lease.job_id) == "ready"


def test_one_that_cannot_be_handed_over_does_not_take_the_others_along(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed steps are not written again, and none is reported as refused."""
    worker, run, _ = reading(app)
    group = worker.run_handlers(worker.take_pages(PARTS))
    go_on = worker.leases.resume

    def stumble(lease: Lease, chain: int, since: float) -> bool:
        if lease.job_id == group[1].lease.job_id:
            raise RuntimeError("the event loop is closed")
        return go_on(lease, chain, since)

    monkeypatch.setattr(worker.leases, "resume", stumble)
    with hearing() as told:
        worker.commit_group(group)

    assert words(told) == ["worker.failed"]
    assert set(written(app, run).values()) == {1}
    assert [it.job_id for it in worker.stayed] == [group[n].lease.job_id for n in (0, 2, 3)]
    assert worker.ended == [it.lease for it in group]


# The database


def deadlock_once(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next page that is written is chosen as the victim of a deadlock."""
    left, advance = [1], ADVANCE_PARTITION.render(app.database.dialect)

    def cut(moment: str, text: str) -> None:
        if (moment, text) == ("before", advance) and left:
            left.clear()
            raise ContentionError("deadlock detected")

    monkeypatch.setattr(Connection, "watch", staticmethod(cut))


def test_a_deadlock_parts_the_group_and_nobody_is_charged(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, run, shop = reading(app)
    group = worker.first_pages(PARTS)
    assert all(worker.committer._may_share(it) for it in group)
    deadlock_once(app, monkeypatch)

    with hearing() as told:
        worker.commit_group(group)

    assert words(told) == ["commit.parted"]
    assert set(written(app, run).values()) == {2}
    assert {it.job_id for it in worker.stayed} == {it.lease.job_id for it in group}
    assert rows.count(app, "stepfast_job", "failures > 0") == 0
    assert not any(worker.committer._may_share(it) for it in group)  # for a while
    monkeypatch.setattr(Connection, "watch", None)
    finish(app, worker, run, shop)


def test_after_a_while_they_share_a_transaction_again(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "APART", 0.0)
    worker, _, _ = reading(app)
    group = worker.first_pages(PARTS)
    deadlock_once(app, monkeypatch)

    worker.commit_group(group)

    assert all(worker.committer._may_share(it) for it in group)


class Overlapping(Catalogue):
    """Shows the same two items in all of its partitions, later ones with a higher price."""

    async def count(self, _part: Range, _window: Window, /) -> int:
        return 30

    async def fetch(self, part: Range, _: Window, cursor: Cursor, /) -> Page:
        self.shop.requests.append(("page", part.name, cursor.offset))
        price = len(self.shop.requests)
        seen = datetime.now(UTC) + timedelta(seconds=price)
        return Page([{"id": it, "price": price} for it in ("x", "y")], observed_at=seen)


@pytest.mark.parametrize("turned", [False, True], ids=["oldest first", "newest first"])
def test_of_two_pages_with_the_same_item_the_newest_observation_wins(app: Stepfast, turned: bool) -> None:  # noqa: FBT001 - a parameter
    worker, _, shop = reading(app, Overlapping)
    group = worker.first_pages(PARTS)

    with hearing() as told:
        worker.commit_group(group[::-1] if turned else group)

    assert words(told) == []
    newest = len(shop.requests)
    assert raw(app) == {"x": newest, "y": newest}


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_group_that_waits_in_a_circle_is_written_all_the_same(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    worker, run, _ = reading(app, Overlapping)
    worker.commit_group(worker.first_pages(PARTS))
    group = worker.run_handlers(worker.take_continued())
    touch = "UPDATE stepfast_raw SET strikes = 0 WHERE item_id = :id"
    lanes = threading.Thread(target=lambda: worker.commit_group(group))

    try:
        with another_app().transaction() as tx:
            tx.execute(touch, {"id": "y"})
            lanes.start()
            wait_until_somebody_waits(app)
            tx.execute(touch, {"id": "x"})
    except ContentionError:
        pass  # one of the two is the victim
    lanes.join()

    assert set(written(app, run).values()) == {3}
    assert len(worker.stayed) == PARTS


@pytest.mark.only_on("postgresql", "mariadb")
def test_one_that_has_to_wait_does_not_hold_up_the_others(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    worker, run, _ = reading(app)
    group = worker.first_pages(PARTS)
    stuck = group[0].lease.job_id
    worker.committer.start()

    with another_app().transaction() as tx:
        tx.execute("UPDATE stepfast_job SET priority = 1 WHERE id = :id", {"id": stuck})
        worker.committer._commit_group(group)
        expected = {it.lease.job_id: 1 if it.lease.job_id == stuck else 2 for it in group}
        rows.eventually(lambda: written(app, run) == expected)
    worker.committer.stop(time.monotonic() + rows.PATIENCE)

    assert set(written(app, run).values()) == {2}


def break_commit(
    monkeypatch: pytest.MonkeyPatch, when: str, then: Callable[[], object] = lambda: None
) -> None:
    """Break the connection before or after the server gets the next COMMIT; either way no answer comes."""
    left = [1]

    def cut(moment: str, text: str) -> None:
        if (moment, text) == (when, "COMMIT") and left:
            left.clear()
            then()
            raise UnreachableError("the line went dead")

    monkeypatch.setattr(Connection, "watch", staticmethod(cut))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_whose_answer_was_lost_is_decided_for_all_of_the_group(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    worker, run, shop = reading(app)
    group = worker.first_pages(PARTS)
    break_commit(monkeypatch, when)

    with hearing() as told:
        worker.commit_group(group)

    assert named(told, "commit.unknown") == [{"jobs": PARTS}]
    assert words(told) == []
    assert set(written(app, run).values()) == {2}
    assert {it.job_id: it.fence for it in worker.stayed} == fences(app)
    monkeypatch.setattr(Connection, "watch", None)
    finish(app, worker, run, shop)


def test_a_group_that_may_not_stay_when_it_is_written_again_does_not(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fences of the lost attempt are not used."""
    worker, run, _ = reading(app)
    group = worker.first_pages(PARTS)

    def stop() -> None:
        worker.committer.stay_no_more()

    break_commit(monkeypatch, "before", stop)
    worker.commit_group(group)

    assert worker.stayed == []
    assert set(written(app, run).values()) == {2}
    assert rows.count(app, "stepfast_job", "state = 'ready' AND step = 2") == PARTS


def test_a_group_that_waits_when_the_worker_stops_is_written(app: Stepfast) -> None:
    worker, run, _ = reading(app)
    group: Sequence[Ended] = worker.first_pages(PARTS)
    for it in group:
        worker.committer.put(it)
    worker.committer.stay_no_more()

    worker.committer.start()
    worker.committer.stop(time.monotonic() + rows.PATIENCE)

    assert set(written(app, run).values()) == {2}
    assert rows.count(app, "stepfast_job", "state = 'ready' AND step = 2") == PARTS
    assert len(worker.ended) == 2 * PARTS


def test_a_run_is_complete_although_its_groups_are_parted_again_and_again(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real lanes, many partitions, and every seventh page the victim of a deadlock."""
    monkeypatch.setattr(committer, "APART", 0.0)
    shop = Shop.with_items(400)
    app.feed(Catalogue(shop, partitioner=Fixed(price_ranges(*range(50, 1_000, 50)))))
    prepare(app)
    run = begin(app)
    seen, ledger = [0], INSERT_PAGE.render(app.database.dialect)

    def cut(moment: str, text: str) -> None:
        if (moment, text) == ("before", ledger):
            seen[0] += 1
            if seen[0] % 7 == 0:
                raise ContentionError("deadlock detected")

    monkeypatch.setattr(Connection, "watch", staticmethod(cut))
    with app.worker(concurrency=20):
        rows.eventually(lambda: run_of(app, run.id).ended_at)
        rows.eventually(lambda: rows.count(app, "stepfast_job") == 0)

    check_complete(app, run.id, shop)


@pytest.mark.parametrize("count", [1, 3], ids=["alone", "together"])
def test_a_commit_whose_transaction_cannot_begin_waits_and_costs_no_attempt(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    worker, _, _ = reading(app)
    group = worker.run_handlers(worker.take_pages(count))
    begin_transaction, refused = app.database.transaction, [0]

    def away(*given: Any, **options: Any) -> Any:
        refused[0] += 1
        if refused[0] <= 2:
            raise UnreachableError("the server is starting up")
        return begin_transaction(*given, **options)

    monkeypatch.setattr(app.database, "transaction", away)
    with hearing() as told:
        worker.commit_group(group)

    assert named(told, "step.failed") == []
    assert [len(named(told, name)) for name in ("database.lost", "database.recovered")] == [1, 1]
    assert {it.job_id for it in worker.stayed} == {it.lease.job_id for it in group}
