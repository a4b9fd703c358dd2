"""A rule set in a file: JSON for all of it, CSV for pricing rules alone. All problems are reported at once."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from stepfast.applications import counted
from stepfast.errors import ConfigurationError
from stepfast_diamonds import rules
from stepfast_diamonds.money import number
from stepfast_diamonds.pricing import BASE_MARGINS, PricingRule, StoneType
from stepfast_diamonds.rating import FALLBACK, RANGES, WORDS, RatingRule, Span
from stepfast_diamonds.rules import RuleSet

T = TypeVar("T")
RULE_SET_FIELDS: Final = ("name", "base_margins", "pricing", "rating", "rating_fallback", "empty")
PRICING_FIELDS: Final = (
    "priority",
    "stone_type",
    "price_min",
    "price_max",
    "feed",
    "margin_modifier",
    "rating",
)
RATING_FIELDS: Final = ("priority", "rating", "feed", "lab_grown", *RANGES, *WORDS)
LONGEST: Final = 200
MOST_DECIMALS: Final = 2
MOST_RULES: Final = 10_000


class RulesError(ConfigurationError):
    """The file cannot be used; each of its problems is a line."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(
            f"the rules have {counted(len(problems), 'problem')}; nothing was imported: {'; '.join(problems)}"
        )


def read_rules(text: str, *, as_csv: bool = False) -> RuleSet:
    """The rule set of a file, checked in every way. Raises `RulesError` with all that is wrong."""
    reader = _RulesReader()
    found = reader.rule_set(from_csv(text) if as_csv else from_json(text))
    if not reader.problems:  # a rule that could not be read would look like a gap
        reader.problems += rules.problems(found)
    if reader.problems:
        raise RulesError(reader.problems)
    return found


def written(it: RuleSet) -> dict[str, Any]:
    """A set as the JSON of such a file; decimals as texts."""
    return {
        "name": it.name,
        "base_margins": {str(kind): _digits(margin) for kind, margin in it.margins.items()},
        "empty": it.empty,
        "rating_fallback": it.fallback,
        "pricing": [
            {
                "priority": rule.priority,
                "stone_type": rule.stone_type,
                "price_min": _digits(rule.price_min),
                "price_max": None if rule.price_max is None else _digits(rule.price_max),
                "feed": rule.feed,
                "margin_modifier": _digits(rule.margin_modifier),
                "rating": rule.rating,
            }
            for rule in it.pricing
        ],
        "rating": [
            {"priority": rule.priority, "rating": rule.rating, **conditions_of(rule)} for rule in it.rating
        ],
    }


def conditions_of(rule: RatingRule) -> dict[str, Any]:
    """The conditions of a rule, without those that accept any stone."""
    found: dict[str, Any] = {"feed": rule.feed, "lab_grown": rule.lab_grown}
    for name, span in rule.ranges.items():
        ends = {"min": span.low, "max": span.high}
        found[name] = {end: _digits(value) for end, value in ends.items() if value is not None}
    found |= {name: sorted(wanted) for name, wanted in rule.words.items()}
    return {name: value for name, value in found.items() if value is not None}


def rating_rule(priority: int, rating: int, conditions: Mapping[str, Any]) -> RatingRule:
    """A rating rule from its stored conditions: the inverse of `conditions_of`."""
    reader = _RulesReader()
    found = reader.rating_rule({"priority": priority, "rating": rating, **conditions}, "rating rule")
    if found is None or reader.problems:
        raise RulesError(reader.problems)
    return found


def _digits(value: Decimal) -> str:
    """A number in one spelling: 500, 500.0 and 5E+2 are the same."""
    return f"{value.normalize():f}"


class _RulesReader:
    """Reads on after a problem, so that all of them are found."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def rule_set(self, given: Any) -> RuleSet:
        if not isinstance(given, dict):
            self.problems.append(f"a rule set is an object with {', '.join(RULE_SET_FIELDS)}")
            return RuleSet()
        self._known(given, RULE_SET_FIELDS, "the rule set")
        return RuleSet(
            name=self._text(given.get("name", ""), "name") or "",
            margins=self._margins(given.get("base_margins")),
            pricing=self._list(given.get("pricing"), "pricing", self.pricing_rule),
            rating=self._list(given.get("rating"), "rating", self.rating_rule),
            fallback=self._whole(given.get("rating_fallback", FALLBACK), "rating_fallback"),
            empty=self._truth(given.get("empty", False), "empty") or False,
        )

    def pricing_rule(self, given: dict[str, Any], what: str) -> PricingRule | None:
        before = len(self.problems)
        self._known(given, PRICING_FIELDS, what)
        for name in ("priority", "margin_modifier"):
            if given.get(name) is None:
                self.problems.append(f"{what} has no {name}")
        rating = given.get("rating")
        found = PricingRule(
            priority=self._whole(given.get("priority", 0), f"{what}: priority"),
            stone_type=self._stone_type(given.get("stone_type"), what),
            price_min=self._decimal(given.get("price_min", 0), f"{what}: price_min") or Decimal(0),
            price_max=self._decimal(given.get("price_max"), f"{what}: price_max"),
            feed=self._text(given.get("feed"), f"{what}: feed"),
            margin_modifier=self._decimal(given.get("margin_modifier", 0), f"{what}: margin_modifier")
            or Decimal(0),
            rating=None if rating is None else self._whole(rating, f"{what}: rating"),
        )
        return found if len(self.problems) == before else None

    def rating_rule(self, given: dict[str, Any], what: str) -> RatingRule | None:
        before = len(self.problems)
        self._known(given, RATING_FIELDS, what)
        for name in ("priority", "rating"):
            if given.get(name) is None:
                self.problems.append(f"{what} has no {name}")
        found = RatingRule(
            priority=self._whole(given.get("priority", 0), f"{what}: priority"),
            rating=self._whole(given.get("rating", FALLBACK), f"{what}: rating"),
            feed=self._text(given.get("feed"), f"{what}: feed"),
            lab_grown=self._truth(given.get("lab_grown"), f"{what}: lab_grown"),
            ranges={
                name: self._span(given[name], f"{what}: {name}")
                for name in RANGES
                if given.get(name) is not None
            },
            words={
                name: self._words(given[name], f"{what}: {name}")
                for name in WORDS
                if given.get(name) is not None
            },
        )
        return found if len(self.problems) == before else None

    def _known(self, given: Mapping[Any, Any], names: Iterable[str], what: str) -> None:
        for name in given:
            if name not in names:
                near = get_close_matches(str(name), list(names), n=1)
                hint = f"did you mean {near[0]}?" if near else f"it may have {', '.join(names)}"
                self.problems.append(f"{what} has {str(name)[:40]!r}; {hint}")

    def _list(self, given: Any, name: str, read: Callable[[dict[str, Any], str], T | None]) -> tuple[T, ...]:
        if given is None:
            return ()
        if not isinstance(given, list):
            self.problems.append(f"{name} is a list of rules")
            return ()
        if len(given) > MOST_RULES:
            self.problems.append(f"{name} has {len(given):,} rules; at most {MOST_RULES:,}")
            return ()
        found: list[T] = []
        for place, it in enumerate(given, start=1):
            what = f"{name} rule {place}"
            if not isinstance(it, dict):
                self.problems.append(f"{what} is an object")
            elif (rule := read(it, what)) is not None:
                found.append(rule)
        return tuple(found)

    def _margins(self, given: Any) -> dict[StoneType, Decimal]:
        margins = dict(BASE_MARGINS)
        if given is None:
            return margins
        if not isinstance(given, dict):
            self.problems.append(
                "base_margins is an object: a margin in percent for natural, lab and fancy stones"
            )
            return margins
        self._known(given, [str(it) for it in StoneType], "base_margins")
        for kind in StoneType:
            if kind in given:
                margins[kind] = self._decimal(given[kind], f"base_margins: {kind}") or Decimal(0)
        return margins

    def _stone_type(self, given: Any, what: str) -> StoneType | None:
        if given is None:
            return None
        if given not in {str(it) for it in StoneType}:
            self.problems.append(f"{what}: stone_type {str(given)[:40]!r} is none of {', '.join(StoneType)}")
            return None
        return StoneType(given)

    def _decimal(self, given: Any, what: str) -> Decimal | None:
        if given is None:
            return None
        found = number(given)
        exponent = 0 if found is None else found.normalize().as_tuple().exponent
        if found is None or not isinstance(exponent, int) or abs(found.adjusted()) > LONGEST:
            self.problems.append(f"{what} {str(given)[:40]!r} is no number")
            return None
        if -exponent > MOST_DECIMALS and "ratio" not in what:
            self.problems.append(f"{what} {given} has more than {MOST_DECIMALS} decimals")
        return found

    def _whole(self, given: Any, what: str) -> int:
        found = number(given)
        if found is None or found != found.to_integral_value() or abs(found) > 10**9:
            self.problems.append(f"{what} {str(given)[:40]!r} is no whole number")
            return 0
        return int(found)

    def _truth(self, given: Any, what: str) -> bool | None:
        if given is None or isinstance(given, bool):
            return given
        self.problems.append(f"{what} {str(given)[:40]!r} is neither true nor false")
        return None

    def _text(self, given: Any, what: str) -> str | None:
        if given is None or (isinstance(given, str) and len(given) <= LONGEST and given.isprintable()):
            return given or None
        self.problems.append(f"{what} {str(given)[:40]!r} is no text of at most {LONGEST} characters")
        return None

    def _span(self, given: Any, what: str) -> Span:
        if not isinstance(given, dict) or not given:
            self.problems.append(f'{what} is a range: {{"min": …, "max": …}}, of which one may be missing')
            return Span(None, None)
        self._known(given, ("min", "max"), what)
        return Span(
            self._decimal(given.get("min"), f"{what} min"), self._decimal(given.get("max"), f"{what} max")
        )

    def _words(self, given: Any, what: str) -> frozenset[str]:
        if not isinstance(given, list) or not all(isinstance(it, str) for it in given):
            self.problems.append(f"{what} is a list of texts")
            return frozenset()
        return frozenset(it.strip().upper() for it in given)


OTHER_SEPARATORS: Final = {";": "semicolons", "\t": "tabs", "|": "bars"}


def from_json(text: str) -> Any:
    try:
        return json.loads(
            text, parse_float=Decimal, parse_constant=str, object_pairs_hook=_without_repeated_fields
        )
    except ValueError as error:
        raise RulesError([f"it is no JSON: {error}"]) from None
    except RecursionError:
        raise RulesError(["it is no JSON that a rule set could be: nested too deeply"]) from None


def _without_repeated_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a field that is given twice: JSON would silently keep the last."""
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RulesError([f"{', '.join(twice)}: given twice in {{{', '.join(names)[:80]}}}"])
    return dict(pairs)


def from_csv(text: str) -> Any:
    _refuse_other_separators(text)
    try:
        lines = list(_csv_reader(text))
    except csv.Error as error:
        raise RulesError([f"it is no CSV: {error}"]) from None
    if not lines:
        raise RulesError([f"it has no rules; the first line is {','.join(PRICING_FIELDS)}"])
    return {"pricing": [dict(filter(_filled, line.items())) for line in lines]}


def _csv_reader(text: str) -> csv.DictReader[str]:
    return csv.DictReader(io.StringIO(text), restkey="further columns", strict=True)


def _filled(field: tuple[str, Any]) -> bool:
    """Whether a field of CSV has a value: an empty one counts as left out."""
    return any(field[1]) if isinstance(field[1], list) else field[1] not in {None, ""}


def _refuse_other_separators(text: str) -> None:
    """Refuse CSV as spreadsheets write it in half of the world, with semicolons and a comma in numbers."""
    head = text.partition("\n")[0]
    for separator, name in OTHER_SEPARATORS.items():
        if separator in head and "," not in head:
            cure = "save it with commas between them and a point in numbers"
            where = "in a spreadsheet choose the field delimiter , when you save it as CSV"
            raise RulesError([f"its columns are separated by {name}; {cure}: {where}"])


Lines = Mapping[str, list[int]]  # of pricing and rating rules, in their order
JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:]')
RULE_DEPTH: Final = 3  # in an object, in a list, in an object


def lines_of(text: str, *, as_csv: bool) -> Lines:
    """The lines on which the rules of a readable file stand."""
    return {"pricing": _lines_of_csv(text)} if as_csv else _lines_of_json(text)


def _lines_of_csv(text: str) -> list[int]:
    reader = _csv_reader(text)
    return [reader.line_num for _ in reader]


def _lines_of_json(text: str) -> Lines:
    found: dict[str, list[int]] = {}
    depth, line, at, name = 0, 1, 0, ""
    for token in JSON_TOKEN.finditer(text):
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
