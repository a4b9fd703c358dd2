"""What a rule set may mean otherwise than it says: it can be stored, and somebody should look again.

A word that no stone has makes a rule that never decides. It may be new, so it is told and not refused.
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
from stepfast.errors import NotFoundError, SchemaError, StateError
from stepfast_diamonds import rules
from stepfast_diamonds.mapping_words import GRADES, INTENSITIES, SAME_SHAPE
from stepfast_diamonds.money import stored
from stepfast_diamonds.pricing import PricingRule, StoneType
from stepfast_diamonds.rules import RuleSet, default_rules, problems
from stepfast_diamonds.rules_file import conditions_of, rating_rule, written
from stepfast_diamonds.simulator import vocabulary

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from stepfast import Transaction
    from stepfast_diamonds.rules_file import Lines


# Rule sets in the database: written once, never changed. Which one counts is one row, moved under its lock.
#
# A run begins with the set that counts at that moment, and keeps it to its end.

SEED = "stepfast diamonds migrate"

_ACTIVE = "SELECT version, previous FROM pricing_active WHERE id = 1"
ACTIVE = sql(_ACTIVE)
LOCK_ACTIVE = sql(_ACTIVE + " {for_update}")
BEGIN = sql("INSERT INTO pricing_active (id, version, changed_at) VALUES (1, 0, {now}) {keep_existing}")
SWITCH = sql("""
    UPDATE pricing_active SET previous = version, version = :version, changed_at = {now}
     WHERE id = 1 AND version = :before
""")
LAST = sql("SELECT max(version) FROM pricing_rule_sets")
SAME = sql("SELECT min(version) FROM pricing_rule_sets WHERE digest = :digest")
ADD = sql("""
    INSERT INTO pricing_rule_sets (version, name, margin_natural, margin_lab, margin_fancy, rating_fallback,
                                   declared_empty, digest, created_at, created_by)
    VALUES (:version, :name, :natural, :lab, :fancy, :fallback, :empty, :digest, {now}, :by)
""")
ADD_PRICING = sql("""
    INSERT INTO pricing_rules (version, number, priority, stone_type, price_min, price_max, feed, margin_modifier, rating)
    VALUES (:version, :number, :priority, :stone_type, :price_min, :price_max, :feed, :margin_modifier, :rating)
""")
ADD_RATING = sql("""
    INSERT INTO rating_rules (version, number, priority, rating, conditions)
    VALUES (:version, :number, :priority, :rating, :conditions)
""")
FIND = sql("""
    SELECT name, margin_natural, margin_lab, margin_fancy, rating_fallback, declared_empty
      FROM pricing_rule_sets WHERE version = :version
""")
PRICING = sql("""
    SELECT priority, stone_type, price_min, price_max, feed, margin_modifier, rating
      FROM pricing_rules WHERE version = :version ORDER BY number
""")
RATING = sql("SELECT priority, rating, conditions FROM rating_rules WHERE version = :version ORDER BY number")
PRESENT = sql("""
    SELECT DISTINCT feed, CASE WHEN fancy_color IS NOT NULL THEN 'fancy' WHEN lab_grown = 1 THEN 'lab' ELSE 'natural' END
      FROM diamonds
""")
PIN = sql("""
    INSERT INTO pricing_pins (run_id, feed, version, pinned_at)
    SELECT :run_id, :feed, version, {now} FROM pricing_active WHERE id = 1 AND version > 0
""")
PINNED = sql("SELECT version, pinned_at FROM pricing_pins WHERE run_id = :run_id")
LIST = sql("""
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


class Activated(NamedTuple):
    before: int
    version: int


def begin_with(tx: Transaction) -> None:
    """The default rules are version 1 and count, unless there are others."""
    tx.run(BEGIN)
    if _lock(tx) == 0:
        tx.run(SWITCH, version=_add(tx, default_rules(), SEED), before=0)


def import_rules(tx: Transaction, it: RuleSet, by: str) -> Imported:
    """Store a set under the next number. It counts for nobody before it is activated."""
    _refuse(it)
    _lock(tx)  # one number at a time
    known = tx.first(SAME, digest=digest(it))
    return (
        Imported(int(known), created=False) if known is not None else Imported(_add(tx, it, by), created=True)
    )


def activate(tx: Transaction, version: int) -> Activated:
    """From now on this set counts: for runs that begin, and for the next repricing."""
    before = _lock(tx)
    found = find_rules(tx, version)
    _refuse(found, stones_present(tx))
    if before == version:
        raise StateError(f"rule set {version} is active already")
    if tx.run(SWITCH, version=version, before=before) != 1:
        raise StateError("the active rule set was changed by somebody else; look again")
    return Activated(before, version)


def stones_present(tx: Transaction) -> set[tuple[str, StoneType]]:
    """Of which feeds and types there are stones."""
    return {(str(feed), StoneType(kind)) for feed, kind in tx.rows(PRESENT)}


def find_rules(tx: Transaction, version: int) -> RuleSet:
    rows = tx.rows(FIND, version=version)
    if not rows:
        raise NotFoundError(
            f"there is no rule set {version}; `stepfast diamonds rules list` shows those there are"
        )
    name, natural, lab, fancy, fallback, empty = rows[0]
    return RuleSet(
        version=version,
        name=str(name),
        margins={
            StoneType.NATURAL: stored(natural),
            StoneType.LAB: stored(lab),
            StoneType.FANCY: stored(fancy),
        },
        pricing=tuple(_pricing_rule(*row) for row in tx.rows(PRICING, version=version)),
        rating=tuple(
            rating_rule(int(row[0]), int(row[1]), _document(row[2]))
            for row in tx.rows(RATING, version=version)
        ),
        fallback=int(fallback),
        empty=bool(empty),
    )


def active_version(tx: Transaction) -> int:
    """The set that counts."""
    found = tx.first(ACTIVE)
    if not found:
        raise SchemaError("no rule set is active; run `stepfast diamonds migrate` once")
    return int(found)


def previous_version(tx: Transaction) -> int | None:
    """The one that counted before it."""
    rows = tx.rows(ACTIVE)
    return None if not rows or not rows[0][1] else int(rows[0][1])


def pin(tx: Transaction, feed: str, run_id: str) -> None:
    """The run keeps the set that counts now."""
    if tx.run(PIN, run_id=run_id, feed=feed) != 1:
        raise SchemaError("no rule set is active; run `stepfast diamonds migrate` once")


def version_of(tx: Transaction, run_id: str | None) -> int:
    """The set of a run; without one, the set that counts."""
    found = None if run_id is None else tx.first(PINNED, run_id=run_id)
    return active_version(tx) if found is None else int(found)


def pinned(tx: Transaction, run_id: str) -> tuple[int, int] | None:
    """The set of a run, and since when it has it."""
    rows = tx.rows(PINNED, run_id=run_id)
    return (int(rows[0][0]), int(rows[0][1])) if rows else None


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
        for row in tx.rows(LIST, limit=limit)
    ]


def digest(it: RuleSet) -> str:
    """The same for the same rules, whatever they are called."""
    return hashlib.sha256(
        msgspec.json.encode(written(replace(it, name="")), order="deterministic")
    ).hexdigest()


def _refuse(it: RuleSet, present: set[tuple[str, StoneType]] | None = None) -> None:
    if found := rules.problems(it, present or set()):
        named = f"rule set {it.version}" if it.version else "the rules"
        raise StateError(f"{named} cannot be used: {'; '.join(found)}")


def _lock(tx: Transaction) -> int:
    rows = tx.rows(LOCK_ACTIVE)
    if not rows:
        raise SchemaError("no rule set is active; run `stepfast diamonds migrate` once")
    return int(rows[0][0])


def _add(tx: Transaction, it: RuleSet, by: str) -> int:
    version = int(tx.first(LAST) or 0) + 1
    margins = {str(kind): str(margin) for kind, margin in it.margins.items()}
    shown = {
        "name": it.name,
        "fallback": it.fallback,
        "empty": int(it.empty),
        "digest": digest(it),
        "by": by[:200],
    }
    tx.run(ADD, version=version, **shown, **margins)
    file = written(it)
    numbered = [
        {"version": version, "number": number}
        for number in range(1, 1 + max(len(it.pricing), len(it.rating)))
    ]
    tx.run_many(ADD_PRICING, [{**n, **rule} for n, rule in zip(numbered, file["pricing"], strict=False)])
    tx.run_many(ADD_RATING, [_rating_row(n, rule) for n, rule in zip(numbered, it.rating, strict=False)])
    return version


def _rating_row(numbered: dict[str, int], rule: Any) -> dict[str, Any]:
    conditions = msgspec.json.encode(conditions_of(rule)).decode()
    return {**numbered, "priority": rule.priority, "rating": rule.rating, "conditions": conditions}


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
    """PostgreSQL's driver has read it already."""
    found = msgspec.json.decode(value) if isinstance(value, str | bytes) else value
    return dict(found)


OURS: Final = ("nivoda-natural", "nivoda-labgrown")
FEEDS = sql("SELECT id FROM stepfast_feed")

# What is in the columns, by what a rule calls them. Girdles and culets are described as the source likes.
_QUALITIES: Final = (*vocabulary.QUALITIES, *GRADES)
KNOWN: Final[Mapping[str, Collection[str]]] = {
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
INSTEAD: Final[Mapping[str, Mapping[str, str]]] = {"shape": SAME_SHAPE, "fluorescence": INTENSITIES}


def look_for_doubts(tx: Transaction, it: RuleSet, lines: Lines) -> list[str]:
    """All of them, in the order of the file."""
    present = stones_present(tx)
    feeds = {*OURS, *(str(row[0]) for row in tx.rows(FEEDS)), *(feed for feed, _ in present)}
    return [*doubts(it, feeds, lines), *without_rules(it, present)]


def doubts(it: RuleSet, feeds: Collection[str], lines: Lines) -> Iterator[str]:
    """Feeds and words that nobody knows."""
    for number, rule in enumerate(it.pricing):
        yield from _of_feed(rule.feed, feeds, _place("pricing", number, lines))
    for number, given in enumerate(it.rating):
        place = _place("rating", number, lines)
        yield from _of_feed(given.feed, feeds, place)
        for name, wanted in given.words.items():
            for word in sorted(wanted):
                yield from _of_word(name, word, place)


def without_rules(it: RuleSet, present: AbstractSet[tuple[str, StoneType]]) -> Iterator[str]:
    """Stones that are there and would have no price: such a set cannot be activated."""
    known = set(problems(it))
    for told in problems(it, present):
        if told not in known:
            yield f"{told}, and there are such stones: it cannot be activated as it is"


def _place(which: str, number: int, lines: Lines) -> str:
    known: Sequence[int] = lines.get(which, ())
    line = f"line {known[number]}: " if number < len(known) else ""
    return f"{line}{which} rule {number + 1}"


def _of_feed(feed: str | None, feeds: Collection[str], place: str) -> Iterator[str]:
    if feed is not None and feed not in feeds:
        yield f"{place}: there is no feed {feed!r} here; {_hint(feed, feeds)}"


def _of_word(name: str, word: str, place: str) -> Iterator[str]:
    known = KNOWN.get(name)
    if known is None or word in known:
        return
    instead = INSTEAD.get(name, {}).get(word)
    hint = f"the catalogue says {instead}" if instead else _hint(word, known)
    yield f"{place}: no stone has the {name} {word!r:.40}; {hint}"


def _hint(word: str, known: Collection[str]) -> str:
    near = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"it may be {', '.join(sorted(known))}"
