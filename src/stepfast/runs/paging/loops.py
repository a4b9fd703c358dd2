"""Tokens that lead round in a circle, found with one remembered token (Brent's way), however long the circle is."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from stepfast.runs.paging.state import PageState


def follow(state: PageState, token: Any) -> tuple[PageState, bool]:
    """The state with this token as the next one, and whether it was met before."""
    name = fingerprint(token)
    if name == state.mark or (state.after is not None and name == fingerprint(state.after)):
        return state, True
    age = state.mark_age + 1
    if age < state.mark_life:
        return replace(state, after=token, mark_age=age), False
    return replace(state, after=token, mark=name, mark_age=0, mark_life=2 * state.mark_life), False


def fingerprint(token: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(token, order="deterministic")).hexdigest()[:24]
