"""Texts sealed for the database: without STEPFAST_SECRET_KEY the row is unreadable.

The variable holds one key or several, separated by commas: the first one seals and signs, all of them open. A sealed
text is a JSON document that names its key, so that it fits wherever JSON is stored and says which key it needs. The
key itself never seals anything: from it one is derived for each use, so that none gives another away.

A sealed text opens for its purpose only ("payload of mail"), and for the job or event that owns it: copied into the row of
another one, it does not open (version 2). Texts without an owner, and those of before there were owners, are of version 1.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from base64 import b64decode, b64encode
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from stepfast.errors import ConfigurationError, PlainTextError, SealedError, install_hint

if TYPE_CHECKING:
    from collections.abc import Sequence


SECRET_KEY: Final = "STEPFAST_SECRET_KEY"  # noqa: S105 - the name of a variable
SHORTEST_KEY: Final = 32  # characters
MARK: Final = '{"stepfast.sealed":"'  # how a sealed text begins
NEW_KEY: Final = "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
ENCRYPTED: Final = "encrypted"  # shown instead of what is sealed
_UNOWNED, _OWNED = "1", "2"  # versions
_FEWEST_CHARACTERS: Final = 8  # that are different, in a key
_SHORTEST_CYCLE: Final = 16  # a key that repeats fewer characters than that can be guessed
_NONCE: Final = 12  # bytes, as AES-GCM wants them


Encryption = (
    bool | Literal["mixed"]
)  # True: encrypted, and plain text is refused; "mixed": plain text is still read


def checked_encryption(what: str, given: object) -> Encryption:
    """What `encrypted=…` says."""
    if given is True or given is False or given == "mixed":
        return given
    raise ConfigurationError(
        f"{what}: encrypted={given!r:.80}: True, False, or 'mixed' (encrypt what is new, and still read plain text)"
    )


class _Document(msgspec.Struct):
    key: str = msgspec.field(name="stepfast.sealed")
    text: str


class Sealed:
    """A value that was sealed before it is stored."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Keyring:
    """Seals and signs under its first key; opens and checks under any of them."""

    def __init__(self, secrets: Sequence[str]) -> None:
        check(secrets)
        self._secrets = {key_id(it): it.encode() for it in secrets}
        self.current = next(iter(self._secrets))
        self._ciphers: dict[str, Any] = {}

    @classmethod
    def of(cls, text: str) -> Keyring:
        """The keys of a text like that of STEPFAST_SECRET_KEY: separated by commas, the current one first."""
        return cls(split(text))

    def require(self) -> None:
        """Raise now if sealing cannot work here, and not in the middle of something."""
        self._cipher(self.current)

    def seal(self, text: str, purpose: str, owner: str | None = None) -> str:
        """The text as it is stored. It opens only for the same purpose and owner: a payload cannot pass for a result."""
        nonce = os.urandom(_NONCE)
        version = _UNOWNED if owner is None else _OWNED
        sealed = self._cipher(self.current).encrypt(nonce, text.encode(), _bound(version, purpose, owner))
        document = _Document(f"{version}.{self.current}", b64encode(nonce + sealed).decode())
        return msgspec.json.encode(document).decode()

    def open(self, sealed: str, purpose: str, owner: str | None = None) -> str:
        """The text; raises `SealedError` where no key here opens it."""
        try:
            document = msgspec.json.decode(sealed, type=_Document)
            version, _, name = document.key.partition(".")
            raw = b64decode(document.text, validate=True)
        except ValueError:  # msgspec's errors are
            raise SealedError(purpose, "what is stored is damaged") from None
        if version not in {_UNOWNED, _OWNED}:
            raise SealedError(purpose, f"it was sealed by a newer version ({version[:10]!r})")
        if name not in self._secrets:
            known = ", ".join(self._secrets)
            raise SealedError(purpose, f"it needs key {name[:16]}, and {SECRET_KEY} has {known} here")
        from cryptography.exceptions import InvalidTag

        cipher = self._cipher(name)
        try:
            bound = _bound(version, purpose, owner)
            return str(cipher.decrypt(raw[:_NONCE], raw[_NONCE:], bound).decode())
        except (InvalidTag, ValueError):
            raise SealedError(purpose, "it was changed, or is not what it is taken for") from None

    def reencrypt(self, sealed: str, purpose: str, owner: str | None = None) -> str:
        """Encrypt the text with the current key and for its owner; unchanged if it already is."""
        version = _UNOWNED if owner is None else _OWNED
        if sealed.startswith(f"{MARK}{version}.{self.current}"):
            return sealed
        return self.seal(self.open(sealed, purpose, owner), purpose, owner)

    def sign(self, text: str, purpose: str) -> bytes:
        return self._signed(self.current, text, purpose)

    def signed(self, text: str, signature: bytes, purpose: str) -> bool:
        """Whether any key here signed the text; takes the same time for right and wrong signatures."""
        found = [hmac.compare_digest(self._signed(it, text, purpose), signature) for it in self._secrets]
        return any(found)

    def derived(self, purpose: str, key: str | None = None) -> bytes:
        """A key for one purpose."""
        return hmac.new(
            self._secrets[key or self.current], f"stepfast {purpose}".encode(), hashlib.sha256
        ).digest()

    def _signed(self, key: str, text: str, purpose: str) -> bytes:
        return hmac.new(self.derived(f"sign {purpose}", key), text.encode(), hashlib.sha256).digest()

    def _cipher(self, key: str) -> Any:
        if key not in self._ciphers:
            try:
                from cryptography.hazmat.primitives.ciphers.aead import AESGCM
            except ImportError as missing:
                raise ConfigurationError(
                    f"sealing with {SECRET_KEY} needs an extra: {install_hint('encryption')}"
                ) from missing
            self._ciphers[key] = AESGCM(self.derived("seal", key))
        return self._ciphers[key]


def _bound(version: str, purpose: str, owner: str | None) -> bytes:
    """What a sealed text is bound to. No purpose holds the character between the two."""
    return (purpose if version == _UNOWNED else f"{purpose}\0{owner or ''}").encode()


def keyring() -> Keyring:
    """The keys of this process; refused in words where there are none."""
    return _read(os.environ.get(SECRET_KEY, ""))


@lru_cache(maxsize=4)  # tests change it; reading is cheap, deriving is not
def _read(text: str) -> Keyring:
    return Keyring(split(text))


def check(secrets: Sequence[str]) -> None:
    """Refuse keys that could be guessed."""
    shortest = min(map(len, secrets), default=None)
    if shortest is None or shortest < SHORTEST_KEY:
        problem = "is not set" if shortest is None else f"has a key of {shortest} characters"
        raise ConfigurationError(
            f"{SECRET_KEY} {problem}; use at least {SHORTEST_KEY} characters that nobody can guess (a comma separates keys): "
            f"{NEW_KEY}"
        )
    if any(map(_repeats, secrets)):
        raise ConfigurationError(
            f"{SECRET_KEY} has a key that repeats a few characters, which can be guessed; make a new one: {NEW_KEY}"
        )


def _repeats(secret: str) -> bool:
    """Whether a key consists of few characters, or of the same ones again and again."""
    few = len(set(secret)) < _FEWEST_CHARACTERS
    return few or any(secret[length:] == secret[:-length] for length in range(1, _SHORTEST_CYCLE))


def split(text: str) -> list[str]:
    """The keys of such a variable, the newest first."""
    return [it.strip() for it in text.split(",") if it.strip()]


def key_id(secret: str) -> str:
    """The name of a key, which does not reveal it."""
    return hmac.new(secret.encode(), b"stepfast key id", hashlib.sha256).hexdigest()[:8]


def key_ids() -> list[str]:
    """The names of the keys of this process, the one that seals first; none where none is set."""
    return [key_id(it) for it in split(os.environ.get(SECRET_KEY, ""))]


def is_sealed(text: str) -> bool:
    return text.startswith(MARK)


def opened(text: str, purpose: str, owner: str | None = None, *, plain: bool = True) -> str:
    """The text; without `plain` only if it was sealed. Without the key it can wait: `SealedError` is a transient one."""
    if not text.startswith(MARK):
        if not plain:
            raise PlainTextError(purpose)
        return text
    try:
        return keyring().open(text, purpose, owner)
    except ConfigurationError as error:
        raise SealedError(purpose, str(error)) from error


def handed_over(text: str, purpose: str, owner: str, heir: str) -> str:
    """The stored text of `owner`, as it is stored for `heir`."""
    return keyring().seal(opened(text, purpose, owner), purpose, heir) if text.startswith(MARK) else text
