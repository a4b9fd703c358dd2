"""What is cut short, second part: leases by hand, taking back, keeping order, and what an operator does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast import Done
from stepfast.admin import dead_letters as dead_letter_actions
from stepfast.admin import jobs as actions
from stepfast.admin import workers as worker_actions
from stepfast.jobs import dead_letters
from stepfast.jobs.commit import commit
from stepfast.jobs.keys import forget_expired_keys
from stepfast.jobs.outcome import Bury
from stepfast.jobs.rescue import declare_dead, rescue
from stepfast.worker.maintenance import FORGET_WORKERS, promote, prune
from tests.crash.cases.case import Operations
from tests.crash.recovery import CRASH_LIMIT, effect_of
from tests.crash.setup import KEY, Scene
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Transaction
    from tests.crash.kill_points import Act

OPERATIONS = Operations()

# Leases by hand


@OPERATIONS.once
def acquire(scene: Scene) -> Act:
    scene.enqueue(2)
    return lambda: scene.app.acquire("by hand", 3600)


@OPERATIONS.once
def extend(scene: Scene) -> Act:
    scene.enqueue(2)
    held = scene.app.acquire("by hand", 3600)
    assert held is not None
    return lambda: scene.app.extend(held, 7200)


@OPERATIONS.once
def release_as_done(scene: Scene) -> Act:
    scene.enqueue()
    held = scene.app.acquire("by hand", 3600)
    assert held is not None

    def act(tx: Transaction) -> None:
        commit(tx, held.lease, Done(), [effect_of(held.lease)])  # what release('done') does, with an effect

    return lambda: scene.do(act)


@OPERATIONS.once
def release_for_a_retry(scene: Scene) -> Act:
    scene.enqueue()
    held = scene.app.acquire("by hand", 3600)
    assert held is not None
    return lambda: scene.app.release(held, "retry", "no paper")


@OPERATIONS.once
def release_as_failed(scene: Scene) -> Act:
    scene.enqueue()
    held = scene.app.acquire("by hand", 3600)
    assert held is not None
    return lambda: scene.app.release(held, "failed", "no printer")


# Taking back


@OPERATIONS.once
def declare_somebody_dead(scene: Scene) -> Act:
    scene.leased(by=scene.another_worker(silent=True))
    return lambda: scene.do(lambda tx: declare_dead(tx, scene.victim, trust_clock=True))


@OPERATIONS.once
def rescue_one(scene: Scene) -> Act:
    scene.leased(by=scene.another_worker(silent=True))
    return lambda: worker_actions.reset_leases(scene.app.database)


@OPERATIONS.once
def rescue_three(scene: Scene) -> Act:
    scene.leased(3, by=scene.another_worker(silent=True))
    return lambda: worker_actions.reset_leases(scene.app.database)


@OPERATIONS.once
def rescue_the_poison(scene: Scene) -> Act:
    scene.leased(by=scene.another_worker(silent=True))
    scene.change("UPDATE stepfast_job SET crashes = :most", most=CRASH_LIMIT - 1)
    return lambda: worker_actions.reset_leases(scene.app.database)


@OPERATIONS.once
def rescue_what_was_asked_to_stop(scene: Scene) -> Act:
    lease, _ = scene.leased(2, by=scene.another_worker(silent=True))
    scene.do(lambda tx: actions.cancel(tx, lease.job_id))
    return lambda: worker_actions.reset_leases(scene.app.database)


@OPERATIONS.once
def rescue_what_was_held_by_hand(scene: Scene) -> Act:
    scene.enqueue()
    assert scene.app.acquire("by hand", 3600)
    scene.change("UPDATE stepfast_job SET lease_until = 1")
    return lambda: scene.do(lambda tx: rescue(tx, CRASH_LIMIT))


@OPERATIONS.once
def rescue_what_belongs_to_nobody(scene: Scene) -> Act:
    scene.leased(by=scene.another_worker())
    scene.change("DELETE FROM stepfast_worker WHERE incarnation <> :victim", victim=scene.victim)
    return lambda: scene.do(lambda tx: rescue(tx, CRASH_LIMIT))


# Keeping order


@OPERATIONS.once
def promote_what_is_due(scene: Scene) -> Act:
    scene.enqueue(3)
    scene.change("UPDATE stepfast_job SET state = 'scheduled', ready_at = 1")
    return lambda: scene.do(promote)


@OPERATIONS.once
def forget_what_is_old(scene: Scene) -> Act:
    scene.ended(2)
    scene.ended(1, Bury("a dead letter", ""))
    scene.change("UPDATE stepfast_archive SET finished_at = 1")
    return lambda: scene.do(lambda tx: prune(tx, rows.DAY))


@OPERATIONS.once
def forget_old_keys(scene: Scene) -> Act:
    scene.job.enqueue(n=1, key=KEY, unique_for="1d")
    scene.change("UPDATE stepfast_key SET until_at = 1")
    return lambda: scene.do(lambda tx: forget_expired_keys(tx, 10))


@OPERATIONS.once
def forget_old_workers(scene: Scene) -> Act:
    scene.leased(by=scene.another_worker())
    rows.add_worker(scene.app, 815)
    scene.change(
        "UPDATE stepfast_worker SET state = 'dead', ended_at = 1 WHERE incarnation <> :me", me=scene.victim
    )
    return lambda: scene.do(lambda tx: tx.run(FORGET_WORKERS, age=rows.DAY))


# What an operator does


@OPERATIONS.once
def revive(scene: Scene) -> Act:
    (job_id,) = scene.ended(1, Bury("gave up", ""))
    return lambda: scene.do(lambda tx: dead_letters.revive(tx, job_id))


@OPERATIONS.repeated
def revive_all(scene: Scene) -> Act:
    scene.ended(3, Bury("gave up", ""))
    return lambda: dead_letter_actions.retry_dead(scene.app.database)


@OPERATIONS.repeated
def purge_all(scene: Scene) -> Act:
    scene.ended(2, Bury("gave up", ""))
    scene.ended(1)
    return lambda: dead_letter_actions.purge_dead(scene.app.database)


@OPERATIONS.once
def cancel_a_waiting_job(scene: Scene) -> Act:
    job_id, _ = scene.enqueue(2)
    return lambda: scene.do(lambda tx: actions.cancel(tx, job_id, "not needed"))


@OPERATIONS.repeated
def cancel_a_running_job(scene: Scene) -> Act:
    (lease,) = scene.leased()
    return lambda: scene.do(lambda tx: actions.cancel(tx, lease.job_id, "not needed"))


@OPERATIONS.once
def hasten(scene: Scene) -> Act:
    job_id = scene.job.enqueue(n=1, key=KEY, delay="1h").id
    return lambda: scene.do(lambda tx: actions.retry(tx, job_id))


@OPERATIONS.repeated
def pause_a_queue(scene: Scene) -> Act:
    scene.enqueue()
    return lambda: scene.do(lambda tx: worker_actions.pause_queue(tx, "default", "stocktaking"))


@OPERATIONS.repeated
def resume_a_queue(scene: Scene) -> Act:
    scene.enqueue()
    scene.do(lambda tx: worker_actions.pause_queue(tx, "default"))
    return lambda: scene.do(lambda tx: worker_actions.resume_queue(tx, "default"))
