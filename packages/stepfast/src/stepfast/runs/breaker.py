"""The circuit breaker of a feed: a source in trouble pauses the feed, for all workers, and costs no attempts.

Every step that may ask the source goes through the breaker of its feed:

    breaker = Breaker(declared, database)  # one per feed and process
    return await breaker.guard(step, Waiter("partition", row_id), read_page(step, …))

A step that meets a throttle, an outage or a refusal answers Snooze, and its commit pauses the feed: twice as long each
time, or as long as the source asks. Steps that begin during the pause wait as well. When the pause is over one of them,
the probe, asks first, the others a little later: a good answer ends the pause. The probe is not the step that met the
trouble: a question that the source cannot answer must not keep the others from asking. A step that has waited for too
long fails, with that reason. No call is ever repeated inside a step: the step as a whole is tried again.

One request that breaks off while others are answered is the trouble of its connection, and pauses nobody else; the next one
that breaks off before there is a good answer pauses the feed.
"""

from __future__ import annotations

import asyncio
import errno
import random
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, assert_never

from stepfast.clock import duration, micros, moment, spoken
from stepfast.coroutines import StartedCoroutine
from stepfast.database.failures import is_outage_of
from stepfast.database.statement import sql
from stepfast.errors import (
    AuthError,
    ConfigurationError,
    DatabaseError,
    StepfastError,
    ThrottledError,
    TransientError,
)
from stepfast.jobs.outcome import Outcome, Reject, Snooze
from stepfast.jobs.retry import describe
from stepfast.runs import alerts
from stepfast.runs.run import FeedRow, find_feed, lock_feed
from stepfast.telemetry import happened, when_committed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.step import Step
    from stepfast.runs.declaration import Declaration


# The flow: look, wait or work, judge what the work met.

OWN_OUTAGE: Final = timedelta(minutes=15)  # after which a partition that alone meets outages fails
BELIEVED: Final = 0.25  # seconds for which a process believes that the source is well
UNWRITTEN: Final = (
    5.0  # seconds in which a pause that a process asked for is committed, also on a busy machine ...
)
HELD: Final = timedelta(
    milliseconds=500
)  # ... and how long its other steps wait, before they look for it again
RECENTLY: Final = 1.0  # seconds; a request that breaks off so soon after a good answer may be the only one
SPARE: Final = 0.9  # of the step's timeout: a source that hangs is an outage, not a bug
DATABASE_DELAY: Final = timedelta(seconds=2)
LONGEST_REASON: Final = 500


class Breaker:
    """Stands between the steps of one feed and its source."""

    def __init__(self, declared: Declaration, database: Callable[[], Database]) -> None:
        self._declared = declared
        self._database = database
        self._well_until = 0.0  # until when this process need not look
        self._unwritten_until = 0.0  # until when a pause that was asked for here may not be committed yet
        self._answered_at = -RECENTLY  # when the source last answered a step of this process
        self._broke_off = 0  # requests that got no answer since then

    async def guard(self, step: Step, waiter: Waiter, work: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Do the work of a step, unless the feed is paused; what it meets decides when it is done again."""
        try:
            row = await self._look()
            delay = pause_left(row, step.job_id)
            if delay:
                return await self._wait(row, step, waiter, delay)
            began = time.monotonic()
            try:
                outcome = await self._in_time(work)
            except Exception as error:
                if self._is_own_outage(error):
                    raise
                return await self._met(row, step, waiter, error, began)
        except DatabaseError as error:
            if not self._is_own_outage(error):
                raise
            # Our own database, or too few connections to it: the source is not to blame, and no attempt is spent.
            raise TransientError(f"waits for the database: {error}", delay=DATABASE_DELAY) from error
        finally:
            work.close()  # it was perhaps never begun
        return self._recovered(row, outcome)

    def _is_own_outage(self, error: Exception) -> bool:
        return is_outage_of(error, self._database().origin)

    async def _in_time(self, work: Coroutine[Any, Any, Outcome]) -> Outcome:
        """A source that answers at once needs no timer, which would take longer than the rest of this."""
        began = time.monotonic()
        started = StartedCoroutine(work)
        if not started.waits:
            return started.answer
        left = self._declared.timeout.total_seconds() * SPARE - (time.monotonic() - began)
        async with asyncio.timeout(left):
            return await started

    async def _look(self) -> FeedRow:
        if time.monotonic() < self._well_until:
            return FeedRow(self._declared.name)
        held = self._pause_is_unwritten()  # asked before and after: it may be written while we read
        row = await asyncio.to_thread(self._read)
        if held or self._pause_is_unwritten():
            return replace(row, paused_until=max(row.paused_until or 0, row.now + micros(HELD)))
        if not row.troubles:
            self._well_until = time.monotonic() + BELIEVED
        return row

    def _pause_is_unwritten(self) -> bool:
        """Whether the pause that this process asked for is not committed yet."""
        return time.monotonic() < self._unwritten_until

    def _pause_is_written(self) -> None:
        self._unwritten_until = 0.0

    def _read(self) -> FeedRow:
        with self._database().looking() as tx:
            return find_feed(tx, self._declared.name)

    async def _wait(self, row: FeedRow, step: Step, waiter: Waiter, delay: timedelta) -> Outcome:
        """The feed is paused: come back a little after the probe."""
        reason = row.pause_reason or "the source is in trouble"
        waited = await asyncio.to_thread(self._waited, row, waiter)
        if waited >= self._declared.wait_at_most:
            return self._give_up(waited, reason)
        if step.job_id != row.probe:
            delay += timedelta(seconds=random.random())
        return Snooze(delay, effects=[lambda tx: mark_waiting(tx, waiter, reason)])

    async def _met(self, row: FeedRow, step: Step, waiter: Waiter, error: Exception, began: float) -> Outcome:
        """The source, or the feed's code, raised: pause the feed, or let the exception cost an attempt."""
        declared = self._declared
        now = moment(row.now) if row.now else moment(time.time_ns() // 1000)
        source_error = classify(error, now)
        if not source_error.waits:
            raise error
        lone = waiter.what == "partition" and self._is_lone(row, source_error, began)  # before others go on
        waited = await asyncio.to_thread(self._waited, row, waiter)
        suspicious = source_error.kind is SourceErrorKind.OUTAGE and waited >= OWN_OUTAGE
        if suspicious and await asyncio.to_thread(self._others_are_answered, waiter):
            raise error  # the source answers the others: it is this question that it cannot answer
        reason = f"{source_error.kind.value}: {describe(error)}"[:LONGEST_REASON]
        if waited >= declared.wait_at_most:
            return self._give_up(waited, reason)
        pause = pause_for(source_error, row.troubles, random.random())
        if lone:
            happened("source.unanswered", feed=declared.name, error=error, retry_in_s=pause.total_seconds())
            return Snooze(own_wait(pause, waited), effects=[lambda tx: mark_waiting(tx, waiter, reason)])
        self._well_until, self._unwritten_until = 0.0, time.monotonic() + UNWRITTEN
        happened(
            "source.troubled",
            feed=declared.name,
            trouble=source_error.kind.value,
            error=error,
            retry_in_s=pause.total_seconds(),
        )
        begin_pause = BeginPause(
            feed=declared.name,
            job_id=step.job_id,
            waiter=waiter,
            source_error=source_error,
            pause=pause,
            reason=reason,
            written=self._pause_is_written,
        )
        return Snooze(own_wait(pause, waited), effects=[begin_pause])

    def _is_lone(self, row: FeedRow, source_error: SourceError, began: float) -> bool:
        """Whether the source answers others: it did just before this request, or while it was under way.

        Only the first request that breaks off after a good answer is taken for a lone one.
        """
        self._broke_off += 1
        no_answer = source_error.kind is SourceErrorKind.OUTAGE and source_error.broke_off
        return (
            no_answer and not row.troubles and self._broke_off == 1 and self._answered_at > began - RECENTLY
        )

    def _waited(self, row: FeedRow, waiter: Waiter) -> timedelta:
        if waiter.what == "start":
            return timedelta(microseconds=row.now - (row.troubled_at or row.now))
        with self._database().looking() as tx:
            return waited_for(tx, waiter)

    def _others_are_answered(self, waiter: Waiter) -> bool:
        with self._database().looking() as tx:
            return others_are_answered(tx, waiter)

    def _give_up(self, waited: timedelta, reason: str) -> Reject:
        """A wait costs no attempt, but it ends after `wait_at_most`."""
        return Reject(f"waited for the source for {spoken(waited)}, in vain; {reason}")

    def _recovered(self, row: FeedRow, outcome: Outcome) -> Outcome:
        """The outcome of good work; after trouble, its commit ends the pause."""
        # A step that found itself stale has nothing to write, and has not asked the source.
        if isinstance(outcome, Snooze | Reject) or not outcome.effects:
            return outcome
        self._answered_at, self._broke_off = time.monotonic(), 0
        if not row.troubles:
            return outcome
        return replace(outcome, effects=[*outcome.effects, EndPause(row)])


# The pause of a feed, as its row has it: pure decisions, and the effects that write them.


class SourceErrorKind(StrEnum):
    THROTTLE = "throttle"  # the source wants fewer requests
    OUTAGE = "outage"  # it does not answer, or not as it should
    AUTH = "auth"  # it does not let us in
    DATA = "data"  # it answered something that cannot be right
    BUG = "bug"  # our code, or the feed's


WAITS: Final = (SourceErrorKind.THROTTLE, SourceErrorKind.OUTAGE, SourceErrorKind.AUTH)


@dataclass(frozen=True)
class SourceError:
    """What an exception of the source means."""

    kind: SourceErrorKind
    retry_after: timedelta | None = None  # what the source itself asks for
    broke_off: bool = False  # there was no answer at all: a connection that was refused, cut or silent

    @property
    def waits(self) -> bool:
        """Whether waiting may help: then the feed pauses, and no attempt is spent."""
        return self.kind in WAITS


FIRST_PAUSE: Final = {
    SourceErrorKind.THROTTLE: timedelta(seconds=1),
    SourceErrorKind.OUTAGE: timedelta(seconds=1),
    SourceErrorKind.AUTH: timedelta(seconds=30),  # a password does not change in a second; it may lock us out
}
LONGEST_PAUSE: Final = timedelta(minutes=5)
LONGEST_LEAD: Final = timedelta(seconds=5)  # of the probe before the others
MARGIN: Final = timedelta(seconds=10)  # that a commit may come after its answer
ALERT_AFTER: Final = timedelta(minutes=5)

# Of steps that meet trouble at the same time the first begins the pause; the others find it begun.
BEGIN_PAUSE = sql("""
    UPDATE stepfast_feed
       SET troubles = troubles + 1, troubled_at = COALESCE(troubled_at, {now}), paused_until = {now} + :pause,
           pause_reason = :reason, probe = :job_id, updated_at = {now}
     WHERE id = :feed AND (paused_until IS NULL OR paused_until <= {now})
""")
LENGTHEN_PAUSE = sql("""
    UPDATE stepfast_feed SET paused_until = {now} + :pause, updated_at = {now}
     WHERE id = :feed AND paused_until < {now} + :pause
""")
# Only if no step has met trouble since this one looked.
END_PAUSE = sql("""
    UPDATE stepfast_feed
       SET troubles = 0, troubled_at = NULL, paused_until = NULL, pause_reason = NULL, probe = NULL, updated_at = {now}
     WHERE id = :feed AND troubles = :troubles AND paused_until = :paused_until
""")

# Since when a partition or a run waits: trouble that is older than its last movement is over.
PARTITION_WAITS = sql("""
    UPDATE stepfast_partition
       SET troubled_at = CASE WHEN troubled_at >= updated_at THEN troubled_at ELSE {now} END, last_error = :error
     WHERE id = :id AND state IN ('ready', 'running')
""")
RUN_WAITS = sql("""
    UPDATE stepfast_run SET troubled_at = CASE WHEN troubled_at >= updated_at THEN troubled_at ELSE {now} END
     WHERE id = :id AND ended_at IS NULL
""")
PARTITION_WAITED = sql(
    "SELECT {now} - troubled_at FROM stepfast_partition WHERE id = :id AND troubled_at >= updated_at"
)
RUN_WAITED = sql("SELECT {now} - troubled_at FROM stepfast_run WHERE id = :id AND troubled_at >= updated_at")

# Another partition of the run, so that all of them get their turn.
NEXT_PROBE = sql("""
    SELECT job_id FROM stepfast_partition
     WHERE run_id = (SELECT m.run_id FROM stepfast_partition m WHERE m.id = :id)
       AND id <> :id AND state IN ('ready', 'running')
     ORDER BY CASE WHEN id > :id THEN 0 ELSE 1 END, id LIMIT 1
""")
# A page of another partition that was asked for after the trouble began, and answered.
OTHERS_ARE_ANSWERED = sql("""
    SELECT g.seq FROM stepfast_partition p
      JOIN stepfast_partition o ON o.run_id = p.run_id AND o.id <> p.id AND o.updated_at > p.troubled_at
      JOIN stepfast_page g ON g.partition_id = o.id
     WHERE p.id = :id AND g.request_offset IS NOT NULL AND g.at - 1000 * g.milliseconds > p.troubled_at + :margin
     LIMIT 1
""")


@dataclass(frozen=True)
class Waiter:
    """What waits for the source: a partition, the plan or the sweep of a run, or a run that has not begun."""

    what: Literal["partition", "run", "start"]
    id: str = ""


def pause_left(feed: FeedRow, job_id: str) -> timedelta:
    """How long this job must not ask the source; zero: it may."""
    if feed.paused_until is None:
        return timedelta(0)
    lead = 0 if job_id == feed.probe else micros(_lead(feed.troubles))
    return timedelta(microseconds=max(0, feed.paused_until + lead - feed.now))


def pause_for(source_error: SourceError, troubles: int, dice: float) -> timedelta:
    """How long to leave the source alone after `troubles` earlier errors in a row; `dice` is uniform in [0, 1)."""
    ceiling = min(FIRST_PAUSE[source_error.kind] * (1 << min(troubles, 20)), LONGEST_PAUSE)
    return max(ceiling * (0.75 + 0.25 * dice), (source_error.retry_after or timedelta(0)) * (1 + 0.05 * dice))


def own_wait(pause: timedelta, waited: timedelta) -> timedelta:
    """How long the step that met the error waits: one that keeps meeting it asks more and more seldom."""
    return max(pause, min(waited / 2, LONGEST_PAUSE))


def _lead(troubles: int) -> timedelta:
    return min(LONGEST_LEAD, timedelta(seconds=1 << min(max(0, troubles - 1), 10)))


@dataclass(frozen=True, kw_only=True)
class BeginPause:
    """Effect of a step that met an error of the source: its partition waits, and so does the feed."""

    feed: str
    job_id: str
    waiter: Waiter
    source_error: SourceError
    pause: timedelta
    reason: str
    written: Callable[[], None]  # called when it is

    def apply(self, tx: Transaction, /) -> None:
        tx.after_commit(self.written)
        mark_waiting(tx, self.waiter, self.reason)
        row = lock_feed(tx, self.feed)
        span = {"feed": self.feed, "pause": micros(self.pause)}
        begun = tx.run(BEGIN_PAUSE, **span, reason=self.reason, job_id=self._probe(tx))
        if begun != 1 and self.source_error.retry_after:
            tx.run(LENGTHEN_PAUSE, **span)
        since = row.troubled_at or row.now
        if self.source_error.kind is SourceErrorKind.AUTH or row.now - since >= micros(ALERT_AFTER):
            alerts.source_in_trouble(tx, self.feed, self.source_error.kind.value, self.reason, moment(since))

    def _probe(self, tx: Transaction) -> str:
        if self.waiter.what != "partition":
            return self.job_id
        return str(tx.first(NEXT_PROBE, id=self.waiter.id) or self.job_id)


@dataclass(frozen=True)
class EndPause:
    """Effect of a good answer after errors. Last in a commit: the feed's row is the last to be locked."""

    row: FeedRow

    def apply(self, tx: Transaction, /) -> None:
        ended = tx.run(
            END_PAUSE,
            feed=self.row.feed,
            troubles=self.row.troubles,
            paused_until=self.row.paused_until,
        )
        if ended == 1:
            when_committed(tx, "source.recovered", feed=self.row.feed, troubles=self.row.troubles)


def mark_waiting(tx: Transaction, waiter: Waiter, reason: str) -> None:
    """Store since when the partition or the run waits, and for what."""
    match waiter.what:
        case "partition":
            tx.run(PARTITION_WAITS, id=waiter.id, error=reason)
        case "run":
            tx.run(RUN_WAITS, id=waiter.id)
        case "start":
            pass  # the feed's own row says since when
        case _:
            assert_never(waiter.what)


def others_are_answered(tx: Transaction, waiter: Waiter) -> bool:
    """Whether the source answers other partitions of the run, while this one waits for it."""
    if waiter.what != "partition":
        return False
    return bool(tx.rows(OTHERS_ARE_ANSWERED, id=waiter.id, margin=micros(MARGIN)))


def waited_for(tx: Transaction, waiter: Waiter) -> timedelta:
    """For how long the partition or the run has waited without a movement in between."""
    statement = PARTITION_WAITED if waiter.what == "partition" else RUN_WAITED
    return timedelta(microseconds=int(tx.first(statement, id=waiter.id) or 0))


# What an exception of the source means: wait, or try again as often as the retry policy allows.

LONGEST_RETRY_AFTER: Final = timedelta(hours=24)
DEEPEST_CAUSE: Final = 5

THROTTLED: Final = 429
LOCKED_OUT: Final = (401, 403, 407)
TRY_LATER: Final = 503
AWAY: Final = (408, 425, 500, 502, 503, 504)
GATEWAYS: Final = range(506, 600)  # such as 520 to 527 of content networks; not 501 and 505: those stay

NETWORK_LIBRARIES: Final = ("httpx", "httpcore", "aiohttp", "requests", "urllib3", "urllib", "http", "anyio")
NETWORK_ERRORS: Final = (
    "TimeoutException",
    "NetworkError",
    "RemoteProtocolError",
    "ProxyError",
    "ClientConnectionError",
    "ClientPayloadError",
    "ConnectionError",
    "Timeout",
    "ChunkedEncodingError",
    "IncompleteRead",
    "RemoteDisconnected",
    "ProtocolError",
    "URLError",
)
NETWORK_CODES: Final = {
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.ECONNREFUSED,
    errno.ECONNABORTED,
    errno.EPIPE,
}


def classify(error: BaseException, now: datetime) -> SourceError:
    """What an exception that a call to the source raised means; `now` is for a Retry-After that names a date. Pure.

    Exceptions of HTTP libraries are told apart by what they carry, so that none of them has to be installed.
    """
    causes = _causes(error)
    for cause in causes:
        if (recognised := _recognised(cause, now)) is not None:
            return replace(recognised, broke_off=any(_has_no_answer(it) for it in causes))
    return SourceError(
        SourceErrorKind.DATA if isinstance(error, ValueError | StepfastError) else SourceErrorKind.BUG
    )


def _causes(error: BaseException) -> list[BaseException]:
    """The exception and those behind it: a feed that wraps an error in its own has not changed what happened."""
    causes = [error]
    while len(causes) < DEEPEST_CAUSE and (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    return causes


def _has_no_answer(error: BaseException) -> bool:
    return _answer(error)[0] is None and _is_network(error)


def _recognised(error: BaseException, now: datetime) -> SourceError | None:
    if isinstance(error, TransientError):
        return SourceError(_kind_of(error), _span(error.delay))
    if isinstance(error, StepfastError) and not isinstance(error, DatabaseError):
        return SourceError(SourceErrorKind.DATA)
    status, headers = _answer(error)
    if status is not None:
        return _of_status(status, _retry_after(headers, now))
    return SourceError(SourceErrorKind.OUTAGE) if _has_no_answer(error) else None


def _kind_of(error: TransientError) -> SourceErrorKind:
    if isinstance(error, ThrottledError):
        return SourceErrorKind.THROTTLE
    return SourceErrorKind.AUTH if isinstance(error, AuthError) else SourceErrorKind.OUTAGE


def _of_status(status: int, retry_after: timedelta | None) -> SourceError:
    if status == THROTTLED or (status in (*LOCKED_OUT, TRY_LATER) and retry_after is not None):
        return SourceError(SourceErrorKind.THROTTLE, retry_after)
    if status in LOCKED_OUT:
        return SourceError(SourceErrorKind.AUTH)
    if status in AWAY or status in GATEWAYS:
        return SourceError(SourceErrorKind.OUTAGE, retry_after)
    return SourceError(SourceErrorKind.DATA)


def _answer(error: BaseException) -> tuple[int | None, Mapping[str, Any]]:
    """The HTTP status and headers that the exception carries: of httpx and requests, aiohttp, urllib."""
    response = getattr(error, "response", None)
    for owner, name in ((response, "status_code"), (response, "status"), (error, "status_code"), (error, "status"), (error, "code")):  # fmt: skip
        status = getattr(owner, name, None)
        if isinstance(status, int) and not isinstance(status, bool) and 100 <= status < 600:  # noqa: PLR2004 - of HTTP
            headers: Any = getattr(owner, "headers", None)
            return status, headers if hasattr(headers, "get") else {}
    return None, {}


def _retry_after(headers: Mapping[str, Any], now: datetime) -> timedelta | None:
    """Seconds, or a date: then by the source's own clock, if it shows it."""
    text = str(headers.get("Retry-After") or headers.get("retry-after") or "").strip()
    if not text:
        return None
    try:
        return _bounded(timedelta(seconds=float(text)))
    except (ValueError, OverflowError):
        at = _date(text)
    if at is None:
        return None
    shown = _date(str(headers.get("Date") or headers.get("date") or ""))
    return _bounded(at - (shown or now))


def _date(text: str) -> datetime | None:
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _span(delay: timedelta | float | str | None) -> timedelta | None:
    try:
        return None if delay is None else _bounded(duration(delay))
    except ConfigurationError:  # a wait that cannot be read is no wait
        return None


def _bounded(span: timedelta) -> timedelta:
    return max(timedelta(0), min(span, LONGEST_RETRY_AFTER))


def _is_network(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror | socket.herror):
        return True
    if isinstance(error, OSError) and error.errno in NETWORK_CODES:
        return True
    return any(
        it.__name__ == "SSLError"
        or (it.__module__.partition(".")[0] in NETWORK_LIBRARIES and it.__name__ in NETWORK_ERRORS)
        for it in type(error).__mro__
    )
