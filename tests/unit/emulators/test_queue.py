"""A queue of the Service Bus emulator, without a network: delivery, locks and ends of messages."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field, fields
from datetime import timedelta
from uuid import UUID

import pytest

from stepfast_emulators.service_bus.amqp import Code, Timestamp, UInt, described
from stepfast_emulators.service_bus.emulator import QUEUE_OPTIONS, QueueSettings, parse_queue
from stepfast_emulators.service_bus.faults import RefusedError
from stepfast_emulators.service_bus.message import SCHEDULED_AT, Message, parse
from stepfast_emulators.service_bus.queue import DETAIL, REASON, Outcome, Queue
from stepfast_emulators.service_bus.timeline import Timeline

MINUTE = 60_000


@dataclass
class Taker:
    """A consumer with as much credit as it is given."""

    credit: int = 100
    takes_for_good: bool = False
    messages: list[Message] = field(default_factory=list)
    tokens: list[UUID | None] = field(default_factory=list)

    def deliver(self, payload: bytes, tag: bytes, token: UUID | None) -> None:
        assert token is None or tag == token.bytes_le
        self.credit -= 1
        self.messages.append(parse(payload))
        self.tokens.append(token)

    @property
    def token(self) -> UUID:
        token = self.tokens[-1]
        assert token is not None
        return token


def message(name: str = "m", *, at: int | None = None, lives_for: int | None = None) -> Message:
    sections = [
        described(Code.HEADER, [None, None, None if lives_for is None else UInt(lives_for)]),
        described(Code.ANNOTATIONS, {} if at is None else {SCHEDULED_AT: Timestamp(at)}),
        described(Code.PROPERTIES, [name]),
        described(Code.DATA, b"{}"),
    ]
    return parse(b"".join(sections))


def queue(timeline: Timeline, **settings: object) -> Queue:
    return Queue("work", QueueSettings(**settings), timeline)  # type: ignore[arg-type]


def ids(taker: Taker) -> list[str]:
    return [it.id for it in taker.messages]


def test_messages_come_in_the_order_in_which_they_were_sent_one_to_each() -> None:
    time, one, two = Timeline(), Taker(credit=2), Taker(credit=2)
    work = queue(time)
    work.join(one)
    work.join(two)

    for name in "abcde":
        work.store(message(name))

    assert (ids(one), ids(two)) == (["a", "c"], ["b", "d"])
    assert [it.id for it in work.waiting.values()] == ["e"]


def test_a_lock_that_expires_gives_the_message_back_to_its_old_place_and_counts() -> None:
    time, first, second = Timeline(), Taker(credit=1), Taker()
    work = queue(time, lock=timedelta(minutes=1))
    work.join(first)
    work.store(message("a"))
    work.store(message("b"))
    work.leave(first)
    work.join(second)
    work.deliver()

    time.advance(MINUTE)

    assert ids(second) == ["b", "a", "b"]
    assert [it.header[4] for it in second.messages] == [0, 1, 1]  # failed deliveries
    with pytest.raises(RefusedError, match="message-lock-lost"):
        work.settle(first.token, Outcome.COMPLETED)


def test_a_renewed_lock_begins_anew() -> None:
    time, taker = Timeline(), Taker(credit=1)
    work = queue(time, lock=timedelta(minutes=1))
    work.join(taker)
    work.store(message())

    time.advance(MINUTE * 9 // 10)
    until = work.renew(taker.token)
    time.advance(MINUTE * 9 // 10)

    assert until >= time.now()
    work.settle(taker.token, Outcome.COMPLETED)
    assert (work.counted["completed"], work.counted["lock-expired"]) == (1, 0)


@pytest.mark.parametrize(("outcome", "failed"), [(Outcome.ABANDONED, 1), (Outcome.RELEASED, 0)])
def test_an_abandoned_delivery_counts_a_released_one_does_not(outcome: Outcome, failed: int) -> None:
    taker = Taker()
    work = queue(Timeline())
    work.join(taker)
    work.store(message())

    work.settle(taker.token, outcome)

    assert [it.header[4] for it in taker.messages] == [0, failed]


def test_after_too_many_deliveries_it_is_a_dead_letter_and_stays_one() -> None:
    taker, undertaker = Taker(), Taker()
    work = queue(Timeline(), max_deliveries=3)
    work.join(taker)
    work.dead.join(undertaker)
    work.store(message())

    for _ in range(3):
        work.settle(taker.token, Outcome.ABANDONED)
    for _ in range(5):
        work.dead.settle(undertaker.token, Outcome.ABANDONED)

    assert len(taker.messages) == 3
    assert len(undertaker.messages) == 6
    found = undertaker.messages[0]
    assert found.application_properties[REASON] == "MaxDeliveryCountExceeded"
    assert "3 delivery attempts" in found.application_properties[DETAIL]


def test_an_id_is_remembered_for_the_window_even_after_the_message_is_gone() -> None:
    time, taker = Timeline(), Taker()
    work = queue(time, duplicates=timedelta(minutes=10))
    work.join(taker)

    numbers = [work.store(message("a")), work.store(message("a"))]
    work.settle(taker.token, Outcome.COMPLETED)
    time.advance(9 * MINUTE)
    numbers.append(work.store(message("a")))
    time.advance(MINUTE)
    numbers.append(work.store(message("a")))

    assert numbers == [1, 0, 0, 2]
    assert work.counted["duplicate"] == 2


def test_a_scheduled_message_comes_at_its_time_unless_it_is_cancelled() -> None:
    time, taker = Timeline(), Taker()
    work = queue(time)
    work.join(taker)
    at = time.now() + MINUTE
    work.store(message("kept", at=at))
    dropped = work.store(message("dropped", at=at))

    work.cancel_scheduled(dropped)
    time.advance(MINUTE - 1_000)
    before = ids(taker)
    time.advance(1_000)

    assert (before, ids(taker)) == ([], ["kept"])
    with pytest.raises(RefusedError, match="message-not-found"):
        work.cancel_scheduled(dropped)


@pytest.mark.parametrize("dead", [True, False])
def test_a_message_ends_with_its_life(*, dead: bool) -> None:
    time = Timeline()
    work = queue(time, lives_for=timedelta(minutes=5), expired_are_dead=dead)
    work.store(message("short", lives_for=MINUTE))
    work.store(message("long", lives_for=60 * MINUTE))

    time.advance(MINUTE)
    after_one = [it.id for it in work.waiting.values()]
    time.advance(4 * MINUTE)

    assert (after_one, list(work.waiting)) == (["long"], [])
    reasons = [it.notes[REASON] for it in work.dead.waiting.values()]
    assert reasons == (["TTLExpiredException"] * 2 if dead else [])


def test_one_that_is_held_may_be_completed_after_its_life_but_not_given_back() -> None:
    time, taker = Timeline(), Taker()
    work = queue(time, lock=timedelta(minutes=5))
    work.join(taker)
    work.store(message("completed", lives_for=MINUTE))
    first = taker.token
    work.store(message("abandoned", lives_for=MINUTE))

    time.advance(2 * MINUTE)
    work.settle(first, Outcome.COMPLETED)
    work.settle(taker.token, Outcome.ABANDONED)

    assert (len(taker.messages), work.waiting, work.locks) == (2, {}, {})


def test_a_deferred_message_is_given_by_its_number_only() -> None:
    taker = Taker()
    work = queue(Timeline())
    work.join(taker)
    number = work.store(message("a"))
    work.settle(taker.token, Outcome.DEFERRED)

    found = work.take_deferred(number)
    token = work.hold(found)
    work.expire(token)

    assert ids(taker) == ["a"]
    assert list(work.deferred) == [number]
    with pytest.raises(RefusedError, match="message-not-found"):
        work.take_deferred(number + 1)


def test_who_takes_for_good_leaves_no_lock() -> None:
    taker = Taker(takes_for_good=True)
    work = queue(Timeline())
    work.join(taker)

    work.store(message())

    assert (taker.tokens, work.locks) == ([None], {})


def test_a_full_queue_takes_no_more() -> None:
    work = queue(Timeline(), capacity=1)
    work.store(message("a"))

    with pytest.raises(RefusedError, match="quota"):
        work.store(message("b"))


def test_peeking_shows_what_waits_what_is_held_and_what_is_scheduled() -> None:
    time, taker = Timeline(), Taker(credit=1)
    work = queue(time)
    work.join(taker)
    for name, at in (("held", None), ("waiting", None), ("scheduled", time.now() + MINUTE)):
        work.store(message(name, at=at))

    assert [(it.id, int(it.state)) for it in work.peek(1, 10)] == [
        ("held", 0),
        ("waiting", 0),
        ("scheduled", 2),
    ]
    assert [it.id for it in work.peek(2, 1)] == ["waiting"]


def test_what_is_due_while_time_is_skipped_happens_at_its_own_time_in_order() -> None:
    time = Timeline()
    start, seen = time.now(), list[tuple[str, int]]()

    def note(name: str) -> None:
        seen.append((name, round((time.now() - start) / 1_000)))

    time.at(start + 30_000, lambda: note("later"))

    def sooner() -> None:
        note("sooner")
        time.at(start + 20_000, lambda: note("between"))

    time.at(start + 10_000, sooner)
    time.at(start + 15_000, lambda: note("never")).cancel()
    time.advance(60_000)

    assert seen == [("sooner", 10), ("between", 20), ("later", 30)]


def test_a_queue_is_named_with_its_settings() -> None:
    name, settings = parse_queue("work-items,lock=2m,max_deliveries=5,duplicates=10m,expired_are_dead=yes")

    assert name == "work-items"
    assert settings == QueueSettings(
        lock=timedelta(minutes=2), max_deliveries=5, duplicates=timedelta(minutes=10), expired_are_dead=True
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("work,loc=2m", "'loc=2m' is no option"),
        ("work,lock", "no option"),
        ("work,lock=soon", "lock"),
        ("work,max_deliveries=many", "'many' is no number"),
        (",lock=2m", "names no queue"),
    ],
)
def test_a_mistake_in_it_is_named(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_queue(text)


def test_the_command_line_explains_every_option_of_a_queue() -> None:
    program = [sys.executable, "-m", "stepfast_emulators.service_bus", "--help"]

    said = subprocess.run(program, check=True, capture_output=True, text=True, timeout=60).stdout

    assert list(QUEUE_OPTIONS) == [it.name for it in fields(QueueSettings)]
    assert [name for name in QUEUE_OPTIONS if f"  {name}=" not in said] == []
    assert all(parse_queue(f"work,{name}={value}") for name, (value, _) in QUEUE_OPTIONS.items())


@pytest.mark.parametrize("properties", [None, [], [None, None, "reply-to"]])
def test_a_message_without_an_id_gets_one_that_every_receiver_sees(
    properties: list[str | None] | None,
) -> None:
    work, first, second = queue(Timeline()), Taker(credit=1), Taker(credit=1)
    sections = [] if properties is None else [described(Code.PROPERTIES, properties)]
    for taker in (first, second):
        work.store(parse(b"".join([*sections, described(Code.DATA, b"{}")])))
        work.join(taker)
        work.deliver()
    assert isinstance(first.messages[0].id, str)
    assert first.messages[0].id != second.messages[0].id
    assert first.messages[0].properties[1:] == (properties or [None])[1:]

    work.leave(second)
    first.credit = 1
    work.settle(first.token, Outcome.ABANDONED)

    assert ids(first)[1] == ids(first)[0]
