"""What a rule set may mean otherwise than it says: it can be stored, and somebody should look again.

A word that no stone has makes a rule that never decides. It may be new, so it is told and not refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from stepfast.database.statement import sql
from stepfast.diamonds.mapping_words import GRADES, INTENSITIES, SAME_SHAPE
from stepfast.diamonds.rules import RuleSet, problems
from stepfast.diamonds.rules_rows import stones_present
from stepfast.diamonds.simulator import vocabulary

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from stepfast import Transaction
    from stepfast.diamonds.pricing import StoneType
    from stepfast.diamonds.rules_text import Lines

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
