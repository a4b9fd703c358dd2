"""Opening a transport from a URL and the environment."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stepfast.database.drivers import open_database
from stepfast.errors import ConfigurationError
from stepfast.transports.contract import MOST_DELIVERIES
from stepfast.transports.database import DatabaseTransport
from stepfast.transports.memory import MemoryTransport
from stepfast.transports.open import (
    TransportSettings,
    open_transport,
    problem_of_transport,
    transport_settings,
)
from stepfast.transports.service_bus import ServiceBusTransport
from stepfast.transports.storage_queue import StorageQueueTransport

KEYS = TransportSettings(storage_connection_string="AccountName=a;AccountKey=b", service_bus_connection_string="Endpoint=sb://x;SharedAccessKeyName=n;SharedAccessKey=k")  # fmt: skip


def test_a_name_is_enough() -> None:
    assert isinstance(open_transport("memory"), MemoryTransport)
    assert isinstance(open_transport("storage-queue", KEYS), StorageQueueTransport)
    assert isinstance(open_transport("service-bus", KEYS), ServiceBusTransport)


def test_transports_of_one_name_share_a_broker() -> None:
    here, there, elsewhere = (open_transport(f"memory://{name}") for name in ("a1", "a1", "a2"))
    assert isinstance(here, MemoryTransport)
    assert isinstance(there, MemoryTransport)
    assert isinstance(elsewhere, MemoryTransport)

    assert here.broker is there.broker
    assert here.broker is not elsewhere.broker


def test_the_database_is_the_applications_own() -> None:
    database = open_database("sqlite:///unused.db")

    assert isinstance(open_transport("database://", TransportSettings(database=database)), DatabaseTransport)
    with pytest.raises(ConfigurationError, match="own database"):
        open_transport("database://", TransportSettings())
    with pytest.raises(ConfigurationError, match="own database"):
        open_transport("database://elsewhere", TransportSettings(database=database))


def test_the_environment_says_how_to_be_let_in() -> None:
    found = transport_settings(
        {
            "AZURE_STORAGE_CONNECTION_STRING": " key-one ",
            "AZURE_STORAGE_ACCOUNT": "two",
            "SERVICEBUS_CONNECTION_STRING": "key-three",
            "AZURE_SERVICE_BUS_NAMESPACE": "four",
        }
    )

    assert (found.storage_connection_string, found.storage_account) == ("key-one", "two")
    assert (found.service_bus_connection_string, found.service_bus_namespace) == ("key-three", "four")
    assert found.most_deliveries == MOST_DELIVERIES
    assert "key-" not in repr(found)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("kafka://x", "memory://, database://, storage-queue://, service-bus://"),
        ("", "write one of"),
        ("storage-queue://account:key@host", "no keys"),
        ("storage-queue://abcdef@account", "no keys"),
        ("service-bus://x?key=abcdef", "no keys"),
        ("service-bus://ns;SharedAccessKey=abcdef", "no keys"),
        ("storage-queue://account#sig=abcdef", "no keys"),
        ("storage-queue://My_Account", "3 to 24"),
        ("storage-queue://[account", "write one of"),
        ("storage-queue://", "AZURE_STORAGE_CONNECTION_STRING"),
        ("service-bus://", "AZURE_SERVICE_BUS_CONNECTION_STRING"),
    ],
)
def test_what_names_no_transport_is_refused_with_a_sentence(url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_transport(url, TransportSettings())

    assert problem in str(refused.value)
    assert "abcdef" not in str(refused.value)


def test_a_url_may_be_looked_at_without_opening_it() -> None:
    assert problem_of_transport("service-bus") is None
    assert problem_of_transport("storage-queue://account") is None
    assert "write one of" in str(problem_of_transport("redis://x"))
    assert "own database" in str(problem_of_transport("database://elsewhere"))


def test_naming_a_transport_imports_nothing_of_azure() -> None:
    """It would cost every program half a second."""
    code = "import sys, stepfast.transports.open, stepfast.outbox.exports; print([it for it in sys.modules if it.startswith('azure')])"

    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
