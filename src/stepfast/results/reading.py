"""A stored result, read into the type that its handler returns."""

from __future__ import annotations

import inspect
import types
import typing
from functools import lru_cache
from typing import Any, Final

import msgspec

from stepfast.errors import ResultTypeError
from stepfast.sealing import opened
from stepfast.steps.outcome import Continue, Done, Reject, Snooze, Wait
from stepfast.steps.payload import from_builtin

if typing.TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.steps.kinds import Kinds

NO_RESULT: Final = (Continue, Snooze, Wait, Reject)  # answers after which the job has no result


class Reading:
    """How results of one kind are read. Without a return annotation that says more, they stay plain JSON values."""

    def __init__(self, returns: Any = Any) -> None:
        try:
            self._decoder = msgspec.json.Decoder(returns, dec_hook=from_builtin)
        except (TypeError, RuntimeError):  # a type that JSON cannot be read into: the values stay plain
            self._decoder = msgspec.json.Decoder(Any)

    def read(self, job_id: str, kind: str, stored: str | None) -> Any:
        """The result; `stored` is None where the handler answered with None."""
        if stored is None:
            return None
        try:
            return self._decoder.decode(opened(stored, f"result of {kind}"))
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise ResultTypeError(job_id, kind, str(error)) from error


ANYTHING: Final = Reading()


def reading_of(kinds: Kinds, kind: str) -> Reading:
    """How results of this kind are read; those of an unknown kind stay plain JSON values."""
    found = kinds.find(kind)
    return ANYTHING if found is None else _reading(found.handler)


@lru_cache(maxsize=1_024)
def _reading(handler: Callable[..., Any]) -> Reading:
    return Reading(returned(handler))


def returned(handler: Callable[..., Any]) -> Any:
    """The type of the result of `handler`, as its annotation says; Any where it says nothing, or only `Done`."""
    note = _annotation(inspect.unwrap(handler))
    if typing.get_origin(note) in {typing.Union, types.UnionType}:
        parts = tuple(it for it in typing.get_args(note) if it not in NO_RESULT)
        note = typing.Union[parts] if parts else Any  # noqa: UP007 - the parts are known at run time only
    parts = typing.get_args(note) or (note,)
    return Any if Done in parts or note in NO_RESULT else note


def _annotation(function: Callable[..., Any]) -> Any:
    note = getattr(function, "__annotations__", {}).get("return", Any)
    if not isinstance(note, str):
        return note
    try:  # alone: a parameter's type may be imported for type checking only
        holder = type("holder", (), {"__annotations__": {"returned": note}})
        hints = typing.get_type_hints(
            holder,
            getattr(function, "__globals__", {}),
            inspect.getclosurevars(function).nonlocals,
            include_extras=True,
        )
    except (NameError, TypeError):
        return Any
    return hints["returned"]
