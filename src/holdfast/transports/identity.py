"""Who we are to Azure where no key is given: the identity of the machine, the pod, or the person at the keyboard.

`DefaultAzureCredential` looks for all of them. AZURE_CLIENT_ID chooses one of several identities of a machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from azure.identity import DefaultAzureCredential
    from azure.identity.aio import DefaultAzureCredential as AsyncCredential

CURE = "pip install 'holdfast[azure]'"


def credential() -> DefaultAzureCredential:
    """For clients that block. Close it."""
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError as missing:
        raise ConfigurationError(f"an identity needs an extra: {CURE}") from missing
    return DefaultAzureCredential()


def async_credential() -> AsyncCredential:
    """For clients of an event loop. Close it there."""
    try:
        from azure.identity.aio import DefaultAzureCredential
    except ImportError as missing:
        raise ConfigurationError(f"an identity needs an extra: {CURE}") from missing
    return DefaultAzureCredential()


def storage_url(account: str, service: str) -> str:
    """Where an account's queues or blobs are: its name is enough in Azure's public cloud, elsewhere give the URL."""
    return account.rstrip("/") if "://" in account else f"https://{account}.{service}.core.windows.net"
