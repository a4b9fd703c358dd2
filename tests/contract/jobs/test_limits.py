"""Limits hold across all workers, and held jobs are released when there is room."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from stepfast import Concurrency, Continue, Done, Rate, Step
from stepfast.admin import jobs as actions
from stepfast.errors import LeaseLostError
from stepfast.jobs.commit import commit
from stepfast.jobs.outcome import Snooze
from stepfast.jobs.state import TRANSITIONS, JobState
from stepfast.limits.limit_rows import (
    LOOK_AGAIN,
    LOOK_SOON,
    LimitedStep,
    admit,
    forget_idle_limits,
    look_at_all_limits,
    release_due,
)
from stepfast.testing import drain
from stepfast.worker.admission import Admission
from tests.support import engine, rows
from tests.support.engine import ALICE, BOB, claim, commit_step, together

if TYPE_CHECKING:
    from stepfast import Job, Stepfast
    from stepfast.jobs.lease import Lease
    from stepfast.limits.limit import Limit


def limited(app: Stepfast, *limits: Limit) -> Job[..., None]:
    return app.job(name="work", limits=limits)(work)


def work(n: int = 0, customer: str = "") -> None:
    """Nothing: these tests play the worker."""


def two(a: str, b: str) -> None: ...


def start(app: Stepfast, limit: int = 100, owner: int = ALICE) -> tuple[Admission, list[Lease]]:
    """Claim and ask the limits, as a worker does."""
    admission = Admission(app.database, app.kinds)
    return admission, admission.admit(claim(app, owner, limit))


def finish(app: Stepfast, admission: Admission, leases: list[Lease]) -> None:
    """End these steps, as the committer does."""
    for lease in leases:
        with app.transaction() as tx:
            commit(tx, lease, Done())
            admission.free(tx, [lease])
        admission.forget([lease])


def let_go(app: Stepfast) -> int:
    with app.transaction() as tx:
        return release_due(tx)


def states(app: Stepfast) -> dict[str, int]:
    return {
        row["state"]: row["n"]
        for row in rows.query(app, "SELECT state, count(*) AS n FROM stepfast_job GROUP BY state")
    }


def move_clock(app: Stepfast, seconds: float) -> None:
    """Let so much time have passed for the limits."""
    span = int(seconds * rows.SECOND)
    rows.change(
        app, "UPDATE stepfast_limit SET arrival_at = arrival_at - :span, due_at = due_at - :span", span=span
    )


# Concurrency


def test_a_concurrency_limit_lets_its_count_start_and_holds_the_others(app: Stepfast) -> None:
    limited(app, Concurrency(3)).enqueue_many([{"n": n} for n in range(10)])

    _, started = start(app)

    assert len(started) == 3
    assert states(app) == {"leased": 3, "held": 7}


def test_of_many_who_ask_at_once_no_more_start_than_the_limit(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    limited(app, Concurrency(5)).enqueue_many([{"n": n} for n in range(80)])
    apps = [another_app() for _ in range(8)]
    for it in apps:
        limited(it, Concurrency(5))

    answers = together([partial(start, it, 10, 100 + n) for n, it in enumerate(apps)])

    assert sum(len(leases) for _, leases in answers) == 5
    assert states(app) == {"leased": 5, "held": 75}


@pytest.mark.only_on("postgresql", "mariadb")
def test_who_asks_waits_for_the_answer_of_who_asked_before(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    job = limited(app, Concurrency(1))
    job.enqueue()
    admission, before = start(app)
    finish(app, admission, before)  # the row of the limit is there
    job.enqueue_many([{}, {}])
    mine, theirs = claim(app, ALICE), claim(app, BOB)
    other = another_app()
    limited(other, Concurrency(1))
    asked = threading.Thread(target=lambda: Admission(other.database, other.kinds).admit(theirs))
    limits = (("slots:kind:work", Concurrency(1)),)

    with app.transaction() as tx:
        first = admit(tx, [LimitedStep(mine[0].job_id, limits)], mine[0].fence)
        asked.start()
        asked.join(0.5)
        assert asked.is_alive()
    asked.join()

    assert first.admitted == [mine[0].job_id]
    assert states(app) == {"leased": 1, "held": 1}


def test_a_step_that_ends_hands_its_slot_to_the_most_urgent_that_waits(app: Stepfast) -> None:
    job = limited(app, Concurrency(1))
    job.enqueue(n=0, priority=9)
    admission, started = start(app, 1)
    late = job.enqueue(n=1, priority=5)
    job.enqueue(n=2, priority=1)
    _, none = start(app)

    finish(app, admission, started)

    assert none == []
    assert rows.state(app, late.id) == "ready"
    assert states(app) == {"ready": 1, "held": 1}


@pytest.mark.parametrize("ending", [Done(), Continue(1), Snooze("1h")], ids=lambda it: type(it).__name__)
def test_every_ending_frees_the_slot(app: Stepfast, ending: Done | Continue | Snooze) -> None:
    limited(app, Concurrency(1)).enqueue_many([{}, {}])
    admission, (lease,) = start(app)

    with app.transaction() as tx:
        commit(tx, lease, ending)
        admission.free(tx, [lease])

    assert rows.count(app, "stepfast_slot") == 0
    assert "held" not in states(app)


def test_a_rolled_back_end_frees_nothing(app: Stepfast) -> None:
    limited(app, Concurrency(1)).enqueue_many([{}, {}])
    admission, (lease,) = start(app)

    def roll_back() -> None:
        with app.transaction() as tx:
            admission.free(tx, [lease])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        roll_back()

    assert rows.count(app, "stepfast_slot") == 1
    assert states(app) == {"leased": 1, "held": 1}


def test_the_slots_of_a_dead_worker_come_back_with_it(app: Stepfast) -> None:
    limited(app, Concurrency(2)).enqueue_many([{"n": n} for n in range(4)])
    rows.add_worker(app, ALICE)
    start(app)
    engine.make_silent(app, ALICE)

    engine.rescue_all(app)
    let_go(app)

    assert states(app) == {"suspect": 2, "ready": 2}
    admission, started = start(app, owner=BOB)
    assert len(started) == 2
    assert admission is not None


def test_a_slot_whose_fence_has_moved_on_is_free(app: Stepfast) -> None:
    limited(app, Concurrency(1)).enqueue_many([{}])
    _, (lease,) = start(app)
    rows.change(app, "UPDATE stepfast_job SET fence = fence + 1 WHERE id = :id", id=lease.job_id)
    limited(app, Concurrency(1)).enqueue()

    _, started = start(app, owner=BOB)

    assert len(started) == 1


def test_each_key_has_slots_of_its_own_and_a_full_one_is_not_in_the_way(app: Stepfast) -> None:
    job = limited(app, Concurrency(2, by="customer"))
    job.enqueue_many([{"customer": "large"}] * 50)
    job.enqueue_many([{"customer": "small"}] * 2)

    _, started = start(app)

    assert len(started) == 4
    assert states(app) == {"leased": 4, "held": 48}
    held = rows.query(app, "SELECT DISTINCT held_by FROM stepfast_job WHERE state = 'held'")
    assert [row["held_by"] for row in held] == ["slots:kind:work customer=large"]


def test_a_limit_of_a_queue_counts_all_its_kinds(app: Stepfast) -> None:
    app.limit_queue("default", Concurrency(3))
    first = app.job(name="first")(work)
    second = app.job(name="second")(work)
    first.enqueue_many([{}] * 2)
    second.enqueue_many([{}] * 2)

    _, started = start(app)

    assert len(started) == 3


def test_a_named_limit_is_shared(app: Stepfast) -> None:
    shared = Concurrency(3, name="source")
    for name in ("first", "second"):
        app.job(name=name, limits=[shared])(work).enqueue_many([{}] * 3)

    _, started = start(app)

    assert len(started) == 3
    assert {lease.kind for lease in started} == {"first"}


def test_a_held_job_can_be_cancelled_and_replaced(app: Stepfast) -> None:
    job = limited(app, Concurrency(1))
    job.enqueue()
    held = job.enqueue(key="k")
    other = job.enqueue()
    start(app)
    assert rows.state(app, held.id) == "held"

    job.enqueue(n=5, key="k", on_duplicate="replace")
    with app.transaction() as tx:
        actions.cancel(tx, other.id)

    assert rows.state(app, held.id) == "ready"
    assert rows.state(app, other.id) == "cancelled"


def test_a_suspect_that_is_held_comes_back_as_a_suspect(app: Stepfast) -> None:
    job = limited(app, Concurrency(1))
    job.enqueue()
    admission, started = start(app)
    suspect = job.enqueue()
    crash = "Lease expired - worker crashed or timed out"
    rows.change(app, "UPDATE stepfast_job SET error_group = :it WHERE id = :id", it=crash, id=suspect.id)
    start(app)
    assert rows.state(app, suspect.id) == "held"

    finish(app, admission, started)

    assert rows.state(app, suspect.id) == "suspect"
    assert JobState.SUSPECT in TRANSITIONS[JobState.HELD]


def test_whatever_nobody_freed_is_found_by_the_sweep(app: Stepfast) -> None:
    limited(app, Concurrency(1)).enqueue_many([{}, {}])
    _, (lease,) = start(app)
    commit_step(app, lease, Done())  # by somebody who knows nothing of limits
    assert states(app) == {"held": 1}

    assert let_go(app) == 0
    move_clock(app, LOOK_AGAIN / rows.SECOND)

    assert let_go(app) == 1
    assert states(app) == {"ready": 1}


@pytest.mark.only_on("postgresql")  # elsewhere one of the two waits for the other
def test_a_slot_that_is_freed_while_a_job_is_put_aside_is_found_soon(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    """Neither of the two transactions sees what the other one writes."""
    limited(app, Concurrency(1)).enqueue_many([{}, {}])
    admission, running = start(app, limit=1)
    (late,) = claim(app, BOB, 1)
    (limit,) = rows.query(app, "SELECT id FROM stepfast_limit")
    with app.transaction() as tx:
        admit(tx, [LimitedStep(late.job_id, ((limit["id"], Concurrency(1)),))], late.fence)
        finish(another_app(), admission, running)
    assert states(app) == {"held": 1}

    move_clock(app, LOOK_SOON / rows.SECOND)

    assert let_go(app) == 1


def test_a_drain_does_not_leave_a_held_job_beside_a_free_slot(app: Stepfast) -> None:
    app.job(name="work", queue="aside", limits=[Concurrency(1)])(work).enqueue_many([{}, {}])
    rows.add_worker(app, ALICE)  # else the drain takes back what nobody owns

    @app.job()
    def end_one_unseen() -> None:
        (lease,) = Admission(app.database, app.kinds).admit(claim(app, ALICE, 2, "aside"))
        commit_step(app, lease, Done())
        assert states(app) == {"held": 1, "leased": 1}
        rows.change(app, "DELETE FROM stepfast_slot")  # as somebody does who has not seen who is held

    end_one_unseen.enqueue()
    drain(app, queues="default")

    assert states(app) == {"ready": 1}


def test_a_job_that_was_put_aside_is_no_longer_its_claimers(app: Stepfast) -> None:
    limited(app, Concurrency(1)).enqueue_many([{}, {}])
    leases = claim(app, ALICE, 2)
    admission = Admission(app.database, app.kinds)
    (started,) = admission.admit(leases)
    (held,) = [lease for lease in leases if lease is not started]

    with pytest.raises(LeaseLostError):
        commit_step(app, held, Done())

    assert rows.state(app, held.job_id) == "held"


def test_a_job_that_somebody_else_has_meanwhile_is_not_put_aside(app: Stepfast) -> None:
    limited(app, Concurrency(1)).enqueue_many([{}, {}])
    leases = claim(app, ALICE, 2)
    rows.change(app, "UPDATE stepfast_job SET fence = fence + 1, owner = :bob", bob=BOB)

    Admission(app.database, app.kinds).admit(leases)

    assert states(app) == {"leased": 2}


def test_a_replaced_owner_does_not_free_the_slot_of_its_successor(app: Stepfast) -> None:
    limited(app, Concurrency(1)).enqueue()
    old_admission, (old,) = start(app)
    rows.change(app, "UPDATE stepfast_job SET fence = 1, state = 'ready', owner = NULL")
    _, (new,) = start(app, owner=BOB)

    with app.transaction() as tx:
        old_admission.free(tx, [old])

    assert rows.query(app, "SELECT fence FROM stepfast_slot") == [{"fence": new.fence}]


def test_a_limit_that_was_raised_lets_those_go_who_were_held_under_the_old_one(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    limited(app, Concurrency(1)).enqueue_many([{}] * 30)
    admission, started = start(app)
    assert states(app) == {"leased": 1, "held": 29}
    restarted = another_app()
    limited(restarted, Concurrency(20))

    finish(app, admission, started)  # lets one go
    _, first = start(restarted)
    _, more = start(restarted)

    assert (len(first), len(more)) == (1, 19)
    (limit,) = restarted.operator.limits()
    assert (limit.slots, limit.taken, limit.held) == (20, 20, 9)


def test_limits_by_two_arguments_are_counted_apart(app: Stepfast) -> None:
    job = app.job(name="two", limits=[Concurrency(3, by="a"), Concurrency(1, by="b")])(two)
    job.enqueue_many([{"a": f"a{n}", "b": "same"} for n in range(6)])
    job.enqueue_many([{"a": "same", "b": f"b{n}"} for n in range(4)])

    _, started = start(app)

    assert len([it for it in started if '"b":"same"' in it.payload]) == 1
    assert len([it for it in started if '"a":"same"' in it.payload]) == 3


def test_twenty_a_second_and_five_hundred_an_hour_are_both_kept(app: Stepfast) -> None:
    limited(app, Rate(20, per="1s", burst=20), Rate(25, per="1m", burst=25)).enqueue_many([{}] * 40)

    _, first = start(app)
    move_clock(app, 30)
    let_go(app)
    _, then = start(app)

    assert (len(first), len(then)) == (20, 5)


# Rates


def test_a_rate_lets_its_burst_start_and_the_others_when_their_time_has_come(app: Stepfast) -> None:
    limited(app, Rate(10, per="10s", burst=2)).enqueue_many([{"n": n} for n in range(6)])

    _, started = start(app)
    assert len(started) == 2
    assert let_go(app) == 0
    move_clock(app, 10 / 9 + 0.01)
    assert let_go(app) == 1

    assert states(app) == {"leased": 2, "ready": 1, "held": 3}
    _, more = start(app)
    assert len(more) == 1


def test_of_many_who_ask_at_once_no_more_start_than_the_rate(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    rate = Rate(30, per="1h", burst=4)
    limited(app, rate).enqueue_many([{"n": n} for n in range(60)])
    apps = [another_app() for _ in range(6)]
    for it in apps:
        limited(it, rate)

    answers = together([partial(start, it, 10, 100 + n) for n, it in enumerate(apps)])

    assert sum(len(leases) for _, leases in answers) == 4
    assert states(app) == {"leased": 4, "held": 56}


def test_a_rate_that_nobody_waits_for_is_not_looked_at(app: Stepfast) -> None:
    limited(app, Rate(5, burst=5)).enqueue_many([{}] * 7)
    start(app)
    move_clock(app, 60)

    let_go(app)
    _, rest = start(app)

    assert len(rest) == 2
    assert rows.query(app, "SELECT id FROM stepfast_limit WHERE due_at IS NOT NULL") == []


def test_two_limits_of_one_job_both_hold(app: Stepfast) -> None:
    limited(app, Rate(100, burst=10), Concurrency(3)).enqueue_many([{}] * 20)

    admission, started = start(app)
    finish(app, admission, started)

    assert len(started) == 3
    assert states(app) == {"ready": 3, "held": 14}


# Other numbers after a restart


@pytest.mark.parametrize(
    "now",
    [[Rate(100, per="1s")], [], [Rate(100, name="other")], [Concurrency(50)]],
    ids=["raised", "none", "named", "slots"],
)
def test_who_was_held_by_a_rate_that_has_changed_does_not_wait_for_the_old_one(
    app: Stepfast, another_app: Callable[[], Stepfast], now: list[Limit]
) -> None:
    limited(app, Rate(1, per="1h", burst=1)).enqueue_many([{}] * 12)
    admission, started = start(app)
    finish(app, admission, started)
    assert states(app) == {"held": 11}
    restarted = another_app()
    limited(restarted, *now)

    with restarted.worker(concurrency=4):
        rows.eventually(lambda: rows.count(app, "stepfast_job") == 0)


def test_who_was_held_by_slots_that_nobody_counts_any_more_goes_on(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    limited(app, Concurrency(1)).enqueue_many([{}] * 60)
    admission, started = start(app)
    finish(app, admission, started)
    restarted = another_app()
    limited(restarted)

    with restarted.worker(concurrency=4):
        rows.eventually(lambda: rows.count(app, "stepfast_job") == 0)


def test_a_narrower_rate_keeps_what_was_started_under_the_wider_one(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    limited(app, Rate(100, per="1h", burst=10)).enqueue_many([{}] * 10)
    start(app)
    restarted = another_app()
    limited(restarted, Rate(2, per="1h", burst=1)).enqueue()

    _, more = start(restarted)

    assert more == []


def test_a_worker_that_does_not_know_a_kind_leaves_its_limits_as_they_are(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    limited(app, Rate(1, per="1h", burst=1)).enqueue_many([{}] * 3)
    start(app)
    stranger = another_app()

    with stranger.transaction() as tx:
        look_at_all_limits(tx)
        release_due(tx, stranger.kinds.families)

    assert states(app) == {"leased": 1, "held": 2}


# Whole workers


@contextmanager
def workers(apps: list[Stepfast]) -> Iterator[None]:
    with ExitStack() as stack:
        for app in apps:
            stack.enter_context(app.worker(concurrency=8))
        yield


def test_three_workers_never_run_more_than_the_limit_and_do_everything(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    lock, running, most = threading.Lock(), 0, 0

    def busy(step: Step) -> Continue | None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1
        return Continue(1) if step.cursor is None else None

    apps = [app, another_app(), another_app()]
    jobs = [it.job(name="busy", limits=[Concurrency(4)])(busy) for it in apps]
    jobs[0].enqueue_many([{} for _ in range(60)])

    with workers(apps):
        rows.eventually(lambda: rows.count(app, "stepfast_job") == 0)

    assert most == 4
    assert rows.count(app, "stepfast_archive", "state = 'done' AND step = 1") == 60
    assert rows.count(app, "stepfast_slot") == 0


def test_two_workers_keep_a_rate_together(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    moments: list[float] = []

    def note() -> None:
        moments.append(time.monotonic())

    apps = [app, another_app()]
    jobs = [it.job(name="note", limits=[Rate(20, per="1s", burst=2)])(note) for it in apps]
    jobs[0].enqueue_many([{} for _ in range(40)])

    with workers(apps):
        rows.eventually(lambda: rows.count(app, "stepfast_job") == 0)

    moments.sort()
    # From being let in to the first line takes a moment, which differs: hence a window a little shorter.
    assert max(sum(first <= it < first + 0.8 for it in moments) for first in moments) <= 20
    assert len(moments) == 40


def test_limits_that_nobody_asks_for_are_forgotten_and_those_in_use_are_kept(app: Stepfast) -> None:
    job = limited(app, Concurrency(1, by="customer"), Rate(5, per="1h", burst=1, by="customer"))
    job.enqueue_many([{"customer": "gone"}, {"customer": "runs"}, {"customer": "held"}, {"customer": "held"}])
    admission, started = start(app)
    finish(app, admission, [lease for lease in started if "gone" in lease.payload])

    with app.transaction() as tx:
        young = forget_idle_limits(tx, rows.HOUR, 100)
    rows.change(app, "UPDATE stepfast_limit SET arrival_at = 1 WHERE arrival_at > 0")
    with app.transaction() as tx:
        old = forget_idle_limits(tx, rows.HOUR, 100)

    left = {row["id"] for row in rows.query(app, "SELECT id FROM stepfast_limit")}
    assert young == 1  # slots know no time: none taken is enough
    assert old == 3  # the rates: nobody waits for them
    assert left == {"slots:kind:work customer=runs", "slots:kind:work customer=held"}


# What an operator sees


def test_an_operator_sees_what_is_taken_and_who_waits(app: Stepfast) -> None:
    limited(app, Concurrency(2), Rate(100, per="1h", burst=50)).enqueue_many([{}] * 5)
    start(app)

    slots = next(it for it in app.operator.limits() if it.limit == "slots:kind:work")
    rate = next(it for it in app.operator.limits(everything=True) if it.limit == "rate:kind:work per 3600s")

    assert (slots.slots, slots.taken, slots.room, slots.held) == (2, 2, 0, 3)
    assert slots.next_look_at is not None
    assert (rate.slots, rate.taken, rate.room, rate.held) == (None, None, 48, 0)
    assert [it.held for it in app.operator.queues()] == [3]
