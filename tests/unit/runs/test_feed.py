"""Feeds: their defaults, and the sentence with which a wrong one is refused before anything runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Stepfast
from stepfast.errors import AnswerError, ConfigurationError
from stepfast.runs.declaration import declare
from stepfast.runs.feed import Feed, Page, Sweep
from stepfast.runs.paging.paginators import Keyset, Offset, Token
from stepfast.runs.start import RunRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.window import Window


class Stones(Feed):
    """As little as a feed needs."""

    name = "stones"

    def plan(self, window: Window) -> list[Range]:  # noqa: ARG002
        return []

    async def count(self, part: Range, window: Window) -> int:  # noqa: ARG002
        return 0

    async def fetch(self, part: Range, window: Window, cursor: Cursor) -> Page:  # noqa: ARG002
        return Page([])

    def identify(self, item: Any) -> str:
        return str(item["id"])

    def map(self, item: Any) -> dict[str, Any]:
        return {"id": item["id"]}


class Cut:
    """A partitioner, as far as a feed looks at one."""

    def start(self) -> None: ...


def fetch_of_another_shape(self: Feed, cursor: Cursor) -> Page:  # noqa: ARG001
    return Page([])


def a_feed(**changes: Any) -> Feed:
    made: Feed = type("Changed", (Stones,), changes)()
    return made


def without(*methods: str) -> Feed:
    return a_feed(**{it: getattr(Feed, it) for it in methods})


def test_a_feed_reads_as_the_operators_documents_say_unless_it_says_otherwise() -> None:
    declared = declare(Stones())

    assert (declared.name, declared.table, declared.key) == ("stones", "stones", ("id",))
    assert (declared.page_size, declared.paging) == (30, Offset(overlap=3, ties=2, passes=3))
    assert (declared.batch, declared.chunk, declared.shards) == (2_000, 100, 5)
    assert (declared.attempts_page, declared.attempts_consolidation) == (5, 3)
    assert (declared.lookback, declared.settle) == (timedelta(minutes=15), timedelta(seconds=120))
    assert (declared.schedule, declared.tz, declared.counts) == (None, "UTC", True)


def test_a_feed_may_say_everything_in_one_line_of_its_class() -> None:
    class Catalogue(Stones):
        name, page_size, schedule = "catalogue", 50, "0 2 * * *"

    declared = declare(Catalogue())

    assert (declared.name, declared.page_size, declared.schedule) == ("catalogue", 50, "0 2 * * *")


def test_a_feed_may_be_set_up_when_it_is_made() -> None:
    class PerTenant(Stones):
        def __init__(self, tenant: str) -> None:
            self.name = f"stones.{tenant}"
            self.table = "stones"

    assert declare(PerTenant("acme")).name == "stones.acme"


def test_a_feed_by_token_or_key_need_not_count() -> None:
    for paging in (Token(), Keyset()):
        declared = declare(type("Uncounted", (Stones,), {"count": Feed.count, "paging": paging})())
        assert not declared.counts


def test_methods_may_be_async_or_plain() -> None:
    class Plain(Stones):
        def count(self, part: Range, window: Window) -> int:  # type: ignore[override]  # noqa: ARG002
            return 0

    assert declare(Plain()).counts


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: Stones, r"is no feed; register an instance: Stones\(\)"),
    (lambda: "stones", "is no feed; subclass stepfast.Feed"),
    (lambda: a_feed(name=""), "feed '': use 1 to 120 letters"),
    (lambda: a_feed(name="my stones"), "feed 'my stones': use 1 to 120 letters"),
    (lambda: a_feed(name="a" * 101, table="a"), "a name of 101 characters; at most 100 fit"),
    (
        lambda: a_feed(name="stones-eu"),
        "table='stones-eu': .*set table, if the feed's name is not the table's",
    ),
    (lambda: a_feed(pagesize=50), "feed 'stones': pagesize is no setting of a feed; did you mean page_size?"),
    (lambda: a_feed(page_size=0), "page_size=0: a whole number from 1 to 10,000"),
    (lambda: a_feed(page_size=True), "page_size=True: a whole number"),
    (lambda: a_feed(page_size="30"), "page_size='30': a whole number"),
    (lambda: a_feed(page_size=6), r"page_size=6 with Offset\(overlap=3\).*use at least 7"),
    (lambda: a_feed(paging=Offset), r"paging=Offset: write Offset\(\)"),
    (lambda: a_feed(paging="offset"), r"paging='offset': use Offset\(\), Token\(\) or Keyset\(\)"),
    (lambda: without("count"), r"Offset\(.*needs count\(range, window\)"),
    (lambda: a_feed(count=Feed.count, paging=Token(stable=False)), r"Token\(.*needs count\(range, window\)"),
    (lambda: without("fetch"), r"it has no fetch\(\) to read a page"),
    (lambda: without("identify", "map"), r"no identify\(\) to tell .*, no map\(\) to make a target row"),
    (lambda: without("plan"), r"neither plan\(\) nor a partitioner; give one of them"),
    (lambda: a_feed(partitioner=Cut()), r"both plan\(\) and a partitioner"),
    (lambda: a_feed(plan=Feed.plan, partitioner=Cut), "use an instance"),
    (lambda: a_feed(plan=Feed.plan, partitioner="heatmap"), "partitioner='heatmap': use an instance"),
    (
        lambda: a_feed(fetch=fetch_of_another_shape),
        r"write fetch\(self, range, window, cursor\), not fetch\(self, cursor\)",
    ),
    (lambda: a_feed(lookback="soon"), "feed 'stones': lookback: 'soon' is not a duration"),
    (lambda: a_feed(settle=-5), "settle: -5 is negative"),
    (lambda: a_feed(attempts_page=0), "attempts_page=0: a whole number from 1 to 100"),
    (lambda: a_feed(attempts_consolidation=1.5), "attempts_consolidation=1.5"),
    (lambda: a_feed(shards=0), "shards=0"),
    (lambda: a_feed(batch=50), "chunk=100 is larger than batch=50"),
    (lambda: a_feed(error_budget=5), "error_budget=5: a share of the rows, from 0 to 1"),
    (lambda: a_feed(table="stones; DROP TABLE x"), "table='stones; DROP TABLE x': letters, digits and _"),
    (lambda: a_feed(key=()), r"key=\(\): one column or more, each once"),
    (lambda: a_feed(key=("id", "id")), "one column or more, each once"),
    (lambda: a_feed(key="id, name"), "key='id, name': letters, digits and _"),
    (lambda: a_feed(schedule=""), "schedule='': a text, or leave it out"),
    (lambda: a_feed(tz=1), "tz=1: a text"),
    (lambda: a_feed(name="latest"), "latest is how commands name the newest run of all"),
    (lambda: a_feed(key=5), "key=5: a column, or a list of them"),
    (lambda: a_feed(timeout=0), "timeout=0: more than no time at all"),
    (lambda: a_feed(wait_at_most="0s"), "wait_at_most='0s': more than no time at all"),
    (lambda: a_feed(mapper_version="v" * 201), "mapper_version has 201 characters; at most 200 fit"),
    (lambda: a_feed(volatile=5), "volatile=5: names of fields"),
    (lambda: a_feed(volatile=["seen_at", 7]), "volatile=.*: names of fields"),
    (lambda: a_feed(volatile=""), "volatile='': names of fields"),
    (lambda: a_feed(ahead_at_most="0s"), "ahead_at_most='0s': more than no time at all"),
    (lambda: a_feed(confirm_gone="no"), "confirm_gone='no': True or False"),
    (lambda: a_feed(confirm_lot=0), "confirm_lot=0: a whole number from 1 to 500"),
    (
        lambda: a_feed(still_there=lambda _: []),
        r"write still_there\(self, ids\), not still_there\(self\)",
    ),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG, ids=lambda it: it[:40] if isinstance(it, str) else "")
def test_a_wrong_feed_is_refused_with_a_sentence(wrong: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        declare(wrong())


def test_what_is_called_for_every_row_must_be_a_plain_function() -> None:
    class Slow(Stones):
        async def map(self, item: Any) -> Any:  # type: ignore[override]
            return item

    with pytest.raises(
        ConfigurationError, match=r"map\(\) is called by the engine in the middle of its work"
    ):
        declare(Slow())


def test_the_source_is_asked_before_rows_go_if_it_can_be_and_may_be() -> None:
    def still_there(_: Feed, ids: Sequence[str]) -> Sequence[str]:
        return ids

    able = {"still_there": still_there, "sweep": Sweep()}

    assert declare(a_feed(**able)).confirms
    assert declare(a_feed(**able)).confirm_lot == 50
    assert not declare(a_feed(**able, confirm_gone=False)).confirms
    assert not declare(a_feed(sweep=Sweep())).confirms
    assert not declare(a_feed(still_there=still_there)).confirms


def test_one_text_is_one_field() -> None:
    assert declare(a_feed(volatile="price")).volatile == ("price",)


@pytest.mark.parametrize("url", ["ftp://eve:hunter2@shop/x.json", "file://eve:hunter2@shop/x.json"])
def test_where_nothing_can_be_exported_is_said_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"export=.*eve:\*\*\*@shop") as refused:
        declare(a_feed(export=url))

    assert "hunter2" not in str(refused.value)


def test_two_feeds_do_not_write_one_file(tmp_path: Path) -> None:
    app = Stepfast(f"sqlite:///{tmp_path / 'work.db'}")
    export = (tmp_path / "watermark.json").as_uri()
    app.feed(one := a_feed(export=export))
    app.feed(one)

    with pytest.raises(
        ConfigurationError, match=r"feed 'others': feed 'stones' writes its watermark to file:"
    ):
        app.feed(a_feed(name="others", table="stones", export=export))


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"kind": "weird"}, "'weird' is no kind of run; use full, incremental, backfill, verify"),
        ({"most_rows": "a"}, "max_rows='a': a whole number of rows"),
        ({"most_rows": 1.5}, "max_rows=1.5: a whole number of rows"),
        ({"most_rows": True}, "max_rows=True: a whole number of rows"),
        ({"most_rows": 0}, "a run of 0 rows reads nothing"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(request_: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        RunRequest(**request_)


def test_a_feed_may_have_attributes_of_its_own() -> None:
    declare(a_feed(endpoint="https://example.com", shapes=("ROUND",)))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: Offset(overlap=0), r"Offset\(overlap=0\): a whole number, 1 or more"),
        (lambda: Offset(overlap=2, ties=3), "must overlap by as many"),
        (lambda: Offset(ties=0), r"Offset\(ties=0\)"),
        (lambda: Offset(passes=0), r"Offset\(passes=0\)"),
        (
            lambda: Offset(ties=None, passes=1),
            r"Offset\(ties=None\): only two passes together prove anything",
        ),
        (
            lambda: Token(stable=False, passes=1),
            r"Token\(stable=False\): only two passes together prove anything",
        ),
        (lambda: Keyset(most_requests=0), r"Keyset\(most_requests=0\)"),
    ],
)
def test_a_paginator_that_cannot_work_is_refused(wrong: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        wrong()


@pytest.mark.parametrize("items", [None, "abc", {"items": []}, iter(())])
def test_a_page_without_a_list_of_items_is_refused(items: Any) -> None:
    with pytest.raises(AnswerError, match="for items; give a list of them"):
        Page(items)


def test_a_page_says_when_it_was_observed_with_a_time_zone_or_not_at_all() -> None:
    assert Page([]).observed_at is None
    with pytest.raises(ConfigurationError, match=r"a page's observed_at.*has no time zone"):
        Page([], observed_at=datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None))


def test_a_job_that_has_the_name_of_a_feeds_job_is_refused_in_either_order(tmp_path: Path) -> None:
    def work() -> None: ...

    first = Stepfast(f"sqlite:///{tmp_path}/unused.db")
    first.job(name="stones.page")(work)
    with pytest.raises(ConfigurationError, match=r"needs the job name 'stones.page', which is taken"):
        first.feed(Stones())

    second = Stepfast(f"sqlite:///{tmp_path}/unused.db")
    feed = second.feed(second.feed(Stones()))
    with pytest.raises(ConfigurationError, match="already registered"):
        second.job(name="stones.page")(work)
    assert second.feeds.get("stones").feed is feed


@pytest.mark.parametrize("method", ["plan", "count", "fetch", "identify", "map"])
def test_what_a_feed_does_not_write_cannot_be_called_by_mistake(method: str) -> None:
    with pytest.raises(ConfigurationError):
        getattr(Feed(), method)(*[None] * {"plan": 1, "count": 2, "fetch": 3}.get(method, 1))


def test_the_clock_of_a_source_is_ours_unless_the_feed_asks_it() -> None:
    assert Feed().now() is None
