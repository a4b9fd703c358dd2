"""Who we are to Azure where no key is given: the identity of the machine, the pod, or the person at the keyboard.

`DefaultAzureCredential` looks for all of them. AZURE_CLIENT_ID chooses one of several identities of a machine.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from stepfast.errors import ConfigurationError
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from azure.identity import DefaultAzureCredential
    from azure.identity.aio import DefaultAzureCredential as AsyncCredential

CURE: Final = "pip install 'stepfast[azure]'"
_ACCOUNT: Final = re.compile(r"[a-z0-9]{3,24}")
_URL: Final = re.compile(r"https?://[^\s@?#;=&]+", re.IGNORECASE)
_NAMESPACE: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,199}(:\d{1,5})?", re.IGNORECASE)


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
    if "://" in account:
        if not _URL.fullmatch(account):
            raise ConfigurationError(
                f"storage account {_without_keys(account)!r}: its URL is https://…, without keys; those are for a connection "
                "string"
            )
        return account.rstrip("/")
    if not _ACCOUNT.fullmatch(account):
        raise ConfigurationError(
            f"storage account {_without_keys(account)!r}: its name has 3 to 24 lower-case letters and digits; "
            "outside of Azure's public cloud write its URL, https://…"
        )
    return f"https://{account}.{service}.core.windows.net"


def checked_namespace(namespace: str) -> str:
    """The namespace of a Service Bus, if it can be one."""
    if not _NAMESPACE.fullmatch(namespace):
        raise ConfigurationError(
            f"Service Bus namespace {_without_keys(namespace)!r}: write its name, or name.servicebus.windows.net; with keys "
            "it is a connection string, AZURE_SERVICE_BUS_CONNECTION_STRING"
        )
    return namespace


def _without_keys(text: str) -> str:
    """What was given in the place of a name, fit to be shown."""
    return without_secrets(text.partition("?")[0].rpartition("@")[2])[:100]
