"""What a client asks of a queue beside sending and receiving: the operations of its `$management` node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from stepfast.testing.service_bus.message import Message, parse
from stepfast.testing.service_bus.queue import DETAIL, REASON, Outcome, Queue
from stepfast.testing.service_bus.refusals import not_implemented
from stepfast.testing.service_bus.values import Array, Long, Timestamp

OK: Final = 200
NOTHING: Final = 204
NOBODY: Final = UUID(int=0)  # the lock token of a message that was taken for good

Answer = tuple[int, dict[str, Any] | None]  # the status, and the body


def manage(queue: Queue, operation: str, body: dict[str, Any]) -> Answer:
    name = operation.removeprefix("com.microsoft:")
    if name not in OPERATIONS:
        raise not_implemented(f"the operation {operation}")
    return OPERATIONS[name](queue, body)


def _renew_locks(queue: Queue, body: dict[str, Any]) -> Answer:
    return OK, {"expirations": Array(Timestamp(queue.renew(token)) for token in body["lock-tokens"])}


def _peek(queue: Queue, body: dict[str, Any]) -> Answer:
    found = queue.peek(body["from-sequence-number"], body["message-count"])
    return (OK, {"messages": [{"message": it.encode()} for it in found]}) if found else (NOTHING, None)


def _schedule(queue: Queue, body: dict[str, Any]) -> Answer:
    sent = [parse(it["message"]) for it in body["messages"]]
    return OK, {"sequence-numbers": Array(Long(queue.store(message)) for message in sent)}


def _cancel_scheduled(queue: Queue, body: dict[str, Any]) -> Answer:
    for sequence in body["sequence-numbers"]:
        queue.cancel_scheduled(sequence)
    return OK, None


def _receive_deferred(queue: Queue, body: dict[str, Any]) -> Answer:
    for_good = body["receiver-settle-mode"] == 0
    taken = [queue.take_deferred(sequence) for sequence in body["sequence-numbers"]]
    return OK, {"messages": [_gone(it) if for_good else _held(queue, it) for it in taken]}


def _gone(message: Message) -> dict[str, Any]:
    return {"lock-token": NOBODY, "message": message.encode()}


def _held(queue: Queue, message: Message) -> dict[str, Any]:
    token = queue.hold(message)
    return {"lock-token": token, "message": message.encode(token, queue.locks[token].until)}


def _settle(queue: Queue, body: dict[str, Any]) -> Answer:
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
OPERATIONS: Final[dict[str, Callable[[Queue, dict[str, Any]], Answer]]] = {
    "renew-lock": _renew_locks,
    "peek-message": _peek,
    "schedule-message": _schedule,
    "cancel-scheduled-message": _cancel_scheduled,
    "receive-by-sequence-number": _receive_deferred,
    "update-disposition": _settle,
}
