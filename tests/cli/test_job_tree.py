"""`stepfast jobs tree`, and `--tree`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import rows
from tests.support.jobs_in_every_state import died, greeting

if TYPE_CHECKING:
    from stepfast import Stepfast
    from tests.support.command_line import Cli

pytestmark = pytest.mark.sampled


def test_a_tree_is_shown_cancelled_and_revived(cli: Cli, app: Stepfast) -> None:
    greet = greeting(app)
    root = greet.enqueue(id="root")
    greet.enqueue(id="child", after=root, on_dead="fail")

    lines = cli.json("jobs", "tree", "root")
    text = cli("jobs", "tree", "root")

    assert [(it["depth"], it["id"], it["state"], it["edge"]) for it in lines] == [
        (0, "root", "ready", None),
        (1, "child", "waiting", "open"),
    ]
    assert "└ child" in text
    assert "after, open, on_dead=fail" in text
    assert cli("jobs", "cancel", "root", "--tree", "--by", "alice") == "job root is cancelled\n"
    assert rows.state(app, "child") == "cancelled"
    assert cli("jobs", "retry", "root", "--tree") == "job root is ready\n"
    assert rows.state(app, "child") == "waiting"


def test_a_job_is_shown_with_its_parents_and_children(cli: Cli, app: Stepfast) -> None:
    greet = greeting(app)
    greet.enqueue(id="one")
    greet.enqueue(id="two", after="one")

    assert [it["id"] for it in cli.json("jobs", "show", "two")["parents"]] == ["one"]
    assert [it["id"] for it in cli.json("jobs", "show", "one")["children"]] == ["two"]
    assert "after" in cli("jobs", "show", "two")
    assert [it["id"] for it in cli.json("jobs", "list", "--state", "waiting")] == ["two"]
    assert cli.json("queues", "list")[0]["waiting"] == 1


def test_a_job_whose_parents_are_dead_says_that_it_waits_when_it_is_revived(cli: Cli, app: Stepfast) -> None:
    greet = greeting(app)
    parent = died(app, greet)
    child = greet.enqueue(after=parent, on_dead="fail").id

    assert "waits for the jobs that it comes after" in cli("jobs", "retry", child)


@pytest.mark.only_on("sqlite")
def test_a_tree_of_a_job_that_nobody_knows_is_refused(cli: Cli) -> None:
    assert "there is no job nowhere" in cli("jobs", "tree", "nowhere", code=1)
    assert "there is no job nowhere" in cli("jobs", "cancel", "nowhere", "--tree", code=1)
