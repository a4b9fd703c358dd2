"""What is cut short, fourth part: commands that work in batches and are written down, and what is forgotten in time."""

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
from tests.crash.cases.case import Operations
from tests.support import rows

if TYPE_CHECKING:
    from types import ModuleType

    from tests.crash.kill_points import Act
    from tests.crash.setup import Scene

OPERATIONS = Operations()
ALICE = audit.Actor("alice", "the printer is back")


def in_batches_of(size: int, where: ModuleType, act: Act) -> Act:
    def patched() -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(where, "BATCH", size)
            return act()

    return patched


@OPERATIONS.repeated
def revive_in_batches(scene: Scene) -> Act:
    scene.ended(3, Bury("gave up", ""))
    return in_batches_of(
        1, dead_letter_actions, lambda: dead_letter_actions.retry_dead(scene.app.database, by=ALICE)
    )


@OPERATIONS.repeated
def purge_in_batches(scene: Scene) -> Act:
    scene.ended(3, Bury("gave up", ""))
    return in_batches_of(
        2, dead_letter_actions, lambda: dead_letter_actions.purge_dead(scene.app.database, by=ALICE)
    )


@OPERATIONS.once
def reset_leases_in_batches(scene: Scene) -> Act:
    scene.leased(3, by=scene.another_worker(silent=True))
    return in_batches_of(2, rescue, lambda: worker_actions.reset_leases(scene.app.database, by=ALICE))


@OPERATIONS.once
def retry_a_dead_letter(scene: Scene) -> Act:
    (job_id,) = scene.ended(1, Bury("gave up", ""))
    return lambda: scene.do(lambda tx: dead_letter_actions.retry_dead_letter(tx, job_id, by=ALICE))


@OPERATIONS.once
def purge_a_dead_letter(scene: Scene) -> Act:
    job_id, _ = scene.ended(2, Bury("gave up", ""))
    return lambda: scene.do(lambda tx: dead_letter_actions.purge_dead_letter(tx, job_id, by=ALICE))


@OPERATIONS.once
def retry_a_job(scene: Scene) -> Act:
    (job_id,) = scene.ended(1, Bury("gave up", ""))
    return lambda: scene.do(lambda tx: actions.retry(tx, job_id, by=ALICE))


@OPERATIONS.once
def forget_what_operators_did(scene: Scene) -> Act:
    scene.do(lambda tx: audit.record(tx, ALICE, "queue.pause", "one"))
    scene.do(lambda tx: audit.record(tx, ALICE, "queue.pause", "two"))
    scene.change("UPDATE stepfast_audit SET at = 1 WHERE subject = 'one'")
    return lambda: scene.do(lambda tx: audit.prune(tx, rows.DAY, 10))


@OPERATIONS.once
def empty_old_results(scene: Scene) -> Act:
    for lease in scene.leased(2, steps=0):
        scene.end(lease, Done({"pages": 3}), effects=())
    scene.change("UPDATE stepfast_archive SET finished_at = 1")
    return lambda: scene.do(lambda tx: expire_results(tx, "work", rows.DAY, 10))


@OPERATIONS.repeated
def declare_what_is_hidden(scene: Scene) -> Act:
    scene.do(lambda tx: masks.declare(tx, ["password", "old"]))
    scene.change("UPDATE stepfast_mask SET seen_at = 1")
    return lambda: scene.do(lambda tx: masks.declare(tx, ["password", "token"]))
