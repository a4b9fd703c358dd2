"""The async worker, scenario by scenario, in the words of its specification.

Its two document handlers are stood in for by others of the same names.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from stepfast.tasks import single_task
from tests.support import rows
from tests.support.http_receiver import SECRET, Answer

if TYPE_CHECKING:
    from tests.journeys.conftest import Container

INGEST = {"filename": "a.pdf", "document_set": "reports"}
TARGET = "tests.journeys.documents:app"
DATABASE_QUEUE = {"STEPFAST_TRANSPORT": "database://"}


def messages(container: Container) -> int:
    return int(container.query("SELECT count(*) FROM stepfast_message WHERE state = 'ready'")[0][0])


class TestWorkerQueueConsumer:
    def test_single_task_mode_via_environment_variable(self, container: Container) -> None:
        """Given TASK_DATA is set, the worker parses it, routes it to its handler, exits with 0 or 1, never polls."""
        container.start("tasks", "send", "summarize", "--payload", '{"filename": "b"}').ended()

        good = container.run(container.task("ingest", **INGEST), real=True)
        bad = container.run(container.task("fail", "t-2", message="no"))

        assert (good.code, bad.code) == (0, 1)
        assert container.notes() == ["ingest a.pdf", "fail"]
        assert messages(container) == 1  # nobody has looked into the queue

    def test_single_task_mode_does_not_speak_to_the_broker_whose_keys_it_has(
        self, container: Container
    ) -> None:
        """It must not poll the queue: there is not even a connection."""
        with socket.create_server(("127.0.0.1", 0)) as broker:
            address = f"http://127.0.0.1:{broker.getsockname()[1]}/acct"
            keys = f"AccountName=acct;AccountKey=a2V5;QueueEndpoint={address};BlobEndpoint={address}"

            code = container.run(
                container.task("summarize", filename="b"), AZURE_STORAGE_CONNECTION_STRING=keys
            ).code

            broker.settimeout(0)
            with pytest.raises(BlockingIOError):
                broker.accept()
        assert code == 0

    def test_single_task_mode_needs_no_database_server(self, container: Container) -> None:
        """Nothing is set up: it works on a file in its working folder, where the next start finds what was done."""
        container.place = container.folder / "container"
        container.place.mkdir()
        task = container.task("summarize", filename="b")

        codes = [container.run(task, STEPFAST_DATABASE_URL="").code for _ in range(2)]

        assert codes == [0, 0]
        assert container.notes() == ["summarize b"]
        assert {it.name.partition("-")[0] for it in container.place.iterdir()} == {"stepfast.db"}

    def test_polling_mode_when_task_data_is_absent(self, container: Container) -> None:
        """The worker continuously polls the {client_id}-tasks queue, processes messages as they arrive, deletes each."""
        send = ("tasks", "send", "summarize", "--client", "southhaven", "--payload", '{"filename": "b"}')
        worker = container.start("tasks", "work", TARGET, real=True, CLIENT_ID="southhaven")
        container.start(*send, CLIENT_ID="southhaven").ended()
        container.noted("summarize b")
        rows.eventually(lambda: messages(container) == 0)
        container.start(*send, CLIENT_ID="southhaven").ended()
        rows.eventually(lambda: len(container.notes()) == 2 and messages(container) == 0)

        assert worker.stop() == 0

    def test_worker_processes_multiple_task_types(self, container: Container) -> None:
        """A task_type value routes the task to its handler, and each is processed independently."""
        worker = container.start("tasks", "work", TARGET)
        rows.eventually(lambda: "intake.started" in worker.said())
        container.start("tasks", "send", "fail", "--payload", '{"message": "x"}').ended()
        container.start("tasks", "send", "ingest", "--payload", json.dumps(INGEST)).ended()
        container.start("tasks", "send", "summarize", "--payload", '{"filename": "b"}').ended()

        rows.eventually(lambda: sorted(container.notes()) == ["fail", "ingest a.pdf", "summarize b"])
        assert worker.stop() == 0

    def test_a_task_type_that_nobody_handles(self, container: Container) -> None:
        """It is refused: its webhook says so, and the message is among the dead letters."""
        assert container.run(container.task("translate", filename="b")).code == 1

        (body,) = container.told()
        assert (body["task_id"], body["status"], body["error"]["cause"]) == ("t-1", "failed", "refused")
        assert "no handler for task type 'translate'" in body["error"]["message"]
        letters = container.start("dead-letters", "list", "--json")
        assert letters.ended() == 0
        assert [it["kind"] for it in json.loads(letters.said())] == ["refused-task"]


class TestWebhookNotifications:
    def test_task_completed_successfully(self, container: Container) -> None:
        """The POST has task_id, status completed and the result, and the frontend server saves it to its database."""
        frontend = container.folder / "frontend.db"
        server = container.start(
            "tasks", "receiver", "--port", "0", "--database-url", f"sqlite:///{frontend}"
        )
        rows.eventually(lambda: "running on" in server.said())
        port = server.said().partition("http://127.0.0.1:")[2].partition(" ")[0]
        task = container.task("ingest", **INGEST) | {"webhook_url": f"http://127.0.0.1:{port}/api/webhooks"}

        assert container.run(task).code == 0
        assert container.run(task).code == 0  # told again, under the same id

        shown = container.start("--database-url", f"sqlite:///{frontend}", "tasks", "list", "--json")
        assert shown.ended() == 0
        import sqlite3
        from contextlib import closing

        with closing(sqlite3.connect(frontend)) as connection:
            saved = connection.execute("SELECT task_id, status, body FROM stepfast_received").fetchall()
        assert [(it[0], it[1], json.loads(it[2])["result"]) for it in saved] == [
            ("t-1", "completed", {"filename": "a.pdf", "document_set": "reports", "chunks": 3})
        ]
        assert server.stop() == 0

    def test_task_processing_fails(self, container: Container) -> None:
        """The POST has task_id, status failed, and the error's exception type and message."""
        container.run(container.task("fail", message="page 7 is upside down"))

        (body,) = container.told()
        assert (body["task_id"], body["status"]) == ("t-1", "failed")
        assert (body["error"]["type"], body["error"]["message"]) == ("ValueError", "page 7 is upside down")


class TestWorkerConfiguration:
    @pytest.mark.parametrize(("client", "queue"), [("southhaven", "southhaven-tasks"), ("", "default-tasks")])
    def test_worker_uses_per_client_configuration(
        self, container: Container, client: str, queue: str
    ) -> None:
        """CLIENT_ID names the queue; without it the worker defaults to default-tasks."""
        worker = container.start("tasks", "work", TARGET, CLIENT_ID=client)

        rows.eventually(lambda: f"queue={queue}" in worker.said(), 60)

        assert worker.stop() == 0

    def test_what_is_wrong_is_said_at_once_and_nothing_starts(self, container: Container) -> None:
        """It uses the same variables as the frontend; the error for an https SUPABASE_URL names the right variable."""
        worker = container.run(
            container.task("summarize", filename="b"),
            CLIENT_ID="South Haven",
            SUPABASE_URL="https://abc.supabase.co",
            STEPFAST_DATABASE_URL="",
            WORKER_TASK_TIMEOUT="soon",
        )

        assert worker.code == 1
        assert all(it in worker.said() for it in ("CLIENT_ID", "SUPABASE_URL", "WORKER_TASK_TIMEOUT"))
        assert "STEPFAST_DATABASE_URL" in worker.said()
        assert container.notes() == []


class TestWorkerLifecycle:
    @pytest.mark.parametrize(("task_type", "code"), [("summarize", 0), ("fail", 1)])
    def test_single_task_completion(self, container: Container, task_type: str, code: int) -> None:
        """The webhook is sent before the worker exits, with 0 if the status is completed, 1 if it is failed."""
        failures = 1 - code  # the receiver's, the first time
        container.receiver.fail(failures)
        payload = {"filename": "b"} if code == 0 else {"message": "no"}

        assert container.run(container.task(task_type, **payload)).code == code

        assert len(container.receiver.received) == 1 + failures  # it stayed until a try was answered well
        assert len(set(container.receiver.ids)) == 1

    def test_a_webhook_that_nobody_takes_does_not_hold_it_up_for_ever(self, container: Container) -> None:
        container.receiver.fail(1_000)

        worker = container.run(container.task("summarize", filename="b"), WORKER_WEBHOOK_BUDGET="300ms")

        assert worker.code == 0
        assert "nobody could be told" in worker.said()

    def test_single_task_timeout(self, container: Container) -> None:
        """The task is terminated gracefully, a failure webhook with a timeout error is sent, the exit code is 1."""
        worker = container.run(container.task("sleep", seconds=60), WORKER_TASK_TIMEOUT="1")

        assert worker.code == 1
        assert container.notes() == ["sleep begins", "sleep is told to stop"]
        (body,) = container.told()
        assert (body["status"], body["error"]["cause"]) == ("failed", "timeout")
        assert body["error"]["message"].startswith("did not finish within 1 s")

    def test_single_task_timeout_by_force(self, container: Container) -> None:
        """A handler that ignores its timeout is killed."""
        began = time.monotonic()
        worker = container.run(container.task("deaf", seconds=60), WORKER_TASK_TIMEOUT="1s")

        assert worker.code == 1
        assert time.monotonic() - began < 30
        assert [it["error"]["cause"] for it in container.told()] == ["timeout"]

    def test_single_task_timeout_of_what_keeps_the_interpreter(
        self, container: Container, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No thread of its process could end it: the parent sees that, and does not wait for long."""
        monkeypatch.setattr(single_task, "UNWIND", 1.0)
        began = time.monotonic()
        worker = container.run(container.task("stubborn", seconds=60), WORKER_TASK_TIMEOUT="1s")

        assert worker.code == 1
        assert time.monotonic() - began < single_task.FORCE
        assert container.notes() == ["stubborn begins"]
        assert [it["error"]["cause"] for it in container.told()] == ["timeout"]

    def test_what_keeps_the_interpreter_is_given_back_after_the_grace(self, container: Container) -> None:
        worker = container.begin(container.task("stubborn", seconds=60), WORKER_GRACE="500ms")
        container.noted("stubborn begins")
        began = time.monotonic()

        assert worker.stop() == 1

        assert time.monotonic() - began < single_task.STOPPING / 3
        assert container.query("SELECT queue FROM stepfast_job") == [("default-tasks",)]
        assert container.told() == []

    def test_the_time_limit_is_for_all_tries_together(self, container: Container) -> None:
        """Also while it waits for its next try."""
        began = time.monotonic()
        worker = container.run(container.task("patient"), WORKER_TASK_TIMEOUT="1s")

        assert worker.code == 1
        assert time.monotonic() - began < 10
        assert container.notes() == ["patient"]
        assert [it["error"]["cause"] for it in container.told()] == ["timeout"]

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_worker_stops_gracefully_in_polling_mode(
        self, container: Container, number: signal.Signals
    ) -> None:
        """On SIGTERM or SIGINT the current message is finished, no new one is acknowledged, the exit is clean."""
        worker = container.start("tasks", "work", TARGET, WORKER_CONCURRENCY="1")
        rows.eventually(lambda: "intake.started" in worker.said())
        container.start("tasks", "send", "sleep", "--payload", '{"seconds": 2}', "--id", "current").ended()
        container.noted("sleep begins")
        began = time.monotonic()
        worker.terminate(number)
        container.start("tasks", "send", "summarize", "--payload", '{"filename": "b"}').ended()

        assert worker.ended() == 0

        assert container.notes() == ["sleep begins", "sleep ends"]
        assert messages(container) == 1
        assert time.monotonic() - began < 20

    def test_a_task_starts_within_a_second(self, container: Container) -> None:
        """Processor time, since a wall clock tells of the neighbours."""
        assert container.run(container.task("start-up"), real=True).code == 0

        assert container.told()[-1]["result"] < 1.0


class TestErrorHandlingAndRetry:
    def test_transient_network_error_in_single_task_mode(self, container: Container) -> None:
        """The operation is retried with exponential backoff."""
        worker = container.run(container.task("flaky", times=2))

        assert worker.code == 0
        times = [float(it.split()[1]) for it in container.notes()]
        pauses = [float(it) for it in re.findall(r"retry_in_s=([\d.]+)", worker.said())]
        assert [0.05 <= pauses[0] <= 0.1, 0.15 <= pauses[1] <= 0.3, len(pauses)] == [True, True, 2]
        assert all(later - before >= it for it, (before, later) in zip(pauses, pairwise(times), strict=True))
        assert [(it["result"], it["attempts"]) for it in container.told()] == [("worked after 2", 3)]

    def test_transient_network_error_that_does_not_pass(self, container: Container) -> None:
        """After the last retry the failure webhook is sent."""
        assert container.run(container.task("flaky", times=99)).code == 1

        assert len(container.notes()) == 4
        assert [it["error"]["type"] for it in container.told()] == ["ConnectionError"]

    def test_poison_message_handling(self, container: Container) -> None:
        """A message that fails after all retries: a failure webhook, then the dead letters here and at the broker."""
        worker = container.start("tasks", "work", TARGET, WORKER_CONCURRENCY="2")
        rows.eventually(lambda: "intake.started" in worker.said())
        container.start(
            "tasks",
            "send",
            "fail",
            "--payload",
            '{"message": "x"}',
            "--webhook-url",
            container.receiver.url(),
        ).ended()
        rows.eventually(container.told)
        rows.eventually(lambda: "state=dead" in worker.said())

        assert worker.stop() == 0
        letters = container.start("dead-letters", "list", "--json")
        assert letters.ended() == 0
        assert [it["kind"] for it in json.loads(letters.said())] == ["task.fail"]

    def test_a_task_that_kills_polling_workers_is_told_of_and_the_others_live(
        self, container: Container
    ) -> None:
        """After the first death it runs alone, in a process of its own."""
        send = ("tasks", "send", "abort", "--id", "t-1", "--webhook-url", container.receiver.url())
        container.start(*send).ended()
        first = container.start("tasks", "work", TARGET, real=True)
        assert first.ended() == 128 + signal.SIGABRT  # it took its worker along, and its guardian says so

        second = container.start("tasks", "work", TARGET, real=True, WORKER_VISIBILITY_TIMEOUT="1s")
        rows.eventually(container.told, 60)

        assert [it["error"]["type"] for it in container.told()] == ["WorkerCrashed"]
        assert second.stop() == 0

    def test_a_task_that_kills_its_process_is_told_of(self, container: Container) -> None:
        """The container is not restarted, so this one must send the webhook."""
        assert container.run(container.task("abort")).code == 1

        assert container.notes() == ["abort"] * 3
        assert [it["error"]["type"] for it in container.told()] == ["WorkerCrashed"]


class TestOneMessage:
    """`--once`: the container receives one task by itself instead of getting it in its environment."""

    @pytest.mark.parametrize(("retries", "left"), [("0", ["second"]), ("3", ["first, held", "second"])])
    def test_a_handler_that_cannot_be_stopped(
        self, container: Container, monkeypatch: pytest.MonkeyPatch, retries: str, left: list[str]
    ) -> None:
        """The exit code is that of this task. Another try of it, and the next message, are for other containers; what is
        not given back counts as a death.
        """
        monkeypatch.setattr("stepfast.worker.leases.UNWIND", 0.1)
        monkeypatch.setattr("stepfast.worker.heartbeat.TICK", 0.1)
        monkeypatch.setattr(os, "execv", lambda *_: os._exit(77))  # whoever starts again
        for name in ("first", "second"):
            container.start("tasks", "send", "deaf", "--id", name, "--payload", '{"seconds": 60}').ended()

        worker = container.start(
            "tasks",
            "work",
            TARGET,
            "--once",
            WORKER_TASK_TIMEOUT="100ms",
            WORKER_MAX_RETRIES=retries,
            WORKER_GRACE="500ms",
        )

        assert worker.ended() == 1
        assert container.notes() == ["deaf begins"]
        waiting = container.query(
            "SELECT message_id || CASE WHEN visible_at > (unixepoch() + 5) * 1000000 THEN ', held' ELSE '' END"
            " FROM stepfast_message WHERE state = 'ready' ORDER BY message_id"
        )
        assert [it[0] for it in waiting] == left


class TestSingleTask:
    """What the specification does not say, and a container meets."""

    def test_what_is_no_task_is_refused_and_whoever_can_be_told_is_told(self, container: Container) -> None:
        readable = {"task_id": "t-1", "task_type": 7, "webhook_url": container.receiver.url()}

        assert container.run("garbage").code == 1
        assert container.run(readable).code == 1

        assert [it["error"]["cause"] for it in container.told()] == ["refused"]

    @pytest.mark.parametrize(
        "odd",
        [
            "\udcff",
            '{"task_id": "t", "task_type": "\udcff"}',
            '{"task_id": 1e400, "task_type": "ingest"}',
            f'{{"task_id": {"9" * 5_000}, "task_type": "ingest"}}',
            f'{{"task_id": "t", "task_type": {"[" * 3_000}{"]" * 3_000}}}',
        ],
        ids=lambda it: ascii(it)[:40],
    )
    def test_odd_texts_are_refused_in_words(self, container: Container, odd: str) -> None:
        worker = container.run(odd)

        assert (worker.code, "refused: " in worker.said()) == (1, True)
        assert "Traceback" not in worker.said()

    def test_a_task_in_base64_as_some_triggers_pass_it_on(self, container: Container) -> None:
        text = json.dumps(container.task("summarize", filename="b"))

        assert container.run(base64.b64encode(text.encode()).decode()).code == 0

    def test_a_container_that_is_started_again_does_nothing_twice_and_tells_again(
        self, container: Container
    ) -> None:
        task = container.task("ingest", **INGEST)

        assert [container.run(task).code, container.run(task).code] == [0, 0]

        assert container.notes() == ["ingest a.pdf"]
        assert container.query("SELECT * FROM chunks") == [("a.pdf",)]
        assert len(container.told()) == 2
        assert len(set(container.receiver.ids)) == 1

    def test_sigterm_gives_the_task_back_where_another_may_go_on(self, container: Container) -> None:
        worker = container.begin(container.task("sleep", seconds=60), WORKER_GRACE="100ms")
        container.noted("sleep begins")

        assert worker.stop() == 1

        assert container.query("SELECT queue, state FROM stepfast_job") == [("default-tasks", "ready")]
        assert container.told() == []

    def test_a_webhook_belongs_to_the_trace_of_whoever_asked(self, container: Container) -> None:
        trace = "0af7651916cd43dd8448eb211c80319c"

        container.run(
            container.task("summarize", filename="b") | {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
        )

        (received,) = container.receiver.received
        assert received.headers["traceparent"].split("-")[1] == trace

    def test_webhooks_are_signed(self, container: Container) -> None:
        from stepfast.notifications.webhook import verify

        container.run(container.task("summarize", filename="b"))

        (received,) = container.receiver.received
        assert verify(received.body, received.headers, SECRET) == received.id

    def test_a_slow_receiver_is_waited_for(self, container: Container) -> None:
        container.receiver.answer = lambda _: Answer(before=lambda: time.sleep(0.5))

        assert container.run(container.task("summarize", filename="b")).code == 0
        assert container.query("SELECT state FROM stepfast_outbox") == [("sent",)]
