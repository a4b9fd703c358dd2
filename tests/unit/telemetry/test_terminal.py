"""Log lines for a person at a terminal."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from stepfast.telemetry import happened
from stepfast.telemetry.events import LEVELS
from stepfast.telemetry.logs import Lines, chosen_format
from stepfast.telemetry.terminal import Pace, TerminalHandler, has_colours, short_traceback, show_jobs

JOB = "01a1ef2c-31d7-7000-8000-99ee4e025cac"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """What a person sees."""
    monkeypatch.setenv("NO_COLOR", "1")
    shown, before, log = Terminal(), dict(LEVELS), logging.getLogger("stepfast")
    handler, level = TerminalHandler(shown, Lines()), log.level
    show_jobs()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield shown
    log.removeHandler(handler)
    log.setLevel(level)
    LEVELS.update(before)


def tell(event: str, raised: BaseException | None = None, /, **facts: Any) -> None:
    happened(event, None, raised, job_id=JOB, kind="send_mail", **facts)


def texts(screen: Terminal) -> list[str]:
    """The lines, without the time."""
    return [line[10:] for line in screen.getvalue().splitlines()]


def test_a_job_has_a_line_when_it_starts_and_one_when_it_ends(screen: Terminal) -> None:
    tell("step.started", attempt=1, step=0)
    tell("step.committed", outcome="done", took_s=3.0, held_s=2.0, fence=7)

    assert texts(screen) == ["send_mail  4e025cac  started", "send_mail  4e025cac  done in 3 s"]


def test_a_failure_shows_the_frames_of_the_user_and_when_it_is_tried_again(screen: Terminal) -> None:
    try:
        _charge({})
    except KeyError as raised:
        error = raised

    tell("step.failed", error, attempt=1, attempts=3, charged=1, retry_in_s=0.5, error_type="KeyError")

    first, second, *frames = texts(screen)
    assert first == "send_mail  4e025cac  failed on try 1 of 3, again in 500 ms"
    assert second.strip() == "KeyError: 'total'"
    assert [frame.strip().rpartition(":")[2].strip() for frame in frames] == [
        "_charge({})",
        'return int(order["total"])',
    ]


def _charge(order: dict[str, int]) -> int:
    return int(order["total"])


def test_of_an_error_inside_a_library_the_last_frame_is_shown_too() -> None:
    import json

    try:
        json.loads("{")
    except ValueError as raised:
        error = raised

    lines = [line for _, line in short_traceback(error)]

    assert lines[0].startswith("JSONDecodeError: Expecting property name")
    assert 'json.loads("{")' in lines[1]
    assert "decoder.py" in lines[2]
    assert len(lines) == 3


def test_causes_are_shown_and_secrets_are_not() -> None:
    error = RuntimeError("cannot charge")
    error.__cause__ = OSError("postgresql://me:hunter2@db/shop refused")

    text = "\n".join(line for _, line in short_traceback(error))

    assert "RuntimeError: cannot charge" in text
    assert "caused by OSError: " in text
    assert "hunter2" not in text


def test_a_dead_letter_names_the_command_that_runs_it_again(screen: Terminal) -> None:
    tell("job.died", attempt=3, error_type="Rejected", error="no such customer")

    assert texts(screen) == [
        "send_mail  4e025cac  gave up after 3 tries: Rejected: no such customer; to run it again: stepfast jobs retry "
        + JOB
    ]


def test_a_stop_says_what_is_waited_for_and_what_the_next_signal_does(screen: Terminal) -> None:
    happened("worker.stopping", worker_id="w", active=2, grace_s=30.0)

    assert texts(screen) == ["stopping: 2 jobs may finish within 30 s; Ctrl-C again gives them back at once"]


def test_nothing_is_said_about_nothing(screen: Terminal) -> None:
    happened("worker.recovered", worker_id="w", jobs=0, note="Reset 0 expired leases on startup")

    assert screen.getvalue() == ""


def test_an_event_without_a_sentence_is_shown_by_its_name(screen: Terminal) -> None:
    happened("run.planned", feed="catalogue", run_id="r", trace_id="t", partitions=4, rows=40, debts=0)

    assert texts(screen) == ["run.planned feed=catalogue run_id=r partitions=4 rows=40 debts=0"]


def test_a_text_cannot_look_like_another_line_or_paint_the_terminal(screen: Terminal) -> None:
    tell("step.logged", text="one\n15:00:00  fake  line\x1b[31m")

    (line,) = texts(screen)
    assert "\x1b" not in line


def test_lines_of_the_user_belong_to_their_step(screen: Terminal) -> None:
    logger = logging.getLogger("shop")
    handler = logging.getLogger("stepfast").handlers[-1]
    logger.addHandler(handler)
    try:
        logger.warning("the card is old")
    finally:
        logger.removeHandler(handler)

    assert texts(screen) == ["│ warning: the card is old"]


def test_when_jobs_end_faster_than_they_can_be_read_they_are_summed_up(
    screen: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfast.telemetry.terminal.SUMMARY", 600.0)
    happened("jobs.acknowledged", kind="tiny", jobs=500, took_s=[0.1], held_s=[0.1])
    tell("step.started", attempt=1, step=0)
    tell("step.failed", attempt=1, attempts=3, charged=1, retry_in_s=0.5, error_type="KeyError", error="x")

    (line,) = texts(screen)
    assert "failed on try 1 of 3" in line
    assert LEVELS["step.started"] == logging.DEBUG


def test_a_summary_counts_by_kind() -> None:
    pace = Pace()
    for kind, jobs in (("tiny", 500), ("mail", 3), ("pdf", 2), ("report", 1)):
        pace.note("jobs.acknowledged", kind, jobs)
    pace.note("job.died", "pdf", 1)
    pace._since -= 5.0

    assert pace.is_fast()
    assert pace.summary() == (
        "507 jobs in 5 s, 101 a second (tiny 500, mail 3, pdf 3 and 1 other kind); 1 failed"
    )
    assert pace.summary() == ""


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_are_left_out_where_they_are_not_wanted(
    environment: dict[str, str],
    coloured: bool,  # noqa: FBT001 - a parameter of the test
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NO_COLOR", "TERM", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert has_colours(Terminal()) is coloured
    assert not has_colours(io.StringIO())


def test_auto_is_for_people_only_where_one_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    at_terminal = chosen_format("auto")
    monkeypatch.setattr("sys.stderr", io.StringIO())

    assert (at_terminal, chosen_format("auto"), chosen_format("json")) == ("terminal", "console", "json")
