"""`@app.job(…)`: what it makes of a handler, as type checkers see it.

The worker gives the step, the caller all the rest. So `enqueue` takes what the handler takes without its step, while
calling the job, as a test does, takes the step too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from stepfast.job import App, Job
from stepfast.job_options import JobOptions, kind_of

if TYPE_CHECKING:
    from stepfast.steps.step import Step

P = ParamSpec("P")
R = TypeVar("R")


class Anything:
    """A type of nobody's: who takes it as a first argument takes everything, and perhaps means a step."""


class PlainJob(Job[P, R]):
    """Of a handler without a step."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return super().__call__(*args, **kwargs)


class StepJob(Job[P, R]):
    """Of a handler whose first parameter is its step."""

    def __call__(self, step: Step, *args: P.args, **kwargs: P.kwargs) -> R:
        return super().__call__(step, *args, **kwargs)


class Register:
    """Makes a job of a handler, under these options."""

    def __init__(self, app: App, options: JobOptions, *, encrypted: bool) -> None:
        self._app = app
        self._options = options
        self._encrypted = encrypted

    @overload
    def __call__(self, handler: Callable[Concatenate[Anything, P], R]) -> Job[..., R]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[Step, P], R]) -> StepJob[P, R]: ...
    @overload
    def __call__(self, handler: Callable[P, R]) -> PlainJob[P, R]: ...

    def __call__(self, handler: Callable[..., Any]) -> Job[..., Any]:
        kind = kind_of(handler, self._options, encrypted=self._encrypted)
        self._app.kinds.register(kind)
        made: type[Job[..., Any]] = StepJob if kind.arguments.wants_step else PlainJob
        return made(self._app, kind, handler)
