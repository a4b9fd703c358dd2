"""How messages are sent, from the program or from the environment. Secrets live here and never in a row.

Each field has a variable of the environment: `webhook_secrets` is STEPFAST_WEBHOOK_SECRETS.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final

from stepfast.clock import duration
from stepfast.config import is_whole, switch
from stepfast.errors import ConfigurationError
from stepfast.notifications.addresses import Allowed
from stepfast.notifications.webhook import UNSIGNED, Secrets

PREFIX: Final = "STEPFAST_"
SHORTEST_TIMEOUT: Final = timedelta(seconds=1)
LONGEST_TIMEOUT: Final = timedelta(seconds=30)  # half of the lease under which a destination is served
# A URL of Apprise may hold commas and spaces of its own: the next one begins where a scheme does.
_BETWEEN_URLS: Final = re.compile(r"(?<![\s,])[\s,]++(?=[A-Za-z][A-Za-z0-9+.-]*://)")


@dataclass(frozen=True, kw_only=True)
class NotificationSettings:
    """What a worker needs to send webhooks and alerts."""

    webhook_secrets: tuple[str, ...] = field(default=(), repr=False)  # webhooks are signed with each of them
    webhook_allow: tuple[str, ...] = ()  # hosts and networks inside your walls that webhooks may reach
    webhook_timeout: timedelta = timedelta(seconds=15)  # for one try, from the name to the end of the answer
    export_folders: tuple[str, ...] = ()  # where exports of feeds are written that this worker does not know
    alert_urls: tuple[str, ...] = field(default=(), repr=False)  # where alerts go: URLs of Apprise
    alert_cooldown: timedelta = timedelta(hours=1)  # how long a cause stays quiet after it was told
    alert_deaths: bool = True  # whether a job that dies raises an alert
    outbox_relay: bool = True  # whether this worker sends
    outbox_attempts: int = 12  # tries before a message is dead
    outbox_age: timedelta = timedelta(days=3)  # a message that fails at this age is dead
    outbox_retention: timedelta = timedelta(days=7)  # how long messages that were sent are kept

    def __post_init__(self) -> None:
        # Typed as timedelta, but texts and seconds are read as well: the environment gives them, and people do.
        for name in ("webhook_timeout", "alert_cooldown", "outbox_age", "outbox_retention"):
            object.__setattr__(self, name, duration(getattr(self, name), name))
        attempts: object = self.outbox_attempts
        if not is_whole(attempts):
            raise ConfigurationError(f"outbox_attempts={attempts!r}: a whole number, please")
        if not 1 <= self.outbox_attempts <= 1_000:  # noqa: PLR2004 - a sane range
            raise ConfigurationError(f"outbox_attempts={self.outbox_attempts}: must lie between 1 and 1000")
        if not SHORTEST_TIMEOUT <= self.webhook_timeout <= LONGEST_TIMEOUT:
            raise ConfigurationError(f"webhook_timeout={self.webhook_timeout}: must lie between 1s and 30s")
        for name in ("webhook_secrets", "webhook_allow", "alert_urls", "export_folders"):
            given = getattr(self, name)
            if isinstance(given, str) or not all(isinstance(it, str) for it in given):
                raise ConfigurationError(f"{name}: give a list of texts, not one text")
            object.__setattr__(self, name, tuple(given))
        for folder in self.export_folders:
            if not folder.startswith("/") or ".." in folder.split("/"):
                raise ConfigurationError(f"export_folders: {folder!r:.200} is no absolute path of a folder")
        _ = self.secrets, self.allowed  # what cannot be read is refused here, before anything starts

    @property
    def secrets(self) -> Secrets:
        return Secrets.read(self.webhook_secrets)

    @property
    def allowed(self) -> Allowed:
        return Allowed.read(self.webhook_allow)


def from_environment(environment: Mapping[str, str] | None = None) -> NotificationSettings:
    """Read the variables that are set; every problem is a sentence that names its variable."""
    given, problems = _read(os.environ if environment is None else environment)
    if problems:
        raise ConfigurationError("\n".join(problems))
    return NotificationSettings(**given)


def problems_of_environment() -> list[str]:
    """One sentence for each variable that cannot be read."""
    return _read(os.environ)[1]


def variable(name: str) -> str:
    return PREFIX + name.upper()


def _read(found: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    given: dict[str, Any] = {}
    problems = []
    for it in fields(NotificationSettings):
        text = found.get(variable(it.name), "").strip()
        if text:
            try:
                given[it.name] = _READERS[it.name](variable(it.name), text)
                _check(it.name, given[it.name])
            except ConfigurationError as error:
                problems.append(str(error))
    return given, problems


def _check(name: str, value: object) -> None:
    """Refuse a value under the name of its variable, which is what the reader can change."""
    one: dict[str, Any] = {name: value}
    try:
        NotificationSettings(**one)
    except ConfigurationError as error:
        named = str(error).startswith(name)
        rest = str(error).removeprefix(name) if named else f": {error}"
        raise ConfigurationError(variable(name) + rest) from error


def _words(_: str, text: str) -> tuple[str, ...]:
    return tuple(re.split(r"[\s,]+", text))


def _urls(_: str, text: str) -> tuple[str, ...]:
    return tuple(_BETWEEN_URLS.split(text))


def _number(name: str, text: str) -> int:
    if not text.isdigit():
        raise ConfigurationError(f"{name}={text!r}: a whole number, please")
    return int(text)


def _span(name: str, text: str) -> timedelta:
    return duration(float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else text, name)


_READERS: Final[dict[str, Callable[[str, str], Any]]] = {
    "webhook_secrets": _words,
    "webhook_allow": _words,
    "webhook_timeout": _span,
    "export_folders": _words,
    "alert_urls": _urls,
    "alert_cooldown": _span,
    "alert_deaths": switch,
    "outbox_relay": switch,
    "outbox_attempts": _number,
    "outbox_age": _span,
    "outbox_retention": _span,
}

__all__ = ["UNSIGNED", "NotificationSettings", "from_environment", "problems_of_environment", "variable"]
