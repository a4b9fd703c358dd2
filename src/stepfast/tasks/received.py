"""What a receiver was told, saved once per webhook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast.database.statement import sql
from stepfast.errors import ConstraintError
from stepfast.tasks.names import DEFAULT_CLIENT
from stepfast.telemetry import happened
from stepfast.telemetry.masking import storable

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

LONGEST: Final = 200  # the widths of columns
LONGEST_WEBHOOK: Final = 128
STATUSES: Final = frozenset({"completed", "failed"})

SAVE = sql("""
    INSERT INTO stepfast_received (id, task_id, client, task_type, status, received_at, body)
    VALUES (:id, :task_id, :client, :task_type, :status, {now}, :body)
""")
KNOWN = sql("SELECT 1 FROM stepfast_received WHERE id = :id")
OF_TASK = sql("""
    SELECT id, body FROM stepfast_received
     WHERE task_id = :task_id AND client = :client ORDER BY received_at DESC, id DESC LIMIT :limit
""")


@dataclass(frozen=True)
class ReceivedEnd:
    """The end of a task, as its webhook told it."""

    webhook_id: str
    task_id: str
    client: str
    task_type: str
    status: str  # completed or failed
    result: Any
    error: Mapping[str, Any] | None
    body: str

    @staticmethod
    def read(webhook_id: str, body: bytes, told: Mapping[str, Any]) -> ReceivedEnd:
        """Check what it says; raises ValueError."""
        for name in ("task_id", "status"):
            if not isinstance(told.get(name), str):
                raise ValueError(f"it has no {name}")  # noqa: TRY004 - of what was posted, not of an argument
        if told["status"] not in STATUSES:
            raise ValueError(f"status {told['status']!r:.40} is none of completed, failed")
        if not 0 < len(webhook_id) <= LONGEST_WEBHOOK or not 0 < len(told["task_id"]) <= LONGEST:
            raise ValueError("its id, or that of its task, is empty or too long")
        if not (webhook_id.isprintable() and told["task_id"].isprintable()):
            raise ValueError("its id, or that of its task, has characters that cannot be shown")
        error = told.get("error")
        return ReceivedEnd(
            webhook_id=webhook_id,
            task_id=told["task_id"],
            client=storable(str(told.get("client_id") or DEFAULT_CLIENT))[:LONGEST],
            task_type=storable(str(told.get("task_type", "")))[:LONGEST],
            status=told["status"],
            result=told.get("result"),
            error=error if isinstance(error, dict) else None,
            body=body.decode(),
        )


def save(
    tx: Transaction, end: ReceivedEnd, saved: Callable[[Transaction, ReceivedEnd], object] | None = None
) -> bool:
    """Write it down, unless this webhook came before; whether it was new."""
    if tx.rows(KNOWN, id=end.webhook_id):
        return False
    facts = {"task_id": end.task_id, "client": end.client, "task_type": end.task_type, "status": end.status}
    try:
        with tx.savepoint():
            tx.run(SAVE, id=end.webhook_id, body=end.body, **facts)
    except ConstraintError:
        return False  # in this very moment, by a colleague
    if saved is not None:
        saved(tx, end)
    happened("webhook.saved", task_id=end.task_id, status=end.status)
    return True


def latest(tx: Transaction, task_id: str, *, client: str = DEFAULT_CLIENT) -> ReceivedEnd | None:
    """What was told last of this client's task; None if nothing was."""
    rows = tx.rows(OF_TASK, task_id=task_id, client=client, limit=1)
    if not rows:
        return None
    body = str(rows[0][1])
    return ReceivedEnd.read(str(rows[0][0]), body.encode(), msgspec.json.decode(body, type=dict[str, Any]))
