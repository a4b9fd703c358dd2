"""What a message must say to be a task: read it, or refuse it with everything that is wrong with it.

Unknown fields are no problem. The names of tasks stand here too: their kinds of jobs, their queues, their clients.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast.config import MAX_PAYLOAD
from stepfast.errors import PermanentError
from stepfast.notifications.webhook import problem_of

if TYPE_CHECKING:
    from stepfast.jobs.kinds import Kinds


VERSION: Final = 1  # the newest schema that is understood here
LONGEST_ID: Final = 200
LONGEST_REASON: Final = 1_000
# As a Logic App's connector to Storage Queue hands messages on: {"QueueMessagesList": {"QueueMessage": [{"MessageText": …}]}}
CONNECTOR: Final = ("MessageText", "QueueMessage", "QueueMessagesList")
MOST_WRAPPINGS: Final = 8
# A payload with such a name could be taken for one that we have sealed, and wait for its key for ever.
OURS: Final = "stepfast."
TYPE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,99}")
_TRACE: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


PREFIX: Final = "task."  # of the kinds of jobs that tasks are
REFUSED: Final = "refused-task"  # the kind of a message that is no task
DEFAULT_CLIENT: Final = "default"
TASK_DATA: Final = "TASK_DATA"  # the source of a task that no broker brought


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """A task as it was requested; `payload` is a JSON object, as it was written."""

    task_id: str
    task_type: str
    payload: str = "{}"
    webhook_url: str | None = None
    trace: str | None = None


class TaskRefusedError(PermanentError):
    """A message is no task that this worker can do: the reason, and the fields that could be read."""

    def __init__(
        self, reason: str, *, task_id: str = "", task_type: str = "", webhook_url: str | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.task_id = task_id
        self.task_type = task_type
        self.webhook_url = webhook_url


def read(text: str) -> Envelope:
    """Make a task of a message, or raise `TaskRefusedError` with everything that is wrong with it."""
    fields = _fields_of(text)
    problems: list[str] = []
    _version(_value(fields.get("schema_version")), problems)
    task_id = _task_id(_value(fields.get("task_id")), problems)
    task_type = _task_type(_value(fields.get("task_type")), problems)
    webhook_url = _webhook_url(_value(fields.get("webhook_url")), problems)
    payload = _payload(fields.get("payload"), problems)
    if problems:
        reason = "; ".join(problems)[:LONGEST_REASON]
        raise TaskRefusedError(reason, task_id=task_id, task_type=task_type, webhook_url=webhook_url)
    return Envelope(
        task_id=task_id,
        task_type=task_type,
        payload=payload,
        webhook_url=webhook_url,
        trace=_trace(_value(fields.get("traceparent"))),
    )


def _fields_of(text: str, wrappings: int = MOST_WRAPPINGS) -> dict[str, msgspec.Raw]:
    """The fields of a JSON object, which may be wrapped: in base64, in a list of one, or by a connector."""
    given = _plain(text)
    try:
        if given.startswith("["):
            inside = _only(msgspec.json.decode(given, type=list[msgspec.Raw]))
        else:
            fields = _fields.decode(given)
            found = _handed_on(fields)
            if found is None:
                return fields
            inside = found
        if not wrappings:
            raise TaskRefusedError(f"it is wrapped more than {MOST_WRAPPINGS} times; send the task itself")
        wrapped = bytes(inside).strip()
        within = msgspec.json.decode(wrapped, type=str) if wrapped.startswith(b'"') else wrapped.decode()
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        what = "it is no JSON object" if _is_json(given) else f"it is no JSON ({error})"
        raise TaskRefusedError(f"{what}; a task is an object with task_id, task_type and payload") from None
    return _fields_of(within, wrappings - 1)


def _plain(text: str) -> str:
    given = text.removeprefix("\ufeff").strip()
    if given and _BASE64.fullmatch(given):
        with suppress(binascii.Error, ValueError):  # then it is neither, and what follows says so
            given = base64.b64decode("".join(given.split()), validate=True).decode()
    return given.removeprefix("\ufeff").strip()


def _only(items: list[msgspec.Raw]) -> msgspec.Raw:
    if len(items) != 1:
        raise TaskRefusedError(f"it is a list of {len(items)} tasks; send each of them alone")
    return items[0]


def _handed_on(fields: dict[str, msgspec.Raw]) -> msgspec.Raw | None:
    """The message inside that of a connector; None if this is the task itself, whatever other fields it has."""
    if "task_id" in fields or "task_type" in fields:
        return None
    return next((fields[name] for name in CONNECTOR if name in fields), None)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def _value(raw: msgspec.Raw | None) -> Any:
    try:
        return None if raw is None else msgspec.json.decode(bytes(raw))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return msgspec.UNSET  # there, but unusable: a number too large, half a character


def _trace(value: Any) -> str | None:
    return value if isinstance(value, str) and _TRACE.fullmatch(value) else None


def _version(value: Any, problems: list[str]) -> None:
    if value is None or (value == VERSION and not isinstance(value, bool)):
        return
    if isinstance(value, int) and not isinstance(value, bool) and value > VERSION:
        problems.append(
            f"schema_version {value} is newer than this worker understands ({VERSION}); upgrade it"
        )
    else:
        problems.append(f"schema_version {value!r:.50}: write {VERSION}, or leave it out")


def _task_id(value: Any, problems: list[str]) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if value is None:
        problems.append("task_id is missing")
    elif not isinstance(text, str):
        problems.append(f"task_id {value!r:.50}: a text, please")
    elif not 0 < len(text) <= LONGEST_ID or not text.isprintable() or text != text.strip():
        problems.append(
            f"task_id {text!r:.50}: 1 to {LONGEST_ID} characters that can be printed, without spaces around them"
        )
    else:
        return text
    return ""


def _task_type(value: Any, problems: list[str]) -> str:
    if value is None:
        problems.append("task_type is missing")
    elif not isinstance(value, str) or not TYPE.fullmatch(value):
        problems.append(f"task_type {value!r:.50}: write 1 to 100 letters, digits and . _ : / -")
    else:
        return value
    return ""


def _webhook_url(value: Any, problems: list[str]) -> str | None:
    if value is None or value == "":
        return None
    if (problem := problem_of(value)) is not None:
        problems.append(f"webhook_url: {problem}")
        return None
    url: str = value
    return url


def _payload(raw: msgspec.Raw | None, problems: list[str]) -> str:
    data = b"null" if raw is None else bytes(raw)
    if data == b"null":
        return "{}"
    if not data.startswith(b"{"):
        problems.append("payload is no object; name its values")
    elif len(data) > MAX_PAYLOAD:
        problems.append(
            f"payload takes {len(data):,} bytes, at most {MAX_PAYLOAD:,} are stored; send the address of the data"
        )
    elif any(name.startswith(OURS) for name in _fields.decode(data)):
        problems.append(f"payload has a name that begins with {OURS!r}, which is ours; use another one")
    else:
        return data.decode()
    return "{}"


def kind_of(task_type: str) -> str:
    return PREFIX + task_type


def queue_of(client: str) -> str:
    """The client's queue, at the broker and of jobs."""
    return f"{client}-tasks"


def own_queue(client: str, text: str) -> str:
    """A queue of jobs in which one task stands alone: the same for the same task, so that a second try finds it."""
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
    return f"{queue_of(client)}.only.{digest[:24]}"


def own_queues(queue: str) -> tuple[str, str]:
    """Bounds of the names of all queues that `own_queue` makes for a client."""
    return f"{queue}.only.", f"{queue}.only/"  # a slash follows the dot


def types(kinds: Kinds) -> list[str]:
    """The types of tasks that have a handler here."""
    return [name.removeprefix(PREFIX) for name in kinds.names() if name.startswith(PREFIX)]


def unknown_type(task_type: str, kinds: Kinds) -> str | None:
    """Why tasks of this type cannot be done here; None if they have a handler."""
    if kinds.find(kind_of(task_type)) is not None:
        return None
    known = ", ".join(types(kinds)) or "none"
    return f"no handler for task type {task_type!r} in this worker (it knows: {known}); deploy the code that has it"
