"""The fields of an event, as a log shows them: short, without secrets, and nothing that is not there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from stepfast.telemetry.masking import HIDDEN, hides, without_data

Fact = str | float | int | BaseException | Sequence[float] | None
Plain = dict[str, str | float | int]

LONGEST: Final = 2_000  # characters of one field in a log
_WORD: Final = re.compile(r"_([a-z0-9])")


def plain(facts: Mapping[str, Fact]) -> Plain:
    """Only texts and numbers: an error becomes its type and its message, many samples their largest."""
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
    """What the error says; a failure must be written, whatever its text does."""
    try:
        return str(error).strip()
    except Exception:  # noqa: BLE001 - somebody else's __str__
        return "(its text could not be read)"


def sentence(facts: Plain) -> str:
    """The fields in one line for people: name=value."""
    shown = dict(facts)
    if (kind := shown.pop("error_type", None)) is not None:
        message = shown.pop("error_message", "")
        shown["error"] = f"{kind}: {message}" if message else kind
    elif "error_message" in shown:
        shown["error"] = shown.pop("error_message")
    return " ".join(f"{name}={value}" for name, value in shown.items())


def camel(name: str) -> str:
    """The name as machines that read JSON logs know it: worker_id is workerId."""
    return _WORD.sub(lambda found: found[1].upper(), name)


def _text(value: str) -> str:
    # Cut late: a secret must not lose its end before it is seen.
    return without_data(value[: 2 * LONGEST])[:LONGEST]
