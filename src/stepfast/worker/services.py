"""What a worker does besides running steps, each in a thread of its own that costs nothing while there is nothing to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from stepfast.notifications.settings import NotificationSettings, from_environment
from stepfast.worker.forgetting import Forgetting
from stepfast.worker.relay import SETTLING, Relay
from stepfast.worker.ticks import Ticks

if TYPE_CHECKING:
    from stepfast.config import WorkerSettings
    from stepfast.database.database import Database
    from stepfast.runs.feeds import Feeds
    from stepfast.schedules.definition import Definition
    from stepfast.steps.kinds import Kinds
    from stepfast.worker.claimer import Claimer


class Service(Protocol):
    """Starts with the worker, and stops before its heartbeat does."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


def services(  # noqa: PLR0917 - all that a worker is made of
    database: Database,
    kinds: Kinds,
    settings: WorkerSettings,
    notifications: NotificationSettings | None = None,
    declared: Mapping[str, Definition] | None = None,
    feeds: Feeds | None = None,
    claimer: Claimer | None = None,
) -> list[Service]:
    """In the order in which they start."""
    notifications = notifications or from_environment()
    found: list[Service] = [
        Forgetting(database, kinds, settings),
        Ticks(database, declared or {}, kinds.stored),
    ]
    if feeds:
        from stepfast.worker.vigil import Vigil  # most programs have no feeds

        found.append(Vigil(database, feeds, settings.runs_kept))
        if claimer is not None and any(it.broker is not None for it in feeds.all()):
            from stepfast.worker.broker_listener import broker_listeners

            found.extend(broker_listeners(database, feeds, settings, claimer))
    if notifications.outbox_relay:
        settling = min(SETTLING, settings.grace.total_seconds())
        found.append(Relay(database, notifications, settling))
    return found
