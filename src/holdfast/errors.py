"""Every exception Holdfast raises.

HoldfastError
├── ConfigurationError          the settings cannot work; nothing was started
├── SchemaError                 the database's tables are missing, older or newer than this code
├── ArgumentsError              arguments do not fit the handler; nothing was stored
├── DuplicateKeyError           an unfinished job already holds this key
├── UnknownKindError            nobody registered a handler under this name
├── NotFoundError               there is no such job, queue or worker
├── StateError                  the job is in a state that does not allow this
├── LeaseLostError              the fence moved on: this step now belongs to another worker
├── ReplacedError               this process was declared dead: its leases were given to others
├── StepCancelled               somebody asked this job to stop
├── StepTimeout                 the step ran longer than its timeout
├── PermanentError              raise it in a handler: no retry can help
│   └── AnswerError             a handler's result or cursor cannot be stored
├── TransientError              raise it in a handler: try again, no attempt is charged
└── DatabaseError               the database said no
    ├── UnreachableError        no connection, or it broke before anything was committed
    ├── UnknownCommitError      the connection broke during COMMIT; the fences know what happened
    ├── ContentionError         deadlock, lock timeout, serialization: run the whole transaction again
    ├── ConstraintError         a unique, foreign-key, check or not-null constraint refused a row
    └── PoisonedTransactionError  an earlier statement failed: this transaction can only roll back
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta


class HoldfastError(Exception):
    """Base of all of them."""


class ConfigurationError(HoldfastError):
    """The settings cannot work; nothing was started. The sentence names the setting to change."""


class SchemaError(HoldfastError):
    """The tables do not fit this version of Holdfast; the sentence says which side to upgrade."""


class ArgumentsError(HoldfastError):
    """Arguments do not fit the handler's type hints; nothing was stored."""

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(f"{kind}: {problem}")
        self.kind = kind
        self.problem = problem


class DuplicateKeyError(HoldfastError):
    """An unfinished job holds the key. Use on_duplicate="skip" or "replace" if that is expected."""

    def __init__(self, key: str, job_id: str) -> None:
        super().__init__(
            f"key {key!r} is held by job {job_id}; pass on_duplicate='skip' to keep that job, 'replace' to supersede it"
        )
        self.key = key
        self.job_id = job_id


class UnknownKindError(HoldfastError):
    """Nobody registered a handler under this name in this process."""

    def __init__(self, kind: str, known: list[str]) -> None:
        names = ", ".join(known) or "none"
        super().__init__(
            f"no handler for kind {kind!r} in this worker (it knows: {names}); deploy the code that defines it"
        )
        self.kind = kind


class NotFoundError(HoldfastError):
    """There is no such thing; the sentence names what was looked for."""


class StateError(HoldfastError):
    """The job is in a state that does not allow this; the sentence says which."""


class LeaseLostError(HoldfastError):
    """The fence moved on: this step now belongs to another worker. Stop; nothing you write will count."""

    def __init__(self, job_id: str, fence: int) -> None:
        super().__init__(f"job {job_id}: fence {fence} is no longer current; another owner has the step")
        self.job_id = job_id
        self.fence = fence


class ReplacedError(HoldfastError):
    """This process was declared dead while it could not renew: its leases were given to others."""

    def __init__(self, incarnation: int) -> None:
        super().__init__(f"incarnation {incarnation} was declared dead; its leases belong to others now")
        self.incarnation = incarnation


class StepCancelled(HoldfastError):  # noqa: N818 - reads as what happened, like asyncio.CancelledError
    """Somebody asked this job to stop; clean up and return."""


class StepTimeout(HoldfastError):  # noqa: N818 - reads as what happened
    """The step ran longer than its timeout."""

    def __init__(self, timeout: timedelta) -> None:
        super().__init__(f"did not finish within {timeout.total_seconds():g} s")


class PermanentError(HoldfastError):
    """Raise it in a handler when no retry can help: the job goes to the dead letters at once."""


class AnswerError(PermanentError):
    """A handler answered with a result or a cursor that cannot be stored; its effects are rolled back."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(f"the {what} {problem}")
        self.what = what


class TransientError(HoldfastError):
    """Raise it in a handler for a throttle or an outage elsewhere: try again later, no attempt is charged."""

    def __init__(self, message: str, *, delay: timedelta | float | str | None = None) -> None:
        super().__init__(message)
        self.delay = delay


class DatabaseError(HoldfastError):
    """The database said no."""


class UnreachableError(DatabaseError):
    """No connection, or it broke before anything was committed."""


class UnknownCommitError(DatabaseError):
    """The connection broke during COMMIT. Only the fences know whether it happened."""


class ContentionError(DatabaseError):
    """Deadlock, lock timeout or serialization failure: run the whole transaction again."""


class ConstraintError(DatabaseError):
    """A unique, foreign-key, check or not-null constraint refused a row."""


class PoisonedTransactionError(DatabaseError):
    """An earlier statement failed: this transaction can only roll back. Use tx.savepoint() to try things."""
