"""What a worker can do: the registered kinds of jobs, each with its handler and its rules."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import ConfigurationError, UnknownKindError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from holdfast.steps.payload import Arguments
    from holdfast.steps.retry import Retry

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,119}")


@dataclass(frozen=True, kw_only=True)
class Kind:
    name: str
    handler: Callable[..., Any]
    arguments: Arguments
    queue: str
    priority: int
    retry: Retry
    timeout: timedelta | None
    is_async: bool


class Kinds:
    """The kinds this process knows, by name."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}

    def register(self, kind: Kind) -> None:
        known = self._kinds.get(kind.name)
        if known is not None and known.handler is not kind.handler:
            raise ConfigurationError(
                f"job {kind.name!r} is already registered by {_place(known.handler)}; give one of them another name=…"
            )
        self._kinds[kind.name] = kind

    def get(self, name: str) -> Kind:
        kind = self._kinds.get(name)
        if kind is None:
            raise UnknownKindError(name, sorted(self._kinds))
        return kind

    def find(self, name: str) -> Kind | None:
        return self._kinds.get(name)

    def names(self) -> list[str]:
        return sorted(self._kinds)

    def queues(self) -> list[str]:
        return sorted({kind.queue for kind in self._kinds.values()})


def checked_name(what: str, name: object) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{what} {name!r}: use 1 to 120 letters, digits and . _ : / - (and start with a letter, digit or _)"
        )
    return name


def is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(handler))


def _place(handler: Callable[..., Any]) -> str:
    return f"{getattr(handler, '__module__', '?')}.{getattr(handler, '__qualname__', '?')}"
