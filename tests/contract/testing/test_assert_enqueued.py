"""`assert_enqueued` and its failure message, which lists the most similar jobs."""

from __future__ import annotations

import enum
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from stepfast import Job, JobState, Stepfast
from stepfast.database.drivers import sqlite_path
from stepfast.testing import assert_enqueued, assert_not_enqueued, clock, drain, enqueued
from tests.support import rows

if TYPE_CHECKING:
    from collections.abc import Callable


def mail_on(app: Stepfast) -> Job[..., None]:
    @app.job(queue="mail")
    def send(to: str, copies: int = 1) -> None: ...

    return send


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"arguments": {"to": "ada"}},
        {"arguments": {"to": "ada", "copies": 2}},
        {"queue": "mail"},
        {"priority": 5},
        {"key": "welcome:ada"},
        {"count": 1},
        {"within": "1h"},
        {"arguments": {"copies": 2}, "queue": "mail", "priority": 5, "key": "welcome:ada", "count": 1},
    ],
    ids=str,
)
def test_a_job_that_is_there_is_found_and_returned(app: Stepfast, asked: dict[str, Any]) -> None:
    send = mail_on(app)
    job = send.enqueue(to="ada", copies=2, priority=5, key="welcome:ada", delay="10m")

    (found,) = assert_enqueued(app, send, **asked)

    assert found.id == job.id
    assert found == enqueued(app, "send", **{name: it for name, it in asked.items() if name != "count"})[0]
    assert (found.kind, found.queue, found.priority, found.key) == ("send", "mail", 5, "welcome:ada")
    assert found.state is JobState.SCHEDULED
    assert found.arguments == {"to": "ada", "copies": 2}
    assert timedelta(minutes=9) < found.due_at - found.created_at <= timedelta(minutes=10)


@pytest.mark.parametrize(
    ("asked", "difference"),
    [
        ({"arguments": {"to": "grace"}}, "to is 'ada', not 'grace'"),
        ({"arguments": {"cc": "grace"}}, "it has no argument cc"),
        ({"queue": "default"}, "queue is 'mail', not 'default'"),
        ({"priority": 1}, "priority is 5, not 1"),
        ({"key": "other"}, "key is None, not 'other'"),
        ({"within": "5m"}, "it is due in 10 min, not within 5 min"),
    ],
)
def test_a_job_that_is_not_there_is_missed_with_the_difference(
    app: Stepfast, asked: dict[str, Any], difference: str
) -> None:
    send = mail_on(app)
    with clock(app) as time:
        time.freeze()
        send.enqueue(to="ada", priority=5, delay="10m")

        with pytest.raises(AssertionError, match=re.escape(difference)):
            assert_enqueued(app, send, **asked)
        assert_not_enqueued(app, send, **asked)


def test_the_nearest_is_shown_first(app: Stepfast) -> None:
    send = mail_on(app)

    @app.job()
    def charge(to: str, copies: int) -> None: ...

    charge.enqueue(to="ada", copies=3)
    send.enqueue(to="grace", copies=9)
    send.enqueue(to="ada", copies=9)
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(app, send, arguments={"to": "ada", "copies": 3})

    told = str(caught.value).splitlines()
    assert told[0].startswith("no job is enqueued with kind='send', arguments={'to': 'ada', 'copies': 3}")
    assert [line.strip().partition("  [")[0] for line in told[1::2]] == [
        "send(to='ada', copies=9)",
        "send(to='grace', copies=9)",
        "charge(to='ada', copies=3)",
    ]
    assert told[2].strip() == "copies is 9, not 3"
    assert told[6].strip() == "kind is 'charge', not 'send'"


def test_of_very_many_only_the_nearest_are_shown(app: Stepfast) -> None:
    send = mail_on(app)
    send.enqueue_many([{"to": str(n)} for n in range(30)])

    with pytest.raises(AssertionError, match="and 20 more") as caught:
        assert_enqueued(app, send, arguments={"to": "ada"})

    assert len(str(caught.value).splitlines()) < 25


def test_nothing_at_all_is_said_in_words(app: Stepfast) -> None:
    with pytest.raises(AssertionError, match="no job is enqueued at all; nothing is enqueued"):
        assert_enqueued(app)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_number_is_meant_exactly(app: Stepfast, count: int) -> None:
    send = mail_on(app)
    send.enqueue_many([{"to": "ada"}, {"to": "grace"}])

    with pytest.raises(AssertionError, match=f"2 jobs, not {count}, are enqueued"):
        assert_enqueued(app, send, count=count)
    assert_enqueued(app, send, count=2)
    assert_enqueued(app, send, arguments={"to": "alan"}, count=0)


def test_what_should_not_be_there_is_shown(app: Stepfast) -> None:
    send = mail_on(app)
    send.enqueue(to="ada")

    assert_not_enqueued(app, send, arguments={"to": "grace"})
    with pytest.raises(AssertionError, match=r"a job is enqueued with kind='send'.*\n  send\(to='ada'\)"):
        assert_not_enqueued(app, send, arguments={"to": "ada"})


def test_jobs_that_have_ended_count_if_they_are_asked_for(app: Stepfast) -> None:
    send = mail_on(app)
    send.enqueue(to="ada")
    drain(app)

    assert_not_enqueued(app, send)
    (found,) = assert_enqueued(app, send, ended=True)
    assert found.state is JobState.DONE
    assert found.ended


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int


def test_arguments_are_compared_as_they_are_stored(app: Stepfast) -> None:
    @app.job()
    def work(*, at: datetime, day: date, price: Decimal, who: UUID, colour: Colour, where: Point) -> None: ...

    arguments: dict[str, Any] = {
        "at": datetime(2030, 1, 1, 12, tzinfo=UTC),
        "day": date(2030, 1, 1),
        "price": Decimal("9.90"),
        "who": UUID(int=7),
        "colour": Colour.RED,
        "where": Point(1, 2),
    }
    work.enqueue(**arguments)

    for name, value in arguments.items():
        assert_enqueued(app, work, arguments={name: value})
    assert_not_enqueued(app, work, arguments={"price": Decimal("9.91")})


def test_jobs_of_another_program_are_seen_by_name(app: Stepfast, another_app: Callable[[], Stepfast]) -> None:
    mail_on(another_app()).enqueue(to="ada")
    rows.change(app, "INSERT INTO stepfast_job (id, kind, payload) VALUES ('a', 'from SQL', '[1]')")

    assert_enqueued(app, "send", arguments={"to": "ada"})
    assert assert_enqueued(app, "from SQL")[0].arguments == {}


def test_inside_a_transaction_one_sees_what_is_not_committed(app: Stepfast) -> None:
    send = mail_on(app)

    with app.transaction() as tx:
        send.enqueue(to="ada", tx=tx)
        assert_enqueued(app, send, tx=tx)
        assert enqueued(app, tx=tx)
        assert_not_enqueued(app, send)


@pytest.mark.only_on("sqlite")
def test_inside_a_transaction_of_ones_own_connection_too(app: Stepfast) -> None:
    send = mail_on(app)

    with closing(sqlite3.connect(sqlite_path(app.database.url))) as mine:
        send.enqueue(to="ada", tx=mine)
        assert_enqueued(app, send, tx=mine)
        mine.rollback()

    assert_not_enqueued(app, send)
