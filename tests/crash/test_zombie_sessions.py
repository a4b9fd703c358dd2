"""A process stops in the middle of a transaction, and its session keeps its locks: other workers wait or skip.

(On SQLite such a process holds the only write lock, and everybody waits until it goes on or dies.)
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from stepfast import Stepfast
from stepfast.database.database import persist
from stepfast.jobs.lease import claim
from stepfast.jobs.rescue import Rescued, declare_dead, rescue
from tests.crash.conftest import make_effect_table
from tests.crash.kill_points import FAILED, UNHARMED, Action, Child
from tests.crash.recovery import CRASH_LIMIT, RecoveringWorker, check_promises, expected_ends
from tests.crash.setup import Setup, work
from tests.support import rows

pytestmark = pytest.mark.only_on("postgresql", "mariadb")


@pytest.fixture
def app(database_url: str) -> Iterator[Stepfast]:
    with closing(Stepfast(database_url)) as app:
        make_effect_table(app)
        yield app


def test_a_step_that_stopped_before_its_commit_is_left_alone_until_it_goes_on(app: Stepfast) -> None:
    setup = Setup(app, app.job()(work))
    (lease,) = setup.leased()
    zombie = _stopped_before_commit(lambda: setup.end(lease))

    rescued = _rescue(app, silent=setup.victim)
    claimed = setup.do(lambda tx: claim(tx, "default", 4711, 10))
    zombie.signal(signal.SIGCONT)

    assert (rescued, claimed) == (Rescued(), [])
    assert zombie.ended() == UNHARMED  # it was late, but nobody had replaced it
    check_promises(app, {lease.job_id: ("done", 0, 0, 0)})


def test_a_claim_that_stopped_before_its_commit_does_not_keep_others_from_claiming(app: Stepfast) -> None:
    setup = Setup(app, app.job()(work))
    first, second, third = setup.enqueue(3)
    zombie = _stopped_before_commit(lambda: setup.do(lambda tx: claim(tx, "default", setup.victim, 2)))

    claimed = setup.do(lambda tx: claim(tx, "default", 4711, 10))
    zombie.signal(signal.SIGCONT)

    assert [it.job_id for it in claimed] == [third]
    assert zombie.ended() == UNHARMED
    assert rows.count(app, "stepfast_job", f"owner = {setup.victim} AND id IN ('{first}', '{second}')") == 2


def test_a_claim_that_commits_after_its_owner_was_buried_charges_nobody(app: Stepfast) -> None:
    """One step was running when its owner was declared dead. Those claimed in the same moment never ran."""
    setup = Setup(app, app.job()(work))
    (guilty,) = setup.leased()
    innocent = setup.enqueue(2)
    zombie = _stopped_before_commit(lambda: setup.do(lambda tx: claim(tx, "default", setup.victim, 2)))
    _rescue(app, silent=setup.victim)

    zombie.signal(signal.SIGCONT)
    assert zombie.ended() == UNHARMED
    RecoveringWorker(app).finish_everything()

    expected = {guilty.job_id: ("done", 0, 0, 1), **dict.fromkeys(innocent, ("done", 0, 0, 0))}
    check_promises(app, expected)


@pytest.mark.chaos
def test_the_server_ends_a_session_that_hangs_in_a_step(app: Stepfast) -> None:
    setup = Setup(app, app.job()(work))
    (lease,) = setup.leased()
    zombie = _stopped_before_commit(lambda: setup.end(lease))
    stopped = time.monotonic()

    rows.eventually(lambda: _rescue(app, silent=setup.victim).jobs, patience=20)
    took = time.monotonic() - stopped
    expected = expected_ends(app)
    RecoveringWorker(app).finish_everything()
    zombie.signal(signal.SIGCONT)

    assert took < 15
    assert zombie.ended() == FAILED  # its COMMIT found no session
    check_promises(app, expected)


def _stopped_before_commit(act: Action) -> Child:
    """A forked child that has done everything but its COMMIT."""
    child = Child(act, StopBeforeCommit())
    child.stopped()
    return child


class StopBeforeCommit:
    """Stops this process when it is about to commit for the first time."""

    def __init__(self) -> None:
        self._done = False

    def __call__(self, phase: str, text: str) -> None:
        if text == "COMMIT" and phase == "before" and not self._done:
            self._done = True
            signal.raise_signal(signal.SIGSTOP)


def _rescue(app: Stepfast, *, silent: int) -> Rescued:
    """What another worker does once the owner's lease has run out."""
    rows.change(app, "UPDATE stepfast_worker SET alive_until = 1 WHERE incarnation = :silent", silent=silent)
    persist(app.database, lambda tx: declare_dead(tx, 0, trust_clock=True))
    return persist(app.database, lambda tx: rescue(tx, CRASH_LIMIT))
