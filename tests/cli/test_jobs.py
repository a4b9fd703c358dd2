"""`stepfast jobs`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from stepfast.jobs.outcome import Done
from stepfast.jobs.step import Report, write_reports
from tests.support import rows
from tests.support.jobs_in_every_state import died, ended, greeting, leased

if TYPE_CHECKING:
    from stepfast import Stepfast
    from tests.support.command_line import Cli

SUMMARY = {
    "id", "state", "kind", "queue", "priority", "key", "step", "attempts", "failures", "crashes", "progress", "progress_note",
    "created_at", "ready_at", "leased_at", "finished_at", "locked_by", "locked_until", "cancel_at", "error_group", "last_error",
}  # fmt: skip


def test_a_list_for_programs_has_stable_keys_and_instants_in_utc(cli: Cli, app: Stepfast) -> None:
    greet = greeting(app)
    greet.enqueue()
    ended(app)
    waiting = greet.enqueue(priority=3).id

    newest, done = cli.json("jobs", "list")

    assert set(newest) == set(done) == SUMMARY
    assert (newest["id"], newest["state"], newest["priority"]) == (waiting, "ready", 3)
    assert done["state"] == "done"
    assert done["finished_at"].endswith("Z")
    assert datetime.fromisoformat(done["finished_at"]).utcoffset() is not None


def test_a_list_for_people_shows_whole_ids_and_offers_the_next_page(cli: Cli, app: Stepfast) -> None:
    greet = greeting(app)
    older, newer = greet.enqueue().id, greet.enqueue().id

    assert newer in cli("jobs", "list", "--limit", "1")
    assert [job["id"] for job in cli.json("jobs", "list", "--before", newer)] == [older]
    assert cli("jobs", "list", "--kind", "other") == "no such jobs\n"


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_an_id_is_never_cut(cli: Cli, app: Stepfast, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    job_id = greeting(app).enqueue().id

    assert job_id in cli("jobs", "list")


def test_a_list_can_be_narrowed(cli: Cli, app: Stepfast) -> None:
    greet = greeting(app)
    dead = died(app, greet)
    waiting = greet.enqueue(queue="mail").id

    assert [job["id"] for job in cli.json("jobs", "list", "--state", "live")] == [waiting]
    assert [job["id"] for job in cli.json("jobs", "list", "--state", "ended")] == [dead]
    assert len(cli.json("jobs", "list", "--state", "dead,leased", "--state", "ready")) == 2
    assert [job["id"] for job in cli.json("jobs", "list", "--queue", "mail")] == [waiting]


@pytest.mark.only_on("sqlite")
def test_a_state_that_does_not_exist_is_wrong_usage(cli: Cli) -> None:
    assert "'queued' is no state; use scheduled, ready," in cli("jobs", "list", "--state", "queued", code=2)
    cli("jobs", "list", "--limit", "0", code=2)
    cli("jobs", "lost", code=2)


def test_a_job_is_shown_with_its_lease_error_progress_and_log(cli: Cli, app: Stepfast) -> None:
    job_id = greeting(app).enqueue(name="Ada").id
    (lease,) = leased(app)
    with app.transaction() as tx:
        write_reports(
            tx, [Report(lease, None, None, "info", "hello"), Report(lease, 33, "a third", None, None)]
        )

    shown = cli.json("jobs", "show", job_id)

    assert set(shown) == SUMMARY | {
        "payload",
        "cursor",
        "result",
        "result_expired_at",
        "logs",
        "waits_for",
        "parents",
        "children",
    }
    assert (shown["state"], shown["attempts"], shown["locked_by"]) == ("leased", 1, "alice")
    assert (shown["progress"], shown["progress_note"], shown["last_error"]) == (33, "a third", None)
    assert shown["locked_until"].endswith("Z")
    assert shown["payload"] == {"name": "Ada"}
    assert [(line["level"], line["message"]) for line in shown["logs"]] == [("info", "hello")]
    text = cli("jobs", "show", job_id)
    assert all(part in text for part in (job_id, "leased", "alice", "a third", '{"name":"Ada"}', "hello"))


def test_a_job_that_is_done_is_shown_with_its_result(cli: Cli, app: Stepfast) -> None:
    greeting(app).enqueue()
    job_id = ended(app, Done([1, 2]))

    assert cli.json("jobs", "show", job_id)["result"] == [1, 2]
    assert "[1,2]" in cli("jobs", "show", job_id)


@pytest.mark.only_on("sqlite")
def test_what_a_job_said_cannot_paint_the_terminal(cli: Cli, app: Stepfast) -> None:
    job_id = died(app, greeting(app), "OSError: [bold]\x1b[2J\x9b31m\u202e")
    rows.change(
        app,
        "INSERT INTO stepfast_log (job_id, at, level, step, message) VALUES (:id, 1, 'info', 0, :message)",
        id=job_id,
        message="\x1b]0;owned\x07",
    )

    for text in (
        cli("jobs", "list"),
        cli("jobs", "show", job_id),
        cli("dead-letters", "list", "--by-error"),
        cli("doctor"),
    ):
        assert not any(character in text for character in "\x1b\x9b\x07\u202e")
        assert "[bold]" in text or "owned" in text


def test_a_job_that_does_not_exist_is_one_sentence(cli: Cli) -> None:
    said = cli("jobs", "show", "nobody", code=1)

    assert said.startswith("stepfast: there is no job nobody")
    assert said.count("\n") == 1


def test_each_job_is_retried_by_itself_and_a_refusal_tells_the_exit_code(cli: Cli, app: Stepfast) -> None:
    greet = greeting(app)
    dead, waiting = died(app, greet), greet.enqueue().id

    done = cli.json("jobs", "retry", waiting, dead, code=1)

    assert [(it["id"], it["state"]) for it in done] == [(waiting, None), (dead, "ready")]
    assert "waits for a worker already" in done[0]["error"]
    assert rows.state(app, dead) == "ready"


def test_a_waiting_job_is_cancelled_and_a_running_one_is_asked(cli: Cli, app: Stepfast) -> None:
    greet = greeting(app)
    running = greet.enqueue().id
    leased(app)
    waiting = greet.enqueue().id

    said = cli("jobs", "cancel", waiting, running, "--reason", "enough")

    assert said == f"job {waiting} is cancelled\njob {running} is running; its worker was asked to stop it\n"
    assert rows.state(app, waiting) == "cancelled"
    assert cli.json("jobs", "show", running)["cancel_at"] is not None
    assert "has ended" in cli("jobs", "cancel", waiting, code=1)


def test_statistics_are_told_by_kind(cli: Cli, app: Stepfast) -> None:
    greet = greeting(app)
    died(app, greet)
    greet.enqueue()
    ended(app)

    (found,) = cli.json("jobs", "stats", "--since", "10m")

    assert (found["kind"], found["done"], found["dead"], found["success_rate"]) == ("greet", 1, 1, 0.5)
    assert [it["error_group"] for it in found["failures"]] == ["OSError: no answer"]
    assert "50.0%" in cli("jobs", "stats")
    assert "OSError: no answer" in cli("jobs", "stats", "--kind", "greet")
    assert cli("jobs", "stats", "--kind", "other") == "no job ended in the last 24h\n"
    assert cli("jobs", "stats", "--since", "0") == "no job ended in the last 0\n"
    assert "is not a duration" in cli("jobs", "stats", "--since", "often", code=2)
