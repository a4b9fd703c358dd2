"""Look over the shoulder of handlers and effects while the real worker runs them.

The worker is given the kinds of an application with a watcher around each handler. Everything else is theirs: the arguments,
the retries, the timeout, whether it is a coroutine. So the worker does what it always does, and somebody sees it.
"""

from __future__ import annotations

import asyncio
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from stepfast.database.upsert import Upsert
from stepfast.jobs.kinds import Kinds
from stepfast.jobs.outcome import Continue, Done, Effect, Snooze, Wait, effects_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.jobs.kinds import Kind
    from stepfast.jobs.step import Step


FOREVER: Final = 3600.0


class Watcher(Protocol):
    """Is told what happens to each step; what it raises is raised there."""

    def begins(self, step: Step, /) -> bool:
        """Whether the handler may be called. If not, the step waits until the worker stops, and is given back."""

    def raises(self, step: Step, error: BaseException, /) -> None: ...
    def answers(self, step: Step, answer: Any, /) -> None: ...
    def applies(self, step: Step, /) -> None:
        """The first effect is about to be applied, in the step's own transaction; again after a deadlock."""

    def refuses(self, step: Step, error: BaseException, /) -> None:
        """An effect raised."""

    def applied(self, step: Step, /) -> None:
        """The last effect has been applied; nothing is committed yet."""


class WatchedKinds(Kinds):
    """The same kinds, also those that are registered later, each with `watcher` around its handler."""

    def __init__(self, kinds: Kinds, watcher: Watcher) -> None:
        vars(self).update(vars(kinds))
        self._own = kinds
        self._watcher = watcher

    def find(self, name: str) -> Kind | None:
        kind = self._own.find(name)
        return None if kind is None else self._watched(kind)

    def get(self, name: str) -> Kind:
        return self._watched(self._own.get(name))

    def _watched(self, kind: Kind) -> Kind:
        arguments = copy(kind.arguments)
        arguments.wants_step = True  # the watcher does; the handler gets what it asked for
        wants_step = kind.arguments.wants_step
        handler = _around(kind.handler, self._watcher, wants_step=wants_step, is_async=kind.is_async)
        return replace(
            kind, arguments=arguments, handler=handler, isolation=None
        )  # nobody sees into a process


def _around(
    handler: Callable[..., Any], watcher: Watcher, *, wants_step: bool, is_async: bool
) -> Callable[..., Any]:
    def call(step: Step, arguments: dict[str, Any]) -> Any:
        __tracebackhide__ = True
        return handler(step, **arguments) if wants_step else handler(**arguments)

    async def run_waiting(step: Step, **arguments: Any) -> Any:
        __tracebackhide__ = True  # a test wants to see its handler
        if not watcher.begins(step):
            await asyncio.get_running_loop().create_future()  # cancelled when the worker stops
        try:
            answer = await call(step, arguments)
        except BaseException as error:
            watcher.raises(step, error)
            raise
        return _answered(step, answer, watcher)

    def run(step: Step, **arguments: Any) -> Any:
        __tracebackhide__ = True
        while not watcher.begins(step):
            step.wait(FOREVER)  # raises when the worker stops
        try:
            answer = call(step, arguments)
        except BaseException as error:
            watcher.raises(step, error)
            raise
        return _answered(step, answer, watcher)

    return run_waiting if is_async else run


def _answered(step: Step, answer: Any, watcher: Watcher) -> Any:
    watcher.answers(step, answer)
    brought = _brought(answer)
    effects = [*step.effects, *brought]
    seen = [
        _seen(effect, Sight(step, watcher, first=n == 0, last=n == len(effects) - 1))
        for n, effect in enumerate(effects)
    ]
    step.effects[:] = seen[: len(step.effects)]
    return replace(answer, effects=seen[len(step.effects) :]) if brought else answer


def _brought(answer: Any) -> Sequence[Effect]:
    if not isinstance(answer, Done | Continue | Snooze | Wait):
        return ()
    try:
        return effects_of(answer)
    except Exception:  # noqa: BLE001 - wrong effects: the worker itself will say so
        return ()


@dataclass(frozen=True)
class Sight:
    """Where an effect stands among those of its step, and who looks."""

    step: Step
    watcher: Watcher
    first: bool
    last: bool

    def apply(self, effect: Callable[[Transaction], object], tx: Transaction) -> None:
        if self.first:
            self.watcher.applies(self.step)
        try:
            effect(tx)
        except BaseException as error:
            self.watcher.refuses(self.step, error)
            raise
        if self.last:
            self.watcher.applied(self.step)


def _seen(effect: Effect, sight: Sight) -> Effect:
    if isinstance(effect, Upsert):  # it stays one: the worker plans its statements accordingly
        return SeenUpsert(effect.table, effect.key, effect.rows, effect, sight)
    return SeenEffect(effect, sight)


@dataclass(frozen=True)
class SeenEffect:
    effect: Effect
    sight: Sight

    def apply(self, tx: Transaction, /) -> None:
        self.sight.apply(self.effect.apply, tx)


@dataclass(frozen=True)
class SeenUpsert(Upsert):
    effect: Upsert
    sight: Sight

    def apply(self, tx: Transaction) -> None:
        self.sight.apply(self.effect.apply, tx)
