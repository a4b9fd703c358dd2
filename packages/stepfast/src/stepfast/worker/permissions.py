"""What the relay of this process may write and send to.

A row of the outbox says where a message goes, and whoever can write a row could name any file or any host there: the
worker would write it with its own rights, and sign in with its own identity. So the row is not believed. A document goes
only where a feed of this process exports to, or into a folder that the settings name; a message goes only to queues of
brokers that this process has.

A message that is refused here is not lost: a worker that may serve it does.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from stepfast.errors import ConfigurationError
from stepfast.outbox.exports import path_of, problem_of_export
from stepfast.outbox.messages import BROKER, EXPORT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepfast.notifications.settings import NotificationSettings
    from stepfast.outbox.destinations import DueMessage
    from stepfast.runs.broker import Broker
    from stepfast.runs.feeds import Feeds


OWN: Final = frozenset(
    {"memory", "database"}
)  # brokers inside this process, or its own database: no host is reached


class Permissions:
    """Which documents and queues this process may serve: those of its feeds, and those that its settings name."""

    def __init__(self, feeds: Feeds | None, settings: NotificationSettings) -> None:
        self._feeds = feeds
        self._folders = settings.export_folders

    def refusal_of(self, message: DueMessage) -> str | None:
        """Why this process does not send a message; None if it may."""
        match message.channel:
            case channel if channel == EXPORT:
                return self._refusal_of_export(message.address)
            case channel if channel == BROKER:
                return self._refusal_of_queue(message.address)
            case _:
                return None

    def _refusal_of_export(self, address: str) -> str | None:
        declared = () if self._feeds is None else self._feeds.all()
        if any(feed.export == address for feed in declared) or self._is_in_a_folder(address):
            return None
        return (
            f"no worker here may write {address}: no feed of its application exports there, and it is in no folder of "
            "STEPFAST_EXPORT_FOLDERS; it waits for a worker that may"
        )

    def _is_in_a_folder(self, address: str) -> bool:
        try:
            if problem_of_export(address) is not None or urlsplit(address).scheme != "file":
                return False
        except ValueError:  # it is no URL
            return False
        # Links are followed, so that a folder inside cannot lead out.
        place = Path(os.path.realpath(path_of(address).parent))
        return any(place.is_relative_to(os.path.realpath(folder)) for folder in self._folders)

    def _refusal_of_queue(self, address: str) -> str | None:
        from stepfast.outbox.broker import broker_and_queue
        from stepfast.transports.open import same_transport, shown_transport

        url, queue = broker_and_queue(address)
        try:
            wanted = same_transport(url)
            known = {
                (same_transport(broker.url), name) for broker in self._brokers() for name in _queues(broker)
            }
        except (ValueError, ConfigurationError) as error:
            return f"the broker of this message, or of this worker, cannot be read: {error}"
        if urlsplit(wanted).scheme in OWN or (wanted, queue) in known:
            return None
        return (
            f"no worker here may send to queue {queue!r:.100} of {shown_transport(url)}: no feed of its application has it as "
            "its transport, nor has STEPFAST_TRANSPORT; it waits for a worker that may"
        )

    def _brokers(self) -> Iterator[Broker]:
        from stepfast.runs.broker import checked_broker
        from stepfast.transports.open import TRANSPORT

        for feed in () if self._feeds is None else self._feeds.all():
            if feed.broker is not None:
                yield feed.broker
        if (named := checked_broker(os.environ.get(TRANSPORT, "").strip() or None)) is not None:
            yield named


def _queues(broker: Broker) -> list[str]:
    return [name for name in (broker.work_items, broker.consolidate, broker.work_done) if name is not None]
