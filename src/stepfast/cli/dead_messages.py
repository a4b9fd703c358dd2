"""Dead letters of brokers, as the commands about dead letters show them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stepfast.cli.output import print_facts, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.admin.reports.jobs import JobSummary
    from stepfast.transports.dead_messages import DeadMessage

OURS = "job"  # the origin of a dead letter that is a job


def print_both(jobs: Sequence[JobSummary], messages: Sequence[DeadMessage], limit: int) -> None:
    """One list, the latest first, with where each comes from."""
    rows: list[tuple[Any, ...]] = [
        (it.id, OURS, it.kind, it.queue, it.attempts, it.finished_at, it.last_error) for it in jobs
    ]
    rows += [(it.id, it.origin, it.subject, it.queue, it.attempts, it.found_at, said(it)) for it in messages]
    rows.sort(key=lambda row: (row[5] is not None, row[5]), reverse=True)
    print_table(
        ("id", "origin", "kind", "queue", "try", "died (UTC)", "error"),
        rows[:limit],
        empty="no dead letters",
        less=("try", "queue", "died (UTC)"),
    )


def print_message(message: DeadMessage, *, json: bool) -> None:
    """Everything about one."""
    facts = message_facts(message) | {"properties": dict(message.properties), "body": message.body}
    if json:
        print_json(facts)
    else:
        print_facts([(name.replace("_", " "), value) for name, value in facts.items()])


def message_facts(message: DeadMessage) -> dict[str, Any]:
    """As JSON tells it in a list: without what it says, which may be long."""
    facts = asdict(message)
    for name in ("properties", "body"):
        del facts[name]
    return {"origin": message.origin, **facts}


def said(message: DeadMessage) -> str:
    return f"{message.reason}: {message.detail}" if message.detail else message.reason
