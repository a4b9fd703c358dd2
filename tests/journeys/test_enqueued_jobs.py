"""Jobs that the handler of a task enqueues are run, or it is said where they are left."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from stepfast import Stepfast
from stepfast.database.database import persist
from stepfast.notifications.settings import NotificationSettings
from stepfast.tasks.envelope import read
from stepfast.tasks.store import Origin, accept_task
from tests.support import rows

if TYPE_CHECKING:
    from tests.journeys.conftest import Container

TARGET = "tests.journeys.documents:app"


def unfinished(container: Container) -> int:
    return int(container.query("SELECT count(*) FROM stepfast_job")[0][0])


def test_a_single_task_on_a_file_of_its_own_runs_them_before_it_ends(container: Container) -> None:
    running = container.run(container.task("divide", filename="a", more=2))

    assert running.code == 0
    assert container.notes() == ["divide a", "index a 2", "index a 1", "index a 0"]
    assert [it["status"] for it in container.told()] == ["completed"]
    assert unfinished(container) == 0


def test_a_task_that_goes_on_when_its_jobs_have_ended_gets_there(container: Container) -> None:
    running = container.run(container.task("gather", filename="a"), WORKER_TASK_TIMEOUT="60s")

    assert running.code == 0
    assert container.notes() == ["gather begins", "index a 0"]
    assert [it["result"] for it in container.told()] == ["gathered"]


def test_one_that_kills_its_process_is_tried_again_and_changes_nothing_for_the_task(
    container: Container,
) -> None:
    running = container.run(container.task("divide", filename="a", job="crash"))

    assert running.code == 0
    assert container.notes() == ["divide a", "crash a", "crash a"]
    assert len(container.told()) == 1
    assert unfinished(container) == 0


def test_one_that_is_due_much_later_is_left_and_the_last_lines_say_where(container: Container) -> None:
    running = container.run(container.task("divide", filename="a", delay="1h"))

    assert running.code == 0
    assert container.notes() == ["divide a"]
    place = f"sqlite:///{container.database}"
    assert f"task t-1 has enqueued 1 job in the queue index of {place}, and no worker runs" in running.said()
    assert running.said().rstrip().endswith("task t-1 completed")


def test_a_container_job_for_one_message_runs_them_too(container: Container) -> None:
    """`--once` on a file of its own."""
    task = json.dumps({"filename": "a", "more": 1})
    container.start("tasks", "send", "divide", "--payload", task).ended()

    assert container.start("tasks", "work", TARGET, "--once").ended() == 0

    assert container.notes() == ["divide a", "index a 1", "index a 0"]
    assert unfinished(container) == 0


def accept(app: Stepfast, task_type: str, task_id: str) -> None:
    given = {"task_id": task_id, "task_type": task_type, "payload": {"filename": "a"}}
    task, origin = read(json.dumps(given)), Origin("default", "memory", task_id)
    persist(app.database, lambda tx: accept_task(tx, origin, task))


def test_a_polling_worker_runs_them_on_every_database(container: Container, database_url: str) -> None:
    with closing(Stepfast(database_url)) as app:
        accept(app, "divide", "t-1")

    worker = container.start("tasks", "work", TARGET, STEPFAST_DATABASE_URL=database_url)
    rows.eventually(lambda: container.notes() == ["divide a", "index a 0"], 60)

    assert worker.stop() == 0


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_polling_worker_leaves_them_to_others_if_it_is_told_to(
    container: Container, database_url: str
) -> None:
    with closing(Stepfast(database_url)) as app:
        accept(app, "divide", "t-1")
        worker = container.start(
            "tasks", "work", TARGET, STEPFAST_DATABASE_URL=database_url, WORKER_QUEUES="none"
        )
        container.noted("divide a")
        accept(app, "summarize", "t-2")
        container.noted("summarize a")
        assert worker.stop() == 0

        assert container.notes() == ["divide a", "summarize a"]
        assert rows.query(app, "SELECT queue, state FROM stepfast_job") == [
            {"queue": "index", "state": "ready"}
        ]


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_single_task_on_a_server_leaves_them_to_workers_and_warns_if_there_are_none(
    container: Container, database_url: str
) -> None:
    alone = container.run(container.task("divide", filename="a"), STEPFAST_DATABASE_URL=database_url)
    quiet = NotificationSettings(outbox_relay=False)
    with (
        closing(Stepfast(database_url, notifications=quiet)) as app,
        app.worker(queues="index", concurrency=1),
    ):
        among_workers = container.run(
            container.task("divide", "t-2", filename="b", delay="1h"), STEPFAST_DATABASE_URL=database_url
        )

    assert (alone.code, among_workers.code) == (0, 0)
    assert "task t-1 has enqueued 1 job in the queue index of " in alone.said()
    assert "jobs.left" in alone.said()
    assert "jobs.left" not in among_workers.said()
    assert "jobs.passed-on" in among_workers.said()
