"""Rows that were written by hand, with values that no code of ours writes: reports and commands show them, and all others."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from stepfast import Stepfast
from stepfast.cli.command import app as commands
from stepfast.errors import NotFoundError
from stepfast.telemetry import masking
from tests.support.odd_rows import Written, write_odd_rows

ALL = 10_000  # rows

# Commands that look at rows, with what they are asked for: a table whose ids are shown one by one, or nothing.
LISTS: dict[str, list[list[str]]] = {
    "doctor": [[]],
    "tasks list": [["--limit", str(ALL)]],
    "schedules list": [[], ["--all"]],
    "events list": [["--limit", str(ALL)]],
    "events waits": [["--limit", str(ALL)]],
    "jobs list": [["--limit", str(ALL)]],
    "jobs stats": [["--since", "36500d"]],
    "queues list": [[]],
    "workers list": [["--all"]],
    "limits list": [["--all"]],
    "alerts list": [["--limit", str(ALL)]],
    "audit list": [["--limit", str(ALL)]],
    "dead-letters list": [["--limit", str(ALL)], ["--by-error"]],
    "leases list": [["--limit", str(ALL)]],
    "outbox list": [["--limit", str(ALL)], ["--state", "dead"], ["--state", "waiting"]],
    "outbox destinations": [["--limit", str(ALL)]],
    "runs list": [["--limit", str(ALL)]],
    "partitions list": [["--limit", str(ALL)]],
    "quarantine list": [["--limit", str(ALL), "--all"], ["--group"]],
    "debts list": [["--limit", str(ALL), "--all"]],
    "watermark show": [[]],
    "sweeps list": [["--limit", str(ALL)]],
    "encryption list": [[]],
}
SHOWS: dict[str, tuple[str, str]] = {
    "tasks show": ("stepfast_task", "id"),
    "schedules show": ("stepfast_schedule", "id"),
    "jobs show": ("stepfast_job", "id"),
    "jobs tree": ("stepfast_job", "id"),
    "dead-letters show": ("stepfast_archive", "id"),
    "outbox show": ("stepfast_outbox", "id"),
    "runs show": ("stepfast_run", "id"),
    "quarantine show": ("stepfast_quarantine", "id"),
    "watermark show": ("stepfast_feed", "id"),
}


@pytest.fixture(autouse=True)
def _no_rules_of_others() -> Iterator[None]:
    """Rules hold in the whole process: those of the odd rows must not outlive the test."""
    before = vars(masking._RULES).copy()
    vars(masking._RULES).update(vars(masking.Rules()))
    yield
    vars(masking._RULES).update(before)


@pytest.fixture
def written(app: Stepfast) -> Written:
    return write_odd_rows(app)


def commands_in_the_tree() -> Iterator[str]:
    root: Any = typer.main.get_command(commands)
    for name, command in root.commands.items():
        yield from (f"{name} {it}" for it in command.commands) if hasattr(command, "commands") else [name]


def test_every_command_that_looks_is_tried() -> None:
    looks = {"list", "show", "tree", "stats", "waits", "destinations", "doctor"}

    assert {it for it in commands_in_the_tree() if it.split()[-1] in looks} == LISTS.keys() | SHOWS.keys()


@pytest.mark.usefixtures("written")
def test_no_list_ends_because_of_one_row(database_url: str) -> None:
    failures = []
    for command, variants in LISTS.items():
        for options in variants:
            for form in ([], ["--json"]):
                failures += failed(database_url, [*command.split(), *options, *form])

    assert not failures, "\n".join(failures)


def test_no_row_is_too_odd_to_be_shown(database_url: str, written: Written) -> None:
    """Some of the rows, by the command; all of them are shown by `app.operator` below."""
    failures = []
    for command, (table, column) in SHOWS.items():
        for number, key in enumerate(written.keys(table, column)[::7]):
            form = ["--json"] if number % 2 else []
            failures += failed(database_url, [*command.split(), *form, "--", str(key)])
    for letter in written.keys("stepfast_dead_message")[::7]:
        failures += failed(database_url, ["dead-letters", "show", "--", str(letter)])

    assert not failures, "\n".join(failures)


def failed(database_url: str, words: list[str]) -> list[str]:
    """The command, if it ended in anything but an answer or a sentence."""
    result = CliRunner().invoke(commands, ["--database-url", database_url, *words])
    if result.exception is None or isinstance(result.exception, SystemExit):
        looks_for_one = "show" in words or "tree" in words or "doctor" in words
        if result.exit_code == 0 or (result.exit_code == 1 and looks_for_one):
            return []
        return [f"{' '.join(words)[:200]}: {result.output[-500:]}"]
    text = "".join(traceback.format_exception(result.exception)[-3:])
    return [f"{' '.join(words)[:200]}: {text[-900:]}"]


def test_no_report_fails_because_of_one_row(app: Stepfast) -> None:
    written = write_odd_rows(app)
    operator = app.operator
    reports: dict[str, Callable[[], object]] = {
        "jobs": lambda: operator.jobs(limit=ALL),
        "statistics": lambda: operator.statistics("36500d"),
        "dead letters": lambda: operator.dead_letters(limit=ALL),
        "dead messages": lambda: operator.broker_dead_letters(limit=ALL),
        "failures": lambda: operator.failures(limit=ALL),
        "queues": operator.queues,
        "workers": lambda: operator.workers(everyone=True),
        "leases": lambda: operator.leases(limit=ALL),
        "limits": lambda: operator.limits(everything=True, limit=ALL),
        "waits": lambda: operator.waits(limit=ALL),
        "kept events": lambda: operator.kept_events(limit=ALL),
        "tasks": lambda: operator.tasks(limit=ALL),
        "schedules": lambda: operator.schedules.all(everyone=True),
        "messages": lambda: operator.messages(limit=ALL),
        "destinations": lambda: operator.destinations(limit=ALL),
        "alerts": lambda: operator.alerts(limit=ALL),
        "runs": lambda: operator.runs.list(limit=ALL),
        "partitions": lambda: operator.runs.partitions(limit=ALL),
        "quarantine": lambda: operator.quarantine.entries(everything=True, limit=ALL),
        "watermarks": lambda: operator.watermarks(limit=ALL),
        "debts": lambda: operator.debts(everything=True, limit=ALL),
        "sweeps": lambda: operator.sweeps(limit=ALL),
        "audit": lambda: operator.audit(limit=ALL),
        "encryption keys": operator.encryption_keys,
        "masks": operator.apply_masks,
        "doctor": operator.doctor,
        "metrics": lambda: list(app.metrics().collect()),
    }
    one_by_one: dict[str, tuple[str, Callable[[Any], object]]] = {
        "job": ("stepfast_job", operator.job),
        "ended job": ("stepfast_archive", operator.job),
        "tree": ("stepfast_job", operator.tree),
        "task": ("stepfast_task", operator.task),
        "schedule": ("stepfast_schedule", operator.schedules.show),
        "message": ("stepfast_outbox", operator.message),
        "dead message": ("stepfast_dead_message", operator.dead_letter),
        "run": ("stepfast_run", operator.runs.show),
        "progress of a run": ("stepfast_run", operator.runs.look),
        "entry": ("stepfast_quarantine", operator.quarantine.show),
        "watermark": ("stepfast_feed", operator.watermark),
    }
    for name, (table, report) in one_by_one.items():
        for key in written.keys(table):
            reports[f"{name} {key!r:.80}"] = lambda report=report, key=key: report(key)  # type: ignore[misc]

    failures = {}
    for name, look in reports.items():
        try:
            look()
        except NotFoundError:
            pass  # an id that is empty, or names several
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not come
            failures[name] = "".join(traceback.format_exception(error)[-3:])[-700:]

    assert not failures, "\n".join(f"{name}: {text}" for name, text in failures.items())


def test_one_rule_that_cannot_be_read_hides_no_job(database_url: str, app: Stepfast) -> None:
    with app.transaction() as tx:
        tx.execute("INSERT INTO stepfast_mask (id, seen_at) VALUES ('re:0:(', 1)")

    with closing(Stepfast(database_url)) as other:
        other.operator.apply_masks()
        found = {finding.name: finding for finding in other.operator.doctor()}
    result = CliRunner().invoke(commands, ["--database-url", database_url, "jobs", "list"])

    assert result.exit_code == 0
    assert "re:0:(" in result.stderr
    assert "re:0:(" in found["masks"].found
