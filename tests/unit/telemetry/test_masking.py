"""Rules that hide fields by their names and texts by a pattern."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from stepfast.errors import ConfigurationError
from stepfast.telemetry.masking import Rules, hiding, read, spelled


def rules(*given: Any) -> Rules:
    made = Rules()
    made.add(given)
    return made


@pytest.mark.parametrize(
    ("rule", "value", "shown"),
    [
        ("password", {"password": "x", "name": "y"}, {"password": "***", "name": "y"}),
        ("password", {"a": [{"Password": {"deep": 1}}]}, {"a": [{"Password": "***"}]}),
        ("card.*", {"card": {"no": 1, "cvc": 2}, "no": 3}, {"card": {"no": "***", "cvc": "***"}, "no": 3}),
        ("card.no", {"my": {"card": {"no": 1, "ok": 2}}}, {"my": {"card": {"no": "***", "ok": 2}}}),
        ("*_secret", {"app_secret": "x", "secrets": "y"}, {"app_secret": "***", "secrets": "y"}),
        (re.compile(r"\d{4}"), {"a": "pin 1234", "b": 12345, "c": 7}, {"a": "pin ***", "b": "***", "c": 7}),
        ("mail", "mail=a@b.c and 'mail': 'd@e.f'", "mail=*** and 'mail': ***"),
        ("mail", "e-mail is fine, mailbox=3 too", "e-mail is fine, mailbox=3 too"),
    ],
)
def test_a_rule_hides_what_it_names_and_nothing_else(rule: Any, value: Any, shown: Any) -> None:
    assert rules(rule).masked(value) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"card":{"no":"4111","cvc":1},"n":2}', '{"card":***,"n":2}'),
        ("card={'no': 4111} n=2", "card=*** n=2"),
        ('{\\"card\\": \\"4111\\"}', "4111"),
        ("card: 4111, next", "card: ***, next"),
        ("a card of 4111", "a card of 4111"),
    ],
)
def test_in_a_text_the_value_behind_the_name_is_hidden(text: str, shown: str) -> None:
    cleaned = rules("card.*").cleaned(text)

    assert cleaned == shown or (shown == "4111" and "4111" not in cleaned)


def test_what_is_hidden_of_a_step_is_hidden_wherever_it_is_quoted() -> None:
    made = rules("card.*", "pin")
    values = made.values({"card": {"no": "4111", "cvc": 12}, "pin": 7391, "n": 5})

    with hiding(values):
        assert made.cleaned("4111 and 7391 but 5 and 12") == "*** and *** but 5 and 12"
    assert made.cleaned("4111") == "4111"


AWKWARD = "pa'ss\"wörd\\\n1"
WAYS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "repr": repr,
    "ascii": ascii,
    "json": json.dumps,
    "in a list": lambda it: repr([it]),
    "beside other quotes": lambda it: repr(f'it\'s "so": {it}'),
    "in an error": lambda it: repr(ValueError(f"refused: {[it]}")),
    "json of letters": lambda it: json.dumps({"n": it}, ensure_ascii=False),
    "json in json": lambda it: json.dumps(json.dumps([it])),
    "repr in json": lambda it: json.dumps(repr(it)),
    "in a path": lambda it: f"https://example.org/{quote(it)}",
    "in a query": lambda it: f"https://example.org/?n={quote_plus(it)}",
}


@pytest.mark.parametrize("quoted", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    "value", ["it's-1", 'say "1"', AWKWARD, "back\\slash", "new\nline", "a b/c&d", "дом-1"]
)
def test_what_is_hidden_of_a_step_is_hidden_however_it_is_quoted(
    value: str, quoted: Callable[[str], str]
) -> None:
    made = rules("pin")
    expected = quoted("SECRET").replace("SECRET", "***")

    with hiding(made.values({"pin": value})):
        cleaned = made.cleaned(quoted(value))

    assert bare(cleaned) == bare(expected)


def bare(text: str) -> str:
    """The text without quotes and escapes, which depend on its content."""
    return re.sub(r"['\"\\]", "", text)


def test_without_rules_nothing_changes() -> None:
    value = {"password": "x"}

    assert Rules().masked(value) is value
    assert Rules().cleaned("password=x") == "password=x"


@pytest.mark.parametrize(
    "rule", ["", "*", "*.*", "a b", "a..b", 5, None, "x" * 181, re.compile("x*"), re.compile(b"x")]
)
def test_what_is_no_rule_is_refused(rule: Any) -> None:
    with pytest.raises(ConfigurationError, match="mask"):
        rules(rule)


@pytest.mark.parametrize("given", ["password", re.compile("x")])
def test_one_rule_is_no_list_of_rules(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="list"):
        Rules().add(given)


@pytest.mark.parametrize("rule", ["card.*", re.compile(r"a:b\d", re.IGNORECASE)])
def test_a_rule_is_read_as_it_was_kept(rule: Any) -> None:
    assert read(spelled(rule)) == rule


def test_a_long_text_is_cleaned_in_no_time() -> None:
    made = rules("card.*", "pin", "*_secret")
    began = time.perf_counter()
    made.cleaned("card" * 50_000 + "=" + "{" * 50_000 + "'" * 50_000)

    assert time.perf_counter() - began < 2
