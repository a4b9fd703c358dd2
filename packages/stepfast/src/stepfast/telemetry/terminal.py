"""Log lines for a person at a terminal: what each job does, in columns, with a short traceback where it failed.

    14:05:01  send_mail    5d2f09ab  started
    14:05:02  send_mail    5d2f09ab  done in 1.02 s
    14:05:02  charge_card  77e0c1d4  failed on try 1, again in 0.5 s
                           KeyError: 'missing'
                             shop.py:12 in charge_card: total = order["missing"]

Events that a person would not understand by their names are sentences here. When jobs end faster than they can be read,
their lines give way to a summary every few seconds. Machines read other formats (`logs.py`).
"""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from stepfast.clock import short_id, spoken
from stepfast.telemetry.events import LEVELS
from stepfast.telemetry.masking import one_line, visible, without_data
from stepfast.telemetry.sinks import Plain, message_of, sentence

if TYPE_CHECKING:
    from types import TracebackType

    from stepfast.telemetry.logs import Lines

STARTED: Final = "step.started"
TOGETHER: Final = "jobs.acknowledged"  # many steps, committed together ...
EACH: Final = "step.acknowledged"  # ... and each of them, where they are few
FAILED: Final = ("step.failed", "job.died")
COUNTED: Final = (TOGETHER, "step.committed", "job.cancelled", *FAILED)
SHOWN: Final = (STARTED, EACH, "step.logged")  # as long as they can be read
READABLE: Final = 20  # lines of jobs in a second
FAILURES: Final = 5  # of them that are shown, whatever else happens in that second
SUMMARY: Final = 5.0  # seconds between two summaries
SHORTEST: Final = 0.001  # seconds that are told
SILENT: Final = 2.0  # seconds without a job
WIDEST_KIND: Final = 24
FRAMES: Final = 5  # of the user's own code, the last ones
CAUSES: Final = 3
LEFT_OUT: Final = frozenset(
    {"worker_id", "trace_id", "incarnation", "fence", "held_s", "job_id", "kind", "queue", "step", "attempt"}
)

BELOW: Final = "(below)"  # among the facts: a traceback stands below the line

PLAIN, DIM, GREEN, YELLOW, RED, BOLD = "", "2", "32", "33", "31", "1"

Sentence = tuple[str, str]  # its colour, and what it says; nothing: the event is not shown


def show_jobs(*, each: bool = True) -> None:
    """Report the events of jobs, which other formats have at the level debug; unless `each`, only those that are counted."""
    for event in (TOGETHER, "step.committed"):
        LEVELS[event] = logging.INFO
    for event in SHOWN:
        LEVELS[event] = logging.INFO if each else logging.DEBUG


class TerminalHandler(logging.Handler):
    """Writes the log to a terminal."""

    def __init__(self, stream: TextIO, lines: Lines) -> None:
        super().__init__()
        self._stream = stream
        self._lines = lines
        self._paint = _painter(has_colours(stream))
        self._pace = Pace()
        self._summing = False  # lines of jobs give way to summaries

    def emit(self, record: logging.LogRecord) -> None:
        try:
            facts = self._lines.facts(record)
            event = getattr(record, "event", None) if record.name == "stepfast" else None
            if event in COUNTED or event in SHOWN:
                self._emit_job(str(event), facts, record)
            else:
                self._write(self._line(record, event, facts))
        except Exception:  # noqa: BLE001 - as all handlers of logging
            self.handleError(record)

    # Lines of jobs, or summaries of them.

    def _emit_job(self, event: str, facts: Plain, record: logging.LogRecord) -> None:
        self._pace.note(event, str(facts.get("kind", "")), int(facts.get("jobs", 1)))
        if not self._summing and self._pace.is_fast():
            self._summing = True
            show_jobs(each=False)  # a line that is not shown need not be made
            threading.Thread(target=self._summarize, name="stepfast-summary", daemon=True).start()
        shown = self._pace.failures_in_second <= FAILURES if event in FAILED else event != TOGETHER
        if shown and (event in FAILED or not self._summing):
            self._write(self._line(record, event, facts))

    def _summarize(self) -> None:
        """Write a summary every few seconds, until lines can be read again."""
        while self._summing:
            time.sleep(SUMMARY)
            text = self._pace.summary()
            if self._pace.is_slow():
                self._summing = False
                show_jobs()
            with suppress(OSError, ValueError):  # the terminal is gone
                self.acquire()
                try:
                    if text:
                        self._write(self._columns(time.time(), "", "", [(DIM, text)]))
                finally:
                    self.release()

    # One line.

    def _line(self, record: logging.LogRecord, event: str | None, facts: Plain) -> str:
        kind, job_id = str(facts.get("kind", "")), str(facts.get("job_id", ""))
        error = record.exc_info[1] if record.exc_info else None
        if event is None:
            said = [(_colour_of(record.levelno), _own_line(record))]
        else:
            shown = facts if error is None else {**facts, BELOW: 1}
            say = SENTENCES.get(event)
            told = _generic(event, record.levelno, shown) if say is None else say(shown)
            if told is None:
                return ""
            said = [told]
        if error is not None:
            said += short_traceback(error)
        return self._columns(record.created, kind, job_id, said)

    def _columns(self, at: float, kind: str, job_id: str, said: list[Sentence]) -> str:
        width = self._lines.kind_width = min(max(self._lines.kind_width, len(kind)), WIDEST_KIND)
        when = datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
        where = ""
        if kind or job_id:
            where = f"{_cut(one_line(kind), width):<{width}}  {short_id(job_id):<8}  "
        (colour, text), *below = said
        margin = " " * (10 + len(where))
        lines = [self._paint(DIM, when) + "  " + where + self._paint(colour, one_line(text))]
        lines += [margin + self._paint(shade, visible(more)) for shade, more in below]
        return "\n".join(lines) + "\n"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Pace:
    """How many jobs start and end, for the summaries."""

    def __init__(self) -> None:
        self._second = 0
        self._lines = 0  # in this second
        self.failures_in_second = 0
        self._since = time.monotonic()
        self._ended: Counter[str] = Counter()  # by kind
        self._failed = 0

    def note(self, event: str, kind: str, jobs: int) -> None:
        now = int(time.monotonic())
        if now != self._second:
            self._second, self._lines, self.failures_in_second = now, 0, 0
        self._lines += jobs
        if event in COUNTED:
            self._ended[kind] += jobs
            self._failed += event in FAILED
            self.failures_in_second += event in FAILED

    def is_fast(self) -> bool:
        return self._lines > READABLE

    def is_slow(self) -> bool:
        return time.monotonic() - self._second > SILENT or self._lines <= READABLE // 2

    def summary(self) -> str:
        """What was done since the last summary; empty: nothing."""
        now = time.monotonic()
        took, self._since = now - self._since, now
        ended, self._ended = self._ended, Counter()
        failed, self._failed = self._failed, 0
        if not ended:
            return ""
        took = min(took, SUMMARY * 1.5)
        total = ended.total()
        kinds = ", ".join(f"{kind} {number:,}" for kind, number in ended.most_common(3))
        more = f" and {_count(len(ended) - 3, 'other kind')}" if len(ended) > 3 else ""  # noqa: PLR2004 - as above
        trouble = f"; {failed:,} failed" if failed else ""
        return f"{total:,} jobs in {took:.0f} s, {total / took:,.0f} a second ({kinds}{more}){trouble}"


# What events say.


def _seconds(facts: Plain, name: str) -> str:
    value = facts.get(name)
    if value is None:
        return ""
    return "less than 1 ms" if 0 <= float(value) < SHORTEST else spoken(timedelta(seconds=float(value)))


def _count(number: object, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _started(facts: Plain) -> Sentence:
    again = f", try {facts['attempt']}" if int(facts.get("attempt", 1)) > 1 else ""
    step = f", step {int(facts['step']) + 1}" if int(facts.get("step", 0)) else ""
    return DIM, f"started{step}{again}"


OUTCOMES: Final = {
    "done": (GREEN, "done in {took}"),
    "continued": (PLAIN, "step done in {took}, goes on"),
    "snoozed": (DIM, "comes back later; ran for {took}"),
    "waiting": (DIM, "waits for an event; ran for {took}"),
    "returned": (YELLOW, "given back, and runs again"),
}


def _committed(facts: Plain) -> Sentence:
    colour, text = OUTCOMES.get(str(facts.get("outcome", "done")), OUTCOMES["done"])
    return colour, text.format(took=_seconds(facts, "took_s"))


def _failed(facts: Plain) -> Sentence:
    what = "failed" if facts.get("charged", 1) else "crashed"
    again = _seconds(facts, "retry_in_s")
    most = f" of {facts['attempts']}" if "attempts" in facts else ""
    return YELLOW, f"{what} on try {facts.get('attempt', 1)}{most}, again in {again}" + _error(facts)


def _died(facts: Plain) -> Sentence:
    tries = facts.get("attempt", 1)
    many = "1 try" if tries == 1 else f"{tries} tries"
    return (
        RED,
        f"gave up after {many}{_error(facts)}; to run it again: stepfast jobs retry {facts.get('job_id', '')}",
    )


def _error(facts: Plain) -> str:
    """The error, where no traceback stands below the line."""
    if BELOW in facts:
        return ""
    kind, message = facts.get("error_type", ""), facts.get("error_message", "")
    return f": {kind}: {message}" if kind and message else f": {kind or message}" if kind or message else ""


def _recovered(facts: Plain) -> Sentence | None:
    jobs = facts.get("jobs", 0)
    return (YELLOW, f"took back {_count(jobs, 'job')} of workers that are gone") if jobs else None


def _stopping(facts: Plain) -> Sentence:
    if not facts.get("active"):
        return BOLD, "stopping"
    patience = _seconds(facts, "grace_s")
    return BOLD, (
        f"stopping: {_count(facts['active'], 'job')} may finish within {patience}; Ctrl-C again gives them back at once"
    )


def _stopped(facts: Plain) -> Sentence:
    back = facts.get("given_back", 0)
    return BOLD, f"stopped; {_count(back, 'job')} given back, to run again" if back else "stopped"


def _process_ended(facts: Plain) -> Sentence:
    code = int(facts.get("code", 0))
    how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
    wait = float(facts.get("restart_in_s", 0))
    when = f"in {spoken(timedelta(seconds=wait))}" if wait else "now"
    return YELLOW, f"the worker process {how}; another one starts {when}"


def _rescued(facts: Plain) -> Sentence:
    died = f"; {_count(facts['died'], 'job')} gave up" if facts.get("died") else ""
    return YELLOW, f"{_count(facts.get('jobs', 0), 'job')} of a worker that is gone run again{died}"


def _noted(colour: str, text: str) -> Callable[[Plain], Sentence | None]:
    """A sentence with the note and the error of an event behind it."""

    def say(facts: Plain) -> Sentence:
        note = f" ({facts['note']})" if facts.get("note") else ""
        return colour, f"{text}{note}{_error(facts)}"

    return say


def _nothing(_: Plain) -> None:
    return None


SENTENCES: Final[dict[str, Callable[[Plain], Sentence | None]]] = {
    STARTED: _started,
    EACH: _committed,
    "step.committed": _committed,
    "step.logged": lambda facts: (PLAIN, f"│ {facts.get('text', '')}"),
    "step.failed": _failed,
    "job.died": _died,
    "job.cancelled": lambda facts: (YELLOW, f"cancelled: {facts.get('reason', '')}"),
    "step.timed-out": lambda _: (YELLOW, "ran longer than its timeout"),
    "step.refused": lambda _: (YELLOW, "another worker has taken this job over; nothing was written"),
    "slot.lost": lambda _: (RED, "ignores its timeout, and cannot be stopped: the worker starts again soon"),
    "kind.unknown": lambda _: (YELLOW, "this worker has no handler for it; it waits for one that has"),
    "worker.started": lambda _: (GREEN, "ready"),
    "worker.recovered": _recovered,
    "worker.stopping": _stopping,
    "worker.stopped": _stopped,
    "worker.ended": _process_ended,
    "worker.declared-dead": _nothing,  # what follows from it is told
    "worker.killed": lambda _: (
        RED,
        "a job ran past its timeout and kept the whole process: the process was killed",
    ),
    "guardian.vouched": lambda _: (
        YELLOW,
        "a handler keeps the interpreter, so that nothing else runs; its guardian keeps the jobs of the worker",
    ),
    "guardian.lost": _noted(YELLOW, "the guardian process is gone"),
    "incarnation.replaced": lambda _: (
        YELLOW,
        "this worker was silent for so long that its jobs were given to others; it goes on with new ones",
    ),
    "heartbeat.failed": _noted(YELLOW, "the database does not answer the heartbeat; no new jobs are taken"),
    "heartbeat.recovered": _noted(GREEN, "the heartbeat gets through again"),
    "jobs.rescued": _rescued,
    "database.lost": _noted(RED, "the database is away"),
    "database.recovered": _noted(GREEN, "the database is back"),
    "tick.fired": lambda facts: (
        PLAIN,
        f"schedule {facts.get('schedule')} is due: job {short_id(str(facts.get('job_id', '')))}",
    ),
    "schedule.declared": lambda facts: (DIM, f"schedule {facts.get('schedule')} is stored"),
    "metrics.served": lambda facts: (
        DIM,
        f"metrics: http://{facts.get('host')}:{facts.get('port')}/metrics",
    ),
    "queues.unserved": _noted(YELLOW, "jobs wait in queues that no worker serves"),
    "kinds.missing": _noted(YELLOW, "this application has no jobs"),
    "archive.pruned": _nothing,
    "results.expired": _nothing,
    "outbox.pruned": _nothing,
}


def _generic(event: str, level: int, facts: Plain) -> Sentence:
    """Any other event: its name and its fields."""
    rest = {name: value for name, value in facts.items() if name not in LEFT_OUT}
    return _colour_of(level), f"{event} {sentence(rest)}".rstrip()


def _own_line(record: logging.LogRecord) -> str:
    """A line of the user's, or of a library."""
    level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
    return f"│ {level}{without_data(record.getMessage())}"


def _colour_of(level: int) -> str:
    if level >= logging.ERROR:
        return RED
    return YELLOW if level >= logging.WARNING else PLAIN if level >= logging.INFO else DIM


# Tracebacks: the user's own frames.

_OURS: Final = str(Path(__file__).resolve().parents[1])
_LIBRARIES: Final = (
    _OURS,
    *(str(Path(sysconfig.get_path(it)).resolve()) for it in ("stdlib", "platstdlib", "purelib", "platlib")),
)


def short_traceback(error: BaseException) -> list[Sentence]:
    """The error and its causes, each with the frames of the user's own code, or else the last frame of all."""
    said: list[Sentence] = []
    seen: BaseException | None = error
    for number in range(CAUSES):
        if seen is None:
            break
        name = type(seen).__qualname__
        message = one_line(without_data(message_of(seen)))
        said.append((RED, f"{'caused by ' if number else ''}{name}{': ' if message else ''}{message}"))
        said += [(DIM, f"  {line}") for line in _frames(seen.__traceback__)]
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return said


def _frames(trace: TracebackType | None) -> list[str]:
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if not is_library(frame.filename)]
    shown = own[-FRAMES:]
    if frames and is_library(frames[-1].filename) and not is_ours(frames[-1].filename):
        shown.append(frames[-1])  # where the library met it
    return [
        one_line(without_data(f"{_path(it.filename)}:{it.lineno} in {it.name}: {it.line or ''}"))
        for it in shown
    ]


def is_library(filename: str) -> bool:
    """Whether the file is of the standard library, an installed package or Stepfast."""
    return filename.startswith("<") or str(Path(filename).resolve()).startswith(_LIBRARIES)


def is_ours(filename: str) -> bool:
    """Whether the file is of Stepfast."""
    return str(Path(filename).resolve()).startswith(_OURS)


def _path(filename: str) -> str:
    """As short as it can be opened."""
    with suppress(ValueError):
        return str(Path(filename).resolve().relative_to(Path.cwd()))
    return filename


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def say_banner(title: str, facts: Mapping[str, str | None], last: str) -> None:
    """What a program is and what it works on, before its first line; facts that are None are left out."""
    paint = _painter(has_colours(sys.stderr))
    width = max(len(name) for name in facts)
    lines = [paint(BOLD, title)]
    lines += [
        f"  {paint(DIM, f'{name:<{width}}')}  {one_line(value)}"
        for name, value in facts.items()
        if value is not None
    ]
    with suppress(OSError, ValueError):  # nobody reads it
        sys.stderr.write("\n".join([*lines, paint(DIM, last), "", ""]))
        sys.stderr.flush()


def _painter(colours: bool) -> Callable[[str, str], str]:  # noqa: FBT001 - whether there are any
    return lambda colour, text: f"\x1b[{colour}m{text}\x1b[0m" if colours and colour else text


def has_colours(stream: TextIO) -> bool:
    """Whether the stream is a terminal that shows colours, and nobody wants it otherwise."""
    if "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty() or "FORCE_COLOR" in os.environ


def is_terminal() -> bool:
    """Whether a person reads stderr."""
    return bool(sys.stderr is not None and sys.stderr.isatty())
