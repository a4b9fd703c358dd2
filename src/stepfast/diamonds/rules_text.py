"""A file of rules as text: what JSON or CSV it is, and on which line each rule stands."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from stepfast.errors import ConfigurationError
from stepfast.wording import counted

PRICING: Final = ("priority", "stone_type", "price_min", "price_max", "feed", "margin_modifier", "rating")
OTHER_SEPARATORS: Final = {";": "semicolons", "\t": "tabs", "|": "bars"}
TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:]')
RULE_DEPTH: Final = 3  # in an object, in a list, in an object

Lines = Mapping[str, list[int]]  # of pricing and rating rules, in their order


class RulesError(ConfigurationError):
    """The file cannot be used; each of its problems is a line."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(
            f"the rules have {counted(len(problems), 'problem')}; nothing was imported: {'; '.join(problems)}"
        )


def from_json(text: str) -> Any:
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=str, object_pairs_hook=_once)
    except ValueError as error:
        raise RulesError([f"it is no JSON: {error}"]) from None
    except RecursionError:
        raise RulesError(["it is no JSON that a rule set could be: nested too deeply"]) from None


def from_csv(text: str) -> Any:
    _refuse_other_separators(text)
    try:
        lines = list(_reader(text))
    except csv.Error as error:
        raise RulesError([f"it is no CSV: {error}"]) from None
    if not lines:
        raise RulesError([f"it has no rules; the first line is {','.join(PRICING)}"])
    return {"pricing": [dict(filter(_filled, line.items())) for line in lines]}


def lines_of(text: str, *, as_csv: bool) -> Lines:
    """Where the rules of a file stand that could be read."""
    return {"pricing": _lines_of_csv(text)} if as_csv else _lines_of_json(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a field that is given twice JSON keeps the last, without a word: one of them is not what somebody meant."""
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RulesError([f"{', '.join(twice)}: given twice in {{{', '.join(names)[:80]}}}"])
    return dict(pairs)


def _reader(text: str) -> csv.DictReader[str]:
    return csv.DictReader(io.StringIO(text), restkey="further columns", strict=True)


def _filled(field: tuple[str, Any]) -> bool:
    """An empty field is one that was left out."""
    return any(field[1]) if isinstance(field[1], list) else field[1] not in {None, ""}


def _refuse_other_separators(text: str) -> None:
    """As spreadsheets write it in half of the world, with a comma in numbers."""
    head = text.partition("\n")[0]
    for separator, name in OTHER_SEPARATORS.items():
        if separator in head and "," not in head:
            cure = "save it with commas between them and a point in numbers"
            where = "in a spreadsheet choose the field delimiter , when you save it as CSV"
            raise RulesError([f"its columns are separated by {name}; {cure}: {where}"])


def _lines_of_csv(text: str) -> list[int]:
    reader = _reader(text)
    return [reader.line_num for _ in reader]


def _lines_of_json(text: str) -> Lines:
    found: dict[str, list[int]] = {}
    depth, line, at, name = 0, 1, 0, ""
    for token in TOKEN.finditer(text):
        line, at = line + text.count("\n", at, token.start()), token.start()
        if token[0] in "{[":
            depth += 1
            if depth == RULE_DEPTH:
                found.setdefault(name, []).append(line)
        elif token[0] in "}]":
            depth -= 1
        elif depth == 1 and token[0] != ":":
            name = json.loads(token[0])
    return found
