"""Messages about runs are read, or refused with a reason; never guessed."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from stepfast.runs.messages import ConsolidationHint, UnreadableHint, WorkItemHint, read_hint

RUN = "0b9d2a7e-1111-7000-8000-000000000001"


def item(**changes: Any) -> str:
    told = {
        "type": "WORK_ITEM",
        "runId": RUN,
        "traceId": "t",
        "partitionId": "partition-5",
        "minPrice": 1000,
        "maxPrice": 2000,
        "totalRecords": 900,
        "offset": 30,
        "limit": 30,
        "offsetStart": 30,
        "offsetEnd": 60,
        "schemaVersion": 1,
        "epoch": 2,
    }
    return json.dumps({name: value for name, value in (told | changes).items() if value != "missing"})


def test_a_work_item_names_a_page_of_a_partition() -> None:
    assert read_hint(item()) == WorkItemHint(RUN, 5, 2, 30)


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(item()),  # JSON.stringify, and the JavaScript SDK of Service Bus once more
        base64.b64encode(item().encode()).decode(),
        base64.b64encode(item().encode("utf-16")).decode(),
        f"\ufeff{item()}",
    ],
    ids=["JSON string", "base64", "UTF-16", "mark"],
)
def test_a_work_item_is_understood_in_what_other_programs_wrap_it(body: str) -> None:
    assert read_hint(body) == read_hint(item())


def test_fields_that_nobody_knows_are_left_alone() -> None:
    assert read_hint(item(colour="blue", range={"shape": ["ROUND"]})) == WorkItemHint(RUN, 5, 2, 30)


def test_a_work_item_of_an_older_sender_means_any_page_of_any_epoch() -> None:
    assert read_hint(item(offset="missing", epoch="missing", schemaVersion="missing")) == WorkItemHint(
        RUN, 5, None, None
    )


@pytest.mark.parametrize("name", ["5", "partition-5"])
def test_a_partition_is_named_by_its_number(name: str) -> None:
    assert read_hint(item(partitionId=name)) == WorkItemHint(RUN, 5, 2, 30)


@pytest.mark.parametrize(
    "name", ["price-1000", "partition-", "partition--1", "partition-٣", "partition-" + "9" * 10]
)
def test_a_partition_that_none_of_ours_can_be_is_not_mistaken_for_one(name: str) -> None:
    assert read_hint(item(partitionId=name)) == WorkItemHint(RUN, None, 2, 30)


@pytest.mark.parametrize(("force", "means"), [(True, True), (False, False), ("missing", False)])
def test_a_consolidation_may_be_forced(force: object, means: bool) -> None:  # noqa: FBT001 - a case
    found = read_hint(item(type="CONSOLIDATE", force=force, epoch="missing"))

    assert found == ConsolidationHint(RUN, None, means)


@pytest.mark.parametrize(
    ("body", "reason", "detail"),
    [
        ("{", "InvalidJson", "truncated"),
        ("", "InvalidJson", "truncated"),
        ("[" * 30_000 + "]" * 30_000, "InvalidJson", "recursion"),
        ("[1]", "InvalidMessage", "an object was expected, not list"),
        ("null", "InvalidMessage", "an object was expected, not NoneType"),
        (item(type="WORK_DONE"), "UnknownType", "type is 'WORK_DONE'"),
        (item(type="missing"), "UnknownType", "type is None"),
        (item(type=["WORK_ITEM"]), "UnknownType", "type is ["),
        (item(schemaVersion=2), "UnknownSchemaVersion", "schemaVersion is 2; 1 is known"),
        (item(schemaVersion="1"), "UnknownSchemaVersion", "schemaVersion is '1'"),
        (item(runId="missing"), "InvalidMessage", "runId is None"),
        (item(runId="x" * 200), "InvalidMessage", "1 to 128 characters"),
        (item(runId="a\0b"), "InvalidMessage", "runId"),
        (item(partitionId=5), "InvalidMessage", "partitionId is 5, not a text"),
        (item(offset="30"), "InvalidMessage", "offset is '30', not a whole number"),
        (item(offset=-1), "InvalidMessage", "offset is -1"),
        (item(offset=True), "InvalidMessage", "offset is True"),
        (item(epoch=1.5), "InvalidMessage", "epoch is 1.5"),
        (item(offset="missing", offsetStart="missing"), "InvalidMessage", "neither offset nor offsetStart"),
        (item(type="CONSOLIDATE", force="yes"), "InvalidMessage", "force is 'yes', not true or false"),
    ],
)
def test_what_is_not_understood_has_a_reason(body: str, reason: str, detail: str) -> None:
    found = read_hint(body)

    assert isinstance(found, UnreadableHint)
    assert (found.reason, detail in found.detail) == (reason, True), found
