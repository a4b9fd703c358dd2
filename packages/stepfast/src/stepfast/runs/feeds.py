"""The feeds of an application, and the kinds of jobs that their runs are made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.errors import ConfigurationError, NotFoundError, StateError
from stepfast.jobs.kinds import Kind, Kinds
from stepfast.jobs.outcome import Done, Outcome
from stepfast.jobs.payload import Arguments
from stepfast.jobs.retry import Retry
from stepfast.jobs.step import Step  # noqa: TC001 - handlers' hints are read at run time
from stepfast.runs import sweep_step as sweeping
from stepfast.runs.breaker import Breaker, Waiter
from stepfast.runs.consolidation import consolidate
from stepfast.runs.declaration import Declaration, declare
from stepfast.runs.page import PagePositions, read_page
from stepfast.runs.plan import plan_step
from stepfast.runs.replay import replay
from stepfast.runs.run import FEED_JOBS, FeedJob, RunKind, kind_of
from stepfast.runs.start import RunRequest, SourceClock, source_clock, start_run
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.broker import Broker
    from stepfast.runs.feed import Feed


TRANSPORT: Final = "STEPFAST_TRANSPORT"
LONG: Final = timedelta(minutes=10)  # for steps that only talk to our own database


class FeedJobs:
    """What the jobs of one feed do."""

    def __init__(self, declared: Declaration, database: Callable[[], Database]) -> None:
        self.declared = declared
        self._database = database
        self._breaker = Breaker(declared, database)
        self._places = PagePositions()

    async def start(self, step: Step, kind: RunKind | None = None) -> Outcome:
        """A run by the calendar; if one is active, this tick has nothing to do."""

        async def begin() -> Outcome:
            clock = await source_clock(self._database(), self.declared)
            return Done(effects=[Start(self.declared, kind, clock)])

        return await self._breaker.guard(step, Waiter("start"), begin)

    async def plan(self, step: Step, run_id: str, epoch: int) -> Outcome:
        return await self._breaker.guard(
            step,
            Waiter("run", run_id),
            lambda: plan_step(step, self._database(), self.declared, run_id, epoch),
        )

    async def page(self, step: Step, partition_id: str, epoch: int) -> Outcome:
        return await self._breaker.guard(
            step,
            Waiter("partition", partition_id),
            lambda: read_page(step, self._database(), self.declared, self._places, partition_id, epoch),
        )

    async def consolidate(  # noqa: PLR0917 - the arguments of a job
        self,
        step: Step,
        run_id: str,
        epoch: int,
        round: int = 0,  # noqa: A002 - the word of the run
        after: str | None = None,
        until: str | None = None,
        shard: int | None = None,
    ) -> Outcome:
        return await consolidate(
            step,
            self._database(),
            self.declared,
            run_id,
            epoch,
            round=round,
            after=after,
            until=until,
            shard=shard,
        )

    async def replay(self, step: Step) -> Outcome:
        return await replay(step, self._database(), self.declared)

    async def sweep(self, step: Step, run_id: str, epoch: int) -> Outcome:
        found = await sweeping.sweep_step(step, self._database(), self.declared, run_id, epoch)
        if not isinstance(found, sweeping.GoingRows):
            return found
        return await self._breaker.guard(
            step, Waiter("run", run_id), lambda: sweeping.settle(self.declared, found)
        )


class Start:
    """Begins a run in the step's own commit."""

    def __init__(self, declared: Declaration, kind: RunKind | None, clock: SourceClock) -> None:
        self.declared = declared
        self.kind = kind
        self.clock = clock

    def apply(self, tx: Transaction, /) -> None:
        try:
            start_run(tx, self.declared, RunRequest(kind=self.kind), self.clock)
        except StateError as active:
            happened("run.skipped", feed=self.declared.name, note=str(active))


class Feeds:
    """The feeds this process knows, by name."""

    def __init__(
        self, kinds: Kinds, database: Callable[[], Database], transport: str | Broker | None = None
    ) -> None:
        self._kinds = kinds
        self._database = database
        self._transport = transport  # of those that name none; "": none, whatever the environment says
        self._declared: dict[str, Declaration] = {}

    def add(self, feed: Feed) -> Declaration:
        """Check it, and register the kinds of its jobs."""
        declared = self._over_a_broker(declare(feed))
        known = self._declared.get(declared.name)
        if known is not None and known.feed is not feed:
            raise ConfigurationError(f"feed {declared.name!r} is registered twice; give one another name")
        for kind in () if known else (kind_of(declared.name, part) for part in FEED_JOBS):
            if self._kinds.find(kind) is not None:
                raise ConfigurationError(
                    f"feed {declared.name!r} needs the job name {kind!r}, which is taken; give one of them another name"
                )
        for other in self._declared.values():
            if (
                declared.export is not None
                and other.name != declared.name
                and other.export == declared.export
            ):
                raise ConfigurationError(
                    f"feed {declared.name!r}: feed {other.name!r} writes its watermark to {declared.export} as well; "
                    "give each a file of its own"
                )
        self._declared[declared.name] = declared
        jobs = FeedJobs(declared, self._database)
        source = {
            "retry": Retry(attempts=declared.attempts_page),
            "timeout": declared.timeout,
            "limits": declared.limits,
        }
        ours = {"retry": Retry(attempts=declared.attempts_consolidation), "timeout": LONG}
        both = source | {"timeout": LONG + declared.timeout}
        self._register(declared, "start", jobs.start, source | {"limits": ()})
        self._register(declared, "plan", jobs.plan, source)
        self._register(declared, "page", jobs.page, source)
        self._register(declared, "consolidate", jobs.consolidate, ours)
        self._register(declared, "sweep", jobs.sweep, both if declared.confirms else ours)
        self._register(declared, "replay", jobs.replay, ours)
        return declared

    def _over_a_broker(self, declared: Declaration) -> Declaration:
        """As it is, or with the broker of the application."""
        given = os.environ.get(TRANSPORT) if self._transport is None else self._transport
        if declared.broker is not None or not given:
            return declared
        from stepfast.runs.broker import checked_broker

        return replace(declared, broker=checked_broker(given))

    def get(self, name: str) -> Declaration:
        found = self._declared.get(name)
        if found is None:
            known = ", ".join(sorted(self._declared)) or "none"
            raise NotFoundError(f"no feed {name!r} in this application (it has: {known})")
        return found

    def find(self, name: str) -> Declaration | None:
        return self._declared.get(name)

    def all(self) -> list[Declaration]:
        return [self._declared[name] for name in sorted(self._declared)]

    def kind(self, name: str, part: FeedJob) -> Kind:
        return self._kinds.get(kind_of(name, part))

    def __bool__(self) -> bool:
        return bool(self._declared)

    def _register(
        self, declared: Declaration, part: FeedJob, handler: Callable[..., Any], options: dict[str, Any]
    ) -> None:
        name = kind_of(declared.name, part)
        known = self._kinds.find(name)
        kind = Kind(
            name=name,
            handler=handler,
            arguments=Arguments(name, handler),
            queue=declared.queue,
            priority=declared.priority,
            is_async=True,
            **options,
        )
        self._kinds.register(kind if known is None else replace(kind, handler=known.handler))
