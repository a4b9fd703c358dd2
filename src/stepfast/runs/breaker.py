"""A source in trouble pauses its feed, for all workers, and spends nobody's attempts.

Every step that may ask the source goes through the breaker of its feed:

    breaker = Breaker(declared, database)  # one per feed and process
    return await breaker.guard(step, Waiter("partition", partition_id), lambda: read_page(step, …))

A step that meets a throttle, an outage or a refusal answers Snooze, and its commit pauses the feed: twice as long each
time, or as long as the source asks. Whoever comes during the pause waits as well. When it is over one of them asks
first, the others a little later: a good answer ends the pause. It is not the one who met the trouble: a question that
the source cannot answer must not keep the others from asking. Who has waited for too long fails, with that reason.
No call is ever repeated inside a step: the step is the one who tries again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import micros, moment, spoken
from stepfast.errors import ContentionError, TransientError, UnreachableError
from stepfast.runs.asking import Begun
from stepfast.runs.feed_row import FeedRow, find_feed
from stepfast.runs.pause import (
    TroubleMet,
    TroubleOver,
    Waiter,
    is_alone,
    mark,
    own_wait,
    pause_for,
    paused,
    waited_for,
)
from stepfast.runs.trouble import TroubleKind, classify
from stepfast.steps.failure import describe
from stepfast.steps.outcome import Outcome, Reject, Snooze
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from stepfast.database.database import Database
    from stepfast.runs.declaration import Declaration
    from stepfast.steps.step import Step

OWN_TROUBLE: Final = timedelta(minutes=15)  # who alone meets outages so long does not wait for the source
BELIEVED: Final = 0.25  # seconds for which a process believes that all is well
HELD: Final = timedelta(milliseconds=500)  # for which it waits until the pause it asked for is committed
SPARE: Final = 0.9  # of the step's timeout: a source that hangs is an outage, not a bug
DATABASE_DELAY: Final = timedelta(seconds=2)
LONGEST_REASON: Final = 500

Work = Callable[[], Coroutine[Any, Any, Outcome]]


class Breaker:
    """Stands between the steps of one feed and its source."""

    def __init__(self, declared: Declaration, database: Callable[[], Database]) -> None:
        self._declared = declared
        self._database = database
        self._well_until = 0.0  # until when this process need not look
        self._held_until = 0.0  # until when trouble that was met here may not be written yet
        self._met_by: FeedRow | None = None  # what was known when it was met

    async def guard(self, step: Step, waiter: Waiter, work: Work) -> Outcome:
        """Do the work of a step, unless the source is to be left alone; what it meets decides when it is done again."""
        try:
            row = await self._look()
            delay = paused(row, step.job_id)
            if delay:
                return await self._wait(row, step, waiter, delay)
            try:
                began = time.monotonic()
                outcome = await self._in_time(began, Begun(work()))
            except (UnreachableError, ContentionError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever the source or the feed raised is judged
                return await self._met(row, step, waiter, error)
        except (UnreachableError, ContentionError) as error:
            # Our own database, or too few connections to it: nobody's fault, and no attempt.
            raise TransientError(f"waits for the database: {error}", delay=DATABASE_DELAY) from error
        return self._well(row, outcome)

    async def _in_time(self, began: float, begun: Begun[Outcome]) -> Outcome:
        """A source that answers at once needs no timer, which would take longer than the rest of this."""
        if begun.waits:
            left = self._declared.timeout.total_seconds() * SPARE - (time.monotonic() - began)
            async with asyncio.timeout(left):
                return await begun
        return begun.answer

    async def _look(self) -> FeedRow:
        if time.monotonic() < self._well_until:
            return FeedRow(self._declared.name)
        row = await asyncio.to_thread(self._read)
        if time.monotonic() < self._held_until and self._unwritten(row):
            return replace(row, paused_until=max(row.paused_until or 0, row.now + micros(HELD)))
        if not row.troubles:
            self._well_until = time.monotonic() + BELIEVED
        return row

    def _unwritten(self, row: FeedRow) -> bool:
        """Whether the row is still as it was when trouble was met here."""
        met = self._met_by
        return met is not None and (row.troubles, row.paused_until) == (met.troubles, met.paused_until)

    def _read(self) -> FeedRow:
        with self._database().looking() as tx:
            return find_feed(tx, self._declared.name)

    async def _wait(self, row: FeedRow, step: Step, waiter: Waiter, delay: timedelta) -> Outcome:
        """The feed is paused. Come back a little after the one who asks first."""
        reason = row.pause_reason or "the source is in trouble"
        waited = await asyncio.to_thread(self._waited, row, waiter)
        if waited >= self._declared.wait_at_most:
            return self._give_up(waited, reason)
        if step.job_id != row.probe:
            delay += timedelta(seconds=random.random())
        return Snooze(delay, effects=[lambda tx: mark(tx, waiter, reason)])

    async def _met(self, row: FeedRow, step: Step, waiter: Waiter, error: Exception) -> Outcome:
        """The source, or the feed's code, raised."""
        declared = self._declared
        now = moment(row.now) if row.now else moment(time.time_ns() // 1000)
        trouble = classify(error, now)
        if not trouble.waits:
            raise error
        waited = await asyncio.to_thread(self._waited, row, waiter)
        suspicious = trouble.kind is TroubleKind.OUTAGE and waited >= OWN_TROUBLE
        if suspicious and await asyncio.to_thread(self._is_alone, waiter):
            raise error  # the source answers the others: it is this question that it cannot answer
        reason = f"{trouble.kind.value}: {describe(error)}"[:LONGEST_REASON]
        if waited >= declared.wait_at_most:
            return self._give_up(waited, reason)
        self._well_until, self._held_until = 0.0, time.monotonic() + HELD.total_seconds()
        self._met_by = row
        pause = pause_for(trouble, row.troubles, random.random())
        happened(
            "source.troubled",
            feed=declared.name,
            trouble=trouble.kind.value,
            error=error,
            retry_in_s=pause.total_seconds(),
        )
        met = TroubleMet(
            feed=declared.name,
            job_id=step.job_id,
            waiter=waiter,
            trouble=trouble,
            pause=pause,
            reason=reason,
        )
        return Snooze(own_wait(pause, waited), effects=[met])

    def _waited(self, row: FeedRow, waiter: Waiter) -> timedelta:
        if waiter.what == "start":
            return timedelta(microseconds=row.now - (row.troubled_at or row.now))
        with self._database().looking() as tx:
            return waited_for(tx, waiter)

    def _is_alone(self, waiter: Waiter) -> bool:
        with self._database().looking() as tx:
            return is_alone(tx, waiter)

    def _give_up(self, waited: timedelta, reason: str) -> Reject:
        """A wait costs no attempt, but it has an end."""
        return Reject(f"waited for the source for {spoken(waited)}, in vain; {reason}")

    def _well(self, row: FeedRow, outcome: Outcome) -> Outcome:
        # Who found itself unwanted has nothing to write, and has not asked.
        if not row.troubles or isinstance(outcome, Snooze | Reject) or not outcome.effects:
            return outcome
        happened("source.recovered", feed=self._declared.name, troubles=row.troubles)
        return replace(outcome, effects=[*outcome.effects, TroubleOver(row)])
