"""`stepfast queues`, `workers` and `leases`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer.testing import CliRunner

from stepfast.cli.command import app as commands
from tests.support import rows
from tests.support.jobs_in_every_state import expire, greeting, leased

if TYPE_CHECKING:
    from stepfast import Stepfast
    from tests.support.command_line import Cli


def test_who_pauses_a_queue_that_nobody_uses_is_told(cli: Cli) -> None:
    told = CliRunner().invoke(commands, ["--database-url", cli.url, "queues", "pause", "nosuch"])

    assert (told.exit_code, told.stdout) == (0, "queue nosuch is paused\n")
    assert "no job has used queue nosuch yet" in told.stderr
    (queue,) = cli.json("queues", "list")
    assert queue["paused_at"] is not None


def test_a_queue_is_paused_listed_and_resumed(cli: Cli, app: Stepfast) -> None:
    greeting(app, queue="mail").enqueue()

    assert cli("queues", "pause", "mail", "--note", "the relay is down") == "queue mail is paused\n"
    assert cli("queues", "pause", "mail") == "queue mail was already paused\n"
    (queue,) = cli.json("queues", "list")
    assert set(queue) == {
        "queue", "scheduled", "ready", "suspect", "leased", "held", "waiting", "dead", "oldest_ready_seconds", "paused_at", "note",
    }  # fmt: skip
    assert (queue["queue"], queue["ready"], queue["note"]) == ("mail", 1, "the relay is down")
    assert queue["paused_at"].endswith("Z")
    assert "the relay is down" in cli("queues", "list")

    assert cli.json("queues", "resume", "mail") == {"queue": "mail", "paused": False, "changed": True}
    assert cli("queues", "resume", "mail") == "queue mail was not paused\n"


def test_no_queues_are_one_line(cli: Cli) -> None:
    assert cli("queues", "list") == "no queues: nothing waits, nothing is paused\n"


def test_a_worker_is_listed_with_the_six_facts_of_its_status(cli: Cli, app: Stepfast) -> None:
    rows.add_worker(app, 11, worker_id="alice")
    rows.change(app, "UPDATE stepfast_worker SET active = 2, active_ids = 'a,b'")
    rows.add_worker(app, 12, worker_id="gone", state="stopped")

    (worker,) = cli.json("workers", "list")

    facts = ("worker_id", "running", "active_jobs", "concurrency", "lease_seconds", "active_job_ids")
    assert [worker[name] for name in facts] == ["alice", True, 2, 10, 10.0, ["a", "b"]]
    assert set(worker) - set(facts) == {
        "state", "host", "pid", "guardian_pid", "incarnation", "queues", "started_at", "beat_at", "alive_until", "ended_at",
    }  # fmt: skip
    assert len(cli.json("workers", "list", "--all")) == 2
    assert "alice" in cli("workers", "list")


def test_no_workers_is_advice(cli: Cli) -> None:
    assert "start one with" in cli("workers", "list")


def test_expired_leases_are_listed_and_reset_and_counted(cli: Cli, app: Stepfast) -> None:
    greet = greeting(app)
    held, silent = greet.enqueue().id, greet.enqueue().id
    leased(app, worker_id="alice")
    expire(app, leased(app, worker_id="silent")[0])

    assert [(it["job_id"], it["locked_by"], it["expired"]) for it in cli.json("leases", "list")] == [
        (held, "alice", False),
        (silent, "silent", True),
    ]
    assert [it["job_id"] for it in cli.json("leases", "list", "--expired")] == [silent]
    assert silent in cli("leases", "list", "--expired")

    assert cli("leases", "reset") == "reset 1 expired lease\n"
    assert cli.json("leases", "reset") == {"reset": 0, "died": 0}
    assert cli("leases", "list", "--expired") == "no expired leases\n"
    assert rows.state(app, held) == "leased"


def test_a_reset_says_how_many_went_to_the_dead_letters(cli: Cli, app: Stepfast) -> None:
    greeting(app).enqueue()
    expire(app, leased(app)[0])

    assert "1 of them beyond the crash limit" in cli("leases", "reset", "--crash-limit", "1")


def test_limits_are_listed_with_those_who_wait(cli: Cli, app: Stepfast) -> None:
    rows.change(app, "INSERT INTO stepfast_limit (id, slots, due_at) VALUES ('slots:kind:hello', 2, 1)")
    rows.change(
        app, "INSERT INTO stepfast_slot (job_id, limit_id, fence) VALUES ('a', 'slots:kind:hello', 1)"
    )
    greeting(app).enqueue()
    rows.change(app, "UPDATE stepfast_job SET state = 'held', held_by = 'slots:kind:hello'")

    (limit,) = cli.json("limits", "list")

    assert (limit["limit"], limit["taken"], limit["slots"], limit["room"], limit["held"]) == (
        "slots:kind:hello", 1, 2, 1, 1,
    )  # fmt: skip
    assert "slots:kind:hello" in cli("limits", "list")


def test_without_limits_the_list_says_so(cli: Cli) -> None:
    assert "no limit holds a job" in cli("limits", "list")
