"""The property that matters: whatever happens, once a verified run has completed, the table is what the source is.

Hypothesis writes the story: stones come, change, move and go, also between two pages; the source throttles, fails and
talks nonsense; processes die at any statement, or wake up too late; operators cancel, resume, retry and force. After
every chapter this must be true: the watermark never went back and never passed what is not in the table; every stone
that has not changed since the end of a completed run's window is in the table, with its values and its price; none is
there twice, and none is priced by rules that did not count when it was written. In the end, when the source has calmed down, the table equals the oracle, and nobody is gone who exists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stepfast.admin.audit import Actor
from stepfast.admin.sweeps import approve_sweep, decline_sweep
from stepfast.database.database import persist
from stepfast.errors import StateError, StepfastError
from stepfast_diamonds.feed import LABGROWN, NATURAL
from tests.conftest import DATABASES
from tests.diamonds.worlds import World
from tests.support import rows

if TYPE_CHECKING:
    from tests.diamonds.world_process import Process

NewDatabase = Callable[[], AbstractContextManager[str]]

# How the source is on an ordinary day.
WEATHER = {
    "fair": "none,index_lag_s=2",
    "usual": "none,index_lag_s=2,short_page_prob=0.1,unstable_ties=true,dirty=true,clock_skew_s=90",
    "windy": "none,index_lag_s=3,short_page_prob=0.2,overrun_pages=2,duplicate_prob=0.1,compare=rounded,clock_skew_s=-90",
    "short tokens": "none,index_lag_s=2,token_lifetime_s=330,expired_answer=401,expires_unit=s",
    "busy": "none,index_lag_s=2,requests_per_s=0.9,burst=12,limit_answer=429",
    "guarded": "none,index_lag_s=2,requests_per_s=0.9,burst=20,limit_answer=waf,cool_down_s=60",
}
# What may befall it for a few requests.
TROUBLES: dict[str, dict[str, Any]] = {
    "away": {"gateway_prob": 1},
    "often away": {"gateway_prob": 0.5},
    "a page of HTML": {"html_prob": 1},
    "cut off": {"truncated_prob": 1},
    "reset": {"reset_prob": 1},
    "half a page": {"partial_prob": 1},
    "holes": {"null_item_prob": 0.1},
    "values that fail": {"enum_error_prob": 0.1},
    "numbers as texts": {"text_number_prob": 0.5},
    "no certificate": {"no_certificate_prob": 0.05},
    "an unknown word": {"unknown_enum_prob": 0.0},
    "counts too many": {"count_skew": 0.1},
    "counts too few": {"count_skew": -0.1},
    "counts of before": {"count_lag_s": 60},
    "no order": {"unstable_ties": True, "short_page_prob": 0.3},
    "empty pages": {"short_page_mode": "postfilter", "empty_page_prob": 0.3, "short_page_prob": 0.3},
    "past the end": {"overrun_pages": 3},
    "everything twice": {"duplicate_prob": 1},
    "too many": {"requests_per_s": 0.05, "burst": 1, "limit_answer": "429"},
    "the firewall": {"requests_per_s": 0.05, "burst": 1, "limit_answer": "waf", "cool_down_s": 60},
}
HANGS: dict[str, Any] = {"hang_prob": 1, "hang_s": 2}  # the client gives up after a second
FEW = st.integers(1, 4)


class CatalogueLife(RuleBasedStateMachine):
    """One catalogue, two feeds, two processes."""

    new_database: NewDatabase  # the test says which

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._url = self._stack.enter_context(self.new_database())

    @initialize(
        weather=st.sampled_from(sorted(WEATHER)),
        profile=st.sampled_from(["90", "80+40-labgrown"]),
        seed=st.integers(1, 9),
    )
    def begin(self, weather: str, profile: str, seed: int) -> None:
        world = World(self._url, profile=profile, seed=seed, faults=WEATHER[weather])
        self.world = self._stack.enter_context(world)
        self.feeds = [NATURAL, LABGROWN] if "labgrown" in profile else [NATURAL]

    # The catalogue

    @rule(
        kind=st.sampled_from(
            ["insert", "price", "availability", "hold", "delete", "relist", "recertificate"]
        ),
        count=FEW,
    )
    def change(self, kind: str, count: int) -> None:
        self.world.sim.mutate(kind, count=count)

    @rule(which=st.integers(0, 1_000), count=FEW, price=st.sampled_from([150, 999.5, 1_000, 2_500, 9_000]))
    def move(self, which: int, count: int, price: float) -> None:
        """To another partition, perhaps one that has been read."""
        living = self.world.living()
        first = which % max(1, len(living))
        self.world.price(living[first : first + count], price)

    @rule(seconds=st.sampled_from([1, 7, 60, 400]))
    def wait(self, seconds: int) -> None:
        self.world.let_pass(seconds)

    # Runs

    @rule(
        feed=st.integers(0, 1),
        kind=st.sampled_from(["incremental", "incremental", "full", "full", "verify", "backfill"]),
    )
    def start(self, feed: int, kind: str) -> None:
        window = {"to": self.world.sim.now - timedelta(seconds=30)} if kind == "backfill" else {}
        with suppress(StepfastError):  # one is active, or the source does not answer
            self.world.start(self.feeds[feed % len(self.feeds)], kind, **window)

    @rule(
        kind=st.sampled_from(["incremental", "full"]),
        chapters=st.lists(
            st.tuples(st.integers(1, 12), st.sampled_from(["move", "insert", "hold"]), st.integers(0, 1_000)),
            min_size=1,
            max_size=4,
        ),
    )
    def read_while_life_goes_on(self, kind: str, chapters: list[tuple[int, str, int]]) -> None:
        """A whole run, and what happens between its pages."""
        self.start(0, kind)
        for steps, what, which in chapters:
            self.world.work(steps)
            if what == "move":
                self.move(which, 4, [150, 999.5, 2_500, 9_000][which % 4])
            else:
                self.world.sim.mutate(what, count=2)
        self.world.settle()

    @rule(steps=st.integers(1, 30))
    def work(self, steps: int) -> None:
        self.world.work(steps)

    @rule()
    def finish(self) -> None:
        self.world.settle()

    @rule(modifier=st.integers(-5, 5), reprice=st.booleans())
    def other_prices(self, modifier: int, *, reprice: bool) -> None:
        """For what is written from now on, or for everything."""
        with suppress(StateError):  # these count already
            self.world.new_rules(modifier, reprice=reprice)

    # Troubles

    @rule(name=st.sampled_from(sorted(TROUBLES)), steps=st.integers(1, 8))
    def trouble(self, name: str, steps: int) -> None:
        with self.world.trouble(**TROUBLES[name]):
            self.world.work(steps)

    @rule()
    def forget_tokens(self) -> None:
        self.world.sim.revoke_tokens()

    @rule(seconds=st.sampled_from([-45, -1, 1, 45]))
    def set_a_clock(self, seconds: int) -> None:
        """The source's, or ours if it is the source's that goes back."""
        if seconds > 0:
            self.world.sim.advance(seconds)
        else:
            self.world.sim.advance(0)
            self.world.at -= seconds * 1_000_000
            self.world.let_pass(0)

    # Deaths

    @rule(which=st.integers(0, 1), phase=st.sampled_from(["before", "after"]), nth=st.integers(1, 25))
    def die_in_a_step(self, which: int, phase: str, nth: int) -> None:
        self.world.kill(self._process(which), f"{phase} t", nth)  # every statement has one

    @rule(which=st.integers(0, 1), nth=st.integers(1, 2), phase=st.sampled_from(["before", "after"]))
    def die_at_a_commit(self, which: int, nth: int, phase: str) -> None:
        self.world.kill(self._process(which), f"{phase} commit", nth)

    @rule(which=st.integers(0, 1))
    def read_without_writing(self, which: int) -> None:
        self._process(which).read()

    @rule(which=st.integers(0, 1))
    def write_late(self, which: int) -> None:
        self._process(which).write()

    @rule(which=st.integers(0, 1), steps=st.integers(1, 10))
    def wake_up_after_it_was_replaced(self, which: int, steps: int) -> None:
        process = self._process(which)
        process.read()
        self.world.bury(process)
        self.world.work(steps)
        process.write()

    # Operators

    @rule(feed=st.integers(0, 1), action=st.sampled_from(["cancel", "resume", "retry", "retry all", "force"]))
    def operate(self, feed: int, action: str) -> None:
        run = self.world.newest(self.feeds[feed % len(self.feeds)])
        if run is None:
            return
        runs = self.world.app.runs
        with suppress(StateError):
            match action:
                case "cancel":
                    runs.cancel(run.id)
                case "resume":
                    runs.resume(run.id)
                case "retry":
                    runs.retry(run.id)
                case "retry all":
                    runs.retry(run.id, from_start=True)
                case _:
                    runs.consolidate(run.id, force=True)

    @precondition(lambda self: self._held() is not None)
    @rule(yes=st.booleans())
    def decide_about_a_sweep(self, *, yes: bool) -> None:
        run, by = self._held(), Actor("tester", "looked at it")
        decide = approve_sweep if yes else decline_sweep
        if run is not None:
            persist(self.world.app.database, lambda tx: decide(tx, run, by=by))

    # What must be true

    @invariant()
    def nothing_is_wrong(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        with self._stack:
            if sys.exc_info()[0] is None and hasattr(self, "world"):
                self._calm_down()

    def _calm_down(self) -> None:
        """The source works again, and paused processes go on; then runs follow until no row is to go."""
        world = self.world
        world.sim.turn(requests_per_s=0)
        world.let_pass(120)
        world.settle()
        for feed in self.feeds:
            for run in world.app.runs.list(feed=feed, active=True):
                self._end(run.id)
            for kind in ("incremental", "full", "full", "full"):
                world.let_pass(300)  # longer than a clock was wrong: what was seen "later" has not gone yet
                run = world.sync(feed, kind)
                assert run.state == "completed", f"{run.kind} run: {run.state}, {run.reason}"
                world.check()
            world.check_equal(feed)
            assert not world.owed(feed), "a full, verified run leaves no debt"
        world.reprice()
        world.settle()
        for feed in self.feeds:
            versions = {it["ruleset_version"] for it in world.shown(feed).values()}
            assert versions <= {world.rules}, "a repricing has brought all of them to the newest rules"
            world.check_equal(feed)

    def _end(self, run: str) -> None:
        """Only a person can: its sweep is held, or a part of it failed."""
        if self._held() is not None:
            self.decide_about_a_sweep(yes=True)
        else:
            self.world.app.runs.cancel(run)
        self.world.settle()

    def _held(self) -> str | None:
        if not hasattr(self, "world"):
            return None
        found = rows.query(
            self.world.app,
            "SELECT id FROM stepfast_run WHERE state = 'sweeping' AND frontier LIKE :held",
            held='%"phase":"held"%',
        )
        return str(found[0]["id"]) if found else None

    def _process(self, which: int) -> Process:
        return self.world.processes[which % len(self.world.processes)]


class HangingLife(CatalogueLife):
    """Like the other one, with a source that does not answer: each request waits for a real second."""

    @rule(steps=st.integers(1, 4))
    def hang(self, steps: int) -> None:
        with self.world.trouble(**HANGS):
            self.world.work(steps)


@pytest.fixture
def new_migrated_database(database_kind: str, database_url: str, pytestconfig: pytest.Config) -> NewDatabase:
    """As many as there are examples."""
    del database_url  # it has seen to the server
    return lambda: pytestconfig.stash[DATABASES].migrated(database_kind)


@pytest.mark.timeout(3_600)  # with --chaos
def test_after_any_story_the_table_is_what_the_source_is(
    new_migrated_database: NewDatabase, database_kind: str, monkeypatch: pytest.MonkeyPatch, *, chaos: bool
) -> None:
    few = 10 if database_kind == "sqlite" else 2
    life = HangingLife if chaos else CatalogueLife
    monkeypatch.setattr(life, "new_database", staticmethod(new_migrated_database), raising=False)

    run_state_machine_as_test(
        life,
        settings=settings(
            max_examples=150 if chaos else few,
            stateful_step_count=40 if chaos else 16,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate, *([Phase.shrink] if chaos else [])],
            database=None,
        ),
    )
