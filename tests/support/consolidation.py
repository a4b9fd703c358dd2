"""A run whose pages have been read: raw rows are pending, and its consolidation begins."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from stepfast.database.statement import sql
from stepfast.jobs.commit import effects_of
from stepfast.jobs.outcome import Continue, Done
from stepfast.jobs.payload import decode
from stepfast.jobs.step import Step
from stepfast.runs.consolidation import ConsolidateJob
from stepfast.runs.lifecycle import end_fetching
from stepfast.runs.raw_rows import observe, observed
from stepfast.runs.replay import ReplayJob
from stepfast.runs.run import Run, create_run, find_run
from stepfast.runs.window import Window
from tests.support import rows
from tests.support.engine import commit_step, take
from tests.support.feeds import Catalogue, Shop, prepare
from tests.support.single_threaded_worker import NoReports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from stepfast import Stepfast
    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.run import RunKind

WINDOW = Window(None, datetime(2026, 6, 1, tzinfo=UTC))
LATER = Window(None, WINDOW.to + timedelta(days=1))
FETCHED = sql(
    "UPDATE stepfast_run SET state = 'fetching', planned_at = {now}, seen = :seen, rejected = :rejected WHERE id = :id AND state = 'planning'"
)


def catalogue(app: Stepfast, **settings: Any) -> Declaration:
    """A feed whose target table exists; settings and methods are replaced by those given."""
    prepare(app)
    app.feed(Catalogue(Shop(), **settings))
    return app.feeds.get("catalogue")


def item(number: int, price: int | None = None, **more: Any) -> dict[str, Any]:
    return {"id": f"d{number:05}", "price": number if price is None else price, **more}


def items(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [item(number) for number in range(start, start + count)]


def see(
    app: Stepfast, run_id: str, seen: Iterable[Mapping[str, Any]], at: int = 1, feed: str = "catalogue"
) -> None:
    """Write raw rows, as the source showed them at this time of its clock."""
    with app.transaction() as tx:
        observe(tx, feed, run_id, at, [observed(it["id"], it) for it in seen])


def fetched(
    app: Stepfast,
    declared: Declaration,
    seen: Iterable[Mapping[str, Any]] = (),
    *,
    kind: RunKind = "full",
    window: Window = WINDOW,
    at: int = 1,
    rejected: int = 0,
    between: Callable[[Transaction, Run], object] = lambda *_: None,
) -> Run:
    """A run that has read these, and nothing else; its consolidation has begun."""
    with app.transaction() as tx:
        run = create_run(
            tx, declared.name, kind, window, watermark=None, mapper_version=declared.mapper_version
        )
    seen = list(seen)
    see(app, run.id, seen, at, declared.name)
    with app.transaction() as tx:
        between(tx, run)
        tx.run(FETCHED, id=run.id, seen=len(seen), rejected=rejected)
        end_fetching(tx, declared, run.id)
        return find_run(tx, run.id)


def run_of(app: Stepfast, run: Run) -> Run:
    with app.reading() as tx:
        return find_run(tx, run.id)


def waiting(app: Stepfast) -> int:
    return rows.count(app, "stepfast_raw", "pending = 1")


def quarantine(app: Stepfast) -> list[dict[str, Any]]:
    return rows.query(app, "SELECT * FROM stepfast_quarantine ORDER BY item_id, stage")


def play(app: Stepfast, declared: Declaration, *, between: Callable[[], object] | None = None) -> None:
    """Run and commit one step; `between` is called after it has read and before it commits."""
    taken = take(app)
    step = Step(taken, NoReports(), "tester")
    is_replay = taken.kind.endswith(".replay")
    consolidate = ConsolidateJob(declared, lambda: app.database).consolidate
    handler = ReplayJob(declared, lambda: app.database).replay if is_replay else consolidate
    outcome = asyncio.run(handler(step, **decode(taken.payload)))
    assert isinstance(outcome, Done | Continue)
    if between is not None:
        between()
    commit_step(app, taken, outcome, *effects_of(outcome))
