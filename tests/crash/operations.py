"""Everything the engine writes, one operation each: first the scene is arranged, then `act` is what gets cut short.

An operation that is `repeated` is one whose caller asks again when it saw no answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast import Continue, Done, Reject, Snooze
from holdfast.admin import actions
from holdfast.steps import dead_letters
from holdfast.steps.commit import acknowledge, commit, give_back
from holdfast.steps.fate import fates
from holdfast.steps.keys import forget_expired
from holdfast.steps.lease import claim, claim_suspect
from holdfast.steps.outcome import Again, Bury, Call, GiveBack, Stop
from holdfast.steps.reports import write_reports
from holdfast.steps.rescue import declare_dead, rescue
from holdfast.steps.step import Report
from holdfast.worker.incarnation import RESIGN, register, stay_alive
from holdfast.worker.maintenance import GONE_WORKERS, promote, prune
from tests import rows
from tests.crash.scenes import KEY, SETTINGS, Scene
from tests.crash.survivor import CRASH_LIMIT, effect_of

if TYPE_CHECKING:
    from holdfast import Transaction
    from tests.crash.points import Act

HOUR = timedelta(hours=1)
Arrange = Callable[[Scene], "Act"]


@dataclass(frozen=True)
class Operation:
    name: str
    arrange: Arrange
    repeated: bool


OPERATIONS: dict[str, Operation] = {}


def operation(arrange: Arrange, *, repeated: bool = False) -> Arrange:
    name = arrange.__name__
    assert name not in OPERATIONS
    OPERATIONS[name] = Operation(name, arrange, repeated)
    return arrange


def repeated(arrange: Arrange) -> Arrange:
    return operation(arrange, repeated=True)


# Asking for jobs


@operation
def enqueue(scene: Scene) -> Act:
    return lambda: scene.job.enqueue(n=1)


@repeated
def enqueue_under_a_key(scene: Scene) -> Act:
    return lambda: scene.job.enqueue(n=1, key=KEY, on_duplicate="skip")


@repeated
def enqueue_under_a_remembered_key(scene: Scene) -> Act:
    return lambda: scene.job.enqueue(n=1, key=KEY, unique_for="1d", on_duplicate="skip")


@repeated
def enqueue_under_an_id(scene: Scene) -> Act:
    return lambda: scene.job.enqueue(n=1, id="order-17", delay="1h")


@repeated
def enqueue_many(scene: Scene) -> Act:
    calls = [{"n": n} for n in (1, 2, 3)]
    return lambda: scene.job.enqueue_many(calls, keys=["a", "b", "c"], on_duplicate="skip")


@operation
def enqueue_beside_rows_of_ones_own(scene: Scene) -> Act:
    def act() -> None:
        with scene.app.transaction() as tx:
            tx.execute(
                "INSERT INTO holdfast_log (job_id, at, level, step, message) VALUES ('mine', 1, '', 0, '')"
            )
            scene.job.enqueue(n=1, tx=tx, key=KEY)

    return act


@repeated
def replace_a_running_job(scene: Scene) -> Act:
    scene.leased()
    return lambda: scene.job.enqueue(n=1, steps=2, key=KEY, on_duplicate="replace")


# Taking them


@operation
def claim_three(scene: Scene) -> Act:
    scene.enqueue(4)
    return lambda: scene.do(lambda tx: claim(tx, "default", scene.victim, 3))


@operation
def claim_from_a_hint(scene: Scene) -> Act:
    scene.enqueue(2)
    return lambda: scene.do(lambda tx: claim(tx, "default", scene.victim, 1, (0, 1)))


@operation
def claim_a_suspect(scene: Scene) -> Act:
    scene.enqueue(2)
    scene.change("UPDATE holdfast_job SET state = 'suspect'")
    return lambda: scene.do(lambda tx: claim_suspect(tx, scene.victim, []))


# Being alive


@operation
def begin_to_exist(scene: Scene) -> Act:
    scene.leased()
    return lambda: scene.do(lambda tx: register(tx, SETTINGS))


@operation
def stay_alive_with_a_job(scene: Scene) -> Act:
    (lease,) = scene.leased()
    return lambda: scene.do(lambda tx: stay_alive(tx, scene.victim, SETTINGS, [lease.job_id]))


@operation
def resign_with_a_job(scene: Scene) -> Act:
    scene.leased()
    return lambda: scene.do(lambda tx: tx.run(RESIGN, incarnation=scene.victim))


# Ending a step


@operation
def done(scene: Scene) -> Act:
    (lease,) = scene.leased()
    return lambda: scene.end(lease, Done({"sum": 3}))


@operation
def done_beside_others(scene: Scene) -> Act:
    lease, _, _ = scene.leased(3)
    return lambda: scene.end(lease)


@operation
def done_with_last_words(scene: Scene) -> Act:
    """As the worker ends a step that said something which nobody wrote yet."""
    (lease,) = scene.leased()
    said = [Report(lease, None, None, "info", "almost"), Report(lease, 99, "there", None, None)]
    return lambda: scene.end(lease, effects=[Call(lambda tx: write_reports(tx, said)), effect_of(lease)])


@operation
def acknowledge_three(scene: Scene) -> Act:
    leases = scene.leased(3)

    def act(tx: Transaction) -> None:
        for lease in leases:
            effect_of(lease).apply(tx)
        assert (
            len(acknowledge(tx, [(lease, '"ok"' if lease is leases[1] else None) for lease in leases])) == 3
        )

    return lambda: scene.do(act)


@operation
def continue_anywhere(scene: Scene) -> Act:
    (lease,) = scene.leased(steps=2)
    return lambda: scene.end(lease, Continue(1))


@operation
def continue_later(scene: Scene) -> Act:
    (lease,) = scene.leased(steps=3)
    return lambda: scene.end(lease, Continue(1, delay="1h"))


@operation
def continue_here(scene: Scene) -> Act:
    (lease,) = scene.leased(steps=2)

    def act(tx: Transaction) -> None:
        assert commit(tx, lease, Continue(1), [effect_of(lease)], stay=True)

    return lambda: scene.do(act)


@operation
def snooze(scene: Scene) -> Act:
    (lease,) = scene.leased()
    return lambda: scene.end(lease, Snooze("1h"), effects=())


@operation
def fail(scene: Scene) -> Act:
    (lease,) = scene.leased()
    return lambda: scene.end(lease, Again(HOUR, "no answer", "no answer"), effects=())


@operation
def fail_at_no_charge(scene: Scene) -> Act:
    (lease,) = scene.leased()
    return lambda: scene.end(lease, Again(HOUR, "throttled", "", charged=False), effects=())


@operation
def give_up(scene: Scene) -> Act:
    (lease,) = scene.leased()
    return lambda: scene.end(lease, Bury("third time", "third time"), effects=())


@operation
def reject(scene: Scene) -> Act:
    lease, _ = scene.leased(2)
    return lambda: scene.end(lease, Reject("not a number"), effects=())


@operation
def stop(scene: Scene) -> Act:
    (lease,) = scene.leased()
    scene.do(lambda tx: actions.cancel(tx, lease.job_id))
    return lambda: scene.end(lease, Stop("as asked"), effects=())


@operation
def snooze_when_asked_to_stop(scene: Scene) -> Act:
    (lease,) = scene.leased()
    scene.do(lambda tx: actions.cancel(tx, lease.job_id))
    return lambda: scene.end(lease, Snooze("1h"), effects=())


@operation
def give_one_back(scene: Scene) -> Act:
    (lease,) = scene.leased()
    return lambda: scene.end(lease, GiveBack(), effects=())


@operation
def give_three_back(scene: Scene) -> Act:
    leases = scene.leased(3)
    scene.do(lambda tx: actions.cancel(tx, leases[2].job_id))
    return lambda: scene.do(lambda tx: give_back(tx, [it.job_id for it in leases], leases[0].fence))


@operation
def look_at_the_fences(scene: Scene) -> Act:
    lease, other = scene.leased(2)
    scene.end(other)
    return lambda: scene.do(lambda tx: fates(tx, [lease, other]))


@operation
def report(scene: Scene) -> Act:
    lease, other = scene.leased(2)
    said = [
        Report(lease, None, None, "info", "step 1 complete"),
        Report(lease, 33, "one of three", None, None),
        Report(other, 50, None, None, None),
    ]
    return lambda: scene.do(lambda tx: write_reports(tx, said))


# Leases by hand


@operation
def acquire(scene: Scene) -> Act:
    scene.enqueue(2)
    return lambda: scene.app.acquire("by hand", 3600)


@operation
def extend(scene: Scene) -> Act:
    scene.enqueue(2)
    held = scene.app.acquire("by hand", 3600)
    assert held is not None
    return lambda: scene.app.extend(held, 7200)


@operation
def release_as_done(scene: Scene) -> Act:
    scene.enqueue()
    held = scene.app.acquire("by hand", 3600)
    assert held is not None

    def act(tx: Transaction) -> None:
        commit(tx, held.lease, Done(), [effect_of(held.lease)])  # what release('done') does, with an effect

    return lambda: scene.do(act)


@operation
def release_for_a_retry(scene: Scene) -> Act:
    scene.enqueue()
    held = scene.app.acquire("by hand", 3600)
    assert held is not None
    return lambda: scene.app.release(held, "retry", "no paper")


@operation
def release_as_failed(scene: Scene) -> Act:
    scene.enqueue()
    held = scene.app.acquire("by hand", 3600)
    assert held is not None
    return lambda: scene.app.release(held, "failed", "no printer")


# Taking back


@operation
def declare_somebody_dead(scene: Scene) -> Act:
    scene.leased(by=scene.another_worker(silent=True))
    return lambda: scene.do(lambda tx: declare_dead(tx, scene.victim, trust_clock=True))


@operation
def rescue_one(scene: Scene) -> Act:
    scene.leased(by=scene.another_worker(silent=True))
    return lambda: actions.reset_leases(scene.app.database)


@operation
def rescue_three(scene: Scene) -> Act:
    scene.leased(3, by=scene.another_worker(silent=True))
    return lambda: actions.reset_leases(scene.app.database)


@operation
def rescue_the_poison(scene: Scene) -> Act:
    scene.leased(by=scene.another_worker(silent=True))
    scene.change("UPDATE holdfast_job SET crashes = :most", most=CRASH_LIMIT - 1)
    return lambda: actions.reset_leases(scene.app.database)


@operation
def rescue_what_was_asked_to_stop(scene: Scene) -> Act:
    lease, _ = scene.leased(2, by=scene.another_worker(silent=True))
    scene.do(lambda tx: actions.cancel(tx, lease.job_id))
    return lambda: actions.reset_leases(scene.app.database)


@operation
def rescue_what_was_held_by_hand(scene: Scene) -> Act:
    scene.enqueue()
    assert scene.app.acquire("by hand", 3600)
    scene.change("UPDATE holdfast_job SET lease_until = 1")
    return lambda: scene.do(lambda tx: rescue(tx, CRASH_LIMIT))


@operation
def rescue_what_belongs_to_nobody(scene: Scene) -> Act:
    scene.leased(by=scene.another_worker())
    scene.change("DELETE FROM holdfast_worker WHERE incarnation <> :victim", victim=scene.victim)
    return lambda: scene.do(lambda tx: rescue(tx, CRASH_LIMIT))


# Keeping order


@operation
def promote_what_is_due(scene: Scene) -> Act:
    scene.enqueue(3)
    scene.change("UPDATE holdfast_job SET state = 'scheduled', ready_at = 1")
    return lambda: scene.do(promote)


@operation
def forget_what_is_old(scene: Scene) -> Act:
    scene.ended(2)
    scene.ended(1, Bury("a dead letter", ""))
    scene.change("UPDATE holdfast_archive SET finished_at = 1")
    return lambda: scene.do(lambda tx: prune(tx, rows.DAY))


@operation
def forget_old_keys(scene: Scene) -> Act:
    scene.job.enqueue(n=1, key=KEY, unique_for="1d")
    scene.change("UPDATE holdfast_key SET until_at = 1")
    return lambda: scene.do(lambda tx: forget_expired(tx, 10))


@operation
def forget_old_workers(scene: Scene) -> Act:
    scene.leased(by=scene.another_worker())
    rows.add_worker(scene.app, 815)
    scene.change(
        "UPDATE holdfast_worker SET state = 'dead', ended_at = 1 WHERE incarnation <> :me", me=scene.victim
    )
    return lambda: scene.do(lambda tx: tx.run(GONE_WORKERS, age=rows.DAY))


# What an operator does


@operation
def revive(scene: Scene) -> Act:
    (job_id,) = scene.ended(1, Bury("gave up", ""))
    return lambda: scene.do(lambda tx: dead_letters.revive(tx, job_id))


@repeated
def revive_all(scene: Scene) -> Act:
    scene.ended(3, Bury("gave up", ""))
    return lambda: actions.retry_dead(scene.app.database)


@repeated
def purge_all(scene: Scene) -> Act:
    scene.ended(2, Bury("gave up", ""))
    scene.ended(1)
    return lambda: actions.purge_dead(scene.app.database)


@operation
def cancel_a_waiting_job(scene: Scene) -> Act:
    job_id, _ = scene.enqueue(2)
    return lambda: scene.do(lambda tx: actions.cancel(tx, job_id, "not needed"))


@repeated
def cancel_a_running_job(scene: Scene) -> Act:
    (lease,) = scene.leased()
    return lambda: scene.do(lambda tx: actions.cancel(tx, lease.job_id, "not needed"))


@operation
def hasten(scene: Scene) -> Act:
    job_id = scene.job.enqueue(n=1, key=KEY, delay="1h").id
    return lambda: scene.do(lambda tx: actions.retry(tx, job_id))


@repeated
def pause_a_queue(scene: Scene) -> Act:
    scene.enqueue()
    return lambda: scene.do(lambda tx: actions.pause_queue(tx, "default", "stocktaking"))


@repeated
def resume_a_queue(scene: Scene) -> Act:
    scene.enqueue()
    scene.do(lambda tx: actions.pause_queue(tx, "default"))
    return lambda: scene.do(lambda tx: actions.resume_queue(tx, "default"))
