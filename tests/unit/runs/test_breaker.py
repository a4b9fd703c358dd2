"""What the exceptions of a source mean."""

from __future__ import annotations

import errno
import socket
import ssl
import urllib.error
from datetime import UTC, datetime, timedelta
from email.message import Message
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from stepfast import AuthError, OutageError, PermanentError, ThrottledError, TransientError
from stepfast.errors import AnswerError, CursorExpiredError
from stepfast.runs.breaker import LONGEST_RETRY_AFTER, SourceError, SourceErrorKind, classify

NOW = datetime(2031, 3, 1, 12, tzinfo=UTC)
SECONDS_90 = timedelta(seconds=90)


def answered(status: int, **headers: str) -> httpx.HTTPStatusError:
    """What httpx raises for such an answer."""
    request = httpx.Request("GET", "https://source.example/items")
    response = httpx.Response(
        status, headers={name.replace("_", "-"): value for name, value in headers.items()}, request=request
    )
    return httpx.HTTPStatusError("no", request=request, response=response)


def meaning(error: Exception) -> SourceError:
    return classify(error, NOW)


@pytest.mark.parametrize(
    ("error", "kind", "retry_after"),
    [
        (ThrottledError("slow down", retry_after="90s"), "throttle", SECONDS_90),
        (ThrottledError("slow down"), "throttle", None),
        (OutageError("maintenance", delay=90), "outage", SECONDS_90),
        (AuthError("the token was revoked"), "auth", None),
        (TransientError("later", delay=SECONDS_90), "outage", SECONDS_90),
        (TransientError("later", delay="soon"), "outage", None),
    ],
)
def test_a_feed_may_say_it_itself(error: Exception, kind: str, retry_after: timedelta | None) -> None:
    assert meaning(error) == SourceError(SourceErrorKind(kind), retry_after)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, "throttle"),
        (401, "auth"),
        (403, "auth"),
        (407, "auth"),
        (500, "outage"),
        (502, "outage"),
        (503, "outage"),
        (504, "outage"),
        (408, "outage"),
        (522, "outage"),
        (400, "data"),
        (404, "data"),
        (422, "data"),
        (501, "data"),
    ],
)
def test_an_http_status_says_who_is_to_blame(status: int, kind: str) -> None:
    assert meaning(answered(status)).kind == kind


@pytest.mark.parametrize("status", [429, 503, 403])
def test_a_source_that_says_when_to_come_back_is_busy_not_broken(status: int) -> None:
    assert meaning(answered(status, Retry_After="90")) == SourceError(SourceErrorKind.THROTTLE, SECONDS_90)


def test_a_date_to_come_back_is_read_by_the_clock_of_the_source() -> None:
    late = answered(429, Retry_After="Sat, 01 Mar 2031 13:01:30 GMT", Date="Sat, 01 Mar 2031 13:00:00 GMT")
    ours = answered(429, Retry_After="Sat, 01 Mar 2031 12:01:30 GMT")

    assert meaning(late).retry_after == SECONDS_90
    assert meaning(ours).retry_after == SECONDS_90


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("soon", None),
        ("-5", timedelta(0)),
        ("nan", None),
        ("1e300", None),
        ("99999999", LONGEST_RETRY_AFTER),
        ("Sat, 01 Mar 2031 11:00:00 GMT", timedelta(0)),
        ("2.5", timedelta(seconds=2.5)),
    ],
)
def test_whatever_retry_after_says_the_wait_is_one_that_can_be_waited(
    text: str, expected: timedelta | None
) -> None:
    assert meaning(answered(429, Retry_After=text)).retry_after == expected


def test_the_answers_of_other_libraries_are_read_as_well() -> None:
    headers = Message()
    headers["Retry-After"] = "90"
    of_urllib = urllib.error.HTTPError("https://source.example", 429, "no", headers, None)
    of_aiohttp: Any = RuntimeError("no")
    of_aiohttp.status, of_aiohttp.headers = 503, {"Retry-After": "90"}
    of_requests: Any = RuntimeError("no")
    of_requests.response = SimpleNamespace(status_code=401, headers=None)

    assert meaning(of_urllib) == SourceError(SourceErrorKind.THROTTLE, SECONDS_90)
    assert meaning(of_aiohttp) == SourceError(SourceErrorKind.THROTTLE, SECONDS_90)
    assert meaning(of_requests) == SourceError(SourceErrorKind.AUTH)


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionResetError(),
        socket.gaierror(socket.EAI_AGAIN, "try again"),
        OSError(errno.ENETUNREACH, "network is unreachable"),
        ssl.SSLError("handshake failed"),
        httpx.ConnectTimeout("slow"),
        httpx.ConnectError("refused"),
        httpx.ReadError("cut"),
        httpx.RemoteProtocolError("half an answer"),
        urllib.error.URLError("no route"),
    ],
    ids=lambda it: type(it).__name__,
)
def test_a_network_that_fails_is_an_outage(error: Exception) -> None:
    assert meaning(error) == SourceError(SourceErrorKind.OUTAGE, broke_off=True)


def test_an_outage_that_a_feed_raises_tells_by_its_cause_whether_there_was_no_answer() -> None:
    wrapped, answered = OutageError("away"), OutageError("503")
    wrapped.__cause__ = httpx.ReadError("cut off")

    assert classify(wrapped, NOW) == SourceError(SourceErrorKind.OUTAGE, broke_off=True)
    assert classify(answered, NOW) == SourceError(SourceErrorKind.OUTAGE)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("not JSON"), "data"),
        (AnswerError("page", "is wrong"), "data"),
        (PermanentError("never"), "data"),
        (CursorExpiredError("old"), "data"),
        (KeyError("items"), "bug"),
        (AttributeError("items"), "bug"),
        (FileNotFoundError(errno.ENOENT, "no such file"), "bug"),
        (httpx.UnsupportedProtocol("htp://"), "bug"),
    ],
    ids=lambda it: type(it).__name__ if isinstance(it, Exception) else it,
)
def test_what_waiting_cannot_cure_is_tried_again_by_the_ordinary_attempts(
    error: Exception, kind: str
) -> None:
    trouble = meaning(error)

    assert trouble.kind == kind
    assert not trouble.waits


def test_an_error_wrapped_in_another_keeps_its_meaning() -> None:
    wrapped = RuntimeError("could not read the page")
    wrapped.__cause__ = answered(429, Retry_After="90")

    assert meaning(wrapped) == SourceError(SourceErrorKind.THROTTLE, SECONDS_90)


def test_causes_that_go_in_a_circle_are_not_followed_for_ever() -> None:
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one

    assert meaning(one).kind is SourceErrorKind.BUG
