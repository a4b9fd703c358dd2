"""Hide secrets in texts that are kept or shown, and spell out what no database takes.

What looks like a secret is hidden without a rule (`secrets.py`). An application adds rules of its own
(`Stepfast(mask=[…])`): the names of fields, and patterns of texts. They hold in the whole process from then on, wherever a
payload, a result, an error or a line of a log is shown.

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
from stepfast.telemetry.current_step import CURRENT
from stepfast.telemetry.mask_patterns import hide_matches, problem_of_pattern
from stepfast.telemetry.secrets import HIDDEN, hide_secrets, hide_values, is_secret_field

__all__ = [
    "HIDDEN", "Rule", "any_rules", "hidden_in", "hide", "hide_here", "hides", "hiding", "json_visible", "masked", "masked_document",
    "one_line", "rules", "storable", "visible", "without_data", "without_rules", "without_secrets",
]  # fmt: skip

Rule = str | re.Pattern[str]

SHORTEST_VALUE: Final = 3  # characters: hiding every "1" would leave no text at all
SHORTEST_SECRET: Final = 6  # ... of a field that only its name makes a secret
LONGEST_TWICE: Final = 10_000  # characters of a value that is looked for in quotations of quotations
LONGEST: Final = 180  # characters of a rule: it is kept in a row
_FIELDS: Final = re.compile(r"[\w*-]{1,100}(?:\.[\w*-]{1,100}){0,10}")
_PLAIN: Final = re.compile(r"[\w.-]*", re.ASCII)  # the same wherever it is quoted
_QUOTES: Final[tuple[Callable[[str], str], ...]] = (
    lambda text: repr(text)[1:-1],
    # Beside other quotes an apostrophe may need a mark that it does not need alone.
    lambda text: repr(f"\"'{text}")[4:-1],
    lambda text: ascii(text)[1:-1],
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
)

# Texts to hide, where it was said; otherwise those of the step that runs here.
_VALUES: Final[ContextVar[tuple[str, ...] | None]] = ContextVar("stepfast_hidden", default=None)


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


def _values() -> tuple[str, ...]:
    if (values := _VALUES.get()) is not None:
        return values
    step = CURRENT.get()
    hidden: tuple[str, ...] = getattr(step, "hidden", ())
    return hidden


class Rules:
    """The masking rules of one process. There are few, and mostly none."""

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
        """A report in which the rules are applied."""
        return self._masked(value, ()) if self._rules else value

    def masked_document(self, value: Any) -> Any:
        """A payload, a result or another JSON document as it may be shown: by the rules, and without what looks like a secret."""
        return self._masked(value, (), secrets=True)

    def values(self, value: Any) -> tuple[str, ...]:
        """The texts that are hidden in a JSON document, the longest first: they may be quoted anywhere."""
        found: set[str] = set()
        todo: list[tuple[Any, tuple[str, ...], int]] = [(value, (), 0)]  # no recursion: it may be deep
        while todo:
            part, path, least = todo.pop()
            match part:
                case dict():
                    for name, it in part.items():
                        below = (*path, str(name))
                        todo.append((it, below, least or self._shortest_hidden(below, it)))
                case list():
                    todo += [(it, path, least) for it in part]
                case bool():
                    continue  # "True" says nothing, and stands in many texts
                case str() | int() | float() if least and len(str(part)) >= least:
                    found |= quotations(str(part))
        return tuple(sorted(found, key=len, reverse=True))

    def cleaned(self, text: str) -> str:
        """A text in which the rules are applied, and the hidden arguments of the step that runs here are hidden."""
        for value in _values():
            text = text.replace(value, HIDDEN)
        if self._named is not None:
            text = hide_values(text, self._named)
        for pattern in self._texts:
            text = hide_matches(pattern, text, HIDDEN)
        return text

    def _shortest_hidden(self, path: tuple[str, ...], value: Any) -> int:
        """How long a value of this field must be to be hidden wherever it stands; 0: the field is shown."""
        if self.names(*path):
            return SHORTEST_VALUE
        return SHORTEST_SECRET if is_secret_field(path[-1], value) else 0

    def _hides(self, path: tuple[str, ...], value: Any, *, secrets: bool) -> bool:
        return self.names(*path) or (secrets and is_secret_field(path[-1], value))

    def _masked(self, value: Any, path: tuple[str, ...], *, secrets: bool = False) -> Any:
        match value:
            case dict():
                return {
                    name: HIDDEN
                    if self._hides((*path, str(name)), it, secrets=secrets)
                    else self._masked(it, (*path, str(name).lower()), secrets=secrets)
                    for name, it in value.items()
                }
            case list() | tuple():
                return [self._masked(it, path, secrets=secrets) for it in value]
            case str():
                cleaned = self.cleaned(value)
                return hide_secrets(cleaned) if secrets else cleaned
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
    """A rule as it was stored; one that no code of ours has stored is refused."""
    rule: Rule = text
    if text.startswith("re:"):
        try:
            _, flags, pattern = text.split(":", 2)
            rule = re.compile(pattern, int(flags))
        except (ValueError, re.error, RecursionError) as error:
            raise ConfigurationError(f"mask: {text!r} cannot be read ({error})") from error
    _check(rule)
    return rule


def _check(rule: object) -> None:
    if isinstance(rule, re.Pattern):
        if not isinstance(rule.pattern, str) or rule.search(""):
            raise ConfigurationError(f"mask: the pattern {rule.pattern!r} matches nothing at all, or no text")
        if (problem := problem_of_pattern(rule)) is not None:
            raise ConfigurationError(
                f"mask: the pattern {rule.pattern!r} could take hours for some texts: {problem}"
            )
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
    return re.compile(rf"\b(?:{names})\\?+['\"]?+\s{{0,5}}+[=:]\s{{0,5}}+", re.IGNORECASE)


_RULES: Final = Rules()

hide = _RULES.add
hides = _RULES.names
any_rules = _RULES.any
hidden_in = _RULES.values
masked = _RULES.masked
masked_document = _RULES.masked_document
rules = _RULES.all
without_rules = _RULES.cleaned

# Where libraries quote the data that they refuse: pydantic its input, PostgreSQL the row and the key, MariaDB the key.
# Each of them ends with the text at the latest, so that no attempt fails after a long look.
_QUOTED_DATA: Final = re.compile(
    r"(\binput_value=)[^\n]*?(?=, input_type=|$)"
    r"|(\bFailing row contains \()(?s:.*?)(?=\)\.?$|\Z)"
    r"|(\bKey \([^()\n]{0,200}\)=\()(?s:.*?)(?=\) (?:already|is|conflicts)|\Z)"
    r"|(\bDuplicate entry ')(?s:.*?)(?=' for key|\Z)",
    re.MULTILINE,
)
_SIGNS_OF_DATA: Final = ("input_value=", "Failing row contains (", "Key (", "Duplicate entry '")


def without_secrets(text: str) -> str:
    """The text without what looks like a secret, and storable."""
    # The rules first: they know whole values, of which the pattern may leave an end.
    return hide_secrets(without_rules(storable(text)))


def without_data(text: str) -> str:
    """The text without secrets, and without the data that libraries quote in their errors: fit for a log."""
    text = without_secrets(text)
    if not any(sign in text for sign in _SIGNS_OF_DATA):
        return text
    return _QUOTED_DATA.sub(lambda found: f"{found[1] or found[2] or found[3] or found[4]}{HIDDEN}", text)


def storable(text: str) -> str:
    """The text with characters that no database takes spelled out: NUL, and halves of characters from file names."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


# Characters that would move the cursor, change colours, end a line or turn the direction of reading, and halves of others,
# which no terminal takes.
_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_BREAK: Final = re.compile("[\t\n]")
_SPELLED: Final = {"\t": "\\t", "\n": "\\n"}


def visible(text: str) -> str:
    """The text with its control characters spelled out, except for tabs and ends of lines."""
    return text if text.isprintable() else _CONTROL.sub(_escaped, text)


def one_line(text: str) -> str:
    """The text with all its control characters spelled out, so that it is one line: none of its parts looks like another entry."""
    return text if text.isprintable() else _BREAK.sub(_escaped, _CONTROL.sub(_escaped, text))


def json_visible(document: str) -> str:
    """A JSON document with the control characters that JSON leaves as they are written as JSON writes others: \\u009b."""
    if document.isascii() and "\x7f" not in document:
        return document
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _SPELLED.get(found[0]) or (f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}")  # noqa: PLR2004 - as Python writes it
