"""Whole runs against the simulator over HTTP: afterwards the table holds what the source held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Broker, ConfigurationError, PermanentError, Range, Stepfast, StepfastError, Window
from stepfast.testing import drain
from stepfast_diamonds.feed import LABGROWN, NATURAL, NivodaFeed, nivoda
from stepfast_diamonds.money import stored
from stepfast_diamonds.schema import prepare
from stepfast_diamonds.simulator import Simulator
from tests.diamonds.asking import KEY, settings_for, truth
from tests.support import rows
from tests.support.broker import staged

if TYPE_CHECKING:
    from stepfast.admin.run_reports import RunReport

pytestmark = pytest.mark.sampled

FAULTS = (
    "default,requests_per_s=0,concurrency=0,overrun_pages=2,latency_ms=1,reset_prob=0.005,gateway_prob=0.01,"
    "html_prob=0.003,truncated_prob=0.005,partial_prob=0.005,null_item_prob=0.0003,duplicate_prob=0.01,"
    "enum_error_prob=0.0005"
)


def feeds(
    app: Stepfast, sim: Simulator, natural: dict[str, Any] | None = None, **more: Any
) -> tuple[NivodaFeed, NivodaFeed]:
    prepare(app)
    shared = {"settle": "0s", "ahead_at_most": "7d"}  # tests move the clock of the source alone
    return nivoda(
        app, settings=settings_for(sim, **more), natural={**shared, **(natural or {})}, labgrown=shared
    )


def synced(
    app: Stepfast, feed: str = NATURAL, kind: Any = None, *, concurrency: int = 8, **more: Any
) -> RunReport:
    run = app.runs.start(feed, kind)
    drain(app, with_scheduled=True, concurrency=concurrency, timeout="100s", **more)
    return app.runs.show(run.id).run


def table(app: Stepfast, feed: str = NATURAL) -> dict[str, tuple[Any, ...]]:
    found = rows.query(
        app,
        "SELECT supplier_stone_id, feed_price, carats, shape, color, certificate_number"
        " FROM diamonds WHERE feed = :feed AND deleted_at IS NULL",
        feed=feed,
    )
    return {
        it["supplier_stone_id"]: (stored(it["feed_price"]), stored(it["carats"]), it["color"]) for it in found
    }


def expected(sim: Simulator, *, lab_grown: bool = False) -> dict[str, tuple[Any, ...]]:
    return {
        it.id: (Decimal(it.price) / 100, Decimal(str(it.carats)), it.color)
        for it in truth(sim, lab_grown=lab_grown).values()
    }


@pytest.fixture
def sim() -> Iterator[Simulator]:
    with Simulator("300+200-labgrown", seed=7, faults="none") as it:
        yield it


@pytest.mark.parametrize("by", ["dollar_per_carat", "dollar_value"])
def test_messages_about_pages_carry_the_range_of_prices(app: Stepfast, sim: Simulator, by: Any) -> None:
    """WORK_ITEM as other programs know it."""
    feeds(app, sim, {"transport": Broker(f"memory://{by}")}, partition_by=by)
    run = app.runs.start(NATURAL)
    while app.runs.show(run.id).run.state == "planning":
        drain(app, limit=1)

    items = staged(app)
    assert items
    for it in items:
        prices = it["range"][by]
        assert (it["minPrice"], it["maxPrice"]) == (prices["from"], prices["to"])
    assert items[-1]["maxPrice"] is None, "the last has no end"


def test_with_all_faults_on_every_stone_is_there(app: Stepfast) -> None:
    with Simulator("300", seed=7, faults=FAULTS, speed=0) as sim:
        feeds(app, sim)
        run = synced(app, raise_errors=False)
        told = sim.statistics()

        assert (run.state, run.unverified, run.quarantined) == ("completed", 0, 0)
        assert table(app) == expected(sim)
        assert told["status 200"] < told["requests"], "there were faults"


def test_both_feeds_fill_one_table_and_share_one_token(app: Stepfast, sim: Simulator) -> None:
    feeds(app, sim)

    states = {synced(app, it).state for it in (NATURAL, LABGROWN)}

    assert states == {"completed"}
    assert table(app) == expected(sim)
    assert table(app, LABGROWN) == expected(sim, lab_grown=True)
    assert sim.statistics()["logins"] == 1


def test_an_incremental_run_reads_what_has_changed_and_nothing_else(app: Stepfast, sim: Simulator) -> None:
    feeds(app, sim, natural={"lookback": "0s"})
    sim.advance("1d")  # what is in the catalogue was changed long before
    first = synced(app)
    before = table(app)
    sim.advance("1h")
    inside = sorted(before)[:5]
    sim.mutate("price", ids=inside)
    sim.advance("5s")

    second = synced(app)

    assert (first.kind, second.kind) == ("full", "incremental")
    assert second.seen == len(inside)
    assert {it for it, row in table(app).items() if row != before[it]} == set(inside)
    assert table(app) == expected(sim)
    assert second.window_from is not None
    assert second.window_from <= first.window_to


def test_b12_a_stone_that_was_sold_is_marked_after_two_full_runs(app: Stepfast, sim: Simulator) -> None:
    feeds(app, sim)
    synced(app)
    sold = min(table(app))
    sim.mutate("hold", ids=[sold])

    for _ in range(2):
        sim.advance("1h")
        assert sold in table(app)
        synced(app, kind="full")

    assert sold not in table(app)
    assert table(app) == expected(sim)


def test_b04_pages_past_the_end_bring_nothing_twice(app: Stepfast) -> None:
    with Simulator("300", seed=7, faults="none,overrun_pages=5", speed=0) as sim:
        feeds(app, sim)

        assert synced(app).state == "completed"
        assert table(app) == expected(sim)


def test_b11_ties_that_are_shuffled_are_all_read(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """In partitions of several pages, where stones of an upload meet."""
    # A partition is not left for another because this machine is slow: that would be another order of questions.
    monkeypatch.setattr("stepfast.worker.committer.STICKY_SECONDS", 600.0)
    with Simulator("400", seed=8, faults="none,unstable_ties=true,short_page_prob=0.05", speed=0) as sim:
        feeds(app, sim, page_size=20)
        run = synced(app, concurrency=1)  # the same questions in the same order get the same answers

        assert run.state == "completed"
        assert run.requests > 3 * run.partitions, "they have several pages"
        assert table(app).items() <= expected(sim).items()
        assert run.unverified or table(app) == expected(sim), "a stone is missing, and no debt tells of it"


def test_b13_a_source_that_wants_fewer_requests_costs_no_attempt(app: Stepfast) -> None:
    with Simulator("120", seed=7, faults="none,limit_answer=429") as sim:
        feeds(app, sim)
        run = app.runs.start(NATURAL)
        sim.turn(requests_per_s=1, burst=1)

        def relent() -> None:
            rows.eventually(lambda: sim.statistics().get("status 429"))
            sim.turn(requests_per_s=0)

        with ThreadPoolExecutor(1) as pool:
            relenting = pool.submit(relent)
            drain(app, with_scheduled=True, concurrency=8, timeout="60s")
            relenting.result()

        assert app.runs.show(run.id).run.state == "completed"
        assert table(app) == expected(sim)
        assert rows.count(app, "nivoda_pace", "quiet_until > 0") == 1
        assert rows.count(app, "stepfast_archive", "failures > 0 OR state <> 'done'") == 0


def test_a_clock_that_goes_ahead_does_not_lose_what_changes_now(app: Stepfast) -> None:
    with Simulator("300", seed=7, faults="none,clock_skew_s=90") as sim:
        feeds(app, sim)
        run = synced(app)

        assert timedelta(seconds=80) < run.window_to - run.started_at < timedelta(seconds=95)
        changed = min(table(app))
        sim.mutate("price", ids=[changed])
        sim.advance("3s")
        synced(app)

        assert table(app)[changed] == expected(sim)[changed]


def test_a_source_that_is_away_does_not_begin_a_run_either(app: Stepfast) -> None:
    with Simulator("300", faults="none") as sim:
        pass
    feeds(app, sim)

    with pytest.raises(StepfastError, match="cannot be reached"):
        app.runs.start(NATURAL)


def test_a_feed_without_a_stone_is_not_planned(app: Stepfast) -> None:
    with Simulator("60", seed=7, faults="none") as sim:
        _, labgrown = feeds(app, sim)

        with pytest.raises(PermanentError, match="Nivoda has no stone for nivoda-labgrown"):
            asyncio.run(labgrown.count(Range(), Window(None, sim.now)))


@pytest.mark.parametrize(
    ("natural", "state"),
    [
        ({}, "completed"),
        ({"needs": frozenset({"image", "video"})}, "failed_quality"),
        ({"needs": frozenset({"image", "video"}), "error_budget": 0.3}, "completed"),
    ],
)
def test_b09_a_stone_without_a_film_is_kept_unless_somebody_needs_it(
    app: Stepfast, natural: dict[str, Any], state: str
) -> None:
    """The source finds stones with either; about a fifth lacks one of them, far more than the error budget allows."""
    with Simulator("120", seed=7, faults="none") as sim:
        feeds(app, sim, natural)
        run = synced(app)

        assert run.state == state
        assert run.quarantined == 0 if not natural else run.quarantined > 0.1 * run.seen


def test_limits_are_shared_by_both_feeds(app: Stepfast, sim: Simulator) -> None:
    natural, labgrown = feeds(app, sim, rate=25, concurrency=10)

    assert list(natural.limits) == list(labgrown.limits)
    assert {it.name for it in natural.limits} == {"nivoda"}
    assert {it.count for it in natural.limits} == {25, 10}


@pytest.mark.only_on("sqlite")
def test_the_rate_is_kept_by_all_workers_and_both_feeds_together(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    """The source would tell: it allows as many as we say, and counts for itself."""
    faults = "none,requests_per_s=30,burst=12,limit_answer=429"
    with Simulator("80+30-labgrown", seed=7, faults=faults) as sim:
        apps = [app, another_app()]
        for it in apps:
            feeds(it, sim, rate=30, concurrency=4)
        runs = [app.runs.start(it).id for it in (NATURAL, LABGROWN)]
        with apps[0].worker(concurrency=8), apps[1].worker(concurrency=8):
            rows.eventually(lambda: all(app.runs.show(it).run.ended_at for it in runs))
        told = sim.statistics()

        assert {app.runs.show(it).run.state for it in runs} == {"completed"}
        assert told["requests"] > 30
        assert told.get("status 429", 0) == 0


def test_an_app_that_only_looks_needs_no_credentials(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NIVODA_USERNAME", "NIVODA_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    prepare(app)
    nivoda(app)

    with pytest.raises(ConfigurationError, match="set NIVODA_USERNAME and NIVODA_PASSWORD"):
        app.runs.start(NATURAL)


def test_a_second_process_goes_on_with_the_token_of_the_first(
    app: Stepfast, another_app: Callable[[], Stepfast], sim: Simulator
) -> None:
    feeds(app, sim, secret_key=KEY)
    synced(app)
    other = another_app()
    feeds(other, sim, secret_key=KEY)
    synced(other, LABGROWN)

    assert sim.statistics()["logins"] == 1


def test_without_its_tables_the_sentence_names_the_command(database_url: str, sim: Simulator) -> None:
    with closing(Stepfast(database_url)) as app:
        nivoda(app, settings=settings_for(sim))

        with pytest.raises(Exception, match="run `stepfast diamonds migrate` once"):
            app.runs.start(NATURAL)
