"""AMQP 1.0 values and access tokens, as the Service Bus emulator reads and writes them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as any_of

from stepfast_emulators.service_bus.amqp import (
    Array,
    Byte,
    Described,
    Int,
    Long,
    MalformedError,
    Opaque,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode,
    encode,
)
from stepfast_emulators.service_bus.broker import AccessKey, queue_of_audience, token_problem

KEY = AccessKey("Root", "secret")


def whole(made: type[int], bits: int, *, signed: bool) -> any_of.SearchStrategy[Any]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return any_of.integers(low, high).map(made)


NUMBERS = [
    whole(UByte, 8, signed=False),
    whole(UShort, 16, signed=False),
    whole(UInt, 32, signed=False),
    whole(ULong, 64, signed=False),
    whole(Byte, 8, signed=True),
    whole(Short, 16, signed=True),
    whole(Int, 32, signed=True),
    whole(Long, 64, signed=True),
    whole(Timestamp, 64, signed=True),
]
PLAIN = any_of.one_of(
    any_of.none(),
    any_of.booleans(),
    any_of.floats(allow_nan=False),
    any_of.binary(max_size=300),
    any_of.text(max_size=300),
    any_of.text("abc-:.$", max_size=300).map(Symbol),
    any_of.uuids(),
    any_of.binary(min_size=16, max_size=16).map(lambda raw: Opaque(0x94, raw)),
    *NUMBERS,
)
VALUES = any_of.recursive(
    PLAIN,
    lambda inner: any_of.one_of(
        any_of.lists(inner, max_size=40),
        any_of.dictionaries(any_of.text(max_size=9), inner, max_size=9),
        inner.map(lambda value: Described(ULong(0x70), value)),
        *(any_of.lists(number, min_size=1, max_size=99).map(Array) for number in NUMBERS),
        any_of.lists(any_of.uuids(), min_size=1).map(Array),
    ),
    max_leaves=60,
)


@given(VALUES)
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    wire = encode(value)

    found, end = decode(b"before" + wire + b"after", 6)

    assert found == value
    assert type(found) is type(value)
    assert end == 6 + len(wire)


@given(any_of.binary(max_size=60))
def test_bytes_that_are_no_value_are_refused_and_nothing_else(wire: bytes) -> None:
    try:
        decode(wire)
    except (MalformedError, RecursionError):
        return


@pytest.mark.parametrize("wire", [b"", b"\xa1\x05ab", b"\x98abc", b"\x3f", b"\xc0\x05\x02\x50"])
def test_a_value_that_is_cut_short_is_refused(wire: bytes) -> None:
    with pytest.raises(MalformedError):
        decode(wire)


def test_what_has_no_wire_form_is_named() -> None:
    with pytest.raises(TypeError, match="complex"):
        encode(1j)


def signature(key: AccessKey, resource: str, end: int, name: str = "Root") -> str:
    resource = quote(resource, safe="")
    digest = hmac.digest(key.value.encode(), f"{resource}\n{end}".encode(), hashlib.sha256)
    sig = quote(base64.b64encode(digest).decode(), safe="")
    return f"SharedAccessSignature sr={resource}&sig={sig}&se={end}&skn={name}"


def web_token(**claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.c2ln"


SOON = 4_000_000_000  # in the year 2096
BEFORE = 1_000_000_000
AUDIENCE = "https://servicebus.azure.net/"


@pytest.mark.parametrize(
    ("token", "problem"),
    [
        (signature(KEY, "sb://here/work", SOON), ""),
        (signature(KEY, "sb://here/work", SOON).encode(), ""),
        (signature(KEY, "sb://here/work", BEFORE), "ExpiredToken"),
        (signature(AccessKey("Root", "other"), "sb://here/work", SOON), "InvalidSignature"),
        (signature(KEY, "sb://here/work", SOON, name="Other"), "InvalidSignature"),
        ("SharedAccessSignature sr=x&se=1", "MalformedToken"),
        (web_token(aud=AUDIENCE, exp=SOON), ""),
        (web_token(aud=AUDIENCE, exp=BEFORE), "ExpiredToken"),
        (web_token(aud="https://storage.azure.com", exp=SOON), "InvalidAudience"),
        (web_token(exp=SOON), "MalformedToken"),
        ("a.b.c", "MalformedToken"),
        ("nonsense", "MalformedToken"),
        (None, "MalformedToken"),
    ],
)
def test_a_token_opens_or_says_why_not(token: object, problem: str) -> None:
    assert token_problem(token, KEY).partition(":")[0] == problem


@pytest.mark.parametrize(
    ("audience", "name"),
    [
        ("sb://127.0.0.1:5672/Work", "work"),
        ("sb://here/work/$DeadLetterQueue", "work"),
        ("amqps://here/work/$management", "work"),
        ("sb://here/", ""),
    ],
)
def test_a_token_is_meant_for_a_queue_or_for_all(audience: str, name: str) -> None:
    assert queue_of_audience(audience) == name


def test_a_lock_token_travels_as_dot_net_writes_it() -> None:
    token = UUID("00112233-4455-6677-8899-aabbccddeeff")

    assert UUID(bytes_le=token.bytes_le) == token
    assert decode(encode(token))[0] == token
