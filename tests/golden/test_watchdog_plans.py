"""The watchdog is cheap: the statements that it runs every two seconds use indexes, however many runs there were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from stepfast import Stepfast
from stepfast.runs import watchdog
from stepfast.runs import watchdog as pruning
from tests.golden.test_plans import plan, sorts
from tests.support import rows

if TYPE_CHECKING:
    from collections.abc import Mapping

RUNS, PARTITIONS = 3_000, 6_000
ANALYZE = {
    "sqlite": ["ANALYZE"],
    "postgresql": ["ANALYZE"],
    "mariadb": ["ANALYZE TABLE stepfast_run, stepfast_partition, stepfast_seen, stepfast_job"],
}


@pytest.fixture
def app(database_url: str) -> Iterator[Stepfast]:
    """Three thousand runs, one of which is active, with all the partitions of two."""
    with closing(Stepfast(database_url)) as app:
        with app.transaction() as tx:
            tx.execute_many(
                "INSERT INTO stepfast_run (id, feed, kind, state, window_to, started_at, ended_at)"
                " VALUES (:id, 'catalogue', 'full', :state, 1, :at, :ended_at)",
                [_run(number) for number in range(RUNS)],
            )
            tx.execute_many(
                "INSERT INTO stepfast_partition (id, run_id, number, name, span, window_to, state, job_id)"
                " VALUES (:id, :run_id, :number, 'p', '{}', 1, :state, :job_id)",
                [_partition(number) for number in range(PARTITIONS)],
            )
            tx.execute_many(
                "INSERT INTO stepfast_seen (partition_id, item_id, pass) VALUES (:id, :item, 1)",
                [{"id": f"p{number % 50:05}", "item": f"i{number}"} for number in range(5_000)],
            )

        @app.job()
        def work(n: int) -> None: ...

        work.enqueue_many([{"n": n} for n in range(5_000)])
        connection = app.database.connect()
        for text in ANALYZE[app.database.dialect.name]:
            connection.execute(text)
        connection.close()
        yield app


def _run(number: int) -> Mapping[str, object]:
    ended = None if number == RUNS - 1 else number + 1
    return {
        "id": f"r{number:05}",
        "state": "completed" if ended else "fetching",
        "at": number,
        "ended_at": ended,
    }


def _partition(number: int) -> Mapping[str, object]:
    return {
        "id": f"p{number:05}",
        "run_id": f"r{RUNS - 1 - number % 2:05}",
        "number": number,
        "state": "ready" if number % 4 == 0 else "done",
        "job_id": f"j{number}",
    }


def test_the_runs_that_have_not_ended_are_found_by_an_index(app: Stepfast) -> None:
    assert "stepfast_run_ended" in plan(app, watchdog.ACTIVE_RUNS)


def test_partitions_without_a_job_are_found_along_their_run_and_by_the_keys_of_jobs(app: Stepfast) -> None:
    found = plan(app, watchdog.FIND_ORPHANS, run_id="r02999", limit=200)

    assert "stepfast_partition_of_run" in found or "stepfast_partition_number" in found
    assert "SCAN j" not in found
    assert "Seq Scan" not in found
    assert '"access_type": "ALL"' not in found


def test_old_runs_are_found_in_the_order_of_their_ends_without_sorting(app: Stepfast) -> None:
    found = plan(app, pruning.FIND_OLD_RUN, age=1)

    assert "stepfast_run_ended" in found
    assert not sorts(found)


def test_the_next_partition_that_has_seen_something_is_one_probe_of_the_key(app: Stepfast) -> None:
    found = plan(app, pruning.NEXT_SEEN, after="p00007")

    assert any(
        words in found
        for words in ("SEARCH stepfast_seen", "Index Only Scan", "optimized away", "Index Scan")
    )
    assert rows.count(app, "stepfast_seen") == 5_000
