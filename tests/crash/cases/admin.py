"""Cases of operators' commands that work in batches and are audited, and of what is forgotten in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepfast import Done
from stepfast.admin import audit, masks
from stepfast.admin import dead_letters as dead_letter_actions
from stepfast.admin import jobs as actions
from stepfast.admin import workers as worker_actions
from stepfast.jobs import rescue
from stepfast.jobs.outcome import Bury
from stepfast.results.outcome import expire_results
from tests.crash.cases.case import Cases
from tests.support import rows

if TYPE_CHECKING:
    from types import ModuleType

    from tests.crash.kill_points import Action
    from tests.crash.setup import Setup

CASES = Cases()
ALICE = audit.Actor("alice", "the printer is back")


def in_batches_of(size: int, where: ModuleType, act: Action) -> Action:
    def patched() -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(where, "BATCH", size)
            return act()

    return patched


@CASES.repeated
def revive_in_batches(setup: Setup) -> Action:
    setup.ended(3, Bury("gave up", ""))
    return in_batches_of(
        1, dead_letter_actions, lambda: dead_letter_actions.retry_dead(setup.app.database, by=ALICE)
    )


@CASES.repeated
def purge_in_batches(setup: Setup) -> Action:
    setup.ended(3, Bury("gave up", ""))
    return in_batches_of(
        2, dead_letter_actions, lambda: dead_letter_actions.purge_dead(setup.app.database, by=ALICE)
    )


@CASES.once
def reset_leases_in_batches(setup: Setup) -> Action:
    setup.leased(3, by=setup.another_worker(silent=True))
    return in_batches_of(2, rescue, lambda: worker_actions.reset_leases(setup.app.database, by=ALICE))


@CASES.once
def retry_a_dead_letter(setup: Setup) -> Action:
    (job_id,) = setup.ended(1, Bury("gave up", ""))
    return lambda: setup.do(lambda tx: dead_letter_actions.retry_dead_letter(tx, job_id, by=ALICE))


@CASES.once
def purge_a_dead_letter(setup: Setup) -> Action:
    job_id, _ = setup.ended(2, Bury("gave up", ""))
    return lambda: setup.do(lambda tx: dead_letter_actions.purge_dead_letter(tx, job_id, by=ALICE))


@CASES.once
def retry_a_job(setup: Setup) -> Action:
    (job_id,) = setup.ended(1, Bury("gave up", ""))
    return lambda: setup.do(lambda tx: actions.retry(tx, job_id, by=ALICE))


@CASES.once
def forget_what_operators_did(setup: Setup) -> Action:
    setup.do(lambda tx: audit.record(tx, ALICE, "queue.pause", "one"))
    setup.do(lambda tx: audit.record(tx, ALICE, "queue.pause", "two"))
    setup.change("UPDATE stepfast_audit SET at = 1 WHERE subject = 'one'")
    return lambda: setup.do(lambda tx: audit.prune(tx, rows.DAY, 10))


@CASES.once
def empty_old_results(setup: Setup) -> Action:
    for lease in setup.leased(2, steps=0):
        setup.end(lease, Done({"pages": 3}), effects=())
    setup.change("UPDATE stepfast_archive SET finished_at = 1")
    return lambda: setup.do(lambda tx: expire_results(tx, "work", rows.DAY, 10))


@CASES.repeated
def declare_what_is_hidden(setup: Setup) -> Action:
    setup.do(lambda tx: masks.declare(tx, ["password", "old"]))
    setup.change("UPDATE stepfast_mask SET seen_at = 1")
    return lambda: setup.do(lambda tx: masks.declare(tx, ["password", "token"]))
