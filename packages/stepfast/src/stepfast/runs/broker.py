"""The broker that announces the pages and consolidations of a feed to workers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from stepfast.clock import Duration, duration, micros
from stepfast.errors import ConfigurationError
from stepfast.transports.open import problem_of_transport, shown_transport

HEAD_START: Final = timedelta(seconds=30)


@dataclass(frozen=True)
class Broker:
    """A broker that announces the pages and consolidations of a feed to workers."""

    url: str  # service-bus://, storage-queue://, database:// or memory://name
    work_items: str = "work-items"
    consolidate: str = "consolidate"
    work_done: str | None = None  # a queue for the end of each partition; None: it is not sent
    head_start: Duration = HEAD_START  # how long a job is reserved for the worker that gets its message

    @property
    def head_start_micros(self) -> int:
        return micros(duration(self.head_start, "head_start"))


def checked_broker(given: object) -> Broker | None:
    """The broker that a feed or an application names as its transport; a wrong one is refused with what is wrong with it."""
    if given is None:
        return None
    broker = Broker(given) if isinstance(given, str) else given
    if not isinstance(broker, Broker):
        raise ConfigurationError(
            f"transport={given!r:.80}: write a URL such as 'service-bus://', or Broker(…)"
        )
    if (problem := problem_of_transport(broker.url)) is not None:
        raise ConfigurationError(f"transport={shown_transport(broker.url)!r}: {problem}")
    if not timedelta(0) < duration(broker.head_start, "head_start") <= timedelta(hours=1):
        raise ConfigurationError(
            "head_start: between a moment and an hour; others wait so long for a lost message"
        )
    queues = [broker.work_items, broker.consolidate, broker.work_done]
    if len(set(queues)) < len(queues):
        raise ConfigurationError(
            "work_items, consolidate and work_done are queues of their own; give them three names"
        )
    return broker
