"""Effects as data: what the process of an isolated handler may ask its worker to do.

A handler's process is not believed more than its handler is, and what it sends is never unpickled. Values are numbers, texts,
times and containers of them. An effect is one of Stepfast's own, or one that the application has declared with `@effect`. Its
name is looked up in the modules that the worker has imported itself; fields are set without running any code of theirs.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from stepfast.database.upsert import BulkUpsert, Upsert
from stepfast.errors import AnswerError
from stepfast.jobs.events import SendEvent
from stepfast.jobs.outcome import Call, Effect, is_declared
from stepfast.outbox.alerts import Alert
from stepfast.outbox.messages import Message

OWN: Final = {
    f"{it.__module__}:{it.__qualname__}": it for it in (Alert, BulkUpsert, Message, SendEvent, Upsert)
}
DEEPEST: Final = 50  # levels of containers
_PLAIN: Final = frozenset({type(None), bool, float, str, bytes})
_LARGEST: Final = 2**63  # integers beyond it travel as texts
_HOW: Final = (
    "use step.upsert(…), or put @effect (from stepfast) above a function at the top of a module (functools.partial gives it its "
    "values) or above a dataclass with apply(tx)"
)


class NotDataError(Exception):
    """A value cannot travel as data, or data stand for no value."""


def pack_effects(effects: list[Effect]) -> bytes | None:
    """The effects of an isolated step, as they travel; None where there are none."""
    if not effects:
        return None
    try:
        for it in effects:
            _check(it)
        return msgspec.msgpack.encode([_packed(it, 0) for it in effects])
    except NotDataError as problem:
        raise AnswerError(
            "effects",
            f"of an isolated step travel to the worker's process as data, and one cannot: {problem}; {_HOW}",
        ) from None


def unpack_effects(data: bytes) -> list[Effect]:
    """The effects that the process of a step has sent."""
    try:
        found = [_unpacked(it) for it in msgspec.msgpack.decode(data, type=list[Any])]
        for it in found:
            _check(it)
    except (NotDataError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as problem:
        raise AnswerError(
            "effects", f"of an isolated step cannot be read in the worker's process: {problem}"
        ) from None
    return found


def _check(effect: Any) -> None:
    """Refuse what is no effect of Stepfast's, and is not declared as one."""
    if type(effect) in OWN.values():
        return
    asked = effect.function if type(effect) is Call else type(effect)
    while isinstance(asked, partial):
        asked = asked.func
    if not is_declared(asked):
        raise NotDataError(f"{_name(asked)} is not declared as an effect")


# Values as data: what JSON cannot tell apart travels as a list of a tag and its content.


def _packed(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if depth > DEEPEST:
        raise NotDataError(f"it is nested more than {DEEPEST} levels deep")
    if isinstance(value, Enum):
        return ["enum", _reference(kind), value.name]
    if isinstance(value, int):
        return int(value) if -_LARGEST <= value < _LARGEST else ["int", str(int(value))]
    for scalar, tag, text in _SCALARS:
        if isinstance(value, scalar):
            return [tag, text(value)]
    return _packed_object(value, depth + 1)


def _packed_object(value: Any, depth: int) -> Any:  # noqa: PLR0911 - one for each kind of object
    def inner(item: Any) -> Any:
        return _packed(item, depth)

    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ["named", _reference(type(value)), [inner(it) for it in value]]
    for container, tag in _CONTAINERS:
        if isinstance(value, container):
            return [tag, [inner(it) for it in value]]
    if isinstance(value, Mapping):
        return ["dict", [[inner(name), inner(it)] for name, it in value.items()]]
    if isinstance(value, partial):
        return ["partial", inner(value.func), [inner(it) for it in value.args], inner(value.keywords)]
    if type(value) is Call:
        return ["call", inner(value.function)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = {it.name: inner(getattr(value, it.name)) for it in dataclasses.fields(value)}
        return ["object", _reference(type(value)), given]
    if callable(value) and is_declared(value):
        return ["function", _reference(value)]
    raise NotDataError(f"{_name(value if callable(value) else type(value))} is no data")


def _unpacked(data: Any) -> Any:  # noqa: PLR0911 - one for each tag
    if not isinstance(data, list):
        return data
    match data:
        case ["partial", function, arguments, keywords]:
            return partial(_unpacked(function), *map(_unpacked, arguments), **_unpacked(keywords))
        case ["call", function]:
            return Call(_unpacked(function))
        case ["function", name]:
            return _declared(name)
        case ["object", name, given]:
            return _object(name, given)
        case ["named", name, values]:
            return tuple.__new__(_class(name, lambda it: issubclass(it, tuple)), map(_unpacked, values))
        case ["enum", name, member]:
            return _class(name, lambda it: issubclass(it, Enum))[member]
        case ["dict", pairs]:
            return {_unpacked(name): _unpacked(it) for name, it in pairs}
        case [tag, content] if tag in _READERS:
            return _READERS[tag](content)
    raise NotDataError("it is no data of ours")


def _object(name: str, given: dict[str, Any]) -> Any:
    kind = OWN.get(name) or _class(name, dataclasses.is_dataclass)
    names = {it.name for it in dataclasses.fields(kind)}
    if names != given.keys():
        raise NotDataError(f"{name} has the fields {', '.join(sorted(names))} here")
    made = object.__new__(kind)
    for field, value in given.items():
        object.__setattr__(made, field, _unpacked(value))
    return made


def _declared(name: str) -> Any:
    found = _found(name)
    if not is_declared(found):
        raise NotDataError(f"{name} is not declared as an effect here")
    return found


def _class(name: str, fits: Callable[[Any], bool]) -> Any:
    found = _found(name)
    if not isinstance(found, type) or not fits(found):
        raise NotDataError(f"{name} is another thing here")
    return found


def _found(name: object) -> Any:
    """What a module that is imported here has under this name. Nothing is imported for it."""
    module, _, path = str(name).partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise NotDataError(f"there is no {name} in the worker's process")
    return found


def _reference(value: Any) -> str:
    name = f"{value.__module__}:{value.__qualname__}"
    if "<" in name or _found(name) is not value:
        raise NotDataError(f"another process does not find {_name(value)}")
    return name


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", None) or repr(value)[:80])


def _moment(content: list[Any]) -> datetime:
    text, zone, fold = content
    found = datetime.fromisoformat(text).replace(fold=fold)
    return found if zone is None else found.replace(tzinfo=ZoneInfo(zone))


def _packed_moment(value: datetime) -> list[Any]:
    zone = value.tzinfo.key if isinstance(value.tzinfo, ZoneInfo) else None
    return [(value if zone is None else value.replace(tzinfo=None)).isoformat(), zone, value.fold]


# Subclasses first: a datetime is a date. Classes of the handler's own that derive from these travel as what they derive from.
_SCALARS: Final[tuple[tuple[type, str, Callable[[Any], Any]], ...]] = (
    (str, "str", str.__str__),
    (bytes, "bytes", bytes),
    (bytearray, "bytes", bytes),
    (memoryview, "bytes", bytes),
    (float, "float", float),
    (datetime, "datetime", _packed_moment),
    (date, "date", date.isoformat),
    (time, "time", time.isoformat),
    (timedelta, "timedelta", lambda it: [it.days, it.seconds, it.microseconds]),
    (Decimal, "decimal", str),
    (UUID, "uuid", str),
)
_CONTAINERS: Final = ((list, "list"), (tuple, "tuple"), (set, "set"), (frozenset, "frozenset"))
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "str": str,
    "bytes": bytes,
    "float": float,
    "int": int,
    "datetime": _moment,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": lambda it: timedelta(*it),
    "decimal": Decimal,
    "uuid": UUID,
    "list": lambda it: [_unpacked(item) for item in it],
    "tuple": lambda it: tuple(map(_unpacked, it)),
    "set": lambda it: set(map(_unpacked, it)),
    "frozenset": lambda it: frozenset(map(_unpacked, it)),
}
