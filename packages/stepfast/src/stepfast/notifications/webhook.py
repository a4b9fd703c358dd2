"""Send a webhook once: signed, to an address that may be reached, within one deadline, without following redirects.

A webhook is staged in a transaction (`outbox/messages.py`). After the commit the relay of a worker (`worker/relay.py`)
takes its destination (`outbox/destinations.py`, which also decides when to try again), calls `send` here, and records the
answer. Which addresses may be reached is in `notifications/network.py`.

Of the answer, the status decides; its text is kept up to a bound, and the rest is not read. The last part of this file
signs and verifies, for both sides.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

from stepfast.errors import AddressRefusedError, ConfigurationError, SignatureError, install_hint
from stepfast.telemetry.masking import visible

if TYPE_CHECKING:
    import ssl

    import httpcore

    from stepfast.notifications.settings import NotificationSettings


class Patience(Enum):
    """How long a message that failed is tried again."""

    FULL = "full"  # an outage, a throttle: it may pass
    LITTLE = "little"  # the receiver does not want it as it is, or we may not send it; a few more tries
    NONE = "none"  # the receiver asked us to stop
    FREE = "free"  # nothing was sent, and it is not the message's fault: it waits, and no try is counted


@dataclass(frozen=True)
class Delivered:
    """The receiver has the message."""

    replaced: str | None = None  # of an export: the document that a person had put in its place


@dataclass(frozen=True)
class Failed:
    """The receiver does not have the message, or its answer was lost. It is sent again, under its old id."""

    reason: str  # fit for logs: no payload, no secret
    patience: Patience = Patience.FULL
    not_before: timedelta | None = None  # the delay that the receiver asked for
    answer: str = ""  # the beginning of the receiver's answer; kept with the message, not logged
    answered: bool = False  # whether the receiver said something, if only that it does not want it
    timed_out: bool = False  # whether it did not answer in time; its host may do so to all
    hidden: str = ""  # of the reason: for operators, and not for alerts, which may leave the house


Delivery = Delivered | Failed


LARGEST_BODY: Final = 256 * 1024
LARGEST_ANSWER: Final = 64 * 1024  # bytes read of an answer; the rest is not waited for
LONGEST_URL: Final = 2_000
LONGEST_EXCERPT: Final = 300
ENOUGH: Final = range(200, 300)
ELSEWHERE: Final = range(300, 400)
REFUSED: Final = range(400, 500)
GONE: Final = 410
MAY_PASS: Final = frozenset({408, 409, 425, 429})  # of the 400s: a matter of time
TRACE: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True)
class Webhook:
    """A request. It is not changed between tries."""

    id: str
    url: str
    body: str
    headers: Mapping[str, str]
    trace: str | None = None


def problem_of(url: object) -> str | None:  # noqa: PLR0911 - one line per problem
    """Why this is no URL for a webhook; None if it is one."""
    if not isinstance(url, str):
        return f"a URL is a text, not {type(url).__name__}"
    if len(url) > LONGEST_URL:
        return f"its URL has {len(url):,} characters, at most {LONGEST_URL:,} are taken"
    if not url.isascii() or re.search(r"[\x00-\x20\x7f\\]", url):
        return (
            "its URL has spaces, backslashes or characters beyond ASCII; write them as %20, xn--… and so on"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"its URL cannot be read ({error})"
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return f"{shown(url)!r} is no http:// or https:// URL with a host"
    if "@" in parts.netloc:
        return "its URL holds credentials (user:password@), which would be stored and sent in the clear; leave them out"
    return "its URL names port 0" if port == 0 else None


def shown(url: str) -> str:
    """The URL as it may be listed and logged: without credentials, and without its query."""
    try:
        parts = urlsplit(url)
        place = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, place, parts.path, "…" if parts.query else "", ""))
    except ValueError:
        return "(a URL that cannot be read)"


def send(webhook: Webhook, settings: NotificationSettings, now: float | None = None) -> Delivery:
    """Send a webhook once. Everything that may go wrong is an answer, not an exception."""
    host = urlsplit(webhook.url).hostname or ""
    body = webhook.body.encode()
    at = time.time() if now is None else now
    try:
        keys = settings.secrets.for_host(host)
        headers = {
            "user-agent": _ourselves(),
            "content-type": "application/json",
            **{name.lower(): value for name, value in webhook.headers.items()},
            "webhook-id": webhook.id,
            "webhook-timestamp": str(int(at)),
        }
        if keys:
            headers["webhook-signature"] = sign(keys, webhook.id, int(at), body)
        if webhook.trace and TRACE.fullmatch(webhook.trace):
            headers["traceparent"] = webhook.trace
        return _post(webhook.url, headers, body, settings)
    except ConfigurationError as error:
        return Failed(str(error), Patience.FREE)  # a matter of this worker's settings


def _post(url: str, headers: dict[str, str], body: bytes, settings: NotificationSettings) -> Delivery:
    try:
        import httpcore
    except ImportError as missing:
        raise ConfigurationError(f"webhooks need an extra: {install_hint('webhooks')}") from missing
    from stepfast.notifications.network import CONNECTING, CheckedNetwork, Deadline

    total = settings.webhook_timeout.total_seconds()
    network = CheckedNetwork(settings.allowed, Deadline(total))
    tls = _tls() if url.startswith("https:") else None
    limits = {"connect": CONNECTING, "read": total, "write": total, "pool": total}
    try:
        with (
            httpcore.ConnectionPool(ssl_context=tls, network_backend=network, max_connections=1) as pool,
            pool.stream(
                "POST", url, headers=list(headers.items()), content=body, extensions={"timeout": limits}
            ) as response,
        ):
            received = {name.decode("latin-1").lower(): value for name, value in response.headers}
            beginning = b"" if response.status in ENOUGH else _beginning(response)
            return judge(
                response.status,
                received.get("retry-after", b"").decode("latin-1"),
                datetime.now(UTC),
                beginning,
            )
    except AddressRefusedError as error:
        found = ", ".join(error.addresses)
        return Failed(str(error), Patience.LITTLE, hidden="" if found == error.host else found)
    except httpcore.TimeoutException as error:
        return Failed(f"no answer within {total:g} s ({type(error).__name__})", timed_out=True)
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        return Failed(f"{type(error).__name__}: {error}"[:LONGEST_EXCERPT])


def _beginning(response: httpcore.Response) -> bytes:
    """The beginning of an answer; what breaks while it is read changes nothing, since the status counts."""
    import httpcore

    found = b""
    try:
        for chunk in response.iter_stream():
            found += chunk
            if len(found) >= LARGEST_ANSWER:
                break
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
        pass
    return found


def judge(status: int, retry_after: str, now: datetime, beginning: bytes = b"") -> Delivery:
    """What the answer of a receiver means for its webhook."""
    if status in ENOUGH:
        return Delivered()
    text = " ".join(beginning[: 4 * LONGEST_EXCERPT].decode(errors="replace").split())
    answer = visible(text)[:LONGEST_EXCERPT]  # it will be read on a terminal
    if status in ELSEWHERE:
        return Failed(
            f"HTTP {status}: it points elsewhere, and redirects are not followed; give the final URL",
            Patience.LITTLE,
            answer=answer,
            answered=True,
        )
    if status == GONE:
        return Failed(
            "HTTP 410: the receiver wants no more of them", Patience.NONE, answer=answer, answered=True
        )
    patience = Patience.LITTLE if status in REFUSED and status not in MAY_PASS else Patience.FULL
    wait = asked_wait(retry_after, now)
    return Failed(f"HTTP {status}", patience, not_before=wait, answer=answer, answered=True)


def asked_wait(retry_after: str, now: datetime) -> timedelta | None:
    """How long the receiver wants us to wait, given as seconds or as a date; None if it cannot be read."""
    from email.utils import parsedate_to_datetime

    text = retry_after.strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return timedelta(seconds=int(text))
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return max(timedelta(0), at.replace(tzinfo=at.tzinfo or UTC) - now)


@lru_cache(maxsize=1)
def _ourselves() -> str:
    from importlib.metadata import version

    return f"stepfast/{version('stepfast')}"


@lru_cache(maxsize=1)  # reading all authorities takes 20 ms
def _tls() -> ssl.SSLContext:
    import httpx

    context: Any = httpx.create_ssl_context()
    found: ssl.SSLContext = context
    return found


# Signatures as Standard Webhooks defines them, so that any of its libraries can verify what we send: `v1,` and the base64
# of HMAC-SHA256 over "id.timestamp.body". While a secret is being replaced, a message is signed with the old and with the
# new one, so that a receiver may know either of them.

PREFIX: Final = "whsec_"
UNSIGNED: Final = "none"  # instead of secrets: send unsigned, on purpose
SHORTEST: Final = 24  # bytes of a secret
LONGEST: Final = 64
TOLERANCE: Final = timedelta(minutes=5)
_FOR_HOST: Final = re.compile(rf"([^=\s]+)=({PREFIX}\S*)")


@dataclass(frozen=True)
class Secrets:
    """The secrets that webhooks are signed with, by the receiver's host; "" means all other hosts."""

    of_host: Mapping[str, tuple[bytes, ...]] = field(repr=False)
    unsigned: bool

    @classmethod
    def read(cls, given: Sequence[str]) -> Secrets:
        """Read `whsec_…` for all hosts, `host=whsec_…` for one host only, or the word `none` alone."""
        if list(given) == [UNSIGNED]:
            return cls({}, unsigned=True)
        found: dict[str, tuple[bytes, ...]] = {}
        for text in given:
            host, secret = match.groups() if (match := _FOR_HOST.fullmatch(text)) else ("", text)
            found[host.lower()] = (*found.get(host.lower(), ()), key_of(secret))
        return cls(found, unsigned=False)

    def for_host(self, host: str) -> tuple[bytes, ...]:
        """The secrets of this receiver; raises if there are none and unsigned webhooks are not allowed."""
        chosen = self.of_host.get(host.lower()) or self.of_host.get("")
        if chosen:
            return chosen
        if self.unsigned:
            return ()
        raise ConfigurationError(
            f"no secret to sign webhooks to {host} with: make one with `stepfast outbox secret` and set "
            f"STEPFAST_WEBHOOK_SECRETS for the worker, or set it to '{UNSIGNED}' to send unsigned"
        )


def new_secret() -> str:
    """A secret for `STEPFAST_WEBHOOK_SECRETS` and for the receiver."""
    return PREFIX + base64.b64encode(os.urandom(32)).decode()


def key_of(secret: str) -> bytes:
    """The bytes behind `whsec_…`. The error does not repeat the secret."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigurationError(
            "a webhook secret is no base64; write whsec_… as `stepfast outbox secret` prints it"
        ) from error
    if not secret.startswith(PREFIX) or not SHORTEST <= len(key) <= LONGEST:
        raise ConfigurationError(
            f"a webhook secret is '{PREFIX}' and the base64 of {SHORTEST} to {LONGEST} random bytes; "
            "make one with `stepfast outbox secret`"
        )
    return key


def sign(keys: Iterable[bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature`: one signature per key."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return " ".join(
        f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}" for key in keys
    )


def verify(
    body: bytes | str,
    headers: Mapping[str, str],
    secrets: str | Sequence[str],
    *,
    tolerance: timedelta = TOLERANCE,
    now: float | None = None,
) -> str:
    """For receivers: return the id of a webhook that was signed with one of `secrets`, or raise `SignatureError`.

    An id may come more than once: do nothing the second time.
    """
    sent = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, stamp, given = (
            sent[name] for name in ("webhook-id", "webhook-timestamp", "webhook-signature")
        )
    except KeyError as missing:
        raise SignatureError(f"the header {missing.args[0]} is missing") from missing
    if not re.fullmatch(r"[0-9]{1,15}", stamp):
        raise SignatureError("the header webhook-timestamp is no number of seconds")
    away = abs((time.time() if now is None else now) - int(stamp))
    if away > tolerance.total_seconds():
        raise SignatureError(f"it was signed {away:.0f} s away from now; at most {tolerance} are accepted")
    try:
        content = body.encode() if isinstance(body, str) else body
        message_id.encode()
        given.encode()
    except UnicodeEncodeError:
        raise SignatureError(
            "the body or a header holds half a character (a lone surrogate), which was never signed"
        ) from None
    keys = [key_of(it) for it in ([secrets] if isinstance(secrets, str) else secrets)]
    expected = sign(keys, message_id, int(stamp), content).split()
    # Every pair is compared, whatever the others said: the time taken tells nothing.
    matches = [
        hmac.compare_digest(theirs.encode(), ours.encode()) for theirs in given.split() for ours in expected
    ]
    if not any(matches):
        raise SignatureError("none of its signatures was made with a secret of ours")
    return message_id
