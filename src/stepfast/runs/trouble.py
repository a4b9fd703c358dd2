"""What an exception of the source means: wait, or try again as often as the policy allows. Pure.

Who waits for a source that is busy, away or locked spends no attempt; who brought a bad page or has a bug does.
Exceptions of HTTP libraries are told apart by what they carry, so that none of them has to be installed.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, Final

from stepfast.clock import duration
from stepfast.errors import (
    AuthError,
    ConfigurationError,
    DatabaseError,
    StepfastError,
    ThrottledError,
    TransientError,
)

LONGEST_RETRY_AFTER: Final = timedelta(hours=24)
DEEPEST_CAUSE: Final = 5

THROTTLED: Final = 429
LOCKED_OUT: Final = (401, 403, 407)
TRY_LATER: Final = 503
AWAY: Final = (408, 425, 500, 502, 503, 504)
GATEWAYS: Final = range(
    506, 600
)  # such as 520 to 527 of content networks; 501 and 505 will not change by waiting

NETWORK_LIBRARIES: Final = ("httpx", "httpcore", "aiohttp", "requests", "urllib3", "urllib", "http", "anyio")
NETWORK_ERRORS: Final = (
    "TimeoutException",
    "NetworkError",
    "RemoteProtocolError",
    "ProxyError",
    "ClientConnectionError",
    "ClientPayloadError",
    "ConnectionError",
    "Timeout",
    "ChunkedEncodingError",
    "IncompleteRead",
    "RemoteDisconnected",
    "ProtocolError",
    "URLError",
)
NETWORK_CODES: Final = {
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.ECONNREFUSED,
    errno.ECONNABORTED,
    errno.EPIPE,
}


class TroubleKind(StrEnum):
    THROTTLE = "throttle"  # the source wants fewer requests
    OUTAGE = "outage"  # it does not answer, or not as it should
    AUTH = "auth"  # it does not let us in
    DATA = "data"  # it answered something that cannot be right
    BUG = "bug"  # our code, or the feed's


WAITS: Final = (TroubleKind.THROTTLE, TroubleKind.OUTAGE, TroubleKind.AUTH)


@dataclass(frozen=True)
class Trouble:
    kind: TroubleKind
    retry_after: timedelta | None = None  # what the source itself asks for

    @property
    def waits(self) -> bool:
        """Whether waiting may cure it: then the feed pauses, and no attempt is spent."""
        return self.kind in WAITS


def classify(error: BaseException, now: datetime) -> Trouble:
    """Judge what a call to the source raised; `now` is for a Retry-After that names a date."""
    seen: BaseException | None = error
    for _ in range(DEEPEST_CAUSE):
        if seen is None:
            break
        if (trouble := _recognised(seen, now)) is not None:
            return trouble
        seen = seen.__cause__  # a feed that wraps an error in its own has not changed what happened
    return Trouble(TroubleKind.DATA if isinstance(error, ValueError | StepfastError) else TroubleKind.BUG)


def _recognised(error: BaseException, now: datetime) -> Trouble | None:
    if isinstance(error, TransientError):
        return Trouble(_kind_of(error), _span(error.delay))
    if isinstance(error, StepfastError) and not isinstance(error, DatabaseError):
        return Trouble(TroubleKind.DATA)
    status, headers = _answer(error)
    if status is not None:
        return _of_status(status, _retry_after(headers, now))
    return Trouble(TroubleKind.OUTAGE) if _is_network(error) else None


def _kind_of(error: TransientError) -> TroubleKind:
    if isinstance(error, ThrottledError):
        return TroubleKind.THROTTLE
    return TroubleKind.AUTH if isinstance(error, AuthError) else TroubleKind.OUTAGE


def _of_status(status: int, retry_after: timedelta | None) -> Trouble:
    if status == THROTTLED or (status in (*LOCKED_OUT, TRY_LATER) and retry_after is not None):
        return Trouble(TroubleKind.THROTTLE, retry_after)
    if status in LOCKED_OUT:
        return Trouble(TroubleKind.AUTH)
    if status in AWAY or status in GATEWAYS:
        return Trouble(TroubleKind.OUTAGE, retry_after)
    return Trouble(TroubleKind.DATA)


def _answer(error: BaseException) -> tuple[int | None, Mapping[str, Any]]:
    """The HTTP status and headers that the exception carries: of httpx and requests, aiohttp, urllib."""
    response = getattr(error, "response", None)
    for owner, name in ((response, "status_code"), (response, "status"), (error, "status_code"), (error, "status"), (error, "code")):  # fmt: skip
        status = getattr(owner, name, None)
        if isinstance(status, int) and not isinstance(status, bool) and 100 <= status < 600:  # noqa: PLR2004 - of HTTP
            headers: Any = getattr(owner, "headers", None)
            return status, headers if hasattr(headers, "get") else {}
    return None, {}


def _retry_after(headers: Mapping[str, Any], now: datetime) -> timedelta | None:
    """Seconds, or a date: then by the source's own clock, if it shows it."""
    text = str(headers.get("Retry-After") or headers.get("retry-after") or "").strip()
    if not text:
        return None
    try:
        return _bounded(timedelta(seconds=float(text)))
    except (ValueError, OverflowError):
        at = _date(text)
    if at is None:
        return None
    shown = _date(str(headers.get("Date") or headers.get("date") or ""))
    return _bounded(at - (shown or now))


def _date(text: str) -> datetime | None:
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _span(delay: timedelta | float | str | None) -> timedelta | None:
    try:
        return None if delay is None else _bounded(duration(delay))
    except ConfigurationError:  # a wait that nobody can read is no wait
        return None


def _bounded(span: timedelta) -> timedelta:
    return max(timedelta(0), min(span, LONGEST_RETRY_AFTER))


def _is_network(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror | socket.herror):
        return True
    if isinstance(error, OSError) and error.errno in NETWORK_CODES:
        return True
    return any(
        it.__name__ == "SSLError"
        or (it.__module__.partition(".")[0] in NETWORK_LIBRARIES and it.__name__ in NETWORK_ERRORS)
        for it in type(error).__mro__
    )
