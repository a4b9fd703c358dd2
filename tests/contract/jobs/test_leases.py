"""A step has one owner at a time: a replaced owner can write nothing, a late one may finish."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Continue, Done, Reject, Retry, Snooze, Stepfast
from stepfast.clock import moment
from stepfast.errors import ConfigurationError, LeaseLostError
from stepfast.jobs import lease as leases
from stepfast.jobs.commit import finish_many, give_back
from stepfast.jobs.outcome import Again, Bury, Call, GiveBack, Stop
from stepfast.jobs.step import Report, write_reports
from tests.support import rows
from tests.support.engine import (
    ALICE,
    BOB,
    claim,
    commit_step,
    make_silent,
    register_work,
    rescue_all,
    take,
    together,
)

if TYPE_CHECKING:
    from stepfast.jobs.lease import Lease
    from stepfast.jobs.outcome import Ending


def test_contenders_share_the_jobs_without_overlap(another_app: Callable[[], Stepfast]) -> None:
    apps = [another_app() for _ in range(6)]
    jobs = register_work(apps[0]).enqueue_many([{"n": n} for n in range(60)])

    def drain(app: Stepfast, owner: int) -> list[str]:
        taken: list[str] = []
        while batch := claim(app, owner, limit=3):
            taken += [it.job_id for it in batch]
        return taken

    shares = together([partial(drain, app, owner) for owner, app in enumerate(apps, start=1)])

    taken = [job_id for share in shares for job_id in share]
    assert len(taken) == len(set(taken)) == 60
    assert set(taken) == {job.id for job in jobs}


def test_one_job_wanted_by_many_goes_to_one(another_app: Callable[[], Stepfast]) -> None:
    apps = [another_app() for _ in range(8)]
    job = register_work(apps[0]).enqueue()

    answers = together([partial(claim, app, owner) for owner, app in enumerate(apps, start=1)])

    (winner,) = [answer[0] for answer in answers if answer]
    row = rows.live(apps[0], job.id)
    assert row is not None
    assert (winner.job_id, winner.fence) == (job.id, row["fence"])


@pytest.mark.only_on("sqlite")
def test_a_claim_takes_what_loose_columns_let_in(app: Stepfast) -> None:
    job = register_work(app).enqueue(n=7)
    with app.transaction() as tx:
        tx.execute("UPDATE stepfast_job SET payload = CAST(payload AS BLOB), ready_at = ready_at - 0.5")

    (lease,) = claim(app, ALICE)

    assert (lease.job_id, lease.payload) == (job.id, '{"n":7}')


@pytest.mark.only_on("postgresql", "mariadb")
def test_two_open_claims_both_get_rows(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    jobs = register_work(app).enqueue_many([{"n": n} for n in range(10)])

    with app.transaction() as mine, another_app().transaction() as theirs:
        first = leases.claim(mine, "default", ALICE, 5)
        second = leases.claim(theirs, "default", BOB, 5)

    assert [it.job_id for it in first + second] == [job.id for job in jobs]


@pytest.mark.only_on("postgresql", "mariadb")
def test_an_open_claim_from_a_hint_leaves_the_rest_to_others(
    app: Stepfast, another_app: Callable[[], Stepfast]
) -> None:
    jobs = register_work(app).enqueue_many([{"n": n} for n in range(10)])

    with app.transaction() as mine, another_app().transaction() as theirs:
        first = leases.claim(mine, "default", ALICE, 5, hint=(0, 0))
        second = leases.claim(theirs, "default", BOB, 5, hint=(0, 0))

    assert [it.job_id for it in first + second] == [job.id for job in jobs]


def test_a_hint_hides_what_is_older_and_other_priorities(app: Stepfast) -> None:
    work = register_work(app)
    older, inside = work.enqueue(), work.enqueue()
    work.enqueue(priority=1)
    now = rows.now(app)
    rows.change(app, "UPDATE stepfast_job SET ready_at = 5 WHERE id = :id", id=older.id)

    with app.transaction() as tx:
        taken = leases.claim(tx, "default", ALICE, 10, hint=(0, now - rows.HOUR))

    assert [it.job_id for it in taken] == [inside.id]


def test_a_leased_job_is_not_claimed_again(app: Stepfast) -> None:
    register_work(app).enqueue()
    take(app)

    assert claim(app, BOB) == []


def test_every_claim_has_a_fence_of_its_own(app: Stepfast) -> None:
    register_work(app).enqueue_many([{"n": n} for n in range(4)])

    first, second = claim(app, limit=2), claim(app, limit=2)

    assert len({it.fence for it in first}) == 1
    assert len({it.fence for it in first + second}) == 2


# The owner that was replaced

ENDINGS: list[Ending] = [
    Done(),
    Done({"some": "result"}),
    Continue({"page": 2}),
    Continue({"page": 2}, delay="1m"),
    Snooze("1m"),
    Reject("bad"),
    Again(timedelta(0), "error", "error"),
    Bury("error", "error"),
    Stop("cancelled"),
    GiveBack(),
]


def replaced(app: Stepfast) -> tuple[Lease, Lease]:
    """Alice went silent with a job on board, was declared dead, and Bob has it now."""
    rows.add_worker(app, ALICE, alive_for=-rows.SECOND)
    rows.add_worker(app, BOB, worker_id="bob")
    register_work(app).enqueue(n=1)
    old = take(app, ALICE)
    assert rescue_all(app).jobs == 1
    with app.transaction() as tx:
        new = leases.claim_suspect(tx, BOB, [])
    assert new is not None
    assert new.job_id == old.job_id
    return old, new


@pytest.mark.parametrize("ending", ENDINGS, ids=repr)
def test_an_owner_that_was_replaced_can_end_nothing(app: Stepfast, ending: Ending) -> None:
    old, new = replaced(app)
    before = rows.live(app, old.job_id)

    with pytest.raises(LeaseLostError) as told:
        commit_step(app, old, ending)

    assert (told.value.job_id, told.value.fence) == (old.job_id, old.fence)
    assert rows.live(app, old.job_id) == before
    assert rows.ended(app, old.job_id) is None
    commit_step(app, new, Done())
    assert rows.state(app, old.job_id) == "done"


@pytest.mark.parametrize("stay", [False, True])
def test_an_owner_that_was_replaced_can_continue_nothing(app: Stepfast, stay: bool) -> None:  # noqa: FBT001 - a parameter
    old, _ = replaced(app)
    before = rows.live(app, old.job_id)

    with pytest.raises(LeaseLostError):
        commit_step(app, old, Continue({"page": 2}), stay=stay)

    assert rows.live(app, old.job_id) == before


@pytest.mark.usefixtures("ledger")
def test_an_owner_that_was_replaced_leaves_no_effect(app: Stepfast) -> None:
    old, _ = replaced(app)
    ran: list[str] = []

    with pytest.raises(LeaseLostError):
        commit_step(app, old, Done(), Call(lambda _: ran.append("effect")))

    assert ran == []


def test_an_owner_that_was_replaced_can_report_nothing(app: Stepfast) -> None:
    old, _ = replaced(app)

    with app.transaction() as tx:
        lost = write_reports(
            tx, [Report(old, 50, "half", None, None), Report(old, None, None, "info", "a line")]
        )

    row = rows.live(app, old.job_id)
    assert row is not None
    assert lost == {(old.job_id, old.fence)}
    assert (row["progress"], row["progress_note"]) == (0, None)
    assert rows.logs(app, old.job_id) == []


def test_an_owner_that_was_replaced_can_give_back_nothing(app: Stepfast) -> None:
    old, new = replaced(app)

    with app.transaction() as tx:
        matched = give_back(tx, [old.job_id], old.fence)

    row = rows.live(app, old.job_id)
    assert row is not None
    assert (matched, row["state"], row["fence"]) == (0, "leased", new.fence)


def test_an_owner_that_was_replaced_can_acknowledge_nothing(app: Stepfast) -> None:
    old, _ = replaced(app)

    with app.transaction() as tx:
        mine = finish_many(tx, [old])

    assert mine == []
    assert rows.state(app, old.job_id) == "leased"


def test_an_owner_whose_job_was_rescued_but_not_yet_taken_can_commit_nothing(app: Stepfast) -> None:
    rows.add_worker(app, ALICE, alive_for=-rows.SECOND)
    register_work(app).enqueue()
    old = take(app, ALICE)
    rescue_all(app)

    with pytest.raises(LeaseLostError):
        commit_step(app, old, Done())

    assert rows.state(app, old.job_id) == "suspect"


@pytest.mark.parametrize("ending", ENDINGS, ids=repr)
def test_a_late_owner_whom_nobody_replaced_may_still_commit(app: Stepfast, ending: Ending) -> None:
    rows.add_worker(app, ALICE, alive_for=-rows.HOUR)
    register_work(app).enqueue()
    late = take(app, ALICE)

    commit_step(app, late, ending)

    assert rows.state(app, late.job_id) != "leased"


@pytest.mark.parametrize("second", ENDINGS, ids=repr)
@pytest.mark.parametrize(
    "first",
    [Continue({"page": 2}), Snooze("1m"), Again(timedelta(0), "error", "error"), GiveBack()],
    ids=repr,
)
def test_a_step_ends_once(app: Stepfast, first: Ending, second: Ending) -> None:
    """The job lives on, but the fence of the step that ended opens nothing any more."""
    register_work(app).enqueue()
    held = take(app)
    commit_step(app, held, first)
    before = rows.live(app, held.job_id)

    with pytest.raises(LeaseLostError):
        commit_step(app, held, second)

    assert rows.live(app, held.job_id) == before


def test_an_owner_that_renewed_in_time_is_not_replaced(app: Stepfast) -> None:
    rows.add_worker(app, ALICE)
    register_work(app).enqueue()
    held = take(app, ALICE)

    rescued = rescue_all(app)

    assert rescued.jobs == 0
    commit_step(app, held, Done())
    assert rows.state(app, held.job_id) == "done"


def test_a_declared_death_cannot_be_renewed_away(app: Stepfast) -> None:
    rows.add_worker(app, ALICE)
    make_silent(app, ALICE)
    rescue_all(app)

    (row,) = rows.query(app, "SELECT state, ended_at FROM stepfast_worker")
    assert row["state"] == "dead"
    assert row["ended_at"] is not None


# By hand


def test_nothing_to_acquire_is_none(app: Stepfast) -> None:
    assert app.acquire("me") is None


def test_a_lease_by_hand_says_what_whose_and_until_when(app: Stepfast) -> None:
    job = register_work(app).enqueue(n=7)

    held = app.acquire("my-worker-1", 300)

    assert held is not None
    assert (held.job_id, held.kind, held.payload, held.attempt) == (job.id, "work", {"n": 7}, 1)
    assert (held.worker_id, held.until.tzinfo) == ("my-worker-1", UTC)
    left = held.until - moment(rows.now(app))
    assert timedelta(seconds=280) < left <= timedelta(seconds=300)
    assert app.acquire("another") is None


def test_leases_by_hand_follow_priority_and_age(app: Stepfast) -> None:
    work = register_work(app)
    low, first, second = work.enqueue(), work.enqueue(priority=1), work.enqueue(priority=1)

    order = [app.acquire("me") for _ in range(3)]

    assert [held.job_id for held in order if held] == [first.id, second.id, low.id]


def test_of_many_who_acquire_one_job_one_gets_it(another_app: Callable[[], Stepfast]) -> None:
    apps = [another_app() for _ in range(6)]
    register_work(apps[0]).enqueue()

    answers = together([partial(app.acquire, f"worker-{n}") for n, app in enumerate(apps)])

    assert len([it for it in answers if it is not None]) == 1
    assert not [it for it in answers if isinstance(it, Exception)]


def test_a_lease_by_hand_can_be_extended_by_its_owner(app: Stepfast) -> None:
    register_work(app).enqueue()
    held = app.acquire("me", 10)
    assert held is not None

    longer = app.extend(held, 600)

    assert longer.until - held.until > timedelta(seconds=580)
    app.release(longer, "done")
    assert rows.state(app, held.job_id) == "done"


def test_a_lease_by_hand_released_as_done_keeps_its_result(app: Stepfast) -> None:
    register_work(app).enqueue()
    held = app.acquire("me")
    assert held is not None

    app.release(held, "done", result={"at": datetime(2024, 1, 2, tzinfo=UTC)})

    row = rows.ended(app, held.job_id)
    assert row is not None
    assert (row["state"], json.loads(row["result"])) == ("done", {"at": "2024-01-02T00:00:00Z"})


def test_a_lease_by_hand_released_as_retry_is_charged_and_waits(app: Stepfast) -> None:
    register_work(app).enqueue()
    held = app.acquire("me")
    assert held is not None

    app.release(held, "retry", "the printer is out of paper")

    row = rows.live(app, held.job_id)
    assert row is not None
    assert (row["state"], row["failures"], row["last_error"]) == (
        "scheduled",
        1,
        "the printer is out of paper",
    )
    assert (row["owner"], row["leased_by"], row["lease_until"]) == (None, None, None)


def test_a_lease_by_hand_released_as_failed_is_a_dead_letter(app: Stepfast) -> None:
    register_work(app).enqueue()
    held = app.acquire("me")
    assert held is not None

    app.release(held, "failed", "password=hunter2 was refused")

    row = rows.ended(app, held.job_id)
    assert row is not None
    assert (row["state"], row["last_error"]) == ("dead", "password=*** was refused")


def test_the_third_retry_by_hand_is_the_last_by_default(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    states = []

    for _ in range(3):
        held = app.acquire("me")
        assert held is not None
        app.release(held, "retry", "again")
        states.append(rows.state(app, job.id))
        if states[-1] == "scheduled":
            rows.make_due(app, job.id)

    assert states == ["scheduled", "scheduled", "dead"]


def test_the_retry_policy_of_the_kind_holds_for_leases_by_hand(app: Stepfast) -> None:
    @app.job(retry=Retry(attempts=1))
    def work() -> None: ...

    job = work.enqueue()
    held = app.acquire("me")
    assert held is not None
    app.release(held, "retry", "again")

    assert rows.state(app, job.id) == "dead"


def expired_by_hand(app: Stepfast) -> Any:
    """A lease whose time is over, and whose job was taken back."""
    register_work(app).enqueue()
    held = app.acquire("zombie", 60)
    assert held is not None
    rows.change(app, "UPDATE stepfast_job SET lease_until = lease_until - :hour", hour=rows.HOUR)
    assert rescue_all(app).jobs == 1
    return held


def test_a_lease_by_hand_that_ran_out_is_taken_back_and_charged(app: Stepfast) -> None:
    held = expired_by_hand(app)

    row = rows.live(app, held.job_id)
    assert row is not None
    assert (row["state"], row["crashes"], row["failures"]) == ("ready", 1, 0)
    assert row["last_error"] == "Lease expired - worker crashed or timed out"
    again = app.acquire("next")
    assert again is not None
    assert again.attempt == 2


@pytest.mark.parametrize("how", ["done", "retry", "failed"])
def test_a_zombie_can_release_nothing(app: Stepfast, how: Any) -> None:
    held = expired_by_hand(app)
    new = app.acquire("next")
    assert new is not None

    with pytest.raises(LeaseLostError):
        app.release(held, how, "late")

    row = rows.live(app, held.job_id)
    assert row is not None
    assert (row["state"], row["fence"], row["failures"]) == ("leased", new.lease.fence, 0)


def test_a_zombie_can_extend_nothing(app: Stepfast) -> None:
    held = expired_by_hand(app)
    assert app.acquire("next") is not None

    with pytest.raises(LeaseLostError):
        app.extend(held, 600)


def test_a_late_lease_by_hand_that_nobody_took_back_may_be_released(app: Stepfast) -> None:
    register_work(app).enqueue()
    held = app.acquire("me", 60)
    assert held is not None
    rows.change(app, "UPDATE stepfast_job SET lease_until = 1")

    app.release(held, "done")

    assert rows.state(app, held.job_id) == "done"


def test_a_lease_by_hand_that_still_runs_is_left_alone(app: Stepfast) -> None:
    register_work(app).enqueue()
    assert app.acquire("me", 60) is not None

    assert rescue_all(app).jobs == 0


def test_a_lease_by_hand_that_runs_out_three_times_ends_in_the_dead_letters(app: Stepfast) -> None:
    job = register_work(app).enqueue()

    for _ in range(3):
        assert app.acquire("me") is not None
        rows.change(app, "UPDATE stepfast_job SET lease_until = 1")
        rescue_all(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert (row["state"], row["crashes"]) == ("dead", 3)


@pytest.mark.parametrize("worker_id", ["", "w" * 101])
def test_a_worker_id_that_does_not_fit_the_view_is_refused(app: Stepfast, worker_id: str) -> None:
    with pytest.raises(ConfigurationError, match=f"not {len(worker_id)}"):
        app.acquire(worker_id)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"worker_id": 7}, "worker_id=7: give a text"),
        ({"lease": 0}, "lease: it would end before the job is yours"),
        ({"lease": float("nan")}, "lease: nan is not a duration"),
        ({"queue": "mail.*"}, r"queue 'mail\.\*'"),
    ],
)
def test_a_lease_by_hand_that_cannot_work_is_refused(
    app: Stepfast, options: dict[str, Any], sentence: str
) -> None:
    register_work(app).enqueue()

    with pytest.raises(ConfigurationError, match=sentence):
        app.acquire(**{"worker_id": "me", **options})


def test_an_unknown_way_to_release_is_refused(app: Stepfast) -> None:
    register_work(app).enqueue()
    held = app.acquire("me")
    assert held is not None
    how: Any = "finished"

    with pytest.raises(ConfigurationError, match="'done', 'retry' or 'failed'"):
        app.release(held, how)
