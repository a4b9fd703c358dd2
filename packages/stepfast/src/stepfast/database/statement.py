"""SQL written once where SQLite, PostgreSQL and MariaDB agree, and with a text for one of them where they do not.

A statement may use `:name` parameters, the `{words}` of `dialects.Dialect`, and `{any_of:names}` for "is one of this
list"; how a list becomes a parameter is in `connection.as_parameter`. Rendered text per dialect is kept under tests/golden for review.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepfast.database.dialects import Dialect


_WORD = re.compile(r"\{(\w+)(?::(\w+))?\}")
# A parameter, or something a colon may legally stand in: a quoted text, a comment, a cast.
_PARAMETER = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|::|:([A-Za-z_]\w*)", re.DOTALL
)

_LIST = re.compile(r"CAST\((\$\d+) AS TEXT\[\]\)")


@dataclass(frozen=True, eq=False)
class Statement:
    text: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    _rendered: dict[str, str] = field(default_factory=dict, repr=False)

    def render(self, dialect: Dialect) -> str:
        """Return the text as `dialect` and its driver want to read it."""
        if (known := self._rendered.get(dialect.edition)) is not None:
            return known
        text = self.overrides.get(dialect.name, self.text)
        text = with_parameters(_WORD.sub(lambda word: _word(dialect, word[1], word[2]), text), dialect)
        return self._rendered.setdefault(dialect.edition, text) if dialect.edition else text


def sql(text: str, **overrides: str) -> Statement:
    """Declare a statement; give the reason of an override for one dialect in a comment.

    An override that is empty: the statement before it has done the work there, or the caller does not run it there.
    """
    return Statement(text, overrides)


def with_parameters(text: str, dialect: Dialect) -> str:
    """Spell `:name` the driver's way, and leave quoted texts, comments and casts alone."""
    return text if dialect.parameter == ":{}" else _spelled(text, dialect.parameter)


@lru_cache(maxsize=1_024)  # the user's own texts come here again and again
def _spelled(text: str, parameter: str) -> str:
    # `%` must be doubled everywhere, also in quotes: both drivers read the whole text as a format.
    return _PARAMETER.sub(
        lambda found: parameter.format(found[1]) if found[1] else found[0], text.replace("%", "%%")
    )


@lru_cache(maxsize=1_024)
def numbered(text: str, whole: frozenset[str]) -> tuple[str, tuple[str, ...]]:
    """`:name` as `$1` for asyncpg, and the names in that order; `whole` are those whose values are whole numbers.

    asyncpg asks the server for the type of each parameter: beside a small constant that would be a small integer, and
    a list that we have already written as a text would be a list.
    """
    names: list[str] = []

    def spelled(found: re.Match[str]) -> str:
        if not (name := found[1]):
            return found[0]
        if name not in names:
            names.append(name)
        place = f"${names.index(name) + 1}"
        return f"CAST({place} AS BIGINT)" if name in whole else place

    text = _PARAMETER.sub(spelled, text)
    return _LIST.sub(r"CAST(CAST(\1 AS TEXT) AS TEXT[])", text), tuple(names)


def _word(dialect: Dialect, word: str, argument: str | None) -> str:
    text = dialect.words[word]
    return text.format(argument) if argument else text
