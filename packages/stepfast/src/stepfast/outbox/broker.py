"""Messages for queues of brokers: staged like every message, sent after the commit, up to a hundred at a time.

A broker may deliver a message twice and loses none that it has stored; a receiver asks the database. So a message may be
sent again, under its id, and one that is never sent only costs time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from stepfast.clock import new_id
from stepfast.errors import ConfigurationError
from stepfast.notifications.webhook import Delivered, Delivery, Failed, Patience
from stepfast.outbox.alerts import Alert, alert
from stepfast.outbox.messages import BROKER, Message, destination_of
from stepfast.transports.contract import (
    Outgoing,
    TransportError,
    TransportRefusedError,
    TransportUnavailableError,
)
from stepfast.transports.open import Link, open_transport, transport_settings

if TYPE_CHECKING:
    from stepfast.database.database import Database
    from stepfast.outbox.destinations import DueMessage
    from stepfast.transports.contract import Transport


AT_ONCE: Final = 100  # messages of one call

Property = str | int | bool


def broker_message(
    url: str,
    queue: str,
    *,
    id: str,  # noqa: A002 - the broker's word
    body: str,
    subject: str,
    properties: Mapping[str, Property] | None = None,
    lives_for: timedelta | None = None,
    job_id: str | None = None,
    trace: str | None = None,
) -> Message:
    """A message for this queue of this broker, under an id of the caller's.

    With a `job_id` it is a hint that this job is ready: the relay deletes it as soon as it is sent.
    """
    address = f"{url}#{queue}"
    headers = {"message-id": id, "subject": subject, "properties": json.dumps(dict(properties or {}))}
    if lives_for is not None:
        headers["lives-for"] = str(lives_for.total_seconds())
    return Message(
        id=new_id(),
        channel=BROKER,
        destination=destination_of(BROKER, queue, address),
        address=address,
        body=body,
        headers=headers,
        job_id=job_id,
        trace=trace,
    )


def broker_and_queue(address: str) -> tuple[str, str]:
    """The URL of the broker and the name of the queue in an address."""
    url, _, queue = address.rpartition("#")
    return url, queue


class Brokers:
    """The brokers that this process sends to, each opened once and kept open."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._links: dict[str, Link] = {}
        self._known: set[str] = set()  # addresses whose queue is there
        self._sizes: dict[str, int] = {}  # how many messages at once the queues took lately that took fewer
        self._lock = threading.Lock()

    def send(self, messages: Sequence[DueMessage]) -> Delivery:
        """Send messages for one address in one call. Never raises.

        The caller has checked that this process may send there: `worker/permissions.py`.
        """
        address = messages[0].address
        url, queue = broker_and_queue(address)
        try:
            link = self._link(url)
            if address not in self._known:
                link.wait_for(link.transport.ensure(queue))
                self._known.add(address)
            link.wait_for(link.transport.send(queue, [_outgoing(message) for message in messages]))
        except TransportRefusedError as error:
            return Failed(str(error), Patience.LITTLE)
        except (TransportError, ConfigurationError) as error:
            self._forget(url)
            self._sizes[messages[0].destination] = max(1, len(messages) // 2)  # perhaps there is little room
            return Failed(str(error), Patience.FREE)
        if (size := self._sizes.get(messages[0].destination)) is not None:
            self._sizes[messages[0].destination] = min(AT_ONCE, 2 * size)
        return Delivered()

    def at_once(self, destination: str) -> int:
        """How many messages to try in one call: fewer after one that failed, for the queue may be nearly full."""
        return self._sizes.get(destination, AT_ONCE)

    def close(self) -> None:
        with self._lock:
            links, self._links = list(self._links.values()), {}
        for link in links:
            link.close()

    def _link(self, url: str) -> Link:
        with self._lock:
            if url not in self._links:
                link = Link(opened(url, self._database))
                link.open()
                self._links[url] = link
            return self._links[url]

    def _forget(self, url: str) -> None:
        """Drop a link, so that the next try makes a new one: what is wrong with this one is unknown."""
        with self._lock:
            link = self._links.pop(url, None)
            self._known = {it for it in self._known if broker_and_queue(it)[0] != url}
        if link is not None:
            with suppress(TransportUnavailableError):
                link.close()


def opened(url: str, database: Database) -> Transport:
    """The transport behind a URL, for an application on this database; not yet open."""
    return open_transport(url, transport_settings(database=database))


def unreachable_broker(message: DueMessage, failed: Failed) -> Alert:
    """The alert about a broker that does not answer. Nothing is lost, but everything takes longer."""
    url, queue = broker_and_queue(message.address)
    name = urlsplit(url).scheme or url
    return alert(
        f"broker failed: {message.destination}",
        "Broker Unavailable",
        f"Messages cannot be sent to the queue {queue} of {name}: {failed.reason}\n"
        "The database has the work, and workers take it from there after a while. Sending is tried again by itself.\n\n"
        f"Look at it:   stepfast outbox show {message.id}",
    )


def _outgoing(message: DueMessage) -> Outgoing:
    headers = message.headers
    lives_for = headers.get("lives-for")
    return Outgoing(
        id=headers["message-id"],
        body=message.body,
        properties=json.loads(headers.get("properties", "{}")),
        subject=headers.get("subject", ""),
        lives_for=None if lives_for is None else timedelta(seconds=float(lives_for)),
    )
