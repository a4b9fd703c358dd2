"""Log lines of `stepfast worker`: the same fields with structlog and without."""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any, Self

import pytest

from stepfast.errors import ConfigurationError
from stepfast.jobs.lease import Lease
from stepfast.telemetry import happened
from stepfast.telemetry.current_step import CURRENT
from stepfast.telemetry.logs import (
    ConsoleFormatter,
    JsonFormatter,
    Lines,
    configure,
    formatter,
    leave_out_others,
)

LEASE = Lease(
    "01a1df83-8d5c-7000-8000-5a706572814f",
    "greet",
    "mail",
    0,
    0,
    2,
    1,
    0,
    None,
    None,
    '{"pin": "hunter2"}',
    9,
)


@pytest.fixture(params=["structlog", "alone"])
def made_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the extra, and as if it were not installed."""
    if request.param == "alone":
        monkeypatch.setitem(sys.modules, "structlog", None)
    return str(request.param)


class Printed:
    """What was printed, line by line."""

    def __init__(self, style: str, lines: Lines | None = None) -> None:
        self.lines = lines or Lines()
        self._formatter = formatter(style, self.lines)
        self._handler = logging.Handler()
        self._handler.emit = self._keep  # type: ignore[method-assign]
        self._said: list[str] = []

    def _keep(self, record: logging.LogRecord) -> None:
        self._said.append(self._formatter.format(record))

    def __enter__(self) -> Self:
        for name in ("stepfast", "shop"):
            logging.getLogger(name).addHandler(self._handler)
            logging.getLogger(name).setLevel(logging.DEBUG)
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("stepfast", "shop"):
            logging.getLogger(name).removeHandler(self._handler)
            logging.getLogger(name).setLevel(logging.NOTSET)

    @property
    def line(self) -> str:
        (line,) = self._said
        return line

    @property
    def entry(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.line)
        return found


def test_the_extra_is_used_where_it_is_installed(made_by: str) -> None:
    made = {type(formatter(style, Lines())).__name__ for style in ("json", "console")}

    assert made == (
        {"ProcessorFormatter"} if made_by == "structlog" else {"JsonFormatter", "ConsoleFormatter"}
    )


def test_an_error_carries_its_type_its_message_and_whose_it_is(made_by: str) -> None:
    assert made_by
    with Printed("json") as printed:
        happened(
            "step.failed",
            LEASE,
            error=ValueError("no"),
            worker_id="w-1",
            run_id="r-7",
            partition_id="p-1",
            note=None,
        )

    entry = printed.entry
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", entry.pop("timestamp"))
    assert entry == {
        "level": "warning",
        "event": "step.failed",
        "logger": "stepfast",
        "jobId": LEASE.job_id,
        "kind": "greet",
        "queue": "mail",
        "step": 2,
        "attempt": 2,
        "traceId": "01a1df838d5c700080005a706572814f",
        "errorType": "ValueError",
        "errorMessage": "no",
        "workerId": "w-1",
        "runId": "r-7",
        "partitionId": "p-1",
    }


def test_what_is_absent_is_left_out(made_by: str) -> None:
    assert made_by
    with Printed("json") as printed:
        happened("database.lost", error=OSError("gone"))

    assert set(printed.entry) == {"timestamp", "level", "event", "logger", "errorType", "errorMessage"}


def test_a_process_with_one_worker_names_it_in_every_line(made_by: str) -> None:
    assert made_by
    with Printed("json") as printed:
        printed.lines.worker_id = "w-1"
        happened("database.lost", error=OSError("gone"))

    assert printed.entry["workerId"] == "w-1"


def test_the_name_of_a_dead_worker_is_not_taken_for_the_reporters(made_by: str) -> None:
    assert made_by
    with Printed("json") as printed:
        printed.lines.worker_id = "w-1"
        happened("worker.declared-dead", dead_worker_id="w-2", incarnation=3)

    assert (printed.entry["workerId"], printed.entry["deadWorkerId"]) == ("w-1", "w-2")


def test_a_line_of_the_users_handler_belongs_to_its_step(made_by: str) -> None:
    assert made_by
    before = CURRENT.set(LEASE)
    try:
        with Printed("json") as printed:
            logging.getLogger("shop").info("sold %d", 3, extra={"order_id": "A-17", "things": [1]})
    finally:
        CURRENT.reset(before)

    entry = printed.entry
    assert (entry["event"], entry["level"], entry["logger"]) == ("sold 3", "info", "shop")
    assert (entry["jobId"], entry["traceId"]) == (LEASE.job_id, "01a1df838d5c700080005a706572814f")
    assert entry["orderId"] == "A-17"
    assert "hunter2" not in printed.line
    assert "things" not in entry


def test_a_traceback_is_one_field_without_local_variables(made_by: str) -> None:
    assert made_by
    pin = "hunter2"
    with Printed("json") as printed:
        try:
            raise LookupError(f"password={pin}")  # noqa: TRY301 - to be caught here
        except LookupError:
            logging.getLogger("shop").exception("oops")

    entry = printed.entry
    assert (entry["errorType"], entry["errorMessage"]) == ("LookupError", "password=***")
    assert "Traceback (most recent call last)" in entry["exception"]
    assert "hunter2" not in printed.line


@pytest.mark.parametrize("style", ["json", "console"])
@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:hunter2@db/x",
        "api_key=hunter2",
        "Bearer hunter2hunter2",
        "[type=int, input_value='hunter2', input_type=str]",
        "DETAIL:  Failing row contains (hunter2).",
    ],
)
def test_no_secret_and_no_data_gets_into_a_line(style: str, text: str, made_by: str) -> None:
    assert made_by
    with Printed(style) as ours:
        happened("step.failed", LEASE, error=ValueError(text))
    with Printed(style) as users:
        logging.getLogger("shop").warning("failed: %s", text, extra={"why": text})

    assert "hunter2" not in ours.line + users.line
    assert "***" in ours.line
    assert "***" in users.line


def test_for_people_a_line_is_one_line(made_by: str) -> None:
    with Printed("console") as printed:
        happened("step.failed", LEASE, error=ValueError("no"), retry_in_s=1.5)

    line = printed.line
    assert "\n" not in line
    assert "\x1b[" not in line, "no colours where nobody looks at a terminal"
    for words in (f"step.failed job_id={LEASE.job_id}", "retry_in_s=1.5"):
        assert words in line
    assert "[warning" in line if made_by == "structlog" else "WARNING" in line


EVIL = "no\r\n2026-11-16T00:00:00Z [info     ] worker.stopped  forged=1\x1b[2J\x1b]0;title\x07\u202e\x9b31m\u2028z"


def test_no_text_makes_a_line_of_its_own_or_paints_the_terminal(made_by: str) -> None:
    assert made_by
    with Printed("console") as ours:
        happened("step.failed", LEASE._replace(kind=f"kind\n{EVIL}"), error=ValueError(EVIL))
    with Printed("console") as users:
        logging.getLogger("shop").warning("saw %s", EVIL, extra={"why": EVIL})

    for line in (ours.line, users.line):
        assert line.isprintable()
        assert r"no\x0d\n2026" in line.replace("\\\\", "\\")
        assert r"\x1b[2J" in line.replace("\\\\", "\\")


def test_a_traceback_is_indented_so_that_none_of_its_lines_looks_like_an_entry(made_by: str) -> None:
    assert made_by
    with Printed("console") as printed:
        try:
            raise LookupError(EVIL)  # noqa: TRY301 - to be caught here
        except LookupError:
            logging.getLogger("shop").exception("oops")

    first, *below = printed.line.split("\n")
    assert "oops" in first
    assert any("LookupError: no" in line for line in below)
    assert [line for line in below if not line.startswith("  ")] == []
    assert [line for line in below if not line.isprintable()] == []


def test_json_lines_hold_no_character_that_a_terminal_obeys(made_by: str) -> None:
    assert made_by
    with Printed("json") as printed:
        happened("worker.failed", error=ValueError(f"{EVIL}\x7f"))

    assert printed.line.isprintable()
    assert printed.entry["errorMessage"] == f"{EVIL}\x7f"


def test_odd_characters_survive(made_by: str) -> None:
    assert made_by
    with Printed("json") as printed:
        happened("worker.failed", error=ValueError("naïve \0 \udc80 🙂\nsecond"))

    assert printed.entry["errorMessage"] == "naïve \\0 \\udc80 🙂\nsecond"
    assert "\n" not in printed.line


@pytest.mark.parametrize(
    ("style", "level", "complaint"),
    [
        ("xml", "info", "log format 'xml': use auto, terminal, console or json"),
        ("json", "loud", "log level 'loud': use debug, info, warning or error"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(style: str, level: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        configure(style, level)


def test_a_program_that_has_set_up_logging_keeps_its_way() -> None:
    before = list(logging.getLogger().handlers)
    assert before, "pytest's own"

    configure("json", "debug")

    assert logging.getLogger().handlers == before


def test_both_formatters_tell_the_same() -> None:
    record = logging.makeLogRecord(
        {
            "name": "stepfast",
            "msg": "x",
            "levelno": 20,
            "levelname": "INFO",
            "event": "worker.started",
            "facts": {"jobs": 1},
        }
    )

    assert json.loads(JsonFormatter(Lines()).format(record)) == json.loads(
        formatter("json", Lines()).format(record)
    )
    assert ConsoleFormatter(Lines()).format(record).endswith(" INFO    worker.started jobs=1")


def test_a_user_of_structlog_gets_the_same_lines() -> None:
    import structlog

    with Printed("json") as printed:
        shop = structlog.wrap_logger(
            logging.getLogger("shop"),
            processors=[structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
            wrapper_class=structlog.stdlib.BoundLogger,
        )
        shop.warning("sold", order_id="A-17")

    entry = printed.entry
    assert (entry["event"], entry["level"], entry["logger"], entry["orderId"]) == (
        "sold",
        "warning",
        "shop",
        "A-17",
    )


def test_a_line_per_request_is_shown_to_nobody_who_did_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    monkeypatch.setattr(logging.getLogger("azure"), "level", logging.NOTSET)

    configure("console", "info")

    assert not logging.getLogger("azure.core.pipeline").isEnabledFor(logging.INFO)


def test_where_no_log_is_printed_python_prints_none_for_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (None, "azure"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    identity = logging.getLogger("azure.identity")
    identity.warning("failed to retrieve a token")
    assert "failed" in capsys.readouterr().err

    leave_out_others()
    identity.warning("failed to retrieve a token")

    assert capsys.readouterr().err == ""
