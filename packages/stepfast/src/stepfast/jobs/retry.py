"""The retry policy, and what an exception means for its step: again, when, or never. Pure: chance is an argument.

`worker/running.py` asks `judge` when a handler has failed (`jobs/rescue.py` when a step passed its hard deadline), and
`jobs/commit.py` writes its answer: `RETRY_JOB`, or the end as a dead letter, with `end_jobs` in `jobs/archive.py`. A job that
waits for its next try is scheduled, and `Promotion` in `worker/maintenance.py` makes it ready. What operators do with dead
letters is in `jobs/dead_letters.py`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stepfast.clock import Duration, duration
from stepfast.config import is_whole
from stepfast.database.failures import is_outage_of
from stepfast.errors import (
    ArgumentsError,
    ConfigurationError,
    ConstraintError,
    PermanentError,
    StepCancelled,
    StepCrashed,
    TransientError,
)
from stepfast.jobs.outcome import Again, Bury, Stop
from stepfast.telemetry.masking import without_secrets
from stepfast.telemetry.sinks import message_of

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Exponential back-off with jitter: between half and all of `first * factor ** (failures - 1)`."""

    attempts: float = 3  # a whole number, or math.inf: for ever
    first: Duration = "1s"
    factor: float = 2.0
    longest: Duration = "15m"

    def __post_init__(self) -> None:
        attempts: object = self.attempts
        if attempts != math.inf and not is_whole(attempts):
            raise ConfigurationError(
                f"Retry(attempts={attempts!r}): a whole number from 1, or math.inf to try for ever"
            )
        if self.attempts < 1:
            raise ConfigurationError(f"Retry(attempts={self.attempts}): a job is tried at least once")
        factor: object = self.factor
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < math.inf:
            raise ConfigurationError(f"Retry(factor={factor!r}): waits must not shrink; use 1 or more")
        duration(self.first, "Retry(first=…)")
        duration(self.longest, "Retry(longest=…)")

    def exhausted(self, failures: int) -> bool:
        """Whether so many failures of a step are the last."""
        return failures >= self.attempts

    def delay(self, failures: int, dice: float) -> timedelta:
        """How long to wait after the `failures`-th failure (from 1); `dice` is uniform in [0, 1)."""
        first, longest = duration(self.first).total_seconds(), duration(self.longest).total_seconds()
        try:
            ceiling = min(first * self.factor ** (failures - 1), longest)
        except OverflowError:  # a float ends at 10 ** 308
            ceiling = longest if first else 0.0
        return timedelta(seconds=ceiling * (0.5 + 0.5 * dice))


def checked_retry(where: str, given: object) -> Retry | None:
    """What `retry=` means: a policy, or its number of attempts; None: it was left out."""
    if given is None or isinstance(given, Retry):
        return given
    if is_whole(given):
        return Retry(attempts=given)
    raise ConfigurationError(
        f"{where}: retry={given!r:.80}: give Retry(attempts=5, first='10s'), or just a number of attempts; 1 is no second try"
    )


# --- What an exception means for its step.

LONGEST_ERROR: Final = 4_000
LONGEST_GROUP: Final = 200
TRANSIENT_DELAY: Final = timedelta(seconds=30)

_VARIABLE: Final = re.compile(
    r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|'[^']*'|\"[^\"]*\"|\d+(?:\.\d+)?"
)


def judge(error: BaseException, retry: Retry, failures: int, dice: float) -> Again | Bury | Stop:
    """Decide about a step that raised; `failures` counts the earlier ones of this step."""
    text, group = describe(error), fingerprint(error)
    match error:
        case StepCancelled():
            return Stop(text)
        case TransientError():
            return Again(_wait(error), text, group, charged=False)
        case PermanentError() | ArgumentsError() | ConstraintError():
            return Bury(text, group)
        case _ if retry.exhausted(failures + 1):
            return Bury(text, group)
        case _:
            return Again(retry.delay(failures + 1, dice), text, group)


def judge_crash(
    error: StepCrashed, retry: Retry, crashes: int, crash_limit: int, dice: float
) -> Again | Bury:
    """Decide about an isolated step whose process died; `crashes` counts the earlier ones of this step."""
    text, group = describe(error), fingerprint(error)
    if crashes + 1 >= crash_limit:
        return Bury(f"{text}; it crashed {crashes + 1} times", group, crashed=True)
    return Again(retry.delay(crashes + 1, dice), text, group, charged=False, crashed=True)


OUTAGE_DELAY: Final = timedelta(seconds=2)
OUTAGES_IN_A_ROW: Final = 8  # of one job in one process, while the database takes the writes of others
MOST_REMEMBERED: Final = 1_000  # jobs


class HandlerOutages:
    """Outages of our own database that handlers meet, by an enqueue or by a transaction: they cost no attempt.

    A handler may also be the cause, for example with a statement that is larger than the server takes. So the outages of
    one job count as failures once it has met several in a row while the database was there for others.
    """

    def __init__(self, origin: int, is_well: Callable[[], bool]) -> None:
        self._origin = origin  # of the database that the worker works on
        self._is_well = is_well
        self._in_a_row: dict[str, int] = {}  # by job

    def excused(self, error: BaseException, job_id: str) -> BaseException:
        """The error of a handler; in place of an outage of our database, an error that costs no attempt."""
        if not is_outage_of(error, self._origin):
            self._in_a_row.pop(job_id, None)
            return error
        outages = self._in_a_row.pop(job_id, 0) + 1 if self._is_well() else 0
        if outages >= OUTAGES_IN_A_ROW:
            return error
        if len(self._in_a_row) >= MOST_REMEMBERED:
            self._in_a_row.pop(next(iter(self._in_a_row)), None)
        self._in_a_row[job_id] = outages
        excuse = TransientError(f"waits for the database: {error}", delay=OUTAGE_DELAY)
        excuse.__cause__ = error
        return excuse


def _wait(error: TransientError) -> timedelta:
    try:
        return TRANSIENT_DELAY if error.delay is None else duration(error.delay)
    except ConfigurationError:  # an unreadable delay must not cost the attempt that it was meant to save
        return TRANSIENT_DELAY


def describe(error: BaseException) -> str:
    """The error as an operator reads it: its type and message, without what looks like a secret."""
    # Cut late: a secret must not lose its end before it is seen.
    message = message_of(error)[: 2 * LONGEST_ERROR]
    name = type(error).__qualname__
    return without_secrets(f"{name}: {message}" if message else name)[:LONGEST_ERROR]


def fingerprint(error: BaseException) -> str:
    """The error group: what failures of one cause have in common, the type and the message without its values."""
    message = message_of(error).partition("\n")[0]
    return grouped(f"{type(error).__qualname__}: {message}" if message else type(error).__qualname__)


def grouped(text: str) -> str:
    """The error group of this text: without its values, and without what looks like a secret."""
    return _VARIABLE.sub("…", without_secrets(text[:LONGEST_ERROR]))[:LONGEST_GROUP]
