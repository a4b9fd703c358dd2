"""A process of a small world. It does what it is told, one step at a time.

So anything can happen between two steps, between the halves of one, and within one between two statements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stepfast import Stepfast
from stepfast.errors import LeaseLostError
from stepfast.jobs.commit import effects_of
from stepfast.jobs.outcome import Done
from stepfast.jobs.retry import judge
from stepfast.jobs.step import Step
from stepfast_diamonds.feed import nivoda
from stepfast_diamonds.repricing import Repricing
from tests.diamonds.asking import settings_for
from tests.support.single_threaded_worker import Answer, NoReports, SingleThreadedWorker, _awaited

if TYPE_CHECKING:
    from stepfast.jobs.lease import Lease
    from tests.diamonds.worlds import World


class Hands(SingleThreadedWorker):
    """A lone worker with one event loop for its whole life, so that its connections last as long."""

    @cached_property
    def runner(self) -> asyncio.Runner:
        return asyncio.Runner()

    def run_handler(self, lease: Lease) -> Answer:
        kind = self.app.kinds.get(lease.kind)
        step = Step(lease, NoReports(), self.name)
        try:
            arguments = kind.arguments.decode(lease.payload)
            given = (step,) if kind.arguments.wants_step else ()
            answer: Any = self.runner.run(_called(kind.handler, given, arguments))
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            return Answer(judge(error, kind.retry, lease.failures, 0.0))
        ending = Done(answer) if answer is None else answer
        return Answer(ending, [*step.effects, *effects_of(ending)] if hasattr(ending, "effects") else ())


async def _called(handler: Callable[..., Any], given: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
    return await _awaited(handler(*given, **arguments))


class Process:
    """A worker process: its own connections, its own token, its own memory of the source. It dies with all of it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.app = Stepfast(world.url)
        self.app.database.shift_clock(world.shift)
        self.repricing = Repricing(self.app)
        account = settings_for(world.sim, **world.settings)
        nivoda(self.app, settings=account, repricing=self.repricing, **world.feeds)
        self.hands = Hands(self.app, name)
        self.held: tuple[Lease, Answer] | None = None  # what it has read and not written yet

    def step(self) -> bool:
        """One step; False if there was nothing to do."""
        if self.held is not None:
            self.write()
            return True
        lease = self.hands.claim()
        if lease is None:
            return False
        self._write(lease, self.hands.run_handler(lease))
        return True

    def read(self) -> bool:
        """Half a step: the source is asked, and nothing is written."""
        if self.held is None and (lease := self.hands.claim()) is not None:
            self.held = lease, self.hands.run_handler(lease)
        return self.held is not None

    def write(self) -> None:
        """The other half, however late."""
        if self.held is not None:
            held, self.held = self.held, None
            self._write(*held)

    def close(self) -> None:
        self.hands.runner.close()
        self.app.close()

    def _write(self, lease: Lease, thought: Answer) -> None:
        try:
            self.hands.commit(lease, thought)
        except LeaseLostError:
            pass  # somebody else has it by now
        finally:
            self.world.let_pass(1)
