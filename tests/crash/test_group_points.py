"""A worker is killed before every statement of the transaction that several pages share, and after its COMMIT.

Afterwards all of these pages are there, or none. Another worker brings the run to its end, and every counter is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from stepfast import Stepfast
from tests.contract.runs.test_skipped_lookup import ByToken
from tests.crash.daily_sample import SEED
from tests.crash.kill_points import Point, die_at, kill_points, recorded
from tests.crash.recorded_run import Dump, dump
from tests.support.feeds import Catalogue, Shop, prepare, target
from tests.support.rows import Snapshot
from tests.support.run_facts import begin, check_complete
from tests.support.single_threaded_worker import GroupCommittingWorker, SingleThreadedWorker

if TYPE_CHECKING:
    from stepfast.runs.run import Run
    from stepfast.worker.running import Ended
    from tests.crash.daily_sample import Sample

PARTS = 4
FEW = 3  # points that a server is tried at


@dataclass
class Group:
    """The first pages of four partitions, read and not yet written."""

    app: Stepfast
    observer: Stepfast
    shop: Shop
    run: Run
    worker: GroupCommittingWorker
    pages: list[Ended]
    before: Snapshot

    def commit(self) -> None:
        for it in self.pages:
            self.worker.say(it.lease, "a page")
        self.worker.commit_group(self.pages)

    def restore(self) -> None:
        self.before.restore(self.app)
        if self.app.database.dialect.name == "sqlite":  # a child must not inherit open files
            self.app.database.close()
            self.observer.database.close()

    def recover(self) -> None:
        worker = SingleThreadedWorker(self.app, "recovering")
        worker.declare_others_dead()
        worker.finish()
        check_complete(self.observer, self.run.id, self.shop)
        assert target(self.observer) == self.shop.prices()


@pytest.fixture(params=[Catalogue, ByToken], ids=["looked up", "supposed new"])
def group(request: pytest.FixtureRequest, database_url: str) -> Iterator[Group]:
    with closing(Stepfast(database_url)) as app, closing(Stepfast(database_url)) as observer:
        shop = Shop.with_items(100)
        for it in (app, observer):
            it.feed(request.param(shop))
        prepare(app)
        run = begin(app)
        worker = GroupCommittingWorker(app, "victim")
        pages = worker.first_pages(PARTS)
        yield Group(app, observer, shop, run, worker, pages, Snapshot.taken(observer))


def test_a_worker_may_die_at_any_point_of_the_transaction_that_pages_share(
    group: Group, sample: Sample
) -> None:
    states: list[Dump] = [dump(group.observer)]
    points = recorded(group.commit, lambda: states.append(dump(group.observer)))
    assert len(states) == 2  # one COMMIT for all of them
    assert len(group.worker.stayed) == PARTS

    for point in chosen(points, sample):
        group.restore()
        die_at(point, group.commit, group.observer)
        where = f"{point} of {len(points)} (STEPFAST_CRASH_SEED={SEED})"

        assert dump(group.observer) == states[point.commits], where
        group.recover()


@pytest.mark.parametrize("group", [Catalogue], ids=["looked up"], indirect=True)
def test_a_worker_may_die_while_a_group_is_written_apart(group: Group, sample: Sample) -> None:
    """One of them was asked to stop: the transaction is rolled back, and each is written alone."""
    group.app.operator.cancel(group.pages[1].lease.job_id)
    group.before = Snapshot.taken(group.observer)
    states: list[Dump] = [dump(group.observer)]
    points = recorded(group.commit, lambda: states.append(dump(group.observer)))
    assert len(states) == 1 + PARTS

    for point in chosen(points, sample):
        group.restore()
        die_at(point, group.commit, group.observer)

        assert dump(group.observer) == states[point.commits], f"{point} of {len(points)}"


def chosen(points: list[Point], sample: Sample) -> list[Point]:
    return list(sample.of("a group", kill_points(points), FEW))
