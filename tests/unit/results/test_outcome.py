"""A result is read into the type that its handler returns, as far as its annotation says."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pydantic
import pytest

from stepfast import Continue, Done, Reject, Snooze
from stepfast.errors import ResultTypeError
from stepfast.jobs.payload import encode
from stepfast.results.outcome import PLAIN_READER, ResultReader, return_type
from tests.unit.jobs import handlers_with_text_hints

if TYPE_CHECKING:
    from collections import OrderedDict


@dataclass
class Parcel:
    weight: Decimal
    sent: date
    parts: tuple[int, ...] = ()


class Model(pydantic.BaseModel):
    id: uuid.UUID


def nothing_said():  # type: ignore[no-untyped-def]  # noqa: ANN201 - that is the case
    return 1


def text() -> str:
    return ""


async def parcel() -> Parcel:
    return Parcel(Decimal(1), date(2030, 1, 1))


def parcel_or_later() -> Parcel | Continue | Snooze | Reject:
    return Continue(1)


def parcel_or_none() -> Parcel | None:
    return None


def any_answer() -> Done | Continue:
    return Done()


def only_later() -> Continue:
    return Continue(1)


def parcel_or_done() -> Parcel | Done:
    return Done()


def imported_for_types_only() -> OrderedDict[str, int]:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("handler", "wanted"),
    [
        (nothing_said, Any),
        (text, str),
        (parcel, Parcel),
        (parcel_or_later, Parcel),
        (parcel_or_none, Parcel | None),
        (any_answer, Any),
        (only_later, Any),
        (parcel_or_done, Any),
        (imported_for_types_only, Any),
        (handlers_with_text_hints, Any),
    ],
)
def test_the_annotation_says_what_a_result_is(handler: Any, wanted: Any) -> None:
    assert return_type(handler) == wanted


@pytest.mark.parametrize(
    "value",
    [
        Parcel(Decimal("1.50"), date(2030, 1, 1), (1, 2)),
        Model(id=uuid.UUID(int=7)),
        {"a": [1, None]},
        "text",
        7,
    ],
)
def test_a_result_comes_back_as_it_was(value: Any) -> None:
    assert ResultReader(type(value)).read("job", "kind", encode(value)) == value


def test_no_result_is_none_whatever_the_type() -> None:
    assert ResultReader(Parcel).read("job", "kind", None) is None


def test_a_type_that_json_cannot_be_read_into_leaves_plain_values() -> None:
    assert ResultReader(int | Parcel | Model).read("job", "kind", '{"a":1}') == {"a": 1}
    assert PLAIN_READER.read("job", "kind", "[1]") == [1]


def test_a_result_of_an_older_version_of_the_handler_is_refused_in_words() -> None:
    with pytest.raises(ResultTypeError, match="job 17: its result does not fit the return type of 'send'"):
        ResultReader(Parcel).read("17", "send", '{"weight":"1","shipped":"2030-01-01"}')
