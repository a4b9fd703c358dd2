"""A backoff: pauses that grow."""

from __future__ import annotations

from stepfast.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(first=1.0, longest=5.0)

    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_reset_begins_with_the_first_pause() -> None:
    backoff = Backoff(first=0.1, longest=2.0, growth=1.5)
    backoff.next()
    backoff.next()

    backoff.reset()

    assert backoff.next() == 0.1


def test_no_pause_is_longer_than_the_longest_not_even_the_first() -> None:
    backoff = Backoff(first=1.0, longest=0.3)

    assert [backoff.next(), backoff.next()] == [0.3, 0.3]


def test_jitter_shortens_pauses_and_does_not_slow_their_growth() -> None:
    backoff = Backoff(first=1.0, longest=64.0, jitter=0.2)

    pauses = [backoff.next() for _ in range(7)]

    assert all(0.8 * 2**n <= pause <= 2**n for n, pause in enumerate(pauses))
