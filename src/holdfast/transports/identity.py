"""Who we are to Azure where no key is given: the identity of the machine, the pod, or the person at the keyboard.

`DefaultAzureCredential` looks for all of them. AZURE_CLIENT_ID chooses one of several identities of a machine.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from holdfast.errors import ConfigurationError
from holdfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from azure.identity import DefaultAzureCredential
    from azure.identity.aio import DefaultAzureCredential as AsyncCredential

CURE: Final = "pip install 'holdfast[azure]'"
_ACCOUNT: Final = re.compile(r"[a-z0-9]{3,24}")


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
        return account.rstrip("/")
    if not _ACCOUNT.fullmatch(account):
        raise ConfigurationError(
            f"storage account {without_secrets(account)[:100]!r}: its name has 3 to 24 lower-case letters and digits; "
            "outside of Azure's public cloud write its URL, https://…"
        )
    return f"https://{account}.{service}.core.windows.net"
