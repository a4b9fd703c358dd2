"""A job that waits for an event: the cursor of its next step names the event, and receives it.

So the step that goes on finds everything in its own row, however often it is tried, and a job that waits costs
nothing but that row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast.clock import moment
from stepfast.encryption import is_sealed, opened
from stepfast.errors import ConfigurationError
from stepfast.jobs.payload import decode
from stepfast.telemetry.masking import storable

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast.encryption import Keyring


MARK: Final = '{"stepfast.wait":'  # how the cursor of a job begins that waits, or has waited
LONGEST_NAME: Final = 160


@dataclass(frozen=True)
class Event:
    """Something that happened outside, and that this job has waited for."""

    name: str
    id: str
    payload: Any
    sent_at: datetime


class _Arrived(msgspec.Struct):
    id: str
    at: int
    payload: msgspec.Raw


class _Wait(msgspec.Struct):
    name: str
    event: _Arrived | None = None


class _Envelope(msgspec.Struct):
    wait: _Wait = msgspec.field(name="stepfast.wait")
    cursor: msgspec.Raw


def checked_event(name: object) -> str:
    """The name of an event; a name that no database could find again is refused."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        raise ConfigurationError(f"event {name!r:.60}: a text of 1 to {LONGEST_NAME} characters")
    if name != name.rstrip() or name != storable(name):
        raise ConfigurationError(f"event {name!r}: no space at its end, no NUL and no half characters")
    return name


def callback_event(job_id: str, step: int) -> str:
    """The event that the callback of this step sends."""
    return f"callback:{job_id}:{step}"


def waiting_cursor(cursor: str, name: str) -> str:
    """The stored cursor of a job that waits for `name` and goes on at `cursor`, a text of JSON."""
    return _text(_Envelope(_Wait(name), msgspec.Raw(cursor.encode())))


def arrived_cursor(stored: str, event_id: str, at: int, payload: str) -> str:
    """The stored cursor of a job whose event has arrived."""
    envelope = _read(stored)
    envelope.wait.event = _Arrived(event_id, at, msgspec.Raw(payload.encode()))
    return _text(envelope)


def cursor_in(stored: str | None) -> str | None:
    """The cursor that the step before answered with, as a text of JSON."""
    if stored is None or not stored.startswith(MARK):
        return stored
    return bytes(_read(stored).cursor).decode()


def waited_for(stored: str | None) -> str | None:
    """The name of the event that the step before began to wait for."""
    return _read(stored).wait.name if stored is not None and stored.startswith(MARK) else None


def has_arrived(stored: str | None) -> bool:
    """Whether the event that the job waits for is in its cursor."""
    return stored is not None and stored.startswith(MARK) and _read(stored).wait.event is not None


def cursor_and_wait(stored: str | None) -> tuple[str | None, str | None]:
    """For a report: the cursor, and the name of the event that it waits for, unless that has arrived.

    A cursor that was written by hand, and cannot be read, is returned as it is.
    """
    try:
        waits = waited_for(stored) if not has_arrived(stored) else None
        return cursor_in(stored), waits
    except msgspec.MsgspecError:
        return stored, None


def event_in(stored: str | None) -> Event | None:
    """The event that has arrived."""
    if stored is None or not stored.startswith(MARK):
        return None
    wait = _read(stored).wait
    if (event := wait.event) is None:
        return None
    payload = opened(bytes(event.payload).decode(), f"event {wait.name}", event.id)
    return Event(wait.name, event.id, decode(payload), moment(event.at))


def opened_cursor(stored: str, purpose: str, job_id: str) -> str:
    """A stored cursor with its encrypted parts decrypted."""
    if not stored.startswith(MARK):
        return opened(stored, purpose, job_id)
    envelope = _read(stored)
    envelope.cursor = msgspec.Raw(opened(bytes(envelope.cursor).decode(), purpose, job_id).encode())
    if (event := envelope.wait.event) is not None:
        payload = opened(bytes(event.payload).decode(), f"event {envelope.wait.name}", event.id)
        event.payload = msgspec.Raw(payload.encode())
    return _text(envelope)


def reencrypt_cursor(stored: str, keys: Keyring, purpose: str, job_id: str) -> str:
    """A stored cursor, its encrypted parts encrypted with the current key."""
    if not stored.startswith(MARK):
        return keys.reencrypt(stored, purpose, job_id) if is_sealed(stored) else stored
    envelope = _read(stored)
    cursor = bytes(envelope.cursor).decode()
    if is_sealed(cursor):
        envelope.cursor = msgspec.Raw(keys.reencrypt(cursor, purpose, job_id).encode())
    if (event := envelope.wait.event) is not None and is_sealed(payload := bytes(event.payload).decode()):
        renewed = keys.reencrypt(payload, f"event {envelope.wait.name}", event.id)
        event.payload = msgspec.Raw(renewed.encode())
    return _text(envelope)


def _read(stored: str) -> _Envelope:
    return msgspec.json.decode(stored, type=_Envelope)


def _text(envelope: _Envelope) -> str:
    return msgspec.json.encode(envelope).decode()
