"""The types of AMQP 1.0 that Python has no words for, and the codes of what travels.

A number keeps the width it came with: annotations and properties that a client sent go out again as they came in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final


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
    """What a described value is."""

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
    """Fields at the end that are null need not be sent; here they are again."""
    return given + [None] * (expected - len(given))
