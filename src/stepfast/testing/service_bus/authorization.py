"""Who may come in: shared access signatures and tokens of an identity, as the `$cbs` node takes them.

A signature is checked with the key. Of an identity's token only the audience and the end are checked: nobody here
knows the keys of Entra.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlparse

AUDIENCE = "https://servicebus.azure.net"
PARTS_OF_A_JWT = 3


@dataclass(frozen=True)
class Key:
    """A shared access policy of the namespace."""

    name: str
    value: str


def entity(audience: str) -> str:
    """The queue for which a token is meant, or nothing for the whole namespace."""
    path = urlparse(audience).path.strip("/").lower()
    return path.removesuffix("/$management").removesuffix("/$deadletterqueue")


def complaint(token: object, key: Key) -> str:
    """What is wrong with a token; empty if nothing is. Its kind is seen in it: Python's SDK calls every one a JWT."""
    text = token.decode("ascii", "replace") if isinstance(token, bytes) else str(token)
    scheme, _, signature = text.partition(" ")
    if scheme == "SharedAccessSignature":
        return _complaint_about_signature(signature, key)
    return _complaint_about_identity(text)


def _complaint_about_signature(token: str, key: Key) -> str:
    given = dict(parse_qsl(token, keep_blank_values=True))
    if not {"sr", "sig", "se", "skn"} <= given.keys():
        return "MalformedToken: The signature lacks a part."
    # What was signed is the resource as it stands in the token, not what it means.
    resource = next(part.removeprefix("sr=") for part in token.split("&") if part.startswith("sr="))
    digest = hmac.digest(key.value.encode(), f"{resource}\n{given['se']}".encode(), hashlib.sha256)
    if given["skn"] != key.name or not hmac.compare_digest(base64.b64encode(digest).decode(), given["sig"]):
        return "InvalidSignature: The token has an invalid signature."
    return _complaint_about_end(given["se"])


def _complaint_about_identity(token: str) -> str:
    parts = token.split(".")
    if len(parts) != PARTS_OF_A_JWT:
        return "MalformedToken: The token is no JSON Web Token."
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        audience, end = str(claims["aud"]), str(claims["exp"])
    except (binascii.Error, ValueError, KeyError, TypeError):
        return "MalformedToken: The token cannot be read."
    if audience.rstrip("/") != AUDIENCE:
        return f"InvalidAudience: The token is meant for {audience}."
    return _complaint_about_end(end)


def _complaint_about_end(end: str) -> str:
    if not end.isdigit() or int(end) <= time.time():
        return "ExpiredToken: The token is expired."
    return ""
