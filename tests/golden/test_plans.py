"""The frequent statements of the engine use their indexes instead of walking over the whole table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Stepfast
from stepfast.admin import audit
from stepfast.database.dialects import Plans
from stepfast.database.statement import sql
from stepfast.jobs import commit as acknowledge
from stepfast.jobs import lease, rescue
from stepfast.jobs import lease as queues
from stepfast.jobs import manual_lease as manual
from stepfast.results import outcome
from stepfast.results import outcome as expiry
from stepfast.worker import maintenance
from tests.support import rows

if TYPE_CHECKING:
    from stepfast.database.statement import Statement

EXPLAIN = {
    "sqlite": "EXPLAIN QUERY PLAN",
    "postgresql": "EXPLAIN (FORMAT JSON)",
    "mariadb": "EXPLAIN FORMAT=JSON",
}
ANALYZE = {"sqlite": "ANALYZE", "postgresql": "ANALYZE", "mariadb": "ANALYZE TABLE stepfast_job"}


@pytest.fixture
def app(database_url: str) -> Iterator[Stepfast]:
    """Twenty thousand jobs: ready in two queues and three priorities, scheduled, and leased by two processes."""
    with closing(Stepfast(database_url)) as app:

        @app.job()
        def work(n: int) -> None: ...

        calls = [{"n": n} for n in range(2_000)]
        for priority in range(3):
            work.enqueue_many(calls, priority=priority)
            work.enqueue_many(calls, priority=priority, queue="other")
        work.enqueue_many([{"n": n} for n in range(4_000)], delay="1h")
        for owner in (11, 22):
            work.enqueue_many(calls, queue=f"of {owner}".replace(" ", "-"))
            rows.change(
                app,
                "UPDATE stepfast_job SET state = 'leased', owner = :owner WHERE queue = :queue",
                owner=owner,
                queue=f"of-{owner}",
            )
        connection = app.database.connect()
        connection.execute(ANALYZE[app.database.dialect.name])
        connection.close()
        yield app


def plan(app: Stepfast, statement: Statement, **parameters: Any) -> str:
    """How the database would run it, as text that names the indexes."""
    name = app.database.dialect.name
    explained = sql(f"{EXPLAIN[name]} {statement.overrides.get(name, statement.text)}")
    with app.database.transaction(Plans.ENGINE) as tx:
        return str([tuple(row) for row in tx.rows(explained, **parameters)])


def sorts(text: str) -> bool:
    return any(word in text for word in ("USE TEMP B-TREE", '"Sort"', "filesort"))


def test_a_claim_walks_along_its_index_without_sorting(app: Stepfast) -> None:
    owned = {"owner": 1, "fence": 1} if app.database.dialect.name == "postgresql" else {}
    asked = {"queue": "default", "limit": 100, **owned}

    plans = [
        plan(app, lease.PICK_JOBS, **asked),
        plan(app, lease.PICK_JOBS_FROM_HINT, **asked, priority=1, hint=50),
        plan(app, manual.PICK_BY_HAND, queue="default"),
        plan(app, queues.HAS_WORK, queue="default"),
    ]

    assert ["stepfast_job_ready" in text for text in plans] == [True] * 4
    assert not any(sorts(text) for text in plans[:3])


@pytest.mark.only_on("sqlite", "postgresql")
def test_queues_with_work_are_found_along_the_ready_index(app: Stepfast) -> None:
    found = plan(app, queues.QUEUES_WITH_WORK)

    assert "stepfast_job_ready" in found
    assert not sorts(found)


@pytest.mark.only_on("mariadb")
def test_the_next_queue_is_one_probe_of_an_index(app: Stepfast) -> None:
    assert "optimized away" in plan(app, queues.NEXT_QUEUE, after="default")


def test_a_rescue_finds_what_the_dead_held_by_its_index(app: Stepfast) -> None:
    plans = [
        plan(app, rescue.ABANDONED_JOBS, owner=11, limit=200),
        plan(app, rescue.EXPIRED_MANUAL_LEASES, owner=0, limit=200),
    ]

    assert ["stepfast_job_leased" in text for text in plans] == [True, True]


def test_a_promotion_finds_what_is_due_by_its_index_without_sorting(app: Stepfast) -> None:
    due, next_due = plan(app, maintenance.DUE_JOBS, limit=1000), plan(app, maintenance.NEXT_DUE)

    assert "stepfast_job_scheduled" in due
    assert not sorts(due)
    assert "stepfast_job_scheduled" in next_due or "optimized away" in next_due  # answered by the index alone


ENDED = """
    INSERT INTO stepfast_archive (id, queue, kind, state, priority, ready_at, created_at, finished_at, step, failures,
                                  crashes, progress, payload, result)
    SELECT id, queue, CASE WHEN priority = 1 THEN 'rare' ELSE 'work' END, 'done', 0, 1, 1, ready_at, 0, 0, 0, 0, '{}', '7'
      FROM stepfast_job
"""


def test_old_results_and_old_records_are_found_by_their_indexes_without_sorting(app: Stepfast) -> None:
    rows.change(app, ENDED)
    with app.transaction() as tx:
        for number in range(300):
            audit.record(tx, audit.Actor("alice"), "queue.pause", f"q{number}")

    plans = [
        plan(app, expiry.EXPIRED_RESULTS, kind="rare", age=1, limit=1000),
        plan(app, expiry.ANY_EXPIRED_RESULT, kind="rare", age=1, limit=1),
        plan(app, audit.OLD_ENTRIES, age=1, limit=1000),
    ]

    names = ["stepfast_archive_results", "stepfast_archive_results", "stepfast_audit_at"]
    assert [name in text for name, text in zip(names, plans, strict=True)] == [True] * 3
    assert not any(sorts(text) for text in plans)


def test_who_waits_is_answered_by_the_primary_keys(app: Stepfast) -> None:
    ids = [row["id"] for row in rows.query(app, "SELECT id FROM stepfast_job LIMIT 50")]

    text = plan(app, outcome.LOOK_AT_JOBS, ids=ids)

    keys = {
        "sqlite": ["sqlite_autoindex_stepfast_job_1", "sqlite_autoindex_stepfast_archive_1"],
        "postgresql": ["stepfast_job_pkey", "stepfast_archive_pkey"],
        "mariadb": ["PRIMARY"],
    }[app.database.dialect.name]
    assert [key for key in keys if key not in text] == []


EMPTIED = "UPDATE pg_class SET relpages = 1, reltuples = 0 WHERE relname = 'stepfast_job'"


@pytest.mark.only_on("postgresql")
def test_a_burst_after_vacuum_found_the_table_empty_is_claimed_and_acknowledged_by_the_same_plans(
    app: Stepfast,
) -> None:
    """Statistics lag behind a queue's life: believing in one row, a planner finds every way as good."""
    connection = app.database.connect()
    connection.execute("ALTER TABLE stepfast_job SET (autovacuum_enabled = off)")
    connection.execute(EMPTIED)
    connection.close()
    asked = {"queue": "default", "limit": 500, "owner": 1, "fence": 1}
    ids = [row["id"] for row in rows.query(app, "SELECT id FROM stepfast_job LIMIT 500")]

    claims = [
        plan(app, lease.PICK_JOBS, **asked),
        plan(app, lease.PICK_JOBS_FROM_HINT, **asked, priority=1, hint=50),
    ]
    moves = [
        plan(app, acknowledge.MOVE_DONE_JOBS, ids=ids, fence=1),
        plan(app, acknowledge.MOVE_DONE_JOBS_WITH_RESULTS, ids=ids, fence=1, results="{}"),
        plan(app, acknowledge.MOVE_DONE_JOB, id=ids[0], fence=1, result=None),
    ]

    assert [text.count("stepfast_job_ready") for text in claims] == [1, 1]  # the pick alone, not the update
    assert ['"Tid Scan"' in text for text in claims] == [True, True]
    assert ["stepfast_job_pkey" in text for text in moves] == [True] * 3
    assert not any('"Seq Scan"' in text for text in claims + moves)
