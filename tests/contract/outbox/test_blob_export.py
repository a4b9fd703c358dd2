"""The watermark export to Blob Storage follows the run's commit, whatever the storage account does meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from devtools.proxy import Proxy
from stepfast.clock import moment, new_id
from stepfast.testing import drain
from stepfast.transports.blob import Address, BlobStore
from stepfast.transports.open import TransportSettings
from tests.contract.runs.test_watermark import catalogue
from tests.contract.runs.test_watermark_export import BY_HAND, COMMAND, messages
from tests.support.run_facts import begin, run_of

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.testing.azurite import Azurite


@pytest.fixture
def cable(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The account, as this process reaches it."""
    with Proxy(azurite.ports["blob"]) as found:
        text = azurite.connection_string_through(blob_port=found.port)
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
        yield found


@pytest.fixture
def address() -> Address:
    return Address(f"c{new_id()[-12:]}", "state/watermark.json")


def document(azurite: Azurite, address: Address) -> Any:
    with BlobStore(TransportSettings(storage_connection_string=azurite.connection_string)) as store:
        found = store.read(address)
    return None if found is None else json.loads(found.content)


@pytest.mark.usefixtures("cable")
def test_a_blob_that_was_uploaded_by_hand_is_noticed_when_a_run_begins(
    app: Stepfast, azurite: Azurite, address: Address
) -> None:
    """As the documents before did it: `az storage blob upload` of another watermark.json."""
    catalogue(app, export=str(address))
    begin(app)
    drain(app, relay=True)
    begin(app)
    drain(app, relay=True)
    assert app.operator.alerts() == [], "what we wrote ourselves is ours"
    with BlobStore(TransportSettings(storage_connection_string=azurite.connection_string)) as store:
        there = store.look(address)
        assert there is not None
        store.replace(address, BY_HAND.encode(), there.etag)

    begin(app)
    drain(app)

    (told,) = app.operator.alerts()
    assert COMMAND in told.body


@pytest.mark.usefixtures("cable")
def test_the_watermark_of_a_run_is_written_to_a_blob(
    app: Stepfast, azurite: Azurite, address: Address
) -> None:
    catalogue(app, export=str(address))
    run = begin(app)

    drain(app, relay=True)

    done = run_of(app, run.id)
    found = document(azurite, address)
    assert list(found) == ["lastUpdatedAt", "lastRunId", "lastRunCompletedAt"]
    assert datetime.fromisoformat(found["lastUpdatedAt"]) == moment(done.watermark_after or 0)
    assert found["lastRunId"] == run.id


def test_an_account_that_is_away_holds_up_no_run_and_is_told(
    app: Stepfast, azurite: Azurite, address: Address, cable: Proxy
) -> None:
    catalogue(app, export=str(address))
    cable.pull()
    run = begin(app)

    drain(app, relay=True)

    assert run_of(app, run.id).state == "completed"
    (waiting,) = messages(app)
    assert (waiting["state"], waiting["attempts"]) == ("waiting", 1)
    assert str(address) in waiting["last_error"]
    assert "AccountKey" not in waiting["last_error"]
    assert str(address) in app.operator.alerts()[0].body
    cable.plug()
    app.operator.retry_message(waiting["id"])
    drain(app, relay=True)
    assert document(azurite, address)["lastRunId"] == run.id


@pytest.mark.only_on("sqlite")
def test_two_failures_in_a_row_are_one_try(
    app: Stepfast, azurite: Azurite, address: Address, cable: Proxy
) -> None:
    catalogue(app, export=str(address))
    cable.refuse_next = 2
    begin(app)

    drain(app, relay=True)

    (sent,) = messages(app)
    assert (sent["state"], sent["attempts"]) == ("sent", 1)
    assert document(azurite, address) is not None


@pytest.mark.only_on("sqlite")
@pytest.mark.usefixtures("cable")
def test_the_doctor_misses_no_queue_of_tasks_where_an_account_is_there_for_blobs(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CLIENT_ID", "STEPFAST_TRANSPORT"):
        monkeypatch.delenv(name, raising=False)

    def found() -> dict[str, str]:
        return {it.name: str(it.level) for it in app.operator.doctor() if it.name in {"broker", "blobs"}}

    assert found() == {"blobs": "ok"}
    monkeypatch.setenv("CLIENT_ID", f"client{new_id()[-12:]}")  # tasks are wanted, and their queue is missing
    assert found() == {"blobs": "ok", "broker": "warn"}
