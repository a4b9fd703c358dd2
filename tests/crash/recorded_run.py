"""A whole run, recorded step by step; then each kind of step is repeated and killed at every statement.

A case is a feed over its source, and what must be true in the end. Steps that execute the same statements are of the
same kind: one of them is enough. So every step from the plan to the watermark is found by running it; no list of steps
has to be kept.
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
from tests.support.single_threaded_worker import MOST_STEPS, SingleThreadedWorker

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.run import Run

Dump = dict[str, Any]
DUMPED = {
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
    """The run completed, and the target holds what the source holds."""
    check_complete(app, run.id, shop)
    assert target(app) == shop.prices()
    found = run_of(app, run.id)
    assert found.applied == len(shop.prices())
    assert found.watermark_after == run.window_to


@dataclass(frozen=True)
class RunCase:
    """`begin` starts the run, and may do the part of it that is not to be recorded.

    `about`: only steps of this kind, or with a statement that has one of these texts in it; the other steps belong to
    another case. `recover`: how another worker goes on.
    """

    name: str
    feed: Callable[[Shop], Catalogue]
    shop: Callable[[], Shop] = lambda: Shop.with_items(24)
    begin: Callable[[Stepfast, Shop], Run] = lambda app, _: begin(app)
    check: Check = completed
    about: Sequence[str] = ("",)
    recover: Callable[[SingleThreadedWorker], object] = SingleThreadedWorker.finish

    def covers(self, kind: str, texts: Sequence[str]) -> bool:
        return any(it in text for it in self.about for text in (kind, *texts))


@dataclass(frozen=True)
class RecordedStep:
    """One step: the rows before it, the points that it passes, and a dump for each COMMIT."""

    before: Snapshot
    points: list[Point]
    states: list[Dump]
    kind: str


@dataclass
class RecordedRun:
    """A run on one database: `victim` works on it and is going to die, `observer` looks at the rows."""

    app: Stepfast
    observer: Stepfast
    case: RunCase
    shop: Shop
    run: Run
    victim: SingleThreadedWorker
    kind: str = ""

    @classmethod
    def of(cls, case: RunCase, app: Stepfast, observer: Stepfast) -> RecordedRun:
        shop = case.shop()
        app.feed(case.feed(shop))
        observer.feed(case.feed(shop))
        prepare(app)
        return cls(app, observer, case, shop, case.begin(app, shop), SingleThreadedWorker(app, "victim"))

    def steps(self) -> Iterator[RecordedStep]:
        """Work the run to its end; one recorded step of each kind."""
        known: set[tuple[str, ...]] = set()
        for _ in range(MOST_STEPS):
            before = Snapshot.taken(self.observer)
            states = [dump(self.observer)]
            self.kind = ""
            points = recorded(self.step, partial(self._keep, states))
            if not self.kind:
                return
            texts = tuple(it.text for it in points)
            if texts not in known and self.case.covers(self.kind, texts):
                known.add(texts)
                yield RecordedStep(before, points, states, self.kind)
        raise AssertionError("the run does not end")

    def step(self) -> None:
        """Let the victim do one step; `kind` becomes the kind of its job, or empty if no job was ready."""
        lease = self.victim.step()
        self.kind = "" if lease is None else lease.kind

    def _keep(self, states: list[Dump]) -> None:
        states.append(dump(self.observer))

    def restore(self, step: RecordedStep) -> None:
        step.before.restore(self.app)
        self.close_sqlite_files()

    def close_sqlite_files(self) -> None:
        """SQLite keeps its locks per process: a child must not inherit open files."""
        if self.app.database.dialect.name == "sqlite":
            self.app.database.close()
            self.observer.database.close()

    def recover(self) -> None:
        """Let another worker rescue the victim's jobs and bring the run to its end."""
        worker = SingleThreadedWorker(self.app, "recovering")
        worker.declare_others_dead()
        self.case.recover(worker)
        self.check()

    def check(self) -> None:
        self.case.check(self.observer, self.run, self.shop)


def dump(app: Stepfast) -> Dump:
    """What is committed, without ids and instants, which differ from one time to the next."""
    return {
        "runs": [
            {name: value for name, value in run.items() if _lasting(name, value)}
            for run in rows.query(app, "SELECT * FROM stepfast_run ORDER BY id")
        ],
        **{name: rows.query(app, text) for name, text in DUMPED.items()},
    }


def _lasting(name: str, value: object) -> bool:
    return not name.endswith(("_at", "_id", "id", "trace")) or value is None
