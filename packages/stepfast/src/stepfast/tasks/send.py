"""Send a task to the queue of a client, as `stepfast tasks send` does. Other programs just send the JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from stepfast.clock import new_id
from stepfast.errors import ConfigurationError
from stepfast.jobs.payload import to_json
from stepfast.tasks.envelope import VERSION, TaskRefusedError, queue_of, read
from stepfast.tasks.store import task_key
from stepfast.telemetry import current_trace
from stepfast.transports.contract import Outgoing
from stepfast.transports.open import Link

if TYPE_CHECKING:
    from stepfast.transports.contract import Transport


@dataclass(frozen=True)
class SentTask:
    """A task that the broker has now."""

    task_id: str
    task_type: str
    queue: str
    transport: str


def send_task(
    task_type: str, payload: str, *, task_id: str | None, webhook_url: str | None, client: str | None
) -> SentTask:
    """Send a task by the transport that the environment names."""
    from stepfast.database.drivers import open_database
    from stepfast.database.migrate import require_current_schema
    from stepfast.tasks.settings import checked_client, task_settings
    from stepfast.transports.open import open_transport, transport_settings

    settings = task_settings()
    message = message_of(task_type, payload, task_id=task_id, webhook_url=webhook_url)
    try:
        queue, url = queue_of(checked_client(client or settings.client_id)), settings.chosen_transport
    except ValueError as error:
        raise ConfigurationError(f"client {error}") from error
    database = None
    if url.startswith("database"):
        from stepfast.config import database_url

        database = open_database(database_url(settings.chosen_database))
        require_current_schema(database)
    transport: Transport = open_transport(url, transport_settings(database=database))
    with Link(transport) as link:
        link.wait_for(transport.ensure(queue))
        link.wait_for(transport.send(queue, [message]))
    if database is not None:
        database.close()
    return SentTask(message.id, task_type, queue, transport.name)


def message_of(
    task_type: str, payload: str, *, task_id: str | None = None, webhook_url: str | None = None
) -> Outgoing:
    """The message of a task, checked as its worker will check it."""
    try:
        given: Any = msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ConfigurationError(f"payload: it is no JSON ({error})") from error
    envelope = {
        "schema_version": VERSION,
        "task_id": new_id() if task_id is None else task_id,
        "task_type": task_type,
        "payload": given,
    }
    if webhook_url is not None:
        envelope["webhook_url"] = webhook_url
    if (trace := current_trace()) is not None:
        envelope["traceparent"] = trace
    body = to_json(envelope)
    try:
        found = read(body)
    except TaskRefusedError as error:
        raise ConfigurationError(f"no worker would take this task: {error}") from error
    return Outgoing(id=task_key(found.task_id), body=body, subject=task_type)
