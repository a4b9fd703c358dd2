"""Every exception Stepfast raises.

StepfastError
├── ConfigurationError          the settings cannot work; nothing was started
├── SchemaError                 the database's tables are missing, older or newer than this code
├── ArgumentsError              arguments do not fit the handler; nothing was stored
├── DuplicateKeyError           an unfinished job of this kind already holds this key
├── DuplicateIdError            a job of another kind has this id; nothing was stored
├── CycleError                  jobs would wait for each other; nothing was stored
├── UnknownKindError            no handler is registered under this name
├── NotFoundError               there is no such job, queue or worker
├── StateError                  the job is in a state that does not allow this
├── WaitTimeoutError            the job had not ended when the wait was over; it goes on (also a TimeoutError)
├── JobFailedError              the job that was waited for is a dead letter
├── JobCancelledError           the job that was waited for was cancelled
├── ResultExpiredError          the job is done, but its result was not kept for so long
├── ResultTypeError             a stored result does not fit what the handler returns now
├── LeaseLostError              the fence moved on: this step now belongs to another worker
├── DestinationLostError        another relay serves this destination: nothing was recorded
├── ReplacedError               this process was declared dead: its leases were given to others
├── WorkerFailedError           a part of a worker broke: it gave its jobs back and stopped
├── StepCancelled               this job was asked to stop
├── StepTimeout                 the step ran longer than its timeout
├── StepCrashed                 the process of an isolated step died under it
├── MemoryLimitError            an isolated step wanted more memory than its kind allows
├── PermanentError              raise it in a handler: no retry can help
│   └── AnswerError             a handler's result or cursor cannot be stored
├── TransientError              raise it in a handler: try again, no attempt is charged
│   ├── ThrottledError          raise it in a feed: the source wants fewer requests, and perhaps says until when
│   ├── OutageError             raise it in a feed: the source does not answer, nothing is wrong with the request
│   ├── AuthError               raise it in a feed: the source does not let us in; an alert is raised at once
│   ├── HeldError               raise it in a feed: a person has to do something before rows can be mapped
│   └── SealedError             something is stored encrypted, and its key is not here
│       └── PlainTextError      something is stored in plain text, and its kind is encrypted
├── CursorExpiredError          raise it in fetch(): the source no longer knows the token
├── SignatureError              a webhook was not signed with our secret, or too long ago
├── AddressRefusedError         a webhook's host leads behind our own walls
└── DatabaseError               the database refused or did not answer
    ├── UnreachableError        no connection, it broke before anything was committed, or the server takes no writes
    │   └── AccessRefusedError  the database is there, and does not let us in: name, user, password or path are wrong
    ├── UnknownCommitError      the connection broke during COMMIT; the fences know what happened
    ├── ContentionError         deadlock, lock timeout, serialization: run the whole transaction again
    ├── ConstraintError         a unique, foreign-key, check or not-null constraint refused a row
    └── PoisonedTransactionError  an earlier statement failed: this transaction can only roll back
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime, timedelta


def install_hint(extra: str = "", *, package: str = "stepfast") -> str:
    """How to install what is missing. Nothing is published yet, so it is installed from a checkout."""
    # With the first release: return f"pip install '{package}[{extra}]'"
    name = f"{package}[{extra}]" if extra else package
    return f"pip install './packages/{name}' (in a checkout of Stepfast)"


class StepfastError(Exception):
    """Base of all errors of Stepfast."""


class ConfigurationError(StepfastError):
    """The settings cannot work; nothing was started. The sentence names the setting to change."""


class SchemaError(StepfastError):
    """The tables do not fit this version of Stepfast; the sentence says which side to upgrade."""


class ArgumentsError(StepfastError):
    """Arguments do not fit the handler's type hints; nothing was stored."""

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(f"{kind}: {problem}")
        self.kind = kind
        self.problem = problem


class DuplicateKeyError(StepfastError):
    """An unfinished job of the same kind holds the key. Use on_duplicate="skip" or "replace" if that is expected."""

    def __init__(self, key: str, job_id: str) -> None:
        super().__init__(
            f"key {key!r} is held by job {job_id}; pass on_duplicate='skip' to keep that job, 'replace' to supersede it, 'merge' to join it"
        )
        self.key = key
        self.job_id = job_id


class DuplicateIdError(StepfastError):
    """A job of another kind has the id, which is unique over all kinds. Begin ids with the name of their kind."""

    def __init__(self, job_id: str, kind: str, wanted: str) -> None:
        super().__init__(
            f"id {job_id!r} is that of a job of kind {kind!r}, so no job of kind {wanted!r} can have it; "
            f"nothing was stored. Begin ids with the name of their kind, such as {wanted}:{job_id}"
        )
        self.job_id = job_id
        self.kind = kind


class CycleError(StepfastError):
    """Jobs would wait for each other, for ever. Take one of them out of `after`; the sentence names all of them."""

    def __init__(self, path: list[str]) -> None:
        super().__init__(f"these jobs would wait for each other: {' after '.join(path)}")
        self.path = path


class UnknownKindError(StepfastError):
    """No handler is registered under this name in this process."""

    def __init__(self, kind: str, known: list[str]) -> None:
        names = ", ".join(known) or "none"
        super().__init__(
            f"no handler for kind {kind!r} in this worker (it knows: {names}); deploy the code that defines it"
        )
        self.kind = kind


class NotFoundError(StepfastError):
    """There is no such thing; the sentence names what was looked for."""


class StateError(StepfastError):
    """The job is in a state that does not allow this; the sentence says which."""


class WaitTimeoutError(StepfastError, TimeoutError):
    """The job had not ended when the wait was over. It goes on without you: wait again."""

    def __init__(self, job_id: str, state: str | None, timeout: timedelta) -> None:
        found = f"is still {state}" if state else "could not be looked at: the database is away"
        super().__init__(f"job {job_id} {found} after {timeout.total_seconds():g} s; it goes on, wait again")
        self.job_id = job_id
        self.state = state


class JobFailedError(StepfastError):
    """The job that was waited for is a dead letter: it has no result."""

    def __init__(self, job_id: str, kind: str, attempts: int, error: str | None) -> None:
        tries = "one attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(f"job {job_id} ({kind}) is dead after {tries}: {error}")
        self.job_id = job_id
        self.error = error


class JobCancelledError(StepfastError):
    """The job that was waited for was cancelled: it has no result."""

    def __init__(self, job_id: str, kind: str, reason: str | None) -> None:
        super().__init__(f"job {job_id} ({kind}) has no result: {reason or 'Cancelled'}")
        self.job_id = job_id
        self.reason = reason


class ResultExpiredError(StepfastError):
    """The job is done, but its result is no longer kept. Keep it longer, or read it sooner."""

    def __init__(self, job_id: str, kind: str, finished_at: datetime, expired_at: datetime) -> None:
        super().__init__(
            f"job {job_id} was done at {finished_at:%Y-%m-%d %H:%M:%S} UTC, its result was removed at "
            f"{expired_at:%Y-%m-%d %H:%M:%S} UTC; keep results of {kind!r} longer with @app.job(result_ttl=…), "
            "those of all kinds with the worker's results_kept"
        )
        self.job_id = job_id
        self.expired_at = expired_at


class ResultTypeError(StepfastError):
    """A stored result does not fit what the handler returns now: it changed since. `outcome.stored` has the text."""

    def __init__(self, job_id: str, kind: str, problem: str) -> None:
        super().__init__(f"job {job_id}: its result does not fit the return type of {kind!r}: {problem}")
        self.job_id = job_id


class LeaseLostError(StepfastError):
    """The fence moved on: this step now belongs to another worker. Stop; nothing you write will count."""

    def __init__(self, job_id: str, fence: int) -> None:
        super().__init__(f"job {job_id}: fence {fence} is no longer current; another owner has the step")
        self.job_id = job_id
        self.fence = fence


class DestinationLostError(StepfastError):
    """Another relay serves this destination now: what this one sent is not recorded, and is sent again."""

    def __init__(self, destination: str, fence: int) -> None:
        super().__init__(f"destination {destination}: fence {fence} is no longer current")
        self.destination = destination
        self.fence = fence


class ReplacedError(StepfastError):
    """This process was declared dead while it could not renew: its leases were given to others."""

    def __init__(self, incarnation: int) -> None:
        super().__init__(f"incarnation {incarnation} was declared dead; its leases belong to others now")
        self.incarnation = incarnation


class WorkerFailedError(StepfastError):
    """A part that the worker needs met an unexpected error. The worker gave its jobs back and stopped: start another one."""

    def __init__(self, part: str, error: str) -> None:
        super().__init__(f"the worker's {part} broke, so it gave its jobs back and stopped: {error}")
        self.part = part


class StepCancelled(StepfastError):  # noqa: N818 - reads as what happened, like asyncio.CancelledError
    """This job was asked to stop; clean up and return."""


class StepTimeout(StepfastError):  # noqa: N818 - reads as what happened
    """The step ran longer than its timeout."""

    def __init__(self, timeout: timedelta) -> None:
        super().__init__(f"did not finish within {timeout.total_seconds():g} s")


class StepCrashed(StepfastError):  # noqa: N818 - reads as what happened
    """The process of an isolated step died under it. The worker and its other steps are unharmed."""


class MemoryLimitError(StepfastError):
    """An isolated step wanted more memory than its kind allows. Raise memory=…, or work in smaller pieces."""

    def __init__(self, limit: str, held: str) -> None:
        super().__init__(f"wanted more memory than its limit of {limit}; it held {held}")


class PermanentError(StepfastError):
    """Raise it in a handler when no retry can help: the job goes to the dead letters at once."""


class AnswerError(PermanentError):
    """A handler answered with a result or a cursor that cannot be stored; its effects are rolled back."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(f"the {what} {problem}")
        self.what = what


class TransientError(StepfastError):
    """Raise it in a handler for a throttle or an outage elsewhere: try again later, no attempt is charged."""

    def __init__(self, message: str, *, delay: timedelta | float | str | None = None) -> None:
        super().__init__(message)
        self.delay = delay


class ThrottledError(TransientError):
    """Raise it in a feed when the source wants fewer requests. The feed pauses, for `retry_after` if that is known."""

    def __init__(self, message: str, *, retry_after: timedelta | float | str | None = None) -> None:
        super().__init__(message, delay=retry_after)

    @property
    def retry_after(self) -> timedelta | float | str | None:
        return self.delay


class OutageError(TransientError):
    """Raise it in a feed when the source does not answer as it should. The feed pauses, and asks again by itself."""


class AuthError(TransientError):
    """Raise it in a feed when the source does not let us in. The feed pauses, and an alert is raised at once."""


class HeldError(TransientError):
    """Raise it in mapping() or started() of a feed when a person has to do something first: the sentence says what.

    The run is held: it writes no rows, spends no attempts, raises an alert, and goes on by itself.
    """

    def __init__(self, message: str, *, delay: timedelta | float | str = 10) -> None:
        super().__init__(message, delay=delay)


class SealedError(TransientError):
    """Something is stored sealed, and the key is not here. Give this process the key; the job waits meanwhile."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(f"{what} is encrypted: {problem}", delay=60)


class PlainTextError(SealedError):
    """Something is stored in plain text, and its kind is encrypted. The job waits: who wrote it had no key.

    If it is one of yours, from before the kind was encrypted or by a plain INSERT, declare the kind with encrypted="mixed".
    """

    def __init__(self, what: str) -> None:
        TransientError.__init__(
            self,
            f"{what} is stored in plain text, but this kind is encrypted; if it is meant to be read, declare the kind with "
            "encrypted='mixed'",
            delay=60,
        )


class CursorExpiredError(StepfastError):
    """Raise it in a feed's fetch() when the source no longer knows the token: the partition starts a new pass."""


class SignatureError(StepfastError):
    """Do not believe this webhook: answer 401 and do nothing. The sentence says what is wrong with it."""


class AddressRefusedError(StepfastError):
    """A webhook's host leads to an address that is not public, and is not allowed."""

    def __init__(self, host: str, addresses: list[str]) -> None:
        super().__init__(
            f"{host} leads to {', '.join(addresses) or 'no address'}, which is not public; "
            "if it is meant to be reached, name it in STEPFAST_WEBHOOK_ALLOW of the worker"
        )
        self.host = host
        self.addresses = addresses


class DatabaseError(StepfastError):
    """The database refused, or did not answer."""

    origin: int | None = None  # the `origin` of the Database that it came from
    of_step = False  # whether what a step wanted to write is at fault, not the database


class UnreachableError(DatabaseError):
    """No connection, it broke before anything was committed, or the server takes no writes. Try again."""


class AccessRefusedError(UnreachableError):
    """The database is there, and does not let us in: its name, the user, the password or the path of the file is wrong.

    A worker that starts waits for a database that is away; for this it does not wait.
    """


class UnknownCommitError(DatabaseError):
    """The connection broke during COMMIT. Only the fences know whether it happened."""


class ContentionError(DatabaseError):
    """Deadlock, lock timeout or serialization failure: run the whole transaction again."""


class ConstraintError(DatabaseError):
    """A unique, foreign-key, check or not-null constraint refused a row."""


class PoisonedTransactionError(DatabaseError):
    """An earlier statement failed: this transaction can only roll back. Use tx.savepoint() to try things."""
