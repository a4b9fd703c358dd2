"""An operator's process is killed before every statement, and after every COMMIT, of every repair of a run.

Afterwards the repair is done as a whole, with its audit entry, or not at all. If not, the operator repeats it. Then the
run comes to its end, with the right rows and exact counters.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from stepfast import Stepfast
from tests.crash.cases import sweeps_and_replays
from tests.crash.daily_sample import SEED, Sample
from tests.crash.kill_points import die_at, kill_points, recorded
from tests.crash.recorded_run import dump
from tests.support import rows
from tests.support.failing_runs import broken_at, check_counters, run_row, run_steps, work_until_idle
from tests.support.feeds import Catalogue, Shop, prepare, price_ranges, target
from tests.support.rows import Snapshot
from tests.support.run_facts import run_of
from tests.support.single_threaded_worker import SingleThreadedWorker

if TYPE_CHECKING:
    from stepfast.runs.run import Run
    from tests.crash.kill_points import Action

SECOND = price_ranges(250, 500, 750)[1].name
MOST = 4  # points that a server is tried at

Prepare = Callable[[Stepfast, Shop], "Action"]
Check = Callable[[Stepfast, Shop], None]


@dataclass(frozen=True)
class OperatorCase:
    """What an operator does: `arrange` brings its moment about.

    `batches`: it commits several times, and is done again wherever it was killed.
    """

    prepare: Prepare
    check: Check
    shop: Callable[[], Shop] = lambda: Shop.with_items(64)
    feed: Callable[[Shop], Catalogue] = Catalogue
    batches: bool = False


def retry(app: Stepfast, shop: Shop) -> Action:
    run_id = failed(app, shop)
    return lambda: app.runs.retry(run_id)


def retry_from_start(app: Stepfast, shop: Shop) -> Action:
    run_id = failed(app, shop)
    return lambda: app.runs.retry(run_id, from_start=True)


def force(app: Stepfast, shop: Shop) -> Action:
    run_id = failed(app, shop)
    return lambda: app.runs.consolidate(run_id, force=True)


def cancel(app: Stepfast, shop: Shop) -> Action:  # noqa: ARG001 - the others look at it
    run = app.runs.start("catalogue")
    run_steps(app, 4)
    return lambda: app.runs.cancel(run.id)


def resume(app: Stepfast, shop: Shop) -> Action:
    cancel(app, shop)()
    return lambda: app.runs.resume("catalogue")


def failed(app: Stepfast, shop: Shop) -> str:
    shop.before = broken_at(("page", SECOND, 5))
    run = app.runs.start("catalogue")
    work_until_idle(app)
    shop.before = lambda *_: None
    return run.id


def held(app: Stepfast, shop: Shop) -> str:
    """A run whose sweep waits for a person."""
    run = sweeps_and_replays.begin_after_a_loss(app, shop)
    sweeps_and_replays.work_on(SingleThreadedWorker(app, "earlier"))
    return run.id


def approve(app: Stepfast, shop: Shop) -> Action:
    run_id = held(app, shop)
    return lambda: app.operator.by("ann", reason="a supplier left").approve_sweep(run_id)


def decline(app: Stepfast, shop: Shop) -> Action:
    run_id = held(app, shop)
    return lambda: app.operator.by("ann", reason="the source lost them").decline_sweep(run_id)


def undo(app: Stepfast, shop: Shop) -> Action:
    approve(app, shop)()
    work_until_idle(app)
    return lambda: app.operator.by("ann", reason="the source was wrong").undo_sweep("catalogue")


def remap(app: Stepfast, shop: Shop) -> Action:
    sweeps_and_replays.mend(app, shop)
    return lambda: app.runs.remap("catalogue")


def replay(app: Stepfast, shop: Shop) -> Action:
    sweeps_and_replays.mend(app, shop)
    return app.operator.quarantine.replay


def ends_as(state: str) -> Check:
    """The run ends so, with exact counters."""

    def check(app: Stepfast, shop: Shop) -> None:
        run = run_row(app, "catalogue")
        assert run.state == state
        check_counters(app, run.id)
        if state == "completed":
            assert target(app) == shop.prices()
        written_once(app)

    return check


def approved(app: Stepfast, shop: Shop) -> None:
    sweeps_and_replays.check_swept(
        app, newest(app), struck=len(sweeps_and_replays.LOST), gone=len(sweeps_and_replays.LOST)
    )
    assert target(app) == shop.prices()
    written_once(app)


def declined(app: Stepfast, shop: Shop) -> None:
    run = newest(app)
    assert (run.state, run.gone, run.watermark_after) == ("completed", 0, run.window_to)
    assert len(target(app)) == len(shop.prices()) + len(sweeps_and_replays.LOST)
    assert rows.count(app, "stepfast_raw", "strikes > 0") == 0
    written_once(app)


def undone(app: Stepfast, shop: Shop) -> None:
    assert newest(app).gone == 0
    assert len(target(app)) == len(shop.prices()) + len(sweeps_and_replays.LOST)
    assert rows.count(app, "stepfast_raw", "gone_at IS NOT NULL OR strikes > 0 OR applied_hash IS NULL") == 0
    assert touched(app, "sweep.undo") == len(sweeps_and_replays.LOST)


def remapped(app: Stepfast, shop: Shop) -> None:
    sweeps_and_replays.remapped(app, newest(app), shop)
    written_once(app)


def replayed(app: Stepfast, shop: Shop) -> None:
    sweeps_and_replays.replayed(app, newest(app), shop)
    assert touched(app, "quarantine.replay") >= len(sweeps_and_replays.REFUSED) + 1, (
        "who asks twice is heard twice"
    )


def newest(app: Stepfast) -> Run:
    return run_of(app, run_row(app, "catalogue").id)


def written_once(app: Stepfast) -> None:
    written = [it["what"] for it in rows.query(app, "SELECT what FROM stepfast_audit")]
    assert len(written) == len(set(written)), "each action is written down once"


def touched(app: Stepfast, what: str) -> int:
    """How much all commands of this name say that they did."""
    found = rows.query(app, "SELECT touched FROM stepfast_audit WHERE what = :what", what=what)
    return sum(int(it["touched"]) for it in found)


HELD = {"shop": sweeps_and_replays.of_items, "feed": sweeps_and_replays.swept_feed(strikes=1, fuse=0.05)}
CASES = {
    "retry": OperatorCase(retry, ends_as("completed")),
    "retry from the start": OperatorCase(retry_from_start, ends_as("completed")),
    "force": OperatorCase(force, ends_as("published_partial")),
    "cancel": OperatorCase(cancel, ends_as("cancelled")),
    "resume": OperatorCase(resume, ends_as("completed")),
    "approve a sweep": OperatorCase(approve, approved, **HELD),
    "decline a sweep": OperatorCase(decline, declined, **HELD),
    "undo a sweep": OperatorCase(undo, undone, **HELD, batches=True),
    "remap": OperatorCase(remap, remapped, sweeps_and_replays.mended_shop, sweeps_and_replays.Doubling),
    "replay": OperatorCase(
        replay, replayed, sweeps_and_replays.mended_shop, sweeps_and_replays.Fussy, batches=True
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator_may_die_at_any_point(
    name: str, database_url: str, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps_and_replays.in_small_pieces(monkeypatch)
    action = CASES[name]
    with closing(Stepfast(database_url)) as app, closing(Stepfast(database_url)) as observer:
        shop = action.shop()
        for it in (app, observer):
            it.feed(action.feed(shop))
        prepare(app)
        act = action.prepare(app, shop)
        before = Snapshot.taken(observer)
        states = [dump(observer)]
        points = recorded(act, lambda: states.append(dump(observer)))
        assert len(states) > 1
        for point in sample.of(name, kill_points(points), MOST):
            before.restore(app)
            if (
                sample.database_kind == "sqlite"
            ):  # its locks are kept per process: a child must not inherit open files
                app.database.close()
                observer.database.close()
            die_at(point, act, observer)
            where = f"{name}, {point} of {len(points)} (STEPFAST_CRASH_SEED={SEED})"

            assert dump(observer) == states[point.commits], where
            if action.batches or not point.commits:
                act()
            work_until_idle(app)
            action.check(app, shop)
            assert rows.count(app, "stepfast_job") == 0, where
