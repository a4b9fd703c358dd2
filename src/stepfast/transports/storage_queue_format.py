"""How a message looks in Storage Queue, which knows texts only: no ids of ours, no properties, no reasons.

What is ours stands in front, inside the object that the body is:

    {"_stepfast":{"id":"…","subject":"…","properties":{…}},"task_id":"t-1",…}

so that whoever knows nothing of us (a Logic App that hands the text to a container, a person) still reads the body. A
body that is no JSON object, or that XML would spoil, travels as a text in "_text". What others send is taken as it is,
or as base64 of JSON, which is what many of their libraries write.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

OURS: Final = '{"_stepfast":'
TEXT: Final = ',"_text":'
LARGEST_TEXT: Final = 65_536  # bytes of a message
LONGEST_DETAIL: Final = 4_000
# What XML 1.0 has no way to write, or reads differently: \r becomes \n.
_SPOILT: Final = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A message, taken out of its text."""

    id: str
    body: str
    properties: Mapping[str, Any] = field(default_factory=dict)
    subject: str = ""
    dead: Mapping[str, str] = field(default_factory=dict)  # reason, detail, sent_at of a dead letter


def packed(parts: Parts) -> str:
    """The text that is sent."""
    head: dict[str, Any] = {"id": parts.id}
    head |= {"subject": parts.subject} if parts.subject else {}
    head |= {"properties": dict(parts.properties)} if parts.properties else {}
    head |= {"dead": dict(parts.dead)} if parts.dead else {}
    if _stands_alone(parts.body):
        rest = "}" if parts.body == "{}" else f",{parts.body[1:]}"
        return OURS + _json(head) + rest
    return OURS + _json({**head, "text": True}) + TEXT + _json(parts.body) + "}"


def packed_dead(parts: Parts) -> str | None:
    """The same for a dead letter; None where a stranger's text leaves no room for the reason."""
    detail = parts.dead.get("detail", "")
    for length in (LONGEST_DETAIL, 200, 0):
        dead = {**parts.dead, "detail": detail[:length], "reason": parts.dead.get("reason", "")[:200]}
        text = packed(Parts(**{**_fields(parts), "dead": dead}))
        if len(text.encode()) <= LARGEST_TEXT:
            return text
    return None


def unpacked(text: str, broker_id: str) -> Parts:
    """What a text holds, whoever sent it. Nothing is refused here: who cannot use it puts it aside with a reason."""
    if not _is_json(text) and (inside := _from_base64(text)) is not None:
        text = inside
    if text.startswith(OURS):
        try:
            return _ours(text)
        except Exception:  # noqa: BLE001, S110 - somebody else's, in the end, and no text of his may end a worker
            pass
    return Parts(id=broker_id, body=text)


def _ours(text: str) -> Parts:
    head, end = json.JSONDecoder().raw_decode(text, len(OURS))
    rest = text[end:]
    if head.get("text"):
        if not rest.startswith(TEXT):
            raise ValueError("no text")
        body = json.loads(rest[len(TEXT) : -1])
    else:
        body = "{}" if rest == "}" else "{" + rest.removeprefix(",")
    return Parts(
        id=str(head["id"]),
        body=str(body),
        properties=dict(head.get("properties", {})),
        subject=str(head.get("subject", "")),
        dead={str(name): str(value) for name, value in dict(head.get("dead", {})).items()},
    )


def _stands_alone(body: str) -> bool:
    """Whether it is a JSON object that arrives as it is."""
    if not body.startswith("{") or body != body.rstrip() or _SPOILT.search(body):
        return False
    try:
        found = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return False
    return "_stepfast" not in found and (bool(found) or body == "{}")


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return json.dumps(value, separators=(",", ":")) if _SPOILT.search(text) else text


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def _from_base64(text: str) -> str | None:
    """JSON that somebody wrapped up; None if it is not that."""
    try:
        inside = base64.b64decode(text.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return inside if _is_json(inside) else None


def _fields(parts: Parts) -> dict[str, Any]:
    return {"id": parts.id, "body": parts.body, "properties": parts.properties, "subject": parts.subject}
