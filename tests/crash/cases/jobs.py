"""Cases of a step's life: enqueue, claim, heartbeat, commit, reports."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from stepfast import Continue, Done, Reject, Snooze
from stepfast.admin import jobs as actions
from stepfast.database.dialects import Plans
from stepfast.database.lending import require_same_database
from stepfast.jobs.commit import commit, commit_states, finish_many, give_back
from stepfast.jobs.debounce import promote_successors
from stepfast.jobs.lease import claim, claim_suspect
from stepfast.jobs.outcome import Again, Bury, GiveBack, Stop
from stepfast.jobs.step import Report, write_reports
from stepfast.worker.heartbeat import RESIGN, register, stay_alive
from tests.crash.cases.case import Cases
from tests.crash.recovery import effect_of
from tests.crash.setup import KEY, SETTINGS, Setup

if TYPE_CHECKING:
    from stepfast import Transaction
    from tests.crash.kill_points import Action

HOUR = timedelta(hours=1)
CASES = Cases()

# Asking for jobs


@CASES.once
def enqueue(setup: Setup) -> Action:
    return lambda: setup.job.enqueue(n=1)


@CASES.repeated
def enqueue_under_a_key(setup: Setup) -> Action:
    return lambda: setup.job.enqueue(n=1, key=KEY, on_duplicate="skip")


@CASES.repeated
def enqueue_under_a_remembered_key(setup: Setup) -> Action:
    return lambda: setup.job.enqueue(n=1, key=KEY, unique_for="1d", on_duplicate="skip")


@CASES.repeated
def enqueue_under_an_id(setup: Setup) -> Action:
    return lambda: setup.job.enqueue(n=1, id="order-17", delay="1h")


@CASES.repeated
def enqueue_many(setup: Setup) -> Action:
    calls = [{"n": n} for n in (1, 2, 3)]
    return lambda: setup.job.enqueue_many(calls, keys=["a", "b", "c"], on_duplicate="skip")


@CASES.once
def enqueue_beside_rows_of_ones_own(setup: Setup) -> Action:
    def act() -> None:
        with setup.app.transaction() as tx:
            tx.execute(
                "INSERT INTO stepfast_log (job_id, at, level, step, message) VALUES ('mine', 1, '', 0, '')"
            )
            setup.job.enqueue(n=1, tx=tx, key=KEY)

    return act


@CASES.repeated
def replace_a_running_job(setup: Setup) -> Action:
    setup.leased()
    return lambda: setup.job.enqueue(n=1, steps=2, key=KEY, on_duplicate="replace")


@CASES.repeated
def merge_into_a_waiting_job(setup: Setup) -> Action:
    setup.enqueue()
    return lambda: setup.job.enqueue(n=1, steps=2, key=KEY, on_duplicate="merge")


@CASES.repeated
def merge_many(setup: Setup) -> Action:
    setup.leased()
    calls = [{"n": n} for n in (2, 3, 4)]
    return lambda: setup.job.enqueue_many(calls, keys=[KEY, "b", "c"], on_duplicate="merge")


@CASES.repeated
def follow_a_running_job(setup: Setup) -> Action:
    setup.leased()
    return lambda: setup.job.enqueue(n=2, key=KEY, on_duplicate="merge")


@CASES.once
def let_a_successor_go(setup: Setup) -> Action:
    (lease,) = setup.leased()
    setup.job.enqueue(n=2, key=KEY, on_duplicate="merge")
    setup.end(lease)
    return lambda: setup.do(promote_successors)


@CASES.repeated
def debounce_again(setup: Setup) -> Action:
    setup.job.enqueue(n=1, key=KEY, debounce="1h")
    return lambda: setup.job.enqueue(n=1, steps=2, key=KEY, debounce="2h", at_most="3h")


@CASES.repeated
def enqueue_on_a_lent_connection(setup: Setup) -> Action:
    def act() -> None:
        connection = setup.app.database.connect()
        connection.begin(setup.app.database.dialect.begin[Plans.FREE])
        setup.job.enqueue(n=1, id="order-17", key=KEY, tx=connection.raw)
        connection.commit()
        connection.close()

    with setup.app.transaction() as tx:
        require_same_database(tx, object(), setup.app.database)  # asked once: not at every try
    return act


# Taking them


@CASES.once
def claim_three(setup: Setup) -> Action:
    setup.enqueue(4)
    return lambda: setup.do(lambda tx: claim(tx, "default", setup.victim, 3))


@CASES.once
def claim_from_a_hint(setup: Setup) -> Action:
    setup.enqueue(2)
    return lambda: setup.do(lambda tx: claim(tx, "default", setup.victim, 1, (0, 1)))


@CASES.once
def claim_a_suspect(setup: Setup) -> Action:
    setup.enqueue(2)
    setup.change("UPDATE stepfast_job SET state = 'suspect'")
    return lambda: setup.do(lambda tx: claim_suspect(tx, setup.victim, []))


# Being alive


@CASES.once
def begin_to_exist(setup: Setup) -> Action:
    setup.leased()
    return lambda: setup.do(lambda tx: register(tx, SETTINGS))


@CASES.once
def stay_alive_with_a_job(setup: Setup) -> Action:
    (lease,) = setup.leased()
    return lambda: setup.do(lambda tx: stay_alive(tx, setup.victim, SETTINGS, [lease.job_id]))


@CASES.once
def resign_with_a_job(setup: Setup) -> Action:
    setup.leased()
    return lambda: setup.do(lambda tx: tx.run(RESIGN, incarnation=setup.victim))


# Ending a step


@CASES.once
def done(setup: Setup) -> Action:
    (lease,) = setup.leased()
    return lambda: setup.end(lease, Done({"sum": 3}))


@CASES.once
def done_beside_others(setup: Setup) -> Action:
    lease, _, _ = setup.leased(3)
    return lambda: setup.end(lease)


@CASES.once
def done_with_last_words(setup: Setup) -> Action:
    """End a step with reports that are not written yet, as the worker does."""
    (lease,) = setup.leased()
    said = [Report(lease, None, None, "info", "almost"), Report(lease, 99, "there", None, None)]

    def end(tx: Transaction) -> None:
        write_reports(tx, said)
        commit(tx, lease, Done(), [effect_of(lease)])

    return lambda: setup.do(end)


@CASES.once
def acknowledge_three(setup: Setup) -> Action:
    leases = setup.leased(3)

    def act(tx: Transaction) -> None:
        for lease in leases:
            effect_of(lease).apply(tx)
        assert len(finish_many(tx, leases, {leases[1].job_id: '"ok"'})) == 3

    return lambda: setup.do(act)


@CASES.once
def continue_anywhere(setup: Setup) -> Action:
    (lease,) = setup.leased(steps=2)
    return lambda: setup.end(lease, Continue(1))


@CASES.once
def continue_later(setup: Setup) -> Action:
    (lease,) = setup.leased(steps=3)
    return lambda: setup.end(lease, Continue(1, delay="1h"))


@CASES.once
def continue_after_a_cancel(setup: Setup) -> Action:
    (lease,) = setup.leased(steps=2)
    setup.change("UPDATE stepfast_job SET cancel_at = 1")
    return lambda: setup.end(lease, Continue(1))


@CASES.once
def continue_here(setup: Setup) -> Action:
    (lease,) = setup.leased(steps=2)

    def act(tx: Transaction) -> None:
        assert commit(tx, lease, Continue(1), [effect_of(lease)], stay=True)

    return lambda: setup.do(act)


@CASES.once
def snooze(setup: Setup) -> Action:
    (lease,) = setup.leased()
    return lambda: setup.end(lease, Snooze("1h"), effects=())


@CASES.once
def fail(setup: Setup) -> Action:
    (lease,) = setup.leased()
    return lambda: setup.end(lease, Again(HOUR, "no answer", "no answer"), effects=())


@CASES.once
def fail_at_no_charge(setup: Setup) -> Action:
    (lease,) = setup.leased()
    return lambda: setup.end(lease, Again(HOUR, "throttled", "", charged=False), effects=())


@CASES.once
def crash_apart(setup: Setup) -> Action:
    """An isolated step whose process died."""
    (lease,) = setup.leased()
    crashed = Again(HOUR, "was killed", "was killed", charged=False, crashed=True)
    return lambda: setup.end(lease, crashed, effects=())


@CASES.once
def give_up(setup: Setup) -> Action:
    (lease,) = setup.leased()
    return lambda: setup.end(lease, Bury("third time", "third time"), effects=())


@CASES.once
def reject(setup: Setup) -> Action:
    lease, _ = setup.leased(2)
    return lambda: setup.end(lease, Reject("not a number"), effects=())


@CASES.once
def stop(setup: Setup) -> Action:
    (lease,) = setup.leased()
    setup.do(lambda tx: actions.cancel(tx, lease.job_id))
    return lambda: setup.end(lease, Stop("as asked"), effects=())


@CASES.once
def snooze_when_asked_to_stop(setup: Setup) -> Action:
    (lease,) = setup.leased()
    setup.do(lambda tx: actions.cancel(tx, lease.job_id))
    return lambda: setup.end(lease, Snooze("1h"), effects=())


@CASES.once
def give_one_back(setup: Setup) -> Action:
    (lease,) = setup.leased()
    return lambda: setup.end(lease, GiveBack(), effects=())


@CASES.once
def give_three_back(setup: Setup) -> Action:
    leases = setup.leased(3)
    setup.do(lambda tx: actions.cancel(tx, leases[2].job_id))
    return lambda: setup.do(lambda tx: give_back(tx, [it.job_id for it in leases], leases[0].fence))


@CASES.once
def look_at_the_fences(setup: Setup) -> Action:
    lease, other = setup.leased(2)
    setup.end(other)
    return lambda: setup.do(lambda tx: commit_states(tx, [lease, other]))


@CASES.once
def report(setup: Setup) -> Action:
    lease, other = setup.leased(2)
    said = [
        Report(lease, None, None, "info", "step 1 complete"),
        Report(lease, 33, "one of three", None, None),
        Report(other, 50, None, None, None),
    ]
    return lambda: setup.do(lambda tx: write_reports(tx, said))
