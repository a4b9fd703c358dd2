"""`stepfast jobs watch`."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING

import pytest

from stepfast import Retry, Step
from stepfast.cli.jobs import TIMED_OUT
from stepfast.database.connection import Connection
from stepfast.jobs.commit import commit
from stepfast.jobs.outcome import Done
from stepfast.jobs.step import Report, write_reports
from tests.cli.test_process import ROOT, on_a_terminal
from tests.support import rows
from tests.support.jobs_in_every_state import died, ended, greeting, leased

if TYPE_CHECKING:
    from stepfast import Stepfast
    from tests.support.command_line import Cli


def finished(app: Stepfast) -> str:
    """A done job with a log line and progress of one half."""
    job_id = greeting(app).enqueue().id
    (lease,) = leased(app)
    with app.transaction() as tx:
        write_reports(
            tx, [Report(lease, None, None, "info", "hello\x1b[2J"), Report(lease, 50, "half", None, None)]
        )
    with app.transaction() as tx:
        commit(tx, lease, Done({"rows": 3}))
    return job_id


def test_a_pipe_gets_plain_lines_and_the_result(cli: Cli, app: Stepfast) -> None:
    lines = cli("jobs", "watch", finished(app)).splitlines()

    assert lines[0].endswith("step 0  info     hello\\x1b[2J")
    assert lines[1:] == ["50 %  half", 'done, step 0, try 1: {"rows":3}']


def test_a_program_gets_one_json_object_per_line(cli: Cli, app: Stepfast) -> None:
    log, progress, end = map(json.loads, cli("jobs", "watch", finished(app), "--json").splitlines())

    assert (log["update"], log["level"], log["message"]) == ("log", "info", "hello\x1b[2J")
    assert log["at"].endswith("Z")
    assert progress == {"update": "progress", "percent": 50, "note": "half"}
    assert (end["update"], end["state"], end["result"], end["attempts"]) == ("ended", "done", {"rows": 3}, 1)
    assert end["finished_at"].endswith("Z")


def test_a_job_is_followed_while_it_runs(cli: Cli, app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    @app.job(retry=Retry(attempts=2, first="1ms"))
    def work(step: Step) -> str:
        if step.attempt == 1:
            raise OSError("not yet")
        step.log("second try")
        go_on.wait(20)
        return "ok"

    def seen_by_the_watch(phase: str, text: str) -> None:
        if phase == "after" and "FROM stepfast_log" in text:
            go_on.set()

    job_id = work.enqueue().id
    with app.worker():
        rows.eventually(lambda: "second try" in rows.logs(app, job_id))
        monkeypatch.setattr(Connection, "watch", staticmethod(seen_by_the_watch))
        text = cli("jobs", "watch", job_id)

    assert "leased, step 0, try 2: OSError: not yet" in text
    assert text.endswith('done, step 0, try 2: "ok"\n')


@pytest.mark.parametrize("ending", ["dead", "cancelled"])
def test_a_job_without_a_result_exits_with_one(cli: Cli, app: Stepfast, ending: str) -> None:
    if ending == "dead":
        job_id = died(app, greeting(app), "OSError: no paper")
    else:
        job_id = greeting(app).enqueue().id
        app.operator.cancel(job_id, "not needed")

    text = cli("jobs", "watch", job_id, code=1)

    assert text.startswith(f"{ending}, step 0, try")
    assert ("no paper" if ending == "dead" else "not needed") in text


def test_a_watch_that_is_over_exits_with_three(cli: Cli, app: Stepfast) -> None:
    greet = greeting(app)
    dead, waiting = died(app, greet), greet.enqueue().id

    assert "is still ready" in cli("jobs", "watch", waiting, "--timeout", "50ms", code=3)
    assert "is still dead" in cli("jobs", "watch", dead, "--follow", "--timeout", "50ms", code=3)
    assert "is negative" in cli("jobs", "watch", waiting, "--timeout", "-1", code=2)
    assert "there is no job nobody" in cli("jobs", "watch", "nobody", code=1)


def test_an_expired_result_is_said_to_be_expired(cli: Cli, app: Stepfast) -> None:
    greeting(app).enqueue()
    job_id = ended(app, Done(7))
    rows.change(
        app, "UPDATE stepfast_archive SET result = NULL, result_expired_at = :at", at=1_900_000_000_000_000
    )

    assert "its result expired at 2030-03-17" in cli("jobs", "watch", job_id)
    assert "2030-03-17 17:46:40 UTC" in cli("jobs", "show", job_id)


@pytest.mark.only_on("sqlite")
def test_a_person_sees_a_bar_with_lines_above_it(database_url: str, app: Stepfast) -> None:
    seen, code = on_a_terminal("jobs", "watch", finished(app), STEPFAST_DATABASE_URL=database_url)

    assert code == 0
    assert "hello\\x1b[2J" in seen
    assert "━" in seen
    assert "100%" in seen
    assert 'done, step 0, try 1: {"rows":3}' in seen


@pytest.mark.only_on("sqlite")
def test_every_exit_code_is_in_the_reference(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stepfast.cli.queues.operating", interrupted)
    cli("queues", "list", code=130)

    reference = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert re.findall(r"^\| (\d+) \|", reference, re.MULTILINE) == ["0", "1", "2", str(TIMED_OUT), "130"]
