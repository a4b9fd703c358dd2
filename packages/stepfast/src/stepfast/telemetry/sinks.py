"""Hand events to their listeners: the log always, other sinks for the events they ask for.

Measured: an event without a listener costs 0.3 µs; one of a step that metrics want 7 µs; asking `wanted` 0.2 µs. So code
that would have to build its fields asks first, and events of every job are reported once per batch: with metrics that is
0.5 µs a job.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from stepfast.telemetry.events import LEVELS
from stepfast.telemetry.masking import HIDDEN, hides, one_line, storable, without_data

Fact = str | float | int | BaseException | Sequence[float] | None
Plain = dict[str, str | float | int]

DEEPEST_CAUSE: Final = 20
LONGEST: Final = 2_000  # characters of one field in a log
_WORD: Final = re.compile(r"_([a-z0-9])")
Sink = Callable[[str, Mapping[str, Fact]], None]

_log: Final = logging.getLogger("stepfast")
_sinks: Final[dict[str, tuple[Sink, ...]]] = {}  # by event
_failed: Final[set[Sink]] = set()


class Subject(Protocol):
    """What an event may be about: an object that knows its own fields, and is asked only if there is a listener."""

    def facts(self) -> dict[str, Fact]: ...


def happened(
    event: str, about: Subject | None = None, exception: BaseException | None = None, /, **facts: Fact
) -> None:
    """Report an event, with the ids that let a reader follow one job. Never raises.

    The log record carries the exception with its traceback, as Sentry and its like expect it.
    """
    sinks = _sinks.get(event)
    level = LEVELS.get(event, logging.INFO)
    logged = _log.isEnabledFor(level)
    if not sinks and not logged:
        return
    if about is not None:
        facts = about.facts() | facts
    for sink in sinks or ():
        try:
            sink(event, facts)
        except Exception:  # noqa: BLE001 - whatever a listener meets, the work goes on
            if sink not in _failed:
                _failed.add(sink)  # once is enough: events come by the thousand
                _log.exception("a listener failed at %s", event)
    if logged:
        shown = plain(facts)
        _log.log(
            level,
            "%s %s",
            event,
            sentence(shown),
            exc_info=None if exception is None else loggable(exception),
            extra={"event": event, "facts": shown},
        )


class Committing(Protocol):
    """A transaction that calls a function once it is committed."""

    def after_commit(self, act: Callable[[], None], /) -> None: ...


def when_committed(tx: Committing, event: str, about: Subject | None = None, /, **facts: Fact) -> None:
    """Report an event of an open transaction: once it is committed, and not at all if it never is."""
    if wanted(event):
        tx.after_commit(partial(happened, event, about, **facts))


def wanted(event: str) -> bool:
    """Whether the event has a listener or would be logged."""
    return event in _sinks or _log.isEnabledFor(LEVELS.get(event, logging.INFO))


def listen(sink: Sink, events: Iterable[str]) -> None:
    """Call `sink` for these events of this process, on the thread that reports them."""
    for event in events:
        _sinks[event] = (*_sinks.get(event, ()), sink)


def unlisten(sink: Sink) -> None:
    for event, sinks in list(_sinks.items()):
        left = tuple(other for other in sinks if other != sink)
        if left:
            _sinks[event] = left
        else:
            del _sinks[event]


# The fields of an event as a log shows them: short, and without secrets.


def plain(facts: Mapping[str, Fact]) -> Plain:
    """The fields as texts and numbers: an error becomes its type and its message, many samples their largest."""
    found: Plain = {}
    for name, value in facts.items():
        match value:
            case None:
                continue
            case _ if hides(name):
                found[name] = HIDDEN
            case bool():
                found[name] = int(value)
            case int():
                found[name] = value
            case float():
                found[name] = round(value, 6)
            case BaseException():
                found |= {"error_type": type(value).__qualname__, "error_message": _text(message_of(value))}
            case str():
                found["error_message" if name == "error" else name] = _text(value)
            case _:
                if value:
                    found[name] = round(max(value), 6)
    return found


def message_of(error: BaseException) -> str:
    """The text of an error, also if reading it raises: a failure must be written."""
    try:
        return str(error).strip()
    except Exception:  # noqa: BLE001 - somebody else's __str__
        return "(its text could not be read)"


def loggable(error: BaseException) -> BaseException:
    """The exception as a log may show it: itself, or a copy of the same name if a text of it holds a secret or half a character."""
    seen: BaseException | None = error
    for _ in range(DEEPEST_CAUSE):
        if seen is None:
            return error
        texts = [message_of(seen), *getattr(seen, "__notes__", ())]
        if any(_clean(it) != it for it in texts):
            break
        seen = seen.__cause__ or seen.__context__
    return _copy(error, DEEPEST_CAUSE)


def _copy(error: BaseException, depth: int) -> BaseException:
    kind = type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    copy: BaseException = type(kind.__name__, (Exception,), names)(_clean(message_of(error)))
    copy.__traceback__ = error.__traceback__
    for note in getattr(error, "__notes__", ()):
        copy.add_note(_clean(note))
    if depth and error.__cause__ is not None:
        copy.__cause__ = _copy(error.__cause__, depth - 1)
    elif depth and error.__context__ is not None and not error.__suppress_context__:
        copy.__context__ = _copy(error.__context__, depth - 1)
    return copy


def _clean(text: str) -> str:
    return storable(without_data(text))


def sentence(facts: Plain) -> str:
    """The fields in one line for people: name=value. What would end the line or paint a terminal is spelled out."""
    shown = dict(facts)
    if (kind := shown.pop("error_type", None)) is not None:
        message = shown.pop("error_message", "")
        shown["error"] = f"{kind}: {message}" if message else kind
    elif "error_message" in shown:
        shown["error"] = shown.pop("error_message")
    return one_line(" ".join(f"{name}={value}" for name, value in shown.items()))


def camel(name: str) -> str:
    """A name as JSON logs have it: worker_id is workerId."""
    return _WORD.sub(lambda found: found[1].upper(), name)


def _text(value: str) -> str:
    # Cut late: a secret must not lose its end before it is seen.
    return without_data(value[: 2 * LONGEST])[:LONGEST]
