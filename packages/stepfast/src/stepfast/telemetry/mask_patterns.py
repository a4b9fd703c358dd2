"""Patterns of masking rules: an application chooses them, and strangers choose the texts that they meet.

Python tries all ways in which a text may fit a pattern. A pattern such as `(a+)+b` has so many that forty letters take
hours, and nothing can stop it meanwhile. So such patterns are refused, and others look at a long text piece by piece.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

LONGEST_MATCH: Final = 500  # characters that are found for certain
MOST_SECONDS: Final = 1.0  # of this thread, for one pattern and one text
LONG: Final = 10  # a repetition that can have so many more or fewer parts counts as one without end


def hide_matches(pattern: re.Pattern[str], text: str, hidden: str) -> str:
    """The text without what the pattern matches. What is left when that takes too long is hidden as a whole."""
    if len(text) <= 2 * LONGEST_MATCH:
        return pattern.sub(hidden, text)
    parts: list[str] = []
    done = at = 0
    until = time.thread_time() + MOST_SECONDS
    while at < len(text):
        edge = at + LONGEST_MATCH
        for found in pattern.finditer(text, at, edge + LONGEST_MATCH):
            if found.start() >= edge:
                break  # the next piece shows what follows it
            parts += [text[done : found.start()], hidden]
            done = found.end()
        at = max(edge, done)
        if time.thread_time() > until:
            return "".join((*parts, text[done:at], hidden))
    return "".join((*parts, text[done:]))


def problem_of_pattern(pattern: re.Pattern[str]) -> str | None:
    """Why some texts would take very long; None if none does."""
    tree: Any = import_module("re._parser").parse(pattern.pattern, pattern.flags)
    check = _Check(any_case=bool(tree.state.flags & re.IGNORECASE))
    check.collect(tree)
    try:
        check.walk(tree, frozenset(), repeated=False)
    except _ManyWaysError as error:
        return str(error)
    return None


class _ManyWaysError(Exception):
    """A text can fit the pattern in many ways."""


Letters = frozenset[int]
_SAMPLE: Final = frozenset(range(256))
_CLASSES: Final = {
    "CATEGORY_DIGIT": re.compile(r"\d"),
    "CATEGORY_NOT_DIGIT": re.compile(r"\D"),
    "CATEGORY_SPACE": re.compile(r"\s"),
    "CATEGORY_NOT_SPACE": re.compile(r"\S"),
    "CATEGORY_WORD": re.compile(r"\w"),
    "CATEGORY_NOT_WORD": re.compile(r"\W"),
}
_REPEATS: Final = {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}
_IN_A_LOOP: Final = "it repeats a part that fits the same characters in more than one way, as (a+)+ does; repeat it once, as a+ does"
_IN_A_ROW: Final = "it has two repetitions that fit the same characters, as .*-.* does; name what stands between them, as [^-]*-.* does"


@dataclass
class _Check:
    """Walks the tree that Python's own parser makes of a pattern, from the end to the beginning.

    A part is ambiguous if the next character may belong to it and to what follows it. Inside a repetition that doubles
    the ways with every turn; outside, each ambiguous repetition multiplies them by the length of the text.
    """

    any_case: bool
    letters: Letters = _SAMPLE  # of all texts, as far as this pattern tells them apart
    ambiguous: int = field(default=0)

    def collect(self, node: Any) -> None:
        """Add the characters that the pattern names: two ranges that overlap share an end of one of them."""
        if isinstance(node, int) and not isinstance(node, bool):
            self.letters |= {int(node)} if 0 <= int(node) < 0x110000 else set()  # noqa: PLR2004 - the end of Unicode
        elif isinstance(node, str) or node is None:
            return
        elif hasattr(node, "__iter__"):
            for part in node:
                self.collect(part)

    def walk(self, items: Any, follow: Letters, *, repeated: bool) -> tuple[Letters, bool]:
        """How these parts may begin, and whether they may be empty; `follow`: how a text may go on behind them."""
        first, empty = frozenset[int](), True
        for op, argument in reversed(list(items)):
            behind = first | (follow if empty else frozenset())
            begins, may_be_empty = self._part(str(op), argument, behind, repeated=repeated)
            first = begins | (first if may_be_empty else frozenset())
            empty = empty and may_be_empty
        return first, empty

    def _part(  # noqa: PLR0911 - one line per kind of part
        self, op: str, argument: Any, behind: Letters, *, repeated: bool
    ) -> tuple[Letters, bool]:
        if op in _REPEATS:
            return self._repeat(op, *argument, behind=behind, repeated=repeated)
        match op:
            case "SUBPATTERN":
                return self.walk(argument[-1], behind, repeated=repeated)
            case "ATOMIC_GROUP":
                return self.walk(argument, behind, repeated=repeated)
            case "ASSERT" | "ASSERT_NOT":
                self.walk(argument[1], frozenset(), repeated=repeated)
                return frozenset(), True
            case "BRANCH":
                return self._branch(argument[1], behind, repeated=repeated)
            case "GROUPREF_EXISTS":
                return self._branch([it for it in argument[1:] if it], behind, repeated=repeated)
            case "AT":
                return frozenset(), True
            case "GROUPREF":
                return self.letters, True
            case _:
                return self._class(op, argument), False

    def _repeat(
        self, op: str, least: int, most: int, body: Any, *, behind: Letters, repeated: bool
    ) -> tuple[Letters, bool]:
        loops = int(most) > 1
        ambiguous = self.ambiguous
        first, empty = self.walk(body, behind, repeated=True) if loops else (frozenset[int](), False)
        self.ambiguous = ambiguous  # a first look: only to know how it begins
        first, empty = self.walk(body, behind | first if loops else behind, repeated=repeated or loops)
        if loops and empty:
            raise _ManyWaysError(_IN_A_LOOP)
        if least != most and first & behind and op != "POSSESSIVE_REPEAT":
            if repeated:
                raise _ManyWaysError(_IN_A_LOOP)
            self.ambiguous += int(most) - int(least) > LONG
            if self.ambiguous > 1:
                raise _ManyWaysError(_IN_A_ROW)
        return first, empty or not least

    def _branch(self, branches: Any, behind: Letters, *, repeated: bool) -> tuple[Letters, bool]:
        first = seen = frozenset[int]()
        empty = False
        for branch in branches:
            begins, may_be_empty = self.walk(branch, behind, repeated=repeated)
            starts = begins | behind if may_be_empty else begins
            if repeated and seen & starts:
                raise _ManyWaysError(_IN_A_LOOP)
            first, seen, empty = first | begins, seen | starts, empty or may_be_empty
        return first, empty

    def _class(self, op: str, argument: Any) -> Letters:
        match op:
            case "LITERAL":
                found = frozenset({int(argument)})
            case "NOT_LITERAL":
                return self.letters - self._cased(frozenset({int(argument)}))
            case "RANGE":
                low, high = argument
                found = frozenset(it for it in self.letters if low <= it <= high)
            case "CATEGORY":
                known = _CLASSES[str(argument)]
                return frozenset(it for it in self.letters if known.match(chr(it)))
            case "IN":
                negated = str(argument[0][0]) == "NEGATE"
                parts = [self._class(str(name), it) for name, it in argument[negated:]]
                found = self._cased(frozenset().union(*parts))
                return self.letters - found if negated else found
            case _:  # ANY
                return self.letters
        return self._cased(found)

    def _cased(self, letters: Letters) -> Letters:
        if not self.any_case:
            return letters
        lower = {chr(it).lower() for it in letters}
        return letters | {it for it in self.letters if chr(it).lower() in lower}
