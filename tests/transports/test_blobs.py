"""Documents in Blob Storage: each write names what it replaces, and the newest document wins."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from azure.core.exceptions import ResourceNotFoundError

from devtools.proxy import Proxy
from stepfast.clock import new_id
from stepfast.errors import ConfigurationError
from stepfast.notifications.webhook import Delivered, Failed, Patience
from stepfast.outbox import exports as blobs
from stepfast.outbox.destinations import DueMessage
from stepfast.outbox.exports import Mark, export_message, problem_of_export, write, write_blob
from stepfast.transports.blob import Address, BlobChangedError, BlobStore, address_of
from stepfast.transports.contract import TransportRefusedError, TransportUnavailableError
from stepfast.transports.open import TransportSettings
from tests.transports.brokers import REAL_ACCOUNT, REAL_STORAGE

if TYPE_CHECKING:
    from stepfast.testing.azurite import Azurite

OWNER = "feed catalogue ☃"


def accounts() -> list[str]:
    """Azurite, and a real account if the environment names one."""
    return (
        ["azurite", "azure"] if os.environ.get(REAL_STORAGE) or os.environ.get(REAL_ACCOUNT) else ["azurite"]
    )


@pytest.fixture(params=accounts())
def settings(request: pytest.FixtureRequest) -> TransportSettings:
    if request.param == "azurite":
        return TransportSettings(
            storage_connection_string=request.getfixturevalue("azurite").connection_string
        )
    return TransportSettings(
        storage_connection_string=os.environ.get(REAL_STORAGE, ""),
        storage_account=os.environ.get(REAL_ACCOUNT, ""),
    )


@pytest.fixture
def store(settings: TransportSettings) -> Iterator[BlobStore]:
    with BlobStore(settings) as found:
        yield found


@pytest.fixture
def address(settings: TransportSettings) -> Iterator[Address]:
    found = Address(f"c{new_id()[-12:]}", "state/watermark.json")
    yield found
    with BlobStore(settings) as store, suppress(ResourceNotFoundError):
        store._client().delete_container(found.container)


def text_of(store: BlobStore, address: Address) -> str | None:
    found = store.read(address)
    return None if found is None else found.content.decode()


# Compare and swap


def test_a_new_blob_is_written_once_and_its_container_made(store: BlobStore, address: Address) -> None:
    assert store.read(address) is None
    etag = store.create(address, b"1", {"by": "me"})

    with pytest.raises(BlobChangedError):
        store.create(address, b"2")

    found = store.read(address)
    assert found is not None
    assert (found.content, found.etag, found.metadata) == (b"1", etag, {"by": "me"})


def test_a_blob_is_replaced_only_by_who_saw_what_is_there(store: BlobStore, address: Address) -> None:
    first = store.create(address, b"1")
    second = store.replace(address, b"2", first)

    with pytest.raises(BlobChangedError):
        store.replace(address, b"3", first)

    assert text_of(store, address) == "2"
    assert store.replace(address, b"4", second) != second


def test_of_many_who_saw_the_same_one_wins(store: BlobStore, address: Address) -> None:
    seen = store.create(address, b"0")
    start = threading.Barrier(8)

    def attempt(number: int) -> bool:
        start.wait()
        try:
            store.replace(address, str(number).encode(), seen)
        except BlobChangedError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(attempt, range(1, 9)))

    assert won.count(True) == 1
    assert text_of(store, address) == str(won.index(True) + 1)


def test_a_leased_blob_is_a_matter_for_a_person(store: BlobStore, address: Address) -> None:
    seen = store.create(address, b"1")
    store._blob(address).acquire_lease(15)

    with pytest.raises(TransportRefusedError, match="LeaseIdMissing"):
        store.replace(address, b"2", seen)


def test_a_large_document_comes_back_whole(store: BlobStore, address: Address) -> None:
    content = bytes(range(256)) * 40_000

    store.create(address, content, content_type="application/octet-stream")

    found = store.read(address)
    assert found is not None
    assert found.content == content


def test_a_wrong_key_is_refused_without_showing_it(azurite: Azurite, address: Address) -> None:
    wrong = azurite.connection_string.replace("Eby8", "AAAA")

    with (
        BlobStore(TransportSettings(storage_connection_string=wrong)) as store,
        pytest.raises(TransportRefusedError) as refused,
    ):
        store.create(address, b"1")

    assert "AAAA" not in str(refused.value)


def test_an_account_that_does_not_answer_may_answer_later(azurite: Azurite, address: Address) -> None:
    with Proxy(azurite.ports["blob"]) as cable:
        settings = TransportSettings(
            storage_connection_string=azurite.connection_string_through(blob_port=cable.port)
        )
        with BlobStore(settings) as store:
            store.create(address, b"1")
            cable.pull()
            with pytest.raises(TransportUnavailableError):
                store.look(address)
            cable.plug()
            assert text_of(store, address) == "1"


def test_without_an_account_the_sentence_names_the_variables(address: Address) -> None:
    with (
        pytest.raises(ConfigurationError, match="AZURE_STORAGE_CONNECTION_STRING"),
        BlobStore(TransportSettings()) as store,
    ):
        store.look(address)


# Exports


def put(
    address: Address,
    settings: TransportSettings,
    text: str,
    version: int,
    *,
    made_at: int = 0,
    owner: str = OWNER,
) -> Delivered | Failed:
    return write_blob(str(address), text, Mark(owner, version, made_at or version), settings)


def test_a_newer_document_replaces_an_older_one(
    store: BlobStore, address: Address, settings: TransportSettings
) -> None:
    assert put(address, settings, '{"a": 1}', 1) == Delivered()
    assert put(address, settings, '{"a": 2}', 2) == Delivered()

    assert text_of(store, address) == '{"a": 2}\n'


def test_an_older_document_that_comes_late_changes_nothing(
    store: BlobStore, address: Address, settings: TransportSettings
) -> None:
    put(address, settings, "2", 2)

    assert put(address, settings, "1", 1) == Delivered()

    assert text_of(store, address) == "2\n"


def test_an_owner_that_began_anew_comes_later(
    store: BlobStore, address: Address, settings: TransportSettings
) -> None:
    put(address, settings, "old database", 500, made_at=1_000)

    put(address, settings, "new database", 1, made_at=2_000)

    assert text_of(store, address) == "new database\n"


def test_another_owner_is_refused(store: BlobStore, address: Address, settings: TransportSettings) -> None:
    put(address, settings, "mine", 1)

    answer = put(address, settings, "theirs", 2, owner="feed other")

    assert isinstance(answer, Failed)
    assert OWNER in answer.reason
    assert answer.patience is Patience.LITTLE
    assert text_of(store, address) == "mine\n"


def test_what_a_person_put_there_is_replaced(
    store: BlobStore, address: Address, settings: TransportSettings
) -> None:
    store.create(address, b'{"by": "hand"}')

    put(address, settings, "1", 1)

    assert text_of(store, address) == "1\n"


def test_who_was_overtaken_looks_again(
    store: BlobStore, address: Address, settings: TransportSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between our look and our write another relay writes a newer document: ours must not come on top of it."""
    put(address, settings, "1", 1)
    real = blobs._put_blob

    def overtaken(*arguments: object) -> None:
        monkeypatch.setattr(blobs, "_put_blob", real)
        put(address, settings, "3", 3)
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(blobs, "_put_blob", overtaken)

    assert put(address, settings, "2", 2) == Delivered()

    assert text_of(store, address) == "3\n"


def test_the_relay_writes_where_the_url_says(
    store: BlobStore, address: Address, settings: TransportSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", settings.storage_connection_string)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", settings.storage_account)
    message = export_message(str(address), '{"a": 1}', owner=OWNER, version=1, made_at=1)

    assert write(outgoing_of(message)) == Delivered()

    assert text_of(store, address) == '{"a": 1}\n'


def outgoing_of(message: object) -> DueMessage:
    from datetime import timedelta

    from stepfast.outbox.messages import Message

    assert isinstance(message, Message)
    return DueMessage(
        message.id,
        message.channel,
        message.destination,
        message.address,
        message.body,
        message.headers or {},
        None,
        None,
        0,
        timedelta(0),
    )


def test_a_worker_without_the_account_leaves_the_document_to_others(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT", raising=False)

    answer = write_blob(str(address), "1", Mark(OWNER, 1, 1))

    assert isinstance(answer, Failed)
    assert answer.patience is Patience.FREE


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("azblob://exports", "no blob"),
        ("azblob://exports/folder/", "no blob"),
        ("azblob://Exports/a.json", "no container"),
        ("azblob://ex/a.json", "no container"),
        ("azblob://user:key@exports/a.json", "no container"),
        ("azblob://exports/a.json?sig=abc", "keys do not belong"),
    ],
)
def test_a_url_that_names_no_blob_is_refused(url: str, problem: str) -> None:
    assert problem in str(problem_of_export(url))


def test_a_url_with_odd_characters() -> None:
    assert address_of("azblob://exports/a%20b/%3F.json") == Address("exports", "a b/?.json")
    assert problem_of_export("azblob://exports/watermark.json") is None


def test_a_write_that_names_no_version_is_noticed(
    store: BlobStore, address: Address, settings: TransportSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above bite."""

    def unconditional(self: BlobStore, at: Address, content: bytes, *_: object, **__: object) -> str:
        self._client().create_container(at.container) if self.look(at) is None else None
        return str(self._blob(at).upload_blob(content, overwrite=True)["etag"])

    monkeypatch.setattr(BlobStore, "_upload", unconditional)

    with pytest.raises(pytest.fail.Exception):
        test_a_blob_is_replaced_only_by_who_saw_what_is_there(store, address)
    with pytest.raises(AssertionError):
        test_an_older_document_that_comes_late_changes_nothing(store, address, settings)
