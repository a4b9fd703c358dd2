"""Jobs of dead workers are rescued; a crash is charged only to a job that was alone in its process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from stepfast import Continue, Done
from stepfast.clock import new_fence
from stepfast.database.database import persist
from stepfast.errors import LeaseLostError
from stepfast.jobs.lease import WaitingSuspects, claim_suspect, claim_suspects, waiting_suspects
from stepfast.jobs.outcome import GiveBack
from stepfast.jobs.rescue import DeathReport, bury, declare_dead, rescue
from stepfast.process_identity import this_process
from tests.support import rows
from tests.support.engine import ALICE, BOB, claim, commit_step, register_work, rescue_all, take

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.jobs.lease import Lease

CRASH_NOTE = "Lease expired - worker crashed or timed out"


def crash(app: Stepfast, jobs: int = 1) -> list[Lease]:
    """A new process claims so many jobs and is never heard of again; the lease runs out."""
    incarnation = rows.add_worker(app, new_fence(), alive_for=-rows.SECOND)
    taken = claim(app, incarnation, limit=jobs)
    with app.transaction() as tx:
        while len(taken) < jobs and (suspect := claim_suspect(tx, incarnation, [])):
            taken.append(suspect)
    assert len(taken) == jobs
    return taken


def test_a_job_alone_on_board_is_charged_with_the_crash(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    crash(app)

    rescued = rescue_all(app)

    row = rows.live(app, job.id)
    assert row is not None
    assert (rescued.jobs, rescued.died) == (1, 0)
    assert (row["state"], row["crashes"], row["failures"]) == ("suspect", 1, 0)
    assert row["last_error"] == CRASH_NOTE
    assert (row["owner"], row["leased_by"], row["lease_until"]) == (None, None, None)


def test_of_many_on_board_none_is_charged_and_all_are_suspects(app: Stepfast) -> None:
    register_work(app).enqueue_many([{"n": n} for n in range(201)])
    crash(app, 201)

    first, second = rescue_all(app), rescue_all(app)

    assert (first.jobs + second.jobs, first.died + second.died) == (201, 0)
    assert rows.query(
        app, "SELECT state, crashes, count(*) AS n FROM stepfast_job GROUP BY state, crashes"
    ) == [{"state": "suspect", "crashes": 0, "n": 201}]


def test_a_suspect_is_claimed_alone_and_by_nobody_else(app: Stepfast) -> None:
    register_work(app).enqueue_many([{"n": n} for n in range(3)])
    crash(app, 3)
    rescue_all(app)

    assert claim(app, BOB, limit=10) == []
    with app.transaction() as tx:
        first, second = claim_suspect(tx, BOB, []), claim_suspect(tx, BOB, [])
    assert first is not None
    assert second is not None
    assert first.job_id != second.job_id


def test_suspects_of_other_queues_and_of_paused_ones_are_left(app: Stepfast) -> None:
    work = register_work(app)
    work.enqueue(queue="mail")
    rows.change(app, "UPDATE stepfast_job SET state = 'suspect'")

    with app.transaction() as tx:
        assert claim_suspect(tx, BOB, ["default"]) is None
    rows.change(app, "INSERT INTO stepfast_queue (id, paused_at) VALUES ('mail', 1)")
    with app.transaction() as tx:
        assert claim_suspect(tx, BOB, ["mail"]) is None
    rows.change(app, "DELETE FROM stepfast_queue")
    with app.transaction() as tx:
        assert claim_suspect(tx, BOB, ["default", "mail"]) is not None


def test_a_suspect_that_finishes_is_an_ordinary_done_job(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    crash(app)
    rescue_all(app)
    with app.transaction() as tx:
        held = claim_suspect(tx, BOB, [])
    assert held is not None

    commit_step(app, held, Done())

    assert held.attempt == 2
    assert rows.state(app, job.id) == "done"


def test_a_suspect_that_continues_is_rehabilitated(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    crash(app)
    rescue_all(app)
    with app.transaction() as tx:
        held = claim_suspect(tx, BOB, [])
    assert held is not None

    commit_step(app, held, Continue(1))

    row = rows.live(app, job.id)
    assert row is not None
    assert (row["state"], row["crashes"]) == ("ready", 0)


def test_a_suspect_that_is_given_back_is_still_a_suspect(app: Stepfast) -> None:
    """A worker that stops in the middle has proved nothing: among others, the job might take them down again."""
    register_work(app).enqueue_many([{"n": n} for n in range(2)])
    crash(app, 2)
    rescue_all(app)
    with app.transaction() as tx:
        held = claim_suspect(tx, BOB, [])
    assert held is not None

    commit_step(app, held, GiveBack())

    row = rows.live(app, held.job_id)
    assert row is not None
    assert (row["state"], row["crashes"], row["failures"]) == ("suspect", 0, 0)
    assert claim(app, BOB, limit=10) == []


def test_a_suspect_that_went_on_and_is_given_back_later_is_an_ordinary_job(app: Stepfast) -> None:
    register_work(app).enqueue()
    crash(app)
    rescue_all(app)
    with app.transaction() as tx:
        held = claim_suspect(tx, BOB, [])
    assert held is not None
    commit_step(app, held, Continue(1))

    commit_step(app, take(app, BOB), GiveBack())

    assert rows.state(app, held.job_id) == "ready"


@pytest.mark.parametrize("leave", ["by hand", "stopped"])
def test_a_job_that_was_never_suspected_is_given_back_among_the_others(app: Stepfast, leave: str) -> None:
    job = register_work(app).enqueue()
    if leave == "by hand":
        assert app.acquire("me") is not None
        rows.change(app, "UPDATE stepfast_job SET lease_until = 1")
    else:
        rows.add_worker(app, ALICE, state="stopped")
        take(app, ALICE)
    rescue_all(app)

    commit_step(app, take(app, BOB), GiveBack())

    assert rows.state(app, job.id) == "ready"


def test_a_job_that_kills_three_workers_is_a_dead_letter_with_that_reason(app: Stepfast) -> None:
    job = register_work(app).enqueue()

    for _ in range(3):
        crash(app)
        rescued = rescue_all(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert (rescued.jobs, rescued.died) == (1, 1)
    assert (row["state"], row["crashes"], row["finished_at"] > 0) == ("dead", 3, True)
    assert row["last_error"] == f"{CRASH_NOTE}; {CRASH_NOTE}; {CRASH_NOTE}; killed its worker 3 times"


def test_neighbours_of_a_killer_live_on(app: Stepfast) -> None:
    """Two hundred innocents and one that kills: the first death suspects all, later ones convict exactly one."""
    work = register_work(app)
    killer = work.enqueue(priority=1)
    work.enqueue_many([{"n": n} for n in range(9)])
    crash(app, 10)
    rescue_all(app)

    def run_suspects_until_the_killer_strikes() -> None:
        while True:
            incarnation = rows.add_worker(app, new_fence(), alive_for=-rows.SECOND)
            with app.transaction() as tx:
                held = claim_suspect(tx, incarnation, [])
            if held is None or held.job_id == killer.id:
                return
            commit_step(app, held, Done())

    for _ in range(3):
        run_suspects_until_the_killer_strikes()
        rescue_all(app)
    run_suspects_until_the_killer_strikes()

    assert rows.state(app, killer.id) == "dead"
    assert rows.count(app, "stepfast_archive", "state = 'done'") == 9
    assert rows.count(app, "stepfast_archive", "crashes > 0") == 1
    assert rows.count(app, "stepfast_job") == 0


def test_the_crash_note_is_appended_to_the_error_that_was_there(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    rows.change(app, "UPDATE stepfast_job SET last_error = 'ValueError: 3', failures = 1")
    crash(app)

    rescue_all(app)

    row = rows.live(app, job.id)
    assert row is not None
    assert row["last_error"] == f"ValueError: 3; {CRASH_NOTE}"
    assert (row["failures"], row["crashes"]) == (1, 1)


def test_an_error_that_is_long_already_does_not_grow(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    rows.change(app, "UPDATE stepfast_job SET last_error = :error", error="e" * 3600)
    crash(app)

    rescue_all(app)

    row = rows.live(app, job.id)
    assert row is not None
    assert row["last_error"] == "e" * 3600


def test_the_crash_limit_is_the_callers_choice(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    crash(app)

    rescue_all(app, crash_limit=1)

    assert rows.state(app, job.id) == "dead"


def test_an_innocent_with_old_crashes_is_not_buried_for_a_neighbours(app: Stepfast) -> None:
    register_work(app).enqueue_many([{"n": n} for n in range(2)])
    rows.change(app, "UPDATE stepfast_job SET crashes = 2")
    crash(app, 2)

    rescued = rescue_all(app)

    assert (rescued.jobs, rescued.died) == (2, 0)
    assert rows.count(app, "stepfast_job", "state = 'suspect' AND crashes = 2") == 2


def test_a_job_that_was_asked_to_stop_is_cancelled_not_rescued(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    crash(app)
    rows.change(app, "UPDATE stepfast_job SET cancel_at = 1")

    rescue_all(app)

    row = rows.ended(app, job.id)
    assert row is not None
    assert (row["state"], row["crashes"]) == ("cancelled", 0)


def test_a_process_that_renewed_is_not_declared_dead(app: Stepfast) -> None:
    rows.add_worker(app, ALICE)
    register_work(app).enqueue()
    take(app, ALICE)

    with app.transaction() as tx:
        dead = declare_dead(tx, me=0, trust_clock=True)

    assert dead == 0
    assert rescue_all(app).jobs == 0


def test_a_process_that_renews_at_the_last_moment_stays_alive(app: Stepfast) -> None:
    """The list of the silent was read before it renewed: the guard is repeated in the statement that kills."""
    from stepfast.jobs.rescue import DECLARE_DEAD

    rows.add_worker(app, ALICE)

    with app.transaction() as tx:
        matched = tx.run(DECLARE_DEAD, incarnation=ALICE, proven=0)

    assert matched == 0
    assert rows.query(app, "SELECT state FROM stepfast_worker") == [{"state": "alive"}]


def test_who_does_not_trust_the_clock_declares_nobody_dead_by_it(app: Stepfast) -> None:
    register_work(app).enqueue()
    crash(app)

    with app.transaction() as tx:
        dead = declare_dead(tx, me=0, trust_clock=False)

    assert dead == 0


def test_nobody_declares_himself_dead(app: Stepfast) -> None:
    rows.add_worker(app, ALICE, alive_for=-rows.HOUR)

    with app.transaction() as tx:
        dead = declare_dead(tx, me=ALICE, trust_clock=True)

    assert dead == 0


def test_a_process_that_is_gone_from_this_machine_needs_no_waiting(app: Stepfast) -> None:
    machine, _, _ = this_process().partition("/")
    if not machine:
        pytest.skip("this system does not tell which boot it is")
    rows.add_worker(app, ALICE)
    rows.change(app, "UPDATE stepfast_worker SET process = :process", process=f"{machine}/{os.getpid()}/1")

    with app.transaction() as tx:
        dead = declare_dead(tx, me=0, trust_clock=False)

    assert dead == 1


def test_a_process_that_is_gone_and_whose_guardian_lives_is_left_to_that_for_a_while(app: Stepfast) -> None:
    """The guardian knows which steps had started. Whoever is faster makes suspects of all of them."""
    machine, _, _ = this_process().partition("/")
    if not machine:
        pytest.skip("this system does not tell which boot it is")
    rows.add_worker(app, ALICE)
    gone = f"{machine}/{os.getpid()}/1"
    rows.change(
        app, "UPDATE stepfast_worker SET process = :gone, guardian = :me", gone=gone, me=this_process()
    )

    with app.transaction() as tx:
        at_first = declare_dead(tx, me=0, trust_clock=False)
        later = declare_dead(tx, me=0, trust_clock=False, unreported={ALICE})

    assert (at_first, later) == (0, 1)


def test_a_report_that_blames_a_job_which_the_worker_did_not_hold_blames_none(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    rows.add_worker(app, ALICE)
    take(app, ALICE)

    with app.transaction() as tx:
        bury(tx, ALICE, "alice", DeathReport(frozenset({job.id}), guilty="another", timeout=1.0))
    rescue_all(app)

    row = rows.live(app, job.id)
    assert row is not None
    assert (row["state"], row["crashes"]) == ("suspect", 1)


def test_a_process_that_runs_on_this_machine_is_not_gone(app: Stepfast) -> None:
    rows.add_worker(app, ALICE)
    rows.change(app, "UPDATE stepfast_worker SET process = :process", process=this_process())

    with app.transaction() as tx:
        dead = declare_dead(tx, me=0, trust_clock=False)

    assert dead == 0


def test_what_a_stopped_process_forgot_is_given_back_uncharged(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    rows.add_worker(app, ALICE)
    take(app, ALICE)
    rows.change(app, "UPDATE stepfast_worker SET state = 'stopped'")

    rescue_all(app)

    row = rows.live(app, job.id)
    assert row is not None
    assert (row["state"], row["crashes"], row["failures"]) == ("ready", 0, 0)


def test_a_job_whose_owner_nobody_knows_is_given_back_uncharged(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    take(app, ALICE)

    rescue_all(app)

    row = rows.live(app, job.id)
    assert row is not None
    assert (row["state"], row["crashes"]) == ("ready", 0)


def test_a_lease_by_hand_that_ran_out_is_charged_but_no_suspect(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    assert app.acquire("by-hand", 60) is not None
    rows.change(app, "UPDATE stepfast_job SET lease_until = 1")

    rescued = rescue_all(app)

    row = rows.live(app, job.id)
    assert row is not None
    assert (rescued.jobs, row["state"], row["crashes"], row["last_error"]) == (1, "ready", 1, CRASH_NOTE)


def test_rescue_takes_bounded_batches_until_nothing_is_left(app: Stepfast) -> None:
    register_work(app).enqueue_many([{"n": n} for n in range(450)])
    crash(app, 450)
    batches = []

    with app.transaction() as tx:
        declare_dead(tx, me=0, trust_clock=True)
    for _ in range(4):
        with app.transaction() as tx:
            batches.append(rescue(tx, 3).jobs)

    assert batches == [200, 200, 50, 0]
    assert rows.count(app, "stepfast_job", "crashes > 0") == 0


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_job_that_its_owner_is_committing_is_not_taken_from_it(app: Stepfast) -> None:
    from stepfast.jobs.commit import commit

    register_work(app).enqueue_many([{"n": n} for n in range(2)])
    committing, abandoned = crash(app, 2)

    with app.transaction() as tx:
        commit(tx, committing, Done())
        rescued = rescue_all(app)

    assert rescued.jobs == 1
    assert rows.state(app, committing.job_id) == "done"
    assert rows.state(app, abandoned.job_id) == "suspect"


# What a guardian reports.


def reported_death(app: Stepfast, leases: list[Lease], owner: int, report: DeathReport | None) -> None:
    """The process of `owner` ended, and its guardian says so."""
    del leases
    persist(app.database, lambda tx: bury(tx, owner, "victim", report))
    while persist(app.database, lambda tx: rescue(tx, 3)).jobs:
        pass


def board(app: Stepfast, jobs: int) -> tuple[int, list[Lease]]:
    """A living worker that has claimed so many jobs."""
    register_work(app).enqueue_many([{"n": n} for n in range(jobs)])
    owner = rows.add_worker(app, new_fence())
    return owner, claim(app, owner, limit=jobs)


def states(app: Stepfast) -> dict[str, tuple[str, int, int]]:
    found = rows.query(app, "SELECT id, state, crashes, alone FROM stepfast_job")
    return {row["id"]: (row["state"], row["crashes"], row["alone"]) for row in found}


def test_jobs_whose_steps_had_not_started_are_ready_again_and_the_others_are_suspects(app: Stepfast) -> None:
    owner, leases = board(app, 5)
    started = frozenset(it.job_id for it in leases[:2])

    reported_death(app, leases, owner, DeathReport(started))

    found = states(app)
    assert {found.pop(job_id) for job_id in started} == {("suspect", 0, 0)}
    assert set(found.values()) == {("ready", 0, 0)}
    assert rows.count(app, "stepfast_job", "last_error IS NOT NULL") == 2


def test_one_step_that_had_started_is_the_culprit_and_runs_alone(app: Stepfast) -> None:
    owner, leases = board(app, 3)

    reported_death(app, leases, owner, DeathReport(frozenset({leases[0].job_id})))

    found = states(app)
    assert found.pop(leases[0].job_id) == ("suspect", 1, 1)
    assert set(found.values()) == {("ready", 0, 0)}


def test_steps_that_were_committed_before_the_death_do_not_count_as_started(app: Stepfast) -> None:
    owner, leases = board(app, 2)
    commit_step(app, leases[0], Done())

    reported_death(app, leases, owner, DeathReport(frozenset(it.job_id for it in leases)))

    assert states(app) == {leases[1].job_id: ("suspect", 1, 1)}


def test_a_step_that_had_run_for_long_runs_alone_at_once(app: Stepfast) -> None:
    owner, leases = board(app, 2)
    rows.change(
        app, "UPDATE stepfast_job SET leased_at = leased_at - 10000000 WHERE id = :id", id=leases[0].job_id
    )

    reported_death(app, leases, owner, DeathReport(frozenset(it.job_id for it in leases)))

    assert states(app) == {leases[0].job_id: ("suspect", 0, 1), leases[1].job_id: ("suspect", 0, 0)}


def test_suspects_that_were_together_when_their_process_died_run_alone_from_then_on(app: Stepfast) -> None:
    owner, leases = board(app, 3)
    rows.change(app, "UPDATE stepfast_worker SET suspects_only = 1")

    reported_death(app, leases, owner, DeathReport(frozenset(it.job_id for it in leases[:2])))

    assert sorted(states(app).values()) == [("ready", 0, 0), ("suspect", 0, 1), ("suspect", 0, 1)]


def test_the_step_that_a_worker_was_killed_for_has_failed_and_the_others_are_innocent(app: Stepfast) -> None:
    owner, leases = board(app, 3)
    guilty = leases[1].job_id
    retry = {"attempts": 2, "first": 60, "factor": 2.0, "longest": 600}
    report = DeathReport(frozenset(it.job_id for it in leases), guilty, 1.5, retry)

    reported_death(app, leases, owner, report)

    found = states(app)
    assert found.pop(guilty) == ("scheduled", 0, 0)
    assert set(found.values()) == {("ready", 0, 0)}
    row = rows.live(app, guilty)
    assert row is not None
    assert (row["failures"], row["last_error"]) == (1, "StepTimeout: did not finish within 1.5 s")


def test_a_step_that_a_worker_was_killed_for_at_its_last_try_is_a_dead_letter(app: Stepfast) -> None:
    owner, leases = board(app, 1)

    reported_death(app, leases, owner, DeathReport(frozenset(), leases[0].job_id, 1.5, {"attempts": 1}))

    assert states(app) == {}
    assert rows.query(app, "SELECT state, failures, crashes FROM stepfast_archive") == [
        {"state": "dead", "failures": 1, "crashes": 0}
    ]


def test_a_report_reaches_a_worker_that_another_one_declared_dead_before(app: Stepfast) -> None:
    owner, leases = board(app, 2)
    rows.change(app, "UPDATE stepfast_worker SET alive_until = 1")
    with app.transaction() as tx:
        declare_dead(tx, me=0, trust_clock=True)

    reported_death(app, leases, owner, DeathReport(frozenset()))

    assert set(states(app).values()) == {("ready", 0, 0)}


def test_without_a_report_all_that_a_dead_worker_held_are_suspects(app: Stepfast) -> None:
    owner, leases = board(app, 2)

    reported_death(app, leases, owner, None)

    assert set(states(app).values()) == {("suspect", 0, 0)}


def test_a_living_worker_is_not_taken_for_dead_because_of_a_report_about_another_one(app: Stepfast) -> None:
    _, leases = board(app, 2)
    other = rows.add_worker(app, new_fence())

    reported_death(app, leases, other, DeathReport(frozenset()))

    assert rows.count(app, "stepfast_job", "state = 'leased'") == 2


def test_suspects_that_run_alone_are_claimed_apart_from_the_others(app: Stepfast) -> None:
    register_work(app).enqueue_many([{"n": n} for n in range(5)])
    rows.change(app, "UPDATE stepfast_job SET state = 'suspect'")
    (first, *_) = rows.query(app, "SELECT id FROM stepfast_job ORDER BY id")
    rows.change(app, "UPDATE stepfast_job SET alone = 1 WHERE id = :id", id=first["id"])

    with app.transaction() as tx:
        waiting = waiting_suspects(tx, [])
        together = claim_suspects(tx, BOB, [], 3, alone=False)
        alone = claim_suspects(tx, BOB, [], 3, alone=True)
        left = waiting_suspects(tx, ["default"])

    assert (waiting, left) == (WaitingSuspects(4, 1), WaitingSuspects(1, 0))
    assert ([it.job_id for it in alone], len(together)) == ([first["id"]], 3)


def test_a_suspect_whose_step_had_not_started_stays_a_suspect(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    crash(app)
    rescue_all(app)
    owner = rows.add_worker(app, new_fence())
    with app.transaction() as tx:
        (lease,) = claim_suspects(tx, owner, [], 1)

    reported_death(app, [lease], owner, DeathReport(frozenset()))

    assert states(app) == {job.id: ("suspect", 1, 1)}


def test_a_worker_that_its_guardian_declared_dead_can_commit_nothing(app: Stepfast) -> None:
    """It only looked dead, or was cut off from its own row: the fence decides."""
    owner, leases = board(app, 2)
    reported_death(app, leases, owner, DeathReport(frozenset({leases[0].job_id})))

    for lease in leases:
        with pytest.raises(LeaseLostError):
            commit_step(app, lease, Done())
