"""What is wrong with a task."""

from __future__ import annotations

from stepfast.errors import PermanentError


class TaskRefusedError(PermanentError):
    """A message is no task that this worker can do. The sentence says why; what could be read of it comes along."""

    def __init__(
        self, reason: str, *, task_id: str = "", task_type: str = "", webhook_url: str | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.task_id = task_id
        self.task_type = task_type
        self.webhook_url = webhook_url
