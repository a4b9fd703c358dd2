"""Signed addresses: each sends one event, once, until it expires, and nothing else.

The token names the event and its expiry, and is signed under STEPFAST_SECRET_KEY. So nothing is stored when an address
is made, and no one else can make one. That it works only once is the business of the event's id.
"""

from __future__ import annotations

import os
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Final

import msgspec

from stepfast.clock import micros
from stepfast.encryption import keyring
from stepfast.errors import ConfigurationError, SignatureError
from stepfast.jobs.wait import checked_event

if TYPE_CHECKING:
    from datetime import timedelta


CALLBACK_URL: Final = "STEPFAST_CALLBACK_URL"  # where the callbacks of this system are received
LONGEST_TOKEN: Final = 1_000
_PURPOSE: Final = "callback"


class Claim(msgspec.Struct, frozen=True):
    """What a token says: the event, and until when it may be sent."""

    event: str = msgspec.field(name="e")
    until: int = msgspec.field(name="x")  # microseconds
    lasts: int = msgspec.field(
        name="l", default=0
    )  # from its signing on, in microseconds; 0: it does not say


def sign(event: str, lasts: timedelta) -> str:
    """A token for one event, good for so long by the clock of this process."""
    claim = Claim(checked_event(event), time.time_ns() // 1_000 + micros(lasts), micros(lasts))
    text = _text(msgspec.json.encode(claim))
    return f"{text}.{_text(keyring().sign(text, _PURPOSE))}"


def url_of(event: str, lasts: timedelta) -> str:
    """The address that sends this event."""
    base = os.environ.get(CALLBACK_URL, "").rstrip("/")
    if not base:
        raise ConfigurationError(
            f"{CALLBACK_URL} is not set: say where callbacks are received, such as https://example.com/callbacks"
        )
    return f"{base}/{sign(event, lasts)}"


def read(token: str) -> Claim:
    """What the token says, if it was signed by us; when it ends is for the database's clock to judge."""
    text, _, signature = token.partition(".")
    try:
        if len(token) > LONGEST_TOKEN or not keyring().signed(text, _bytes(signature), _PURPOSE):
            raise SignatureError("this callback was not signed by us")
        return msgspec.json.decode(_bytes(text), type=Claim)
    except ValueError:  # neither base64 nor JSON
        raise SignatureError("this callback was not signed by us") from None


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    if not text.isascii():
        raise ValueError
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
