"""Rows that cannot be stored, or have no identity, are quarantined and counted once; other rows go on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.runs.feed import Page
from stepfast.runs.paging.paginators import Token
from stepfast.runs.partitioning.partitioners import Fixed
from stepfast.runs.run import RunState
from stepfast.testing import drain
from tests.support import rows
from tests.support.feeds import Catalogue, Shop, prepare, price_ranges, target
from tests.support.run_facts import begin, check_counters, pages, run_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.run import Run
    from stepfast.runs.window import Window

HALF = "\ud800"  # of a character: Python has such texts, for example from JSON, but they have no UTF-8


class Odd(Catalogue):
    """Puts something in the place of one row."""

    odd: Callable[[dict[str, Any]], Any]
    token: str | None = None

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        page = await super().fetch(part, window, cursor)
        return Page([self.odd(it) if it["id"] == "d00003" else it for it in page.items], next=self.token)


def read(app: Stepfast, odd: Callable[[dict[str, Any]], Any], items: int = 25, **settings: Any) -> Run:
    app.feed(Odd(Shop.with_items(items), odd=odd, **({"partitioner": Fixed(price_ranges())} | settings)))
    prepare(app)
    run = begin(app)
    drain(app, with_scheduled=True, raise_errors=False)
    return run_of(app, run.id)


def the_entry(app: Stepfast) -> dict[str, Any]:
    (entry,) = rows.query(app, "SELECT * FROM stepfast_quarantine")
    return entry


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (lambda it: it | {"note": f"a{HALF}b"}, "half a character"),
        (lambda it: it | {HALF: 1}, "half a character"),
        (lambda it: it | {"note": {"deep": [HALF]}}, "half a character"),
        (lambda it: it | {"id": f"x{HALF}"}, "half a character"),
        (lambda it: it | {"weight": float("nan")}, "NaN"),
        (lambda it: it | {"weights": [1.5, {"x": float("inf")}]}, "NaN or an infinity"),
    ],
    ids=["text", "name", "deep", "id", "NaN", "infinity"],
)
def test_a_row_that_cannot_be_kept_as_it_is_goes_to_quarantine_and_the_others_go_on(
    app: Stepfast, odd: Callable[[dict[str, Any]], Any], reason: str
) -> None:
    run = read(app, odd)

    assert run.state is RunState.COMPLETED
    assert len(target(app)) == 24
    entry = the_entry(app)
    assert (entry["stage"], entry["code"], entry["state"]) == ("identify", "not storable", "open")
    assert reason in entry["message"]
    assert json.loads(entry["payload"])["price"] == 120
    assert run.rejected == 1
    check_counters(app, run.id)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (object(), "<object object at"),
        ({"deep": [10**5_000]}, "(a whole number of 16,610 bits)"),
        ({("a", 1): 2}, "['a', 1]"),
    ],
    ids=["object", "number", "name"],
)
def test_a_row_that_has_no_form_in_json_goes_to_quarantine_and_the_others_go_on(
    app: Stepfast, value: Any, kept: str
) -> None:
    run = read(app, lambda it: it | {"note": value})

    assert (run.state, run.rejected, len(target(app))) == (RunState.COMPLETED, 1, 24)
    entry = the_entry(app)
    assert (entry["stage"], entry["code"]) == ("identify", "not storable")
    assert "the row holds a value that has no form in JSON" in entry["message"]
    assert json.loads(entry["payload"])["price"] == 120
    assert kept in entry["payload"]
    check_counters(app, run.id)


def test_null_in_place_of_a_row_goes_to_quarantine_and_is_counted_once(app: Stepfast) -> None:
    run = read(app, lambda _: None)

    assert (run.state, run.rejected, len(target(app))) == (RunState.COMPLETED, 1, 24)
    entry = the_entry(app)
    assert (entry["stage"], entry["code"], entry["payload"]) == ("identify", "no identity", "null")
    assert entry["message"] == "the source gave null in place of a row"
    check_counters(app, run.id)

    app.operator.quarantine.replay()
    drain(app)
    assert (the_entry(app)["state"], len(target(app))) == ("open", 24)


def test_what_was_altered_to_be_kept_is_never_applied_by_a_replay(app: Stepfast) -> None:
    run = read(app, lambda it: it | {"weight": float("nan")})
    before = the_entry(app)
    assert json.loads(before["payload"])["weight"] == "nan"

    app.operator.quarantine.replay()
    drain(app)

    after = the_entry(app)
    assert (after["state"], after["code"], after["message"]) == ("open", before["code"], before["message"])
    assert after["run_id"] == run.id
    assert "d00003" not in target(app)


def test_a_row_that_says_null_is_a_row_like_any_other(app: Stepfast) -> None:
    run = read(app, lambda it: it | {"weight": None, "rates": [1.5, None]})

    assert (run.state, run.rejected) == (RunState.COMPLETED, 0)
    assert len(target(app)) == 25


def test_an_exception_of_identify_is_told_whatever_its_text(app: Stepfast) -> None:
    def identify(item: Any) -> str:
        if item["id"] == "d00003":
            raise ValueError(f"no {HALF} here")
        return str(item["id"])

    read(app, dict, identify=identify)

    assert "no \\ud800 here" in the_entry(app)["message"]
    assert len(target(app)) == 24


def test_a_token_that_cannot_be_stored_fails_with_a_sentence(app: Stepfast) -> None:
    run = read(app, dict, paging=Token(), token=f"t{HALF}", attempts_page=1)

    assert run.state is RunState.FAILED
    (part,) = rows.query(app, "SELECT last_error FROM stepfast_partition")
    assert r"has a next that cannot be stored: 't\ud800'" in part["last_error"]


def test_a_row_without_identity_counts_once_however_often_it_is_read(app: Stepfast) -> None:
    """Pages overlap, and a pass follows the other: the budget is about rows."""
    run = read(app, lambda _: {"price": 1})

    assert sum(it["request_offset"] == 0 for it in pages(app, run.id)) > 1
    assert (run.state, run.rejected) == (RunState.COMPLETED, 1)
    assert the_entry(app)["hits"] > 1
    check_counters(app, run.id)


def test_the_verdict_of_the_budget_says_how_many_rows_are_in_quarantine(app: Stepfast) -> None:
    app.feed(Catalogue(Shop.with_items(100), identify=_not_every_fifth, partitioner=Fixed(price_ranges())))
    prepare(app)
    run = begin(app)

    drain(app, with_scheduled=True)

    ended = run_of(app, run.id)
    assert ended.state is RunState.FAILED_QUALITY
    assert str(ended.reason).startswith("20 of 100 rows are in quarantine")
    (why, *_) = app.runs.show(run.id).why
    assert why.sentence == f"too many rows ended in quarantine: {ended.reason}"


def _not_every_fifth(item: Any) -> str | None:
    return None if int(item["id"][1:]) % 5 == 0 else str(item["id"])
