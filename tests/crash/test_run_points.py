"""A worker is killed before every statement, and after every COMMIT, of every kind of step that a run has.

Afterwards the rows are those of the last COMMIT that returned. Another worker brings the run to its end: the target is
what the source is, no partition is stuck, there is one consolidation, and every counter is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from stepfast import Stepfast
from stepfast.runs import breaker
from stepfast.runs import page as place
from stepfast.runs.broker import Broker
from stepfast.runs.feed import Page
from stepfast.runs.paging.paginators import Offset
from stepfast.runs.partitioning.dimension import Dimension
from stepfast.runs.partitioning.partitioners import Fixed, Heatmap
from tests.crash.cases import sweeps_and_replays as scenes_after_reading
from tests.crash.cases.runs import Film, Scene, Shot, picture
from tests.crash.daily_sample import SEED, Sample
from tests.crash.kill_points import deadly, die_at
from tests.support import rows
from tests.support.broker import staged
from tests.support.feeds import Catalogue, Shop, price_ranges, target
from tests.support.run_facts import (
    begin,
    check_complete,
    check_counters,
    consolidations,
    partitions,
    raw,
    run_of,
)
from tests.support.single_threaded_worker import LoneWorker

if TYPE_CHECKING:
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.run import Run
    from stepfast.runs.window import Window
    from tests.crash.kill_points import Point

HIDDEN = "d00001"
GROWN = 1_050
HALVES = Heatmap(
    Dimension("price", 0, 1_000, 1), target=9, least_rows=5, at_once=1
)  # planned in several steps


class Hiding(Catalogue):
    """Counts a row that it never shows."""

    paging = Offset(passes=1)
    partitioner = Fixed(price_ranges())

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        page = await super().fetch(part, window, cursor)
        return Page([it for it in page.items if it["id"] != HIDDEN])


class Endless(Catalogue):
    """Has more rows wherever it is asked."""

    partitioner = Fixed(price_ranges())

    async def fetch(self, _: Range, __: Window, cursor: Cursor, /) -> Page:
        return Page([{"id": f"n{cursor.offset + n:05}", "price": 1} for n in range(cursor.limit)])


class Dense(Catalogue):
    page_size = 600
    partitioner = Heatmap(Dimension("price", 0, 1_000, 1), target=700, least_rows=300, at_once=2)


class Past(Broker):
    """Whose head starts are over when they begin: a worker that nobody tells takes what is ready."""

    @property
    def head_start_micros(self) -> int:
        return -1


class Announced(Catalogue):
    transport = Past("memory://of-nobody")
    partitioner = Fixed(price_ranges(500))


def begin_and_grow(app: Stepfast, shop: Shop) -> Run:
    """The run is planned; then more rows come than anybody expected."""
    run = begin(app)
    lease = LoneWorker(app).until(kind="catalogue.page")
    rows.change(app, "UPDATE stepfast_job SET state = 'ready', owner = NULL WHERE id = :id", id=lease.job_id)
    for number in range(GROWN):
        shop.put(f"n{number:05}", number % 240)
    return run


def announced(app: Stepfast, run: Run, shop: Shop) -> None:
    """Every page and the consolidation were told of, each once: with the commit that made it ready, or not at all."""
    check_complete(app, run.id, shop)
    ids = [it["id"] for it in staged(app)]
    requests = sum(it["requests"] for it in partitions(app, run.id))
    assert len(set(ids)) == len(ids) == requests
    assert len(staged(app, "CONSOLIDATE")) == 1


def in_debt(app: Stepfast, run: Run, shop: Shop) -> None:
    found = run_of(app, run.id)
    assert (found.state, found.unverified, found.completed) == ("completed", 1, 1)
    assert [it["tries"] for it in rows.query(app, "SELECT tries FROM stepfast_debt")] == [0]
    assert set(target(app)) == set(raw(app)) == set(shop.prices()) - {HIDDEN}
    assert consolidations(app, run.id) == 1
    check_counters(app, run.id)


def failed(app: Stepfast, run: Run, _: Shop) -> None:
    found = run_of(app, run.id)
    assert (found.state, found.failed, found.completed) == ("failed", 1, 0)
    assert rows.count(app, "stepfast_alert") == 1
    assert (consolidations(app, run.id), target(app), rows.count(app, "stepfast_job")) == (0, {}, 0)
    check_counters(app, run.id)


def divided(app: Stepfast, run: Run, shop: Shop) -> None:
    assert [it["state"] for it in partitions(app, run.id)].count("split") == 1
    check_complete(app, run.id, shop)
    assert target(app) == shop.prices()


SCENES = {
    it.name: it
    for it in [
        Scene("plain", lambda shop: Catalogue(shop, partitioner=HALVES), shop=lambda: Shop.with_items(16)),
        Scene("debt", Hiding, shop=lambda: Shop.with_items(12), check=in_debt, about=("stepfast_debt",)),
        Scene("failure", Endless, check=failed, about=("stepfast_alert",)),
        Scene(
            "announced",
            Announced,
            shop=lambda: Shop.with_items(16),
            check=announced,
            about=("INSERT INTO stepfast_outbox",),
        ),
        Scene(
            "division",
            Dense,
            begin=begin_and_grow,
            check=divided,
            about=("UPDATE stepfast_partition\n       SET frontier",),
        ),
    ]
} | scenes_after_reading.SCENES
MOST = {"plain": 10}  # points of a scene that a server is tried at
FEW = 3  # ... and of all others
EVERY = {"division": 6, "plain": 40}  # ... and SQLite, where the run is long
SOME = 25  # ... and otherwise


@pytest.mark.timeout(400)  # with --chaos
@pytest.mark.parametrize("name", SCENES)
def test_a_worker_may_die_at_any_point_of_a_run(
    name: str, database_url: str, sample: Sample, monkeypatch: pytest.MonkeyPatch, *, chaos: bool
) -> None:
    """(T1, F1, F27, F41)"""
    # Every step looks for itself, as in a process that has just started: the points must not differ.
    monkeypatch.setattr(breaker, "BELIEVED", 0.0)
    monkeypatch.setattr(place, "MOST", 0)
    scenes_after_reading.in_small_pieces(monkeypatch)
    with closing(Stepfast(database_url)) as app, closing(Stepfast(database_url)) as observer:
        film = Film.of(SCENES[name], app, observer)
        shots = list(film.shots())
        film.check()
        deaths = [(shot, point) for shot in shots for point in deadly(shot.points)]
        assert shots
        for shot, point in chosen(name, deaths, sample, chaos=chaos):
            film.restore(shot)
            die_at(point, film.step, observer)
            where = f"{name}, {shot.kind}, {point} of {len(shot.points)} (STEPFAST_CRASH_SEED={SEED})"

            assert picture(observer) == shot.states[point.commits], where
            film.recover()


def chosen(
    name: str, deaths: list[tuple[Shot, Point]], sample: Sample, *, chaos: bool
) -> Sequence[tuple[Shot, Point]]:
    most = EVERY.get(name, SOME) if sample.database_kind == "sqlite" else MOST.get(name, FEW)
    if chaos:
        return deaths
    return Sample(f"{sample.database_kind}, a run", everything=False).of(name, deaths, most)
