"""Runs that fail in the ways that operators repair."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from stepfast import Done, PermanentError
from stepfast.clock import new_id
from stepfast.runs.lifecycle import partition_ended
from stepfast.runs.partition import PartitionState, end_partition, find_partition
from stepfast.testing import drain
from stepfast.worker.run_watchdog import RunWatchdog
from tests.support import rows
from tests.support.feeds import Catalogue, Shop, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast
    from stepfast.admin.run_reports import RunReport
    from stepfast.jobs.outcome import Outcome
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.ranges import Range
    from tests.support.rows import Row

ITEMS = 100


def catalogue(app: Stepfast, *, items: int = ITEMS, table: bool = True, **settings: Any) -> Shop:
    """A shop, its feed, and the target table."""
    shop = Shop.with_items(items)
    app.feed(Catalogue(shop, **settings))
    if table:
        prepare(app)
    return shop


def broken_at(*places: tuple[str, str, int | None]) -> Callable[[str, Range, Cursor | None], None]:
    """A source that refuses these requests for good: what is asked for, of which range, from which offset on."""

    def before(what: str, part: Range, cursor: Cursor | None) -> None:
        for kind, name, offset in places:
            here = cursor is None or offset is None or cursor.offset >= offset
            if (what, part.name) == (kind, name) and here:
                raise PermanentError(f"{name} cannot be read")

    return before


def run_steps(app: Stepfast, count: int) -> None:
    """So many steps, one after the other."""
    if count:
        drain(app, limit=count, raise_errors=False)


def work_until_idle(app: Stepfast) -> None:
    """Let a worker do what there is to do, and look after what gave up, until nothing is left."""
    while True:
        drain(app, raise_errors=False)
        if not RunWatchdog(app.database, app.feeds, timedelta(days=30)).look():
            return


def failed_run(app: Stepfast, shop: Shop, *names: str, offset: int = 10) -> RunReport:
    """A run of which these ranges failed at a page, and everything else was read. The source is well again."""
    shop.before = broken_at(*(("page", name, offset) for name in names))
    run = app.runs.start("catalogue", "full")
    work_until_idle(app)
    shop.before = lambda *_: None
    return run_row(app, run.id)


def run_row(app: Stepfast, run_id: str) -> RunReport:
    return app.runs.show(run_id).run


def partition(app: Stepfast, run_id: str, number: int) -> Row:
    (row,) = rows.query(
        app,
        "SELECT * FROM stepfast_partition WHERE run_id = :id AND number = :number",
        id=run_id,
        number=number,
    )
    return row


def partitions(app: Stepfast, run_id: str) -> list[Row]:
    return rows.query(app, "SELECT * FROM stepfast_partition WHERE run_id = :id ORDER BY number", id=run_id)


def check_counters(app: Stepfast, run_id: str) -> None:
    """What the run counts is what its partitions are."""
    states = [row["state"] for row in partitions(app, run_id)]
    run = run_row(app, run_id)
    done = states.count("done") + states.count("done_unverified")
    assert (run.completed, run.failed, run.unverified) == (
        done,
        states.count("failed"),
        states.count("done_unverified"),
    )
    ended = {"done", "done_unverified", "failed"}
    assert run.seen == sum(row["seen"] for row in partitions(app, run_id) if row["state"] in ended)


def page_of(app: Stepfast, row: Row) -> Outcome:
    """What the step of a partition's job would commit now: the source has answered, nothing is written."""
    page = app.feeds.kind("catalogue", "page").handler
    answer: Outcome = asyncio.run(page(a_step(), str(row["id"]), int(row["epoch"])))
    return answer


def last_page_of(app: Stepfast, run_id: str, number: int) -> Outcome:
    """Read a partition to its end; what its last step would commit is not committed."""
    while not isinstance(outcome := page_of(app, partition(app, run_id, number)), Done):
        commit(app, outcome)
    return outcome


def give_up(app: Stepfast, run_id: str, number: int) -> None:
    """A partition fails, as if its job had."""
    with app.transaction() as tx:
        found = find_partition(tx, str(partition(app, run_id, number)["id"]))
        assert found is not None
        assert end_partition(tx, found, PartitionState.FAILED, "it gave up")
        failed = found.moved(state=PartitionState.FAILED)
        partition_ended(tx, app.feeds.get("catalogue"), failed, "it gave up")


def plan_of(app: Stepfast, run_id: str) -> Any:
    """What the step that plans a run would commit now."""
    return asyncio.run(app.feeds.kind("catalogue", "plan").handler(a_step(), run_id, 0))


def a_step() -> SimpleNamespace:
    """As much of a step as the jobs of a feed look at."""
    return SimpleNamespace(
        attempt=1,
        worker_id="late",
        job_id=new_id(),
        fence=1,
        number=0,
        cursor=None,
        annotate=lambda **_: None,
    )


def commit(app: Stepfast, outcome: Any) -> None:
    """Apply the effects of a step, as its commit does."""
    with app.transaction() as tx:
        for effect in outcome.effects:
            effect.apply(tx)
