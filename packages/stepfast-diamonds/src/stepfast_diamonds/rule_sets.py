"""Rule sets in the database: written once, never changed. The active one is named by one row, moved under its lock.

A run begins with the set that is active at that moment, and keeps it to its end. A set that was removed or changed by
hand is not used: a run that has no other one is held until a set is imported.

Doubts about a set are reported and do not keep it from being stored: a word that no stone has makes a rule that never
applies, but the word may be new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from stepfast import sql
from stepfast.applications import moment
from stepfast.errors import HeldError, NotFoundError, SchemaError, StateError
from stepfast_diamonds import rules
from stepfast_diamonds.mapping_words import GRADES, INTENSITIES, SAME_SHAPE
from stepfast_diamonds.money import stored
from stepfast_diamonds.pricing import PricingRule, StoneType
from stepfast_diamonds.rules import RuleSet, default_rules, problems
from stepfast_diamonds.rules_file import RulesError, conditions_of, rating_rule, written
from stepfast_diamonds.simulator import vocabulary

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from stepfast import Transaction
    from stepfast_diamonds.rules_file import Lines


SEED = "stepfast diamonds migrate"
NOT_ACTIVE: Final = "no rule set is active; run `stepfast diamonds migrate` once, or import one: stepfast diamonds rules import FILE"
_ACTIVE = "SELECT version, previous FROM pricing_active WHERE id = 1"
READ_ACTIVE = sql(_ACTIVE)
LOCK_ACTIVE = sql(_ACTIVE + " {for_update}")
BEGIN_ACTIVE = sql(
    "INSERT INTO pricing_active (id, version, changed_at) VALUES (1, 0, {now}) {keep_existing}"
)
SWITCH_ACTIVE = sql("""
    UPDATE pricing_active SET previous = version, version = :version, changed_at = {now}
     WHERE id = 1 AND version = :before
""")
# A number is never given twice, also if its set was deleted: stones and runs still name it.
LAST_VERSION = sql("""
    SELECT max(v.version)
      FROM (SELECT max(version) AS version FROM pricing_rule_sets
            UNION ALL SELECT max(version) FROM pricing_active
            UNION ALL SELECT max(previous) FROM pricing_active
            UNION ALL SELECT max(version) FROM pricing_pins
            UNION ALL SELECT max(ruleset_version) FROM diamonds) v
""")
FIND_SAME_RULES = sql("SELECT min(version) FROM pricing_rule_sets WHERE digest = :digest")
ADD_RULE_SET = sql("""
    INSERT INTO pricing_rule_sets (version, name, margin_natural, margin_lab, margin_fancy, rating_fallback,
                                   declared_empty, digest, created_at, created_by)
    VALUES (:version, :name, :natural, :lab, :fancy, :fallback, :empty, :digest, {now}, :by)
""")
ADD_PRICING_RULES = sql("""
    INSERT INTO pricing_rules (version, number, priority, stone_type, price_min, price_max, feed, margin_modifier, rating)
    VALUES (:version, :number, :priority, :stone_type, :price_min, :price_max, :feed, :margin_modifier, :rating)
""")
ADD_RATING_RULES = sql("""
    INSERT INTO rating_rules (version, number, priority, rating, conditions)
    VALUES (:version, :number, :priority, :rating, :conditions)
""")
FIND_RULE_SET = sql("""
    SELECT name, margin_natural, margin_lab, margin_fancy, rating_fallback, declared_empty, digest
      FROM pricing_rule_sets WHERE version = :version
""")
FORGET_RULE_SET = sql("DELETE FROM pricing_rule_sets WHERE version = :version")
FORGET_PRICING_RULES = sql("DELETE FROM pricing_rules WHERE version = :version")
FORGET_RATING_RULES = sql("DELETE FROM rating_rules WHERE version = :version")
READ_PRICING_RULES = sql("""
    SELECT priority, stone_type, price_min, price_max, feed, margin_modifier, rating
      FROM pricing_rules WHERE version = :version ORDER BY number
""")
READ_RATING_RULES = sql(
    "SELECT priority, rating, conditions FROM rating_rules WHERE version = :version ORDER BY number"
)
LIST_FEEDS_AND_TYPES = sql("""
    SELECT DISTINCT feed, CASE WHEN fancy_color IS NOT NULL THEN 'fancy' WHEN lab_grown = 1 THEN 'lab' ELSE 'natural' END
      FROM diamonds
""")
PIN_RULE_SET = sql("""
    INSERT INTO pricing_pins (run_id, feed, version, pinned_at) VALUES (:run_id, :feed, :version, {now})
""")
READ_PIN = sql("SELECT version, pinned_at FROM pricing_pins WHERE run_id = :run_id")
LIST_RULE_SETS = sql("""
    SELECT s.version, s.name, s.created_at, s.created_by, s.declared_empty, CASE WHEN a.version IS NULL THEN 0 ELSE 1 END,
           (SELECT count(*) FROM pricing_rules p WHERE p.version = s.version),
           (SELECT count(*) FROM rating_rules r WHERE r.version = s.version),
           (SELECT count(*) FROM diamonds d WHERE d.ruleset_version = s.version)
      FROM pricing_rule_sets s LEFT JOIN pricing_active a ON a.id = 1 AND a.version = s.version
     ORDER BY s.version DESC LIMIT :limit
""")


@dataclass(frozen=True)
class RuleSetReport:
    """A rule set as an operator sees it."""

    version: int
    name: str
    created_at: datetime
    created_by: str
    declared_empty: bool
    active: bool
    pricing_rules: int
    rating_rules: int
    stones: int  # that are priced by it


class Imported(NamedTuple):
    version: int
    created: bool  # False: the same rules had been imported before
    restored: bool = False  # they were, and a part of them had been removed or changed by hand
    activated: bool = False  # the active set could not be used, so this one is active now
    before: int = 0  # the active set before


class Activated(NamedTuple):
    before: int
    version: int


def add_default_rules(tx: Transaction) -> None:
    """Store the default rules as version 1, and activate them, unless there was a set before: then a person chooses."""
    tx.run(BEGIN_ACTIVE)
    if _lock_active(tx) == 0 and not tx.first(LAST_VERSION):
        tx.run(SWITCH_ACTIVE, version=_add_rule_set(tx, default_rules(), SEED), before=0)


def import_rules(tx: Transaction, it: RuleSet, by: str) -> Imported:
    """Store a set under the next number. It prices nothing before it is activated, unless the active set cannot be used.

    Rules that are stored already, and were damaged since, are stored again under their number.
    """
    _refuse_problems(it)
    tx.run(BEGIN_ACTIVE)
    before = _lock_active(tx)  # one number at a time
    known = tx.first(FIND_SAME_RULES, digest=digest(it))
    restored = known is not None and not is_usable(tx, int(known))
    if known is None:
        version = _add_rule_set(tx, it, by)
    else:
        version = int(known)
        if restored:
            _add_rule_set(tx, it, by, version)
    needed = not is_usable(tx, before) and not problems(it, stones_present(tx))
    activated = needed and tx.run(SWITCH_ACTIVE, version=version, before=before) == 1
    return Imported(version, known is None, restored, activated, before)


def _add_rule_set(tx: Transaction, it: RuleSet, by: str, version: int | None = None) -> int:
    """Store a set under the next number, or what is left of one anew under its own."""
    if version is None:
        version = int(tx.first(LAST_VERSION) or 0) + 1
    for statement in (
        FORGET_RULE_SET,
        FORGET_PRICING_RULES,
        FORGET_RATING_RULES,
    ):  # also rows without their set
        tx.run(statement, version=version)
    margins = {str(kind): str(margin) for kind, margin in it.margins.items()}
    shown = {
        "name": it.name,
        "fallback": it.fallback,
        "empty": int(it.empty),
        "digest": digest(it),
        "by": by[:200],
    }
    tx.run(ADD_RULE_SET, version=version, **shown, **margins)
    file = written(it)
    numbered = [
        {"version": version, "number": number}
        for number in range(1, 1 + max(len(it.pricing), len(it.rating)))
    ]
    tx.run_many(
        ADD_PRICING_RULES, [{**n, **rule} for n, rule in zip(numbered, file["pricing"], strict=False)]
    )
    tx.run_many(
        ADD_RATING_RULES, [_rating_row(n, rule) for n, rule in zip(numbered, it.rating, strict=False)]
    )
    return version


def _rating_row(numbered: dict[str, int], rule: Any) -> dict[str, Any]:
    conditions = msgspec.json.encode(conditions_of(rule)).decode()
    return {**numbered, "priority": rule.priority, "rating": rule.rating, "conditions": conditions}


def digest(it: RuleSet) -> str:
    """A hash of the rules without their name."""
    return hashlib.sha256(
        msgspec.json.encode(written(replace(it, name="")), order="deterministic")
    ).hexdigest()


def activate(tx: Transaction, version: int) -> Activated:
    """Make a set the active one: for runs that begin from now on, and for the next repricing."""
    tx.run(BEGIN_ACTIVE)
    before = _lock_active(tx)
    found = find_rules(tx, version)
    _refuse_problems(found, stones_present(tx))
    load_rules(tx, version)
    if before == version:
        raise StateError(f"rule set {version} is active already")
    if tx.run(SWITCH_ACTIVE, version=version, before=before) != 1:
        raise StateError("the active rule set was changed by somebody else; look again")
    return Activated(before, version)


def _lock_active(tx: Transaction) -> int:
    rows = tx.rows(LOCK_ACTIVE)
    if not rows:
        raise SchemaError(NOT_ACTIVE)
    return int(rows[0][0])


def _refuse_problems(it: RuleSet, present: set[tuple[str, StoneType]] | None = None) -> None:
    if found := rules.problems(it, present or set()):
        named = f"rule set {it.version}" if it.version else "the rules"
        raise StateError(f"{named} cannot be used: {'; '.join(found)}")


def stones_present(tx: Transaction) -> set[tuple[str, StoneType]]:
    """The feeds and types of which there are stones."""
    return {(str(feed), StoneType(kind)) for feed, kind in tx.rows(LIST_FEEDS_AND_TYPES)}


def find_rules(tx: Transaction, version: int) -> RuleSet:
    """A stored set, as it is."""
    return _read_rule_set(tx, version)[0]


def _read_rule_set(tx: Transaction, version: int) -> tuple[RuleSet, str]:
    """A stored set, and the digest that it was imported with."""
    rows = tx.rows(FIND_RULE_SET, version=version)
    if not rows:
        raise NotFoundError(
            f"there is no rule set {version}; `stepfast diamonds rules list` shows those there are"
        )
    name, natural, lab, fancy, fallback, empty, imported = rows[0]
    found = RuleSet(
        version=version,
        name=str(name),
        margins={
            StoneType.NATURAL: stored(natural),
            StoneType.LAB: stored(lab),
            StoneType.FANCY: stored(fancy),
        },
        pricing=tuple(_pricing_rule(*row) for row in tx.rows(READ_PRICING_RULES, version=version)),
        rating=tuple(
            rating_rule(int(row[0]), int(row[1]), _document(row[2]))
            for row in tx.rows(READ_RATING_RULES, version=version)
        ),
        fallback=int(fallback),
        empty=bool(empty),
    )
    return found, str(imported)


# A set that is used has to be the one that was imported: else stones would get a margin that nobody has chosen.


class UnusableRulesError(StateError):
    """A stored rule set is gone, or is not what was imported: a person or a program has changed its rows."""


def load_rules(tx: Transaction, version: int) -> RuleSet:
    """A stored set, as it was imported. Raises `UnusableRulesError` if it is not there, or not whole."""
    if not version:
        raise UnusableRulesError("no rule set is active")
    try:
        found, imported = _read_rule_set(tx, version)
    except NotFoundError:
        raise UnusableRulesError(f"rule set {version} is gone") from None
    except (RulesError, ValueError, TypeError, msgspec.DecodeError) as error:
        raise UnusableRulesError(f"rule set {version} cannot be read: {error}") from error
    if digest(found) != imported:
        raise UnusableRulesError(
            f"rule set {version} is not what was imported: rows of it are missing, or were changed by hand"
        )
    return found


def is_usable(tx: Transaction, version: int) -> bool:
    try:
        load_rules(tx, version)
    except UnusableRulesError:
        return False
    return True


def rules_or_active(tx: Transaction, version: int) -> RuleSet:
    """The set of this version; if it cannot be used, the active one. Raises `HeldError` if neither can."""
    try:
        return load_rules(tx, version)
    except UnusableRulesError as unusable:
        problem = unusable
    active = _active_or_zero(tx)
    if active not in (0, version):
        try:
            return load_rules(tx, active)
        except UnusableRulesError as unusable:
            problem = unusable
    raise HeldError(
        f"stones cannot be priced: {problem}; import the rules with: stepfast diamonds rules import FILE"
    ) from problem


def _pricing_rule(  # noqa: PLR0917 - the columns of PRICING
    priority: int, kind: str | None, low: Any, high: Any, feed: str | None, modifier: Any, rating: int | None
) -> PricingRule:
    return PricingRule(
        priority=int(priority),
        stone_type=None if kind is None else StoneType(kind),
        price_min=stored(low),
        price_max=None if high is None else stored(high),
        feed=feed,
        margin_modifier=stored(modifier),
        rating=None if rating is None else int(rating),
    )


def _document(value: Any) -> dict[str, Any]:
    """A JSON column as a dict: PostgreSQL's driver has decoded it already."""
    found = msgspec.json.decode(value) if isinstance(value, str | bytes) else value
    return dict(found)


def list_rules(tx: Transaction, *, limit: int = 200) -> list[RuleSetReport]:
    return [
        RuleSetReport(
            int(row[0]),
            str(row[1]),
            moment(int(row[2])),
            str(row[3]),
            bool(row[4]),
            bool(row[5]),
            *map(int, row[6:]),
        )
        for row in tx.rows(LIST_RULE_SETS, limit=limit)
    ]


def active_version(tx: Transaction) -> int:
    """The version of the active set."""
    found = _active_or_zero(tx)
    if not found:
        raise SchemaError(NOT_ACTIVE)
    return found


def _active_or_zero(tx: Transaction) -> int:
    return int(tx.first(READ_ACTIVE) or 0)


def previous_version(tx: Transaction) -> int | None:
    """The version that was active before it."""
    rows = tx.rows(READ_ACTIVE)
    return None if not rows or not rows[0][1] else int(rows[0][1])


def pin(tx: Transaction, feed: str, run_id: str) -> None:
    """Write down that the run keeps the set that is active now; 0 if none is."""
    tx.run(PIN_RULE_SET, run_id=run_id, feed=feed, version=_active_or_zero(tx))


def version_of(tx: Transaction, run_id: str | None) -> int:
    """The version that a run is pinned to; without a run, or if none was active when it began, the active one or 0."""
    found = None if run_id is None else tx.first(READ_PIN, run_id=run_id)
    return int(found or 0) or _active_or_zero(tx)


def pinned(tx: Transaction, run_id: str) -> tuple[int, int] | None:
    """The version that a run is pinned to, and since when."""
    rows = tx.rows(READ_PIN, run_id=run_id)
    return (int(rows[0][0]), int(rows[0][1])) if rows else None


OUR_FEEDS: Final = ("nivoda-natural", "nivoda-labgrown")
LIST_FEEDS = sql("SELECT id FROM stepfast_feed")
# What is in the columns, by what a rule calls them. Girdles and culets are described as the source likes.
_QUALITIES: Final = (*vocabulary.QUALITIES, *GRADES)
KNOWN_WORDS: Final[Mapping[str, Collection[str]]] = {
    "shape": [it for it in vocabulary.SHAPES if it not in SAME_SHAPE],
    "color": vocabulary.COLORS,
    "clarity": vocabulary.CLARITIES,
    "cut": _QUALITIES,
    "polish": _QUALITIES,
    "symmetry": _QUALITIES,
    "fluorescence": sorted(set(INTENSITIES.values())),
    "lab": vocabulary.LABS,
}
# Words of the source that are written otherwise here.
OTHER_WORDS: Final[Mapping[str, Mapping[str, str]]] = {"shape": SAME_SHAPE, "fluorescence": INTENSITIES}


def find_doubts(tx: Transaction, it: RuleSet, lines: Lines) -> list[str]:
    """All doubts about a set, in the order of its file."""
    present = stones_present(tx)
    feeds = {*OUR_FEEDS, *(str(row[0]) for row in tx.rows(LIST_FEEDS)), *(feed for feed, _ in present)}
    return [*doubts_of(it, feeds, lines), *stones_without_rules(it, present)]


def doubts_of(it: RuleSet, feeds: Collection[str], lines: Lines) -> Iterator[str]:
    """Feeds and words of the rules that are not known."""
    for number, rule in enumerate(it.pricing):
        yield from _doubt_about_feed(rule.feed, feeds, _rule_name("pricing", number, lines))
    for number, given in enumerate(it.rating):
        place = _rule_name("rating", number, lines)
        yield from _doubt_about_feed(given.feed, feeds, place)
        for name, wanted in given.words.items():
            for word in sorted(wanted):
                yield from _doubt_about_word(name, word, place)


def stones_without_rules(it: RuleSet, present: AbstractSet[tuple[str, StoneType]]) -> Iterator[str]:
    """Present stones that would have no price: such a set cannot be activated."""
    known = set(problems(it))
    for told in problems(it, present):
        if told not in known:
            yield f"{told}, and there are such stones: it cannot be activated as it is"


def _rule_name(which: str, number: int, lines: Lines) -> str:
    known: Sequence[int] = lines.get(which, ())
    line = f"line {known[number]}: " if number < len(known) else ""
    return f"{line}{which} rule {number + 1}"


def _doubt_about_feed(feed: str | None, feeds: Collection[str], place: str) -> Iterator[str]:
    if feed is not None and feed not in feeds:
        yield f"{place}: there is no feed {feed!r} here; {_hint(feed, feeds)}"


def _doubt_about_word(name: str, word: str, place: str) -> Iterator[str]:
    known = KNOWN_WORDS.get(name)
    if known is None or word in known:
        return
    instead = OTHER_WORDS.get(name, {}).get(word)
    hint = f"the catalogue says {instead}" if instead else _hint(word, known)
    yield f"{place}: no stone has the {name} {word!r:.40}; {hint}"


def _hint(word: str, known: Collection[str]) -> str:
    near = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"it may be {', '.join(sorted(known))}"
