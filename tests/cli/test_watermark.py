"""`stepfast watermark`, `stepfast debts` and `stepfast sweeps`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast import Sweep
from stepfast.testing import drain
from tests.support import rows
from tests.support.feeds import Catalogue, Shop, prepare, target
from tests.support.run_facts import begin, run_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from stepfast import Stepfast
    from tests.support.command_line import Cli

DEBT = """
    INSERT INTO stepfast_debt (digest, feed, name, span, window_to, run_id, opened_at, tries)
    VALUES (:digest, :feed, 'price 0..250', '{}', 1767225600000000, 'r-1', 1767225600000000, :tries)
"""


def shop_of(app: Stepfast, count: int = 20, **settings: object) -> Shop:
    shop = Shop.with_items(count)
    app.feed(Catalogue(shop, **settings))
    prepare(app)
    begin(app)
    drain(app)
    return shop


def owe(app: Stepfast, digest: str = "a", feed: str = "catalogue", tries: int = 0) -> None:
    rows.change(app, DEBT, digest=digest, feed=feed, tries=tries)


def held(app: Stepfast) -> str:
    """A run that waits for a decision about five of twenty rows."""
    shop = shop_of(app, sweep=Sweep(strikes=1))
    for number in range(5):
        shop.remove(f"d{number:05}")
    run = begin(app, kind="full")
    drain(app)
    return run.id


def test_a_document_that_was_edited_by_hand_is_told_with_the_command_that_works(
    cli: Cli, app: Stepfast, tmp_path: Path
) -> None:
    path = tmp_path / "watermark.json"
    shop_of(app, export=path.as_uri())
    drain(app, relay=True)
    assert cli.complaints("watermark", "show", "catalogue") == ""
    path.write_text('{"lastUpdatedAt":"2024-01-16T02:00:00Z"}')

    said = cli.complaints("watermark", "show", "catalogue")

    assert "stepfast watermark set catalogue --to 2024-01-16T02:00:00Z --reason" in said


def test_the_watermark_of_one_feed_or_of_all_is_shown(cli: Cli, app: Stepfast) -> None:
    assert cli("watermark", "show") == "no feed has run\n"
    shop_of(app, export="file:///tmp/stepfast-test/watermark.json")
    owe(app)

    shown = cli.json("watermark", "show", "catalogue")
    assert (shown["feed"], shown["version"], shown["open_debts"]) == ("catalogue", 1, 1)
    assert shown["watermark"] is not None
    assert [it["watermark"] for it in cli.json("watermark", "show")] == [shown["watermark"]]
    text = cli("watermark", "show", "catalogue")
    assert "file:///tmp/stepfast-test/watermark.json" in text
    assert "open debts" in text
    assert "catalogue" in cli("watermark", "show")
    assert "never run" in cli("watermark", "show", "catalog", code=1)


def test_the_watermark_is_set_with_a_reason_and_says_what_that_means(cli: Cli, app: Stepfast) -> None:
    shop_of(app)
    back = ("watermark", "set", "catalogue", "--to", "2026-01-16T02:00:00Z", "--reason", "read again")

    assert "--force" in cli(*back, code=1)
    said = cli(*back, "--force", "--by", "alice")

    assert "is at 2026-01-16 02:00:00 UTC" in said
    assert "reads again what the source changed from 2026-01-16 02:00:00 UTC" in said
    assert cli.json("watermark", "show", "catalogue")["watermark"] == "2026-01-16T02:00:00Z"
    entry = cli.json("audit", "list", "--what", "watermark.set")[0]
    assert (entry["who"], entry["why"]) == ("alice", "read again")
    forward = cli.json(
        "watermark", "set", "catalogue", "--to", "2026-01-17T00:00:00+01:00", "--reason", "known"
    )
    assert (forward["before"], forward["after"]) == ("2026-01-16T02:00:00Z", "2026-01-16T23:00:00Z")


def test_a_first_watermark_needs_the_app_that_has_the_feed(
    cli: Cli, app: Stepfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop_of(app)
    (tmp_path / "first_shop.py").write_text(
        "from stepfast import Stepfast\nfrom tests.support.feeds import Catalogue, Shop\n"
        'app = Stepfast()\napp.feed(Catalogue(Shop(), name="spare"))\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    first = ("--to", "2026-01-16T02:00:00Z", "--reason", "taken over", "--force")

    told = cli("watermark", "set", "spare", *first, code=1)
    assert "feed 'spare' has never run here" in told
    assert "(known: catalogue)" in told
    assert "--app MODULE:APP" in told
    typo = cli("watermark", "set", "spear", *first, "--app", "first_shop:app", code=1)
    assert "(known: catalogue, spare)" in typo

    assert "it was none" in cli("watermark", "set", "spare", *first, "--app", "first_shop:app")


def test_a_watermark_is_not_set_to_what_is_no_time_or_without_a_reason(cli: Cli, app: Stepfast) -> None:
    shop_of(app)

    assert "is no time" in cli("watermark", "set", "catalogue", "--to", "yesterday", "--reason", "x", code=2)
    unclear = cli("watermark", "set", "catalogue", "--to", "2026-01-16T02:00:00", "--reason", "x", code=2)
    assert "has no time zone" in unclear
    assert "--reason" in cli("watermark", "set", "catalogue", "--to", "2026-01-16T02:00:00Z", code=2)
    empty = cli(
        "watermark", "set", "catalogue", "--to", "2026-01-16T02:00:00Z", "--reason", "", "--force", code=1
    )
    assert "say why" in empty


def test_debts_are_listed_closed_and_tried_again(cli: Cli, app: Stepfast) -> None:
    assert cli("debts", "list") == "no open debts\n"
    owe(app)
    owe(app, "b", "other", tries=3)

    assert [(it["id"], it["state"]) for it in cli.json("debts", "list")] == [(2, "given up"), (1, "open")]
    assert [it["id"] for it in cli.json("debts", "list", "--feed", "other")] == [2]
    assert "price 0..250" in cli("debts", "list")
    assert cli("debts", "close", "1", "--reason", "known", "--by", "alice") == "debt 1 is closed\n"
    assert cli("debts", "retry", "2") == "debt 2 is read by the next run\n"

    assert [(it["id"], it["state"]) for it in cli.json("debts", "list")] == [(2, "open")]
    closed = cli.json("debts", "list", "--all")[1]
    assert (closed["state"], closed["reason"]) == ("closed", "known")
    assert [it["what"] for it in cli.json("audit", "list")] == ["debt.retry", "debt.close"]
    assert "is closed" in cli("debts", "close", "1", "--reason", "again", code=1)
    assert "--reason" in cli("debts", "close", "2", code=2)
    assert "no debt 9" in cli("debts", "retry", "9", code=1)
    assert cli.json("debts", "close", "2", "--reason", "x") == {"id": 2, "state": "closed"}
    assert cli.json("debts", "retry", "2") == {"id": 2, "state": "open"}


def test_a_held_sweep_is_listed_and_approved_and_undone(cli: Cli, app: Stepfast) -> None:
    assert cli("sweeps", "list") == "no sweeps\n"
    run = held(app)

    listed = cli.json("sweeps", "list", "--feed", "catalogue")[0]
    assert (listed["run_id"], listed["phase"], listed["going"], listed["living"]) == (run, "held", 5, 20)
    assert "would go" in cli("sweeps", "list")
    assert "--reason" in cli("sweeps", "approve", run, code=2)
    assert cli("sweeps", "approve", run, "--reason", "they left") == "5 rows of 20 will be marked as gone\n"
    drain(app)
    assert (run_of(app, run).state, len(target(app))) == ("completed", 15)

    assert cli("sweeps", "undo", "catalogue", "--reason", "they are back") == "5 rows are back\n"
    assert len(target(app)) == 20
    assert cli.json("sweeps", "undo", "latest", "--reason", "once more") == {"back": 0}
    assert [it["what"] for it in cli.json("audit", "list")] == ["sweep.undo", "sweep.approve"]
    assert "not held" in cli("sweeps", "approve", run, "--reason", "late", code=1)
    assert "no run" in cli("sweeps", "undo", "nobody", "--reason", "x", code=1)


def test_a_held_sweep_is_declined(cli: Cli, app: Stepfast) -> None:
    run = held(app)

    assert cli.json("sweeps", "decline", run, "--reason", "a mistake") == {"kept": 5, "living": 20}
    drain(app)

    assert (run_of(app, run).state, len(target(app))) == ("completed", 20)


def test_exports_are_a_channel_of_the_outbox(cli: Cli, app: Stepfast) -> None:
    shop_of(app, export="file:///tmp/stepfast-test/watermark.json")

    (message,) = cli.json("outbox", "list", "--channel", "export")

    assert (message["channel"], message["state"]) == ("export", "waiting")
    assert message["address"] == "file:///tmp/stepfast-test/watermark.json"
    assert "lastUpdatedAt" in cli("outbox", "show", message["id"])
