"""Two calls in one job: what becomes of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from stepfast.errors import ConfigurationError

Given = dict[str, Any]  # arguments as they are stored: plain JSON values
Merge = Literal["update", "append"] | Callable[[Given, Given], Mapping[str, Any]]


def update(waiting: Given, new: Given) -> Given:
    """What the new call gives wins; what only the waiting one gave stays."""
    return waiting | new


def append(waiting: Given, new: Given) -> Given:
    """Lists grow, in the order of the calls; of everything else the new value wins."""
    grown = {
        name: [*waiting[name], *value]
        for name, value in new.items()
        if isinstance(value, list) and isinstance(waiting.get(name), list)
    }
    return waiting | new | grown


BUILT_IN: Mapping[str, Callable[[Given, Given], Given]] = {"update": update, "append": append}


def checked_merge(kind: str, merge: object) -> Callable[[Given, Given], Mapping[str, Any]]:
    """The function that merges the calls of this kind."""
    if callable(merge):
        return merge
    if isinstance(merge, str) and merge in BUILT_IN:
        return BUILT_IN[merge]
    raise ConfigurationError(
        f"job {kind!r}: merge={merge!r}: use 'update', 'append' or a function of (waiting, new) that returns the arguments"
    )
