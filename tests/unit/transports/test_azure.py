"""Errors of Azure's libraries: those that need a person are told apart from those that pass."""

from __future__ import annotations

import asyncio

import pytest

from stepfast.errors import ConfigurationError
from stepfast.transports.azure import checked_namespace, storage_url
from stepfast.transports.contract import TransportRefusedError
from stepfast.transports.open import open_transport, transport_settings
from stepfast.transports.storage_queue import StorageQueueTransport

NO_KEY = (
    "DefaultEndpointsProtocol=http;AccountName=acct;AccountKey=abcde;QueueEndpoint=http://127.0.0.1:9/acct"
)


def test_a_key_that_is_none_is_refused_and_not_waited_for() -> None:
    async def reach() -> None:
        async with StorageQueueTransport(connection_string=NO_KEY) as transport:
            await transport.ensure("south-tasks")

    with pytest.raises(TransportRefusedError, match="AzureSigningError") as refused:
        asyncio.run(reach())

    assert "abcde" not in str(refused.value)


@pytest.mark.parametrize("account", ["My_Account", "ab", "a" * 25, "acct.queue", "acct/x"])
def test_a_name_that_no_account_has_is_refused(account: str) -> None:
    with pytest.raises(ConfigurationError, match="3 to 24"):
        storage_url(account, "queue")


def test_an_account_is_a_name_or_a_url() -> None:
    assert storage_url("acct", "blob") == "https://acct.blob.core.windows.net"
    assert storage_url("https://acct.queue.local/", "queue") == "https://acct.queue.local"
    assert storage_url("http://127.0.0.1:10000/acct", "queue") == "http://127.0.0.1:10000/acct"


@pytest.mark.parametrize(
    "url", ["https://a.local/?sv=1&sig=c2VjcmV0", "https://me:c2VjcmV0@a.local", "sb://a.local"]
)
def test_the_url_of_an_account_has_no_keys(url: str) -> None:
    with pytest.raises(ConfigurationError, match="without keys") as refused:
        storage_url(url, "queue")

    assert "c2VjcmV0" not in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        "ns",
        "ns.servicebus.windows.net",
        "NS.ServiceBus.Windows.net:5671",
        "ns.privatelink.servicebus.windows.net",
        "ns.servicebus.chinacloudapi.cn",
        "ns.servicebus.usgovcloudapi.net",
    ],
)
def test_a_namespace_is_a_name_or_a_host_of_azure(name: str) -> None:
    assert checked_namespace(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "evil.attacker.example",
        "evilservicebus.windows.net",
        "ns.servicebus.windows.net.attacker.example",
        "localhost",
        "localhost:5672",
        "127.0.0.1",
        "evil:5671",
    ],
)
def test_another_host_is_a_namespace_only_if_the_environment_names_it(name: str) -> None:
    with pytest.raises(ConfigurationError, match="STEPFAST_AZURE_HOSTS"):
        checked_namespace(name)

    assert checked_namespace(name, ["other.example", name.upper()]) == name
    by_list = transport_settings({"STEPFAST_AZURE_HOSTS": f"other.example, {name}"})
    by_transport = transport_settings({"STEPFAST_TRANSPORT": f"service-bus://{name}"})
    by_namespace = transport_settings({"AZURE_SERVICE_BUS_NAMESPACE": name})
    for settings in (by_list, by_transport, by_namespace):
        assert open_transport(f"service-bus://{name}", settings).name == "service-bus"


@pytest.mark.parametrize(
    "name",
    [
        "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0",
        "me:c2VjcmV0@ns",
        "https://ns.servicebus.windows.net",
        "my space",
    ],
)
def test_what_is_no_namespace_is_refused_and_its_keys_are_not_shown(name: str) -> None:
    with pytest.raises(ConfigurationError, match="AZURE_SERVICE_BUS_CONNECTION_STRING") as refused:
        checked_namespace(name)

    assert "c2VjcmV0" not in str(refused.value)
