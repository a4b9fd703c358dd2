"""A handler that runs in a process of its own is found there by its name: what that asks of it, and of its limits."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepfast.config import Size, size
from stepfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Isolation:
    """Where another process finds the handler, and how much memory that process may hold."""

    module: str
    name: str  # with dots, as in Reports.monthly
    memory: int | None = None  # bytes


def checked_isolation(
    kind: str, handler: Callable[..., Any], isolation: str | None, memory: Size | None
) -> Isolation | None:
    """What `@app.job(isolation=…, memory=…)` means; None: it runs in the worker's own process."""
    if isolation is None:
        if memory is not None:
            raise ConfigurationError(
                f"job {kind!r}: memory={memory!r} needs a process to limit; add isolation='process'"
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
    return Isolation(module, name, None if memory is None else size(memory, f"job {kind!r}: memory"))
