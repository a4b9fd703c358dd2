"""After a failed delivery: when to try again, and when to give up."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from stepfast.notifications.settings import NotificationSettings
from stepfast.notifications.webhook import Failed, Patience, asked_wait
from stepfast.outbox.destinations import GiveUp, TryAgain, Verdict, decide, retry_delay

SETTINGS = NotificationSettings()
OUTAGE = Failed("HTTP 503")
REFUSAL = Failed("HTTP 404", Patience.LITTLE)
GONE = Failed("HTTP 410", Patience.NONE)
YOUNG = timedelta(minutes=1)


def judged(failed: Failed, attempts: int, age: timedelta = YOUNG, dice: float = 0.5) -> Verdict:
    return decide(failed, attempts, age, SETTINGS, dice)


def test_waits_grow_threefold_with_jitter_and_have_a_ceiling() -> None:
    assert [retry_delay(n, 1.0).total_seconds() for n in range(1, 11)] == [
        5, 15, 45, 135, 405, 1_215, 3_645, 10_935, 21_600, 21_600,
    ]  # fmt: skip
    assert retry_delay(1, 0.0) == timedelta(seconds=2.5)
    assert retry_delay(10_000, 1.0) == timedelta(hours=6)


@pytest.mark.parametrize(("failed", "most"), [(OUTAGE, 12), (REFUSAL, 5), (GONE, 1)])
def test_how_often_it_is_tried_depends_on_who_is_to_blame(failed: Failed, most: int) -> None:
    verdicts = [judged(failed, n) for n in range(1, most + 1)]

    assert all(isinstance(it, TryAgain) for it in verdicts[:-1])
    assert isinstance(verdicts[-1], GiveUp)
    assert f"{most} tr" in verdicts[-1].reason


def test_what_is_too_old_is_given_up_at_its_next_failure() -> None:
    assert isinstance(judged(OUTAGE, 2, timedelta(hours=71)), TryAgain)
    assert judged(OUTAGE, 2, timedelta(hours=72)) == GiveUp("gave up at an age of 72 h, after 2 tries")


def test_a_setting_of_few_tries_holds_for_all() -> None:
    few = replace(SETTINGS, outbox_attempts=2)

    assert isinstance(decide(REFUSAL, 2, YOUNG, few, 0.5), GiveUp)
    assert isinstance(decide(OUTAGE, 1, YOUNG, few, 0.5), TryAgain)


def test_the_receivers_wish_counts_between_our_own_wait_and_the_ceiling() -> None:
    def wait(asked: timedelta) -> timedelta:
        verdict = judged(replace(OUTAGE, not_before=asked), 1, dice=1.0)
        assert isinstance(verdict, TryAgain)
        return verdict.delay

    assert wait(timedelta(0)) == timedelta(seconds=5)
    assert wait(timedelta(seconds=100)) == timedelta(seconds=100)
    assert wait(timedelta(days=365)) == timedelta(hours=6)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120),
        (" 7 ", 7),
        ("0", 0),
        ("Thu, 01 Jan 2026 00:02:00 GMT", 120),
        ("Wed, 31 Dec 2025 23:00:00 GMT", 0),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1e9", None),
        ("99999999999999999999", None),
    ],
)
def test_a_wish_is_seconds_or_a_date_and_nothing_else(header: str, seconds: int | None) -> None:
    asked = asked_wait(header, datetime(2026, 1, 1, tzinfo=UTC))

    assert asked == (None if seconds is None else timedelta(seconds=seconds))


@pytest.mark.parametrize("attempts", [1, 12, 500])
def test_what_this_worker_cannot_send_waits_and_no_try_is_counted(attempts: int) -> None:
    missing = Failed("webhooks need an extra", Patience.FREE)

    verdict = decide(missing, attempts, timedelta(days=30), NotificationSettings(), 0.5)

    assert verdict == TryAgain(timedelta(seconds=30), charged=False)
