"""`stepfast diamonds migrate` and `stepfast diamonds rules`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.testing import drain
from tests.diamonds.offers import catalogue, offer
from tests.support import rows

if TYPE_CHECKING:
    from pathlib import Path

    from stepfast import Stepfast
    from tests.support.command_line import Cli


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Twice the price for everything."""
    return rules(tmp_path / "double.json", name="double")


def rules(path: Path, **more: Any) -> Path:
    path.write_text(json.dumps({"pricing": [{"priority": 1, "price_min": 0, "margin_modifier": 60}], **more}))
    return path


def synced(app: Stepfast) -> None:
    catalogue(app, [offer("a", 100_000), offer("b", 700_000)])
    app.runs.start("nivoda-natural")
    drain(app)


def test_the_tables_are_created_by_a_command_and_missed_with_its_name(cli: Cli) -> None:
    for words in (
        ("list",),
        ("show", "1"),
        ("dry-run", "1"),
        ("reprice",),
        ("activate", "1", "--reason", "x"),
    ):
        assert "run `stepfast diamonds migrate` once" in cli("diamonds", "rules", *words, code=1)

    assert "CREATE TABLE IF NOT EXISTS diamonds" in cli("diamonds", "migrate", "--print")
    assert cli("diamonds", "migrate") == cli("diamonds", "migrate")
    assert "default tiers" in cli("diamonds", "rules", "list")


def test_rules_are_imported_tried_activated_and_listed(cli: Cli, app: Stepfast, file: Path) -> None:
    synced(app)

    assert "rule set 2 is stored" in cli("diamonds", "rules", "import", str(file), "--by", "alice")
    assert "rule set 2 already" in cli("diamonds", "rules", "import", str(file))
    tried = cli.json("diamonds", "rules", "dry-run", "2")
    assert (tried["stones"], tried["changed"], tried["dearer"]) == (2, 2, 2)
    assert (tried["before"], tried["after"]) == ("10950.00", "16000.00")
    assert "2: 2 dearer, 0 cheaper" in cli("diamonds", "rules", "dry-run", "2")
    assert "+47.06" in cli("diamonds", "rules", "dry-run", "2")

    said = cli("diamonds", "rules", "activate", "2", "--reason", "spring", "--by", "alice")

    behind = "2 stones have the price of another rule set; reprice: stepfast diamonds rules reprice\n"
    assert said == f"rule set 2 is active, it was 1\n{behind}"
    assert cli("diamonds", "rules", "list").endswith(behind)
    shown = cli.json("diamonds", "rules", "list")
    assert [(it["version"], it["active"], it["stones"]) for it in shown] == [(2, True, 0), (1, False, 2)]
    audit = cli.json("audit", "list")[:2]
    assert [(it["what"], it["subject"], it["who"]) for it in audit] == [
        ("rules.activate", "2", "alice"),
        ("rules.import", "2", "alice"),
    ]
    assert audit[0]["why"] == "spring"


def test_stones_are_repriced_and_that_is_taken_back(cli: Cli, app: Stepfast, file: Path) -> None:
    synced(app)
    assert cli("diamonds", "rules", "repricings") == "nothing was repriced\n"
    cli("diamonds", "rules", "import", str(file))
    activated = cli.json("diamonds", "rules", "activate", "2", "--reason", "spring", "--reprice")
    assert (activated["stones"], activated["before"]) == (2, 1)
    again = cli.json("diamonds", "rules", "reprice")
    assert (again["job"], again["created"]) == (activated["job"], False)
    drain(app)

    (done,) = cli.json("diamonds", "rules", "repricings")
    assert (done["state"], done["changed"], done["to_version"]) == ("completed", 2, 2)
    assert "completed" in cli("diamonds", "rules", "repricings")
    assert "--reason" in cli("diamonds", "rules", "revert", done["id"], code=2)
    assert "rule set 1 is active again" in cli(
        "diamonds", "rules", "revert", done["id"], "--reason", "too dear"
    )
    drain(app)

    assert cli.json("diamonds", "rules", "repricings")[0]["state"] == "reverted"
    assert [it["stones"] for it in cli.json("diamonds", "rules", "list")] == [0, 2]
    assert "active by now" in cli("diamonds", "rules", "revert", done["id"], "--reason", "again", code=1)
    assert "no repricing" in cli("diamonds", "rules", "revert", "nobody", "--reason", "x", code=1)


def test_a_run_that_is_held_for_its_rules_goes_on_after_the_command(
    cli: Cli, app: Stepfast, file: Path
) -> None:
    catalogue(app, [offer("a", 100_000)])
    for table in ("pricing_rule_sets", "pricing_rules"):
        rows.change(app, f"DELETE FROM {table}")
    app.runs.start("nivoda-natural")
    drain(app)
    assert "rule set 1 is gone; import the rules with: stepfast diamonds rules import FILE" in cli(
        "runs", "show", "latest"
    )

    said = cli("diamonds", "rules", "import", str(file), "--by", "alice")
    drain(app, with_scheduled=True)

    assert said == (
        "rule set 2 is active, because no other one could be used; runs that were held for their rules go on by themselves\n"
    )
    assert cli.json("runs", "show", "latest")["run"]["state"] == "completed"
    assert [(it["what"], it["who"]) for it in cli.json("audit", "list")[:2]] == [
        ("rules.activate", "alice"),
        ("rules.import", "alice"),
    ]


def test_the_list_says_that_no_set_is_active(cli: Cli, app: Stepfast) -> None:
    catalogue(app)
    rows.change(app, "UPDATE pricing_active SET version = 0")

    assert "no rule set is active" in cli.complaints("diamonds", "rules", "list")


def test_a_file_with_problems_is_refused_with_all_of_them(cli: Cli, tmp_path: Path) -> None:
    cli("diamonds", "migrate")
    bad = tmp_path / "bad.csv"
    bad.write_text("priority,price_min,price_max,margin_modifier\n1,0,500,6\n2,600,,lots\n3,1000,,0,\n")

    said = cli("diamonds", "rules", "import", str(bad), code=1)

    assert "nothing was imported" in said
    assert "pricing rule 2: margin_modifier 'lots' is no number" in said
    assert [it["version"] for it in cli.json("diamonds", "rules", "list")] == [1]
    assert "does not exist" in cli("diamonds", "rules", "import", str(tmp_path / "none.json"), code=2)
    bad.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read as text" in cli("diamonds", "rules", "import", str(bad), code=1)


def test_what_is_shown_can_be_imported(cli: Cli, tmp_path: Path) -> None:
    cli("diamonds", "migrate")
    shown = tmp_path / "shown.json"
    shown.write_text(cli("diamonds", "rules", "show", "1"))

    assert "rule set 1 already" in cli("diamonds", "rules", "import", str(shown))
    assert "no rule set 9" in cli("diamonds", "rules", "show", "9", code=1)


def test_doubts_are_told_and_refused_if_somebody_is_strict(cli: Cli, app: Stepfast, tmp_path: Path) -> None:
    synced(app)
    odd = rules(tmp_path / "odd.json", rating=[{"priority": 1, "rating": 9, "shape": ["ROUMD"]}])
    told = "line 1: rating rule 1: no stone has the shape 'ROUMD'; did you mean ROUND?"

    strictly = cli("diamonds", "rules", "import", str(odd), "--strict", code=1)
    assert f"{odd}: 1 doubt\n  {told}\n" in strictly
    assert "nothing was imported, because of --strict" in strictly
    assert [it["version"] for it in cli.json("diamonds", "rules", "list")] == [1]

    stored = cli.json("diamonds", "rules", "import", str(odd))
    assert (stored["version"], stored["created"], stored["doubts"]) == (2, True, [told])


def test_a_set_that_could_not_be_activated_is_told_at_the_import(
    cli: Cli, app: Stepfast, tmp_path: Path
) -> None:
    synced(app)
    other = tmp_path / "other.csv"
    other.write_text("priority,price_min,margin_modifier,feed\n1,0,6,nivoda-labgrown\n")

    (told,) = cli.json("diamonds", "rules", "import", str(other))["doubts"]
    assert "feed nivoda-natural from 0 and above, and there are such stones" in told
