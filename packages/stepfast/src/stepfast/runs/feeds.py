"""The feeds of an application, and the kinds of jobs that their runs are made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.errors import ConfigurationError, NotFoundError
from stepfast.jobs.kinds import Kind, Kinds
from stepfast.jobs.payload import Arguments
from stepfast.jobs.retry import Retry
from stepfast.runs.breaker import Breaker
from stepfast.runs.consolidation import ConsolidateJob
from stepfast.runs.declaration import Declaration, declare
from stepfast.runs.page import PageJob
from stepfast.runs.plan import PlanJob
from stepfast.runs.replay import ReplayJob
from stepfast.runs.run import FEED_JOBS, FeedJob, kind_of
from stepfast.runs.start import StartJob
from stepfast.runs.sweep import SweepJob

if TYPE_CHECKING:
    from stepfast.database.database import Database
    from stepfast.runs.broker import Broker
    from stepfast.runs.feed import Feed


TRANSPORT: Final = "STEPFAST_TRANSPORT"
LONG: Final = timedelta(minutes=10)  # for steps that only talk to our own database


class Feeds:
    """The feeds this process knows, by name."""

    def __init__(
        self, kinds: Kinds, database: Callable[[], Database], transport: str | Broker | None = None
    ) -> None:
        self._kinds = kinds
        self._database = database
        self._transport = transport  # of feeds that name none; "": none, whatever the environment says
        self._declared: dict[str, Declaration] = {}

    def add(self, feed: Feed) -> Declaration:
        """Check a feed, and register the kinds of its jobs."""
        declared = self._over_a_broker(declare(feed))
        self._check_names(declared)
        self._check_exports(declared)
        self._declared[declared.name] = declared
        self._register_jobs(declared)
        return declared

    def _check_names(self, declared: Declaration) -> None:
        known = self._declared.get(declared.name)
        if known is not None and known.feed is not declared.feed:
            raise ConfigurationError(f"feed {declared.name!r} is registered twice; give one another name")
        for kind in () if known else (kind_of(declared.name, job) for job in FEED_JOBS):
            if self._kinds.find(kind) is not None:
                raise ConfigurationError(
                    f"feed {declared.name!r} needs the job name {kind!r}, which is taken; give one of them another name"
                )

    def _check_exports(self, declared: Declaration) -> None:
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

    def _register_jobs(self, declared: Declaration) -> None:
        """Register the jobs that a run is made of, in the order in which it meets them, and the replay of quarantined rows."""
        database, breaker = self._database, Breaker(declared, self._database)
        asks_source = {
            "retry": Retry(attempts=declared.attempts_page),
            "timeout": declared.timeout,
            "limits": declared.limits,
        }
        asks_nobody = {"retry": Retry(attempts=declared.attempts_consolidation), "timeout": LONG}
        asks_perhaps = (
            asks_source | {"timeout": LONG + declared.timeout} if declared.confirms else asks_nobody
        )
        start, plan = StartJob(declared, database, breaker), PlanJob(declared, database, breaker)
        page, sweep = PageJob(declared, database, breaker), SweepJob(declared, database, breaker)
        consolidate, replay = ConsolidateJob(declared, database), ReplayJob(declared, database)
        self._register(declared, "start", start.start, asks_source | {"limits": ()})
        self._register(declared, "plan", plan.plan, asks_source)
        self._register(declared, "page", page.read, asks_source)
        self._register(declared, "consolidate", consolidate.consolidate, asks_nobody)
        self._register(declared, "sweep", sweep.sweep, asks_perhaps)
        self._register(declared, "replay", replay.replay, asks_nobody)

    def _over_a_broker(self, declared: Declaration) -> Declaration:
        """The declaration; if it names no broker, with the broker of the application."""
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

    def kind(self, name: str, job: FeedJob) -> Kind:
        return self._kinds.get(kind_of(name, job))

    def __bool__(self) -> bool:
        return bool(self._declared)

    def _register(
        self, declared: Declaration, job: FeedJob, handler: Callable[..., Any], options: dict[str, Any]
    ) -> None:
        name = kind_of(declared.name, job)
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
