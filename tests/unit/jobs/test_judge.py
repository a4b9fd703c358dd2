"""What an exception of a handler means for its step."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from stepfast import PermanentError, Retry, StepCancelled, TransientError
from stepfast.errors import (
    ArgumentsError,
    ConstraintError,
    PoisonedTransactionError,
    StepTimeout,
    UnreachableError,
)
from stepfast.jobs.outcome import Again, Bury, Stop
from stepfast.jobs.retry import OUTAGES_IN_A_ROW, HandlerOutages, describe, fingerprint, grouped, judge
from stepfast.telemetry.masking import storable, without_secrets

RETRY = Retry(attempts=3, first="10s")


def test_an_ordinary_error_is_tried_again_after_its_wait() -> None:
    verdict = judge(ValueError("no"), RETRY, failures=0, dice=0.0)

    assert verdict == Again(timedelta(seconds=5), "ValueError: no", "ValueError: no", charged=True)


@pytest.mark.parametrize(("failures", "expected"), [(0, Again), (1, Again), (2, Bury), (7, Bury)])
def test_the_last_attempt_is_the_last(failures: int, expected: type) -> None:
    assert isinstance(judge(ValueError(), RETRY, failures, 0.5), expected)


@pytest.mark.parametrize(
    "error", [PermanentError("no"), ArgumentsError("work", "no"), ConstraintError("UNIQUE")], ids=repr
)
def test_what_no_retry_can_help_is_buried_at_once(error: Exception) -> None:
    assert isinstance(judge(error, RETRY, 0, 0.5), Bury)


def test_a_transient_error_is_not_charged_even_at_the_last_attempt() -> None:
    verdict = judge(TransientError("429", delay=timedelta(minutes=2)), RETRY, failures=9, dice=0.5)

    assert verdict == Again(timedelta(minutes=2), "TransientError: 429", "TransientError: …", charged=False)


def test_a_transient_error_without_a_delay_waits_a_while() -> None:
    verdict = judge(TransientError("429"), RETRY, 0, 0.5)

    assert isinstance(verdict, Again)
    assert verdict.delay > timedelta(seconds=1)


def outage() -> UnreachableError:
    error = UnreachableError("gone")
    error.origin = 1
    return error


def test_an_outage_of_our_database_is_not_charged_and_one_of_another_is() -> None:
    outages = HandlerOutages(1, lambda: True)
    other = UnreachableError("gone")
    other.origin = 2

    assert isinstance(outages.excused(outage(), "job"), TransientError)
    assert outages.excused(other, "job") is other


def test_a_job_that_meets_one_outage_after_the_other_is_charged_in_the_end() -> None:
    """Its handler is the cause, perhaps: a statement larger than the server takes ends the connection each time."""
    outages, error = HandlerOutages(1, lambda: True), outage()

    excused = [outages.excused(error, "job") is not error for _ in range(OUTAGES_IN_A_ROW + 1)]

    assert excused == [True] * (OUTAGES_IN_A_ROW - 1) + [False, True]
    assert outages.excused(error, "another job") is not error


def test_an_outage_that_the_heartbeat_meets_too_is_never_charged() -> None:
    outages, error = HandlerOutages(1, lambda: False), outage()

    assert all(outages.excused(error, "job") is not error for _ in range(3 * OUTAGES_IN_A_ROW))


def test_a_step_that_was_asked_to_stop_stops() -> None:
    assert isinstance(judge(StepCancelled("by an operator"), RETRY, 0, 0.5), Stop)


@pytest.mark.parametrize(
    "error", [StepTimeout(timedelta(seconds=1)), PoisonedTransactionError("x"), SystemExit(1)], ids=repr
)
def test_everything_else_is_an_ordinary_failure(error: BaseException) -> None:
    assert isinstance(judge(error, RETRY, 0, 0.5), Again)


def test_an_error_is_described_by_type_and_message() -> None:
    assert describe(ValueError("  no such order ")) == "ValueError: no such order"
    assert describe(ValueError()) == "ValueError"


def test_a_description_has_a_bounded_length() -> None:
    assert len(describe(ValueError("x" * 100_000))) == 4_000


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://me:hunter2@host/db", "postgresql://me:***@host/db"),
        ("mysql://:hunter2@host", "mysql://:***@host"),
        ("password=hunter2 for user me", "password=*** for user me"),
        ("Password: 'hunter2'", "Password: '***'"),
        ('{"token": "abc", "n": 1}', '{"token": "***", "n": 1}'),
        ("https://x/?api_key=abc&page=2", "https://x/?api_key=***&page=2"),
        ("secret=abc; other", "secret=***; other"),
        ("see http://host:80/path and a@b", "see http://host:80/path and a@b"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer ***"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic ***"),
        ("refused whsec_C2FVsBQIhrscChlQIMV", "refused whsec_***"),
        ("AccountName=a;AccountKey=Eby8vdM0+/x==;Suffix=b", "AccountName=a;AccountKey=***;Suffix=b"),
        ("SharedAccessKeyName=n;SharedAccessKey=abc=", "SharedAccessKeyName=n;SharedAccessKey=***"),
        ("https://a.example/q?se=1&sig=abc%2B&sv=2", "https://a.example/q?se=1&sig=***&sv=2"),
        ("key sk_live_51Habcdefgh is wrong", "key sk_live_*** is wrong"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIA***"),
        ("a basic understanding of authorization", "a basic understanding of authorization"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, masked: str) -> None:
    assert without_secrets(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "x" * 200_000,
        "a:" * 100_000,
        "a://b:" * 30_000,
        "password " * 20_000,
        "'" * 200_001,
        "bearer " * 30_000,
    ],
    ids=["word", "colons", "urls", "passwords", "quotes", "bearers"],
)
def test_a_message_of_any_length_holds_nobody_up(text: str) -> None:
    before = time.process_time()
    without_secrets(text)
    describe(ValueError(text))
    fingerprint(ValueError(text))

    assert time.process_time() - before < 1.0


def test_a_secret_at_the_cut_is_still_masked() -> None:
    error = ValueError("x" * 3_980 + " postgresql://me:hunter2hunter2@host/db")

    assert "hunter" not in describe(error)


def test_what_no_database_stores_is_spelled_out() -> None:
    assert storable("a\0b \udc80 ü🙂") == r"a\0b \udc80 ü🙂"
    assert describe(ValueError("a\0b")) == r"ValueError: a\0b"


def test_failures_of_one_cause_have_one_fingerprint() -> None:
    errors = [
        ValueError("order 17: amount 3.50 of 'A-17' is wrong\nmore detail 1"),
        ValueError("order 4711: amount 12 of 'B' is wrong\nmore detail 2"),
    ]

    assert len({fingerprint(error) for error in errors}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (KeyError("a"), ValueError("a")),
        (ValueError("order 1 is wrong"), ValueError("customer 1 is wrong")),
    ],
)
def test_failures_of_different_causes_have_different_fingerprints(one: Exception, other: Exception) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_a_fingerprint_has_neither_values_nor_secrets() -> None:
    text = grouped("job 0190a1b2-0000-7000-8000-0123456789ab at 0xdeadBEEF: 'x' \"y\" 3.14 password=abc")

    assert text == "job … at …: … … … password=***"
    assert len(grouped("x" * 1000)) == 200
