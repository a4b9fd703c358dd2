"""What is cut short, seventh part: jobs that come after others, groups, and trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast import Done
from stepfast.admin import jobs as trees
from stepfast.admin.audit import Actor
from stepfast.jobs.commit import finish_many
from stepfast.jobs.dependencies import release_stranded
from stepfast.jobs.outcome import Bury
from tests.crash.cases.case import Operations
from tests.crash.recovery import effect_of

if TYPE_CHECKING:
    from stepfast import Transaction
    from stepfast.jobs.lease import Lease
    from tests.crash.kill_points import Act
    from tests.crash.setup import Scene

OPERATIONS = Operations()
ALICE = Actor("alice", "the printer is back")
DIED = Bury("gave up", "")


def family(scene: Scene, *, on_dead: str = "wait") -> Lease:
    """A job that runs, one that comes after it, and one that comes after that; returns the first."""
    (lease,) = scene.leased()
    child = scene.job.enqueue(n=11, after=lease.job_id, on_dead=on_dead)
    scene.job.enqueue(n=12, after=child, on_dead=on_dead)
    return lease


@OPERATIONS.repeated
def enqueue_after_one_that_runs(scene: Scene) -> Act:
    lease, other = scene.leased(2)
    scene.end(other)
    parents = [lease.job_id, other.job_id]
    return lambda: scene.job.enqueue(n=11, id="child-11", after=parents)


@OPERATIONS.repeated
def enqueue_many_after_one(scene: Scene) -> Act:
    (parent,) = scene.enqueue()
    calls = [{"n": n} for n in (11, 12)]
    return lambda: scene.job.enqueue_many(calls, keys=["a", "b"], on_duplicate="skip", after=parent)


@OPERATIONS.repeated
def enqueue_after_one_that_is_dead(scene: Scene) -> Act:
    (parent,) = scene.ended(1, DIED)
    return lambda: scene.job.enqueue(n=11, id="child-11", after=parent, on_dead="fail")


@OPERATIONS.repeated
def replace_what_a_job_comes_after(scene: Scene) -> Act:
    one, other = scene.enqueue(2)
    scene.job.enqueue(n=11, key="child", after=one)
    return lambda: scene.job.enqueue(n=11, key="child", after=other, on_duplicate="replace")


@OPERATIONS.once
def end_a_parent(scene: Scene) -> Act:
    lease = family(scene)
    return lambda: scene.end(lease, Done(3))


@OPERATIONS.once
def acknowledge_parents(scene: Scene) -> Act:
    leases = scene.leased(3)
    scene.job.enqueue(n=11, after=[it.job_id for it in leases])

    def act(tx: Transaction) -> None:
        for lease in leases:
            effect_of(lease).apply(tx)
        assert len(finish_many(tx, leases)) == 3

    return lambda: scene.do(act)


@OPERATIONS.once
def bury_a_parent_of_those_who_fail(scene: Scene) -> Act:
    lease = family(scene, on_dead="fail")
    return lambda: scene.end(lease, DIED, effects=())


@OPERATIONS.once
def bury_a_parent_of_those_who_run(scene: Scene) -> Act:
    lease = family(scene, on_dead="run")
    return lambda: scene.end(lease, DIED, effects=())


@OPERATIONS.repeated
def make_a_group(scene: Scene) -> Act:
    def act() -> None:
        with scene.app.group(scene.job.with_args(n=10), id="group-10"):
            scene.job.enqueue(n=11, id="member-11")
            scene.job.enqueue(n=12, id="member-12")

    return act


@OPERATIONS.repeated
def make_an_empty_group(scene: Scene) -> Act:
    def act() -> None:
        with scene.app.group(scene.job.with_args(n=10), id="group-10"):
            pass

    return act


@OPERATIONS.once
def end_the_last_member(scene: Scene) -> Act:
    with scene.app.group(scene.job.with_args(n=10)):
        scene.enqueue(2)
    first, second = scene.claimed(2)
    scene.end(first)
    return lambda: scene.end(second)


@OPERATIONS.once
def revive_a_tree(scene: Scene) -> Act:
    lease = family(scene, on_dead="fail")
    scene.end(lease, DIED, effects=())
    return lambda: scene.do(lambda tx: trees.retry_tree(tx, lease.job_id, by=ALICE))


@OPERATIONS.once
def cancel_a_tree(scene: Scene) -> Act:
    (root,) = scene.enqueue()
    child = scene.job.enqueue(n=11, after=root)
    scene.job.enqueue(n=12, after=child)
    return lambda: scene.do(lambda tx: trees.cancel_tree(tx, root, by=ALICE))


@OPERATIONS.repeated
def find_who_is_stranded(scene: Scene) -> Act:
    (lease,) = scene.leased()
    scene.job.enqueue(n=11, after=lease.job_id)
    scene.change("UPDATE stepfast_job SET has_dependants = 0 WHERE has_dependants = 1")
    scene.end(lease)
    return lambda: scene.do(lambda tx: release_stranded(tx, [lease.job_id]))
