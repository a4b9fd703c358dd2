"""Bodies as other programs write them: the JSON inside is found, whatever it is wrapped in."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.transports.body import from_base64, json_inside, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = '{"name": "Zoë ü?>>>", "n": [1, 2]}'  # in base64 with a + and a /


def in_base64(text: str, encoding: str = "utf-8") -> str:
    return base64.b64encode(text.encode(encoding)).decode()


def in_base64_for_urls(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


WRAPPINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON string": json.dumps,  # as the JavaScript SDK of Service Bus writes a string
    "doubled JSON string": lambda it: json.dumps(json.dumps(it)),
    "base64": in_base64,
    "base64url": in_base64_for_urls,
    "doubled base64": lambda it: in_base64(in_base64(it)),
    "UTF-16": lambda it: in_base64(it, "utf-16"),
    "UTF-16, little end first": lambda it: in_base64(it, "utf-16-le"),
    "UTF-16, big end first": lambda it: in_base64(it, "utf-16-be"),
    "base64 with a mark": lambda it: in_base64(f"\ufeff{it}"),
    "base64 in lines": lambda it: "\r\n".join(in_base64(it)[at : at + 16] for at in range(0, 99, 16)),
    "JSON string in base64": lambda it: in_base64(json.dumps(it)),
    "base64 in a JSON string": lambda it: json.dumps(in_base64(it)),
    "mark and spaces": lambda it: f" \ufeff{it}\n",
}


@pytest.mark.parametrize("wrap", WRAPPINGS.values(), ids=WRAPPINGS)
@pytest.mark.parametrize("text", [TEXT, f"[{TEXT}]"], ids=["object", "list"])
def test_the_json_in_a_body_is_found(wrap: Callable[[str], str], text: str) -> None:
    assert json_inside(wrap(text)) == text


def test_the_two_alphabets_of_base64_differ_here() -> None:
    assert set("+/") <= set(in_base64(TEXT))


@pytest.mark.parametrize(
    "body", ["", "hello", "word", '"text"', '"', "12", "null", "e30=e30=", "Zoë", "\x00"]
)
def test_a_body_without_json_stays_as_it_is(body: str) -> None:
    assert json_inside(body) == body.strip()


def test_a_body_that_is_wrapped_too_often_stays_as_it_is() -> None:
    body = TEXT
    for _ in range(20):
        body = in_base64(body)

    assert json_inside(body) == body


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_bytes_are_read_in_the_encoding_that_they_have(encoding: str) -> None:
    assert text_of(TEXT.encode(encoding)) == TEXT


def test_bytes_that_are_no_text_are_shown_as_far_as_they_are() -> None:
    assert text_of(b"\xff\xfd not") == "\ufffd\ufffd not"


@pytest.mark.parametrize(
    "unit", ["A", " ", "=", "A ", "A=", '"', '\\"', "[", "{", "\ufeff", "-_", "A\n"], ids=repr
)
def test_a_body_of_a_megabyte_takes_no_time(unit: str) -> None:
    """In proportion to its length, that is: by a quadratic way it would take minutes, and the test would time out."""
    body = unit * (1_000_000 // len(unit))

    json_inside(body)
    json_inside(body + "!")
    from_base64(body + "!")


@given(st.text() | st.binary().map(lambda it: base64.b64encode(it).decode()))
def test_whatever_comes_nothing_is_raised(body: str) -> None:
    json_inside(body)
