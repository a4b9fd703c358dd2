"""Debts: a range that was not verified is read again in its own window, until it is, or an operator closes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stepfast.database.database import persist
from stepfast.errors import ConfigurationError, NotFoundError, PermanentError, StateError
from stepfast.runs.debts import count_try, open_debt
from stepfast.runs.partition import find_partition
from stepfast.runs.partitioning.partitioners import Fixed
from stepfast.runs.partitioning.ranges import EVERYTHING
from stepfast.testing import drain
from tests.contract.runs.test_watermark import synced
from tests.support import rows
from tests.support.feeds import Catalogue, Shop, prepare, price_ranges, target
from tests.support.run_facts import begin, partitions, run_of

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.feed import Page
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.run import Run
    from stepfast.runs.window import Window


class Doubtful(Catalogue):
    """A source that counts rows which it never shows, as long as a flag is set."""

    def __init__(self, shop: Shop, **settings: Any) -> None:
        super().__init__(shop, **settings)
        self.hides = 1
        self.asked: list[tuple[str, Window]] = []

    async def count(self, part: Range, window: Window, /) -> int:
        self.asked.append((part.name, window))
        return await super().count(part, window) + self.hides


def doubtful(app: Stepfast, **settings: Any) -> Doubtful:
    feed = Doubtful(Shop.with_items(20), **{"partitioner": Fixed([EVERYTHING]), **settings})
    app.feed(feed)
    prepare(app)
    return feed


def debts(app: Stepfast) -> list[rows.Row]:
    return rows.query(app, "SELECT * FROM stepfast_debt ORDER BY id")


def owing(app: Stepfast) -> tuple[Doubtful, Run]:
    """A feed with one debt, and the run that left it."""
    feed = doubtful(app)
    run = synced(app)
    feed.asked.clear()
    return feed, run


def of_debt(app: Stepfast, run: Run) -> list[rows.Row]:
    """The partitions of a run that read debts."""
    return [it for it in partitions(app, run.id) if it["debt_id"] is not None]


def test_a_range_that_is_not_verified_becomes_a_debt_and_the_watermark_may_move(app: Stepfast) -> None:
    _, run = owing(app)

    assert (run.state, run.unverified, run.watermark_after) == ("completed", 1, run.window_to)
    (debt,) = debts(app)
    assert (debt["state"], debt["tries"], debt["run_id"]) == ("open", 0, run.id)
    assert (debt["window_from"], debt["window_to"]) == (None, run.window_to)


def test_the_next_run_reads_a_debt_in_the_window_in_which_it_was_missed(app: Stepfast) -> None:
    """An incremental run would never see again what was missed before its own window. (F9)"""
    feed, first = owing(app)
    feed.hides = 0
    feed.shop.put("d99999", 7)

    second = synced(app)

    (part,) = of_debt(app, second)
    assert second.kind == "incremental"
    assert (part["state"], part["window_from"], part["window_to"]) == ("done", None, first.window_to)
    assert {window for _, window in feed.asked} == {first.window, second.window}
    assert target(app) == feed.shop.prices()
    (debt,) = debts(app)
    assert (debt["state"], debt["closed_by"]) == ("closed", second.id)


def test_a_debt_that_is_missed_again_stays_one_debt_with_one_more_try(app: Stepfast) -> None:
    feed, _ = owing(app)
    feed.hides = 1

    second = synced(app)

    assert second.unverified == 2
    old, new = debts(app)
    assert (old["state"], old["tries"]) == ("open", 1)
    assert (new["window_from"], new["tries"]) == (second.window_from, 0)


def test_after_three_tries_somebody_is_told_and_nobody_reads_it_any_more(app: Stepfast) -> None:
    feed, _ = owing(app)
    tried_in = []
    for _ in range(4):
        run = synced(app)
        tried_in.append(1 in {it["debt_id"] for it in of_debt(app, run)})
        feed.asked.clear()

    assert tried_in == [True, True, True, False]
    assert debts(app)[0]["tries"] == 3
    told = [it for it in app.operator.alerts() if it.title == "Debt given up"]
    assert "stepfast debts retry 1" in told[-1].body
    assert [it.state for it in app.operator.debts() if it.id == 1] == ["given up"]


def test_a_debt_that_cannot_be_read_at_all_does_not_fail_runs_for_ever(app: Stepfast) -> None:
    feed, first = owing(app)
    feed.hides = 0

    async def fetch(part: Range, window: Window, cursor: Cursor) -> Page:
        if window == first.window:
            raise PermanentError("410: this range is closed")
        return await Doubtful.fetch(feed, part, window, cursor)

    feed.fetch = fetch  # type: ignore[method-assign]
    states = [str(synced_whatever_happens(app).state) for _ in range(4)]

    assert states == ["failed", "failed", "failed", "completed"]
    assert [it.state for it in app.operator.debts()] == ["given up"]
    assert "Debt given up" in {it.title for it in app.operator.alerts()}


def synced_whatever_happens(app: Stepfast) -> Run:
    run = begin(app)
    drain(app, raise_errors=False)
    return run_of(app, run.id)


def test_a_debt_that_was_given_up_is_read_again_once_an_operator_says_so(app: Stepfast) -> None:
    feed, _ = owing(app)
    rows.change(app, "UPDATE stepfast_debt SET tries = 3")
    feed.hides = 0
    assert of_debt(app, synced(app)) == []

    app.operator.by("alice", reason="the source is mended").retry_debt(1)
    run = synced(app)

    assert len(of_debt(app, run)) == 1
    assert debts(app)[0]["closed_by"] == run.id
    entry = app.operator.audit(what="debt.retry")[0]
    assert (entry.who, entry.subject, entry.why) == ("alice", "1", "the source is mended")


def test_a_debt_that_an_operator_closed_is_not_read_again(app: Stepfast) -> None:
    feed, _ = owing(app)
    feed.hides = 0

    app.operator.by("alice", reason="those rows are known to be broken").close_debt(1)
    run = synced(app)

    assert of_debt(app, run) == []
    (debt,) = debts(app)
    assert (debt["state"], debt["closed_by"]) == ("closed", None)
    assert debt["reason"] == "those rows are known to be broken"
    assert app.operator.debts() == []
    assert [it.id for it in app.operator.debts(everything=True)] == [1]
    entry = app.operator.audit(what="debt.close")[0]
    assert (entry.who, entry.subject) == ("alice", "1")


def test_a_debt_that_is_closed_while_it_is_read_stays_closed(app: Stepfast) -> None:
    feed, _ = owing(app)

    def close_it(*_: object) -> None:
        if 1 in {it.id for it in app.operator.debts()}:
            app.operator.by("alice", reason="enough").close_debt(1)

    feed.shop.before = close_it
    run = synced(app)

    assert [it["state"] for it in of_debt(app, run)] == ["done_unverified"]
    assert (debts(app)[0]["state"], debts(app)[0]["reason"]) == ("closed", "enough")


def test_a_later_debt_of_the_same_range_takes_the_place_of_the_one_that_it_covers(app: Stepfast) -> None:
    """Else every full run would leave one more to be read."""
    owing(app)

    second = synced(app, kind="full")

    old, new = debts(app)
    assert (old["state"], old["closed_by"]) == ("closed", second.id)
    assert (new["state"], new["tries"], new["window_to"]) == ("open", 1, second.window_to)


def test_a_full_run_that_is_verified_closes_all_that_it_covers(app: Stepfast) -> None:
    feed, _ = owing(app)
    rows.change(app, "UPDATE stepfast_debt SET tries = 3")
    feed.hides = 0

    run = synced(app, kind="full")

    assert of_debt(app, run) == []
    assert (debts(app)[0]["state"], debts(app)[0]["closed_by"]) == ("closed", run.id)


def test_a_run_that_is_not_verified_closes_nothing(app: Stepfast) -> None:
    """Its doubtful part may be the one that was missed before."""

    class HalfDoubtful(Doubtful):
        async def count(self, part: Range, window: Window, /) -> int:
            honest = part.contains({"price": 0})
            return await super().count(part, window) - (self.hides if honest else 0)

    feed = HalfDoubtful(Shop.with_items(20), partitioner=Fixed(price_ranges(500)))
    app.feed(feed)
    prepare(app)
    synced(app)

    run = synced(app, kind="full")

    assert (run.completed, run.unverified) == (2, 1)
    assert [it["state"] for it in debts(app)] == ["closed", "open"]


def test_checks_and_trials_neither_read_debts_nor_leave_any(app: Stepfast) -> None:
    owing(app)

    for request in ({"kind": "verify"}, {"kind": "full", "most_rows": 5}):
        assert of_debt(app, synced(app, **request)) == []

    assert [it["tries"] for it in debts(app)] == [0]


def test_the_same_range_and_window_is_one_debt(app: Stepfast) -> None:
    _, run = owing(app)
    part = partitions(app, run.id)[0]["id"]

    def again(tx: Any) -> None:
        found = find_partition(tx, part)
        assert found is not None
        open_debt(tx, run, found)

    persist(app.database, again)

    (debt,) = debts(app)
    assert debt["tries"] == 1


def test_a_debt_of_another_feed_is_not_touched(app: Stepfast) -> None:
    owing(app)
    other = Catalogue(Shop.with_items(5), name="other")
    app.feed(other)
    run = begin(app, "other", kind="full")
    drain(app)

    assert run_of(app, run.id).state == "completed"
    assert [it["state"] for it in debts(app)] == ["open"]
    assert app.operator.debts("other") == []


def test_wrong_moves_are_refused_in_words(app: Stepfast) -> None:
    owing(app)
    operator = app.operator.by("alice", reason="why not")

    with pytest.raises(ConfigurationError, match="say why"):
        app.operator.by("alice").close_debt(1)
    with pytest.raises(NotFoundError, match="no debt 7"):
        operator.close_debt(7)
    with pytest.raises(NotFoundError, match="no debt 7"):
        operator.retry_debt(7)
    with pytest.raises(StateError, match="needs no retry"):
        operator.retry_debt(1)
    operator.close_debt(1)
    with pytest.raises(StateError, match="closed"):
        operator.close_debt(1)

    assert [it.what for it in app.operator.audit()] == ["debt.close"]
    operator.retry_debt(1)
    assert [it["state"] for it in debts(app)] == ["open"]


def test_a_try_of_a_debt_that_is_closed_is_not_counted(app: Stepfast) -> None:
    owing(app)
    app.operator.by("alice", reason="known").close_debt(1)

    persist(app.database, lambda tx: count_try(tx, "catalogue", 1))

    assert (debts(app)[0]["state"], debts(app)[0]["tries"]) == ("closed", 0)
