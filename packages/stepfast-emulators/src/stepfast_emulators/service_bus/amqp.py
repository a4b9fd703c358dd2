"""AMQP 1.0 values to bytes and back: a constructor byte, then the value.

A number keeps the width it came with: annotations and properties that a client sent go out again as they came in.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, Final
from uuid import UUID

# Types of AMQP 1.0 that Python does not have, and the codes of described values.


class Symbol(str):
    __slots__ = ()


class UByte(int):
    __slots__ = ()


class UShort(int):
    __slots__ = ()


class UInt(int):
    __slots__ = ()


class ULong(int):
    __slots__ = ()


class Byte(int):
    __slots__ = ()


class Short(int):
    __slots__ = ()


class Int(int):
    __slots__ = ()


class Long(int):
    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970."""

    __slots__ = ()


class Float32(float):
    __slots__ = ()


class Array(list[Any]):
    """Values of one type: that of the first."""


class Encoded(bytes):
    """A value that has its wire form already."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that we only pass on: a character, a decimal."""

    constructor: int
    wire: bytes


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a name: a performative, an outcome, a section of a message."""

    code: Any  # a `Code`, or the number or symbol of something that we only pass on
    value: Any


class Code(IntEnum):
    """The kind of a described value."""

    # Performatives
    OPEN = 0x10
    BEGIN = 0x11
    ATTACH = 0x12
    FLOW = 0x13
    TRANSFER = 0x14
    DISPOSITION = 0x15
    DETACH = 0x16
    END = 0x17
    CLOSE = 0x18
    ERROR = 0x1D
    # Outcomes of a delivery
    ACCEPTED = 0x24
    REJECTED = 0x25
    RELEASED = 0x26
    MODIFIED = 0x27
    # Before the connection is open
    SASL_MECHANISMS = 0x40
    SASL_INIT = 0x41
    SASL_OUTCOME = 0x44
    # Sections of a message
    HEADER = 0x70
    DELIVERY_ANNOTATIONS = 0x71
    ANNOTATIONS = 0x72
    PROPERTIES = 0x73
    APPLICATION_PROPERTIES = 0x74
    DATA = 0x75
    SEQUENCE = 0x76
    VALUE = 0x77
    FOOTER = 0x78


MANY_IN_ONE: Final = 0x80013700  # the message format of a batch: each data section is a message


def fields(given: list[Any], expected: int) -> list[Any]:
    """The fields of a list, with those at its end that are null and need not be sent."""
    return given + [None] * (expected - len(given))


SMALL: Final = 0xFF  # what one byte can count
UUIDS: Final = 0x98
ARRAYS: Final = 0xE0  # and above

# Of a fixed width: constructor, how `struct` packs it, the type. The first of a type is how it is written.
FIXED: Final[tuple[tuple[int, str, type], ...]] = (
    (0x50, "B", UByte),
    (0x51, "b", Byte),
    (0x60, "H", UShort),
    (0x61, "h", Short),
    (0x70, "I", UInt),
    (0x52, "B", UInt),
    (0x71, "i", Int),
    (0x54, "b", Int),
    (0x72, "f", Float32),
    (0x80, "Q", ULong),
    (0x53, "B", ULong),
    (0x81, "q", Long),
    (0x55, "b", Long),
    (0x82, "d", float),
    (0x83, "q", Timestamp),
    (0x56, "?", bool),
)
CONSTANTS: Final[dict[int, Any]] = {
    0x40: None,
    0x41: True,
    0x42: False,
    0x43: UInt(0),
    0x44: ULong(0),
}
PASSED_ON: Final = {0x73: 4, 0x74: 4, 0x84: 8, 0x94: 16}  # characters and decimals: bytes of each

_count = struct.Struct(">I")
_wide_count = struct.Struct(">II")
_readers: Final = {code: (struct.Struct(">" + form), made) for code, form, made in FIXED}
_writers: Final[dict[type, tuple[int, struct.Struct]]] = {}
for _code, _form, _made in FIXED:
    _writers.setdefault(_made, (_code, struct.Struct(">" + _form)))


class MalformedError(ValueError):
    """The other side sent bytes that are not AMQP."""


def encode(value: Any) -> bytes:
    """The wire form of a value, by its type."""
    try:
        return _encoders[type(value)](value)
    except KeyError:
        raise TypeError(f"{type(value).__name__} has no wire form in AMQP") from None


def described(code: int, value: Any) -> bytes:
    """The wire form of a described value with one of our own codes, which are all below 256."""
    return b"\x00\x53" + bytes((code,)) + encode(value)


def decode(wire: bytes, at: int = 0) -> tuple[Any, int]:
    """The value that begins there, and where the next one begins."""
    try:
        return _decode(wire[at], wire, at + 1)
    except MalformedError:
        raise
    except (IndexError, struct.error, ValueError, TypeError) as broken:
        raise MalformedError(f"not AMQP at byte {at}: {broken}") from broken


def _decode(constructor: int, wire: bytes, at: int) -> tuple[Any, int]:
    if (reader := _readers.get(constructor)) is not None:
        form, made = reader
        return made(form.unpack_from(wire, at)[0]), at + form.size
    if constructor in CONSTANTS:
        return CONSTANTS[constructor], at
    if (decoder := _decoders.get(constructor >> 4)) is not None:
        return decoder(constructor, wire, at)
    raise MalformedError(f"no AMQP type has the constructor 0x{constructor:02x}")


def _decode_described(_: int, wire: bytes, at: int) -> tuple[Any, int]:
    code, at = _decode(wire[at], wire, at + 1)
    value, at = _decode(wire[at], wire, at + 1)
    return Described(code, value), at


def _decode_wide(constructor: int, wire: bytes, at: int) -> tuple[Any, int]:
    """UUIDs, and what we only pass on."""
    if constructor == UUIDS:
        return UUID(bytes=wire[at : at + 16]), at + 16
    if (size := PASSED_ON.get(constructor)) is None:
        raise MalformedError(f"no AMQP type has the constructor 0x{constructor:02x}")
    return Opaque(constructor, wire[at : at + size]), at + size


def _decode_empty_list(_: int, __: bytes, at: int) -> tuple[Any, int]:
    return [], at


def _size(constructor: int, wire: bytes, at: int) -> tuple[int, int]:
    """Compact forms (even tens) count in one byte, the others in four."""
    return (_count.unpack_from(wire, at)[0], at + 4) if constructor & 0x10 else (wire[at], at + 1)


def _decode_text(constructor: int, wire: bytes, at: int) -> tuple[Any, int]:
    size, at = _size(constructor, wire, at)
    end = at + size
    if end > len(wire):
        raise MalformedError(f"{size} bytes were announced, {len(wire) - at} are there")
    raw = wire[at:end]
    match constructor & 0x0F:
        case 0:
            return raw, end
        case 1:
            return raw.decode(), end
        case _:
            return Symbol(raw.decode("ascii")), end


def _decode_compound(constructor: int, wire: bytes, at: int) -> tuple[Any, int]:
    size, at = _size(constructor, wire, at)
    end = at + size
    count, at = _size(constructor, wire, at)
    if count > size:
        raise MalformedError(f"{count} values do not fit into {size} bytes")
    items = []
    if constructor >= ARRAYS:  # one constructor for all
        element, at = wire[at], at + 1
        for _ in range(count):
            item, at = _decode(element, wire, at)
            items.append(item)
        return Array(items), end
    for _ in range(count):
        item, at = _decode(wire[at], wire, at + 1)
        items.append(item)
    if constructor & 0x0F:
        return dict(zip(items[::2], items[1::2], strict=True)), end
    return items, end


def _encode_fixed(value: Any) -> bytes:
    constructor, form = _writers[type(value)]
    return bytes((constructor,)) + form.pack(value)


def _encode_unsigned(small: int, zero: int, value: Any) -> bytes:
    if value == 0:
        return bytes((zero,))
    return bytes((small, value)) if value <= SMALL else _encode_fixed(value)


def _encode_text(constructor: int, raw: bytes) -> bytes:
    if len(raw) <= SMALL:
        return bytes((constructor, len(raw))) + raw
    return bytes((constructor | 0x10,)) + _count.pack(len(raw)) + raw


def _encode_compound(constructor: int, count: int, body: bytes) -> bytes:
    if len(body) < SMALL and count <= SMALL:
        return bytes((constructor, len(body) + 1, count)) + body
    return bytes((constructor | 0x10,)) + _wide_count.pack(len(body) + 4, count) + body


def _encode_list(value: list[Any]) -> bytes:
    return _encode_compound(0xC0, len(value), b"".join(map(encode, value))) if value else b"\x45"


def _encode_map(value: dict[Any, Any]) -> bytes:
    body = b"".join(encode(key) + encode(item) for key, item in value.items())
    return _encode_compound(0xC1, 2 * len(value), body)


def _encode_array(value: Array) -> bytes:
    if not value:
        return b"\x45"
    made = type(value[0])
    if made is UUID:
        constructor, items = 0x98, b"".join(item.bytes for item in value)
    elif made is Symbol:
        constructor, items = 0xB3, b"".join(_count.pack(len(item)) + item.encode() for item in value)
    else:
        constructor, form = _writers[made]
        items = b"".join(map(form.pack, value))
    return b"\xf0" + _wide_count.pack(len(items) + 5, len(value)) + bytes((constructor,)) + items


def _encode_described(value: Described) -> bytes:
    return b"\x00" + encode(value.code) + encode(value.value)


_decoders: Final[dict[int, Callable[[int, bytes, int], tuple[Any, int]]]] = {
    0x0: _decode_described,
    0x4: _decode_empty_list,
    **dict.fromkeys((0x7, 0x8, 0x9), _decode_wide),
    **dict.fromkeys((0xA, 0xB), _decode_text),
    **dict.fromkeys((0xC, 0xD, 0xE, 0xF), _decode_compound),
}
_encoders: Final[dict[type, Callable[[Any], bytes]]] = {
    **dict.fromkeys(_writers, _encode_fixed),
    type(None): lambda _: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    UInt: partial(_encode_unsigned, 0x52, 0x43),
    ULong: partial(_encode_unsigned, 0x53, 0x44),
    Code: partial(_encode_unsigned, 0x53, 0x44),
    UUID: lambda value: b"\x98" + value.bytes,
    bytes: partial(_encode_text, 0xA0),
    str: lambda value: _encode_text(0xA1, value.encode()),
    Symbol: lambda value: _encode_text(0xA3, value.encode("ascii")),
    list: _encode_list,
    dict: _encode_map,
    Array: _encode_array,
    Described: _encode_described,
    Encoded: bytes,
    Opaque: lambda value: bytes((value.constructor,)) + value.wire,
}
