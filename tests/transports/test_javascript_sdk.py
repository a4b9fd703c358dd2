"""The emulator answers Azure's SDK for JavaScript (the version is in tests/javascript/package.json)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from stepfast_emulators.service_bus import ServiceBusEmulator
from tests.support.javascript import FOLDER, service_bus


@pytest.fixture(scope="module")
def emulator() -> Iterator[ServiceBusEmulator]:
    with ServiceBusEmulator() as found:
        yield found


def test_messages_without_an_id_get_one_and_can_be_settled_in_every_way(emulator: ServiceBusEmulator) -> None:
    emulator.add_queue("plain", lock="1m", max_deliveries=5)

    seen = service_bus(emulator.connection_string, "withoutIds", "plain")

    assert seen == [
        ["string", 32, {"n": 1}, 0],
        [True, 1],
        [True, "bad", "two"],
        [True],
    ]
    content = emulator.content("plain")
    assert (content.ready, content.held, content.deferred, content.dead) == (0, 0, 0, 0)


def test_a_handler_that_subscribes_completes_its_messages(emulator: ServiceBusEmulator) -> None:
    emulator.add_queue("subscribed")

    assert service_bus(emulator.connection_string, "subscribe", "subscribed") == {
        "seen": [1, 2, 3],
        "errors": [],
    }
    assert emulator.content("subscribed").counted["completed"] == 3


def test_duplicates_are_dropped_by_their_id_and_messages_without_one_are_none(
    emulator: ServiceBusEmulator,
) -> None:
    emulator.add_queue("unique", duplicates="10m")

    assert service_bus(emulator.connection_string, "duplicates", "unique") == 3


def test_a_session_is_refused_in_words(emulator: ServiceBusEmulator) -> None:
    """Of a session that is asked for by its id, the SDK says itself what it takes for the reason."""
    emulator.add_queue("no-sessions")

    named, following = service_bus(emulator.connection_string, "session", "no-sessions")

    assert (named[0], named[1]) == ("ServiceBusError", "SessionCannotBeLocked")
    assert "Failed to create a receiver for the requested session 's-1'" in named[2]
    assert following[0] == "ServiceBusError"
    assert "A sessionful message receiver cannot be created on 'no-sessions'" in following[2]
    assert "the emulator knows none" in following[2]


def test_the_documents_name_the_version_that_is_tested() -> None:
    wanted = json.loads((FOLDER / "package.json").read_text())["dependencies"]["@azure/service-bus"]
    guide = (FOLDER.parents[1] / "docs/howto/service-bus-emulator.md").read_text()

    assert f"JavaScript {wanted.rpartition('.')[0]};" in guide
