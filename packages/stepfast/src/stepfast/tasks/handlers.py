"""Handlers of tasks: `@app.task("ingest")` makes a kind of job of one.

The fields of a task's payload are the handler's arguments; a handler whose only parameter is called `payload` gets all
of it. Fields that the handler does not take are left out: senders of tasks may be ahead of their workers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

import msgspec

from stepfast.clock import Duration, duration
from stepfast.errors import ArgumentsError, ConfigurationError
from stepfast.jobs.end_webhook import DoneWebhook
from stepfast.jobs.kinds import Kind, Kinds, checked_priority, checked_timeout, is_async
from stepfast.jobs.outcome import Done, Outcome
from stepfast.jobs.payload import Arguments, to_json
from stepfast.jobs.retry import Retry, checked_retry
from stepfast.limits.limit import Limit, checked_limits
from stepfast.tasks.envelope import DEFAULT_CLIENT, REFUSED, TYPE, kind_of, queue_of
from stepfast.tasks.store import refused_kind

if TYPE_CHECKING:
    from stepfast.encryption import Encryption
    from stepfast.jobs.step import Step


H = TypeVar("H", bound=Callable[..., Any])

DEFAULT_TIMEOUT: Final = timedelta(minutes=15)
MOST_RETRIES: Final = 1_000
_SECONDS: Final = re.compile(r"[0-9]+(\.[0-9]+)?")
_payload: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class TaskOptions(TypedDict, total=False):
    """Options of a type of tasks. `timeout` is for one try; WORKER_TASK_TIMEOUT may make it shorter."""

    priority: int
    retry: Retry | int  # a number: so many attempts
    timeout: Duration | None
    limits: Sequence[Limit]
    result_ttl: Duration


def register(
    kinds: Kinds, task_type: str, options: TaskOptions, *, encrypted: Encryption = False
) -> Callable[[H], H]:
    """Register a handler of tasks. The function itself stays as it is: a test may call it."""
    if not TYPE.fullmatch(task_type):
        raise ConfigurationError(
            f"task type {task_type!r:.80}: use 1 to 100 letters, digits and . _ : / - (and start with a letter, digit or _)"
        )
    if unknown := set(options) - set(TaskOptions.__annotations__):
        raise ConfigurationError(f"task {task_type!r}: there is no option {min(unknown)!r}")

    def add(handler: H) -> H:
        if kinds.find(REFUSED) is None:
            kinds.register(refused_kind(kinds, encrypted=encrypted))
        kinds.register(_kind(task_type, handler, options, encrypted=encrypted))
        return handler

    return add


def _kind(
    task_type: str, handler: Callable[..., Any], options: TaskOptions, *, encrypted: Encryption
) -> Kind:
    name = kind_of(task_type)
    arguments = TaskArguments(name, handler)
    kept = options.get("result_ttl")
    return Kind(
        name=name,
        handler=_staging_webhook(handler, wants_step=arguments.handler_wants_step),
        arguments=arguments,
        queue=queue_of(os.environ.get("CLIENT_ID", "").strip() or DEFAULT_CLIENT),
        priority=checked_priority(options.get("priority", 0)),
        retry=checked_retry(f"task {task_type!r}", options.get("retry")) or _default_retry(),
        timeout=_shorter(options.get("timeout", DEFAULT_TIMEOUT), _timeout_limit()),
        is_async=is_async(handler),
        limits=checked_limits(name, options.get("limits", ()), arguments.names),
        result_ttl=None if kept is None else duration(kept, "result_ttl"),
        encrypted=encrypted,
    )


class TaskArguments(Arguments):
    """Reads a task's payload for a handler that takes some of its fields, or all of it as `payload`."""

    def __init__(self, kind: str, handler: Callable[..., Any]) -> None:
        super().__init__(kind, handler)
        self.handler_wants_step = self.wants_step
        self.wants_step = True  # the wrapper does, to stage the webhook
        self.whole = self.names == ("payload",)

    def decode(self, text: str) -> dict[str, Any]:
        if self.whole:
            return super().decode(f'{{"payload":{text}}}')
        try:
            given = _payload.decode(text)
        except msgspec.MsgspecError as error:
            raise ArgumentsError(self.kind, f"the payload cannot be read: {error}") from error
        return super().decode(to_json({name: given[name] for name in self.names if name in given}))


def _staging_webhook(handler: Callable[..., Any], *, wants_step: bool) -> Callable[..., Any]:
    """The handler, and behind it the webhook that tells that the task is done."""
    if is_async(handler):

        @wraps(handler)
        async def run(step: Step, **arguments: Any) -> Any:
            answer = await (handler(step, **arguments) if wants_step else handler(**arguments))
            return _with_webhook(step, answer)

        return run

    @wraps(handler)
    def call(step: Step, **arguments: Any) -> Any:
        return _with_webhook(step, handler(step, **arguments) if wants_step else handler(**arguments))

    return call


def _with_webhook(step: Step, answer: Any) -> Any:
    """The answer of a handler; if the task is done, its webhook is staged with the commit."""
    if isinstance(answer, Done) or not isinstance(answer, Outcome):  # all others go on, or fail
        result = answer.result if isinstance(answer, Done) else answer
        step.effect(DoneWebhook(step.job_id, step.fence, step.attempt, result))
    return answer


def _timeout_limit() -> timedelta | None:
    given = os.environ.get("WORKER_TASK_TIMEOUT", "").strip()
    return span(given, "WORKER_TASK_TIMEOUT") if given else None


def _default_retry() -> Retry:
    given = os.environ.get("WORKER_MAX_RETRIES", "").strip()
    return Retry(attempts=retries(given, "WORKER_MAX_RETRIES") + 1) if given else Retry()


def _shorter(given: Duration | None, limit: timedelta | None) -> timedelta | None:
    own = checked_timeout(given)
    if own is None or limit is None:
        return limit if own is None else own
    return min(own, limit)


def span(text: str, what: str) -> timedelta:
    """A span of time as variables of the environment have it: 30s, 10m or 2h; a bare number means seconds."""
    written = text.strip()
    found = duration(float(written) if _SECONDS.fullmatch(written) else written, what)
    if not found:
        raise ConfigurationError(f"{what}: no time at all; write 30s, 10m or a number of seconds")
    return found


def retries(text: str, what: str) -> int:
    """A number of retries as variables of the environment have it."""
    written = text.strip()
    if not re.fullmatch(r"[0-9]{1,9}", written) or int(written) > MOST_RETRIES:
        raise ConfigurationError(f"{what}: {written!r:.40} is no whole number from 0 to {MOST_RETRIES}")
    return int(written)
