"""Signatures as Standard Webhooks writes them, so that any of its libraries can verify what we send.

`v1,` and the base64 of HMAC-SHA256 over "id.timestamp.body". While a secret is being replaced, a message is signed with
the old and with the new one, and a receiver that knows either of them is content.
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
from datetime import timedelta
from typing import Final

from stepfast.errors import ConfigurationError, SignatureError

PREFIX: Final = "whsec_"
UNSIGNED: Final = "none"  # instead of secrets: send unsigned, on purpose
SHORTEST: Final = 24  # bytes of a secret
LONGEST: Final = 64
TOLERANCE: Final = timedelta(minutes=5)
_FOR_HOST: Final = re.compile(rf"([^=\s]+)=({PREFIX}\S*)")


@dataclass(frozen=True)
class Secrets:
    """With what to sign, by the receiver's host; "" means all other hosts."""

    of_host: Mapping[str, tuple[bytes, ...]] = field(repr=False)
    unsigned: bool

    @classmethod
    def read(cls, given: Sequence[str]) -> Secrets:
        """`whsec_…` for everybody, `host=whsec_…` for one host only, or the word `none` alone."""
        if list(given) == [UNSIGNED]:
            return cls({}, unsigned=True)
        found: dict[str, tuple[bytes, ...]] = {}
        for text in given:
            host, secret = match.groups() if (match := _FOR_HOST.fullmatch(text)) else ("", text)
            found[host.lower()] = (*found.get(host.lower(), ()), key_of(secret))
        return cls(found, unsigned=False)

    def for_host(self, host: str) -> tuple[bytes, ...]:
        """The secrets of this receiver; raises if there are none and nobody asked for that."""
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
    """The bytes behind `whsec_…`. The sentence of a refusal does not repeat the secret."""
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

    The same id may come more than once: do nothing the second time.
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
    content = body.encode() if isinstance(body, str) else body
    keys = [key_of(it) for it in ([secrets] if isinstance(secrets, str) else secrets)]
    expected = sign(keys, message_id, int(stamp), content).split()
    # Every pair is compared, whatever the others said: the time taken tells nothing.
    matches = [
        hmac.compare_digest(theirs.encode(), ours.encode()) for theirs in given.split() for ours in expected
    ]
    if not any(matches):
        raise SignatureError("none of its signatures was made with a secret of ours")
    return message_id
