"""Cases of leases by hand, rescue and maintenance, and of what operators do to jobs and queues."""

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
from tests.crash.cases.case import Cases
from tests.crash.recovery import CRASH_LIMIT, effect_of
from tests.crash.setup import KEY, Setup
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Transaction
    from tests.crash.kill_points import Action

CASES = Cases()

# Leases by hand


@CASES.once
def acquire(setup: Setup) -> Action:
    setup.enqueue(2)
    return lambda: setup.app.acquire("by hand", 3600)


@CASES.once
def extend(setup: Setup) -> Action:
    setup.enqueue(2)
    held = setup.app.acquire("by hand", 3600)
    assert held is not None
    return lambda: setup.app.extend(held, 7200)


@CASES.once
def release_as_done(setup: Setup) -> Action:
    setup.enqueue()
    held = setup.app.acquire("by hand", 3600)
    assert held is not None

    def act(tx: Transaction) -> None:
        commit(tx, held.lease, Done(), [effect_of(held.lease)])  # what release('done') does, with an effect

    return lambda: setup.do(act)


@CASES.once
def release_for_a_retry(setup: Setup) -> Action:
    setup.enqueue()
    held = setup.app.acquire("by hand", 3600)
    assert held is not None
    return lambda: setup.app.release(held, "retry", "no paper")


@CASES.once
def release_as_failed(setup: Setup) -> Action:
    setup.enqueue()
    held = setup.app.acquire("by hand", 3600)
    assert held is not None
    return lambda: setup.app.release(held, "failed", "no printer")


# Taking back


@CASES.once
def declare_somebody_dead(setup: Setup) -> Action:
    setup.leased(by=setup.another_worker(silent=True))
    return lambda: setup.do(lambda tx: declare_dead(tx, setup.victim, trust_clock=True))


@CASES.once
def rescue_one(setup: Setup) -> Action:
    setup.leased(by=setup.another_worker(silent=True))
    return lambda: worker_actions.reset_leases(setup.app.database)


@CASES.once
def rescue_three(setup: Setup) -> Action:
    setup.leased(3, by=setup.another_worker(silent=True))
    return lambda: worker_actions.reset_leases(setup.app.database)


@CASES.once
def rescue_the_poison(setup: Setup) -> Action:
    setup.leased(by=setup.another_worker(silent=True))
    setup.change("UPDATE stepfast_job SET crashes = :most", most=CRASH_LIMIT - 1)
    return lambda: worker_actions.reset_leases(setup.app.database)


@CASES.once
def rescue_what_was_asked_to_stop(setup: Setup) -> Action:
    lease, _ = setup.leased(2, by=setup.another_worker(silent=True))
    setup.do(lambda tx: actions.cancel(tx, lease.job_id))
    return lambda: worker_actions.reset_leases(setup.app.database)


@CASES.once
def rescue_what_was_held_by_hand(setup: Setup) -> Action:
    setup.enqueue()
    assert setup.app.acquire("by hand", 3600)
    setup.change("UPDATE stepfast_job SET lease_until = 1")
    return lambda: setup.do(lambda tx: rescue(tx, CRASH_LIMIT))


@CASES.once
def rescue_what_belongs_to_nobody(setup: Setup) -> Action:
    setup.leased(by=setup.another_worker())
    setup.change("DELETE FROM stepfast_worker WHERE incarnation <> :victim", victim=setup.victim)
    return lambda: setup.do(lambda tx: rescue(tx, CRASH_LIMIT))


# Keeping order


@CASES.once
def promote_what_is_due(setup: Setup) -> Action:
    setup.enqueue(3)
    setup.change("UPDATE stepfast_job SET state = 'scheduled', ready_at = 1")
    return lambda: setup.do(promote)


@CASES.once
def forget_what_is_old(setup: Setup) -> Action:
    setup.ended(2)
    setup.ended(1, Bury("a dead letter", ""))
    setup.change("UPDATE stepfast_archive SET finished_at = 1")
    return lambda: setup.do(lambda tx: prune(tx, rows.DAY))


@CASES.once
def forget_old_keys(setup: Setup) -> Action:
    setup.job.enqueue(n=1, key=KEY, unique_for="1d")
    setup.change("UPDATE stepfast_key SET until_at = 1")
    return lambda: setup.do(lambda tx: forget_expired_keys(tx, 10))


@CASES.once
def forget_old_workers(setup: Setup) -> Action:
    setup.leased(by=setup.another_worker())
    rows.add_worker(setup.app, 815)
    setup.change(
        "UPDATE stepfast_worker SET state = 'dead', ended_at = 1 WHERE incarnation <> :me", me=setup.victim
    )
    return lambda: setup.do(lambda tx: tx.run(FORGET_WORKERS, age=rows.DAY))


# What an operator does


@CASES.once
def revive(setup: Setup) -> Action:
    (job_id,) = setup.ended(1, Bury("gave up", ""))
    return lambda: setup.do(lambda tx: dead_letters.revive(tx, job_id))


@CASES.repeated
def revive_all(setup: Setup) -> Action:
    setup.ended(3, Bury("gave up", ""))
    return lambda: dead_letter_actions.retry_dead(setup.app.database)


@CASES.repeated
def purge_all(setup: Setup) -> Action:
    setup.ended(2, Bury("gave up", ""))
    setup.ended(1)
    return lambda: dead_letter_actions.purge_dead(setup.app.database)


@CASES.once
def cancel_a_waiting_job(setup: Setup) -> Action:
    job_id, _ = setup.enqueue(2)
    return lambda: setup.do(lambda tx: actions.cancel(tx, job_id, "not needed"))


@CASES.repeated
def cancel_a_running_job(setup: Setup) -> Action:
    (lease,) = setup.leased()
    return lambda: setup.do(lambda tx: actions.cancel(tx, lease.job_id, "not needed"))


@CASES.once
def hasten(setup: Setup) -> Action:
    job_id = setup.job.enqueue(n=1, key=KEY, delay="1h").id
    return lambda: setup.do(lambda tx: actions.retry(tx, job_id))


@CASES.repeated
def pause_a_queue(setup: Setup) -> Action:
    setup.enqueue()
    return lambda: setup.do(lambda tx: worker_actions.pause_queue(tx, "default", "stocktaking"))


@CASES.repeated
def resume_a_queue(setup: Setup) -> Action:
    setup.enqueue()
    setup.do(lambda tx: worker_actions.pause_queue(tx, "default"))
    return lambda: setup.do(lambda tx: worker_actions.resume_queue(tx, "default"))
