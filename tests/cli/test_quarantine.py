"""`stepfast quarantine`: list entries with their reasons, replay and discard them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support import rows
from tests.support.consolidation import catalogue, fetched, item
from tests.support.engine import drain
from tests.support.feeds import target

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.declaration import Declaration
    from tests.support.command_line import Cli


@pytest.fixture
def declared(app: Stepfast) -> Declaration:
    """A feed with two rows in quarantine: one has no price, the other one has no number for a price."""
    declared = catalogue(app, error_budget=1, map=_map)
    fetched(app, declared, [item(1), item(2, price=-1), item(3, price=-2)])
    drain(app)
    return declared


def _map(it: Any) -> dict[str, Any]:
    if it["price"] == -1:
        raise KeyError("price")
    return {"id": it["id"], "price": it["price"] if it["price"] >= 0 else None}


@pytest.mark.usefixtures("declared")
def test_list_shows_what_was_refused_and_why(cli: Cli) -> None:
    printed = cli("quarantine", "list")

    assert "d00002" in printed
    assert "KeyError" in printed
    assert [it["stage"] for it in cli.json("quarantine", "list")] == ["store", "map"]
    assert [it["item_id"] for it in cli.json("quarantine", "list", "--stage", "map")] == ["d00002"]
    assert cli.json("quarantine", "list", "--feed", "another") == []
    groups = cli.json("quarantine", "list", "--group")
    assert sorted((it["stage"], it["code"], it["rows"]) for it in groups) == [
        ("map", "KeyError", 1),
        ("store", "ConstraintError", 1),
    ]
    assert "KeyError" in cli("quarantine", "list", "--group")


@pytest.mark.usefixtures("declared")
def test_show_has_the_payload(cli: Cli) -> None:
    (entry,) = cli.json("quarantine", "list", "--code", "KeyError")

    shown = cli.json("quarantine", "show", str(entry["id"]))
    assert shown["payload"] == {"id": "d00002", "price": -1}
    assert '"price":-1' in cli("quarantine", "show", str(entry["id"]))
    assert "no entry 77" in cli("quarantine", "show", "77", code=1)


def test_replay_has_the_rows_tried_again(cli: Cli, app: Stepfast, declared: Declaration) -> None:
    declared.feed.map = lambda it: {"id": it["id"], "price": abs(it["price"])}  # type: ignore[method-assign]

    printed = cli("quarantine", "replay", "--feed", "catalogue", "--reason", "mapper 2", "--by", "alice")
    assert "2 rows are tried again" in printed
    drain(app)

    assert target(app) == {"d00001": 1, "d00002": 1, "d00003": 2}
    assert "nothing is in quarantine" in cli("quarantine", "list")
    assert {it["state"] for it in cli.json("quarantine", "list", "--all")} == {"replayed"}
    (audit,) = rows.query(
        app, "SELECT who, why, touched FROM stepfast_audit WHERE what = 'quarantine.replay'"
    )
    assert tuple(audit.values()) == ("alice", "mapper 2", 2)


@pytest.mark.usefixtures("declared")
def test_discard_asks_first_and_keeps_the_reason(cli: Cli, app: Stepfast) -> None:
    cli("quarantine", "discard", "--all", "--reason", "test items", answer="n\n", code=1)
    assert len(cli.json("quarantine", "list")) == 2

    printed = cli("quarantine", "discard", "--all", "--reason", "test items", "--yes")

    assert "2 rows discarded" in printed
    assert {it["note"] for it in cli.json("quarantine", "list", "--all")} == {"test items"}
    assert rows.count(app, "stepfast_audit", "what = 'quarantine.discard'") == 1


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("verb", ["replay", "discard"])
def test_which_ones_must_be_said_in_one_way(cli: Cli, verb: str) -> None:
    for words in ((), ("--all", "--feed", "catalogue"), ("--id", "1", "--all")):
        assert "say which ones" in cli("quarantine", verb, *words, "--reason", "x", code=2)
