"""Hide secrets in texts that are kept or shown, and spell out what no database takes.

An application adds rules of its own (`Stepfast(mask=[…])`): the names of fields, and patterns of texts. They hold in
the whole process from then on, wherever a payload, a result, an error or a line of a log is shown.

A rule that is a text names fields: `password` whatever it belongs to, `card.*` all fields of a card, `customer.mail` one
field. `*` stands for any letters of one name; upper and lower case are the same. A field that is named is hidden with
everything in it. In a text without structure, such as the message of an error, the last name counts: `mail=…` and
`'mail': …` are hidden there. A rule that is a compiled pattern is hidden wherever it matches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import quote, quote_plus

from stepfast.errors import ConfigurationError

__all__ = [
    "HIDDEN", "Rule", "any_rules", "hidden_in", "hide", "hide_here", "hides", "hiding", "masked", "rules", "storable",
    "visible", "without_data", "without_rules", "without_secrets",
]  # fmt: skip

Rule = str | re.Pattern[str]

HIDDEN: Final = "***"
SHORTEST_VALUE: Final = 3  # characters: hiding every "1" would leave no text at all
LONGEST_TWICE: Final = 10_000  # characters of a value that is looked for in quotations of quotations
LONGEST: Final = 180  # characters of a rule: it is kept in a row
_FIELDS: Final = re.compile(r"[\w*-]{1,100}(?:\.[\w*-]{1,100}){0,10}")
# What may follow a name: quoted, a small document or list, or a word. Bounded, as everything here.
_VALUE: Final = (
    r"""(?:\\"[^"\n]{0,99999}"?|\\'[^'\n]{0,99999}'?"""  # quoted inside a quotation
    r"""|"(?:[^"\\\n]|\\.){0,99999}"?|'(?:[^'\\\n]|\\.){0,99999}'?"""
    r"""|\{[^{}\n]{0,9999}\}|\[[^\[\]\n]{0,9999}\]|[^\s,;&)}\]'"]{1,9999})"""
)

_PLAIN: Final = re.compile(r"[\w.-]*", re.ASCII)  # the same wherever it is quoted
_QUOTES: Final[tuple[Callable[[str], str], ...]] = (
    lambda text: repr(text)[1:-1],
    # Beside other quotes an apostrophe may need a mark that it does not need alone.
    lambda text: repr(f"\"'{text}")[4:-1],
    lambda text: ascii(text)[1:-1],
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
)

# What the rules hide in the arguments of the step that runs here.
_VALUES: Final[ContextVar[tuple[str, ...]]] = ContextVar("stepfast_hidden", default=())


@contextmanager
def hiding(values: tuple[str, ...]) -> Iterator[None]:
    """Hide these texts wherever they appear, in this block."""
    before = _VALUES.set(values)
    try:
        yield
    finally:
        _VALUES.reset(before)


def hide_here(values: tuple[str, ...]) -> None:
    """Hide these texts wherever they appear, for the rest of this context."""
    _VALUES.set(values)


class Rules:
    """The masking rules of one process. There are few, and mostly none: then nothing here costs anything."""

    def __init__(self) -> None:
        self._rules: dict[str, Rule] = {}
        self._fields: list[tuple[str, ...]] = []
        self._texts: list[re.Pattern[str]] = []
        self._named: re.Pattern[str] | None = None

    def add(self, given: Iterable[Rule]) -> tuple[Rule, ...]:
        """Check rules, and apply them from now on; returns them."""
        if isinstance(given, str | re.Pattern):
            raise ConfigurationError(f"mask={given!r}: give a list of rules")
        rules = tuple(given)
        for rule in rules:
            _check(rule)
        for rule in rules:
            if spelled(rule) in self._rules:
                continue
            self._rules[spelled(rule)] = rule
            if isinstance(rule, str):
                self._fields.append(tuple(rule.lower().split(".")))
            else:
                self._texts.append(rule)
        self._named = _named(self._fields)
        return rules

    def any(self) -> bool:
        """Whether there are rules."""
        return bool(self._rules)

    def all(self) -> list[str]:
        """All rules, as they are stored."""
        return sorted(self._rules)

    def names(self, *path: str) -> bool:
        """Whether the field at the end of `path` is hidden."""
        return any(_fits(path, parts) for parts in self._fields)

    def masked(self, value: Any) -> Any:
        """A JSON value in which the rules are applied."""
        return self._masked(value, ()) if self._rules else value

    def values(self, value: Any) -> tuple[str, ...]:
        """The texts that the rules hide in a JSON value, the longest first: they may be quoted anywhere."""
        found: set[str] = set()
        self._collect(value, (), found, hidden=False)
        return tuple(sorted(found, key=len, reverse=True))

    def cleaned(self, text: str) -> str:
        """A text in which the rules are applied, and the hidden arguments of the step that runs here are hidden."""
        for value in _VALUES.get():
            text = text.replace(value, HIDDEN)
        if self._named is not None:
            text = self._named.sub(lambda found: f"{found[1]}{HIDDEN}", text)
        for pattern in self._texts:
            text = pattern.sub(HIDDEN, text)
        return text

    def _collect(self, value: Any, path: tuple[str, ...], found: set[str], *, hidden: bool) -> None:
        match value:
            case dict():
                for name, it in value.items():
                    below = (*path, str(name))
                    self._collect(it, below, found, hidden=hidden or self.names(*below))
            case list():
                for it in value:
                    self._collect(it, path, found, hidden=hidden)
            case bool():
                return  # "True" says nothing, and stands in many texts
            case str() | int() | float() if hidden and len(str(value)) >= SHORTEST_VALUE:
                found |= quotations(str(value))

    def _masked(self, value: Any, path: tuple[str, ...]) -> Any:
        match value:
            case dict():
                return {
                    name: HIDDEN
                    if self.names(*path, str(name))
                    else self._masked(it, (*path, str(name).lower()))
                    for name, it in value.items()
                }
            case list() | tuple():
                return [self._masked(it, path) for it in value]
            case str():
                return self.cleaned(value)
            case int() | float() if self._texts and self.cleaned(str(value)) != str(value):
                return HIDDEN
            case _:
                return value


def quotations(text: str) -> set[str]:
    """The text, and how it looks where Python, JSON or an address quotes it, once or twice."""
    if _PLAIN.fullmatch(text):
        return {text}
    once = {text} | {quoted(text) for quoted in _QUOTES}
    twice = {quoted(it) for it in once for quoted in _QUOTES} if len(text) <= LONGEST_TWICE else set()
    return (
        once
        | twice
        | {
            quote(text, "", errors="replace"),
            quote(text, errors="replace"),
            quote_plus(text, errors="replace"),
        }
    )


def spelled(rule: Rule) -> str:
    """A rule as it is stored: a pattern with its flags in front."""
    return rule if isinstance(rule, str) else f"re:{rule.flags & ~re.UNICODE:d}:{rule.pattern}"


def read(text: str) -> Rule:
    """A rule as it was stored."""
    if not text.startswith("re:"):
        return text
    _, flags, pattern = text.split(":", 2)
    return re.compile(pattern, int(flags))


def _check(rule: object) -> None:
    if isinstance(rule, re.Pattern):
        if not isinstance(rule.pattern, str) or rule.search(""):
            raise ConfigurationError(f"mask: the pattern {rule.pattern!r} matches nothing at all, or no text")
    elif not isinstance(rule, str) or not _FIELDS.fullmatch(rule) or not rule.strip("*."):
        raise ConfigurationError(
            f"mask: {rule!r} is no rule; name fields ('password', 'card.*'), or give a compiled pattern"
        )
    if len(spelled(rule)) > LONGEST:
        raise ConfigurationError(f"mask: a rule of {len(spelled(rule))} characters; at most {LONGEST}")


def _fits(path: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Whether the end of the path matches the rule."""
    if len(path) < len(parts):
        return False
    end = path[len(path) - len(parts) :]
    return all(fnmatchcase(name.lower(), part) for name, part in zip(end, parts, strict=True))


def _named(fields: list[tuple[str, ...]]) -> re.Pattern[str] | None:
    """A pattern of the fields in a text: the last name of each that is not just `*`, and the value behind it."""
    if not fields:
        return None
    last = {next(part for part in reversed(parts) if part.strip("*")) for parts in fields}
    names = "|".join(sorted(re.escape(it).replace(r"\*", r"[\w-]{0,50}") for it in last))
    return re.compile(rf"(\b(?:{names})\\?['\"]?\s{{0,5}}[=:]\s{{0,5}}){_VALUE}", re.IGNORECASE)


_RULES: Final = Rules()

hide = _RULES.add
hides = _RULES.names
any_rules = _RULES.any
hidden_in = _RULES.values
masked = _RULES.masked
rules = _RULES.all
without_rules = _RULES.cleaned

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

# Characters that would move the cursor, change colours or turn the direction of reading.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def without_secrets(text: str) -> str:
    """The text without what looks like a secret, and storable."""
    # The rules first: they know whole values, of which the pattern may leave an end.
    return _SECRET.sub(
        lambda found: f"{found[1]}:***@" if found[1] else f"{found[2] or found[3] or found[4]}***",
        without_rules(storable(text)),
    )


def without_data(text: str) -> str:
    """The text without secrets, and without the data that libraries quote in their errors: fit for a log."""
    return _QUOTED_DATA.sub(
        lambda found: f"{found[1] or found[2] or found[3] or found[4]}***", without_secrets(text)
    )


def storable(text: str) -> str:
    """The text with characters that no database takes spelled out: NUL, and halves of characters from file names."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def visible(text: str) -> str:
    """The text with its control characters spelled out, except for tabs and ends of lines."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
