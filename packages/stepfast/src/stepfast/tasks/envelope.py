"""What a message must say to be a task: read it, or refuse it with everything that is wrong with it.

Unknown fields are no problem. The names of tasks stand here too: their kinds of jobs, their queues, their clients.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast.config import MAX_PAYLOAD
from stepfast.errors import PermanentError
from stepfast.jobs.end_webhook import TASK_PREFIX
from stepfast.notifications.webhook import problem_of
from stepfast.telemetry.traces import sender_trace
from stepfast.transports.body import MOST_WRAPPINGS, from_base64, json_inside

if TYPE_CHECKING:
    from stepfast.jobs.kinds import Kind, Kinds


EXPECTED: Final = "a task is an object with task_id, task_type and payload"
VERSION: Final = 1  # the newest schema that is understood here
LONGEST_ID: Final = 200
LONGEST_REASON: Final = 1_000
# As a Logic App's connector to Storage Queue hands messages on: {"QueueMessagesList": {"QueueMessage": [{"MessageText": …}]}}
CONNECTOR: Final = ("MessageText", "QueueMessage", "QueueMessagesList")
# Bytes of a message that is read at all: the largest payload in base64, with room for the other fields.
LARGEST_MESSAGE: Final = 2 * MAX_PAYLOAD
# A payload with such a name could be taken for one that we have sealed, and wait for its key for ever.
OURS: Final = "stepfast."
TYPE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,99}")
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


PREFIX: Final = TASK_PREFIX
REFUSED: Final = "refused-task"  # the kind of a message that is no task
DEFAULT_CLIENT: Final = "default"
TASK_DATA: Final = (
    "TASK_DATA"  # the environment variable of single-task mode: the source of a task that no broker brought
)


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """A task as it was requested; `payload` is a JSON object, as it was written."""

    task_id: str
    task_type: str
    payload: str = "{}"
    webhook_url: str | None = None
    trace: str | None = None
    kind: Kind | None = field(default=None, repr=False, compare=False)  # of its job; None: not looked up yet
    digest: str | None = None  # of the payload, to tell it from another one


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
    _refuse_large(text)
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
        trace=sender_trace({"traceparent": _value(fields.get("traceparent"))}),
    )


def _fields_of(text: str, wrappings: int = MOST_WRAPPINGS) -> dict[str, msgspec.Raw]:
    """The fields of a JSON object, which may be wrapped: see `json_inside`; and in a list of one, or by a connector."""
    given = json_inside(text)
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
        raise TaskRefusedError(f"{_why_no_object(given, error)}; {EXPECTED}") from None
    return _fields_of(within, wrappings - 1)


def _refuse_large(text: str) -> None:
    """Refuse a message that is too large, before any of it is read."""
    # Of most texts the number of characters is enough to know.
    if len(text) <= LARGEST_MESSAGE // 4:
        return
    if (size := len(text.encode(errors="surrogatepass"))) > LARGEST_MESSAGE:
        raise TaskRefusedError(
            f"it takes {size:,} bytes, at most {LARGEST_MESSAGE:,} are read; keep the data where the handler can fetch it, "
            "and send its address"
        )


def _only(items: list[msgspec.Raw]) -> msgspec.Raw:
    if len(items) != 1:
        raise TaskRefusedError(f"it is a list of {len(items)} tasks; send each of them alone")
    return items[0]


def _handed_on(fields: dict[str, msgspec.Raw]) -> msgspec.Raw | None:
    """The message inside that of a connector; None if this is the task itself, whatever other fields it has."""
    if "task_id" in fields or "task_type" in fields:
        return None
    return next((fields[name] for name in CONNECTOR if name in fields), None)


def _why_no_object(given: str, error: Exception) -> str:
    if _is_json(given):
        return "it is no JSON object"
    inside = from_base64(given)
    if inside is None:
        return f"it is no JSON ({error})"
    return f"it is no JSON ({error}), nor base64 of JSON: decoded, it has {len(inside)} other characters"


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
