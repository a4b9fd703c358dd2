"""The cursor of a waiting job names its event, and holds the event once it has come."""

from __future__ import annotations

import pytest

from stepfast.encryption import Keyring
from stepfast.jobs import wait as waiting
from stepfast.jobs.wait import arrived_cursor, cursor_in, event_in, has_arrived, waited_for

OLD, NEW = "the old key that nobody can guess: 40+", "the new key that nobody can guess: 40+"


@pytest.mark.parametrize("cursor", ["null", "7", '"a \\" b"', '{"a":[1,2.50,"é"]}', '{"stepfast":1}'])
def test_the_cursor_comes_back_as_it_was(cursor: str) -> None:
    stored = waiting.waiting_cursor(cursor, "payment:42")

    assert cursor_in(stored) == cursor
    assert cursor_in(arrived_cursor(stored, "e", 1, '{"n":1}')) == cursor
    assert cursor_in(cursor) == cursor
    assert cursor_in(None) is None


def test_the_event_is_there_when_it_has_arrived() -> None:
    stored = waiting.waiting_cursor("1", "payment:42")
    assert (waited_for(stored), has_arrived(stored), event_in(stored)) == ("payment:42", False, None)

    event = event_in(arrived_cursor(stored, "bank-1", 1_000_000, '{"amount":12.5}'))

    assert event is not None
    assert (event.name, event.id, event.payload) == ("payment:42", "bank-1", {"amount": 12.5})
    assert event.sent_at.timestamp() == 1


@pytest.mark.parametrize("cursor", [None, "7", '{"wait":1}'])
def test_who_never_waited_has_no_event(cursor: str | None) -> None:
    assert (waited_for(cursor), has_arrived(cursor), event_in(cursor)) == (None, False, None)


def test_everything_inside_is_sealed_anew() -> None:
    old, both = Keyring([OLD]), Keyring([NEW, OLD])
    stored = waiting.waiting_cursor(old.seal("7", "cursor of x", "job"), "paid")
    stored = arrived_cursor(stored, "e", 1, old.seal('"money"', "event paid", "e"))

    new = waiting.reencrypt_cursor(stored, both, "cursor of x", "job")

    assert Keyring([NEW]).open(cursor_in(new) or "", "cursor of x", "job") == "7"
    assert OLD not in new
    assert new.count(both.current) == 2
    assert waiting.reencrypt_cursor(new, both, "cursor of x", "job") == new
    assert waiting.reencrypt_cursor("7", both, "cursor of x", "job") == "7"
