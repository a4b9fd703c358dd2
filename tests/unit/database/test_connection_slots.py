"""Connection slots: at most so many connections, with a fair wait and a clear error."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from stepfast.database.database import ConnectionSlots
from stepfast.errors import UnreachableError


def in_a_thread(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_who_finds_all_places_taken_waits_for_one() -> None:
    slots = ConnectionSlots(1)
    mine = slots.take()
    got = threading.Event()

    def wait_for_one() -> None:
        theirs = slots.take()
        got.set()
        slots.give(theirs)

    thread = in_a_thread(wait_for_one)
    early = got.wait(0.05)
    slots.give(mine)
    thread.join(5)

    assert not early
    assert got.is_set()


def test_who_waits_too_long_is_told_what_to_change() -> None:
    slots = ConnectionSlots(1, patience=0.01)
    slots.take()
    told: list[str] = []

    def ask() -> None:
        try:
            slots.take()
        except UnreachableError as error:
            told.append(str(error))

    in_a_thread(ask).join(5)

    assert len(told) == 1
    assert "STEPFAST_MAX_CONNECTIONS" in told[0]


def test_a_thread_never_waits_for_itself() -> None:
    slots = ConnectionSlots(1, patience=0.01)

    held = [slots.take() for _ in range(3)]
    for it in held:
        slots.give(it)

    slots.give(slots.take())


def test_a_place_may_be_given_back_by_another_thread() -> None:
    slots = ConnectionSlots(1, patience=0.01)
    held = slots.take()

    in_a_thread(lambda: slots.give(held)).join(5)

    got: list[object] = []
    in_a_thread(lambda: got.append(slots.take())).join(5)
    assert len(got) == 1


def test_one_that_was_refused_leaves_no_trace() -> None:
    slots = ConnectionSlots(1, patience=0.01)
    first = slots.take()
    outcome: list[str] = []

    def ask_twice() -> None:
        with pytest.raises(UnreachableError):
            slots.take()
        slots.give(first)
        slots.give(slots.take())
        outcome.append("got it")

    in_a_thread(ask_twice).join(5)

    assert outcome == ["got it"]
