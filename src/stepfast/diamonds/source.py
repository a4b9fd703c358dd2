"""Nivoda as a feed sees it: how many stones there are in a range, a page of them, one of them, and what time it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from stepfast import Page, Range
from stepfast.diamonds.adaptive import PaceInMemory, Pacing
from stepfast.diamonds.adaptive_rows import PaceInDatabase
from stepfast.diamonds.answers import Answer, BadAnswerError
from stepfast.diamonds.client import Client
from stepfast.diamonds.offered import still_offered
from stepfast.diamonds.query import (
    BASE,
    BY_ID,
    COUNT,
    NEWEST_FIRST,
    OFFERED,
    OLDEST_FIRST,
    ONE,
    SEARCH,
    diamond_query,
)
from stepfast.diamonds.settings import LARGEST_PAGE
from stepfast.diamonds.source_doubts import Doubts
from stepfast.diamonds.token_rows import TokenRows
from stepfast.diamonds.token_seal import Seal
from stepfast.errors import PermanentError
from stepfast.wording import counted

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast import Cursor, Stepfast, Window
    from stepfast.diamonds.answers import Problem
    from stepfast.diamonds.settings import NivodaSettings

SEVERAL: Final = 3  # stones without an identity: one may be a bad one, all of them are another schema


class NivodaSource:
    """Both feeds of an application share one: its token, its pace and its connections."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._connected: Client | None = None
        self._lock = threading.Lock()
        self._doubts = Doubts()

    @property
    def _client(self) -> Client:
        """Made when the source is first asked: an app that only looks needs neither credentials nor the extra."""
        with self._lock:
            if self._connected is None:
                self._connected = self._connect()
            return self._connected

    async def count(self, part: Range, window: Window | None = None, *, lab_grown: bool) -> int:
        """The only number that says how many: `total_count` is the length of the page it comes with."""
        answer = await self._client.ask(COUNT, query=diamond_query(_base(lab_grown), part, window))
        count = answer.field("diamonds_by_query_count")
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise BadAnswerError(f"Nivoda counts {count!r:.40}, which is no number of stones")
        return count

    async def page(self, part: Range, window: Window | None, cursor: Cursor, *, lab_grown: bool) -> Page:
        asked = diamond_query(_base(lab_grown), part, window)
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
        """Whether it is there, and a search for all stones would find it."""
        return still_offered(await self._client.ask(OFFERED, id=diamond_id), lab_grown=lab_grown)

    async def now(self, *, lab_grown: bool) -> datetime | None:
        """The source's clock. It is asked with a token, so that a run that nobody lets in does not begin."""
        answer = await self._client.ask(COUNT, query=diamond_query(_base(lab_grown), Range(), None))
        answer.field("diamonds_by_query_count")
        return answer.date

    def _judge(self, problems: tuple[Problem, ...], attempt: int) -> None:
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

    `tells` False: if it is throttled, it says so to nobody else.
    """
    return NivodaSource(lambda: _client(settings, app, tells=tells))


def _client(settings: NivodaSettings, app: Stepfast | None, *, tells: bool) -> Client:
    pace = PaceInMemory() if app is None else PaceInDatabase(app, settings.url)
    rows = None
    if app is not None and settings.secret_key is not None:
        seal = Seal(settings.secret_key)
        rows = TokenRows(app, seal, seal.name(settings), tells=tells)
    return Client(settings, pacing=Pacing(pace, settings.rate, tells=tells), rows=rows)


def _base(lab_grown: bool) -> dict[str, Any]:  # noqa: FBT001 - which of the two feeds
    return {**BASE, "labgrown": lab_grown}


def _items(answer: Answer, limit: int) -> list[Any]:
    """The places of a page; None where a stone could not be told."""
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


def _is_about_a_stone(problem: Problem) -> bool:
    """Whether it names a place on the page, as `as.diamonds_by_query.items.7.diamond` does."""
    return any(isinstance(it, int) for it in problem.path)
