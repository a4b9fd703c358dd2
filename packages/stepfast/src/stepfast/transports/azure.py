"""What the Azure adapters share: the identity they use without a key, and names of accounts.

Also here: errors of Storage (queues and blobs) as our own; those of Service Bus are in `service_bus_links.py`.

`DefaultAzureCredential` finds the identity of the machine, the pod, or the person at the keyboard; AZURE_CLIENT_ID chooses
one of several identities of a machine.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from stepfast.errors import ConfigurationError, install_hint
from stepfast.telemetry.masking import without_secrets
from stepfast.transports.contract import DeliveryLostError, TransportRefusedError, TransportUnavailableError

if TYPE_CHECKING:
    from azure.core.exceptions import AzureError
    from azure.identity import DefaultAzureCredential
    from azure.identity.aio import DefaultAzureCredential as AsyncCredential

    from stepfast.transports.contract import Delivery


CURE: Final = install_hint("azure")
_ACCOUNT: Final = re.compile(r"[a-z0-9]{3,24}")
_URL: Final = re.compile(r"https?://[^\s@?#;=&]+", re.IGNORECASE)
_NAMESPACE: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,199}(:\d{1,5})?", re.IGNORECASE)
HOSTS: Final = "STEPFAST_AZURE_HOSTS"
# Where a namespace is, in Azure's public cloud, China, for US authorities, and Germany as it once was.
ZONES: Final = (
    ".servicebus.windows.net",
    ".servicebus.chinacloudapi.cn",
    ".servicebus.usgovcloudapi.net",
    ".servicebus.cloudapi.de",
)


# In both cases the message is gone, or another consumer received it after us.
LOST: Final = {"MessageNotFound", "PopReceiptMismatch"}
LATER: Final = {408, 429}
UNSIGNED: Final = "AzureSigningError"  # the account's key is no key; each library has its own class for it
LONGEST: Final = 300


def credential() -> DefaultAzureCredential:
    """An identity for clients that block. Close it."""
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError as missing:
        raise ConfigurationError(f"an identity needs an extra: {CURE}") from missing
    return DefaultAzureCredential()


def async_credential() -> AsyncCredential:
    """An identity for clients of an event loop. Close it there."""
    try:
        from azure.identity.aio import DefaultAzureCredential
    except ImportError as missing:
        raise ConfigurationError(f"an identity needs an extra: {CURE}") from missing
    return DefaultAzureCredential()


def storage_url(account: str, service: str) -> str:
    """The URL of an account's queues or blobs. Its name is enough in Azure's public cloud; elsewhere give the URL."""
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


def checked_namespace(namespace: str, hosts: Collection[str] = ()) -> str:
    """The namespace of a Service Bus; raises if it cannot be one, and if it is outside of Azure and not among `hosts`.

    A host that is given this machine's token can use it: so none outside of Azure is, unless the environment names it.
    """
    if not _NAMESPACE.fullmatch(namespace):
        raise ConfigurationError(
            f"Service Bus namespace {_without_keys(namespace)!r}: write its name, or name.servicebus.windows.net; with keys "
            "it is a connection string, AZURE_SERVICE_BUS_CONNECTION_STRING"
        )
    host = namespace.lower()
    is_name = not re.search(r"[.:]", host) and host != "localhost"
    if is_name or host.partition(":")[0].endswith(ZONES) or host in {it.lower() for it in hosts}:
        return namespace
    raise ConfigurationError(
        f"Service Bus namespace {namespace!r}: it is no host of Azure, so it is not given this machine's token; if it is "
        f"yours (an emulator, a proxy), name it in {HOSTS} of this process"
    )


def _without_keys(text: str) -> str:
    """A text that was given as a name, fit to be shown."""
    return without_secrets(text.partition("?")[0].rpartition("@")[2])[:100]


@contextmanager
def raised_as_ours(transport: str, place: str, delivery: Delivery | None = None) -> Iterator[None]:
    """Raise errors of Azure's libraries as our own; `place` is named in them."""
    from azure.core.exceptions import AzureError

    try:
        yield
    except AzureError as error:
        if delivery is not None and code_of(error) in LOST:
            raise DeliveryLostError(transport, delivery.queue, delivery.id) from error
        kind = TransportUnavailableError if is_passing(error) else TransportRefusedError
        raise kind(transport, f"{place}: {_first_line(error)}") from error
    except (TimeoutError, ConnectionError) as error:
        raise TransportUnavailableError(transport, f"{place}: {type(error).__name__} {error}") from error


def is_passing(error: AzureError) -> bool:
    """Whether a later try may succeed: no answer, no token yet, too busy. Other errors need a person."""
    if type(error).__name__ == UNSIGNED:
        return False
    status = getattr(error, "status_code", None)
    return status is None or status in LATER or status >= 500  # noqa: PLR2004 - the server's own trouble


def _first_line(error: AzureError) -> str:
    text = str(getattr(error, "message", None) or error).strip()
    return f"{code_of(error) or type(error).__name__}: {text.splitlines()[0] if text else ''}"[:LONGEST]


def code_of(error: AzureError) -> str:
    """Azure's own code of an error: an enumeration where the library knows the code, else a text."""
    found = getattr(error, "error_code", None)
    return str(getattr(found, "value", found) or "")
