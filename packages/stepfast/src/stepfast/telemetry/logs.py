"""Log lines: for a person at a terminal (`terminal.py`), as name=value (console), or as JSON. Only `stepfast worker` prints any.

A library leaves logging to its program: an embedded worker writes to the logger `stepfast`, with `event` and `facts`
on each record, and that is all. With the extra `telemetry` the lines are made by structlog; without it they are made
here, with the same fields.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from stepfast.errors import ConfigurationError
from stepfast.telemetry.masking import json_visible, one_line, visible, without_data
from stepfast.telemetry.sinks import Plain, camel, plain, sentence
from stepfast.telemetry.terminal import TerminalHandler, is_terminal, show_jobs
from stepfast.telemetry.traces import current_facts

if TYPE_CHECKING:
    from collections.abc import MutableMapping


FORMATS: Final = ("auto", "terminal", "console", "json")
BELOW: Final = ("exception", "stack")  # fields that stand below their line
_KNOWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "event", "facts"}


class Lines:
    """The event and the fields of a log line, ours or the user's."""

    def __init__(self) -> None:
        self.worker_id: str | None = None  # of the worker in this process, once there is one
        self.kind_width = 8  # of the column on a terminal

    def facts(self, record: logging.LogRecord) -> Plain:
        """Our events bring their fields; a line of the user's belongs to the step that it is written in."""
        own: Plain | None = getattr(record, "facts", None) if record.name == "stepfast" else None
        found = current_facts() | _extras(record) if own is None else dict(own)
        if self.worker_id is not None:
            found.setdefault("worker_id", self.worker_id)
        return found

    def event(self, record: logging.LogRecord, message: str) -> str:
        event = getattr(record, "event", None) if record.name == "stepfast" else None
        return str(event) if event is not None else without_data(message)

    def entry(self, record: logging.LogRecord, message: str) -> dict[str, Any]:
        """All fields of a line, in the order in which they are read."""
        entry: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": self.event(record, message),
            "logger": record.name,
        } | self.facts(record)
        if record.exc_info and record.exc_info[0] is not None:
            entry.setdefault("error_type", record.exc_info[0].__qualname__)
            entry.setdefault("error_message", without_data(str(record.exc_info[1])))
            entry["exception"] = without_data(logging.Formatter().formatException(record.exc_info))
        return entry


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with the field names that machines expect: jobId, errorType."""

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        entry = _camelled(None, "", self._lines.entry(record, record.getMessage()))
        return _as_json(entry)


class ConsoleFormatter(logging.Formatter):
    """One line for people, and the traceback indented below it: no text of others looks like a line of ours."""

    def __init__(self, lines: Lines) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        line = logging.makeLogRecord(vars(record))
        event, facts = self._lines.event(record, record.getMessage()), self._lines.facts(record)
        line.msg = f"{one_line(event)} {sentence(facts)}".rstrip()
        line.args = ()
        line.exc_text = None  # another formatter may have left it there
        return super().format(line)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's own name
        return _indented(without_data(super().formatException(ei)))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging's own name
        return _indented(without_data(stack_info))


# A line per request, with its address; shown with --log-level debug.
TALKATIVE: Final = ("httpx", "httpcore", "azure", "uamqp")
_NOWHERE: Final = logging.NullHandler()


def configure(style: str, level: str) -> Lines:
    """Print the log of this process to stderr, unless its program has set up logging before."""
    open_missing_streams()
    least = known_level(level)
    lines = Lines()
    handler: logging.Handler
    if chosen_format(style) == "terminal":
        handler = TerminalHandler(sys.stderr, lines)
        show_jobs()
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(formatter(chosen_format(style), lines))
    logging.basicConfig(level=least, handlers=[handler])
    if least > logging.DEBUG:
        for name in TALKATIVE:
            logging.getLogger(name).setLevel(max(logging.WARNING, least))
    return lines


def open_missing_streams() -> None:
    """Let standard streams that are closed lead nowhere, as those of a daemon that nobody redirected.

    Otherwise the next file or socket that is opened gets their number, and with it what is meant for them.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            os.set_inheritable(opened, True)  # noqa: FBT003 - children need it, too
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: PTH123, SIM115 - for as long as the process lives


def leave_out_others() -> None:
    """For commands that print no log: keep Python from printing warnings of libraries, which we report ourselves."""
    for name in TALKATIVE:
        logging.getLogger(name).addHandler(_NOWHERE)


def known_level(level: str) -> int:
    """The number of a log level; raises if there is no such level."""
    known = logging.getLevelNamesMapping()
    if level.upper() not in known:
        raise ConfigurationError(f"log level {level!r}: use debug, info, warning or error")
    return known[level.upper()]


def chosen_format(style: str) -> str:
    """The log format: `auto` is `terminal` where a person reads stderr, else `console`. Raises if there is none of this name."""
    if style not in FORMATS:
        raise ConfigurationError(f"log format {style!r}: use {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if style != "auto":
        return style
    return "terminal" if is_terminal() else "console"


def formatter(style: str, lines: Lines) -> logging.Formatter:
    try:
        import structlog
    except ImportError:  # not installed: our own formatters write the fields
        return JsonFormatter(lines) if style == "json" else ConsoleFormatter(lines)

    def read(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return lines.entry(event["_record"], event["event"])

    def read_own(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if "_record" not in event:
            return event
        fields = {name: value for name, value in event.items() if not name.startswith("_")}
        return lines.entry(event["_record"], str(fields.pop("event", ""))) | fields

    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty() and "NO_COLOR" not in os.environ,
        sort_keys=False,
        pad_event_to=0,
        exception_formatter=structlog.dev.plain_traceback,  # the other one shows local variables
    )
    as_json = [_camelled, structlog.processors.JSONRenderer(serializer=_as_json)]
    last: list[Any] = as_json if style == "json" else [_for_people, console]
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=[read], processors=[read_own, *last])


def _for_people(_: Any, __: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    shown = {name: value for name, value in entry.items() if name != "logger" or value != "stepfast"}
    for name, value in shown.items():
        if isinstance(value, str):
            shown[name] = _indented(value) if name in BELOW else one_line(value)
    return shown


def _as_json(entry: Any, **_: Any) -> str:
    return json_visible(json.dumps(entry, default=str, ensure_ascii=False))


def _indented(text: str) -> str:
    """The lines of a traceback, which may quote anything, so that none of them looks like a line of the log."""
    return "\n".join(f"  {line}" for line in visible(text).split("\n"))


def _camelled(_: Any, __: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {camel(name): value for name, value in entry.items()}


def _extras(record: logging.LogRecord) -> Plain:
    """What a user gave by `extra=`: texts and numbers."""
    given = {
        name: value
        for name, value in vars(record).items()
        if name not in _KNOWN and not name.startswith("_") and isinstance(value, str | int | float)
    }
    return plain(given)
