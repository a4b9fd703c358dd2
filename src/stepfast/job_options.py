"""What may be said about a kind of job when its handler is registered, and the kind that comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from stepfast.clock import Duration, duration
from stepfast.errors import ConfigurationError
from stepfast.job import OPTIONS
from stepfast.limits.limit import Limit, checked_limits
from stepfast.steps.isolation import checked_isolation
from stepfast.steps.kinds import Kind, checked_name, checked_priority, is_async
from stepfast.steps.merging import Merge, checked_merge
from stepfast.steps.payload import Arguments
from stepfast.steps.retry import Retry

if TYPE_CHECKING:
    from stepfast.config import Size

DEFAULT_TIMEOUT: Final = timedelta(minutes=15)


class JobOptions(TypedDict, total=False):
    """The options of `@app.job(…)`."""

    name: str | None  # of the kind; None: that of the function
    queue: str
    priority: int
    retry: Retry | None
    timeout: Duration | None  # of one step; None: it may take for ever
    limits: Sequence[Limit]
    result_ttl: Duration | None  # how long results are kept; None: as the worker's results_kept says
    isolation: Literal["process"] | None  # "process": the handler runs in a process that can be killed
    memory: Size | None  # the most that such a process may hold
    encrypted: bool | None  # payload, cursor and result; None: as the application says
    merge: Merge  # of two calls with one key: "update" (the default), "append", or a function of both


def kind_of(handler: Callable[..., Any], options: JobOptions, *, encrypted: bool) -> Kind:
    """The kind that is registered; whatever does not fit is refused in words."""
    if unknown := options.keys() - JobOptions.__annotations__.keys():
        raise TypeError(f"job() got an unexpected keyword argument {min(unknown)!r}")
    name = checked_name("job name", options.get("name") or handler.__name__)
    arguments = Arguments(name, handler)
    if taken := OPTIONS.intersection(arguments.names):
        raise ConfigurationError(
            f"job {name!r}: parameter {min(taken)!r} has the name of an enqueue option; rename it"
        )
    timeout, result_ttl = options.get("timeout", DEFAULT_TIMEOUT), options.get("result_ttl")
    own = options.get("encrypted")
    return Kind(
        name=name,
        handler=handler,
        arguments=arguments,
        queue=checked_name("queue", options.get("queue", "default")),
        priority=checked_priority(options.get("priority", 0)),
        retry=options.get("retry") or Retry(),
        timeout=None if timeout is None else duration(timeout, "timeout"),
        is_async=is_async(handler),
        limits=checked_limits(name, options.get("limits", ()), arguments.names),
        result_ttl=None if result_ttl is None else duration(result_ttl, "result_ttl"),
        isolation=checked_isolation(name, handler, options.get("isolation"), options.get("memory")),
        encrypted=encrypted if own is None else own,
        merge=checked_merge(name, options.get("merge", "update")),
    )
