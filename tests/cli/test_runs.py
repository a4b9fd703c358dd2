"""`stepfast runs`."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from devtools import cli_reference
from stepfast.admin.run_reports import ErrorGroup
from stepfast.admin.run_status import JobFacts, RunFacts, why
from stepfast.cli.run_watch import STILL, Lines, bars
from stepfast.runs.run import RunState
from tests.support import rows
from tests.support.failing_runs import (
    broken_at,
    catalogue,
    failed_run,
    partition,
    run_row,
    run_steps,
    work_until_idle,
)
from tests.support.feeds import prepare, price_ranges, target

if TYPE_CHECKING:
    from stepfast import Stepfast
    from tests.support.command_line import Cli

FIRST, SECOND = (it.name for it in price_ranges(250, 500, 750)[:2])
NOW = datetime(2026, 5, 1, tzinfo=UTC)
MODULE = """
from stepfast import Stepfast
from tests.support.feeds import Catalogue, Shop

app = Stepfast()
app.feed(Catalogue(Shop.with_items(100)))
"""

LOCKED = """
def locked() -> None:
    raise ConnectionError("GET https://u:hunter2@shop/?api_key=SECRET1&token=SECRET2 Authorization: Bearer SECRET3")

app.feeds.get("catalogue").feed.now = locked
"""

REFUSING = """
from tests.support.failing_runs import broken_at

app.feeds.get("catalogue").feed.shop.before = broken_at(("page", "price 250..500", 0))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with an application whose feed reads the same source as the test."""
    name = f"shop_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("STEPFAST_APP", raising=False)
    return f"{name}:app"


@pytest.fixture
def here(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment says where the app is."""
    monkeypatch.setenv("STEPFAST_APP", module)


def test_a_run_is_planned_started_worked_off_and_shown(cli: Cli, app: Stepfast, module: str) -> None:
    catalogue(app)

    plan = cli("runs", "plan", "catalogue", "--app", module)
    assert "103 rows in 4 partitions of 25 to 26" in plan
    assert "24 pages and 8 counts" in plan
    assert "nothing was started" in plan
    assert cli("runs", "list") == "no runs: begin one with `stepfast runs start FEED`\n"

    told = cli("runs", "start", "catalogue", "--app", module, "--reason", "first time", "--by", "alice")
    (run,) = cli.json("runs", "list", "--active")
    assert told.startswith(f"run {run['id']} of feed catalogue is started: full, since ever to ")
    (entry,) = cli.json("audit", "list")
    assert (entry["what"], entry["who"], entry["why"]) == ("run.start", "alice", "first time")

    work_until_idle(app)
    shown = cli.json("runs", "show", "latest")
    assert (shown["run"]["state"], shown["states"], shown["why"][0]["sentence"]) == (
        "completed",
        {"done": 4},
        "it has completed",
    )
    text = cli("runs", "show", "catalogue")
    assert "103 read" in text
    assert "it has completed" in text
    assert run["id"] in cli("runs", "list", "--feed", "catalogue")


def test_a_run_whose_watermark_cannot_be_read_does_not_begin(cli: Cli, app: Stepfast, here: None) -> None:  # noqa: ARG001
    catalogue(app)
    with closing(app.database.connect()) as connection:
        connection.execute("ALTER TABLE stepfast_feed RENAME TO feed_away")

    said = cli("runs", "start", "catalogue", code=1)

    assert "stepfast_feed" in said
    assert "Traceback" not in said
    assert rows.count(app, "stepfast_run") == rows.count(app, "stepfast_job") == 0
    with closing(app.database.connect()) as connection:
        connection.execute("ALTER TABLE feed_away RENAME TO stepfast_feed")
    assert "is started: full" in cli("runs", "start", "catalogue")


def test_all_rows_are_mapped_again_and_compared(cli: Cli, app: Stepfast, here: None) -> None:  # noqa: ARG001
    catalogue(app)
    cli("runs", "start", "catalogue")
    work_until_idle(app)
    rows.change(app, "UPDATE item SET price = -1")

    told = cli("runs", "remap", "catalogue", "--reason", "they were wrong", "--by", "alice")
    work_until_idle(app)

    (run, _) = cli.json("runs", "list")
    assert told.startswith(
        f"run {run['id']} of feed catalogue is started: all its rows are mapped and written"
    )
    assert (run["kind"], run["state"], run["applied"]) == ("remap", "completed", 100)
    (entry, _) = cli.json("audit", "list")
    assert (entry["what"], entry["who"], entry["why"]) == ("run.remap", "alice", "they were wrong")
    assert min(target(app).values()) == 0

    rows.change(app, "DELETE FROM item WHERE price < 20")
    cli("runs", "start", "catalogue", "--kind", "verify")
    work_until_idle(app)
    assert re.search(r"differences +2 *\n", cli("runs", "show", "latest"))


@pytest.mark.parametrize("command", ["plan", "start"])
def test_a_source_that_cannot_be_asked_is_told_in_one_sentence_without_secrets(
    cli: Cli, app: Stepfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "locked_shop.py").write_text(MODULE + LOCKED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "locked_shop", raising=False)
    prepare(app)

    told = cli("runs", command, "catalogue", "--app", "locked_shop:app", code=1)

    assert "feed catalogue: the source could not be asked: ConnectionError: GET https://u:***@shop/" in told
    assert not re.search("hunter2|SECRET|Traceback", told)
    assert len(told.splitlines()) == 1
    sys.modules["locked_shop"].app.close()


def test_a_feed_stands_for_its_active_run_where_one_is_cancelled(cli: Cli, app: Stepfast) -> None:
    catalogue(app)
    active = app.runs.start("catalogue", "full")
    backfill = app.runs.start("catalogue", "backfill", from_=NOW)
    app.runs.cancel(backfill.id)

    cli("runs", "cancel", "catalogue", "--reason", "wrong account")

    assert run_row(app, active.id).state == "cancelled"


def test_the_partitions_of_a_plan_can_be_listed(cli: Cli, app: Stepfast, here: None) -> None:  # noqa: ARG001
    catalogue(app, table=False)

    listed = cli("runs", "plan", "catalogue", "--partitions", "--kind", "full")
    assert FIRST in listed
    assert SECOND in listed
    found = cli.json("runs", "plan", "catalogue", "--max-rows", "30")
    assert (found["scope"], [it["rows"] for it in found["partitions"]]) == (
        "partial",
        [26],
    )  # a run counts none before


def test_what_was_typed_wrong_is_said(cli: Cli, app: Stepfast, here: None) -> None:  # noqa: ARG001
    catalogue(app, table=False)

    assert "'sometimes' is no kind of run; use full, incremental" in cli(
        "runs", "start", "catalogue", "--kind", "sometimes", code=2
    )
    assert "'monday' is no time" in cli("runs", "start", "catalogue", "--from", "monday", code=2)
    assert "only a backfill has a window of its own" in " ".join(
        cli("runs", "start", "catalogue", "--from", "2026-05-01", code=2).replace("│", " ").split()
    )
    assert "no feed 'nosuch' in this application (it has: catalogue)" in cli(
        "runs", "start", "nosuch", code=1
    )


def test_without_the_app_it_is_asked_for(cli: Cli, app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPFAST_APP", raising=False)
    catalogue(app, table=False)
    run = app.runs.start("catalogue")

    for words in (("start", "catalogue"), ("plan", "catalogue"), ("retry", run.id), ("resume", run.id)):
        assert "say where its app is with --app MODULE:APP, or STEPFAST_APP" in cli("runs", *words, code=1)


def test_a_backfill_has_the_window_that_was_typed(cli: Cli, app: Stepfast, here: None) -> None:  # noqa: ARG001
    catalogue(app, table=False)

    run = cli.json("runs", "start", "catalogue", "--kind", "backfill", "--from", "2026-01-01", "--to", "2026-01-02T12:00+01:00")  # fmt: skip

    assert (run["kind"], run["window_from"], run["window_to"]) == (
        "backfill",
        "2026-01-01T00:00:00Z",
        "2026-01-02T11:00:00Z",
    )


def test_a_second_run_is_refused_with_the_first_ones_name(cli: Cli, app: Stepfast, here: None) -> None:  # noqa: ARG001
    catalogue(app, table=False)
    run = app.runs.start("catalogue")

    assert f"feed catalogue has an active run {run.id} (planning)" in cli(
        "runs", "start", "catalogue", code=1
    )


def test_a_failed_run_is_shown_retried_and_completed(cli: Cli, app: Stepfast, here: None) -> None:  # noqa: ARG001
    shop = catalogue(app)
    run = failed_run(app, shop, SECOND)

    text = cli("runs", "show", run.id)
    assert "1 of 4 partitions failed, so nothing was consolidated" in text
    assert f"  stepfast runs retry {run.id}" in text
    assert f"partition-1: PermanentError: {SECOND} cannot be read" in text

    told = cli("runs", "retry", run.id[:-2], "--partition", "partition-1")
    assert told == f"run {run.id} is fetching: partition-1 is read again\n"
    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()
    assert f"run {run.id} is completed: it has ended" in cli("runs", "retry", run.id, code=1)


def test_retry_from_the_start_begins_anew(cli: Cli, app: Stepfast, here: None) -> None:  # noqa: ARG001
    shop = catalogue(app)
    run = failed_run(app, shop, FIRST, SECOND)

    done = cli.json("runs", "retry", "catalogue", "--from-start", "--partition", "0", "--partition", SECOND)

    assert (done["run"]["state"], done["was"], done["partitions"]) == (
        "fetching",
        "failed",
        ["partition-0", "partition-1"],
    )
    assert partition(app, run.id, 1)["next_offset"] == 0
    assert "has no partition '77'" in cli("runs", "retry", run.id, "--partition", "77", code=1)


def test_a_forced_consolidation_is_published_in_part(cli: Cli, app: Stepfast, here: None) -> None:  # noqa: ARG001
    shop = catalogue(app)
    run = failed_run(app, shop, SECOND)
    assert "1 of its 4 partitions are missing" in cli("runs", "consolidate", run.id, code=1)

    told = cli("runs", "consolidate", run.id, "--force", "--reason", "the shop opens")

    assert told == f"run {run.id} is applying: what it read is consolidated; 1 of its ranges is a debt now\n"
    work_until_idle(app)
    assert run_row(app, run.id).state == "published_partial"
    assert "published in part, by force" in cli("runs", "show", run.id)
    (entry,) = [it for it in cli.json("audit", "list") if it["what"] == "run.consolidate"]
    assert (entry["why"], entry["detail"]["force"]) == ("the shop opens", "yes")


def test_a_run_is_cancelled_without_its_code_and_resumed_with_it(
    cli: Cli, app: Stepfast, module: str
) -> None:
    shop = catalogue(app)
    run = app.runs.start("catalogue")
    run_steps(app, 3)

    told = cli("runs", "cancel", "latest", "--reason", "wrong account")
    assert (
        told == f"run {run.id} is cancelled: it was fetching; resume it with: stepfast runs resume {run.id}\n"
    )
    assert "it was cancelled: Cancelled: wrong account" in cli("runs", "show", run.id)
    assert "is cancelled: it has ended" in cli("runs", "cancel", run.id, code=1)
    assert cli("runs", "list", "--active") == "no run is active\n"

    assert cli.json("runs", "resume", run.id, "--app", module)["was"] == "cancelled"
    work_until_idle(app)
    assert run_row(app, run.id).state == "completed"
    assert target(app) == shop.prices()


@pytest.mark.parametrize("state", RunState)
def test_every_command_that_helps_exists(state: RunState) -> None:
    """With the options that are named."""
    known = dict(cli_reference.commands())
    helpful = RunFacts(
        id="r1",
        feed="catalogue",
        state=state,
        phase=RunState.FETCHING if state is RunState.STALLED else state,
        now=NOW,
        moved_at=NOW,
        failed=2,
        unverified=1,
        orphans=("partition-3",),
        errors=tuple(ErrorGroup(str(it), (f"partition-{it}",)) for it in range(5)),
        sweep_held="too many" if state is RunState.SWEEPING else None,
        newer="r2",
    )
    busy = JobFacts(queue="sync", abandoned=1, scheduled=1, next_at=NOW, held=1, held_by="rate")
    paused = replace(helpful, queue_paused_at=NOW, jobs=busy, planned=False, failed=0)
    found = [it.command for facts in (helpful, replace(helpful, jobs=busy), paused) for it in why(facts)]

    for command in filter(None, found):
        words = shlex.split(command)
        name = next((it for it in known if words[: len(it.split())] == it.split()), None)
        assert name, command
        accepted = {opt for it in cli_reference.options(known[name]) for opt in it.opts}
        assert {it for it in words if it.startswith("--")} <= accepted, command


# Watch


def test_a_look_prints_every_partition(cli: Cli, app: Stepfast) -> None:
    catalogue(app, table=False)
    app.runs.start("catalogue")
    run_steps(app, 6)

    lines = cli("runs", "watch", "catalogue", "--once").splitlines()

    assert lines[0].startswith("fetching; 0 of 4 partitions; ")
    assert len(lines) == 5
    assert "partition-0" in lines[1]
    look = cli.json("runs", "watch", "catalogue", "--once")
    assert (look["state"], look["partitions"], len(look["changed"])) == ("fetching", 4, 4)


def test_a_watch_ends_with_the_run(cli: Cli, app: Stepfast) -> None:
    catalogue(app)
    run = app.runs.start("catalogue")

    with app.worker():
        lines = cli("runs", "watch", run.id, "--json").splitlines()

    looks = [json.loads(line) for line in lines]
    assert (looks[-1]["state"], looks[-1]["completed"], looks[-1]["rows"]) == ("completed", 4, 103)
    assert {it["number"] for look in looks for it in look["changed"]} == {0, 1, 2, 3}


def test_a_watch_of_a_run_that_fails_ends_with_one(cli: Cli, app: Stepfast) -> None:
    shop = catalogue(app)
    run = failed_run(app, shop, SECOND)

    told = cli("runs", "watch", run.id, code=1)

    assert told.startswith("failed; 3 of 4 partitions, 1 failed; ")
    assert cli.json("runs", "watch", run.id, "--once", code=1)["failed"] == 1


def test_bars_follow_the_partitions(app: Stepfast) -> None:
    shop = catalogue(app, items=300)
    shop.before = broken_at(("page", SECOND, 40))
    run = app.runs.start("catalogue")
    out = io.StringIO()
    screen = Console(file=out, force_terminal=True, width=120, height=30)

    observer = app.runs.observe(run.id)
    with bars(observer, screen) as show, app.worker():
        for progress in observer.watch(poll=0.01, every=0.1):
            show(progress)

    text = out.getvalue()
    assert FIRST in text
    assert "rows/s" in text
    assert f"partition-1 {SECOND} failed" in text
    assert "failed; 3 of 4 partitions, 1 failed" in text


def test_whoever_watches_a_run_that_does_not_move_is_told_why_once(
    app: Stepfast, capsys: pytest.CaptureFixture[str]
) -> None:
    catalogue(app, table=False)
    run = app.runs.start("catalogue")
    observer = app.runs.observe(run.id)
    show = Lines(observer)
    (progress, *_) = islice(observer.watch(), 1)

    for still in (0.0, STILL + 1, STILL + 2, 3 * STILL):
        show(replace(progress, still_for=still))

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("planning; 0 rows")
    assert lines[1:] == ["  no worker is alive for queue default  (stepfast worker MODULE:APP)"]


def test_a_worker_of_the_command_line_watches_over_runs(
    cli: Cli, app: Stepfast, module: str, tmp_path: Path
) -> None:
    """Any worker fails a partition whose job died, and the run ends."""
    (tmp_path / f"{module.partition(':')[0]}.py").write_text(MODULE + REFUSING)
    prepare(app)
    run_id = cli.json("runs", "start", "catalogue", "--app", module)["id"]
    surroundings = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}", "STEPFAST_DATABASE_URL": cli.url}
    worker = subprocess.Popen([sys.executable, "-m", "stepfast", "worker", module], env=surroundings)

    try:
        cli("runs", "watch", run_id, code=1)
    finally:
        worker.terminate()
        worker.wait(rows.PATIENCE)

    assert run_row(app, run_id).failed == 1


def test_without_runs_there_is_nothing_to_show(cli: Cli) -> None:
    assert "there are no runs; begin one with: stepfast runs start FEED" in cli(
        "runs", "show", "latest", code=1
    )


def test_a_partition_has_one_id_in_every_command(cli: Cli, app: Stepfast, here: None) -> None:  # noqa: ARG001
    """What one command prints, another one takes."""
    shop = catalogue(app)
    run = failed_run(app, shop, SECOND)
    (listed,) = cli.json("partitions", "list", "--failed")
    shown = cli.json("runs", "show", run.id)
    looked = json.loads(cli("runs", "watch", run.id, "--once", "--json", code=1))
    planned = cli.json("runs", "plan", "catalogue")

    assert listed["partition_id"] == "partition-1"
    assert shown["errors"][0]["partitions"] == ["partition-1"]
    assert [it["partition_id"] for it in looked["changed"]] == [f"partition-{n}" for n in range(4)]
    assert [it["partition_id"] for it in planned["partitions"]] == [f"partition-{n}" for n in range(4)]
    assert "partition-3" in cli("runs", "plan", "catalogue", "--partitions")
    done = cli.json("runs", "retry", run.id, "--partition", listed["partition_id"])
    assert done["partitions"] == ["partition-1"]


def test_a_run_that_lost_jobs_is_resumed_by_the_command_that_show_names(
    cli: Cli,
    app: Stepfast,
    here: None,  # noqa: ARG001
) -> None:
    catalogue(app)
    run = app.runs.start("catalogue")
    run_steps(app, 1)
    rows.change(app, "DELETE FROM stepfast_job WHERE id = :id", id=partition(app, run.id, 2)["job_id"])
    text = cli("runs", "show", run.id)
    assert (
        "no job reads partition-2; a worker that knows feed catalogue would repair it, but none is alive"
        in text
    )
    assert f"  stepfast runs resume {run.id}" in text

    told = cli("runs", "resume", run.id)

    assert told == f"run {run.id} is fetching: it was fetching; partition-2 is read by new jobs\n"
    assert "it has all its jobs" in cli("runs", "resume", run.id, code=1)
    assert "is running" not in cli("runs", "show", run.id)


def test_the_pages_and_the_phase_of_a_run_are_shown(cli: Cli, app: Stepfast) -> None:
    catalogue(app)
    run = app.runs.start("catalogue")
    while run_row(app, run.id).state != "applying":
        run_steps(app, 1)

    text = cli("runs", "show", run.id)

    assert "95% answered within 0." in text
    assert "phase       validating" in text
    found = cli.json("runs", "show", run.id)
    assert found["phase"] == "validating"
    assert set(found["pages"]) == {
        "pages",
        "p95_seconds",
        "slowest_seconds",
        "slowest_partition",
        "slowest_offset",
    }
