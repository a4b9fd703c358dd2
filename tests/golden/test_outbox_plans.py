"""The frequent statements of the relay use an index, however much was sent before and however long a line is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from stepfast import Stepfast
from stepfast.clock import new_ids
from stepfast.outbox import destinations as relay
from stepfast.outbox import destinations as retention
from stepfast.outbox import messages as waiting
from stepfast.worker import relay as worker_relay
from tests.golden.test_plans import ANALYZE, plan, sorts
from tests.support import rows

STAGED = """
    INSERT INTO stepfast_outbox (id, channel, destination, address, body, state, ended_at)
    VALUES (:id, 'webhook', :destination, 'https://a.example/', '{}', :state, :ended_at)
"""
BURIED = """
    INSERT INTO stepfast_archive (id, queue, kind, state, priority, ready_at, created_at, finished_at, step, failures,
                                  crashes, progress, payload)
    VALUES (:id, 'default', 'work', 'dead', 0, 1, 1, :at, 0, 1, 0, 0, '{}')
"""


@pytest.fixture
def app(database_url: str) -> Iterator[Stepfast]:
    """Much was sent, three lines are long, and there are many old dead letters."""
    with closing(Stepfast(database_url)) as app:
        with app.transaction() as tx:
            for state, count in (("sent", 6_000), ("waiting", 3_000), ("dead", 100)):
                tx.execute_many(
                    STAGED,
                    [
                        {
                            "id": it,
                            "destination": f"d{n % 3}",
                            "state": state,
                            "ended_at": None if state == "waiting" else n + 1,
                        }
                        for n, it in enumerate(new_ids(count))
                    ],
                )
            tx.execute_many(BURIED, [{"id": it, "at": n + 1} for n, it in enumerate(new_ids(3_000))])
        connection = app.database.connect()
        name = app.database.dialect.name
        connection.execute(ANALYZE[name].replace("stepfast_job", "stepfast_outbox"))
        connection.execute(ANALYZE[name].replace("stepfast_job", "stepfast_archive"))
        connection.close()
        yield app


def test_the_head_of_a_line_is_found_without_walking_along_it(app: Stepfast) -> None:
    head = plan(app, relay.NEXT_MESSAGE, destination="d1")
    line = plan(app, relay.NEXT_MESSAGES, destination="d1", limit=100)

    assert "stepfast_outbox_waiting" in head
    assert "stepfast_outbox_waiting" in line
    assert not sorts(head)
    assert not sorts(line)


def test_lines_are_found_by_one_probe_each_or_along_the_index_alone(app: Stepfast) -> None:
    heads = plan(app, relay.DUE_DESTINATIONS, limit=10, of_a_host=2)

    if app.database.dialect.name == "mariadb":
        assert '"using_index": true' in heads
    assert heads.count("stepfast_outbox_waiting") >= (2 if app.database.dialect.name == "mariadb" else 3)


def test_what_stands_before_a_message_is_counted_along_its_line(app: Stepfast) -> None:
    (last,) = rows.query(app, "SELECT max(id) AS id FROM stepfast_outbox WHERE state = 'waiting'")
    before = plan(app, waiting.MESSAGES_BEFORE, id=last["id"])  # of nobody, MariaDB knows without a plan

    assert before.count("stepfast_outbox_waiting") >= 2


def test_an_idle_look_touches_no_table(app: Stepfast) -> None:
    look = plan(app, worker_relay.ANYTHING, since=2**62, too_old=1)

    assert "stepfast_outbox_waiting" in look or "stepfast_outbox_ended" in look
    assert "stepfast_archive_ended" in look


def test_old_messages_and_young_deaths_are_found_by_their_time(app: Stepfast) -> None:
    old = plan(app, retention.OLD_MESSAGES, age=1, limit=100)
    young = plan(app, worker_relay.NEW_DEAD_JOBS, since=2_990, limit=100)

    assert "stepfast_outbox_ended" in old
    assert not sorts(old)
    assert "stepfast_archive_ended" in young
