"""An operator's process is killed before every statement, and after every COMMIT, of everything he does to runs.

Afterwards it is done as a whole, with its audit row, or not at all. If not, he does it again. Then the run comes to its
end, with the right rows and exact counters.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from holdfast import Holdfast
from tests import rows
from tests.contract.repairing import broken_at, catalogue, check_counters, run_row, run_steps, settle
from tests.crash.points import die_at, recorded
from tests.crash.sample import SEED, Sample
from tests.feeds import Catalogue, price_ranges, target
from tests.snapshots import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.crash.points import Act
    from tests.feeds import Shop

SECOND = price_ranges(250, 500, 750)[1].name
MOST = 4  # points that a server is tried at
ENDS = {"retry": "completed", "retry_from_start": "completed", "force": "published_partial", "cancel": "cancelled", "resume": "completed"}  # fmt: skip


def retry(app: Holdfast, shop: Shop) -> Act:
    run_id = failed(app, shop)
    return lambda: app.runs.retry(run_id)


def retry_from_start(app: Holdfast, shop: Shop) -> Act:
    run_id = failed(app, shop)
    return lambda: app.runs.retry(run_id, from_start=True)


def force(app: Holdfast, shop: Shop) -> Act:
    run_id = failed(app, shop)
    return lambda: app.runs.consolidate(run_id, force=True)


def cancel(app: Holdfast, shop: Shop) -> Act:  # noqa: ARG001 - the others look at it
    run = app.runs.start("catalogue")
    run_steps(app, 4)
    return lambda: app.runs.cancel(run.id)


def resume(app: Holdfast, shop: Shop) -> Act:
    cancel(app, shop)()
    return lambda: app.runs.resume("catalogue")


def failed(app: Holdfast, shop: Shop) -> str:
    shop.before = broken_at(("page", SECOND, 5))
    run = app.runs.start("catalogue")
    settle(app)
    shop.before = lambda *_: None
    return run.id


@pytest.mark.parametrize("arrange", [retry, retry_from_start, force, cancel, resume])
def test_an_operator_may_die_at_any_point(
    arrange: Callable[[Holdfast, Shop], Act], database_url: str, sample: Sample
) -> None:
    with closing(Holdfast(database_url)) as app, closing(Holdfast(database_url)) as observer:
        shop = catalogue(app, items=64)
        observer.feed(Catalogue(shop))
        act = arrange(app, shop)
        before = Snapshot.taken(observer)
        states = [picture(observer)]
        points = recorded(act, lambda: states.append(picture(observer)))
        deadly = [it for it in points if it.phase == "before" or it.text == "COMMIT"]
        assert len(states) > 1
        for point in sample.of(arrange.__name__, deadly, MOST):
            before.restore(app)
            if (
                sample.database_kind == "sqlite"
            ):  # its locks are kept per process: a child must not inherit open files
                app.database.close()
                observer.database.close()
            die_at(point, act)
            where = f"{arrange.__name__}, {point} of {len(points)} (HOLDFAST_CRASH_SEED={SEED})"

            assert picture(observer) == states[point.commits], where
            if not point.commits:
                act()
            settle(app)
            check(app, shop, ENDS[arrange.__name__])


def check(app: Holdfast, shop: Shop, state: str) -> None:
    run = run_row(app, "catalogue")
    assert run.state == state
    check_counters(app, run.id)
    if state == "completed":
        assert target(app) == shop.prices()
    assert rows.count(app, "holdfast_job") == 0
    written = [it["what"] for it in rows.query(app, "SELECT what FROM holdfast_audit")]
    assert len(written) == len(set(written)), "each action is written down once"


def picture(app: Holdfast) -> dict[str, object]:
    """What is committed, without what differs from one time to the next."""
    run = run_row(app, "catalogue")
    return {
        "run": (run.state, run.completed, run.failed, run.seen, run.forced, run.reason),
        "epoch": rows.query(app, "SELECT epoch, active_feed FROM holdfast_run"),
        "partitions": rows.query(
            app, "SELECT number, state, epoch, seq, seen, next_offset FROM holdfast_partition ORDER BY number"
        ),
        "seen": rows.count(app, "holdfast_seen"),
        "jobs": rows.query(
            app, "SELECT kind, state, count(*) AS n FROM holdfast_job GROUP BY kind, state ORDER BY 1, 2"
        ),
        "ended": rows.query(
            app, "SELECT kind, state, count(*) AS n FROM holdfast_archive GROUP BY kind, state ORDER BY 1, 2"
        ),
        "debts": rows.query(app, "SELECT name, state, tries FROM holdfast_debt"),
        "audit": rows.query(app, "SELECT what, touched FROM holdfast_audit ORDER BY what"),
    }
