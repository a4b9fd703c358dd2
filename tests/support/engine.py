"""Claim, commit and rescue, each in a transaction of its own, as a worker does it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from stepfast.jobs import commit, lease, rescue
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Job, Stepfast
    from stepfast.jobs.lease import Lease
    from stepfast.jobs.outcome import Effect, Ending
    from stepfast.jobs.rescue import Rescued

ALICE, BOB = 11, 22  # incarnations


def register_work(app: Stepfast) -> Job[..., None]:
    """Register the kind `work` with an application of the test."""
    return app.job()(work)


def work(n: int = 0) -> None:
    """Never called: tests claim and commit by themselves."""


def claim(app: Stepfast, owner: int = ALICE, limit: int = 1, queue: str = "default") -> list[Lease]:
    with app.transaction() as tx:
        return lease.claim(tx, queue, owner, limit)


def take(app: Stepfast, owner: int = ALICE, queue: str = "default") -> Lease:
    """Claim the one job that is ready."""
    (taken,) = claim(app, owner, queue=queue)
    return taken


def commit_step(
    app: Stepfast, taken: Lease, ending: Ending, *effects: Effect, stay: bool = False
) -> int | None:
    """Commit a step; returns the fence of a continuation that stays."""
    with app.transaction() as tx:
        stay = stay and not commit.more_urgent(tx, taken.queue, taken.priority)
        return commit.commit(tx, taken, ending, effects, stay=stay)


def rescue_all(app: Stepfast, crash_limit: int = 3) -> Rescued:
    """Declare silent processes dead and take back what they held."""
    with app.transaction() as tx:
        rescue.declare_dead(tx, me=0, trust_clock=True)
    with app.transaction() as tx:
        return rescue.rescue(tx, crash_limit)


def make_silent(app: Stepfast, owner: int, seconds: int = 1) -> None:
    """Make a worker silent: its lease ran out this long ago."""
    matched = rows.change(
        app,
        "UPDATE stepfast_worker SET alive_until = :at WHERE incarnation = :owner",
        at=rows.now(app) - seconds * rows.SECOND,
        owner=owner,
    )
    assert matched == 1


def wait_until_somebody_waits(app: Stepfast) -> None:
    """Wait until a session of the server waits for a lock of another session."""
    rows.eventually(lambda: somebody_waits(app))


def somebody_waits(app: Stepfast) -> bool:
    """Whether a session of the server waits for a lock of another session."""
    look = {
        "mariadb": "SELECT variable_value + 0 AS n FROM information_schema.global_status"
        " WHERE variable_name = 'Innodb_row_lock_current_waits'",
        "postgresql": "SELECT count(*) AS n FROM pg_locks WHERE NOT granted",
    }[app.database.dialect.name]
    return bool(rows.query(app, look)[0]["n"])


def together(acts: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make all calls at the same moment; returns what each returned or raised."""
    barrier = threading.Barrier(len(acts))

    def act(one: Callable[[], Any]) -> Any:
        barrier.wait(10)
        try:
            return one()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error

    with ThreadPoolExecutor(len(acts)) as threads:
        return list(threads.map(act, acts))


def drain(app: Stepfast, **settings: Any) -> None:
    """Let a worker run until no unfinished job is left."""
    with app.worker(**settings):
        rows.eventually(lambda: rows.count(app, "stepfast_job") == 0)
