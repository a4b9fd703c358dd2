"""Reports about queues, workers and leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepfast.admin.workers import count_leases, list_leases, list_queues, list_workers
from stepfast.clock import moment
from tests.support.jobs_in_every_state import died, expire, greeting, leased
from tests.support.rows import HOUR, add_worker, change, now

if TYPE_CHECKING:
    from stepfast import Stepfast


def test_a_queue_is_reported_with_its_counts_and_how_long_its_next_job_waits(app: Stepfast) -> None:
    greet = greeting(app, queue="mail")
    greet.enqueue(delay="1h")
    leased_id = greet.enqueue().id
    leased(app, queue="mail")
    died(app, greet)
    waiting = greet.enqueue().id
    change(app, "UPDATE stepfast_job SET ready_at = :then WHERE id = :id", then=now(app) - HOUR, id=waiting)
    change(app, "INSERT INTO stepfast_queue (id, paused_at, note) VALUES ('calls', 1, 'no line')")

    with app.database.reading() as tx:
        calls, mail = list_queues(tx)

    assert leased_id
    assert (mail.queue, mail.scheduled, mail.ready, mail.suspect, mail.leased, mail.dead) == (
        "mail",
        1,
        1,
        0,
        1,
        1,
    )
    assert mail.oldest_ready_seconds == pytest.approx(3600, abs=60)
    assert mail.paused_at is None
    assert (calls.queue, calls.ready, calls.oldest_ready_seconds, calls.note) == ("calls", 0, None, "no line")
    assert calls.paused_at == moment(1)


def test_a_worker_is_reported_with_what_its_last_heartbeat_said(app: Stepfast) -> None:
    living = add_worker(app, 11, worker_id="alice")
    change(
        app,
        "UPDATE stepfast_worker SET active = 2, active_ids = 'a,b', concurrency = 5, queues = 'mail,calls' WHERE incarnation = :me",
        me=living,
    )
    add_worker(app, 12, worker_id="silent", alive_for=-HOUR)
    add_worker(app, 13, worker_id="gone", state="dead", alive_for=-HOUR)

    with app.database.reading() as tx:
        alive = {worker.worker_id: worker for worker in list_workers(tx)}
        everyone = list_workers(tx, everyone=True)

    alice = alive["alice"]
    assert (alice.running, alice.active_jobs, alice.active_job_ids) == (True, 2, ("a", "b"))
    assert (alice.concurrency, alice.lease_seconds, alice.queues) == (5, 10.0, ("mail", "calls"))
    assert (alice.incarnation, alice.host, alice.pid, alice.state) == (11, "elsewhere", 1, "alive")
    assert alice.alive_until > alice.beat_at
    assert (alive["silent"].running, alive["silent"].active_job_ids) == (False, ())
    assert {worker.worker_id for worker in everyone} - set(alive) == {"gone"}


def test_a_running_worker_reports_itself(app: Stepfast) -> None:
    with app.worker(worker_id="here", concurrency=3, queues=["mail"], lease=30), app.database.reading() as tx:
        (worker,) = list_workers(tx)

    assert (worker.worker_id, worker.running, worker.concurrency) == ("here", True, 3)
    assert (worker.queues, worker.lease_seconds) == (("mail",), 30.0)


def test_leases_are_listed_with_owner_and_end_and_the_expired_apart(app: Stepfast) -> None:
    greet = greeting(app)
    ids = [greet.enqueue().id for _ in range(4)]
    (held,) = leased(app, worker_id="alice")
    (silent,) = leased(app, worker_id="silent")
    expire(app, silent)
    by_hand = app.acquire("curl", 300)
    overdue = app.acquire("wget", 300)
    assert by_hand is not None
    assert overdue is not None
    change(app, "UPDATE stepfast_job SET lease_until = 1 WHERE id = :id", id=overdue.job_id)

    with app.database.reading() as tx:
        every = {lease.job_id: lease for lease in list_leases(tx)}
        expired = {lease.job_id for lease in list_leases(tx, expired=True)}
        in_force = {lease.job_id for lease in list_leases(tx, expired=False)}
        counts = count_leases(tx)

    assert list(every) == ids
    assert expired == {silent.job_id, overdue.job_id}
    assert in_force == {held.job_id, by_hand.job_id}
    assert counts == (2, 2)
    assert [lease.locked_by for lease in every.values()] == ["alice", "silent", "curl", "wget"]
    assert every[by_hand.job_id].incarnation is None
    assert every[by_hand.job_id].locked_until == by_hand.until
    assert every[silent.job_id].locked_until == moment(1)
    assert [lease.attempts for lease in every.values()] == [1, 1, 1, 1]


def test_the_lease_of_a_worker_that_was_declared_dead_or_is_unknown_has_expired(app: Stepfast) -> None:
    greet = greeting(app)
    greet.enqueue(), greet.enqueue()
    (dead,) = leased(app)
    (orphan,) = leased(app)
    change(
        app,
        "UPDATE stepfast_worker SET state = 'dead' WHERE incarnation = (SELECT owner FROM stepfast_job WHERE id = :id)",
        id=dead.job_id,
    )
    change(
        app,
        "DELETE FROM stepfast_worker WHERE incarnation = (SELECT owner FROM stepfast_job WHERE id = :id)",
        id=orphan.job_id,
    )

    with app.database.reading() as tx:
        expired = [lease.job_id for lease in list_leases(tx, expired=True)]

    assert expired == [dead.job_id, orphan.job_id]
