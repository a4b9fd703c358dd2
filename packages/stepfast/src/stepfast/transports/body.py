"""Bodies of messages as other programs write them: which JSON a body holds, whatever it is wrapped in.

Senders hand on JSON as it is, as a JSON string (the JavaScript SDK of Service Bus does that to the answer of
`JSON.stringify`), as base64 in either alphabet (SDKs of Storage Queue), as UTF-16 (PowerShell and .NET call that
"Unicode"), and as several of these around each other. Every step here takes time in proportion to the text.
"""

from __future__ import annotations

import binascii
import json
from typing import Final

MOST_WRAPPINGS: Final = 8  # that are taken off
_URL_SAFE: Final = str.maketrans("-_", "+/")
_MARK: Final = "\ufeff"  # of the byte order


def text_of(data: bytes) -> str:
    """The text of a body: UTF-8, or UTF-16 or UTF-32 if it begins like JSON in one of them."""
    try:
        return data.decode(json.detect_encoding(data))
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def json_inside(body: str) -> str:
    """The JSON object or list that a body holds, without what it is wrapped in; the body itself if it holds none."""
    given = found = _trimmed(body)
    for _ in range(MOST_WRAPPINGS + 1):
        if found.startswith(("{", "[")):
            return found
        inside = _from_json_string(found) if found.startswith('"') else from_base64(found)
        if inside is None:
            break
        found = _trimmed(inside)
    return given


def from_base64(text: str) -> str | None:
    """The text inside base64, of either alphabet, with or without its padding; None if this is something else."""
    digits = "".join(text.split()).translate(_URL_SAFE).rstrip("=")
    if not digits or not digits.isascii():
        return None
    try:
        data = binascii.a2b_base64(digits + "=" * (-len(digits) % 4), strict_mode=True)
        return data.decode(json.detect_encoding(data))
    except ValueError:  # the errors of base64 and of Unicode are
        return None


def _from_json_string(text: str) -> str | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, str) else None


def _trimmed(text: str) -> str:
    return text.strip().removeprefix(_MARK).strip()
