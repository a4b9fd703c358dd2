"""The registered kinds of jobs, each with its handler and its rules; and the checks of their options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from stepfast.clock import Duration, duration
from stepfast.config import Size, is_whole, size
from stepfast.encryption import MARK, Sealed, keyring, opened
from stepfast.errors import ConfigurationError, PlainTextError, SealedError, UnknownKindError
from stepfast.jobs.payload import encode
from stepfast.jobs.wait import cursor_in, opened_cursor
from stepfast.limits.limit import check_together, family_of, limit_id

if TYPE_CHECKING:
    from datetime import timedelta

    from stepfast.encryption import Encryption
    from stepfast.jobs.lease import Lease
    from stepfast.jobs.payload import Arguments
    from stepfast.jobs.retry import Retry
    from stepfast.limits.limit import Limit


Given = dict[str, Any]  # arguments as they are stored: plain JSON values
Merge = Literal["update", "append"] | Callable[[Given, Given], Mapping[str, Any]]

PRIORITIES: Final = range(-32_768, 32_768)


def merge_update(waiting: Given, new: Given) -> Given:
    """Arguments of the new call win; those that only the waiting one has stay."""
    return waiting | new


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A registered handler and its rules."""

    name: str
    handler: Callable[..., Any]
    arguments: Arguments
    queue: str
    priority: int
    retry: Retry
    timeout: timedelta | None
    is_async: bool
    limits: tuple[Limit, ...] = ()
    result_ttl: timedelta | None = None  # how long results are kept; None: as the worker's results_kept says
    time_limit: timedelta | None = None  # of all tries together, if this one's timeout is their end
    isolation: Isolation | None = None  # None: the handler runs in the worker's own process
    encrypted: Encryption = False  # payload, cursor and result are stored sealed
    merge: Callable[[dict[str, Any], dict[str, Any]], Mapping[str, Any]] = (
        merge_update  # two calls in one job
    )

    def stored(self, payload: str, job_id: str) -> str:
        """The payload as it is stored."""
        return keyring().seal(payload, f"payload of {self.name}", job_id) if self.encrypted else payload

    def open(self, stored: str, what: str, job_id: str) -> str:
        """The text of a stored payload, cursor or result; refused where it is plain and this kind is encrypted."""
        return opened(stored, f"{what} of {self.name}", job_id, plain=self.encrypted is not True)

    def read(self, lease: Lease) -> dict[str, Any]:
        """The arguments of a job that was claimed."""
        payload = lease.payload
        if payload.startswith(MARK):
            payload = self.open(payload, "payload", lease.job_id)
        if self.encrypted is True:
            self._refuse_plain(lease)
        return self.arguments.decode(payload)

    def opened(self, lease: Lease) -> Lease:
        """The lease with its payload and its cursor decrypted, for a process that has no key."""
        if self.encrypted is True:
            self._refuse_plain(lease)
        if lease.payload.startswith(MARK):
            lease = lease._replace(payload=self.open(lease.payload, "payload", lease.job_id))
        if lease.cursor is not None and MARK in lease.cursor:
            lease = lease._replace(cursor=opened_cursor(lease.cursor, f"cursor of {self.name}", lease.job_id))
        return lease

    def _refuse_plain(self, lease: Lease) -> None:
        if not lease.payload.startswith(MARK):
            raise PlainTextError(f"payload of {self.name}")
        cursor = cursor_in(lease.cursor)
        if cursor is not None and cursor != "null" and not cursor.startswith(MARK):
            raise PlainTextError(f"cursor of {self.name}")

    def sealed(self, answer: Any, what: str, job_id: str) -> Any:
        """A result or a cursor as it is stored, where this kind is encrypted."""
        if not self.encrypted or answer is None:
            return answer
        try:
            return Sealed(keyring().seal(encode(answer, what), f"{what} of {self.name}", job_id))
        except ConfigurationError as error:  # the key is gone: a worker that has it may take this step
            raise SealedError(f"{what} of {self.name}", str(error)) from error

    @property
    def on_event_loop(self) -> bool:
        """Whether the worker's event loop runs it: no thread, and no process of its own."""
        return self.is_async and self.isolation is None


class Kinds:
    """The kinds this process knows, by name."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}
        self._of_queues: dict[str, tuple[Limit, ...]] = {}
        self._named: dict[str, Limit] = {}
        self.limited = False  # whether any kind or queue here has a limit; asked for every claim

    def register(self, kind: Kind) -> None:
        known = self._kinds.get(kind.name)
        if known is not None and known.handler is not kind.handler:
            raise ConfigurationError(
                f"job {kind.name!r} is already registered by {_place(known.handler)}; give one of them another name=…"
            )
        self._check_names(kind.limits)
        self._kinds[kind.name] = kind
        self.limited = self.limited or bool(kind.limits)

    def limit_queue(self, queue: str, limits: tuple[Limit, ...]) -> None:
        together = (*self._of_queues.get(queue, ()), *limits)
        check_together(f"queue {queue}", together)
        self._check_names(limits)
        self._of_queues[queue] = together
        self.limited = True

    def limits_of(self, kind: str, queue: str) -> list[tuple[str, Limit]]:
        """The limits of a job, each with what it is counted for."""
        known = self._kinds.get(kind)
        own = [(f"kind:{kind}", limit) for limit in known.limits] if known else []
        return own + [(f"queue:{queue}", limit) for limit in self._of_queues.get(queue, ())]

    def families(self, kind: str, queue: str) -> list[tuple[str, Limit]] | None:
        """The limits of a job by what they are counted by; None for a kind that this process does not know."""
        if kind not in self._kinds:
            return None
        return [(family_of(limit, scope), limit) for scope, limit in self.limits_of(kind, queue)]

    def _check_names(self, limits: tuple[Limit, ...]) -> None:
        """Limits of one name must have the same numbers."""
        for limit in limits:
            if limit.name is None:
                continue
            same = self._named.setdefault(limit_id(limit, "", None), limit)
            if (same.gap, same.tolerance, same.slots) != (limit.gap, limit.tolerance, limit.slots):
                raise ConfigurationError(
                    f"limit {limit.name!r} is declared as {same} and as {limit}: who shares a limit must give the same numbers"
                )

    def get(self, name: str) -> Kind:
        kind = self._kinds.get(name)
        if kind is None:
            raise UnknownKindError(name, sorted(self._kinds))
        return kind

    def find(self, name: str) -> Kind | None:
        return self._kinds.get(name)

    def stored(self, kind: str, payload: str, job_id: str) -> str:
        """The payload of such a job as it is stored, as far as this process knows the kind."""
        found = self._kinds.get(kind)
        return payload if found is None else found.stored(payload, job_id)

    def open(self, kind: str, stored: str, what: str, job_id: str) -> str:
        """The text of a stored payload, cursor or result of such a job."""
        found = self._kinds.get(kind)
        return (
            opened(stored, f"{what} of {kind}", job_id) if found is None else found.open(stored, what, job_id)
        )

    def names(self) -> list[str]:
        return sorted(self._kinds)

    def isolated_modules(self, env: tuple[str, ...] | None) -> list[str]:
        """The modules of the handlers that run in a process with this environment."""
        isolated = [kind.isolation for kind in self._kinds.values() if kind.isolation is not None]
        return sorted({it.module for it in isolated if it.env == env})

    def queues(self) -> list[str]:
        return sorted({kind.queue for kind in self._kinds.values()})


def checked_timeout(given: Duration | None) -> timedelta | None:
    """How long one step may take; None: for ever."""
    if given is None:
        return None
    timeout = duration(given, "timeout")
    if not timeout:
        raise ConfigurationError(
            f"timeout={given!r}: no step can end in no time; give it some, such as '30s', or None for no limit"
        )
    return timeout


def checked_priority(value: object) -> int:
    if not is_whole(value) or value not in PRIORITIES:
        raise ConfigurationError(
            f"priority {value!r}: a whole number from -32768 to 32767; higher runs first"
        )
    return value


def is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(handler))


def _place(handler: Callable[..., Any]) -> str:
    return f"{getattr(handler, '__module__', '?')}.{getattr(handler, '__qualname__', '?')}"


# --- Two calls in one job: how their arguments are merged.


def merge_append(waiting: Given, new: Given) -> Given:
    """Lists grow, in the order of the calls; of all other arguments the new value wins."""
    grown = {
        name: [*waiting[name], *value]
        for name, value in new.items()
        if isinstance(value, list) and isinstance(waiting.get(name), list)
    }
    return waiting | new | grown


BUILT_IN: Mapping[str, Callable[[Given, Given], Given]] = {"update": merge_update, "append": merge_append}


def checked_merge(kind: str, merge: object) -> Callable[[Given, Given], Mapping[str, Any]]:
    """The function that merges the calls of this kind."""
    if callable(merge):
        return merge
    if isinstance(merge, str) and merge in BUILT_IN:
        return BUILT_IN[merge]
    raise ConfigurationError(
        f"job {kind!r}: merge={merge!r}: use 'update', 'append' or a function of (waiting, new) that returns the arguments"
    )


# --- Isolation: a handler that runs in a process of its own is found there by its name.


@dataclass(frozen=True)
class Isolation:
    """Where another process finds the handler, and how much memory that process may hold."""

    module: str
    name: str  # with dots, as in Reports.monthly
    memory: int | None = None  # bytes
    env: tuple[str, ...] | None = None  # names of variables that it gets, sorted; None: all


def checked_isolation(
    kind: str,
    handler: Callable[..., Any],
    isolation: str | None,
    memory: Size | None,
    env: Iterable[str] | None = None,
) -> Isolation | None:
    """What `@app.job(isolation=…, memory=…, env=…)` means; None: it runs in the worker's own process."""
    if isolation is None:
        for name, given in (("memory", memory), ("env", env)):
            if given is not None:
                raise ConfigurationError(
                    f"job {kind!r}: {name}={given!r:.80} needs a process to limit; add isolation='process'"
                )
        return None
    if isolation != "process":
        raise ConfigurationError(f"job {kind!r}: isolation={isolation!r}: use 'process', or leave it out")
    function = inspect.unwrap(handler)
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not module or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(
            f"job {kind!r}: isolation='process' needs a handler that another process can import; "
            f"{name or handler!r} is none: define it with `def` at the top of a module"
        )
    most = None if memory is None else size(memory, f"job {kind!r}: memory")
    return Isolation(module, name, most, _checked_env(kind, env))


def _checked_env(kind: str, env: Iterable[str] | None) -> tuple[str, ...] | None:
    if env is None:
        return None
    given: object = env
    names: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [None]
    if not all(isinstance(it, str) and it and "=" not in it for it in names):
        raise ConfigurationError(
            f"job {kind!r}: env: a list of names of variables, such as ['HTTPS_PROXY']; their values are the worker's"
        )
    return tuple(sorted(set(names)))
