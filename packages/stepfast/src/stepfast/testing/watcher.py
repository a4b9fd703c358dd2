"""Watch handlers and effects while the real worker runs them.

The worker gets the kinds of an application with a watcher around each handler. Arguments, retries and timeouts stay
those of the kind, and a coroutine stays a coroutine: so the worker does what it always does.
"""

from __future__ import annotations

import asyncio
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from stepfast.database.upsert import Upsert
from stepfast.jobs.commit import effects_of
from stepfast.jobs.kinds import Kinds
from stepfast.jobs.outcome import Continue, Done, Effect, Snooze, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.jobs.kinds import Kind
    from stepfast.jobs.step import Step


FOREVER: Final = 3600.0


class Watcher(Protocol):
    """Called at each point of a step; an exception that it raises is raised in the step."""

    def before_handler(self, step: Step, /) -> bool:
        """Whether the handler may be called. If not, the step waits until the worker stops, and is given back."""

    def handler_raised(self, step: Step, error: BaseException, /) -> None: ...
    def handler_answered(self, step: Step, answer: Any, /) -> None: ...
    def before_effects(self, step: Step, /) -> None:
        """Before the first effect, in the transaction of the step; again after a deadlock."""

    def effect_raised(self, step: Step, error: BaseException, /) -> None:
        """An effect raised this error."""

    def after_effects(self, step: Step, /) -> None:
        """After the last effect, before the commit."""


class WatchedKinds(Kinds):
    """The kinds of an application, later ones included, each with `watcher` around its handler."""

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
        arguments.wants_step = True  # the watcher needs it; the handler gets only what it asks for
        wants_step = kind.arguments.wants_step
        handler = _wrap(kind.handler, self._watcher, wants_step=wants_step, is_async=kind.is_async)
        return replace(
            kind, arguments=arguments, handler=handler, isolation=None
        )  # an isolated handler could not be watched


def _wrap(
    handler: Callable[..., Any], watcher: Watcher, *, wants_step: bool, is_async: bool
) -> Callable[..., Any]:
    def call(step: Step, arguments: dict[str, Any]) -> Any:
        __tracebackhide__ = True
        return handler(step, **arguments) if wants_step else handler(**arguments)

    async def run_waiting(step: Step, **arguments: Any) -> Any:
        __tracebackhide__ = True  # a test wants to see its handler
        if not watcher.before_handler(step):
            await asyncio.get_running_loop().create_future()  # cancelled when the worker stops
        try:
            answer = await call(step, arguments)
        except BaseException as error:
            watcher.handler_raised(step, error)
            raise
        return _watch_effects(step, answer, watcher)

    def run(step: Step, **arguments: Any) -> Any:
        __tracebackhide__ = True
        while not watcher.before_handler(step):
            step.wait(FOREVER)  # raises when the worker stops
        try:
            answer = call(step, arguments)
        except BaseException as error:
            watcher.handler_raised(step, error)
            raise
        return _watch_effects(step, answer, watcher)

    return run_waiting if is_async else run


def _watch_effects(step: Step, answer: Any, watcher: Watcher) -> Any:
    watcher.handler_answered(step, answer)
    returned = _effects_in(answer)
    effects = [*step.effects, *returned]
    watched = [
        _watch_effect(effect, EffectPosition(step, watcher, first=n == 0, last=n == len(effects) - 1))
        for n, effect in enumerate(effects)
    ]
    step.effects[:] = watched[: len(step.effects)]
    return replace(answer, effects=watched[len(step.effects) :]) if returned else answer


def _effects_in(answer: Any) -> Sequence[Effect]:
    if not isinstance(answer, Done | Continue | Snooze | Wait):
        return ()
    try:
        return effects_of(answer)
    except Exception:  # noqa: BLE001 - wrong effects: the worker itself will say so
        return ()


@dataclass(frozen=True)
class EffectPosition:
    """The position of an effect among those of its step, and the watcher."""

    step: Step
    watcher: Watcher
    first: bool
    last: bool

    def apply(self, effect: Callable[[Transaction], object], tx: Transaction) -> None:
        if self.first:
            self.watcher.before_effects(self.step)
        try:
            effect(tx)
        except BaseException as error:
            self.watcher.effect_raised(self.step, error)
            raise
        if self.last:
            self.watcher.after_effects(self.step)


def _watch_effect(effect: Effect, position: EffectPosition) -> Effect:
    if isinstance(effect, Upsert):  # stays an Upsert: the worker chooses planner settings by it
        return WatchedUpsert(effect.table, effect.key, effect.rows, effect, position)
    return WatchedEffect(effect, position)


@dataclass(frozen=True)
class WatchedEffect:
    effect: Effect
    position: EffectPosition

    def sealed_event(self) -> WatchedEffect:
        """The same, with the payload of an event encrypted: a step of an encrypted kind asks for that."""
        seal = getattr(self.effect, "sealed_event", None)
        return self if seal is None else replace(self, effect=seal())

    def apply(self, tx: Transaction, /) -> None:
        self.position.apply(self.effect.apply, tx)


@dataclass(frozen=True)
class WatchedUpsert(Upsert):
    effect: Upsert
    position: EffectPosition

    def apply(self, tx: Transaction) -> None:
        self.position.apply(self.effect.apply, tx)
