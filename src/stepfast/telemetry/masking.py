"""Texts fit to be kept and shown: without what looks like a secret, and without what no database takes.

An application adds rules of its own (`Stepfast(mask=[…])`): the names of fields, and patterns of texts. They hold in
the whole process from then on, wherever a payload, a result, an error or a line of a log is shown.
"""

from __future__ import annotations

import re
from typing import Final

from stepfast.telemetry.mask_rules import HIDDEN, Rule, Rules, hide_here, hiding

__all__ = [
    "HIDDEN", "Rule", "any_rules", "hidden_in", "hide", "hide_here", "hides", "hiding", "masked", "rules", "storable",
    "visible", "without_data", "without_rules", "without_secrets",
]  # fmt: skip

# Every repetition is bounded or anchored: a message of a megabyte must not hold the process up.
_SECRET: Final = re.compile(
    r"(\b[a-z][a-z0-9+.-]{0,20}://[^\s:/@]{0,200}):[^\s@]{1,500}@"
    r"|(\b\w{0,30}(?:password|passwd|pwd|secret|token|(?:api|account|access)[_-]?key|\bsig(?:nature)?)['\"]?\s{0,5}[=:]\s{0,5}['\"]?)[^\s'\",;&]+"
    r"|(\bbearer\s{1,5}|\bauthorization['\"]?\s{0,5}[:=]\s{0,5}['\"]?\w{1,20}\s{1,5})[\w.~+/=-]{4,}"
    # Words by which others, and we, mark a secret.
    r"|(\b(?:whsec_|sk_(?:live|test)_|rk_live_|gh[pousr]_|github_pat_|xox[abeprs]-|AKIA|AIza))[\w-]{6,}",
    re.IGNORECASE,
)
# Where libraries quote the data that they refuse: pydantic its input, PostgreSQL the row and the key, MariaDB the key.
_QUOTED_DATA: Final = re.compile(
    r"(\binput_value=)(?:(?!, input_type=)[^\n]){0,2000}(?=, input_type=|$)"
    r"|(\bFailing row contains \()[^\n]{0,4000}"
    r"|(\bKey \([^()\n]{0,200}\)=\()[^\n]{0,2000}?(?=\) (?:already|is|conflicts)|$)"
    r"|(\bDuplicate entry ')[^\n]{0,2000}?(?=' for key|$)",
    re.MULTILINE,
)

# What would move the cursor, change colours or turn the direction of reading.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

_RULES: Final = Rules()

hide = _RULES.add  # from now on, in this process
hides = _RULES.names  # whether a field of this name is hidden
any_rules = _RULES.any  # whether anybody gave one
hidden_in = _RULES.values  # what they hide in a value of JSON, as texts
masked = _RULES.masked  # a value of JSON without what the rules hide
rules = _RULES.all  # those that hold here
without_rules = _RULES.cleaned  # a text without what the rules hide


def without_secrets(text: str) -> str:
    """Fit to be kept and shown: without what looks like a secret, and storable."""
    # The rules first: they know whole values, of which the pattern may leave an end.
    return _SECRET.sub(
        lambda found: f"{found[1]}:***@" if found[1] else f"{found[2] or found[3] or found[4]}***",
        without_rules(storable(text)),
    )


def without_data(text: str) -> str:
    """Fit for a log that many read: also without the data that libraries quote in their complaints."""
    return _QUOTED_DATA.sub(
        lambda found: f"{found[1] or found[2] or found[3] or found[4]}***", without_secrets(text)
    )


def storable(text: str) -> str:
    """The text with what no database takes spelled out: NUL characters, and halves of characters from file names."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def visible(text: str) -> str:
    """The text with its control characters spelled out, except for tabs and ends of lines."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
