"""How a queue behaves, as its owner set it up."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

from stepfast.clock import duration
from stepfast.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """The service's own defaults."""

    lock: timedelta = timedelta(minutes=1)  # that one who received a message holds it
    max_deliveries: int = 10  # that may fail before it is a dead letter
    duplicates: timedelta | None = None  # that the id of a message is remembered; None: not at all
    lives_for: timedelta | None = None  # a message at most; None: for ever
    expired_are_dead: bool = False  # else they vanish
    largest: int = 262_144  # bytes of one transfer
    capacity: int | None = None  # messages; None: as many as there come


def parse_queue(text: str) -> tuple[str, QueueSettings]:
    """`work-items,lock=2m,max_deliveries=5,duplicates=10m`: a queue as the command line names it."""
    name, *options = text.split(",")
    known = {it.name: it.type for it in fields(QueueSettings)}
    chosen: dict[str, Any] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key not in known or not value:
            raise ConfigurationError(
                f"{option!r} is no option of a queue; there are {', '.join(known)} (name=value)"
            )
        if "timedelta" in str(known[key]):
            chosen[key] = duration(value, key)
        elif known[key] == "bool":
            chosen[key] = value.lower() in {"yes", "true", "1"}
        elif not value.isdigit():
            raise ConfigurationError(f"{key}: {value!r} is no number")
        else:
            chosen[key] = int(value)
    if not name:
        raise ConfigurationError(f"{text!r} names no queue")
    return name, replace(QueueSettings(), **chosen)
