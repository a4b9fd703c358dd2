"""A token sealed for the database: who reads the row without STEPFAST_SECRET_KEY has nothing."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final

from stepfast.errors import SealedError
from stepfast.sealing import Keyring, split

if TYPE_CHECKING:
    from stepfast.diamonds.settings import NivodaSettings

PURPOSE: Final = "token of Nivoda"


class Seal:
    """Closes and opens tokens, and names the row in which they are."""

    def __init__(self, secret_key: str) -> None:
        self._keys = Keyring(split(secret_key), extra="diamonds")
        self._keys.require()

    def close(self, text: str) -> str:
        return self._keys.seal(text, PURPOSE)

    def open(self, sealed: str) -> str | None:
        """None: it was closed with another key, or changed since."""
        try:
            return self._keys.open(sealed, PURPOSE)
        except SealedError:
            return None

    def name(self, settings: NivodaSettings) -> str:
        """Of the row: another account, password or key is another one, and none of them can be read from it."""
        username, password = settings.credentials
        text = f"{settings.url}\0{username}\0{password}"
        return hmac.new(self._keys.derived("nivoda name"), text.encode(), hashlib.sha256).hexdigest()[:32]
