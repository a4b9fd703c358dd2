"""Rules that hide fields by their names and texts by a pattern."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from holdfast.errors import ConfigurationError
from holdfast.telemetry.mask_rules import Rules, hiding, read, spelled


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
