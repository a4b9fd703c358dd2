"""A whole run, filmed step by step; then each kind of step is played again and cut short at every statement.

A scene is a feed over its source, and what must be true in the end. Steps that execute the same statements are the same
kind of step: one of them is enough. Whatever a run does from its plan to its watermark is found this way, and nobody
lists it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tests import rows
from tests.crash.points import Point, recorded
from tests.feeds import Catalogue, Shop, prepare, target
from tests.lone_worker import MOST_STEPS, LoneWorker
from tests.run_facts import begin, check_complete, pages, partitions, run_of
from tests.snapshots import Snapshot

if TYPE_CHECKING:
    from holdfast import Holdfast
    from holdfast.runs.run import Run

Picture = dict[str, Any]
Check = Callable[["Holdfast", "Run", Shop], None]


def completed(app: Holdfast, run: Run, shop: Shop) -> None:
    """The target is what the source is."""
    check_complete(app, run.id, shop)
    assert target(app) == shop.prices()
    found = run_of(app, run.id)
    assert found.applied == len(shop.prices())
    assert found.watermark_after == run.window_to


@dataclass(frozen=True)
class Scene:
    """`begin` starts the run, and may play the part of it that is not to be filmed.

    `about`: only steps with a statement that has this in it; the others are those of another scene.
    """

    name: str
    feed: Callable[[Shop], Catalogue]
    shop: Callable[[], Shop] = lambda: Shop.with_items(24)
    begin: Callable[[Holdfast, Shop], Run] = lambda app, _: begin(app)
    check: Check = completed
    about: str = ""


@dataclass(frozen=True)
class Shot:
    """One step: what was there before it, the points it passes, and what was committed by then."""

    before: Snapshot
    points: list[Point]
    states: list[Picture]
    kind: str

    @property
    def deadly(self) -> list[Point]:
        """Between two statements only one death is to be died; after a COMMIT it is another one than before it."""
        last = self.points[-1].number
        return [it for it in self.points if it.phase == "before" or it.text == "COMMIT" or it.number == last]


@dataclass
class Film:
    """A run on one database, played by a worker that is going to die, and looked at by an observer."""

    app: Holdfast
    observer: Holdfast
    scene: Scene
    shop: Shop
    run: Run
    victim: LoneWorker
    kind: str = ""

    @classmethod
    def of(cls, scene: Scene, app: Holdfast, observer: Holdfast) -> Film:
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
            if texts not in known and any(self.scene.about in it for it in texts):
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
        survivor.finish()
        self.check()

    def check(self) -> None:
        self.scene.check(self.observer, self.run, self.shop)


def picture(app: Holdfast) -> Picture:
    """What is committed, without ids and instants, which differ from one time to the next."""
    (run,) = rows.query(app, "SELECT * FROM holdfast_run")
    return {
        "run": {name: value for name, value in run.items() if _lasting(name, value)},
        "partitions": [
            (
                it["number"],
                it["name"],
                it["state"],
                it["epoch"],
                it["seq"],
                it["seen"],
                it["requests"],
                it["next_offset"],
            )
            for it in partitions(app, run["id"])
        ],
        "pages": [(it["name"], it["epoch"], it["seq"], it["decision"]) for it in pages(app, run["id"])],
        "seen": rows.count(app, "holdfast_seen"),
        "raw": Counter(it["pending"] for it in rows.query(app, "SELECT pending FROM holdfast_raw")),
        "target": rows.count(app, "item"),
        "jobs": Counter(
            (it["kind"], it["state"], it["step"])
            for it in rows.query(app, "SELECT kind, state, step FROM holdfast_job")
        ),
        "archive": Counter(it["kind"] for it in rows.query(app, "SELECT kind FROM holdfast_archive")),
        "debts": Counter(it["state"] for it in rows.query(app, "SELECT state FROM holdfast_debt")),
        "quarantine": rows.count(app, "holdfast_quarantine"),
        "alerts": rows.count(app, "holdfast_alert"),
        "watermark": rows.query(app, "SELECT watermark, version FROM holdfast_feed"),
    }


def _lasting(name: str, value: object) -> bool:
    return not name.endswith(("_at", "_id", "id", "trace")) or value is None
