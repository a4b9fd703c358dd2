"""How Nivoda is reached, from the program or from the environment. Secrets live here, and in no row, log or error.

Each field has a variable of the environment: `page_size` is NIVODA_PAGE_SIZE. The key that seals the shared token is
STEPFAST_SECRET_KEY.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from stepfast.applications import SECRET_KEY, Keyring, duration
from stepfast.errors import ConfigurationError

PRODUCTION: Final = "https://integrations.nivoda.net/api/diamonds"
STAGING: Final = "https://intg-customer-staging.nivodaapi.net/api/diamonds"
LARGEST_PAGE: Final = 50  # what the source gives at most, whatever it is asked for
SMALLEST_PAGE: Final = 20  # pages overlap
LONGEST_TIMEOUT: Final = timedelta(seconds=50)
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")

Style = Literal["bearer", "as"]
Price = Literal["dollar_per_carat", "dollar_value"]
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "auth": ("bearer", "as"),
    "partition_by": ("dollar_per_carat", "dollar_value"),
}
_NUMBERS: Final[Mapping[str, tuple[int, int]]] = {
    "page_size": (SMALLEST_PAGE, LARGEST_PAGE),
    "rate": (0, 1_000),
    "concurrency": (0, 1_000),
}


@dataclass(frozen=True, kw_only=True)
class NivodaSettings:
    """Everything has a default but the credentials, which are asked for when the source is."""

    url: str = PRODUCTION
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    auth: Style = "bearer"  # how the token is shown: as a header, or wrapped around the query
    rate: int = 25  # requests per second, over all workers and feeds; 0: no limit
    concurrency: int = 10  # requests under way, over all workers and feeds; 0: no limit
    timeout: timedelta = timedelta(seconds=45)  # of one request
    page_size: int = 30
    partition_by: Price = "dollar_per_carat"
    secret_key: str | None = field(default=None, repr=False)  # None: every process logs in for itself

    def __post_init__(self) -> None:
        # Typed as timedelta, but texts and seconds are read as well: the environment gives them, and people do.
        object.__setattr__(self, "timeout", duration(self.timeout, "NIVODA_TIMEOUT"))
        if self.timeout > LONGEST_TIMEOUT:
            raise ConfigurationError(
                f"NIVODA_TIMEOUT: at most {LONGEST_TIMEOUT.seconds} s; whoever logs in has a minute before another one tries"
            )
        _check_url(self.url)
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise ConfigurationError(
                    f"{variable(name)}={getattr(self, name)!r}: use {' or '.join(words)}"
                )
        for name, (least, most) in _NUMBERS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ConfigurationError(
                    f"{variable(name)}={value!r}: a whole number from {least} to {most:,}"
                )
        if self.secret_key is not None:
            Keyring.of(self.secret_key)  # refuses a key that is easy to guess

    @property
    def credentials(self) -> tuple[str, str]:
        """Username and password, or a sentence that says what is missing."""
        if not self.username or not self.password:
            missing = [variable(it) for it in ("username", "password") if not getattr(self, it)]
            raise ConfigurationError(
                f"Nivoda wants to know who asks: set {' and '.join(missing)} in the environment"
            )
        return self.username, self.password

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must never be shown, the longest first."""
        return tuple(
            sorted(filter(None, (self.password, self.username, self.secret_key)), key=len, reverse=True)
        )


def variable(name: str) -> str:
    """The environment's word for a field."""
    return SECRET_KEY if name == "secret_key" else f"NIVODA_{name.upper()}"


def from_environment(environment: Mapping[str, str] | None = None) -> NivodaSettings:
    """What the environment says; the rest has defaults."""
    found = os.environ if environment is None else environment
    given: dict[str, Any] = {}
    for it in fields(NivodaSettings):
        text = found.get(variable(it.name), "").strip()
        if text:
            given[it.name] = _number(it.name, text) if it.name in _NUMBERS else text
    return NivodaSettings(**given)


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{variable(name)}={text!r}: a whole number") from None


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or parts.scheme not in {"https", "http"}:
        raise ConfigurationError(
            f"NIVODA_URL: this is no address; {PRODUCTION} is the real one, {STAGING} is for tests"
        )
    if parts.username or parts.password:
        raise ConfigurationError(
            "NIVODA_URL: leave the credentials out; set NIVODA_USERNAME and NIVODA_PASSWORD"
        )
    if parts.scheme == "http" and host not in LOOPBACK:
        raise ConfigurationError(
            f"NIVODA_URL: the password would travel to {host} for all to read; use https"
        )
