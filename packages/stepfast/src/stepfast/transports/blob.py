"""Documents in Azure Blob Storage, replaced only by a writer that has seen the current version.

    azblob://container/folder/watermark.json

The account comes from the environment: by its connection string, or by its name and the identity of this machine.
Every version of a blob has an ETag. A write names the one it replaces (or that there is none): if another writer was
quicker the service refuses, and `BlobChangedError` is raised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote, urlsplit

from stepfast.errors import ConfigurationError
from stepfast.transports.azure import CURE, code_of, credential, raised_as_ours, storage_url
from stepfast.transports.contract import TransportError, TransportRefusedError
from stepfast.transports.open import STORAGE, STORAGE_ACCOUNT, TransportSettings

if TYPE_CHECKING:
    from azure.storage.blob import BlobClient, BlobServiceClient


NAME: Final = "blob"
SCHEME: Final = "azblob"
JSON: Final = "application/json"
EXAMPLE: Final = "azblob://exports/watermark.json"
LONGEST_NAME: Final = 1_024
CHANGED: Final = {"BlobAlreadyExists", "ConditionNotMet"}
# The library's own patience is a minute and a half; ours is the caller's.
PATIENCE: Final = {"initial_backoff": 0, "increment_base": 1, "retry_total": 2, "random_jitter_range": 0.5}
_CONTAINER: Final = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}")


class BlobChangedError(TransportError):
    """Another writer changed or created the blob meanwhile: read it again and decide anew."""


@dataclass(frozen=True)
class Address:
    """Where a blob is, inside the account."""

    container: str
    name: str

    def __str__(self) -> str:
        return f"{SCHEME}://{self.container}/{self.name}"


@dataclass(frozen=True)
class Blob:
    """A blob as it was seen."""

    etag: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""  # empty when only looked at
    size: int = 0


def address_of(url: str) -> Address:
    """Read `azblob://container/name`."""
    if (problem := problem_of_blob(url)) is not None:
        raise ConfigurationError(f"{url!r:.200}: {problem}")
    parts = urlsplit(url)
    return Address(parts.netloc, unquote(parts.path).lstrip("/"))


def problem_of_blob(url: str) -> str | None:
    """Why this names no blob; None if it does."""
    parts = urlsplit(url)
    name = unquote(parts.path).lstrip("/")
    if parts.scheme != SCHEME or not _CONTAINER.fullmatch(parts.netloc):
        return f"names no container (3 to 63 lower-case letters, digits and single -); write {EXAMPLE!r}"
    if not name or name.endswith("/") or len(name) > LONGEST_NAME or not name.isprintable():
        return f"names no blob inside the container; write {EXAMPLE!r}"
    if parts.query or parts.fragment:
        return "has a ? or # in it; keys do not belong there, and in a name write them as %3F and %23"
    return None


class BlobStore:
    """One account's blobs. Blocking, and safe to share between threads."""

    def __init__(self, settings: TransportSettings, **client_options: Any) -> None:
        self._settings = settings
        self._options = client_options
        self._stack = ExitStack()
        self._service: BlobServiceClient | None = None

    def __enter__(self) -> Self:
        self._service = self._stack.enter_context(self._opened())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._service = None

    def look(self, address: Address) -> Blob | None:
        """The version and metadata of a blob; None if there is none."""
        from azure.core.exceptions import ResourceNotFoundError

        with raised_as_ours(NAME, str(address)):
            try:
                found = self._blob(address).get_blob_properties()
            except ResourceNotFoundError:
                return None
        return Blob(str(found.etag), dict(found.metadata or {}), size=int(found.size or 0))

    def read(self, address: Address) -> Blob | None:
        """A blob with its content; None if there is none."""
        from azure.core.exceptions import ResourceNotFoundError

        with raised_as_ours(NAME, str(address)):
            try:
                found = self._blob(address).download_blob()
                content = found.readall()
            except ResourceNotFoundError:
                return None
        properties = found.properties
        return Blob(str(properties.etag), dict(properties.metadata or {}), content, len(content))

    def create(
        self,
        address: Address,
        content: bytes,
        metadata: Mapping[str, str] | None = None,
        *,
        content_type: str = JSON,
    ) -> str:
        """Write a new blob, and return its version. The container is created if there is none and we may."""
        from azure.core import MatchConditions

        return self._upload(
            address, content, metadata, content_type, match_condition=MatchConditions.IfMissing
        )

    def replace(
        self,
        address: Address,
        content: bytes,
        etag: str,
        metadata: Mapping[str, str] | None = None,
        *,
        content_type: str = JSON,
    ) -> str:
        """Write over the version that was seen, and return the new one."""
        from azure.core import MatchConditions

        return self._upload(
            address, content, metadata, content_type, etag=etag, match_condition=MatchConditions.IfNotModified
        )

    def check(self) -> None:
        """Raise a `TransportError` unless we can sign in to the account."""
        with raised_as_ours(NAME, "the account"):
            next(iter(self._client().list_containers(results_per_page=1)), None)

    def _upload(
        self,
        address: Address,
        content: bytes,
        metadata: Mapping[str, str] | None,
        content_type: str,
        **condition: Any,
    ) -> str:
        from azure.core.exceptions import (
            ResourceExistsError,
            ResourceModifiedError,
            ResourceNotFoundError,
        )
        from azure.storage.blob import ContentSettings

        def upload() -> dict[str, Any]:
            return self._blob(address).upload_blob(
                content,
                overwrite=True,  # as far as the condition allows
                metadata=dict(metadata or {}),
                content_settings=ContentSettings(content_type=content_type),
                **condition,
            )

        with raised_as_ours(NAME, str(address)):
            try:
                try:
                    found = upload()
                except ResourceNotFoundError:
                    self._make(address.container)
                    found = upload()
            except (ResourceExistsError, ResourceModifiedError) as error:
                if code_of(error) not in CHANGED:
                    raise  # locked by a lease, archived, …: a person has to look
                raise BlobChangedError(NAME, f"{address}: somebody else wrote it meanwhile") from error
        return str(found["etag"])

    def _make(self, container: str) -> None:
        from azure.core.exceptions import ResourceExistsError

        try:
            self._client().create_container(container)
        except ResourceExistsError:
            return

    def _blob(self, address: Address) -> BlobClient:
        return self._client().get_blob_client(address.container, address.name)

    def _client(self) -> BlobServiceClient:
        if self._service is None:
            raise TransportRefusedError(NAME, "the store is not open")
        return self._service

    def _opened(self) -> BlobServiceClient:
        try:
            from azure.storage.blob import BlobServiceClient
        except ImportError as missing:
            raise ConfigurationError(f"Blob Storage needs an extra: {CURE}") from missing
        options = {"connection_timeout": 5, "read_timeout": 30, **PATIENCE, **self._options}
        settings = self._settings
        try:
            if settings.storage_connection_string:
                return BlobServiceClient.from_connection_string(settings.storage_connection_string, **options)
            if settings.storage_account:
                who = self._stack.enter_context(credential())
                return BlobServiceClient(storage_url(settings.storage_account, "blob"), who, **options)
        except ValueError as error:
            raise TransportRefusedError(
                NAME, f"the connection string or account cannot be read: {error}"
            ) from error
        raise ConfigurationError(
            f"blobs: set {STORAGE}, or {STORAGE_ACCOUNT} where a managed identity may use it"
        )
