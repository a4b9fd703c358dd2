"""Checks of brokers and blob storage: whether they let us in, and what waits there. Only where something names them.

The environment names a broker of tasks; feeds that are known here name theirs, with the queues of their runs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stepfast.admin.doctor.finding import Finding, fail, ok, warn
from stepfast.clock import counted
from stepfast.database.statement import sql
from stepfast.errors import StepfastError
from stepfast.transports.contract import TransportRefusedError
from stepfast.transports.open import Link, TransportSettings, open_transport, transport_settings

if TYPE_CHECKING:
    from stepfast.database.database import Database
    from stepfast.runs.broker import Broker
    from stepfast.transports.contract import Depth


TRANSPORT: Final = "STEPFAST_TRANSPORT"
PATIENCE: Final = timedelta(seconds=10)
CURE: Final = "check the connection string or the identity's roles, the network, and that the broker runs"
MISSING: Final = (
    "its workers create the queue, where they may; if it is there, check the key or the identity's roles"
)
OF_TASKS: Final = "stepfast dead-letters list; the broker has the reasons, too"
OF_RUNS: Final = "a running worker takes them over every 30 seconds; then: stepfast dead-letters list"

FEEDS = sql("SELECT count(*) FROM stepfast_feed")


@dataclass(frozen=True)
class Queue:
    """A queue of a broker."""

    name: str
    cure: str  # of dead letters there
    needed: bool = True  # else it may be missing: not every application has tasks


def look(database: Database, brokers: Collection[Broker] = ()) -> list[Finding]:
    """Check the broker and the storage that the environment names, as a worker reaches them, and the brokers of feeds."""
    settings = transport_settings(database=database)
    asked = _queues(database, settings, brokers)
    found = [finding for url, queues in asked.items() for finding in _broker(url, queues, settings)]
    return [*found, *_blobs(settings)]


def _queues(
    database: Database, settings: TransportSettings, brokers: Collection[Broker]
) -> dict[str, list[Queue]]:
    """The queues to check, by the URL of their broker."""
    asked: dict[str, list[Queue]] = {}
    for broker in brokers or _by_environment(database):
        if not broker.url.startswith("memory:"):  # only its own process sees into it
            of_runs = [Queue(name, OF_RUNS) for name in (broker.work_items, broker.consolidate)]
            asked[broker.url] = list(dict.fromkeys([*asked.get(broker.url, []), *of_runs]))
    if (named := _named(settings)) is not None:
        client = os.environ.get("CLIENT_ID", "").strip()
        chosen = bool(os.environ.get(TRANSPORT, "").strip())  # a storage account may be there for blobs only
        needed = bool(client) or (chosen and named not in asked)
        asked.setdefault(named, []).append(Queue(f"{client or 'default'}-tasks", OF_TASKS, needed=needed))
    return asked


def _by_environment(database: Database) -> list[Broker]:
    """Where no feeds are given: the feeds of this database have the broker that the environment names."""
    from stepfast.runs.broker import checked_broker

    try:
        with database.reading() as tx:
            feeds = int(tx.first(FEEDS))
        broker = checked_broker(os.environ.get(TRANSPORT, "").strip() or None)
    except StepfastError:
        return []  # the tables are missing, or the URL is wrong: other checks say so
    return [broker] if feeds and broker is not None else []


def _broker(url: str, queues: Sequence[Queue], settings: TransportSettings) -> Iterator[Finding]:
    try:
        with Link(open_transport(url, settings), PATIENCE) as link:
            for queue in queues:
                try:
                    depth = link.wait_for(link.transport.depth(queue.name))
                except TransportRefusedError as error:
                    if queue.needed:
                        yield warn("broker", str(error).partition("\n")[0], MISSING)
                else:
                    yield _judged(link.transport.name, queue, depth)
    except StepfastError as error:
        yield fail("broker", str(error).partition("\n")[0], CURE)


def _judged(transport: str, queue: Queue, depth: Depth) -> Finding:
    text = f"{transport} lets us in; {queue.name} has {counted(depth.ready, 'message')}"
    if depth.dead:
        return warn("broker", f"{text}, and {counted(depth.dead, 'message')} put aside", queue.cure)
    return ok("broker", text)


def _named(settings: TransportSettings) -> str | None:
    if named := os.environ.get(TRANSPORT, "").strip():
        return named
    if settings.storage_connection_string or settings.storage_account:
        return "storage-queue://"
    if settings.service_bus_connection_string or settings.service_bus_namespace:
        return "service-bus://"
    return None


def _blobs(settings: TransportSettings) -> list[Finding]:
    if not settings.storage_connection_string and not settings.storage_account:
        return []
    from stepfast.transports.blob import BlobStore

    try:
        with BlobStore(settings) as store:
            store.check()
    except StepfastError as error:
        return [fail("blobs", str(error).partition("\n")[0], CURE)]
    return [ok("blobs", "blob storage lets us in")]
