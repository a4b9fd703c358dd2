"""Effects of isolated steps travel as data; what is not declared is not built in the worker."""

from __future__ import annotations

import os
import subprocess
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest

from stepfast import Transaction, Upsert, effect
from stepfast.errors import AnswerError, ConfigurationError
from stepfast.jobs.events import SendEvent
from stepfast.jobs.outcome import Call
from stepfast.outbox.alerts import alert
from stepfast.outbox.messages import webhook
from stepfast.worker.isolation.effects import pack_effects, unpack_effects


class Shade(StrEnum):
    RED = "red"


class Place(NamedTuple):
    shelf: int
    name: str


@dataclass(frozen=True, slots=True)
class Inner:
    value: Any


@effect
@dataclass
class Carrier:
    value: Any
    late: int = field(init=False, default=3)

    def apply(self, tx: Transaction, /) -> None: ...


@dataclass
class Undeclared(Carrier):
    """A subclass of one that is declared."""


@effect
def declared(tx: Transaction, value: Any = None) -> None: ...


def undeclared(tx: Transaction) -> None: ...


VALUES: list[Any] = [
    None,
    True,
    0,
    -(2**63),
    2**200,
    1.5,
    "é\u2028",
    b"\0\xff",
    [1, [2]],
    (1, (2, [])),
    {1, 2},
    frozenset({"a"}),
    {"a": 1, 2: {"b": (None,)}, (1, 2): 3},
    Decimal("1.10"),
    UUID(int=7),
    date(2024, 2, 29),
    time(1, 2, 3, 4),
    timedelta(days=-1, microseconds=5),
    datetime(2024, 10, 27, 2, 30, fold=1),  # noqa: DTZ001 - a time of no zone
    datetime(2024, 1, 1, tzinfo=UTC),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=5))),
    datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")),
    Shade.RED,
    Place(3, "x"),
    Inner(Inner((Decimal(1),))),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_is_the_same_on_the_other_side(value: Any) -> None:
    data = pack_effects([Carrier(value)])
    assert data is not None

    (found,) = unpack_effects(data)

    assert isinstance(found, Carrier)
    assert found == Carrier(value)
    assert type(found.value) is type(value)
    assert repr(found.value) == repr(value)


def test_effects_of_stepfast_and_declared_functions_travel() -> None:
    sent: list[Any] = [
        Upsert("orders", ("id",), ({"id": 1, "at": date(2024, 2, 29)},)),
        SendEvent.of("paid", {"n": 1}, "1h"),
        alert("cause", "title", cooldown=timedelta(hours=1)),
        webhook("https://example.com/x", '{"a":1}', headers={"x-a": "b"}),
        Call(declared),
        Call(partial(declared, value=Decimal(3))),
    ]

    data = pack_effects(sent)
    assert data is not None
    found = unpack_effects(data)

    assert found[:5] == sent[:5]
    call = found[5]
    assert isinstance(call, Call)
    assert isinstance(call.function, partial)
    assert (call.function.func, call.function.keywords) == (declared, {"value": Decimal(3)})


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (Call(undeclared), "undeclared is not declared as an effect"),
        (Call(lambda _: None), "is not declared as an effect"),
        (Call(partial(os.system, "true")), "system is not declared"),
        (Undeclared(1), "Undeclared is not declared"),
        (Carrier(object()), "object is no data"),
        (Carrier(OrderedDict(a=open)), "open is no data"),
        (Carrier(undeclared), "undeclared is no data"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_what_is_no_data_is_refused_with_the_cure(made: Any, problem: str) -> None:
    with pytest.raises(
        AnswerError, match=f"(?s){problem}.*put @effect .* above a function at the top of a module"
    ):
        pack_effects([made])


def deep() -> Any:
    value: Any = 1
    for _ in range(200):
        value = [value]
    return value


def test_a_value_that_is_too_deep_is_refused() -> None:
    with pytest.raises(AnswerError, match="levels deep"):
        pack_effects([Carrier(deep())])


PARTIAL = ["partial", ["function", "os:system"], [["list", []]], ["dict", []]]


@pytest.mark.parametrize(
    "forged",
    [
        ["call", ["function", "os:system"]],
        ["call", ["function", "builtins:exec"]],
        ["call", PARTIAL],
        ["call", ["function", "stepfast.jobs.outcome:Call"]],
        ["object", "subprocess:Popen", {"args": "true"}],
        ["object", "tests.unit.worker.test_isolated_effects:Inner", {"value": 1}],
        ["object", "tests.unit.worker.test_isolated_effects:Carrier", {"value": 1}],
        ["object", "no.such.module:Thing", {}],
        ["object", "stepfast.database.upsert:Upsert", {"table": "x"}],
        ["named", "builtins:list", [1]],
        ["enum", "builtins:dict", "clear"],
        ["what", 1],
        ["decimal", "x"],
        ["object", 7, {}],
        "text",
        None,
        [],
    ],
    ids=str,
)
def test_forged_data_make_nothing_in_the_worker(forged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    never: Callable[..., Any] = lambda *given, **_: called.append(given)  # noqa: E731
    monkeypatch.setattr(os, "system", never)
    monkeypatch.setattr(subprocess.Popen, "__init__", never)

    with pytest.raises(AnswerError, match="cannot be read in the worker's process"):
        unpack_effects(msgspec.msgpack.encode([forged]))

    assert called == []


def test_what_is_no_list_of_effects_is_refused() -> None:
    for data in (b"", b"\xc1", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode(7)):
        with pytest.raises(AnswerError):
            unpack_effects(data)


def test_only_dataclasses_with_apply_are_declared() -> None:
    class Plain:
        def apply(self, tx: Transaction, /) -> None: ...

    for wrong in (Plain, Inner, Enum):
        with pytest.raises(ConfigurationError, match="must be a dataclass with apply"):
            effect(wrong)
