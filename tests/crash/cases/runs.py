"""A whole run, filmed step by step; then each kind of step is played again and cut short at every statement.

A scene is a feed over its source, and what must be true in the end. Steps that execute the same statements are the same
kind of step: one of them is enough. Whatever a run does from its plan to its watermark is found this way, and nobody
lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.crash.kill_points import Point, recorded
from tests.support import rows
from tests.support.feeds import Catalogue, Shop, prepare, target
from tests.support.rows import Snapshot
from tests.support.run_facts import begin, check_complete, run_of
from tests.support.single_threaded_worker import MOST_STEPS, LoneWorker

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.run import Run

Picture = dict[str, Any]
PICTURED = {
    "partitions": "SELECT number, name, state, epoch, seq, seen, requests, next_offset FROM stepfast_partition ORDER BY run_id, number",
    "pages": "SELECT p.name, g.epoch, g.seq, g.decision FROM stepfast_page g JOIN stepfast_partition p ON p.id = g.partition_id"
    " ORDER BY p.run_id, p.number, g.epoch, g.seq",
    "seen": "SELECT count(*) AS n FROM stepfast_seen",
    "raw": "SELECT pending, strikes, count(*) AS n, count(gone_at) AS gone, count(applied_hash) AS applied FROM stepfast_raw"
    " GROUP BY pending, strikes ORDER BY pending, strikes",
    "target": "SELECT count(*) AS n, sum(price) AS total, count(deleted_at) AS gone FROM item",
    "jobs": "SELECT kind, state, step, count(*) AS n FROM stepfast_job GROUP BY kind, state, step ORDER BY kind, state, step",
    "archive": "SELECT kind, count(*) AS n FROM stepfast_archive GROUP BY kind ORDER BY kind",
    "debts": "SELECT state, tries, count(*) AS n FROM stepfast_debt GROUP BY state, tries ORDER BY state, tries",
    "quarantine": "SELECT item_id, stage, state, hits FROM stepfast_quarantine ORDER BY item_id, stage",
    "alerts": "SELECT count(*) AS n FROM stepfast_alert",
    "messages": "SELECT channel, destination, body, headers FROM stepfast_outbox ORDER BY seq",
    "audit": "SELECT what, touched FROM stepfast_audit ORDER BY id",
    "watermark": "SELECT watermark, version FROM stepfast_feed ORDER BY id",
}
Check = Callable[["Stepfast", "Run", Shop], None]


def completed(app: Stepfast, run: Run, shop: Shop) -> None:
    """The target is what the source is."""
    check_complete(app, run.id, shop)
    assert target(app) == shop.prices()
    found = run_of(app, run.id)
    assert found.applied == len(shop.prices())
    assert found.watermark_after == run.window_to


@dataclass(frozen=True)
class Scene:
    """`begin` starts the run, and may play the part of it that is not to be filmed.

    `about`: only steps of this kind, or with a statement that has one of these in it; the others are those of another
    scene. `recover`: how another worker goes on.
    """

    name: str
    feed: Callable[[Shop], Catalogue]
    shop: Callable[[], Shop] = lambda: Shop.with_items(24)
    begin: Callable[[Stepfast, Shop], Run] = lambda app, _: begin(app)
    check: Check = completed
    about: Sequence[str] = ("",)
    recover: Callable[[LoneWorker], object] = LoneWorker.finish

    def shows(self, kind: str, texts: Sequence[str]) -> bool:
        return any(it in text for it in self.about for text in (kind, *texts))


@dataclass(frozen=True)
class Shot:
    """One step: what was there before it, the points it passes, and what was committed by then."""

    before: Snapshot
    points: list[Point]
    states: list[Picture]
    kind: str


@dataclass
class Film:
    """A run on one database, played by a worker that is going to die, and looked at by an observer."""

    app: Stepfast
    observer: Stepfast
    scene: Scene
    shop: Shop
    run: Run
    victim: LoneWorker
    kind: str = ""

    @classmethod
    def of(cls, scene: Scene, app: Stepfast, observer: Stepfast) -> Film:
        shop = scene.shop()
        app.feed(scene.feed(shop))
        observer.feed(scene.feed(shop))
        prepare(app)
        return cls(app, observer, scene, shop, scene.begin(app, shop), LoneWorker(app, "victim"))

    def shots(self) -> Iterator[Shot]:
        """Play the run to its end; one shot of each kind."""
        known: set[tuple[str, ...]] = set()
        for _ in range(MOST_STEPS):
            before = Snapshot.taken(self.observer)
            states = [picture(self.observer)]
            self.kind = ""
            points = recorded(self.step, partial(self._keep, states))
            if not self.kind:
                return
            texts = tuple(it.text for it in points)
            if texts not in known and self.scene.shows(self.kind, texts):
                known.add(texts)
                yield Shot(before, points, states, self.kind)
        raise AssertionError("the run does not end")

    def step(self) -> None:
        """One step of the victim; `kind` is that of its job, or nothing if there was none."""
        lease = self.victim.step()
        self.kind = "" if lease is None else lease.kind

    def _keep(self, states: list[Picture]) -> None:
        states.append(picture(self.observer))

    def restore(self, shot: Shot) -> None:
        shot.before.restore(self.app)
        self.empty_handed()

    def empty_handed(self) -> None:
        """SQLite keeps its locks per process: a child must not inherit open files."""
        if self.app.database.dialect.name == "sqlite":
            self.app.database.close()
            self.observer.database.close()

    def recover(self) -> None:
        """Another worker takes over what the victim left, and brings the run to its end."""
        survivor = LoneWorker(self.app, "survivor")
        survivor.bury_the_others()
        self.scene.recover(survivor)
        self.check()

    def check(self) -> None:
        self.scene.check(self.observer, self.run, self.shop)


def picture(app: Stepfast) -> Picture:
    """What is committed, without ids and instants, which differ from one time to the next."""
    return {
        "runs": [
            {name: value for name, value in run.items() if _lasting(name, value)}
            for run in rows.query(app, "SELECT * FROM stepfast_run ORDER BY id")
        ],
        **{name: rows.query(app, text) for name, text in PICTURED.items()},
    }


def _lasting(name: str, value: object) -> bool:
    return not name.endswith(("_at", "_id", "id", "trace")) or value is None
