"""A queue of the broker: peek-lock, settlement, dead letters, duplicates, schedules, time to live.

Whoever receives a message holds its lock until it settles the message or the lock expires; the end of a connection ends
no lock. A message whose delivery failed goes back to its old place, and after too many failures to the dead letters.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID, uuid4

from stepfast_emulators.service_bus.faults import lock_lost, message_not_found, queue_full
from stepfast_emulators.service_bus.message import Message, State

if TYPE_CHECKING:
    from stepfast_emulators.service_bus.emulator import QueueSettings
    from stepfast_emulators.service_bus.timeline import Alarm, Timeline


DEAD_LETTERS: Final = "$DeadLetterQueue"
REASON: Final = "DeadLetterReason"
DETAIL: Final = "DeadLetterErrorDescription"


class Outcome(StrEnum):
    """How a receiver settles a message."""

    COMPLETED = "completed"
    ABANDONED = "abandoned"  # the delivery failed: it counts
    RELEASED = "released"  # it was never looked at: does not count
    DEFERRED = "deferred"
    DEAD_LETTERED = "dead-lettered"


class Consumer(Protocol):
    """A link that takes messages out."""

    credit: int
    takes_for_good: bool  # what it gets is gone from the queue

    def deliver(self, payload: bytes, tag: bytes, token: UUID | None) -> None: ...


@dataclass(slots=True)
class Lock:
    message: Message
    until: int
    alarm: Alarm


class Queue:
    """`counted` says what happened in it, for tests: stored, duplicate, completed, lock-expired, …"""

    def __init__(
        self, name: str, settings: QueueSettings, timeline: Timeline, *, source: Queue | None = None
    ) -> None:
        self.name = name
        self.settings = settings
        self.waiting: dict[int, Message] = {}
        self.locks: dict[UUID, Lock] = {}
        self.deferred: dict[int, Message] = {}
        self.scheduled: dict[int, tuple[Message, Alarm]] = {}
        self.counted: Counter[str] = Counter()
        self._timeline = timeline
        self._source = source
        self._order: list[int] = []  # sequence numbers; those that no longer wait are skipped
        self._sequences = itertools.count(1)
        self._remembered: OrderedDict[Any, int] = OrderedDict()  # id of a message: until when
        self._consumers: deque[Consumer] = deque()
        self.dead = (
            Queue(f"{name}/{DEAD_LETTERS}", settings, timeline, source=self) if source is None else self
        )

    # -- in

    def store(self, message: Message) -> int:
        """Returns its sequence number, or 0 for a duplicate, which is swallowed without a word as the service does."""
        now = self._timeline.now()
        message.assign_id()
        if self._is_duplicate(message, now):
            self.counted["duplicate"] += 1
            return 0
        if self.settings.capacity is not None and len(self._everything()) >= self.settings.capacity:
            raise queue_full(self.name)
        message.sequence, message.enqueued_at = next(self._sequences), now
        self._remember(message, now)
        self.counted["stored"] += 1
        if (when := message.scheduled_at) is not None and when > now:
            message.state = State.SCHEDULED
            alarm = self._timeline.at(when, lambda: self._come_due(message))
            self.scheduled[message.sequence] = message, alarm
        else:
            self._make_visible(message)
        return message.sequence

    def cancel_scheduled(self, sequence: int) -> None:
        if (found := self.scheduled.pop(sequence, None)) is None:
            raise message_not_found(sequence)
        found[1].cancel()

    def _is_duplicate(self, message: Message, now: int) -> bool:
        while self._remembered and next(iter(self._remembered.values())) <= now:
            self._remembered.popitem(last=False)
        return message.id in self._remembered

    def _remember(self, message: Message, now: int) -> None:
        if self.settings.duplicates is not None:
            self._remembered[message.id] = now + milliseconds(self.settings.duplicates)

    def _come_due(self, message: Message) -> None:
        del self.scheduled[message.sequence]
        message.state, message.enqueued_at = State.ACTIVE, self._timeline.now()
        self._make_visible(message)

    def _make_visible(self, message: Message) -> None:
        own, ours = message.lives_for, self.settings.lives_for
        limits = [own, None if ours is None else milliseconds(ours)]
        if spans := [span for span in limits if span is not None]:
            message.expires_at = message.enqueued_at + min(spans)
            self._timeline.at(message.expires_at, lambda: self._end_expired(message))
        self._wait(message)

    def _end_expired(self, message: Message) -> None:
        """One that is held just now may still be completed."""
        if self.waiting.pop(message.sequence, None) is None:
            return
        self.counted["expired"] += 1
        if self.settings.expired_are_dead:
            self._bury(message, "TTLExpiredException", "The message expired and was dead lettered.")

    # -- out

    def join(self, consumer: Consumer) -> None:
        self._consumers.append(consumer)

    def leave(self, consumer: Consumer) -> None:
        if consumer in self._consumers:
            self._consumers.remove(consumer)

    def deliver(self) -> None:
        """Hand out what waits to whom has credit, one after the other."""
        while self.waiting and (consumer := self._next_consumer()) is not None:
            message = self._take_first()
            if consumer.takes_for_good:
                consumer.deliver(message.encode(), uuid4().bytes_le, None)
                continue
            token = self.hold(message)
            payload = message.encode(token, self.locks[token].until)
            consumer.deliver(payload, token.bytes_le, token)  # clients read the tag as .NET writes a GUID

    def hold(self, message: Message) -> UUID:
        """Lock it for one receiver."""
        token, until = uuid4(), self._timeline.now() + milliseconds(self.settings.lock)
        self.locks[token] = Lock(message, until, self._timeline.at(until, lambda: self.expire(token)))
        return token

    def take_deferred(self, sequence: int) -> Message:
        if (message := self.deferred.pop(sequence, None)) is None:
            raise message_not_found(sequence)
        return message

    def peek(self, first: int, at_most: int) -> list[Message]:
        """In the order of their sequence numbers, held or not."""
        found = sorted((it for it in self._everything() if it.sequence >= first), key=lambda it: it.sequence)
        return found[:at_most]

    def _next_consumer(self) -> Consumer | None:
        for _ in range(len(self._consumers)):
            consumer = self._consumers[0]
            self._consumers.rotate(-1)
            if consumer.credit > 0:
                return consumer
        return None

    def _take_first(self) -> Message:
        while (sequence := heapq.heappop(self._order)) not in self.waiting:
            pass
        return self.waiting.pop(sequence)

    def _everything(self) -> list[Message]:
        held = (lock.message for lock in self.locks.values())
        scheduled = (message for message, _ in self.scheduled.values())
        return [*self.waiting.values(), *held, *self.deferred.values(), *scheduled]

    # -- the end of a delivery

    def renew(self, token: UUID) -> int:
        """Until when it is locked now."""
        if (lock := self.locks.get(token)) is None:
            raise lock_lost()
        lock.alarm.cancel()
        lock.until = self._timeline.now() + milliseconds(self.settings.lock)
        lock.alarm = self._timeline.at(lock.until, lambda: self.expire(token))
        self.counted["renewed"] += 1
        return lock.until

    def settle(self, token: UUID, outcome: Outcome, notes: dict[Any, Any] | None = None) -> None:
        if (lock := self.locks.pop(token, None)) is None:
            self.counted["lock-lost"] += 1
            raise lock_lost()
        lock.alarm.cancel()
        self.counted[outcome.value] += 1
        message = lock.message
        message.notes.update({str(key): value for key, value in (notes or {}).items() if value is not None})
        match outcome:
            case Outcome.ABANDONED:
                self._fail(message)
            case Outcome.RELEASED:
                self._wait(message)
            case Outcome.DEFERRED:
                message.state = State.DEFERRED
                self.deferred[message.sequence] = message
            case Outcome.DEAD_LETTERED:
                self._bury(message)
            case Outcome.COMPLETED:
                pass  # it is gone

    def expire(self, token: UUID) -> None:
        """End the lock as if its time had passed."""
        if (lock := self.locks.pop(token, None)) is not None:
            lock.alarm.cancel()
            self.counted["lock-expired"] += 1
            self._fail(lock.message)

    def _fail(self, message: Message) -> None:
        message.deliveries += 1
        limit = self.settings.max_deliveries
        if message.state is State.DEFERRED:
            self.deferred[message.sequence] = message
        elif message.deliveries >= limit and self._source is None:  # dead letters stay where they are
            text = f"Message could not be consumed after {limit} delivery attempts."
            self._bury(message, "MaxDeliveryCountExceeded", text)
        else:
            self._wait(message)

    def _bury(self, message: Message, reason: str = "", detail: str = "") -> None:
        self.counted["buried"] += 1
        message.notes.update({key: text for key, text in ((REASON, reason), (DETAIL, detail)) if text})
        message.dead_letter_source = message.dead_letter_source or self.name
        message.expires_at, message.state = None, State.ACTIVE
        self.dead._wait(message)  # noqa: SLF001 - it is a queue like this one

    def _wait(self, message: Message) -> None:
        if message.expires_at is not None and message.expires_at <= self._timeline.now():
            self.waiting[message.sequence] = message
            self._end_expired(message)
            return
        self.waiting[message.sequence] = message
        heapq.heappush(self._order, message.sequence)
        self.deliver()


def milliseconds(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)
