"""A row of the outbox does not decide which files a worker writes, and which hosts get its token."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.clock import new_id
from stepfast.notifications.settings import NotificationSettings
from stepfast.outbox import broker as outbox_broker
from stepfast.outbox.broker import broker_message
from stepfast.outbox.exports import export_message
from stepfast.outbox.messages import Message, stage
from stepfast.runs.broker import Broker
from stepfast.transports.memory import MemoryTransport, named_broker
from stepfast.worker import relay as worker_relay
from stepfast.worker.relay import Relay
from tests.support import rows
from tests.support.feeds import Catalogue, Shop

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast import Stepfast
    from stepfast.transports.contract import Transport

EXPORT = {"owner": "feed catalogue", "version": "1", "made-at": "1"}
HINT = {"message-id": "1", "subject": "s"}


def insert(app: Stepfast, channel: str, address: str, headers: dict[str, str], destination: str = "x") -> str:
    """A message as somebody writes it who can write rows, and nothing else."""
    message_id = new_id()
    rows.change(
        app,
        "INSERT INTO stepfast_outbox (id, channel, destination, address, state, created_at, since_at, due_at, headers, body) "
        "VALUES (:id, :channel, :destination, :address, 'waiting', 0, 0, 0, :headers, 'import os')",
        id=message_id,
        channel=channel,
        destination=destination,
        address=address,
        headers=json.dumps(headers),
    )
    return message_id


def staged(app: Stepfast, message: Message) -> str:
    with app.transaction() as tx:
        stage(tx, message)
    return message.id


def document(path: Path) -> Message:
    return export_message(path.as_uri(), "{}", owner="feed catalogue", version=1, made_at=1)


def relay(app: Stepfast, *, own_feeds: bool = True, **settings: Any) -> None:
    Relay(app.database, NotificationSettings(**settings), feeds=app.feeds if own_feeds else None).drain()


def message(app: Stepfast, message_id: str) -> rows.Row:
    (row,) = rows.query(app, "SELECT * FROM stepfast_outbox WHERE id = :id", id=message_id)
    return row


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The brokers that are opened, each with queues in memory instead of Azure's."""
    urls: list[str] = []

    def open_in_memory(url: str, _: object) -> Transport:
        urls.append(url)
        return MemoryTransport(named_broker("in place of Azure"))

    monkeypatch.setattr(outbox_broker, "opened", open_in_memory)
    return urls


# Files


def test_a_row_writes_no_file_that_no_feed_exports_to(app: Stepfast) -> None:
    with TemporaryDirectory() as folder:
        app.feed(Catalogue(Shop.with_items(1), export=(Path(folder) / "watermark.json").as_uri()))
        new, old = Path(folder) / "site-packages" / "evil.pth", Path(folder) / ".bashrc"
        old.write_text("alias ls=ls\n")
        ids = [insert(app, "export", it.as_uri(), EXPORT, destination=it.name) for it in (new, old)]

        relay(app)

        assert not new.parent.exists()
        assert old.read_text() == "alias ls=ls\n"
    for message_id in ids:
        waiting = message(app, message_id)
        assert (waiting["state"], waiting["attempts"]) == ("waiting", 0)
        assert "STEPFAST_EXPORT_FOLDERS" in waiting["last_error"]


def test_a_row_behind_a_good_one_is_judged_by_its_own_address(app: Stepfast, tmp_path: Path) -> None:
    app.feed(Catalogue(Shop.with_items(1), export=(tmp_path / "watermark.json").as_uri()))
    good = document(tmp_path / "watermark.json")
    staged(app, good)
    evil = insert(app, "export", (tmp_path / "evil.pth").as_uri(), EXPORT, good.destination)

    relay(app)

    assert message(app, good.id)["state"] == "sent"
    assert message(app, evil)["state"] == "waiting"
    assert sorted(it.name for it in tmp_path.iterdir()) == [".watermark.json.stepfast", "watermark.json"]


def test_a_folder_of_the_settings_may_be_written_to_and_no_link_leads_out_of_it(
    app: Stepfast, tmp_path: Path
) -> None:
    folder, outside = tmp_path / "exports", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (folder / "link").symlink_to(outside)
    inside = staged(app, document(folder / "eu" / "watermark.json"))
    led_out = insert(app, "export", (folder / "link" / "watermark.json").as_uri(), EXPORT)
    beside = insert(app, "export", (tmp_path / "exports-of-others" / "w.json").as_uri(), EXPORT, "y")

    relay(app, export_folders=(str(folder),))

    assert message(app, inside)["state"] == "sent"
    assert [message(app, it)["state"] for it in (led_out, beside)] == ["waiting", "waiting"]
    assert list(outside.iterdir()) == []


def test_a_worker_without_the_feed_leaves_the_export_to_one_that_has_it(
    app: Stepfast, another_app: Callable[[], Stepfast], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_relay, "LEFT_TO_OTHERS", timedelta(hours=1))
    app.feed(Catalogue(Shop.with_items(1), export=(tmp_path / "watermark.json").as_uri()))
    message_id = staged(app, document(tmp_path / "watermark.json"))

    relay(another_app(), own_feeds=False)
    left = message(app, message_id)
    relay(app)

    assert (left["state"], left["last_error"]) == ("waiting", None)
    assert left["due_at"] <= rows.now(app)
    assert message(app, message_id)["state"] == "sent"


def test_an_export_that_no_worker_may_write_is_told_to_operators_after_a_while(
    app: Stepfast, tmp_path: Path
) -> None:
    message_id = staged(app, document(tmp_path / "watermark.json"))
    rows.change(app, "UPDATE stepfast_outbox SET due_at = 1")
    relay(app)
    assert app.operator.alerts() == []

    rows.change(app, "UPDATE stepfast_outbox SET due_at = 1, since_at = since_at - :old", old=rows.HOUR)
    relay(app)

    (alert,) = app.operator.alerts()
    assert message_id in alert.body
    (found,) = (it for it in app.operator.doctor() if it.name == "outbox")
    assert "no feed of its application exports there" in found.found


def test_a_row_that_cannot_be_read_holds_up_no_other(app: Stepfast, tmp_path: Path) -> None:
    app.feed(Catalogue(Shop.with_items(1), export=(tmp_path / "watermark.json").as_uri()))
    for n, address in enumerate(("file://[::T1]/x", "http://[x", "")):
        insert(app, "export", address, EXPORT, destination=f"a{n}")
        insert(app, "broker", address, HINT, destination=f"b{n}")
    rows.change(app, "UPDATE stepfast_outbox SET headers = 'no JSON' WHERE destination = 'a2'")
    good = staged(app, document(tmp_path / "watermark.json"))

    relay(app)

    assert message(app, good)["state"] == "sent"
    assert rows.count(app, "stepfast_outbox", "state = 'waiting' AND last_error IS NOT NULL") == 6


# Brokers


def test_a_row_does_not_choose_the_broker(app: Stepfast, opened: list[str]) -> None:
    work = Broker("service-bus://shop", work_items="items")
    app.feed(Catalogue(Shop.with_items(1), transport=work))
    wrong = [
        "service-bus://evil.example:5671#items",
        "service-bus://shop#payments",
        "storage-queue://evil#items",
    ]
    ids = [insert(app, "broker", it, HINT, destination=it) for it in wrong]

    relay(app)

    assert opened == []
    for message_id in ids:
        waiting = message(app, message_id)
        assert (waiting["state"], waiting["attempts"]) == ("waiting", 0)
        assert "no worker here may send" in waiting["last_error"]


@pytest.mark.only_on("sqlite")
def test_queues_of_feeds_and_of_the_environment_are_sent_to(
    app: Stepfast, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app.feed(Catalogue(Shop.with_items(1), transport=Broker("service-bus://Shop", work_items="items")))
    monkeypatch.setenv("STEPFAST_TRANSPORT", "storage-queue")
    for url, queue in (("service-bus://shop", "items"), ("storage-queue://", "work-items")):
        staged(app, broker_message(url, queue, id=new_id(), body="{}", subject="s"))

    relay(app)

    assert sorted(opened) == ["service-bus://shop", "storage-queue://"]
    assert rows.count(app, "stepfast_outbox", "state = 'sent'") == 2


def test_a_row_behind_good_ones_does_not_choose_the_broker_either(
    app: Stepfast, opened: list[str], tmp_path: Path
) -> None:
    app.feed(Catalogue(Shop.with_items(1), transport=Broker("service-bus://shop", work_items="items")))
    good = broker_message("service-bus://shop", "items", id=new_id(), body="{}", subject="s")
    staged(app, good)
    evil = insert(app, "broker", "service-bus://evil.example#items", HINT, good.destination)
    file = insert(app, "export", (tmp_path / "evil.pth").as_uri(), EXPORT, good.destination)

    relay(app)

    assert opened == ["service-bus://shop"]
    assert message(app, good.id)["state"] == "sent"
    assert [message(app, it)["state"] for it in (evil, file)] == ["waiting", "waiting"]
