"""A small catalogue that changes, a source that fails, and processes that read it and die: all on one clock.

The clock stands still unless it is told to move, the source's and the database's together. Processes do what they are
told (see `world_process`). So the same story has the same end whenever it is told.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self
from unittest.mock import patch

from stepfast import Dimension, Heatmap, Stepfast, Sweep
from stepfast.clock import moment
from stepfast.config import WorkerSettings
from stepfast.database.database import persist
from stepfast.database.dialects import Shift
from stepfast.jobs.rescue import declare_dead, rescue
from stepfast.runs import breaker
from stepfast.runs.debts import open_debts
from stepfast.testing import crash_at
from stepfast.testing.draining import Scope, next_due
from stepfast.worker.maintenance import promote
from stepfast.worker.run_watchdog import RunWatchdog
from stepfast_diamonds import pace as adaptive
from stepfast_diamonds import token
from stepfast_diamonds.feed import LABGROWN, NATURAL
from stepfast_diamonds.money import stored
from stepfast_diamonds.query import BASE, LARGEST_CARATS, LARGEST_INT, SMALLEST_CARATS, diamond_query
from stepfast_diamonds.rule_sets import activate, import_rules
from stepfast_diamonds.schema import prepare
from stepfast_diamonds.simulator import Simulator, catalogue
from tests.diamonds.test_rules import flat
from tests.diamonds.world_process import Process
from tests.support import rows

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.admin.run_reports import RunReport
    from stepfast_diamonds.simulator import Truth

SECOND: Final = 1_000_000
FAR: Final = 10 * 365 * 86_400 * SECOND
MOST_STEPS: Final = 5_000  # only a run that never ends takes so many
UPLOAD: Final = 5  # stones that share their place in the source's order
SETTLE: Final = 5  # seconds; searches lag two behind
FEEDS: Final = (NATURAL, LABGROWN)
EVERYWHERE: Final = Scope((), None, with_scheduled=True, concurrency=1, timeout=60)

# What a stone is sold for, written down a second time: up to this price, so many points more than the base margin.
TIERS: Final = (
    (500, 6), (1_000, 6), (3_000, 3), (6_000, 0), (10_000, -4), (20_000, -9), (10**9, -14),
)  # fmt: skip
UNCERTIFIED: Final = ("NONE", "STOCKID", None)  # their number is the supplier's own


def small_heatmap(price: str = "dollar_per_carat", target: int = 45) -> Heatmap:
    """Like the real one, with a few partitions of a few pages."""
    return Heatmap(
        Dimension(price, 0, LARGEST_INT, dense_until=4_000, dense_step=1_000),
        Dimension("carats", SMALLEST_CARATS, LARGEST_CARATS, 0.01),
        target=target,
        fewest=2,
        least_rows=15,
        budget=500,
    )


@dataclass
class World:
    """`with World(url) as world:`."""

    url: str
    profile: str = "90"
    seed: int = 7
    faults: str = "none,index_lag_s=2"
    settings: dict[str, Any] = field(default_factory=lambda: {"page_size": 20, "timeout": "1s"})
    feed: dict[str, Any] = field(default_factory=dict)  # settings of both feeds
    processes_at_once: int = 2

    def __post_init__(self) -> None:
        self.at = (time.time_ns() // 1_000_000_000) * SECOND + 300_000
        self._names = iter(range(10**6))
        self._stack = ExitStack()
        self.modifiers: dict[int, int | None] = {1: None}  # of rule sets; None: the default tiers
        self.rules = 1  # which of them counts
        self.activations: list[tuple[int, int]] = [(0, 1)]  # since when, and which
        self.high: dict[str, int] = {}  # watermarks, as far as they have been seen
        self.checked: set[str] = set()  # runs

    @cached_property
    def sim(self) -> Simulator:
        with patch.object(catalogue, "UPLOAD", UPLOAD):
            return Simulator(self.profile, seed=self.seed, faults=self.faults, speed=0, start=moment(self.at))

    @property
    def feeds(self) -> dict[str, Any]:
        given = {"settle": f"{SETTLE}s", "lookback": "0s", "sweep": Sweep(fuse=1.0), **self.feed}
        given.setdefault("ahead_at_most", "1h")  # clocks are set, again and again
        return {name: {"partitioner": small_heatmap(), **given} for name in ("natural", "labgrown")}

    @property
    def shift(self) -> Shift:
        return Shift(frozen_at=self.at)

    def __enter__(self) -> Self:
        # What a process believes for a quarter of a second would be another thing each time.
        self._stack.enter_context(patch.object(breaker, "BELIEVED", 0.0))
        self._stack.enter_context(patch.object(adaptive, "LOOK_EVERY", 0.0))
        self._stack.enter_context(patch.object(adaptive, "LONGEST_WAIT", 0))  # nor does anybody really wait
        self._stack.enter_context(patch.object(token, "rest_after", lambda _: timedelta(0)))
        self._stack.enter_context(self.sim)
        with closing(Stepfast(self.url)) as app:
            prepare(app)
        self.processes = [self._born() for _ in range(self.processes_at_once)]
        self._stack.callback(self._end)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def app(self) -> Stepfast:
        return self.processes[0].app

    # Time

    def let_pass(self, seconds: float) -> None:
        """Let time pass for all processes."""
        self.at += int(seconds * SECOND)
        for it in self.processes:
            it.app.database.shift_clock(self.shift)
        self.sim.advance(seconds)

    # Work

    def work(self, steps: int) -> None:
        """Do so many steps in the process that is next; scheduled jobs run when they are due."""
        for number in range(steps):
            if not self.processes[number % len(self.processes)].step() and not self._wake():
                return

    def settle(self) -> None:
        """Until nothing is left to do, however long that takes on the clock."""
        for number in range(MOST_STEPS):
            if not self.processes[number % len(self.processes)].step() and not self._wake():
                return
        remaining = rows.query(self.app, "SELECT kind, state, failures, last_error FROM stepfast_job")
        raise AssertionError(f"no end in {MOST_STEPS} steps: {remaining}")

    def start(self, feed: str = NATURAL, kind: Any = None, **more: Any) -> str:
        return self.app.runs.start(feed, kind, **more).id

    def sync(self, feed: str = NATURAL, kind: Any = None) -> RunReport:
        """A whole run."""
        run = self.start(feed, kind)
        self.settle()
        return self.report(run)

    def report(self, run: str) -> RunReport:
        return self.app.runs.show(run).run

    def newest(self, feed: str) -> RunReport | None:
        found = self.app.runs.list(feed=feed, limit=1)
        return found[0] if found else None

    def _wake(self) -> bool:
        """What workers do every few seconds; and if nothing is due, time passes until something is."""
        app = self.app
        if (
            persist(app.database, promote)
            or RunWatchdog(app.database, app.feeds, WorkerSettings.runs_kept).look()
        ):
            return True
        with app.reading() as tx:
            due = next_due(tx, EVERYWHERE, app.kinds.names())
            live = tx.query("SELECT count(*) AS n FROM stepfast_job WHERE state IN ('ready', 'suspect')")
        if live[0]["n"]:
            return True
        if due is None:
            return False
        self.let_pass(max(0.001, (due - self.at) / SECOND))
        return True

    # Death

    def kill(self, process: Process, point: str, nth: int) -> bool:
        """Let it die in its next step, at the nth statement or COMMIT; it dies anyway. Another one takes its place."""
        with crash_at(process.app, point, nth=nth, required=False) as crash:
            process.step()
        self.bury(process)
        return crash.happened

    def bury(self, process: Process) -> None:
        """Let the lease of a process run out, so that others rescue its jobs. It may still hold an answer."""
        app = next(it.app for it in self.processes if it is not process)
        rows.change(
            app,
            "UPDATE stepfast_worker SET alive_until = CASE WHEN incarnation = :dead THEN 1 ELSE :far END"
            " WHERE state = 'alive'",
            dead=process.hands.incarnation,
            far=self.at + FAR,
        )
        persist(app.database, lambda tx: declare_dead(tx, 0, trust_clock=True))
        while persist(app.database, lambda tx: rescue(tx, WorkerSettings.crash_limit)).jobs:
            pass
        self.processes[self.processes.index(process)] = self._born()
        self._stack.callback(process.close)

    def _born(self) -> Process:
        return Process(self, f"process-{next(self._names)}")

    def _end(self) -> None:
        for it in self.processes:
            it.close()

    # The source

    @contextmanager
    def trouble(self, **knobs: Any) -> Iterator[None]:
        """While the block lasts the source behaves like this."""
        before = {name: getattr(self.sim.knobs, name) for name in knobs}
        self.sim.turn(**knobs)
        try:
            yield
        finally:
            self.sim.turn(**before)

    def living(self, feed: str = NATURAL) -> list[str]:
        """Ids of the stones that the feed should find."""
        return sorted(self.truth(feed))

    def truth(self, feed: str = NATURAL) -> dict[str, Truth]:
        return self.sim.oracle(query={**BASE, "labgrown": feed == LABGROWN})

    def price(self, stones: Sequence[str], dollars_per_carat: float) -> None:
        """Give them this price: they may move to another partition."""
        service = self.sim._service
        with service.lock:
            world = service.world
            now = world.look()
            for it in stones:
                row = world.catalogue.row_of(it)
                stone = None if row is None else world.history.truth(row)
                assert stone is not None
                cents = max(100, round(dollars_per_carat * stone.carats))
                world.history.record("price", stone._replace(price=cents, updated_at=now))
            world.look()

    # Rules

    def new_rules(self, modifier: int, *, reprice: bool = True) -> int:
        """Other prices count from now on."""

        def act(tx: Any) -> int:
            version = import_rules(tx, flat(modifier), "tester").version
            activate(tx, version)
            if reprice:
                self.processes[0].repricing.ask(tx)
            return version

        version = persist(self.app.database, act)
        self.modifiers[version] = modifier
        self.rules = version
        self.activations.append((self.at, version))
        return version

    def reprice(self) -> None:
        """Have all stones priced by the rules that count."""
        self.processes[0].repricing.ask()

    def priced(self, truth: Truth, version: int) -> Decimal:
        """What the stone is sold for, by hand."""
        price = Decimal(truth.price) / 100
        base = 40 if truth.color == "FANCY" or not truth.labgrown else 79
        modifier = self.modifiers[version]
        if modifier is None:
            modifier = next(points for below, points in TIERS if price < below)
        return (price * (100 + base + modifier) / 100 + Decimal("0.00001")).quantize(Decimal("0.01"))

    def check_prices(self) -> None:
        """Each stone was priced by rules that counted when it was written, or when the run began that wrote it.

        A run that has published and began under older rules has had its stones priced anew: none of them is left.
        """
        jobs = rows.query(self.app, "SELECT 1 FROM stepfast_job WHERE kind LIKE 'diamonds.re%'")
        unpublished = self._unpublished()
        for row in rows.query(self.app, "SELECT * FROM diamonds"):
            stone, version, at = row["supplier_stone_id"], row["ruleset_version"], row["updated_at"]
            since = [began for began, it in self.activations if it == version]
            assert since, f"{stone} is priced by rule set {version}, which never counted"
            assert at >= since[0], f"{stone} is priced by rule set {version} before that counted"
            if not jobs and version not in unpublished[row["feed"]]:
                assert self._counted(version, at), f"{stone} was written by rules that counted no more"

    def _counted(self, version: int, at: int) -> bool:
        """Whether these rules counted at that time; at the instant of a change both do."""
        ends = [*(began for began, _ in self.activations[1:]), self.at]
        return any(
            it == version and began <= at <= end
            for (began, it), end in zip(self.activations, ends, strict=True)
        )

    def _unpublished(self) -> dict[str, set[int]]:
        """Rules of runs that may have written stones, and have not completed."""
        pins = rows.query(
            self.app,
            "SELECT p.feed, p.version FROM pricing_pins p JOIN stepfast_run r ON r.id = p.run_id"
            " WHERE r.state NOT IN ('completed', 'published_partial')",
        )
        return {feed: {it["version"] for it in pins if it["feed"] == feed} for feed in FEEDS}

    # What is in the table

    def table(self, feed: str = NATURAL) -> dict[str, rows.Row]:
        found = rows.query(self.app, "SELECT * FROM diamonds WHERE feed = :feed", feed=feed)
        assert len(found) == len({it["supplier_stone_id"] for it in found}), "a stone is there twice"
        return {it["supplier_stone_id"]: it for it in found}

    def shown(self, feed: str = NATURAL) -> dict[str, rows.Row]:
        """The stones of the target, without those that are gone."""
        return {it: row for it, row in self.table(feed).items() if row["deleted_at"] is None}

    def difference(self, stone: str, row: rows.Row | None, truth: Truth) -> str | None:
        """What is wrong with a row, in words."""
        if row is None:
            return f"{stone} is missing: {truth}"
        if row["deleted_at"] is not None:
            return f"{stone} is marked as deleted and exists: {truth}"
        if row["stale_since"] is not None:
            return f"{stone} is marked as stale"
        told = {
            "feed_price": stored(row["feed_price"]),
            "carats": stored(row["carats"]),
            "color": row["color"],
            "lab_grown": bool(row["lab_grown"]),
            "price_model_price": stored(row["price_model_price"]),
        }
        true = {
            "feed_price": Decimal(truth.price) / 100,
            "carats": Decimal(str(truth.carats)),
            "color": truth.color,
            "lab_grown": truth.labgrown,
            "price_model_price": self.priced(truth, row["ruleset_version"]),
        }
        if row["clarity"] is not None:  # it may have failed to be told
            told["clarity"], true["clarity"] = row["clarity"], truth.clarity
        if row["certificate_lab"] not in UNCERTIFIED:
            told["number"], true["number"] = row["certificate_number"], truth.certificate
        wrong = [f"{it} is {told[it]!r}, not {true[it]!r}" for it in true if told[it] != true[it]]
        return f"{stone}: {', '.join(wrong)}" if wrong else None

    # What must be true

    def check(self) -> None:
        """At any time: watermarks never go back, and what a run that moved one has covered is in the table."""
        self.check_prices()
        for feed in FEEDS:
            self._check_watermark(feed)
            self.check_gone(feed)
            for run in reversed(self.app.runs.list(feed=feed, limit=20)):
                if run.state == "completed" and run.id not in self.checked:
                    self.checked.add(run.id)
                    if run.kind in {"full", "incremental", "verify"} and run.max_rows is None:
                        self.check_covered(feed, micros_of(run.window_to), f"{run.kind} run {run.id}")

    def check_gone(self, feed: str) -> None:
        """No stone is marked as gone that was there all the time, unless it left and came back after the last look."""
        truth = self.truth(feed)
        base = {**BASE, "labgrown": feed == LABGROWN}
        gone = rows.query(
            self.app, "SELECT item_id FROM stepfast_raw WHERE feed = :feed AND gone_at IS NOT NULL", feed=feed
        )
        for stone in (it["item_id"] for it in gone if it["item_id"] in truth):
            changes = [it.at for it in self.sim.changes() if it.id == stone]
            left = any(stone not in self.sim.oracle(at, base) for at in changes)
            assert left, f"{stone} of {feed} is gone, and was there all the time"

    def watermark(self, feed: str = NATURAL) -> int | None:
        found = rows.query(self.app, "SELECT watermark FROM stepfast_feed WHERE id = :feed", feed=feed)
        return None if not found or found[0]["watermark"] is None else int(found[0]["watermark"])

    def _check_watermark(self, feed: str) -> None:
        now = self.watermark(feed)
        before = self.high.get(feed)
        assert before is None or (now is not None and now >= before), f"the watermark of {feed} went back"
        if now is not None:
            ends = [
                micros_of(it.window_to)
                for it in self.app.runs.list(feed=feed, limit=50)
                if it.watermark_after is not None
            ]
            assert now == before or now in ends, f"the watermark of {feed} is the end of no completed window"
            self.high[feed] = now

    def check_covered(self, feed: str, until: int, why: str = "the watermark") -> None:
        """Every stone that has not changed since then is in the table as it is, unless a debt or the quarantine names it."""
        table, excused = self.table(feed), self.owed(feed) | self.put_aside(feed)
        wrong = [
            problem
            for stone, truth in self.truth(feed).items()
            if truth.updated_at <= until and stone not in excused
            if (problem := self.difference(stone, table.get(stone), truth)) is not None
        ]
        assert not wrong, f"{why} covers {feed} until {until}, and {len(wrong)} are wrong: {wrong[:5]}"
        lab_grown = {it for it in table if bool(table[it]["lab_grown"]) != (feed == LABGROWN)}
        assert not lab_grown, f"stones of the other feed are in {feed}"

    def check_equal(self, feed: str = NATURAL) -> None:
        """The table is what is there, and nothing else."""
        truth, shown = self.truth(feed), self.shown(feed)
        surplus = sorted(set(shown) - set(truth))
        wrong = [
            problem
            for stone, true in truth.items()
            if (problem := self.difference(stone, shown.get(stone), true)) is not None
        ]
        assert (wrong[:5], surplus[:5]) == ([], []), (
            f"{len(wrong)} wrong and {len(surplus)} too many in {feed}"
        )

    def owed(self, feed: str) -> set[str]:
        """Stones in ranges that a later run must read."""
        with self.app.reading() as tx:
            debts = open_debts(tx, feed)
        base = {**BASE, "labgrown": feed == LABGROWN}
        return {it for debt in debts for it in self.sim.oracle(query=diamond_query(base, debt.range, None))}

    def put_aside(self, feed: str) -> set[str]:
        found = rows.query(
            self.app,
            "SELECT item_id FROM stepfast_quarantine WHERE feed = :feed AND state = 'open'",
            feed=feed,
        )
        return {it["item_id"] for it in found}


def micros_of(at: datetime) -> int:
    return round(at.timestamp() * SECOND)
