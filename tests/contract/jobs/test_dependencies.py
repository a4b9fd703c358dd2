"""A job with `after=` starts once, when all of its parents are done; `on_dead` decides what happens otherwise."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Done, Retry, Step
from stepfast.admin import jobs as actions
from stepfast.admin import jobs as trees
from stepfast.admin.doctor.work import STRANDED
from stepfast.database.connection import Connection
from stepfast.database.database import persist
from stepfast.errors import ContentionError, CycleError, NotFoundError, StateError
from stepfast.jobs import dead_letters
from stepfast.jobs.commit import finish_many
from stepfast.jobs.dependencies import find_stranded
from stepfast.jobs.outcome import Bury, Call, Stop
from stepfast.results.outcome import expire_results
from stepfast.testing import drain, inline
from stepfast.worker.maintenance import prune
from tests.support import isolated_jobs, rows
from tests.support.engine import (
    ALICE,
    claim,
    commit_step,
    make_silent,
    register_work,
    rescue_all,
    somebody_waits,
    take,
    together,
)
from tests.support.isolated_jobs import register

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast, Transaction
    from stepfast.jobs.dependencies import OnDead

DIED = Bury("broken", "broken")


def states(app: Stepfast, *ids: str) -> list[str | None]:
    return [rows.state(app, it) for it in ids]


def edges(app: Stepfast) -> list[str]:
    found = rows.query(app, "SELECT state FROM stepfast_dependency ORDER BY child_id, parent_id")
    return [row["state"] for row in found]


# All done


def test_a_job_waits_until_all_that_it_comes_after_are_done(app: Stepfast) -> None:
    work = register_work(app)
    one, two = work.enqueue(n=1), work.enqueue(n=2)
    child = work.enqueue(n=3, after=[one, two.id])

    first, second = claim(app, limit=9)
    commit_step(app, first, Done())
    assert rows.state(app, child.id) == "waiting"
    commit_step(app, second, Done())

    assert take(app).job_id == child.id


def test_whoever_ends_jobs_in_a_batch_lets_go_who_waits_for_them(app: Stepfast) -> None:
    work = register_work(app)
    parents = work.enqueue_many([{"n": n} for n in range(3)])
    child = work.enqueue(after=parents)
    alone = work.enqueue(n=9)
    leases = claim(app, limit=9)

    with app.transaction() as tx:
        assert sorted(finish_many(tx, leases)) == sorted(it.job_id for it in leases)

    assert states(app, child.id, alone.id) == ["ready", "done"]


def test_a_batch_of_which_some_fences_are_lost_lets_go_only_what_is_done(app: Stepfast) -> None:
    work = register_work(app)
    mine, lost = work.enqueue(n=1), work.enqueue(n=2)
    after_mine, after_lost = work.enqueue(after=mine), work.enqueue(after=lost)
    leases = claim(app, limit=9)
    rows.change(app, "UPDATE stepfast_job SET fence = 7 WHERE id = :id", id=lost.id)

    with app.transaction() as tx:
        assert finish_many(tx, leases) == [mine.id]

    assert states(app, after_mine.id, after_lost.id) == ["ready", "waiting"]


def test_what_is_done_already_is_not_waited_for(app: Stepfast) -> None:
    work = register_work(app)
    parent = work.enqueue()
    commit_step(app, take(app), Done(7))

    child = work.enqueue(after=parent)

    assert states(app, child.id) == ["ready"]
    assert edges(app) == ["met"]


def test_a_job_that_waits_keeps_its_own_time(app: Stepfast) -> None:
    work = register_work(app)
    parent = work.enqueue()
    soon, later = work.enqueue(after=parent), work.enqueue(after=parent, delay="1h")
    rows.change(app, "UPDATE stepfast_job SET ready_at = 5 WHERE id = :id", id=soon.id)

    commit_step(app, take(app), Done())

    assert states(app, soon.id, later.id) == ["ready", "scheduled"]
    row = rows.live(app, soon.id)
    assert row is not None
    assert row["ready_at"] > 5, "it has been ready since now, not since it was enqueued"


def test_nobody_takes_a_job_that_waits(app: Stepfast) -> None:
    work = register_work(app)
    parent = work.enqueue(queue="elsewhere")
    child = work.enqueue(after=parent)

    assert claim(app) == []
    with pytest.raises(StateError, match="waits for the jobs that it comes after"):
        app.operator.retry(child.id)


def test_a_child_gets_what_its_parents_answered(app: Stepfast) -> None:
    seen: list[Any] = []

    @app.job()
    def parent(n: int) -> int | None:
        return n or None

    @app.job(retry=Retry(attempts=1))
    async def broken() -> None:
        raise ValueError

    @app.job()
    def child(step: Step) -> None:
        seen.append(step.parents)

    one, none, dead = parent.enqueue(n=3), parent.enqueue(n=0), broken.enqueue()
    child.enqueue(after=[one, none, dead], on_dead="run")
    drain(app, raise_errors=False)

    assert seen == [{one.id: 3, none.id: None}]


def test_a_child_in_a_process_of_its_own_gets_them_too(app: Stepfast) -> None:
    @app.job()
    def parent(n: int) -> int:
        return n

    child = register(app, isolated_jobs.total).enqueue(after=parent.enqueue_many([{"n": 3}, {"n": 4}]))
    with app.worker():
        assert child.wait(20).result == 7


def test_a_chain_runs_in_its_order_inline(app: Stepfast) -> None:
    seen: list[int] = []

    @app.job()
    def work(n: int) -> None:
        seen.append(n)

    with inline(app), app.transaction() as tx:
        first = work.enqueue(n=1, tx=tx)
        second = work.enqueue(n=2, after=first, tx=tx, priority=9)
        work.enqueue_many([{"n": 3}, {"n": 4}], after=second, tx=tx)

    assert seen == [1, 2, 3, 4]


def test_a_step_may_enqueue_what_comes_after_itself(app: Stepfast) -> None:
    work = register_work(app)
    work.enqueue()
    lease = take(app)
    made: list[str] = []

    def effect(tx: Transaction) -> None:
        made.append(work.enqueue(n=2, after=lease.job_id, tx=tx).id)

    commit_step(app, lease, Done(), Call(effect))

    assert states(app, *made) == ["ready"]


def test_many_jobs_come_after_the_same_ones(app: Stepfast) -> None:
    work = register_work(app)
    parents = work.enqueue_many([{"n": 1}, {"n": 2}])
    children = work.enqueue_many([{"n": n} for n in range(5)], after=parents, keys=["a", "b", None, "d", "e"])
    leases = claim(app, limit=9)
    assert len(leases) == 2

    for lease in leases:
        commit_step(app, lease, Done())

    assert {rows.state(app, it.id) for it in children} == {"ready"}


def test_what_nobody_waits_for_costs_no_statement_more(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_work(app).enqueue_many([{"n": n} for n in range(3)])
    leases = claim(app, limit=9)
    sent: list[str] = []
    monkeypatch.setattr(Connection, "watch", staticmethod(lambda _, text: sent.append(text)))

    with app.transaction() as tx:
        finish_many(tx, leases)

    assert not [it for it in sent if "stepfast_dependency" in it]


# At the same moment


def ended_by(app: Stepfast, lease: Any) -> None:
    persist(app.database, lambda tx: finish_many(tx, [lease]))


def test_of_parents_that_end_at_the_same_moment_one_is_the_last(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    work = register_work(app)
    apps = [another_app() for _ in range(4)]
    for _ in range(5):
        parents = work.enqueue_many([{"n": n} for n in range(4)])
        child = work.enqueue(after=parents)
        leases = claim(app, limit=9)
        assert len(leases) == 4

        ended = together([partial(ended_by, it, lease) for it, lease in zip(apps, leases, strict=True)])

        assert ended == [None] * 4
        assert take(app).job_id == child.id
        rows.change(app, "DELETE FROM stepfast_job")


@pytest.mark.only_on("postgresql", "mariadb")
def test_who_ends_a_parent_waits_for_who_is_ending_another(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    work, other = register_work(app), another_app()
    child = work.enqueue(after=work.enqueue_many([{"n": 1}, {"n": 2}]))
    first, second = claim(app, limit=9)

    with ThreadPoolExecutor(1) as threads:
        with app.transaction() as tx:
            finish_many(tx, [first])
            ending = threads.submit(ended_by, other, second)
            rows.eventually(lambda: ending.done() or somebody_waits(app))
        ending.result(10)

    assert rows.state(app, child.id) == "ready"


def test_a_child_that_is_enqueued_while_its_parent_ends_is_not_forgotten(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    work, other = register_work(app), another_app()
    for _ in range(10):
        parent = work.enqueue()
        lease = take(app)

        child, ended = together([partial(work.enqueue, n=2, after=parent), partial(ended_by, other, lease)])

        assert ended is None
        assert rows.state(app, child.id) == "ready"
        rows.change(app, "DELETE FROM stepfast_job")


# Not done


@pytest.mark.parametrize("before", [True, False], ids=["enqueued before", "enqueued after"])
@pytest.mark.parametrize("ending", [DIED, Stop("as asked")], ids=["dead", "cancelled"])
@pytest.mark.parametrize(("on_dead", "state"), [("wait", "waiting"), ("fail", "dead"), ("run", "ready")])
def test_when_a_parent_does_not_get_done_the_policy_decides(
    app: Stepfast, ending: Bury | Stop, on_dead: OnDead, state: str, *, before: bool
) -> None:
    work = register_work(app)
    parent, fine = work.enqueue(), work.enqueue()
    lease, other = claim(app, limit=2)
    commit_step(app, other, Done())
    after = [parent, fine]

    child = work.enqueue(after=after, on_dead=on_dead) if before else None
    commit_step(app, lease, ending)
    child = child or work.enqueue(after=after, on_dead=on_dead)

    assert rows.state(app, child.id) == state
    if state == "dead":
        word = "died" if ending == DIED else "was cancelled"
        row = rows.ended(app, child.id)
        assert row is not None
        assert row["last_error"] == f"DependencyFailed: job {parent.id}, which it comes after, {word}"


def test_a_failure_goes_down_the_whole_chain(app: Stepfast) -> None:
    fail_along_a_chain(app, 4)


@pytest.mark.only_on("sqlite")
def test_a_chain_may_be_longer_than_python_recurses(app: Stepfast) -> None:
    fail_along_a_chain(app, 600)


def fail_along_a_chain(app: Stepfast, length: int) -> None:
    work = register_work(app)
    chain = [work.enqueue()]
    for n in range(length):
        chain.append(work.enqueue(n=n, after=chain[-1], on_dead="fail"))
    waits = work.enqueue(after=chain[-1])
    runs = work.enqueue(after=chain[-1], on_dead="run")

    commit_step(app, take(app), DIED)

    assert rows.count(app, "stepfast_archive", "state = 'dead'") == len(chain)
    assert states(app, waits.id, runs.id) == ["waiting", "ready"]


def test_a_child_of_a_job_that_killed_its_worker_is_told(app: Stepfast) -> None:
    work = register_work(app)
    parent = work.enqueue()
    child = work.enqueue(after=parent, on_dead="fail")
    rows.add_worker(app, ALICE)
    take(app)
    make_silent(app, ALICE)

    assert rescue_all(app, crash_limit=1).died == 1

    assert states(app, parent.id, child.id) == ["dead", "dead"]


def test_a_child_of_a_job_that_was_cancelled_while_it_waited_is_told(app: Stepfast) -> None:
    work = register_work(app)
    parent = work.enqueue()
    child = work.enqueue(after=parent, on_dead="run")

    app.operator.cancel(parent.id)

    assert rows.state(app, child.id) == "ready"


def test_a_parent_that_nobody_knows_is_refused_and_nothing_is_stored(app: Stepfast) -> None:
    with pytest.raises(NotFoundError, match="there is no job unknown"):
        register_work(app).enqueue(after="unknown")

    assert rows.count(app, "stepfast_job") == 0


# Revived, purged, forgotten


def test_who_waits_for_a_dead_parent_goes_on_when_that_one_is_revived_and_done(app: Stepfast) -> None:
    work = register_work(app)
    parent = work.enqueue()
    child = work.enqueue(after=parent)
    commit_step(app, take(app), DIED)
    late = work.enqueue(after=parent)

    app.operator.retry(parent.id)
    commit_step(app, take(app), Done())

    assert states(app, child.id, late.id) == ["ready", "ready"]


def test_what_failed_because_of_a_parent_is_revived_with_it_and_waits_again(app: Stepfast) -> None:
    work = register_work(app)
    parent = work.enqueue()
    child = work.enqueue(after=parent, on_dead="fail")
    grandchild = work.enqueue(after=child, on_dead="fail", key="mine")
    commit_step(app, take(app), DIED)
    assert states(app, parent.id, child.id, grandchild.id) == ["dead"] * 3

    assert app.operator.retry(parent.id, tree=True) == "ready"

    assert states(app, child.id, grandchild.id) == ["waiting", "waiting"]
    for one in (parent, child, grandchild):
        lease = take(app)
        assert lease.job_id == one.id
        commit_step(app, lease, Done())
    assert [it.what for it in app.operator.audit(subject=parent.id)] == ["job.retry"]
    assert app.operator.audit(subject=parent.id)[0].touched == 3


def test_a_parent_that_is_revived_alone_leaves_what_failed_dead(app: Stepfast) -> None:
    work = register_work(app)
    parent = work.enqueue()
    child = work.enqueue(after=parent, on_dead="fail")
    commit_step(app, take(app), DIED)

    app.operator.retry(parent.id)
    commit_step(app, take(app), Done())
    assert states(app, child.id) == ["dead"]

    app.operator.retry(child.id)
    assert states(app, child.id) == ["ready"]


def test_a_child_that_is_revived_alone_waits_for_its_dead_parent(app: Stepfast) -> None:
    work = register_work(app)
    parent = work.enqueue()
    child = work.enqueue(after=parent, on_dead="fail")
    commit_step(app, take(app), DIED)

    assert app.operator.retry(child.id) == "waiting"
    app.operator.retry(parent.id)
    commit_step(app, take(app), DIED)

    assert states(app, child.id) == ["dead"], "it dies again with its parent"


def test_dead_letters_that_are_all_revived_wait_for_each_other(app: Stepfast) -> None:
    work = register_work(app)
    parent = work.enqueue()
    child = work.enqueue(after=parent, on_dead="fail")
    commit_step(app, take(app), DIED)

    assert app.operator.retry_dead_letters().retried == 2

    assert states(app, parent.id, child.id) == ["ready", "waiting"]


def test_a_child_whose_parent_ends_while_it_is_revived_is_not_forgotten(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    work, other = register_work(app), another_app()
    for _ in range(5):
        parent = work.enqueue()
        child = work.enqueue(after=parent, on_dead="fail")
        commit_step(app, take(app), DIED)
        app.operator.retry(parent.id)
        lease = take(app)

        done = together([partial(app.operator.retry, child.id), partial(ended_by, other, lease)])

        assert done[1] is None
        assert rows.state(app, child.id) == "ready"
        rows.change(app, "DELETE FROM stepfast_job")


def test_a_tree_whose_key_is_taken_is_not_revived_in_part(app: Stepfast) -> None:
    work = register_work(app)
    parent = work.enqueue()
    child = work.enqueue(after=parent, on_dead="fail", key="mine")
    commit_step(app, take(app), DIED)
    work.enqueue(key="mine")

    with pytest.raises(StateError, match="1 of the tree of job"):
        app.operator.retry(parent.id, tree=True)

    assert states(app, parent.id, child.id) == ["dead", "dead"]


def test_who_waits_for_a_dead_letter_that_is_purged_dies_of_it(app: Stepfast) -> None:
    work = register_work(app)
    parent = work.enqueue()
    child = work.enqueue(after=parent)
    commit_step(app, take(app), DIED)

    assert app.operator.purge_dead_letters() == 1

    row = rows.ended(app, child.id)
    assert row is not None
    assert row["last_error"].endswith("was deleted")
    app.operator.retry(child.id)
    assert rows.state(app, child.id) == "ready", "nobody can wait for what is gone"


def test_what_an_unfinished_job_needs_is_kept_beyond_its_time(app: Stepfast) -> None:
    work = register_work(app)
    needed, other, slow = work.enqueue(), work.enqueue(), work.enqueue()
    leases = {it.job_id: it for it in claim(app, limit=9)}
    work.enqueue(after=[needed, slow])
    for one in (needed, other):
        commit_step(app, leases[one.id], Done(5))
    rows.change(app, "UPDATE stepfast_archive SET finished_at = 1")

    with app.transaction() as tx:
        assert expire_results(tx, "work", rows.DAY, 10) == 1
        assert prune(tx, rows.DAY, 1) == 1
        assert prune(tx, rows.DAY, 1) == 0
    row = rows.ended(app, needed.id)
    assert row is not None
    assert row["result"] == "5"

    commit_step(app, leases[slow.id], Done())
    commit_step(app, take(app), Done())
    rows.change(app, "UPDATE stepfast_archive SET finished_at = 1")
    with app.transaction() as tx:
        assert prune(tx, rows.DAY) == 3
    assert rows.count(app, "stepfast_dependency") == 0


# Keys, cycles


def test_a_duplicate_that_is_skipped_keeps_what_it_comes_after(app: Stepfast) -> None:
    work = register_work(app)
    parent = work.enqueue()
    first = work.enqueue(key="k", after=parent)

    again = work.enqueue(key="k", after=work.enqueue(queue="other"), on_duplicate="skip")

    assert (again.id, again.created) == (first.id, False)
    commit_step(app, take(app), Done())
    assert rows.state(app, first.id) == "ready"


def test_a_replaced_job_comes_after_what_the_new_payload_does(app: Stepfast) -> None:
    work = register_work(app)
    old, new = work.enqueue(n=1), work.enqueue(n=2)
    job = work.enqueue(key="k", after=old)

    work.enqueue(key="k", after=new, on_duplicate="replace")
    leases = {it.job_id: it for it in claim(app, limit=9)}
    commit_step(app, leases[old.id], Done())
    assert rows.state(app, job.id) == "waiting"
    commit_step(app, leases[new.id], Done())
    assert rows.state(app, job.id) == "ready"

    work.enqueue(key="k", after=work.enqueue(queue="other"), on_duplicate="replace")
    assert rows.state(app, job.id) == "waiting"
    work.enqueue(key="k", on_duplicate="replace")
    assert rows.state(app, job.id) == "ready"
    assert edges(app) == []


def test_jobs_that_would_wait_for_each_other_are_refused_with_their_names(app: Stepfast) -> None:
    work = register_work(app)
    first = work.enqueue(id="first", key="k")
    work.enqueue(id="second", after=first)
    work.enqueue(id="third", after="second")

    with pytest.raises(CycleError, match="first after third after second after first"):
        work.enqueue(key="k", after="third", on_duplicate="replace")
    with pytest.raises(CycleError, match="own after own"):
        work.enqueue(id="own", after="own")

    assert take(app).job_id == first.id
    assert rows.count(app, "stepfast_job") == 3


def test_two_that_wait_for_each_other_at_the_same_moment_are_not_both_stored(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    work, other = register_work(app), register_work(another_app())
    one, two = work.enqueue(key="one"), work.enqueue(key="two")

    answers = together(
        [
            partial(work.enqueue, key="one", after=two, on_duplicate="replace"),
            partial(other.enqueue, key="two", after=one, on_duplicate="replace"),
        ]
    )

    refused = [it for it in answers if isinstance(it, CycleError | ContentionError)]
    assert len(refused) == 1


# Trees


def test_a_tree_is_cancelled_and_revived_as_a_whole(app: Stepfast) -> None:
    work = register_work(app)
    root = work.enqueue()
    left, right = work.enqueue(after=root, on_dead="fail"), work.enqueue(after=root, on_dead="run")
    leaf = work.enqueue(after=[left, right])
    apart = work.enqueue(queue="elsewhere")

    assert app.operator.cancel(root.id, "not today", tree=True) == "cancelled"

    tree = (root.id, left.id, right.id, leaf.id)
    assert states(app, *tree, apart.id) == ["cancelled"] * 4 + ["ready"]
    entry = app.operator.audit(subject=root.id)[0]
    assert (entry.what, entry.touched, entry.why) == ("job.cancel", 4, "not today")
    with pytest.raises(StateError, match="nothing that comes after it is unfinished"):
        app.operator.cancel(root.id, tree=True)

    app.operator.retry(root.id, tree=True)
    assert states(app, *tree) == ["ready", "waiting", "waiting", "waiting"]
    drain(app, queues="default")
    assert states(app, *tree) == ["done"] * 4


def test_of_a_tree_what_runs_is_asked_to_stop(app: Stepfast) -> None:
    work = register_work(app)
    root = work.enqueue()
    child = work.enqueue(after=root)
    lease = take(app)

    with app.transaction() as tx:
        stopped = trees.cancel_tree(tx, root.id)

    assert (stopped.state, stopped.ended, stopped.asked) == ("leased", 1, 1)
    commit_step(app, lease, Done())  # it was too late to stop it
    assert states(app, root.id, child.id) == ["done", "cancelled"]


def test_a_tree_is_shown_with_every_job_once(app: Stepfast) -> None:
    work = register_work(app)
    root = work.enqueue(id="root")
    work.enqueue(id="left", after=root)
    work.enqueue(id="right", after=root)
    work.enqueue(id="tip", after=["left", "right"], on_dead="run")

    lines = [(it.depth, it.id, it.state, it.again) for it in app.operator.tree("root")]

    assert lines == [
        (0, "root", "ready", False),
        (1, "left", "waiting", False),
        (2, "tip", "waiting", False),
        (1, "right", "waiting", False),
        (2, "tip", "waiting", True),
    ]
    detail = app.operator.job("tip")
    assert [(it.id, it.edge, it.on_dead) for it in detail.parents] == [
        ("left", "open", "run"),
        ("right", "open", "run"),
    ]
    assert [it.id for it in app.operator.job("root").children] == ["left", "right"]
    with pytest.raises(NotFoundError):
        app.operator.tree("nowhere")


# The doctor


def test_who_waits_for_a_job_that_was_removed_by_hand_is_found(app: Stepfast) -> None:
    work = register_work(app)
    done, gone, dead = work.enqueue(), work.enqueue(), work.enqueue()
    after_done, after_gone, after_dead = (work.enqueue(after=it, on_dead="wait") for it in (done, gone, dead))
    leases = {it.job_id: it for it in claim(app, limit=9)}
    commit_step(app, leases[dead.id], DIED)
    for one in (done, gone):
        rows.change(app, "UPDATE stepfast_job SET has_dependants = 0 WHERE id = :id", id=one.id)
    commit_step(app, leases[done.id], Done())
    rows.change(app, "DELETE FROM stepfast_job WHERE id = :id", id=gone.id)

    with app.reading() as tx:
        assert find_stranded(tx, batch=1) == sorted([done.id, gone.id])
    (finding,) = (it for it in app.operator.doctor() if it.name == STRANDED)
    assert "stepfast doctor --repair" in str(finding.cure)
    repaired = app.operator.by("alice").doctor(repair=True)
    assert repaired[0].found == "decided about the jobs that waited for 2 jobs which had ended"
    assert STRANDED not in {it.name for it in repaired}
    assert app.operator.doctor(repair=True)[0].name != "repair"

    (audited,) = app.operator.audit(what="dependants.release")
    assert (audited.who, audited.touched) == ("alice", 2)
    assert states(app, after_done.id, after_gone.id, after_dead.id) == ["ready", "dead", "waiting"]


def test_purging_forgets_the_edges_of_a_job(app: Stepfast) -> None:
    work = register_work(app)
    parent = work.enqueue()
    child = work.enqueue(after=parent, on_dead="fail")
    commit_step(app, take(app), DIED)

    with app.transaction() as tx:
        dead_letters.purge(tx, [child.id])

    assert edges(app) == []
    with pytest.raises(NotFoundError), app.transaction() as tx:
        actions.retry(tx, child.id)
