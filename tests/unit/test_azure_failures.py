"""What Azure's libraries raise: what a person has to mend is told apart from what passes."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import ConfigurationError
from holdfast.transports.failures import TransportRefusedError
from holdfast.transports.identity import storage_url
from holdfast.transports.storage_queue import StorageQueueTransport

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
