"""A namespace: its queues by name, who may use them, and what stands behind an address."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.testing.service_bus.authorization import Key, complaint, entity
from stepfast.testing.service_bus.codec import described
from stepfast.testing.service_bus.faults import Faults, Moment
from stepfast.testing.service_bus.management import manage
from stepfast.testing.service_bus.message import sections
from stepfast.testing.service_bus.queue import Queue
from stepfast.testing.service_bus.refusals import RefusedError, no_such_queue, unauthorized
from stepfast.testing.service_bus.timeline import Timeline
from stepfast.testing.service_bus.values import Code, Int, Symbol

if TYPE_CHECKING:
    from stepfast.testing.service_bus.settings import QueueSettings

ACCEPTED: Final = 202
UNAUTHORIZED: Final = 401
NOT_FOUND: Final = 404

Permitted = set[str]  # queues for which a connection has shown a token; the empty name stands for all
Service = Callable[[bytes, Permitted], bytes]  # a node that answers requests: $cbs, $management


class Broker:
    def __init__(self, key: Key) -> None:
        self.key = key
        self.queues: dict[str, Queue] = {}
        self.faults = Faults()
        self.timeline = Timeline()
        self.link_delay = timedelta(0)

    def add_queue(self, name: str, settings: QueueSettings) -> Queue:
        queue = self.queues[name.lower()] = Queue(name, settings, self.timeline)
        return queue

    def queue(self, name: str) -> Queue:
        if (queue := self.queues.get(name.lower())) is None:
            raise no_such_queue(name)
        return queue

    def node(self, path: str, permitted: Permitted) -> Queue | Service:
        """What a link with this address is joined to."""
        address = path.lower()
        if address == "$cbs":
            return self.take_token
        whole = address.removesuffix("/$management")
        name = whole.removesuffix("/$deadletterqueue")
        if not {name, ""} & permitted:
            raise unauthorized(path)
        queue = self.queue(name) if whole == name else self.queue(name).dead
        return queue if whole == address else lambda request, _: self.manage(queue, request)

    def take_token(self, request: bytes, permitted: Permitted) -> bytes:
        """`put-token`: whoever shows a good one may use the queue that it names."""
        asked = Request(request)
        name = entity(str(asked.properties.get("name", "")))
        if wrong := complaint(asked.body, self.key):
            return asked.answer({"status-code": Int(UNAUTHORIZED), "status-description": wrong}, None)
        if name and name not in self.queues:  # the service tells it here already
            text = no_such_queue(name).text
            return asked.answer({"status-code": Int(NOT_FOUND), "status-description": text}, None)
        permitted.add(name)
        return asked.answer({"status-code": Int(ACCEPTED), "status-description": "Accepted"}, None)

    def manage(self, queue: Queue, request: bytes) -> bytes:
        asked = Request(request)
        try:
            self.faults.meet(Moment.REQUEST_ARRIVED, queue.name)
            status, body = manage(queue, str(asked.properties["operation"]), asked.body or {})
            self.faults.meet(Moment.REQUEST_DONE, queue.name)
        except RefusedError as error:
            said = {
                "statusCode": Int(error.status),
                "statusDescription": error.text,
                "errorCondition": Symbol(error.condition),
            }
            return asked.answer(said, None)
        return asked.answer({"statusCode": Int(status), "statusDescription": "OK"}, body)


class Request:
    """A message that wants an answer."""

    def __init__(self, payload: bytes) -> None:
        found = {section.code: section.value for section, _ in sections(payload)}
        self._id = found[Code.PROPERTIES][0]
        self.properties: dict[str, Any] = found.get(Code.APPLICATION_PROPERTIES, {})
        self.body: Any = found.get(Code.VALUE)

    def answer(self, properties: dict[str, Any], body: Any) -> bytes:
        """Clients find their request by the correlation id, which has the type of the id that they sent."""
        return (
            described(Code.PROPERTIES, [None] * 5 + [self._id])
            + described(Code.APPLICATION_PROPERTIES, properties)
            + described(Code.VALUE, body)
        )
