"""The completion job of a group starts once, after its last member, however the members end."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Done, Job, Retry, Step
from stepfast.database.database import persist
from stepfast.errors import ConfigurationError, CycleError, NotFoundError, StateError
from stepfast.jobs.commit import finish_many
from stepfast.jobs.outcome import Again, Bury, Call
from stepfast.telemetry.traces import inside
from stepfast.testing import drain, inline
from tests.support import rows
from tests.support.engine import claim, commit_step, register_work, take, together

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast, Transaction
    from stepfast.jobs.dependencies import OnDead
    from stepfast.jobs.lease import Lease

DIED = Bury("broken", "broken")


def group_of(app: Stepfast, members: int = 3, **options: Any) -> str:
    """A group with so many members, and its id."""
    job = works(app)
    with app.group(job.with_args(n=100), **options) as group:
        for n in range(members):
            job.enqueue(n=n)
    return group.id


def works(app: Stepfast) -> Job[..., None]:
    """The kind of job of this application, whether it was registered or not."""
    kind = app.kinds.find("work")
    return register_work(app) if kind is None else Job(app, kind, kind.handler)


def ended_by(app: Stepfast, lease: Lease) -> None:
    persist(app.database, lambda tx: finish_many(tx, [lease]))


def test_the_completion_job_starts_when_the_last_member_has_ended(app: Stepfast) -> None:
    group = group_of(app)
    first, second, third = claim(app, limit=9)

    commit_step(app, first, Done())
    commit_step(app, second, Done())
    assert rows.state(app, group) == "waiting"
    commit_step(app, third, Done())

    assert take(app).job_id == group


def test_an_empty_group_completes_when_it_is_closed(app: Stepfast) -> None:
    group = group_of(app, members=0)

    assert take(app).job_id == group


def test_a_group_exists_with_all_its_members_or_not_at_all(app: Stepfast) -> None:
    work = register_work(app)

    def ask() -> None:
        with app.group(work.with_args(n=9)):
            work.enqueue(n=1)
            work.enqueue(n=1 // 0)

    with pytest.raises(ZeroDivisionError):
        ask()

    assert rows.count(app, "stepfast_job") == 0
    assert work.enqueue(n=2).created, "outside the block nothing is a member"
    assert rows.count(app, "stepfast_dependency") == 0


def test_wrong_arguments_of_the_completion_job_are_refused_before_anything_is_stored(app: Stepfast) -> None:
    work = register_work(app)

    with pytest.raises(Exception, match="`n`"):
        work.with_args(n="a text")


def test_members_join_on_a_transaction_of_the_callers(app: Stepfast) -> None:
    work = register_work(app)

    with app.transaction() as tx, app.group(work.with_args(n=9), tx=tx) as group:
        work.enqueue_many([{"n": 1}, {"n": 2}])
        work.enqueue(n=3, tx=tx)
        assert rows.count(app, "stepfast_job") == 0

    assert len(app.operator.job(group.id).parents) == 3
    with (
        pytest.raises(ConfigurationError, match="in one transaction"),
        app.group(work.with_args(n=9)),
        app.reading() as other,
    ):
        work.enqueue(n=1, tx=other)


def test_members_that_end_at_the_same_moment_start_the_completion_job_once(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    apps = [another_app() for _ in range(4)]
    for _ in range(5):
        group = group_of(app, members=4)
        leases = claim(app, limit=9)
        assert len(leases) == 4

        assert (
            together([partial(ended_by, it, one) for it, one in zip(apps, leases, strict=True)]) == [None] * 4
        )

        lease = take(app)
        assert lease.job_id == group
        commit_step(app, lease, Done())


def test_a_whole_group_that_is_acknowledged_at_once_completes(app: Stepfast) -> None:
    group = group_of(app, members=50)
    leases = claim(app, limit=99)

    with app.transaction() as tx:
        assert len(finish_many(tx, leases)) == 50

    assert rows.state(app, group) == "ready"


def test_a_member_that_tries_again_is_waited_for(app: Stepfast) -> None:
    group = group_of(app, members=1)
    commit_step(app, take(app), Again(timedelta(0), "error", "error"))
    assert rows.state(app, group) == "waiting"

    commit_step(app, take(app), Done())
    assert rows.state(app, group) == "ready"


@pytest.mark.parametrize(
    ("on_dead", "states"), [("wait", ["waiting"] * 2), ("fail", ["dead"] * 2), ("run", ["waiting", "ready"])]
)
def test_when_a_member_dies_the_policy_of_the_group_decides(
    app: Stepfast, on_dead: OnDead, states: list[str]
) -> None:
    group = group_of(app, members=2, on_dead=on_dead)
    first, second = claim(app, limit=9)
    found = []

    for lease, ending in ((first, DIED), (second, Done())):
        commit_step(app, lease, ending)
        found.append(rows.state(app, group))

    assert found == states


def test_a_group_that_failed_is_revived_with_its_dead_members(app: Stepfast) -> None:
    group = group_of(app, members=2, on_dead="fail")
    first, second = claim(app, limit=9)
    commit_step(app, first, DIED)
    commit_step(app, second, Done())

    assert app.operator.retry(group, tree=True) == "waiting"

    commit_step(app, take(app), Done())
    assert take(app).job_id == group


def test_a_group_is_cancelled_with_its_members(app: Stepfast) -> None:
    group = group_of(app, members=2)

    assert app.operator.cancel(group, tree=True) == "cancelled"

    assert rows.count(app, "stepfast_job") == 0
    lines = [(it.depth, it.bond, it.state) for it in app.operator.tree(group)]
    assert lines == [(0, None, "cancelled"), (1, "member", "cancelled"), (1, "member", "cancelled")]


def test_a_member_that_is_cancelled_with_its_tree_leaves_its_siblings_alone(app: Stepfast) -> None:
    group = group_of(app, members=2)
    first, second = claim(app, limit=9)

    app.operator.cancel(first.job_id, tree=True)
    commit_step(app, first, Done())
    commit_step(app, second, Done())

    assert rows.state(app, group) == "cancelled"
    assert rows.state(app, second.job_id) == "done"


def test_a_handler_adds_members_to_its_own_group(app: Stepfast) -> None:
    seen: list[str] = []

    @app.job()
    def page(number: int) -> int:
        seen.append(f"page {number}")
        if number < 3:
            with app.group():
                page.enqueue(number=number + 1)
        return number

    @app.job()
    def finished(step: Step) -> None:
        seen.append(f"finished {sorted(step.parents.values())}")

    with app.group(finished.with_args()):
        page.enqueue(number=1)
    drain(app)

    assert seen == ["page 1", "page 2", "page 3", "finished [1, 2, 3]"]


def test_an_effect_adds_members_although_its_step_was_the_last(app: Stepfast) -> None:
    group = group_of(app, members=1)
    lease = take(app)
    job = works(app)

    def effect(tx: Transaction) -> None:
        with app.group(id=group, tx=tx):
            job.enqueue(n=7)

    commit_step(app, lease, Done(), Call(effect))

    assert rows.state(app, group) == "waiting"
    commit_step(app, take(app), Done())
    assert rows.state(app, group) == "ready"


def test_a_group_that_has_completed_takes_nobody_in(app: Stepfast) -> None:
    group = group_of(app, members=1)
    commit_step(app, take(app), Done())
    job = works(app)

    with pytest.raises(StateError, match="has completed: it is ready"), app.group(id=group):
        job.enqueue(n=2)

    assert rows.count(app, "stepfast_job") == 1, "nothing was stored"


def test_a_member_that_is_added_to_a_group_that_failed_is_waited_for_when_that_is_revived(
    app: Stepfast,
) -> None:
    group = group_of(app, members=2, on_dead="fail")
    first, second = claim(app, limit=9)
    commit_step(app, first, DIED)

    with inside(second, None), app.group():
        added = works(app).enqueue(n=2)
    commit_step(app, second, Done())
    app.operator.retry(group, tree=True)

    for _ in range(2):
        assert rows.state(app, group) == "waiting"
        commit_step(app, take(app), Done())
    assert rows.state(app, added.id) == "done"
    assert rows.state(app, group) == "ready"


def test_a_zombie_cannot_add_to_a_group_that_has_completed(app: Stepfast) -> None:
    group = group_of(app, members=1)
    lease = take(app)
    commit_step(app, lease, Done())
    job = works(app)

    with inside(lease, None), pytest.raises(StateError, match="is no member of a group"), app.group():
        job.enqueue(n=2)

    assert rows.state(app, group) == "ready"


def test_where_there_is_no_group_it_is_said_in_words(app: Stepfast) -> None:
    job = register_work(app).enqueue()

    with pytest.raises(ConfigurationError, match="outside a handler"), app.group():
        pass
    with pytest.raises(NotFoundError, match="there is no group g"), app.group(id="g"):
        pass
    with pytest.raises(StateError, match="not the completion job of a group"), app.group(id=job.id):
        pass
    with pytest.raises(ConfigurationError, match="chosen with on_complete"):
        app.group(on_dead="run")
    with pytest.raises(ConfigurationError, match="inside its block"):
        _ = app.group().id


def test_groups_inside_a_group_are_its_members(app: Stepfast) -> None:
    order: list[str] = []

    @app.job()
    def work(name: str) -> None:
        order.append(name)

    with inline(app), app.group(work.with_args(name="all")):
        for letter in "ab":
            with app.group(work.with_args(name=f"{letter} done"), on_dead="fail"):
                work.enqueue(name=letter)

    assert order.index("all") == len(order) - 1
    assert sorted(order[:-1]) == ["a", "a done", "b", "b done"]


def test_a_member_that_would_wait_for_its_own_group_is_refused(app: Stepfast) -> None:
    work = register_work(app)

    with pytest.raises(CycleError, match=" after "), app.group(work.with_args(n=9)) as group:
        work.enqueue(n=1, after=group.completion)

    assert rows.count(app, "stepfast_job") == 0


def test_a_job_that_was_there_before_becomes_a_member(app: Stepfast) -> None:
    work = register_work(app)
    unfinished = work.enqueue(n=1, key="k")
    done = work.enqueue(n=2, id="done", priority=9)
    commit_step(app, take(app), Done())

    with app.group(work.with_args(n=9)) as group:
        work.enqueue(n=1, key="k", on_duplicate="skip")
        work.enqueue(n=1, key="k", on_duplicate="skip")
        assert work.enqueue(n=2, id="done").id == done.id

    assert rows.state(app, group.id) == "waiting"
    lease = take(app)
    assert lease.job_id == unfinished.id
    commit_step(app, lease, Done())
    assert rows.state(app, group.id) == "ready"


def test_a_group_with_an_id_may_be_asked_for_again(app: Stepfast) -> None:
    work = register_work(app)

    def ask() -> None:
        with app.group(work.with_args(n=9), id="import-7"):
            work.enqueue(n=1, id="part-1")
            work.enqueue(n=2, id="part-2")

    ask()
    ask()
    for lease in claim(app, limit=9):
        commit_step(app, lease, Done())
    commit_step(app, take(app), Done())
    ask()

    assert rows.count(app, "stepfast_archive") == 3
    assert rows.count(app, "stepfast_job") == 0


def test_the_end_of_a_group_can_be_waited_for(app: Stepfast) -> None:
    @app.job()
    def part(n: int) -> int:
        return n

    @app.job()
    def total(step: Step) -> int:
        return sum(step.parents.values())

    with app.group(total.with_args()) as group:
        part.enqueue_many([{"n": n} for n in range(4)])
    with app.worker():
        assert group.completion.wait(20).result == 6


def test_a_member_that_dies_and_is_revived_completes_its_group(app: Stepfast) -> None:
    broken = [True]

    @app.job(retry=Retry(attempts=1))
    def part() -> None:
        if broken:
            raise ValueError

    @app.job()
    def finished() -> None: ...

    with app.group(finished.with_args()) as group:
        job = part.enqueue()
    drain(app, raise_errors=False)
    assert rows.state(app, group.id) == "waiting"

    broken.clear()
    app.operator.retry(job.id)
    drain(app)
    assert rows.state(app, group.id) == "done"
