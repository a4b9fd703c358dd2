"""A message that is no task is a dead letter, and an operator may try it again.

By then newer code may understand it: then it becomes the task that it always was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from stepfast.steps.kinds import Kind, Kinds
from stepfast.steps.outcome import Done
from stepfast.steps.payload import Arguments
from stepfast.steps.retry import Retry
from stepfast.steps.step import Step  # noqa: TC001 - handlers' hints are read at run time
from stepfast.tasks.acceptance import Origin, accept
from stepfast.tasks.envelope import Envelope, read
from stepfast.tasks.failures import TaskRefusedError
from stepfast.tasks.names import REFUSED, kind_of, queue_of, unknown_type

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

SOURCE: Final = "retry"  # a refused message that an operator tried again


def understood(text: str, kinds: Kinds) -> Envelope:
    """The task in a message that somebody here can do, its payload as it is stored; or `TaskRefusedError`."""
    envelope = read(text)
    if (problem := unknown_type(envelope.task_type, kinds)) is not None:
        raise TaskRefusedError(
            problem,
            task_id=envelope.task_id,
            task_type=envelope.task_type,
            webhook_url=envelope.webhook_url,
        )
    return replace(envelope, payload=kinds.stored(kind_of(envelope.task_type), envelope.payload))


@dataclass(frozen=True)
class Accept:
    """The effect of a refused message that is understood by now."""

    origin: Origin
    envelope: Envelope

    def apply(self, tx: Transaction, /) -> None:
        accept(tx, self.origin, self.envelope)


def refused_kind(kinds: Kinds, *, encrypted: bool) -> Kind:
    """The kind of job that refused messages are."""

    async def try_again(step: Step, message: str, client: str) -> Done:
        envelope = understood(message, kinds)
        origin = Origin(client, SOURCE, step.job_id)
        return Done("accepted", effects=[Accept(origin, envelope)])

    return Kind(
        name=REFUSED,
        handler=try_again,
        arguments=Arguments(REFUSED, try_again),
        queue=queue_of("default"),
        priority=0,
        retry=Retry(attempts=1),
        timeout=None,
        is_async=True,
        encrypted=encrypted,
    )
