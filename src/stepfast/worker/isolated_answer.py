"""In the process of an isolated handler: how the handler is found by its name, and how its answer is packed."""

from __future__ import annotations

import importlib
import pickle
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from stepfast.errors import AnswerError, ConfigurationError
from stepfast.steps.kinds import Kind, is_async
from stepfast.steps.outcome import Continue, Done, Effect, Ending, Snooze, Wait, effects_of
from stepfast.steps.payload import Arguments, Encoded, encode
from stepfast.worker.isolated_wire import Answered, Task
from stepfast.worker.memory import held
from stepfast.worker.running import DONE, OUTCOMES

if TYPE_CHECKING:
    from stepfast.database.database import Database
    from stepfast.steps.step import Step


class App(Protocol):
    """The application that a handler belongs to, as far as this process has to set it up."""

    def use(self, database: Database) -> Database: ...


class Found(NamedTuple):
    kind: Kind
    app: App | None  # None: it was registered elsewhere; what is found is a plain function


def handler_kind(task: Task) -> Found:
    """Import the handler, decorated or not."""
    module, name = task.isolation.module, task.isolation.name
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(getattr(found, "kind", None), Kind):
        return Found(found.kind, found.app)
    if not callable(found):
        raise ConfigurationError(
            f"isolated job {task.lease.kind!r}: another process finds no {name!r} in {module!r}; "
            "define the handler with `def` at the top of a module that can be imported"
        )
    arguments = Arguments(task.lease.kind, found)
    return Found(
        Kind(
            name=task.lease.kind,
            handler=found,
            arguments=arguments,
            queue=task.lease.queue,
            priority=task.lease.priority,
            retry=task.retry,
            timeout=None,
            is_async=is_async(found),
        ),
        None,
    )


def answer_of(answer: Any, step: Step) -> Answered:
    """What the worker commits. A plain value is a result; None is just done."""
    ending: Ending = DONE if answer is None else answer if isinstance(answer, OUTCOMES) else Done(answer)
    effects: list[Effect] = []
    if isinstance(ending, Done | Continue | Snooze | Wait):
        effects = [*step.effects, *effects_of(ending)]
        ending = _stored(ending)
    return Answered(step.fence, ending, _packed(effects), held())


def _stored(ending: Done | Continue | Snooze | Wait) -> Ending:
    match ending:
        case Done(None) | Snooze():
            return replace(ending, effects=())
        case Done(result):
            return Done(Encoded(encode(result)))
        case Continue() | Wait():
            return replace(ending, cursor=Encoded(encode(ending.cursor, "cursor")), effects=())


def _packed(effects: list[Effect]) -> bytes | None:
    if not effects:
        return None
    try:
        return pickle.dumps(effects, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise AnswerError(
            "effects",
            f"of an isolated step travel to the worker's process, and one of them cannot ({error}): use step.upsert(…), a "
            "function at the top of a module (functools.partial gives it its values), or a dataclass with apply(tx)",
        ) from error
