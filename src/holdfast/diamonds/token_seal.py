"""A token sealed for the database: who reads the row without HOLDFAST_SECRET_KEY has nothing."""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING

from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.diamonds.settings import NivodaSettings


class Seal:
    """Closes and opens texts under one key. Keys for different purposes are derived from it, so none gives another away."""

    def __init__(self, secret_key: str) -> None:
        try:
            from cryptography.fernet import Fernet
        except ImportError as missing:
            raise ConfigurationError(
                "HOLDFAST_SECRET_KEY is set, and sealing the token needs an extra: pip install 'holdfast[diamonds]'"
            ) from missing
        self._key = secret_key.encode()
        self._fernet = Fernet(urlsafe_b64encode(self._derived("seal")))

    def close(self, text: str) -> str:
        return self._fernet.encrypt(text.encode()).decode()

    def open(self, sealed: str) -> str | None:
        """None: it was closed with another key, or changed since."""
        from cryptography.fernet import InvalidToken

        try:
            return self._fernet.decrypt(sealed.encode()).decode()
        except InvalidToken:
            return None

    def name(self, settings: NivodaSettings) -> str:
        """Of the row: another account, password or key is another one, and none of them can be read from it."""
        username, password = settings.credentials
        text = f"{settings.url}\0{username}\0{password}"
        return hmac.new(self._derived("name"), text.encode(), hashlib.sha256).hexdigest()[:32]

    def _derived(self, purpose: str) -> bytes:
        return hmac.new(self._key, f"holdfast nivoda {purpose}".encode(), hashlib.sha256).digest()
