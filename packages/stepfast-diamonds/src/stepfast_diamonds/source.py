"""Nivoda as a feed sees it: counts, pages, single stones, and its clock."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from stepfast import Page, Range
from stepfast.applications import counted
from stepfast.errors import PermanentError
from stepfast_diamonds import mapping_words as words
from stepfast_diamonds.client import BadAnswerError, Client, NivodaAnswer
from stepfast_diamonds.mapping import can_be_shown
from stepfast_diamonds.money import number
from stepfast_diamonds.pace import PaceInDatabase, PaceInMemory, PaceKeeper
from stepfast_diamonds.query import (
    BASE,
    BY_ID,
    COUNT,
    LARGEST_CARATS,
    NEWEST_FIRST,
    OFFERED,
    OLDEST_FIRST,
    ONE,
    SEARCH,
    SHAPES,
    SMALLEST_CARATS,
    diamond_query,
)
from stepfast_diamonds.settings import LARGEST_PAGE
from stepfast_diamonds.token import TokenRows, TokenSeal

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast import Cursor, Stepfast, Window
    from stepfast_diamonds.client import AnswerProblem
    from stepfast_diamonds.settings import NivodaSettings


SEVERAL: Final = 3  # stones without an identity: one may be a bad one, all of them are another schema


class NivodaSource:
    """Both feeds of an application share one: its token, its pace and its connections."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._connected: Client | None = None
        self._lock = threading.Lock()
        self._doubts = RepeatedFailures()

    @property
    def _client(self) -> Client:
        """The client, made for the first request: an app that only looks needs neither credentials nor httpx."""
        with self._lock:
            if self._connected is None:
                self._connected = self._connect()
            return self._connected

    async def count(self, part: Range, window: Window | None = None, *, lab_grown: bool) -> int:
        """How many stones a range has. (`total_count` of a page is only the length of that page.)"""
        answer = await self._client.ask(COUNT, query=diamond_query(_base_query(lab_grown), part, window))
        count = answer.field("diamonds_by_query_count")
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise BadAnswerError(f"Nivoda counts {count!r:.40}, which is no number of stones")
        return count

    async def page(self, part: Range, window: Window | None, cursor: Cursor, *, lab_grown: bool) -> Page:
        asked = diamond_query(_base_query(lab_grown), part, window)
        limit = min(cursor.limit, LARGEST_PAGE)
        answer = await self._client.ask(
            SEARCH,
            query=asked,
            offset=cursor.offset,
            limit=limit,
            order=NEWEST_FIRST if cursor.descending else OLDEST_FIRST,
        )
        items = _items(answer, limit)
        if answer.problems:
            self._judge(answer.problems, cursor.attempt)
        return Page(items)

    async def diamond(self, diamond_id: str) -> Mapping[str, Any] | None:
        """One offer by the id of its diamond; None if it has vanished."""
        answer = await self._client.ask(ONE, id=diamond_id)
        if any(it.is_missing for it in answer.problems):
            return None
        found = answer.field(BY_ID)
        if not isinstance(found, dict):
            raise BadAnswerError(f"Nivoda answered {type(found).__name__} instead of a stone")
        return found

    async def still_offers(self, diamond_id: str, *, lab_grown: bool) -> bool:
        """Whether a stone is there, and a search for all stones would find it."""
        return still_offered(await self._client.ask(OFFERED, id=diamond_id), lab_grown=lab_grown)

    async def now(self, *, lab_grown: bool) -> datetime | None:
        """The source's clock, asked with a token: a run that would be refused does not begin."""
        answer = await self._client.ask(COUNT, query=diamond_query(_base_query(lab_grown), Range(), None))
        answer.field("diamonds_by_query_count")
        return answer.date

    def _judge(self, problems: tuple[AnswerProblem, ...], attempt: int) -> None:
        whole = [it for it in problems if not _is_about_a_stone(it)]
        if whole:
            raise BadAnswerError(f"Nivoda answered with a part of the page only: {whole[0].message}")
        if self._doubts.arise(attempt, problems):
            raise BadAnswerError(
                f"Nivoda failed to tell {counted(len(problems), 'value')} of the page, which is asked for once more: "
                f"{problems[0].message}"
            )


def open_source(settings: NivodaSettings, app: Stepfast | None = None, *, tells: bool = True) -> NivodaSource:
    """A source that shares its pace with all processes on the app's database, and its token if there is a secret key.

    `tells` False: a throttle that it meets does not slow others down.
    """
    return NivodaSource(lambda: _connected_client(settings, app, tells=tells))


def _connected_client(settings: NivodaSettings, app: Stepfast | None, *, tells: bool) -> Client:
    pace = PaceInMemory() if app is None else PaceInDatabase(app, settings.url)
    rows = None
    if app is not None and settings.secret_key is not None:
        seal = TokenSeal(settings.secret_key)
        rows = TokenRows(app, seal, seal.name(settings), tells=tells)
    return Client(settings, pacing=PaceKeeper(pace, settings.rate, tells=tells), rows=rows)


def _base_query(lab_grown: bool) -> dict[str, Any]:  # noqa: FBT001 - which of the two feeds
    return {**BASE, "labgrown": lab_grown}


def _items(answer: NivodaAnswer, limit: int) -> list[Any]:
    """The items of a page; None where the source failed to give a stone."""
    found = answer.field("diamonds_by_query")
    items = found.get("items") if isinstance(found, dict) else None
    if items is None and answer.problems:
        answer.fail("items")
    if not isinstance(items, list):
        raise BadAnswerError(f"Nivoda answered {type(items).__name__} instead of a list of stones")
    if len(items) > limit:
        raise BadAnswerError(f"Nivoda answered {len(items)} stones where {limit} were asked for")
    for it in items:
        if not isinstance(it, dict | None):
            raise BadAnswerError(f"Nivoda answered {type(it).__name__} instead of a stone")
    told = [it for it in items if it is not None]
    if len(told) >= SEVERAL and not any(_has_identity(it) for it in told):
        raise PermanentError(f"Nivoda's schema has changed: none of {len(told)} stones has diamond.id")
    return items


def _has_identity(item: Mapping[str, Any]) -> bool:
    diamond = item.get("diamond")
    return isinstance(diamond, dict) and bool(diamond.get("id"))


def _is_about_a_stone(problem: AnswerProblem) -> bool:
    """Whether the problem names an item of the page, as `as.diamonds_by_query.items.7.diamond` does."""
    return any(isinstance(it, int) for it in problem.path)


# A page with errors beside its stones is requested once more: a value that failed may come the second time.
#
# What still fails then is a hole in the source, and the page is taken as it is. The number of the attempt comes from the
# database, so it is right in every process. A field that keeps failing, as whole enums do on staging, is not requested
# again and again: that is remembered in the process alone, and a new process asks once too often.

SETTLED: Final = 3  # times that a field has failed again


class RepeatedFailures:
    """Fields that have failed again in a second request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed_again: Counter[str] = Counter()

    def arise(self, attempt: int, problems: Iterable[AnswerProblem]) -> bool:
        """Whether the page should be requested once more."""
        fields = {_failed_field(it) for it in problems}
        with self._lock:
            unsettled = {it for it in fields if self._failed_again[it] < SETTLED}
            if attempt > 1:
                self._failed_again.update(unsettled)
                return False
            return bool(unsettled)


def _failed_field(problem: AnswerProblem) -> str:
    """The path of a failed field, without the number of its stone."""
    return ".".join(it for it in problem.path if isinstance(it, str))


# Whether a stone that no page has shown is still on offer: the base query, applied to one stone.
#
# For a feed a stone is gone if it is held or sold, if it has lost its picture and its film, or if it is of another kind,
# shape, size or cut by now than the feed asks for. The words are those of the mapping. A value that the source does not
# give counts for the stone: none is gone because a value was lost on the way.

FAIR_OR_POOR: Final = frozenset({"FR", "F", "FAIR", "PR", "P", "POOR"})
LIGHTEST: Final = Decimal(str(SMALLEST_CARATS))
HEAVIEST: Final = Decimal(str(LARGEST_CARATS))


def still_offered(answer: NivodaAnswer, *, lab_grown: bool) -> bool:
    """Whether the answer about one stone shows that it is on offer."""
    found = None if answer.data is None else answer.data.get(BY_ID)
    if found is None and any(it.is_missing and _is_about_the_whole(it) for it in answer.problems):
        return False
    if any(not _is_about_the_whole(it) for it in answer.problems):
        return True  # there is a stone, of which something cannot be told
    offer = answer.field(BY_ID)
    diamond = offer.get("diamond") if isinstance(offer, dict) else None
    if not isinstance(diamond, dict):
        raise BadAnswerError(f"Nivoda answered {type(diamond).__name__} instead of a stone")
    certificate = diamond.get("certificate")
    return fits_base_query(diamond, certificate if isinstance(certificate, dict) else {}, lab_grown=lab_grown)


def fits_base_query(diamond: Mapping[str, Any], certificate: Mapping[str, Any], *, lab_grown: bool) -> bool:
    """Whether the base query would find the stone."""
    shape, carats = words.word(certificate.get("shape")), number(certificate.get("carats"))
    grown, available = certificate.get("labgrown"), diamond.get("availability")
    return (
        (available is None or words.availability(available) == "available")
        and can_be_shown(diamond, certificate)
        and (grown is None or grown is lab_grown)
        and (shape is None or shape in SHAPES)
        and (carats is None or LIGHTEST <= carats <= HEAVIEST)
        and words.word(certificate.get("cut")) not in FAIR_OR_POOR
    )


def _is_about_the_whole(problem: AnswerProblem) -> bool:
    """Whether it names no field of the stone."""
    return not problem.path or problem.path[-1] in {BY_ID, "as"}
