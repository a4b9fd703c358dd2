"""A handler's arguments as JSON, and back, checked against its type hints on both ways."""

from __future__ import annotations

import inspect
import math
import typing
from contextlib import suppress
from copy import copy
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import asdict

from stepfast.config import MAX_PAYLOAD
from stepfast.encryption import Sealed
from stepfast.errors import AnswerError, ArgumentsError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping


def _to_builtin(value: Any) -> Any:
    if hasattr(type(value), "model_dump"):  # pydantic; asked of the type: a mock has every attribute
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form; pass its id, or a dataclass")


def from_builtin(wanted: type, value: Any) -> Any:
    if hasattr(wanted, "model_validate"):  # pydantic; its ValidationError is a ValueError
        return wanted.model_validate(value)
    if isinstance(value, wanted):
        return value
    raise ValueError(f"cannot make a {wanted.__name__} of {type(value).__name__}")


_WHOLE: Final = frozenset({str, int, bool, type(None)})  # never NaN, and nothing inside
OURS: Final = b'{"stepfast.'  # how documents begin in which we wrap what is stored
_encoder: Final = msgspec.json.Encoder(enc_hook=_to_builtin, decimal_format="string")


def to_json(value: Any) -> str:
    """Any JSON value, dates, decimals, UUIDs, enums, dataclasses and pydantic models."""
    return _encoded(value).decode()


def _encoded(value: Any) -> bytes:
    """The value as JSON, which has no NaN and no infinity: those would be written as null, and be lost."""
    text = _encoder.encode(value)
    if b"null" in text and not is_finite(msgspec.to_builtins(value, enc_hook=_to_builtin)):
        raise ValueError("it holds NaN or an infinity, which JSON has no word for; use None or a text")
    return text


def is_finite(value: Any) -> bool:
    """Whether no number in a value of builtins is NaN or infinite."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return _are_finite(value) and _are_finite(value.values())
    return not isinstance(value, list | tuple | set | frozenset) or _are_finite(value)


def _are_finite(values: Collection[Any]) -> bool:
    if _WHOLE.issuperset(map(type, values)):  # most: a fifth of the time that asking each takes
        return True
    for value in values:  # a generator would take half as long again
        kind = type(value)
        if kind not in _WHOLE and not (math.isfinite(value) if kind is float else is_finite(value)):
            return False
    return True


def sendable(value: Any) -> str:
    """The data of a webhook, as it is posted."""
    try:
        return to_json(value)
    except Exception as error:
        raise ArgumentsError("webhook", f"its data has no JSON form: {error}") from error


class Encoded(str):
    """A result or a cursor that another process has encoded: it is stored as it is."""

    __slots__ = ()


def encode(value: Any, what: str = "result") -> str:
    """A handler's answer as it is stored; `what` names it in the error."""
    if type(value) is Encoded:
        return str(value)
    if type(value) is Sealed:
        return value.text
    try:
        text = _encoded(value)
    except Exception as error:
        raise AnswerError(what, f"cannot be stored as JSON: {error}") from error
    if len(text) > MAX_PAYLOAD:
        raise AnswerError(
            what,
            f"takes {len(text):,} bytes, at most {MAX_PAYLOAD:,} are stored; keep the data in a table or a file and answer with its id",
        )
    if text.startswith(OURS):
        raise AnswerError(
            what, f"begins with the name {text[2:30].decode()}…, which is ours; use another one"
        )
    return text.decode()


def decode(text: str) -> Any:
    return msgspec.json.decode(text)


class Arguments:
    """The arguments of one handler: how they are checked, stored and given back."""

    def __init__(self, kind: str, handler: Callable[..., Any]) -> None:
        self.kind = kind
        parameters = list(inspect.signature(handler).parameters.values())
        for place, parameter in enumerate(parameters):
            if _is_step(parameter):
                _refuse_another_step(kind, handler, parameter, place)
        self.wants_step = bool(parameters) and _is_step(parameters[0])
        own = parameters[1:] if self.wants_step else parameters
        fields = [_field(kind, handler, parameter) for parameter in own]
        self.names = tuple(field[0] for field in fields)
        try:
            self._type = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
            self._decoder = msgspec.json.Decoder(self._type, dec_hook=from_builtin)
            self._decoder_of_many: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
                GenericAlias(list, (self._type,)), dec_hook=from_builtin
            )
        except TypeError as error:
            raise ConfigurationError(
                f"job {kind!r}: its type hints cannot be read from JSON: {error}"
            ) from error

    def encode(self, values: Mapping[str, Any]) -> str:
        """Check `values` the way the worker will, and return what is stored."""
        try:
            text = _encoded(dict(values))
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentsError(self.kind, str(error)) from error
        if len(text) > MAX_PAYLOAD:
            raise ArgumentsError(
                self.kind,
                f"the arguments take {len(text):,} bytes, at most {MAX_PAYLOAD:,} are stored; keep the data in a table or a file and pass its id",
            )
        try:
            self._decoder.decode(text)
        except (msgspec.MsgspecError, ValueError) as error:
            raise self._refused(error) from error
        return text.decode()

    def encode_many(self, calls: Iterable[Mapping[str, Any]]) -> list[str]:
        """`encode` for each call; all are checked at once, 0.3 µs a call. If anything is odd, they are checked one by one."""
        asked = list(calls)
        try:
            texts = [_encoder.encode(values) for values in asked]
            together = b"[" + b",".join(texts) + b"]"
            self._decoder_of_many.decode(together)
        except Exception:  # noqa: BLE001 - below it is raised about the call that is wrong
            return [self.encode(values) for values in asked]
        if b"null" in together or max(map(len, texts), default=0) > MAX_PAYLOAD:
            return [self.encode(values) for values in asked]
        return [text.decode() for text in texts]

    def decode(self, text: str) -> dict[str, Any]:
        """What the handler is called with; raises `ArgumentsError` when the row does not fit it."""
        try:
            return asdict(self._decoder.decode(text))
        except (msgspec.MsgspecError, ValueError) as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> ArgumentsError:
        return ArgumentsError(self.kind, _sentence(str(error), self.names))


def _sentence(problem: str, names: tuple[str, ...]) -> str:
    problem = problem.replace(" - at `$.", ", at `").replace("Object ", "")
    if "unknown field" in problem or "missing required field" in problem:
        problem = (
            problem.replace("field", "argument") + f"; the handler takes: {', '.join(names) or 'nothing'}"
        )
    return f"wrong arguments: {problem}"


def _is_step(parameter: inspect.Parameter) -> bool:
    note = parameter.annotation
    return parameter.name == "step" or getattr(note, "__name__", note) in {"Step", "stepfast.Step"}


def _refuse_another_step(
    kind: str, handler: Callable[..., Any], parameter: inspect.Parameter, place: int
) -> None:
    """Refuse a parameter called `step` that is no Step: an argument of that name would never arrive."""
    if place > 0:
        raise ConfigurationError(
            f"job {kind!r}: the step comes first; make {parameter.name!r} the first parameter, or rename it"
        )
    try:
        note = _resolved(kind, handler, parameter)
    except ConfigurationError:
        return  # imported for type checking only
    if not _may_be_step(note):
        raise ConfigurationError(
            f"job {kind!r}: parameter 'step' is a Step, not {parameter.annotation!r}; give your argument another name"
        )


def _may_be_step(note: Any) -> bool:
    family = {it.__name__ for it in getattr(note, "__mro__", ())}
    return note is Any or "Step" in family or any(_may_be_step(it) for it in typing.get_args(note))


def _field(kind: str, handler: Callable[..., Any], parameter: inspect.Parameter) -> tuple[Any, ...]:
    if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
        raise ConfigurationError(
            f"job {kind!r}: parameter {str(parameter)!r} has no name to be stored under; use plain or keyword parameters"
        )
    note = _resolved(kind, handler, parameter)
    if parameter.default is parameter.empty:
        return (parameter.name, note)
    default = parameter.default
    if isinstance(default, list | dict | set | bytearray):
        return (parameter.name, note, msgspec.field(default_factory=lambda: copy(default)))
    return (parameter.name, note, default)


def _resolved(kind: str, handler: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The type of this parameter alone: a `Step` that is imported for type checking only must not get in the way."""
    note = parameter.annotation
    if note is parameter.empty:
        return Any
    if not isinstance(note, str):
        return note
    function = inspect.unwrap(handler)
    try:
        holder = type("holder", (), {"__annotations__": {parameter.name: note}})
        hints = typing.get_type_hints(
            holder,
            getattr(function, "__globals__", {}),
            _closure(function),
            include_extras=True,
        )
    except NameError as error:
        raise ConfigurationError(
            f"job {kind!r}: the type hint of {parameter.name!r} cannot be resolved ({error}); import it at run time, not only for type checking"
        ) from error
    return hints[parameter.name]


def _closure(function: Any) -> dict[str, Any]:
    """The names that a function takes from around it, as far as they have a value yet: its own has none."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found: dict[str, Any] = {}
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=True):
        with suppress(ValueError):  # an empty cell
            found[name] = cell.cell_contents
    return found
