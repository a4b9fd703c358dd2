"""Values of rows that somebody wrote by hand: a value that no code of ours would write is shown as it is.

One such row must not keep a report from showing all others.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Any, TypeVar, cast

import msgspec

E = TypeVar("E", bound=StrEnum)

DEEPEST = 200  # levels of a document that is shown as one; a deeper one is shown as a text


def stored_state(states: type[E], stored: str) -> E:
    """The state; one that does not exist stays the text that it is, and is equal to none of `states`."""
    try:
        return states(stored)
    except ValueError:
        return cast("E", stored)


def is_known(state: object) -> bool:
    """Whether a state that `stored_state` has read does exist."""
    return isinstance(state, Enum)


def stored_document(stored: str) -> Any:
    """A stored JSON document; if it cannot be read, its text: broken, too deep, or with a number or a character that JSON has not."""
    try:
        found = msgspec.json.decode(stored)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return stored
    return stored if _deeper_than(found, DEEPEST) else found


def stored_fields(stored: str) -> dict[str, Any]:
    """A stored JSON object; what is none is the only field of one, under the name `?`."""
    found = stored_document(stored)
    return found if isinstance(found, dict) else {"?": found}


def _deeper_than(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True
