"""The exported watermark follows the watermark, at least once and never backwards."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.clock import moment
from stepfast.database.database import persist
from stepfast.runs import watermark
from stepfast.runs.window import Window
from stepfast.testing import drain
from tests.contract.runs.test_watermark import catalogue, made_run, synced
from tests.support import rows
from tests.support.events import hearing, named
from tests.support.feeds import Catalogue, Shop
from tests.support.run_facts import begin, run_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast
    from stepfast.database.connection import Transaction

MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out" / "watermark.json"


def moved(app: Stepfast, to: datetime) -> None:
    """The watermark moves, and its export is staged."""
    run = made_run(app, Window(None, to))
    persist(app.database, lambda tx: watermark.advance_watermark(tx, app.feeds.get("catalogue"), run))


def messages(app: Stepfast) -> list[rows.Row]:
    return rows.query(app, "SELECT * FROM stepfast_outbox WHERE channel = 'export' ORDER BY seq")


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_document_has_the_shape_that_operators_know(app: Stepfast, path: Path) -> None:
    catalogue(app, export=path.as_uri())
    run = begin(app)

    drain(app, relay=True)

    done = run_of(app, run.id)
    assert done.watermark_after is not None
    found = read(path)
    assert list(found) == ["lastUpdatedAt", "lastRunId", "lastRunCompletedAt"]
    assert datetime.fromisoformat(found["lastUpdatedAt"]) == moment(done.watermark_after)
    assert found["lastUpdatedAt"].endswith("Z")
    assert found["lastRunId"] == run.id
    assert datetime.fromisoformat(found["lastRunCompletedAt"]) >= moment(done.started_at)


def test_it_is_staged_with_the_move_and_written_after_the_commit(app: Stepfast, path: Path) -> None:
    catalogue(app, export=path.as_uri())

    synced(app)
    assert [it["state"] for it in messages(app)] == ["waiting"]
    assert not path.exists()

    drain(app, relay=True)
    assert [it["state"] for it in messages(app)] == ["sent"]


def test_a_move_that_is_rolled_back_exports_nothing(app: Stepfast, path: Path) -> None:
    catalogue(app, export=path.as_uri())
    run = made_run(app, Window(None, MIDNIGHT))

    def move_and_fail(tx: Transaction) -> None:
        assert watermark.advance_watermark(tx, app.feeds.get("catalogue"), run) is not None
        raise OSError("power cut")

    with pytest.raises(OSError, match="power cut"):
        persist(app.database, move_and_fail)

    assert messages(app) == []


def test_several_moves_are_written_in_their_order(app: Stepfast, path: Path) -> None:
    catalogue(app, export=path.as_uri())
    for hour in range(5):
        moved(app, MIDNIGHT + timedelta(hours=hour))

    drain(app, relay=True)

    assert read(path)["lastUpdatedAt"] == "2026-03-01T04:00:00Z"
    assert len(messages(app)) == 5


def test_an_export_that_is_repeated_late_does_not_bring_an_older_watermark_back(app: Stepfast) -> None:
    """At least once means: perhaps once more, when newer ones are there already."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "watermark.json"
        catalogue(app, export=path.as_uri())
        moved(app, MIDNIGHT)
        moved(app, MIDNIGHT + timedelta(hours=1))
        drain(app, relay=True)
        first = messages(app)[0]["id"]
        rows.change(
            app, "UPDATE stepfast_outbox SET state = 'waiting', ended_at = NULL WHERE id = :id", id=first
        )

        drain(app, relay=True)

        assert [it["state"] for it in messages(app)] == ["sent", "sent"]
        assert read(path)["lastUpdatedAt"] == "2026-03-01T01:00:00Z"


def test_a_watermark_that_was_set_back_is_exported_too(app: Stepfast, path: Path) -> None:
    catalogue(app, export=path.as_uri())
    run = synced(app)

    app.operator.by("alice", reason="again").set_watermark("catalogue", MIDNIGHT, force=True)
    drain(app, relay=True)

    assert read(path)["lastUpdatedAt"] == "2026-03-01T00:00:00Z"
    assert read(path)["lastRunId"] == run.id


BY_HAND = '{"lastUpdatedAt":"2024-01-16T02:00:00Z","lastRunId":"abc123","lastRunCompletedAt":"2024-01-16T02:15:00Z"}'
COMMAND = 'stepfast watermark set catalogue --to 2024-01-16T02:00:00Z --reason "…"'


def test_a_document_that_was_edited_by_hand_is_noticed_when_a_run_begins(app: Stepfast, path: Path) -> None:
    """Fix Watermark Desync, as it was done before: the command that works is named."""
    catalogue(app, export=path.as_uri())
    synced(app)
    drain(app, relay=True)
    assert [it.title for it in app.operator.alerts()] == []
    path.write_text(BY_HAND)

    with hearing() as heard:
        run = begin(app)
        drain(app)

    (told,) = app.operator.alerts()
    assert (told.title, COMMAND in told.body) == ("Watermark document edited", True)
    (event,) = named(heard, "watermark.edited")
    assert (event["feed"], event["run_id"]) == ("catalogue", run.id)
    assert run_of(app, run.id).window_from is not None, "the document decides nothing"
    assert "abc123" not in told.body, "of what others write, only the instant is repeated"


def test_a_document_that_was_edited_is_noticed(app: Stepfast) -> None:
    """In a folder of its own, for the list of mutations."""
    with TemporaryDirectory() as folder:
        test_a_document_that_was_edited_by_hand_is_noticed_when_a_run_begins(
            app, Path(folder) / "watermark.json"
        )


def test_a_document_that_was_edited_during_a_run_is_noticed_when_it_is_replaced(
    app: Stepfast, path: Path
) -> None:
    catalogue(app, export=path.as_uri())
    synced(app)
    drain(app, relay=True)
    moved(app, datetime.now(UTC))
    path.write_text(BY_HAND)

    drain(app, relay=True)

    assert COMMAND in app.operator.alerts()[0].body
    assert read(path)["lastUpdatedAt"] != "2024-01-16T02:00:00Z"


def test_a_document_that_names_the_watermark_that_is_set_worries_nobody(app: Stepfast, path: Path) -> None:
    catalogue(app, export=path.as_uri())
    synced(app)
    drain(app, relay=True)
    path.write_text(json.dumps({"lastUpdatedAt": read(path)["lastUpdatedAt"]}))

    begin(app)
    drain(app)

    assert app.operator.alerts() == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"lastUpdatedAt": 7}', '{"lastUpdatedAt": "2024-01-16"}'])
def test_a_document_that_makes_no_sense_is_told_as_well(app: Stepfast, path: Path, text: str) -> None:
    catalogue(app, export=path.as_uri())
    path.parent.mkdir(parents=True)
    path.write_text(text)

    begin(app)
    drain(app)

    assert "stepfast watermark set catalogue --to TIME" in app.operator.alerts()[0].body


def test_a_place_that_cannot_be_written_is_told_and_holds_up_no_run(app: Stepfast, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    catalogue(app, export=(tmp_path / "file" / "watermark.json").as_uri())
    run = begin(app)

    drain(app, relay=True)

    assert run_of(app, run.id).state == "completed"
    waiting = messages(app)[0]
    assert (waiting["state"], waiting["attempts"]) == ("waiting", 1)
    assert str(tmp_path) in waiting["last_error"]
    told = app.operator.alerts()[0]
    assert told.title == "Export Failed"
    assert "feed catalogue" in told.body
    assert waiting["id"] in told.body

    (tmp_path / "file").unlink()
    app.operator.retry_message(waiting["id"])
    drain(app, relay=True)
    assert messages(app)[0]["state"] == "sent"


def test_feeds_of_two_applications_do_not_share_a_document(
    app: Stepfast, another_app: Callable[[], Stepfast], path: Path
) -> None:
    """Within one application that is refused when the second is registered. (F11)"""
    catalogue(app, export=path.as_uri())
    other = another_app()
    other.feed(Catalogue(Shop.with_items(3), name="other", export=path.as_uri()))
    run = begin(app)
    drain(app, relay=True)
    begin(other, "other")

    drain(other, relay=True)

    assert read(path)["lastRunId"] == run.id
    assert "feed catalogue" in messages(app)[-1]["last_error"]


def test_a_feed_that_exports_nothing_any_more_is_not_exported_by_hand_either(
    app: Stepfast, another_app: Callable[[], Stepfast], path: Path
) -> None:
    catalogue(app, export=path.as_uri())
    synced(app)
    later = another_app()
    later.feed(Catalogue(Shop.with_items(3)))
    synced(later)

    later.operator.by("alice", reason="again").set_watermark("catalogue", MIDNIGHT, force=True)

    assert len(messages(app)) == 1
    assert later.operator.watermarks()[0].watermark == MIDNIGHT


def test_the_time_of_completion_is_the_runs_own_also_after_an_operator_moved_the_watermark(
    app: Stepfast, path: Path
) -> None:
    catalogue(app, export=path.as_uri())
    run = synced(app)
    drain(app, relay=True)
    completed = app.runs.show(run.id).run.completed_at
    assert datetime.fromisoformat(read(path)["lastRunCompletedAt"]) == completed

    app.operator.by("alice", reason="read again").set_watermark("catalogue", MIDNIGHT, force=True)
    drain(app, relay=True)

    found = read(path)
    assert (found["lastUpdatedAt"], found["lastRunId"]) == ("2026-03-01T00:00:00Z", run.id)
    assert datetime.fromisoformat(found["lastRunCompletedAt"]) == completed
