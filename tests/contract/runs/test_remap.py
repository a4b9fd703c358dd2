"""A remap applies a corrected `map()` to rows that were applied before, without asking the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stepfast.errors import StateError
from stepfast.runs import raw_rows as remapping
from stepfast.runs.run import RunState
from tests.support import rows
from tests.support.consolidation import LATER, catalogue, fetched, item, items, play, quarantine, see, waiting
from tests.support.engine import drain
from tests.support.feeds import target

if TYPE_CHECKING:
    from stepfast import Stepfast


def doubled(it: Any) -> dict[str, Any]:
    return {"id": it["id"], "price": it["price"] * 2}


def watermark(app: Stepfast) -> Any:
    return rows.query(app, "SELECT watermark FROM stepfast_feed")[0]["watermark"]


def test_all_rows_are_mapped_again_and_nothing_else_happens(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remapping, "LOT", 10)
    declared = catalogue(app, batch=10, chunk=5)
    fetched(app, declared, items(35))
    drain(app)
    before = watermark(app)
    declared.feed.map = doubled  # type: ignore[method-assign]

    run = app.runs.by("ann", reason="the price was half").remap("catalogue")
    assert (run.kind, run.scope, run.state) == ("remap", "partial", RunState.APPLYING)
    drain(app)

    done = app.runs.show(run.id).run
    assert (done.state, done.applied, done.requests) == (RunState.COMPLETED, 35, 0)
    assert target(app) == {it["id"]: it["price"] * 2 for it in items(35)}
    assert (watermark(app), done.watermark_after) == (before, None)
    (entry,) = rows.query(app, "SELECT who, why, subject FROM stepfast_audit WHERE what = 'run.remap'")
    assert entry == {"who": "ann", "why": "the price was half", "subject": run.id}


def test_a_remap_waits_for_nobody_and_lets_nobody_in(app: Stepfast) -> None:
    declared = catalogue(app)
    active = fetched(app, declared, items(1))
    with pytest.raises(StateError, match=active.id):
        app.runs.remap("catalogue")
    assert rows.count(app, "stepfast_audit", "what = 'run.remap'") == 0
    drain(app)

    run = app.runs.remap("catalogue")

    with pytest.raises(StateError, match=run.id):
        app.runs.start("catalogue")


def test_rows_that_are_gone_stay_gone_and_those_in_quarantine_are_tried(app: Stepfast) -> None:
    declared = catalogue(app, error_budget=1.0)
    fetched(app, declared, [*items(3), {"id": "d9", "price": None}])
    drain(app)
    rows.change(app, "UPDATE stepfast_raw SET gone_at = 1 WHERE item_id = 'd00001'")
    assert [it["state"] for it in quarantine(app)] == ["open"]
    declared.feed.map = lambda it: {"id": it["id"], "price": 7}  # type: ignore[method-assign]

    app.runs.remap("catalogue")
    drain(app)

    assert target(app) == {"d00000": 7, "d00001": 1, "d00002": 7, "d9": 7}
    assert [it["state"] for it in quarantine(app)] == ["superseded"]
    assert waiting(app) == 0


def test_a_row_that_is_seen_again_meanwhile_is_mapped_again_all_the_same(app: Stepfast) -> None:
    declared = catalogue(app)
    first = fetched(app, declared, items(2))
    drain(app)
    declared.feed.map = doubled  # type: ignore[method-assign]
    app.runs.remap("catalogue")
    play(app, declared)  # its rows wait
    see(app, first.id, items(2), at=5)

    assert waiting(app) == 2
    drain(app)

    assert target(app) == {it["id"]: it["price"] * 2 for it in items(2)}


def test_a_remap_that_was_cancelled_goes_on(app: Stepfast) -> None:
    declared = catalogue(app)
    fetched(app, declared, items(4))
    drain(app)
    declared.feed.map = doubled  # type: ignore[method-assign]
    run = app.runs.remap("catalogue")
    app.runs.cancel(run.id)

    app.runs.resume(run.id)
    drain(app)

    assert app.runs.show(run.id).run.state is RunState.COMPLETED
    assert target(app) == {it["id"]: it["price"] * 2 for it in items(4)}


def test_a_failed_run_can_go_on_after_a_remap(app: Stepfast) -> None:
    """A remap asks the source for nothing: the ranges that the failed run lacks are still unread."""
    declared = catalogue(app)
    fetched(app, declared, items(2))
    drain(app)
    failed = fetched(app, declared, [item(1, 50)], at=2, window=LATER)
    rows.change(
        app,
        "UPDATE stepfast_run SET state = 'failed', active_feed = NULL, ended_at = started_at WHERE id = :id",
        id=failed.id,
    )
    app.runs.remap("catalogue")
    drain(app)

    app.runs.consolidate(failed.id)
    drain(app)

    assert app.runs.show(failed.id).run.state is RunState.COMPLETED
