"""Sources with paging flaws: each of these lost rows, or never ended, with naive offset paging."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.runs.feed import Feed, Page
from stepfast.runs.paging.paginators import Keyset, Offset, Token
from stepfast.runs.partitioning.partitioners import Fixed
from stepfast.testing import drain
from tests.support import rows
from tests.support.feeds import Catalogue, Shop, prepare, price_ranges, target
from tests.support.run_facts import (
    begin,
    check_complete,
    check_counters,
    consolidations,
    pages,
    partitions,
    raw,
    run_of,
)
from tests.support.single_threaded_worker import SingleThreadedWorker

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.paging.paginators import Paging
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.run import Run
    from stepfast.runs.window import Window

ONE = Fixed(price_ranges())


class Glitched(Catalogue):
    """What becomes of a page on its way, and of a count."""

    glitch: Callable[[list[Any], Cursor], list[Any]] = staticmethod(lambda items, _: items)
    miscount: Callable[[int], int] = staticmethod(int)

    async def count(self, part: Range, window: Window, /) -> int:
        return self.miscount(await super().count(part, window))

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        page = await super().fetch(part, window, cursor)
        return Page(self.glitch(list(page.items), cursor))


def read(app: Stepfast, shop: Shop, feed: type[Catalogue] = Glitched, **settings: Any) -> Run:
    """One run over one partition, to its end."""
    app.feed(feed(shop, **({"partitioner": ONE} | settings)))
    prepare(app)
    run = begin(app)
    SingleThreadedWorker(app).finish()
    return run_of(app, run.id)


def alerts(app: Stepfast) -> list[str]:
    return [str(it["title"]) for it in rows.query(app, "SELECT title FROM stepfast_alert")]


# Short pages


def test_a_short_page_does_not_end_a_partition(app: Stepfast) -> None:
    """(F16, T4)"""
    shop = Shop.with_items(60)
    run = read(app, shop, glitch=lambda items, cursor: items[:4] if cursor.offset in (7, 14) else items)

    assert any(0 < it["got"] < 10 and it["decision"] == "advance" for it in pages(app, run.id))
    check_complete(app, run.id, shop)


def test_an_empty_page_before_the_end_does_not_end_a_partition(app: Stepfast) -> None:
    """(F16, T4)"""
    lost: list[int] = []

    def glitch(items: list[Any], cursor: Cursor) -> list[Any]:
        if cursor.offset >= 14 and len(lost) < 2:
            lost.append(cursor.offset)
            return []
        return items

    shop = Shop.with_items(60)
    run = read(app, shop, glitch=glitch)

    assert len(lost) == 2
    check_complete(app, run.id, shop)


@pytest.mark.parametrize("served", [7, 8])
def test_a_source_that_gives_fewer_rows_than_asked_for_is_read_to_its_end(app: Stepfast, served: int) -> None:
    """(F16, T4)"""
    shop = Shop.with_items(60)
    run = read(app, shop, glitch=lambda items, _: items[:served])

    assert {it["got"] for it in pages(app, run.id)} <= set(range(served + 1))
    check_complete(app, run.id, shop)


def test_a_source_that_begins_again_after_its_end_is_read_once(app: Stepfast) -> None:
    """(F18, T4)"""
    shop = Shop.with_items(25)
    everything: list[Any] = [dict(it) for it in shop.items.values()]
    run = read(app, shop, glitch=lambda items, _: items or everything[:10])

    check_complete(app, run.id, shop)
    assert run.seen == 25


# Completeness


class Hiding(Glitched):
    paging = Offset(passes=2)


def test_rows_that_are_counted_and_never_shown_become_a_debt(app: Stepfast) -> None:
    """The run publishes what it has; what is missing is written down, and the next run reads it again. (F17, T5)"""
    shop = Shop.with_items(30)
    hidden = {"d00007"}
    run = read(app, shop, Hiding, glitch=lambda items, _: [it for it in items if it["id"] not in hidden])

    (part,) = partitions(app, run.id)
    (debt,) = rows.query(app, "SELECT * FROM stepfast_debt")
    assert (part["state"], run.state, run.unverified, run.completed) == ("done_unverified", "completed", 1, 1)
    assert (debt["state"], debt["span"], debt["window_to"], debt["run_id"]) == (
        "open",
        part["span"],
        run.window_to,
        run.id,
    )
    assert run.watermark_after == run.window_to
    assert set(target(app)) == set(shop.prices()) - hidden
    check_counters(app, run.id)

    hidden.clear()
    following = begin(app)
    SingleThreadedWorker(app).finish()

    names = [it["name"] for it in partitions(app, following.id)]
    assert len(names) == 2
    assert names[1].startswith(f"debt {debt['id']}: ")
    (debt,) = rows.query(app, "SELECT * FROM stepfast_debt")
    assert (debt["state"], debt["closed_by"]) == ("closed", following.id)
    assert target(app) == shop.prices()
    check_counters(app, following.id)


def test_a_debt_that_stays_is_one_debt_with_more_tries(app: Stepfast) -> None:
    """(F17)"""
    shop = Shop.with_items(30)
    read(app, shop, Hiding, glitch=lambda items, _: [it for it in items if it["id"] != "d00007"])
    begin(app)
    SingleThreadedWorker(app).finish()

    debts = rows.query(app, "SELECT tries, state, window_from FROM stepfast_debt ORDER BY id")
    assert [(it["tries"], it["state"]) for it in debts if it["window_from"] is None] == [(1, "open")]


def test_a_row_without_an_identity_is_put_aside_and_never_passed_over(app: Stepfast) -> None:
    """(F17)"""
    shop = Shop.with_items(25)

    def glitch(items: list[Any], _: Cursor) -> list[Any]:
        return [{"price": 1} if it["id"] == "d00003" else it for it in items]

    run = read(app, shop, Hiding, glitch=glitch, error_budget=1.0)

    (it,) = rows.query(app, "SELECT * FROM stepfast_quarantine")
    assert (it["stage"], it["code"], it["run_id"]) == ("identify", "no identity", run.id)
    assert "KeyError" in it["message"]
    assert run.unverified == 1
    assert run.rejected > 0
    check_counters(app, run.id)


@pytest.mark.parametrize("hole", [0, 3, 9, 17, 24])
def test_a_row_that_the_source_never_tells_lets_the_run_end(app: Stepfast, hole: int) -> None:
    """Wherever it stands: among those, too, by which a page is known to follow the one before. (F17, B15)"""
    shop = Shop.with_items(25)
    missing = f"d{hole:05}"

    def glitch(items: list[Any], _: Cursor) -> list[Any]:
        return [None if it["id"] == missing else it for it in items]

    paging = Offset(overlap=8, ties=8, reversible=True)
    run = read(app, shop, glitch=glitch, paging=paging, page_size=20, error_budget=1.0)

    assert (run.state, run.failed) == ("completed", 0)
    assert set(target(app)) == set(shop.prices()) - {missing}


# Runaways


def endless(_: list[Any], cursor: Cursor) -> list[Any]:
    """New rows, whatever is asked for."""
    return [
        {"id": f"n{cursor.offset + n:06}", "price": 1, "created": "", "updated": ""}
        for n in range(cursor.limit)
    ]


def test_a_source_that_never_ends_fails_loudly(app: Stepfast) -> None:
    """It is neither read for ever nor cut off in silence. (F18)"""
    run = read(app, Shop.with_items(30), glitch=endless)

    (part,) = partitions(app, run.id)
    assert part["state"] == "failed"
    assert "rows read where the source counts 30" in part["last_error"]
    assert (run.state, run.failed, run.reason) == ("failed", 1, "1 of 1 partitions failed")
    assert run.watermark_after is None
    assert consolidations(app, run.id) == 0
    assert alerts(app) == ["Consolidation Skipped"]
    assert not target(app)
    check_counters(app, run.id)


class Circling(Catalogue):
    """Every page leads to one that was read before."""

    paging = Token()

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        items = self.shop.select(part, window)
        return Page(items[:10], next="b" if cursor.after == "a" else "a")


def test_a_circle_of_tokens_ends(app: Stepfast) -> None:
    """(F18)"""
    run = read(app, Shop.with_items(30), Circling)

    (part,) = partitions(app, run.id)
    assert part["state"] in ("failed", "done_unverified")
    assert part["requests"] < 50
    check_counters(app, run.id)


def test_a_partition_that_grows_while_it_is_read_is_read_to_its_new_end(app: Stepfast) -> None:
    """No estimate cuts it off. (F18)"""
    shop = Shop.with_items(30)

    def grow(what: str, _: Range, __: Cursor | None) -> None:
        if what == "page" and len(shop.items) < 60:
            shop.put(f"n{len(shop.items):05}", 500)

    shop.before = grow
    run = read(app, shop, Catalogue)

    check_complete(app, run.id, shop)
    assert len(raw(app)) == 60


# Departures


@pytest.mark.parametrize("at_once", [1, 12])
def test_rows_that_leave_behind_the_cursor_make_nobody_skip_others(app: Stepfast, at_once: int) -> None:
    """Every row that was there all the time was read, and no page was taken that does not follow. (F19, T5)"""
    shop = Shop.with_items(120)
    gone: list[str] = []

    def leave(what: str, _: Range, cursor: Cursor | None) -> None:
        if what == "page" and cursor is not None and cursor.offset > 20 and len(gone) < 24:
            for name in sorted(shop.items)[:at_once]:
                shop.remove(name)
                gone.append(name)

    shop.before = leave
    run = read(app, shop, Catalogue)

    (part,) = partitions(app, run.id)
    assert len(gone) >= 12
    assert set(raw(app)) == set(shop.prices()) | set(gone)
    assert part["state"] == "done"
    assert at_once == 1 or "step back" in {it["decision"] for it in pages(app, run.id)}
    check_counters(app, run.id)


def test_departures_that_cannot_be_proved_harmless_become_a_debt_and_never_a_sweep(app: Stepfast) -> None:
    """(F19, F17, T5)"""
    shop = Shop.with_items(60)
    leaving = iter(sorted(shop.items))

    def leave(what: str, _: Range, __: Cursor | None) -> None:
        if what == "page" and (name := next(leaving, None)):
            shop.remove(name)

    shop.before = leave
    run = read(app, shop, Catalogue, paging=Offset(ties=None, passes=2))

    assert partitions(app, run.id)[0]["state"] == "done_unverified"
    assert rows.count(app, "stepfast_debt", "state = 'open'") == 1
    assert run.state == "completed"
    assert run.gone == 0


# Duplicates


def test_one_id_twice_on_a_page_is_stored_once_and_the_last_wins(app: Stepfast) -> None:
    """(F22)"""
    shop = Shop.with_items(25)

    def glitch(items: list[Any], cursor: Cursor) -> list[Any]:
        if cursor.offset == 0:
            items[1] = {**items[0], "price": -1}  # an older version of the first, before it
            items[0], items[1] = items[1], items[0]
        return items

    run = read(app, shop, Hiding, glitch=glitch)

    assert raw(app)["d00000"] == 0
    assert rows.count(app, "stepfast_raw") == rows.count(app, "stepfast_seen") == run.seen
    check_counters(app, run.id)


def test_an_item_on_a_common_bound_is_read_twice_and_stored_once(app: Stepfast) -> None:
    """(F24, F25)"""
    shop = Shop.with_items(40)
    app.feed(Catalogue(shop))
    prepare(app)
    run = begin(app)
    drain(app)

    shared = [name for name, price in shop.prices().items() if price in (250, 500, 750)]
    assert shared
    assert run_of(app, run.id).seen == len(shop.prices()) + len(shared)
    check_complete(app, run.id, shop)


# Keys and tokens


class Keyed(Catalogue):
    paging: Paging = Keyset()

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        self.shop._request("page", part, cursor)
        found = sorted(self.shop.select(part, window), key=lambda it: it["id"])
        later = [it for it in found if cursor.after is None or it["id"] > cursor.after][: cursor.limit]
        return Page(later, next=later[-1]["id"] if later else None)


class Tokened(Keyed):
    paging = Token()

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        page = await super().fetch(part, window, cursor)
        return Page(page.items, next=page.next if len(page.items) == cursor.limit else None)


@pytest.mark.parametrize("feed", [Keyed, Tokened])
def test_pages_by_key_and_by_token_are_read_to_their_end(app: Stepfast, feed: type[Catalogue]) -> None:
    shop = Shop.with_items(45)
    run = read(app, shop, feed)

    check_complete(app, run.id, shop)
    assert partitions(app, run.id)[0]["next_offset"] == 45


class Uncounted(Catalogue):
    """Cannot count, and says itself where its pages end."""

    paging = Token()
    count = Feed.count  # type: ignore[assignment]

    async def fetch(self, part: Range, window: Window, _: Cursor, /) -> Page:
        return Page(self.shop.select(part, window))


def test_a_partition_of_one_page_ends_with_its_first_request(app: Stepfast) -> None:
    """(F5)"""
    shop = Shop.with_items(9)
    run = read(app, shop, Uncounted)

    assert [it["decision"] for it in pages(app, run.id)] == ["verified"]
    check_complete(app, run.id, shop)


@pytest.mark.parametrize("answer", [-1, "many", None, True])
def test_a_count_that_is_no_count_fails_the_partition_with_a_sentence(app: Stepfast, answer: Any) -> None:
    """(F17)"""
    run = read(app, Shop.with_items(10), miscount=lambda _: answer)

    assert run.state == "failed"
    assert "count() answered" in partitions(app, run.id)[0]["last_error"]
