"""The watermark as a small JSON document for others, in the shape that operators know.

It is staged in the transaction that moves the watermark, and written by the relay after the commit. The database
stays the truth: what somebody writes into the document moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from stepfast.clock import moment
from stepfast.outbox.exports import export_message
from stepfast.outbox.messages import stage

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A watermark as it was after one move."""

    feed: str
    watermark: int
    run_id: str | None  # the last run that moved it
    completed_at: int
    version: int  # which move it was

    def to_json(self) -> str:
        document = {
            "lastUpdatedAt": _written(self.watermark),
            "lastRunId": self.run_id,
            "lastRunCompletedAt": _written(self.completed_at),
        }
        return msgspec.json.encode(document).decode()


def export(tx: Transaction, address: str, it: Exported) -> None:
    """Have it written there after the commit, after all earlier ones and never over a newer one."""
    stage(
        tx,
        export_message(
            address, it.to_json(), owner=f"feed {it.feed}", version=it.version, made_at=it.completed_at
        ),
    )


def _written(at: int) -> str:
    """2024-01-16T02:00:00Z; a fraction only if there is one."""
    return moment(at).isoformat().replace("+00:00", "Z")
