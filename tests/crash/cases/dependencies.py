"""Cases of dependencies, groups and trees of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast import Done
from stepfast.admin import jobs as trees
from stepfast.admin.audit import Actor
from stepfast.admin.doctor.repair import release_stranded_jobs
from stepfast.jobs.commit import finish_many
from stepfast.jobs.outcome import Bury
from tests.crash.cases.case import Cases
from tests.crash.recovery import effect_of

if TYPE_CHECKING:
    from stepfast import Transaction
    from stepfast.jobs.lease import Lease
    from tests.crash.kill_points import Action
    from tests.crash.setup import Setup

CASES = Cases()
ALICE = Actor("alice", "the printer is back")
DIED = Bury("gave up", "")


def family(setup: Setup, *, on_dead: str = "wait") -> Lease:
    """A job that runs, one that comes after it, and one that comes after that; returns the first."""
    (lease,) = setup.leased()
    child = setup.job.enqueue(n=11, after=lease.job_id, on_dead=on_dead)
    setup.job.enqueue(n=12, after=child, on_dead=on_dead)
    return lease


@CASES.repeated
def enqueue_after_one_that_runs(setup: Setup) -> Action:
    lease, other = setup.leased(2)
    setup.end(other)
    parents = [lease.job_id, other.job_id]
    return lambda: setup.job.enqueue(n=11, id="child-11", after=parents)


@CASES.repeated
def enqueue_many_after_one(setup: Setup) -> Action:
    (parent,) = setup.enqueue()
    calls = [{"n": n} for n in (11, 12)]
    return lambda: setup.job.enqueue_many(calls, keys=["a", "b"], on_duplicate="skip", after=parent)


@CASES.repeated
def enqueue_after_one_that_is_dead(setup: Setup) -> Action:
    (parent,) = setup.ended(1, DIED)
    return lambda: setup.job.enqueue(n=11, id="child-11", after=parent, on_dead="fail")


@CASES.repeated
def replace_what_a_job_comes_after(setup: Setup) -> Action:
    one, other = setup.enqueue(2)
    setup.job.enqueue(n=11, key="child", after=one)
    return lambda: setup.job.enqueue(n=11, key="child", after=other, on_duplicate="replace")


@CASES.once
def end_a_parent(setup: Setup) -> Action:
    lease = family(setup)
    return lambda: setup.end(lease, Done(3))


@CASES.once
def acknowledge_parents(setup: Setup) -> Action:
    leases = setup.leased(3)
    setup.job.enqueue(n=11, after=[it.job_id for it in leases])

    def act(tx: Transaction) -> None:
        for lease in leases:
            effect_of(lease).apply(tx)
        assert len(finish_many(tx, leases)) == 3

    return lambda: setup.do(act)


@CASES.once
def bury_a_parent_of_those_who_fail(setup: Setup) -> Action:
    lease = family(setup, on_dead="fail")
    return lambda: setup.end(lease, DIED, effects=())


@CASES.once
def bury_a_parent_of_those_who_run(setup: Setup) -> Action:
    lease = family(setup, on_dead="run")
    return lambda: setup.end(lease, DIED, effects=())


@CASES.repeated
def make_a_group(setup: Setup) -> Action:
    def act() -> None:
        with setup.app.group(setup.job.with_args(n=10), id="group-10"):
            setup.job.enqueue(n=11, id="member-11")
            setup.job.enqueue(n=12, id="member-12")

    return act


@CASES.repeated
def make_an_empty_group(setup: Setup) -> Action:
    def act() -> None:
        with setup.app.group(setup.job.with_args(n=10), id="group-10"):
            pass

    return act


@CASES.once
def end_the_last_member(setup: Setup) -> Action:
    with setup.app.group(setup.job.with_args(n=10)):
        setup.enqueue(2)
    first, second = setup.claimed(2)
    setup.end(first)
    return lambda: setup.end(second)


@CASES.once
def revive_a_tree(setup: Setup) -> Action:
    lease = family(setup, on_dead="fail")
    setup.end(lease, DIED, effects=())
    return lambda: setup.do(lambda tx: trees.retry_tree(tx, lease.job_id, by=ALICE))


@CASES.once
def cancel_a_tree(setup: Setup) -> Action:
    (root,) = setup.enqueue()
    child = setup.job.enqueue(n=11, after=root)
    setup.job.enqueue(n=12, after=child)
    return lambda: setup.do(lambda tx: trees.cancel_tree(tx, root, by=ALICE))


@CASES.repeated
def find_who_is_stranded(setup: Setup) -> Action:
    (lease,) = setup.leased()
    setup.job.enqueue(n=11, after=lease.job_id)
    setup.change("UPDATE stepfast_job SET has_dependants = 0 WHERE has_dependants = 1")
    setup.end(lease)
    return lambda: release_stranded_jobs(setup.app.database, by=ALICE)
