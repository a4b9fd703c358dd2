"""Enqueue: all jobs or none, claimed in the order of enqueueing, also from plain SQL."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from stepfast.clock import moment, new_id
from stepfast.database.connection import Connection
from stepfast.errors import ArgumentsError, ConfigurationError, ConstraintError, DatabaseError
from stepfast.jobs.lease import claim
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Stepfast


class TheirError(Exception):
    """The caller's own."""


def claimed(app: Stepfast, queue: str = "default", limit: int = 1000) -> list[str]:
    """Take what is ready; returns the ids in the order in which they would run."""
    with app.transaction() as tx:
        return [lease.job_id for lease in claim(tx, queue, 1, limit)]


def test_an_enqueued_job_is_ready_with_nothing_counted(app: Stepfast) -> None:
    @app.job(queue="mail")
    def send(order_id: str) -> None: ...

    job = send.enqueue(order_id="A-17")

    row = rows.live(app, job.id)
    assert row is not None
    assert (row["kind"], row["queue"], row["state"], row["priority"]) == ("send", "mail", "ready", 0)
    assert (row["step"], row["failures"], row["crashes"], row["progress"]) == (0, 0, 0, 0)
    assert json.loads(row["payload"]) == {"order_id": "A-17"}
    assert job.created


def test_a_rolled_back_transaction_leaves_no_job(app: Stepfast) -> None:
    @app.job()
    def work(n: int) -> None: ...

    def change_of_mind() -> None:
        with app.transaction() as tx:
            work.enqueue(n=1, tx=tx)
            work.enqueue(n=2, tx=tx, key="k", unique_for="1h")
            work.enqueue(n=3, tx=tx, id="chosen")
            work.enqueue_many([{"n": 4}, {"n": 5}], tx=tx)
            raise TheirError

    with pytest.raises(TheirError):
        change_of_mind()

    assert rows.count(app, "stepfast_job") == 0
    assert rows.count(app, "stepfast_key") == 0


@pytest.mark.usefixtures("ledger")
def test_a_committed_transaction_holds_rows_and_jobs(app: Stepfast) -> None:
    @app.job()
    def work(n: int) -> None: ...

    with app.transaction() as tx:
        tx.execute("INSERT INTO ledger (id, amount) VALUES (:id, :amount)", {"id": "a", "amount": 1})
        job = work.enqueue(n=1, tx=tx)

    assert rows.count(app, "ledger") == 1
    assert rows.state(app, job.id) == "ready"


def test_thousands_are_one_statement(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.job()
    def work(n: int) -> None: ...

    sent: list[str] = []
    app.database.connect().close()

    def note(when: str, text: str) -> None:
        if when == "before" and "INSERT" in text:
            sent.append(text)

    monkeypatch.setattr(Connection, "watch", staticmethod(note))
    jobs = work.enqueue_many([{"n": n} for n in range(3000)])
    monkeypatch.undo()

    assert len(sent) == 1
    assert rows.count(app, "stepfast_job") == len({job.id for job in jobs}) == 3000


@pytest.mark.only_on("mariadb")
def test_the_driver_sends_thousands_as_one_statement(app: Stepfast) -> None:
    @app.job()
    def work(n: int) -> None: ...

    with app.transaction() as tx:
        work.enqueue_many([{"n": n} for n in range(3000)], tx=tx)
        inserts = tx.query("SHOW SESSION STATUS LIKE 'Com_insert%'")

    assert sum(int(row["Value"]) for row in inserts) == 1


@pytest.mark.only_on("mariadb")
def test_more_than_a_packet_can_be_asked_for_at_once(app: Stepfast) -> None:
    @app.job()
    def work(text: str) -> None: ...

    text = '"' * 400_000  # the worst text: every character is escaped, and on MariaDB twice
    work.enqueue_many([{"text": text}] * 12)

    assert rows.count(app, "stepfast_job") == 12


def test_one_bad_call_among_many_stores_none(app: Stepfast) -> None:
    @app.job()
    def work(n: int) -> None: ...

    with pytest.raises(ArgumentsError):
        work.enqueue_many([{"n": 1}, {"n": "two"}, {"n": 3}])

    assert rows.count(app, "stepfast_job") == 0


def test_many_of_none_is_nothing(app: Stepfast) -> None:
    @app.job()
    def work(n: int) -> None: ...

    assert work.enqueue_many([]) == []


def test_many_need_one_key_for_each_call(app: Stepfast) -> None:
    @app.job()
    def work(n: int) -> None: ...

    with pytest.raises(ConfigurationError, match="2 calls but 1 keys"):
        work.enqueue_many([{"n": 1}, {"n": 2}], keys=["a"])


def test_a_delayed_job_waits_on_the_database_clock(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    before = rows.now(app)
    job = work.enqueue(delay="10m")
    after = rows.now(app)

    row = rows.live(app, job.id)
    assert row is not None
    assert row["state"] == "scheduled"
    assert before <= row["ready_at"] - 600 * rows.SECOND <= after
    assert claimed(app) == []


def test_run_at_is_kept_to_the_microsecond(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    at = datetime(2100, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
    job = work.enqueue(run_at=at)

    row = rows.live(app, job.id)
    assert row is not None
    assert (row["state"], moment(row["ready_at"])) == ("scheduled", at)


def test_many_may_be_delayed_together(app: Stepfast) -> None:
    @app.job()
    def work(n: int) -> None: ...

    work.enqueue_many([{"n": 1}, {"n": 2}], delay=timedelta(hours=1), priority=7, queue="later")

    found = rows.query(app, "SELECT state, priority, queue FROM stepfast_job")
    assert found == [{"state": "scheduled", "priority": 7, "queue": "later"}] * 2


def test_delay_and_run_at_together_are_refused(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    with pytest.raises(ConfigurationError, match="not both"):
        work.enqueue(delay="1s", run_at=datetime.now(UTC))


def test_options_of_the_call_win_over_those_of_the_kind(app: Stepfast) -> None:
    @app.job(queue="mail", priority=3)
    def work() -> None: ...

    plain, urgent = work.enqueue(), work.enqueue(queue="express", priority=9)

    found = rows.query(app, "SELECT id, queue, priority FROM stepfast_job ORDER BY priority")
    assert [(row["id"], row["queue"], row["priority"]) for row in found] == [
        (plain.id, "mail", 3),
        (urgent.id, "express", 9),
    ]


def test_a_hundred_jobs_are_claimed_in_the_order_of_their_making(app: Stepfast) -> None:
    @app.job()
    def work(n: int) -> None: ...

    made = [work.enqueue(n=n).id for n in range(50)]
    made += [job.id for job in work.enqueue_many([{"n": n} for n in range(50, 100)])]

    order = [job_id for _ in range(10) for job_id in claimed(app, limit=10)]
    assert order == made


def test_higher_priority_is_claimed_first_and_age_decides_among_equals(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    low = work.enqueue(priority=-1)
    first, second = work.enqueue(priority=5), work.enqueue(priority=5)
    middle = work.enqueue()

    assert claimed(app) == [first.id, second.id, middle.id, low.id]


def test_of_more_jobs_than_are_wanted_the_most_urgent_are_claimed(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    work.enqueue()
    urgent = work.enqueue(priority=5)

    assert claimed(app, limit=1) == [urgent.id]


def test_a_claim_takes_from_its_own_queue_only(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    work.enqueue(queue="a")
    other = work.enqueue(queue="b")

    assert claimed(app, "b") == [other.id]


def test_a_paused_queue_gives_nothing(app: Stepfast) -> None:
    @app.job()
    def work() -> None: ...

    job = work.enqueue()
    rows.change(app, "INSERT INTO stepfast_queue (id, paused_at) VALUES ('default', 1)")
    assert claimed(app) == []

    rows.change(app, "UPDATE stepfast_queue SET paused_at = NULL")
    assert claimed(app) == [job.id]


PLAIN_INSERT = """
    INSERT INTO stepfast_job (id, kind, payload) VALUES ('{id}', 'send_invoice', '{{"order_id": "A-17"}}')
"""


def test_a_plain_insert_is_a_valid_enqueue(app: Stepfast) -> None:
    job_id = new_id()

    rows.change(app, PLAIN_INSERT.format(id=job_id))

    with app.transaction() as tx:
        (lease,) = claim(tx, "default", 1, 10)
    assert (lease.job_id, lease.kind, lease.attempt) == (job_id, "send_invoice", 1)
    assert json.loads(lease.payload) == {"order_id": "A-17"}


def test_a_plain_insert_gets_the_time_of_the_database(app: Stepfast) -> None:
    before = rows.now(app)
    rows.change(app, PLAIN_INSERT.format(id="by-hand"))
    after = rows.now(app)

    row = rows.live(app, "by-hand")
    assert row is not None
    assert before <= row["ready_at"] <= after
    assert row["created_at"] == row["updated_at"] == row["ready_at"]


def test_the_database_refuses_a_payload_that_is_no_json(app: Stepfast) -> None:
    with pytest.raises(DatabaseError) as refusal:
        rows.change(app, "INSERT INTO stepfast_job (id, kind, payload) VALUES ('x', 'k', '{not json')")

    assert "json" in str(refusal.value).lower() or "stepfast_job.payload" in str(refusal.value)
    assert rows.count(app, "stepfast_job") == 0


def test_the_database_refuses_a_job_without_a_kind(app: Stepfast) -> None:
    with pytest.raises(ConstraintError):
        rows.change(app, "INSERT INTO stepfast_job (id, payload) VALUES ('x', '{}')")


def test_text_of_every_script_survives(app: Stepfast) -> None:
    @app.job()
    def work(text: str) -> None: ...

    text = "Ünïcödé 漢字 🙂 50% :name 'quoted' \"twice\" \\ %s {now}"
    job = work.enqueue(text=text)
    many = work.enqueue_many([{"text": text}])[0]

    for job_id in (job.id, many.id):
        row = rows.live(app, job_id)
        assert row is not None
        assert json.loads(row["payload"]) == {"text": text}
