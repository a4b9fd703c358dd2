"""Actions of operators on many rows work in bounded batches, and touch only the rows that match."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepfast.admin import dead_letters as dead_letter_actions
from stepfast.admin.dead_letters import Retried, count_dead, purge_dead, retry_dead
from stepfast.admin.workers import reset_leases
from stepfast.errors import LeaseLostError
from stepfast.jobs.commit import commit
from stepfast.jobs.dead_letters import Filter
from stepfast.jobs.outcome import Bury, Done
from stepfast.suspects import CRASH_NOTE
from tests.support import rows
from tests.support.jobs_in_every_state import died, expire, greeting, leased

if TYPE_CHECKING:
    from stepfast import Stepfast


def test_dead_letters_are_retried_in_batches_and_the_progress_is_told(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    greet = greeting(app)
    dead = [died(app, greet) for _ in range(5)]
    monkeypatch.setattr(dead_letter_actions, "BATCH", 2)
    told: list[int] = []

    assert retry_dead(app.database, progress=told.append) == Retried(5, 0)

    assert told == [2, 4, 5]
    assert {rows.state(app, job_id) for job_id in dead} == {"ready"}


def test_only_the_dead_letters_that_match_are_retried(app: Stepfast) -> None:
    greet, call = greeting(app), greeting(app, name="call", queue="calls")
    other_error = died(app, greet, "KeyError: …")
    meant = died(app, greet, "OSError: …")
    other_kind = died(app, call, "OSError: …")

    with app.database.reading() as tx:
        assert count_dead(tx, Filter(kind="greet")) == 2
    assert retry_dead(
        app.database, Filter(kind="greet", queue="default", error_group="OSError: …")
    ) == Retried(1, 0)

    assert [rows.state(app, it) for it in (other_error, meant, other_kind)] == ["dead", "ready", "dead"]


def test_a_letter_whose_key_is_taken_stays_dead_and_the_rest_are_retried(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    greet = greeting(app)
    blocked = [died(app, greet, key=key) for key in ("a", "b", "c")]
    twins = [died(app, greet, key="twin") for _ in range(2)]
    free = died(app, greet)
    for key in ("a", "b", "c"):
        greet.enqueue(key=key)
    monkeypatch.setattr(dead_letter_actions, "BATCH", 2)

    assert retry_dead(app.database) == Retried(2, 4)

    assert {rows.state(app, it) for it in blocked} == {"dead"}
    assert sorted(str(rows.state(app, it)) for it in twins) == ["dead", "ready"]
    assert rows.state(app, free) == "ready"


def test_a_letter_that_dies_again_meanwhile_is_not_retried_again(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    greet = greeting(app)
    for _ in range(3):
        died(app, greet)
    rows.change(app, "UPDATE stepfast_archive SET finished_at = finished_at - 1000000")
    monkeypatch.setattr(dead_letter_actions, "BATCH", 1)

    def dies_again(_: int) -> None:
        (lease,) = leased(app)
        with app.transaction() as tx:
            commit(tx, lease, Bury("OSError: still no answer", "OSError: …"))
        rows.change(
            app,
            "UPDATE stepfast_archive SET finished_at = finished_at + 60000000 WHERE id = :id",
            id=lease.job_id,
        )

    assert retry_dead(app.database, progress=dies_again) == Retried(3, 0)

    assert rows.count(app, "stepfast_archive", "state = 'dead'") == 3


def test_a_zombie_that_held_the_letter_before_its_death_cannot_end_its_new_life(app: Stepfast) -> None:
    greeting(app).enqueue()
    (lease,) = leased(app)
    with app.transaction() as tx:
        commit(tx, lease, Bury("OSError", "OSError"))

    retry_dead(app.database)

    with pytest.raises(LeaseLostError), app.transaction() as tx:
        commit(tx, lease, Done())
    assert rows.state(app, lease.job_id) == "ready"


def test_only_the_dead_letters_that_match_are_purged_with_their_logs(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    greet = greeting(app)
    meant = [died(app, greet, "OSError: …") for _ in range(3)]
    spared = died(app, greet, "KeyError: …")
    for job_id in (*meant, spared):
        rows.change(
            app,
            "INSERT INTO stepfast_log (job_id, at, level, step, message) VALUES (:id, 1, 'info', 0, 'hello')",
            id=job_id,
        )
    monkeypatch.setattr(dead_letter_actions, "BATCH", 2)

    assert purge_dead(app.database, Filter(error_group="OSError: …")) == 3

    assert [rows.state(app, it) for it in meant] == [None] * 3
    assert rows.query(app, "SELECT job_id FROM stepfast_log") == [{"job_id": spared}]


def test_expired_leases_are_reset_and_leases_in_force_are_not_touched(app: Stepfast) -> None:
    greet = greeting(app)
    for _ in range(4):
        greet.enqueue()
    (held,) = leased(app)
    (silent,) = leased(app)
    expire(app, silent)
    by_hand, overdue = app.acquire("curl"), app.acquire("wget")
    assert by_hand is not None
    assert overdue is not None
    rows.change(app, "UPDATE stepfast_job SET lease_until = 1 WHERE id = :id", id=overdue.job_id)
    before = [rows.live(app, it) for it in (held.job_id, by_hand.job_id)]

    assert reset_leases(app.database).jobs == 2

    assert [rows.live(app, it) for it in (held.job_id, by_hand.job_id)] == before
    assert rows.state(app, silent.job_id) == "suspect"
    assert rows.state(app, overdue.job_id) == "ready"
    for job_id in (silent.job_id, overdue.job_id):
        row = rows.live(app, job_id)
        assert row is not None
        assert (row["owner"], row["lease_until"], row["crashes"]) == (None, None, 1)
        assert row["last_error"] == CRASH_NOTE
    assert reset_leases(app.database).jobs == 0


def test_the_owner_of_a_lease_that_was_reset_can_commit_nothing(app: Stepfast) -> None:
    greeting(app).enqueue()
    (lease,) = leased(app)
    expire(app, lease)

    reset_leases(app.database)

    with pytest.raises(LeaseLostError), app.transaction() as tx:
        commit(tx, lease, Done())


def test_a_process_that_is_certainly_gone_keeps_its_lease_until_it_expires(app: Stepfast) -> None:
    greeting(app).enqueue()
    (lease,) = leased(app)
    from stepfast.process_identity import this_process

    gone = this_process().rpartition("/")[0] + "/1"  # this very process id, started at another time
    rows.change(app, "UPDATE stepfast_worker SET process = :process", process=gone)

    assert reset_leases(app.database).jobs == 0

    assert rows.state(app, lease.job_id) == "leased"


def test_a_lease_whose_owner_is_unknown_is_reset_without_a_charge(app: Stepfast) -> None:
    greeting(app).enqueue()
    (lease,) = leased(app)
    rows.change(app, "DELETE FROM stepfast_worker")

    assert reset_leases(app.database).jobs == 1

    row = rows.live(app, lease.job_id)
    assert row is not None
    assert (row["state"], row["crashes"]) == ("ready", 0)


def test_a_reset_beyond_the_crash_limit_makes_a_dead_letter_of_the_guilty_only(app: Stepfast) -> None:
    greet = greeting(app)
    guilty, first, second = greet.enqueue().id, greet.enqueue().id, greet.enqueue().id
    rows.change(app, "UPDATE stepfast_job SET crashes = 2")
    (alone,) = leased(app)
    together = leased(app, limit=2)
    expire(app, alone)
    expire(app, together[0])

    rescued = reset_leases(app.database, crash_limit=3)

    assert (rescued.jobs, rescued.died) == (3, 1)
    assert rows.state(app, guilty) == "dead"
    assert [rows.state(app, it) for it in (first, second)] == ["suspect", "suspect"]
    assert reset_leases(app.database, crash_limit=2).jobs == 0


def test_nobody_on_board_is_convicted_for_earlier_crashes(app: Stepfast) -> None:
    greet = greeting(app)
    greet.enqueue(), greet.enqueue()
    rows.change(app, "UPDATE stepfast_job SET crashes = 2")
    leases = leased(app, limit=2)
    expire(app, leases[0])

    assert reset_leases(app.database, crash_limit=2).died == 0
