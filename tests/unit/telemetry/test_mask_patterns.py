"""Patterns of masking rules that could take hours are refused; those that people write are taken."""

from __future__ import annotations

import re

import pytest

from stepfast.errors import ConfigurationError
from stepfast.telemetry.mask_patterns import problem_of_pattern
from stepfast.telemetry.masking import Rules, read


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+b",
        r"(a*)*b",
        r"([a-zA-Z]+)*!",
        r"(a|b|ab)*c",
        r"(\w+\s?)*x",
        r"(?:a?){30}a",
        r"(a{1,20}){1,20}b",
        r"(?=(a+)+b)x",
        r"(?:/\*.*?\*/)*x",
        r".*foo.*bar",
        r"\w+\d+\w+x",
    ],
)
def test_a_pattern_that_could_take_hours_is_refused_in_words(pattern: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^mask: the pattern .* could take hours for some texts: it "
    ):
        Rules().add([re.compile(pattern)])
    with pytest.raises(ConfigurationError, match="could take hours"):
        read(f"re:0:{pattern}")


@pytest.mark.parametrize(
    "pattern",
    [
        r"\bDE\d{20}\b",
        r"[\w.+-]+@[\w-]+\.[\w.-]+",
        r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}",
        r"\b(?:\d[ -]?){13,16}\b",
        r"[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?",
        r'"(?:[^"\\]|\\.)*"',
        r"BEGIN.*?END",
        r"(?i)iban\s*:?\s*\w+",
        r"(?:\d+-)+x",
        r"sk_[a-z]+|pk_[a-z]+",
        r"[äöü]+ß",
        r"(?<=pin )\d+",
    ],
)
def test_patterns_that_people_write_are_taken(pattern: str) -> None:
    assert problem_of_pattern(re.compile(pattern)) is None
