"""What is cut short, first part: a step's life, from asking for it to its end."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from stepfast import Continue, Done, Reject, Snooze
from stepfast.admin import jobs as actions
from stepfast.database.dialects import Whose
from stepfast.database.lending import require_same_database
from stepfast.jobs.commit import commit, commit_states, finish_many, give_back
from stepfast.jobs.debounce import promote_successors
from stepfast.jobs.lease import claim, claim_suspect
from stepfast.jobs.outcome import Again, Bury, GiveBack, Stop
from stepfast.jobs.step import Report, write_reports
from stepfast.worker.heartbeat import RESIGN, register, stay_alive
from tests.crash.cases.case import Operations
from tests.crash.recovery import effect_of
from tests.crash.setup import KEY, SETTINGS, Scene

if TYPE_CHECKING:
    from stepfast import Transaction
    from tests.crash.kill_points import Act

HOUR = timedelta(hours=1)
OPERATIONS = Operations()

# Asking for jobs


@OPERATIONS.once
def enqueue(scene: Scene) -> Act:
    return lambda: scene.job.enqueue(n=1)


@OPERATIONS.repeated
def enqueue_under_a_key(scene: Scene) -> Act:
    return lambda: scene.job.enqueue(n=1, key=KEY, on_duplicate="skip")


@OPERATIONS.repeated
def enqueue_under_a_remembered_key(scene: Scene) -> Act:
    return lambda: scene.job.enqueue(n=1, key=KEY, unique_for="1d", on_duplicate="skip")


@OPERATIONS.repeated
def enqueue_under_an_id(scene: Scene) -> Act:
    return lambda: scene.job.enqueue(n=1, id="order-17", delay="1h")


@OPERATIONS.repeated
def enqueue_many(scene: Scene) -> Act:
    calls = [{"n": n} for n in (1, 2, 3)]
    return lambda: scene.job.enqueue_many(calls, keys=["a", "b", "c"], on_duplicate="skip")


@OPERATIONS.once
def enqueue_beside_rows_of_ones_own(scene: Scene) -> Act:
    def act() -> None:
        with scene.app.transaction() as tx:
            tx.execute(
                "INSERT INTO stepfast_log (job_id, at, level, step, message) VALUES ('mine', 1, '', 0, '')"
            )
            scene.job.enqueue(n=1, tx=tx, key=KEY)

    return act


@OPERATIONS.repeated
def replace_a_running_job(scene: Scene) -> Act:
    scene.leased()
    return lambda: scene.job.enqueue(n=1, steps=2, key=KEY, on_duplicate="replace")


@OPERATIONS.repeated
def merge_into_a_waiting_job(scene: Scene) -> Act:
    scene.enqueue()
    return lambda: scene.job.enqueue(n=1, steps=2, key=KEY, on_duplicate="merge")


@OPERATIONS.repeated
def merge_many(scene: Scene) -> Act:
    scene.leased()
    calls = [{"n": n} for n in (2, 3, 4)]
    return lambda: scene.job.enqueue_many(calls, keys=[KEY, "b", "c"], on_duplicate="merge")


@OPERATIONS.repeated
def follow_a_running_job(scene: Scene) -> Act:
    scene.leased()
    return lambda: scene.job.enqueue(n=2, key=KEY, on_duplicate="merge")


@OPERATIONS.once
def let_a_successor_go(scene: Scene) -> Act:
    (lease,) = scene.leased()
    scene.job.enqueue(n=2, key=KEY, on_duplicate="merge")
    scene.end(lease)
    return lambda: scene.do(promote_successors)


@OPERATIONS.repeated
def debounce_again(scene: Scene) -> Act:
    scene.job.enqueue(n=1, key=KEY, debounce="1h")
    return lambda: scene.job.enqueue(n=1, steps=2, key=KEY, debounce="2h", at_most="3h")


@OPERATIONS.repeated
def enqueue_on_a_lent_connection(scene: Scene) -> Act:
    def act() -> None:
        connection = scene.app.database.connect()
        connection.begin(scene.app.database.dialect.begin[Whose.THEIRS])
        scene.job.enqueue(n=1, id="order-17", key=KEY, tx=connection.raw)
        connection.commit()
        connection.close()

    with scene.app.transaction() as tx:
        require_same_database(tx, object(), scene.app.database)  # asked once: not at every try
    return act


# Taking them


@OPERATIONS.once
def claim_three(scene: Scene) -> Act:
    scene.enqueue(4)
    return lambda: scene.do(lambda tx: claim(tx, "default", scene.victim, 3))


@OPERATIONS.once
def claim_from_a_hint(scene: Scene) -> Act:
    scene.enqueue(2)
    return lambda: scene.do(lambda tx: claim(tx, "default", scene.victim, 1, (0, 1)))


@OPERATIONS.once
def claim_a_suspect(scene: Scene) -> Act:
    scene.enqueue(2)
    scene.change("UPDATE stepfast_job SET state = 'suspect'")
    return lambda: scene.do(lambda tx: claim_suspect(tx, scene.victim, []))


# Being alive


@OPERATIONS.once
def begin_to_exist(scene: Scene) -> Act:
    scene.leased()
    return lambda: scene.do(lambda tx: register(tx, SETTINGS))


@OPERATIONS.once
def stay_alive_with_a_job(scene: Scene) -> Act:
    (lease,) = scene.leased()
    return lambda: scene.do(lambda tx: stay_alive(tx, scene.victim, SETTINGS, [lease.job_id]))


@OPERATIONS.once
def resign_with_a_job(scene: Scene) -> Act:
    scene.leased()
    return lambda: scene.do(lambda tx: tx.run(RESIGN, incarnation=scene.victim))


# Ending a step


@OPERATIONS.once
def done(scene: Scene) -> Act:
    (lease,) = scene.leased()
    return lambda: scene.end(lease, Done({"sum": 3}))


@OPERATIONS.once
def done_beside_others(scene: Scene) -> Act:
    lease, _, _ = scene.leased(3)
    return lambda: scene.end(lease)


@OPERATIONS.once
def done_with_last_words(scene: Scene) -> Act:
    """As the worker ends a step that said something which nobody wrote yet."""
    (lease,) = scene.leased()
    said = [Report(lease, None, None, "info", "almost"), Report(lease, 99, "there", None, None)]

    def end(tx: Transaction) -> None:
        write_reports(tx, said)
        commit(tx, lease, Done(), [effect_of(lease)])

    return lambda: scene.do(end)


@OPERATIONS.once
def acknowledge_three(scene: Scene) -> Act:
    leases = scene.leased(3)

    def act(tx: Transaction) -> None:
        for lease in leases:
            effect_of(lease).apply(tx)
        assert len(finish_many(tx, leases, {leases[1].job_id: '"ok"'})) == 3

    return lambda: scene.do(act)


@OPERATIONS.once
def continue_anywhere(scene: Scene) -> Act:
    (lease,) = scene.leased(steps=2)
    return lambda: scene.end(lease, Continue(1))


@OPERATIONS.once
def continue_later(scene: Scene) -> Act:
    (lease,) = scene.leased(steps=3)
    return lambda: scene.end(lease, Continue(1, delay="1h"))


@OPERATIONS.once
def continue_after_a_cancel(scene: Scene) -> Act:
    (lease,) = scene.leased(steps=2)
    scene.change("UPDATE stepfast_job SET cancel_at = 1")
    return lambda: scene.end(lease, Continue(1))


@OPERATIONS.once
def continue_here(scene: Scene) -> Act:
    (lease,) = scene.leased(steps=2)

    def act(tx: Transaction) -> None:
        assert commit(tx, lease, Continue(1), [effect_of(lease)], stay=True)

    return lambda: scene.do(act)


@OPERATIONS.once
def snooze(scene: Scene) -> Act:
    (lease,) = scene.leased()
    return lambda: scene.end(lease, Snooze("1h"), effects=())


@OPERATIONS.once
def fail(scene: Scene) -> Act:
    (lease,) = scene.leased()
    return lambda: scene.end(lease, Again(HOUR, "no answer", "no answer"), effects=())


@OPERATIONS.once
def fail_at_no_charge(scene: Scene) -> Act:
    (lease,) = scene.leased()
    return lambda: scene.end(lease, Again(HOUR, "throttled", "", charged=False), effects=())


@OPERATIONS.once
def crash_apart(scene: Scene) -> Act:
    """An isolated step whose process died."""
    (lease,) = scene.leased()
    crashed = Again(HOUR, "was killed", "was killed", charged=False, crashed=True)
    return lambda: scene.end(lease, crashed, effects=())


@OPERATIONS.once
def give_up(scene: Scene) -> Act:
    (lease,) = scene.leased()
    return lambda: scene.end(lease, Bury("third time", "third time"), effects=())


@OPERATIONS.once
def reject(scene: Scene) -> Act:
    lease, _ = scene.leased(2)
    return lambda: scene.end(lease, Reject("not a number"), effects=())


@OPERATIONS.once
def stop(scene: Scene) -> Act:
    (lease,) = scene.leased()
    scene.do(lambda tx: actions.cancel(tx, lease.job_id))
    return lambda: scene.end(lease, Stop("as asked"), effects=())


@OPERATIONS.once
def snooze_when_asked_to_stop(scene: Scene) -> Act:
    (lease,) = scene.leased()
    scene.do(lambda tx: actions.cancel(tx, lease.job_id))
    return lambda: scene.end(lease, Snooze("1h"), effects=())


@OPERATIONS.once
def give_one_back(scene: Scene) -> Act:
    (lease,) = scene.leased()
    return lambda: scene.end(lease, GiveBack(), effects=())


@OPERATIONS.once
def give_three_back(scene: Scene) -> Act:
    leases = scene.leased(3)
    scene.do(lambda tx: actions.cancel(tx, leases[2].job_id))
    return lambda: scene.do(lambda tx: give_back(tx, [it.job_id for it in leases], leases[0].fence))


@OPERATIONS.once
def look_at_the_fences(scene: Scene) -> Act:
    lease, other = scene.leased(2)
    scene.end(other)
    return lambda: scene.do(lambda tx: commit_states(tx, [lease, other]))


@OPERATIONS.once
def report(scene: Scene) -> Act:
    lease, other = scene.leased(2)
    said = [
        Report(lease, None, None, "info", "step 1 complete"),
        Report(lease, 33, "one of three", None, None),
        Report(other, 50, None, None, None),
    ]
    return lambda: scene.do(lambda tx: write_reports(tx, said))
