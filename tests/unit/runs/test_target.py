"""Raw rows become target rows, or get a reason why not."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast.runs.declaration import Declaration, declare
from stepfast.runs.feed import Sweep
from stepfast.runs.raw_rows import PendingRows
from stepfast.runs.target import map_rows
from tests.support.feeds import Catalogue, Shop

COLUMNS = {"id": "text", "price": "integer", "stale_since": "bigint", "deleted_at": "bigint"}


def feed(**settings: Any) -> Declaration:
    return declare(Catalogue(Shop(), **settings))


def waiting(*payloads: str) -> PendingRows:
    return PendingRows.of([(f"d{number}", f"h{number}", payload) for number, payload in enumerate(payloads)])


def test_rows_are_mapped_in_their_order() -> None:
    batch = map_rows(feed(), waiting('{"id":"a","price":1}', '{"id":"b","price":2}'), COLUMNS)

    assert batch.raw == waiting('{"id":"a","price":1}', '{"id":"b","price":2}')
    assert batch.rows == [{"id": "a", "price": 1}, {"id": "b", "price": 2}]
    assert batch.refused == []


def test_columns_that_a_good_row_sets_back_are_part_of_it() -> None:
    declared = feed(stale="stale_since", sweep=Sweep(column="deleted_at"))

    batch = map_rows(declared, waiting('{"id":"a","price":1}'), COLUMNS)

    assert batch.rows[0] == {"id": "a", "price": 1, "stale_since": None, "deleted_at": None}


@pytest.mark.parametrize("broken", ["{", '{"id":"a"}', "null"])
def test_a_row_that_raises_is_refused_with_what_was_raised(broken: str) -> None:
    batch = map_rows(feed(mapper_version="3"), waiting(broken, '{"id":"b","price":2}'), COLUMNS)

    assert list(batch.raw.ids) == ["d1"]
    (refused,) = batch.refused
    assert (refused.item_id, refused.stage, refused.payload, refused.mapper_version) == (
        "d0",
        "map",
        broken,
        "3",
    )
    assert refused.code.endswith("Error")
    assert refused.message


def test_a_reason_keeps_no_secret_and_no_novel() -> None:
    def broken(item: Any) -> Any:
        raise RuntimeError(f"password=hunter2 {'x' * 10_000} {item}")

    (refused,) = map_rows(feed(map=broken), waiting("{}"), COLUMNS).refused

    assert refused.message.startswith("password=*** xxx")
    assert len(refused.message) <= 2_000


def test_every_set_of_columns_is_looked_at() -> None:
    answers = iter([{"id": 1}, {"id": 2, "price": 2}, {"id": 3, "prize": 3}, {"id": 4}, {"id": None}])

    batch = map_rows(feed(map=lambda _: next(answers)), waiting(*["{}"] * 5), COLUMNS)

    assert list(batch.raw.ids) == ["d0", "d1", "d3"]
    assert [(it.item_id, it.code) for it in batch.refused] == [("d2", "unknown column"), ("d4", "no key")]
