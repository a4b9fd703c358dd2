"""Arguments of jobs to JSON and back."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict
from unittest.mock import MagicMock
from uuid import UUID

import msgspec
import pydantic
import pytest

from stepfast import Step
from stepfast.config import MAX_PAYLOAD
from stepfast.errors import AnswerError, ArgumentsError, ConfigurationError
from stepfast.jobs.payload import Arguments, decode, encode
from tests.unit.jobs import handlers_with_text_hints as text_hints


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Line:
    sku: str
    price: Decimal
    tags: list[str] = field(default_factory=list)


class Customer(pydantic.BaseModel):
    name: str
    born: date | None = None


class Point(NamedTuple):
    x: int
    y: int


class Movie(TypedDict):
    title: str


class Struct(msgspec.Struct):
    a: int


def arguments(handler: Callable[..., Any]) -> Arguments:
    return Arguments("work", handler)


def there_and_back(hint: Any, value: Any) -> Any:
    """The value that a handler with this hint gets when this value is enqueued."""

    def handler(value: Any) -> None: ...

    handler.__annotations__["value"] = hint
    checked = arguments(handler)
    return checked.decode(checked.encode({"value": value}))["value"]


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (str, "Ünï 漢字 🙂 \x00"),
        (int, 2**60),
        (int, -1),
        (float, 0.1),
        (bool, True),
        (None | int, None),
        (bytes, b"\x00\xff"),
        (date, date(2024, 2, 29)),
        (datetime, datetime(2024, 2, 29, 12, 30, 1, 999_999, tzinfo=UTC)),
        (time, time(12, 30)),
        (timedelta, timedelta(days=1, microseconds=5)),
        (Decimal, Decimal("1234567890.12345678901234567890")),
        (UUID, UUID("0190a1b2-0000-7000-8000-0123456789ab")),
        (Colour, Colour.BLUE),
        (Level, Level.HIGH),
        (Line, Line("A", Decimal("9.99"), ["x"])),
        (Customer, Customer(name="Ada", born=date(1815, 12, 10))),
        (list[Customer], [Customer(name="Ada")]),
        (Point, Point(1, 2)),
        (Movie, {"title": "Metropolis"}),
        (Struct, Struct(3)),
        (Optional[int], None),  # noqa: UP045 - people write it
        (int | str, "seven"),
        (Literal["a", "b"], "b"),
        (list[int], [1, 2, 3]),
        (dict[str, list[date]], {"a": [date(2024, 1, 1)]}),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (Annotated[int, msgspec.Meta(ge=0)], 5),
        (Any, {"a": [1, None, "x"]}),
    ],
    ids=str,
)
def test_a_value_survives_the_trip(hint: Any, value: Any) -> None:
    got = there_and_back(hint, value)

    assert got == value
    assert type(got) is type(value)


def test_a_parameter_without_a_hint_takes_any_json_value() -> None:
    def handler(value): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - the point

    checked = arguments(handler)

    assert checked.decode(checked.encode({"value": [1, {"a": None}]})) == {"value": [1, {"a": None}]}


def test_money_is_stored_as_text_not_as_a_float() -> None:
    assert encode({"price": Decimal("0.10")}) == '{"price":"0.10"}'


def test_defaults_stand_in_for_what_was_not_given() -> None:
    def handler(a: int, b: str = "x", *, c: list[int] = [1], d: int | None = None) -> None: ...  # noqa: B006 - the point

    checked = arguments(handler)
    text = checked.encode({"a": 1})

    assert text == '{"a":1}'
    assert checked.decode(text) == {"a": 1, "b": "x", "c": [1], "d": None}


def test_a_mutable_default_is_not_shared_between_steps() -> None:
    def handler(c: list[int] = [], d: dict[str, int] = {}) -> None: ...  # noqa: B006 - the point

    checked = arguments(handler)
    checked.decode("{}")["c"].append(1)

    assert checked.decode("{}") == {"c": [], "d": {}}


def test_a_dataclass_as_a_default_is_taken_as_it_is() -> None:
    def handler(line: Line = Line("A", Decimal(1))) -> None: ...  # noqa: B008 - the point

    assert arguments(handler).decode("{}") == {"line": Line("A", Decimal(1))}


def test_the_step_is_not_among_the_arguments() -> None:
    def by_hint(work: Step, n: int) -> None: ...
    def by_name(step: Any, n: int) -> None: ...
    def without(n: int) -> None: ...

    found = [arguments(it) for it in (by_hint, by_name, without)]

    assert [it.wants_step for it in found] == [True, True, False]
    assert [it.names for it in found] == [("n",)] * 3


def test_a_handler_without_parameters_takes_nothing() -> None:
    def handler() -> None: ...

    checked = arguments(handler)

    assert (checked.wants_step, checked.names, checked.encode({})) == (False, (), "{}")


def test_hints_that_are_texts_are_resolved_where_the_handler_was_written() -> None:
    checked = arguments(text_hints.plain)

    text = checked.encode({"order": text_hints.Order("A-17", 2)})

    assert checked.wants_step
    assert checked.decode(text) == {"order": text_hints.Order("A-17", 2), "note": None}


def test_hints_that_are_texts_may_nest() -> None:
    checked = arguments(text_hints.nested)
    order = text_hints.Order("A-17")

    text = checked.encode({"orders": [order], "by_name": {"a": order}})

    assert checked.decode(text) == {"orders": [order], "by_name": {"a": order}}


def test_hints_that_are_texts_may_name_types_of_the_enclosing_function() -> None:
    @dataclass
    class Local:
        n: int

    def handler(value: Local, other: Line) -> None:
        assert isinstance(value, Local)
        assert isinstance(other, Line)

    checked = arguments(handler)

    assert checked.decode('{"value":{"n":1},"other":{"sku":"A","price":"1"}}')["other"] == Line(
        "A", Decimal(1)
    )


def test_a_hint_that_exists_for_the_type_checker_only_is_refused_with_the_cure() -> None:
    with pytest.raises(ConfigurationError, match=r"'order' cannot be resolved .*import it at run time"):
        arguments(text_hints.unresolvable)


def test_a_decorated_handler_is_read_through_its_decorator() -> None:
    def timed(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            function(*args, **kwargs)

        return wrapper

    checked = arguments(timed(text_hints.plain))

    assert checked.names == ("order", "note")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"n": "seven"}, "work: wrong arguments: Expected `int`, got `str`, at `n`"),
        ({"n": 1.5}, "Expected `int`, got `float`"),
        ({"n": None}, "Expected `int`, got `null`"),
        ({"n": 1, "m": 2}, "unknown argument `m`; the handler takes: n, colour"),
        ({}, "missing required argument `n`; the handler takes: n, colour"),
        ({"n": 1, "colour": "green"}, "Invalid enum value 'green', at `colour`"),
        ({"n": object()}, "object has no JSON form; pass its id, or a dataclass"),
        ({"n": {1: {2, object()}}}, "object has no JSON form"),
    ],
)
def test_arguments_that_do_not_fit_get_a_sentence(values: dict[str, Any], sentence: str) -> None:
    def handler(n: int, colour: Colour = Colour.RED) -> None: ...

    with pytest.raises(ArgumentsError) as refusal:
        arguments(handler).encode(values)

    assert sentence in str(refusal.value)
    assert refusal.value.kind == "work"


def test_a_handler_that_takes_nothing_says_so() -> None:
    def handler() -> None: ...

    with pytest.raises(ArgumentsError, match="takes: nothing"):
        arguments(handler).encode({"n": 1})


def test_a_pydantic_model_that_does_not_fit_is_refused_too() -> None:
    def handler(customer: Customer) -> None: ...

    with pytest.raises(ArgumentsError, match="born"):
        arguments(handler).encode({"customer": {"name": "Ada", "born": "yesterday"}})


def test_a_constraint_of_the_hint_is_checked() -> None:
    def handler(n: Annotated[int, msgspec.Meta(ge=0)]) -> None: ...

    with pytest.raises(ArgumentsError, match=">= 0"):
        arguments(handler).encode({"n": -1})


def test_a_payload_that_is_too_large_is_refused_with_its_size_and_a_cure() -> None:
    def handler(text: str) -> None: ...

    checked = arguments(handler)
    checked.encode({"text": "x" * (1024 * 1024 - 20)})

    with pytest.raises(ArgumentsError, match=r"take 1,048,587 bytes, at most 1,048,576 .* pass its id"):
        checked.encode({"text": "x" * (1024 * 1024)})


def test_a_value_that_contains_itself_is_refused() -> None:
    def handler(value: Any) -> None: ...

    endless: list[Any] = []
    endless.append(endless)

    with pytest.raises(ArgumentsError):
        arguments(handler).encode({"value": endless})


def test_a_number_that_is_none_is_refused() -> None:
    def handler(value: float) -> None: ...

    with pytest.raises(ArgumentsError):
        arguments(handler).encode({"value": float("nan")})


@pytest.mark.parametrize("text", ["[]", "null", "7", '"x"', "{", ""])
def test_a_row_that_holds_no_arguments_is_refused(text: str) -> None:
    def handler(n: int = 1) -> None: ...

    with pytest.raises(ArgumentsError):
        arguments(handler).decode(text)


def many(**values: int) -> None: ...
def some(*values: int) -> None: ...
def positional(value: int, /) -> None: ...


@pytest.mark.parametrize("handler", [many, some, positional])
def test_a_parameter_without_a_name_of_its_own_is_refused(handler: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"value.* has no name to be stored under"):
        arguments(handler)


def test_a_hint_that_json_cannot_hold_is_refused() -> None:
    def handler(value: int | list[int] | set[int]) -> None: ...

    with pytest.raises(ConfigurationError, match="cannot be read from JSON"):
        arguments(handler)


def test_results_and_cursors_are_json_too() -> None:
    assert decode(encode({"at": datetime(2024, 1, 2, tzinfo=UTC), "model": Customer(name="Ada")})) == {
        "at": "2024-01-02T00:00:00Z",
        "model": {"name": "Ada", "born": None},
    }


class Endless:
    def model_dump(self, **_: str) -> Any:
        return Endless()


def nested() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    "value", [nested(), MagicMock(), Endless(), object(), "\udc80"], ids=lambda it: type(it).__name__
)
def test_an_answer_without_a_json_form_is_refused(value: Any) -> None:
    with pytest.raises(AnswerError, match="the result cannot be stored as JSON"):
        encode(value)


@pytest.mark.parametrize("what", ["result", "cursor"])
def test_an_answer_above_the_limit_is_refused(what: str) -> None:
    assert encode("x" * (MAX_PAYLOAD - 2), what)
    with pytest.raises(AnswerError, match=f"the {what} takes 1,048,577 bytes"):
        encode("x" * (MAX_PAYLOAD - 1), what)


def test_an_argument_called_step_is_refused() -> None:
    def number(step: int) -> None: ...
    def many(step: list[int]) -> None: ...
    def later(n: int, step: Step) -> None: ...

    for handler in (number, many):
        with pytest.raises(ConfigurationError, match="parameter 'step' is a Step"):
            arguments(handler)
    with pytest.raises(ConfigurationError, match="the step comes first"):
        arguments(later)


def test_a_step_may_be_a_step_of_ones_own() -> None:
    class Mine(Step):
        """More of it."""

    def own(step: Mine) -> None: ...
    def maybe(step: Step | None) -> None: ...
    def anything(step: Any) -> None: ...

    assert all(arguments(it).wants_step for it in (own, maybe, anything))


def test_a_handler_may_speak_of_itself_before_it_has_a_name() -> None:
    """A job that enqueues itself: while it is registered, its own name has no value yet."""

    class Order:
        def __init__(self, number: int) -> None:
            self.number = number

    def again(number: int) -> object:
        return (itself, Order(number))

    arguments = Arguments("again", again)
    itself = again

    assert arguments.decode(arguments.encode({"number": 3})) == {"number": 3}


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), {"a": [1.0, float("-inf")]}, (None, float("nan"))]
)
def test_numbers_that_json_has_no_word_for_are_refused_and_not_lost(value: object) -> None:
    with pytest.raises(AnswerError, match="NaN"):
        encode(value)


def test_nothing_is_a_word_of_json() -> None:
    assert encode({"a": None, "b": [1.5, None]}) == '{"a":null,"b":[1.5,null]}'


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": float("nan")},
        {"value": "text"},
        {"other": 1.0},
        {"value": object()},
        {"value": 1.0, "note": "x" * MAX_PAYLOAD},
        "no mapping",
    ],
)
def test_one_wrong_call_among_many_is_refused_with_the_words_for_it_alone(wrong: Any) -> None:
    def handler(value: float | None, note: str = "") -> None: ...

    asked = arguments(handler)

    with pytest.raises(ArgumentsError) as alone:
        asked.encode(wrong)
    with pytest.raises(ArgumentsError) as among_many:
        asked.encode_many([{"value": 1.0}, wrong, {"value": 2.0}])

    assert str(among_many.value) == str(alone.value)


def test_many_calls_are_stored_as_each_would_be() -> None:
    def handler(value: float | None, line: Line | None = None) -> None: ...

    asked = arguments(handler)
    calls: list[Any] = [
        {"value": None},
        {"value": 1.5, "line": Line("a", Decimal("1.10"))},
        MappingProxyType({"value": 2}),
    ]

    assert asked.encode_many(iter(calls)) == [asked.encode(call) for call in calls]
    assert asked.encode_many([]) == []
