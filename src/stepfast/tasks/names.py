"""How tasks are called here: their kinds of jobs, their queues, and whose they are."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stepfast.steps.kinds import Kinds

PREFIX: Final = "task."
REFUSED: Final = "refused-task"  # a message that no task could be made of
DEFAULT_CLIENT: Final = "default"
TASK_DATA: Final = "TASK_DATA"  # where a task comes from that no broker brought


def kind_of(task_type: str) -> str:
    return PREFIX + task_type


def queue_of(client: str) -> str:
    """The client's queue, at the broker and of ours."""
    return f"{client}-tasks"


def own_queue(client: str, text: str) -> str:
    """A queue of ours in which one task stands alone: the same for the same task, so that a second try finds it."""
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
    return f"{queue_of(client)}.only.{digest[:24]}"


def own_queues(queue: str) -> tuple[str, str]:
    """Between these names stand all such queues of a client."""
    return f"{queue}.only.", f"{queue}.only/"  # a slash follows the dot


def types(kinds: Kinds) -> list[str]:
    """The types of tasks that have a handler here."""
    return [name.removeprefix(PREFIX) for name in kinds.names() if name.startswith(PREFIX)]


def unknown_type(task_type: str, kinds: Kinds) -> str | None:
    """Why nobody here can do tasks of this type; None if somebody can."""
    if kinds.find(kind_of(task_type)) is not None:
        return None
    known = ", ".join(types(kinds)) or "none"
    return f"no handler for task type {task_type!r} in this worker (it knows: {known}); deploy the code that has it"
