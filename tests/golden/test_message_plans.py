"""The frequent statements of a database queue use an index, however many messages have ended before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from stepfast import Stepfast
from stepfast.clock import new_ids
from stepfast.transports import database as message_rows
from tests.golden.test_plans import ANALYZE, plan, sorts

STORED = """
    INSERT INTO stepfast_message (id, queue, message_id, remembered, state, visible_at, until_at, subject, properties, body)
    VALUES (:id, :queue, :id, :id, :state, :at, :until_at, '', '{}', '{}')
"""


@pytest.fixture
def app(database_url: str) -> Iterator[Stepfast]:
    """Much was ended, a lot waits, some is dead."""
    with closing(Stepfast(database_url)) as app:
        with app.transaction() as tx:
            for state, count in (("done", 6_000), ("ready", 3_000), ("dead", 500)):
                tx.execute_many(
                    STORED,
                    [
                        {
                            "id": it,
                            "queue": f"q{n % 3}",
                            "state": state,
                            "at": n + 1,
                            "until_at": 9 * 10**15 if state == "done" else None,
                        }
                        for n, it in enumerate(new_ids(count))
                    ],
                )
        connection = app.database.connect()
        connection.execute(ANALYZE[app.database.dialect.name].replace("stepfast_job", "stepfast_message"))
        connection.close()
        yield app


def test_messages_are_taken_along_the_index_in_its_order(app: Stepfast) -> None:
    found = plan(app, message_rows.PICK_MESSAGES, queue="q1", limit=32)

    assert "stepfast_message_ready" in found
    assert not sorts(found)


def test_dead_letters_are_taken_along_an_index(app: Stepfast) -> None:
    found = plan(app, message_rows.PICK_DEAD_MESSAGES, queue="q1", limit=32)

    assert "stepfast_message_dead" in found or "stepfast_message_ready" in found
    assert not sorts(found)


def test_what_may_go_is_found_along_an_index(app: Stepfast) -> None:
    assert "stepfast_message_until" in plan(app, message_rows.OLD_MESSAGES, limit=1_000)
