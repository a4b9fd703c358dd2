"""Before the sweep marks rows as gone, it asks the source whether it still has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from stepfast import OutageError, Rate
from stepfast.cli.command import app as commands
from stepfast.database.database import persist
from stepfast.runs.feed import Sweep
from stepfast.runs.run import RunState
from stepfast.runs.sweep_rows import UnseenBy, strike_rows
from stepfast.testing import drain
from tests.contract.runs.test_breaker import Troubled, failures, refusal
from tests.contract.runs.test_sweep import full, lose, make_small, newest, raw, sweep_of
from tests.contract.runs.test_watermark import synced
from tests.support import rows
from tests.support.feeds import Catalogue, Confirming, Shop, prepare, target
from tests.support.run_facts import begin, run_of

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.ranges import Range

GONE, MOVING = "d00007", "d00011"


class Plain(Catalogue):
    """Is asked by a plain function."""

    def still_there(self, ids: Sequence[str], /) -> set[str]:
        return set(self.shop.still_there(ids))


def reading(app: Stepfast, feed: Callable[..., Catalogue] = Confirming, **settings: Any) -> Shop:
    """A feed whose rows are all in the target."""
    shop = Shop.with_items(40)
    app.feed(feed(shop, **{"sweep": Sweep(fuse=1), **settings}))
    prepare(app)
    synced(app)
    return shop


def missed_once(app: Stepfast, feed: Callable[..., Catalogue] = Confirming, **settings: Any) -> Shop:
    """A full run has seen neither of two rows: one is gone, the other is there and was on its way."""
    shop = reading(app, feed, **settings)
    shop.remove(GONE)
    shop.hidden.add(MOVING)
    assert full(app).gone == 0
    return shop


@pytest.mark.parametrize("feed", [Confirming, Plain], ids=["async", "plain"])
def test_a_row_that_two_full_runs_have_missed_stays_if_the_source_still_has_it(
    app: Stepfast, feed: Callable[..., Catalogue]
) -> None:
    """(F37)"""
    shop = missed_once(app, feed)
    assert shop.asked_about() == [], "a first strike lets nobody go"

    run = full(app)

    assert (run.state, run.gone, shop.asked_about()) == ("completed", 1, [GONE, MOVING])
    assert target(app) == shop.prices()
    assert raw(app, GONE)["gone_at"] is not None
    assert (raw(app, MOVING)["gone_at"], raw(app, MOVING)["strikes"]) == (None, 1)


def test_it_is_told_how_many_are_still_there(app: Stepfast) -> None:
    missed_once(app)

    run = full(app)

    told = app.operator.sweeps()[0]
    assert (told.phase, told.struck, told.gone, told.still_there) == ("done", 1, 1, 1)
    assert told.note == "1 row that was not seen is still at the source"
    assert app.runs.show(run.id).still_there == 1
    assert app.runs.show(run.id).run.reason is None
    shown = CliRunner().invoke(commands, ["--database-url", app.database.url, "runs", "show", run.id])
    assert "1 that it did not see" in shown.output


def test_who_is_still_there_is_asked_about_again_by_the_next_sweep_that_misses_it(app: Stepfast) -> None:
    shop = missed_once(app)
    full(app)
    shop.requests.clear()

    full(app)
    assert (shop.asked_about(), MOVING in target(app)) == ([MOVING], True)

    shop.remove(MOVING)
    assert (full(app).gone, target(app)) == (1, shop.prices())


def test_who_is_seen_again_begins_anew(app: Stepfast) -> None:
    shop = missed_once(app)
    full(app)
    shop.hidden.clear()

    full(app)

    assert raw(app, MOVING)["strikes"] == 0


def test_a_feed_may_choose_not_to_be_asked(app: Stepfast) -> None:
    shop = missed_once(app, confirm_gone=False)

    run = full(app)

    assert (run.gone, shop.asked_about()) == (2, [])
    assert MOVING not in target(app)


def test_the_source_is_asked_about_a_few_at_a_time_and_about_each_once(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = reading(app, confirm_lot=2)
    make_small(monkeypatch)
    lose(shop, [*range(5), *range(12, 16)])
    shop.hidden |= {"d00005", "d00020", "d00039"}
    full(app)
    lose(shop, [30, 31])  # these are struck for the first time

    run = full(app)

    lots = [ids.split(",") for what, ids, _ in shop.requests if what == "still_there"]
    assert max(map(len, lots)) == 2
    assert shop.asked_about() == sorted({f"d{n:05}" for n in (*range(6), *range(12, 16), 20, 39)})
    assert (run.gone, sweep_of(app, run).struck, sweep_of(app, run).still_there) == (9, 11, 3)
    assert set(target(app)) == {*shop.prices(), "d00030", "d00031"}


def test_a_source_that_fails_meanwhile_is_asked_again_and_nothing_is_half_done(app: Stepfast) -> None:
    """It waits as a page does: no attempt is spent, and the feed is paused."""
    shop = missed_once(app)
    trouble = Troubled(app, refusal(503), timedelta(minutes=10))
    seen: set[tuple[int, int]] = set()

    def meet(what: str, part: Range, cursor: Cursor | None) -> None:
        if what == "still_there":
            seen.add((rows.count(app, "stepfast_raw", "gone_at IS NOT NULL"), raw(app, GONE)["strikes"]))
            trouble(what, part, cursor)

    shop.before = meet
    run = begin(app, kind="full")
    drain(app, with_scheduled=True)

    done = run_of(app, run.id)
    assert len(trouble.met) > 3
    assert seen == {(0, 1)}
    assert (done.state, done.gone, sweep_of(app, run).struck, failures(app)) == ("completed", 1, 1, 0)
    assert target(app) == shop.prices()
    assert rows.query(app, "SELECT troubles FROM stepfast_feed")[0]["troubles"] == 0


def test_a_source_that_cannot_be_asked_for_too_long_lets_nobody_go(app: Stepfast) -> None:
    shop = missed_once(app, wait_at_most="10m")

    def away(what: str, *_: object) -> None:
        if what == "still_there":
            raise OutageError("maintenance")

    shop.before = away
    run = begin(app, kind="full")
    drain(app, with_scheduled=True, raise_errors=False)

    done = run_of(app, run.id)
    assert (done.state, done.gone) == (RunState.FAILED, 0)
    assert "maintenance" in str(done.reason)
    assert {GONE, MOVING} <= set(target(app))


def test_nobody_is_kept_from_writing_while_the_source_is_asked(app: Stepfast) -> None:
    """It is asked outside of any transaction."""
    shop = missed_once(app)

    def write(what: str, *_: object) -> None:
        if what == "still_there":
            rows.change(app, "UPDATE stepfast_raw SET strikes = strikes WHERE feed = 'catalogue'")
            rows.change(app, "UPDATE stepfast_run SET updated_at = updated_at")

    shop.before = write

    assert full(app).gone == 1


def test_a_row_that_is_seen_while_the_source_is_asked_is_not_struck(app: Stepfast) -> None:
    shop = missed_once(app)

    def observe(what: str, *_: object) -> None:
        if what == "still_there":
            rows.change(
                app,
                "UPDATE stepfast_raw SET observed_at = :later, strikes = 0 WHERE item_id = :id",
                id=GONE,
                later=rows.now(app) + rows.HOUR,
            )

    shop.before = observe

    assert full(app).gone == 0
    assert GONE in target(app)


def test_nobody_goes_who_was_not_asked_about(app: Stepfast) -> None:
    """Should a row get its strikes between the question and the commit."""
    reading(app)
    state = sweep_of(app, run_of(app, newest(app)))
    it = UnseenBy("catalogue", "another run", 2**60, strikes=1)

    def struck(asked: frozenset[str] | None) -> tuple[int, int]:
        return persist(
            app.database, lambda tx: strike_rows(tx, it, [GONE, MOVING], state.target, "bigint", asked)
        )

    assert struck(frozenset()) == (0, 0)
    assert struck(frozenset({GONE})) == (1, 1)
    assert MOVING in target(app)
    assert struck(None) == (1, 1)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, "is NoneType; answer a list of those ids"),
        (GONE, "is str; answer a list of those ids"),
        ([7], "names 7, which nobody asked about"),
        (["D00007"], "names 'D00007', which nobody asked about"),
    ],
)
def test_an_answer_that_cannot_be_right_lets_nobody_go(app: Stepfast, answer: Any, problem: str) -> None:
    class Wrong(Catalogue):
        def still_there(self, _: Sequence[str], /) -> Any:
            return answer

    shop = reading(app, Wrong)
    shop.remove(GONE)
    full(app)

    run = begin(app, kind="full")
    drain(app, raise_errors=False)

    assert run_of(app, run.id).state is RunState.FAILED
    assert problem in str(run_of(app, run.id).reason)
    assert GONE in target(app)


def test_a_sweep_that_asks_the_source_keeps_its_limits(app: Stepfast) -> None:
    limits = [Rate(25, per="1s", name="shop")]
    shop = Shop.with_items(3)
    for name, feed, more in (
        ("asks", Confirming, {"sweep": Sweep()}),
        ("is not to ask", Confirming, {"sweep": Sweep(), "confirm_gone": False}),
        ("cannot ask", Catalogue, {"sweep": Sweep()}),
        ("does not sweep", Confirming, {}),
    ):
        app.feed(feed(shop, name=name.replace(" ", "-"), limits=limits, **more))

    def limited(feed: str) -> bool:
        return app.kinds.get(f"{feed}.sweep").limits == app.kinds.get(f"{feed}.page").limits

    assert [limited(it) for it in ("asks", "is-not-to-ask", "cannot-ask", "does-not-sweep")] == [
        True,
        False,
        False,
        False,
    ]
