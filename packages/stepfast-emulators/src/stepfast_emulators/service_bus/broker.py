"""A namespace: its queues, the nodes behind addresses (`$cbs`, `$management`), and the tokens that open them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlparse
from uuid import UUID

from stepfast_emulators.service_bus.amqp import Array, Code, Int, Long, Symbol, Timestamp, described
from stepfast_emulators.service_bus.faults import (
    Faults,
    Moment,
    RefusedError,
    no_such_queue,
    not_implemented,
    unauthorized,
)
from stepfast_emulators.service_bus.message import Message, parse, sections
from stepfast_emulators.service_bus.queue import DETAIL, REASON, Outcome, Queue
from stepfast_emulators.service_bus.timeline import Timeline

if TYPE_CHECKING:
    from stepfast_emulators.service_bus.emulator import QueueSettings


ACCEPTED: Final = 202
UNAUTHORIZED: Final = 401
NOT_FOUND: Final = 404
Permitted = set[str]  # queues for which a connection has shown a token; the empty name stands for all
Service = Callable[[bytes, Permitted], bytes]  # a node that answers requests: $cbs, $management


class Broker:
    """The queues of a namespace, and what a link with an address is joined to."""

    def __init__(self, key: AccessKey) -> None:
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
        """The queue or the service that a link with this address is joined to."""
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
        """`put-token`: a connection that shows a good token may use the queue that it names."""
        asked = ServiceRequest(request)
        name = queue_of_audience(str(asked.properties.get("name", "")))
        if wrong := token_problem(asked.body, self.key):
            return asked.answer({"status-code": Int(UNAUTHORIZED), "status-description": wrong}, None)
        if name and name not in self.queues:  # the service tells it here already
            text = no_such_queue(name).text
            return asked.answer({"status-code": Int(NOT_FOUND), "status-description": text}, None)
        permitted.add(name)
        return asked.answer({"status-code": Int(ACCEPTED), "status-description": "Accepted"}, None)

    def manage(self, queue: Queue, request: bytes) -> bytes:
        asked = ServiceRequest(request)
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


class ServiceRequest:
    """A message that asks a service for an answer."""

    def __init__(self, payload: bytes) -> None:
        found = {section.code: section.value for section, _ in sections(payload)}
        self._id = found[Code.PROPERTIES][0]
        self.properties: dict[str, Any] = found.get(Code.APPLICATION_PROPERTIES, {})
        self.body: Any = found.get(Code.VALUE)

    def answer(self, properties: dict[str, Any], body: Any) -> bytes:
        """The answer as a message. Clients find their request by the correlation id, of the type that they sent."""
        return (
            described(Code.PROPERTIES, [None] * 5 + [self._id])
            + described(Code.APPLICATION_PROPERTIES, properties)
            + described(Code.VALUE, body)
        )


# Tokens that the `$cbs` node takes: shared access signatures, and tokens of an identity.
#
# A signature is checked with the key. Of an identity's token only the audience and the end are checked: the emulator does
# not know the keys of Entra.

AUDIENCE = "https://servicebus.azure.net"
PARTS_OF_A_JWT = 3


@dataclass(frozen=True)
class AccessKey:
    """A shared access policy of the namespace."""

    name: str
    value: str


def queue_of_audience(audience: str) -> str:
    """The queue that a token is meant for; empty: the whole namespace."""
    path = urlparse(audience).path.strip("/").lower()
    return path.removesuffix("/$management").removesuffix("/$deadletterqueue")


def token_problem(token: object, key: AccessKey) -> str:
    """What is wrong with a token; empty if nothing is. Its text shows its kind: Python's SDK calls every one a JWT."""
    text = token.decode("ascii", "replace") if isinstance(token, bytes) else str(token)
    scheme, _, signature = text.partition(" ")
    if scheme == "SharedAccessSignature":
        return _signature_problem(signature, key)
    return _identity_problem(text)


def _signature_problem(token: str, key: AccessKey) -> str:
    given = dict(parse_qsl(token, keep_blank_values=True))
    if not {"sr", "sig", "se", "skn"} <= given.keys():
        return "MalformedToken: The signature lacks a part."
    # What was signed is the resource as it stands in the token, not what it means.
    resource = next(part.removeprefix("sr=") for part in token.split("&") if part.startswith("sr="))
    digest = hmac.digest(key.value.encode(), f"{resource}\n{given['se']}".encode(), hashlib.sha256)
    if given["skn"] != key.name or not hmac.compare_digest(base64.b64encode(digest).decode(), given["sig"]):
        return "InvalidSignature: The token has an invalid signature."
    return _expiry_problem(given["se"])


def _identity_problem(token: str) -> str:
    parts = token.split(".")
    if len(parts) != PARTS_OF_A_JWT:
        return "MalformedToken: The token is no JSON Web Token."
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        audience, end = str(claims["aud"]), str(claims["exp"])
    except (binascii.Error, ValueError, KeyError, TypeError):
        return "MalformedToken: The token cannot be read."
    if audience.rstrip("/") != AUDIENCE:
        return f"InvalidAudience: The token is meant for {audience}."
    return _expiry_problem(end)


def _expiry_problem(end: str) -> str:
    if not end.isdigit() or int(end) <= time.time():
        return "ExpiredToken: The token is expired."
    return ""


# The operations of a queue's `$management` node.

OK: Final = 200
NO_CONTENT: Final = 204
NO_LOCK: Final = UUID(int=0)  # the lock token of a message that was taken for good
ManagementAnswer = tuple[int, dict[str, Any] | None]  # the status, and the body


def manage(queue: Queue, operation: str, body: dict[str, Any]) -> ManagementAnswer:
    name = operation.removeprefix("com.microsoft:")
    if name not in OPERATIONS:
        raise not_implemented(f"the operation {operation}")
    return OPERATIONS[name](queue, body)


def _renew_locks(queue: Queue, body: dict[str, Any]) -> ManagementAnswer:
    return OK, {"expirations": Array(Timestamp(queue.renew(token)) for token in body["lock-tokens"])}


def _peek(queue: Queue, body: dict[str, Any]) -> ManagementAnswer:
    found = queue.peek(body["from-sequence-number"], body["message-count"])
    return (OK, {"messages": [{"message": it.encode()} for it in found]}) if found else (NO_CONTENT, None)


def _schedule(queue: Queue, body: dict[str, Any]) -> ManagementAnswer:
    sent = [parse(it["message"]) for it in body["messages"]]
    return OK, {"sequence-numbers": Array(Long(queue.store(message)) for message in sent)}


def _cancel_scheduled(queue: Queue, body: dict[str, Any]) -> ManagementAnswer:
    for sequence in body["sequence-numbers"]:
        queue.cancel_scheduled(sequence)
    return OK, None


def _receive_deferred(queue: Queue, body: dict[str, Any]) -> ManagementAnswer:
    for_good = body["receiver-settle-mode"] == 0
    taken = [queue.take_deferred(sequence) for sequence in body["sequence-numbers"]]
    return OK, {"messages": [_taken(it) if for_good else _locked(queue, it) for it in taken]}


def _taken(message: Message) -> dict[str, Any]:
    return {"lock-token": NO_LOCK, "message": message.encode()}


def _locked(queue: Queue, message: Message) -> dict[str, Any]:
    token = queue.hold(message)
    return {"lock-token": token, "message": message.encode(token, queue.locks[token].until)}


def _settle(queue: Queue, body: dict[str, Any]) -> ManagementAnswer:
    outcome = OUTCOMES[body["disposition-status"]]
    notes = dict(body.get("properties-to-modify") or {})
    notes |= {REASON: body.get("deadletter-reason"), DETAIL: body.get("deadletter-description")}
    for token in body["lock-tokens"]:
        queue.settle(token, outcome, notes)
    return OK, None


OUTCOMES: Final = {
    "completed": Outcome.COMPLETED,
    "abandoned": Outcome.ABANDONED,
    "defered": Outcome.DEFERRED,  # as the protocol spells it
    "suspended": Outcome.DEAD_LETTERED,
}
OPERATIONS: Final[dict[str, Callable[[Queue, dict[str, Any]], ManagementAnswer]]] = {
    "renew-lock": _renew_locks,
    "peek-message": _peek,
    "schedule-message": _schedule,
    "cancel-scheduled-message": _cancel_scheduled,
    "receive-by-sequence-number": _receive_deferred,
    "update-disposition": _settle,
}
