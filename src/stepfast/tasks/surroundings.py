"""The environment as it is understood: each variable, its value fit to be shown, and where it comes from."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from typing import Any, Final

from pydantic import SecretStr

from stepfast.clock import spoken
from stepfast.config import DEFAULT_URL, MAX_CONNECTIONS
from stepfast.database.drivers import masked
from stepfast.notifications.addresses import shown as shown_addresses
from stepfast.notifications.settings import NotificationSettings, variable
from stepfast.sealing import SECRET_KEY
from stepfast.steps.callbacks import CALLBACK_URL
from stepfast.tasks.problems import DATABASE
from stepfast.tasks.settings import TaskSettings, variables
from stepfast.telemetry.masking import visible, without_secrets
from stepfast.transports.opening import shown_transport

DEFAULT: Final = "default"
ENVIRONMENT: Final = "environment"
HIDDEN: Final = "***"
URLS: Final = {"database_url", "supabase_url"}
OTHERS: Final = {
    "STEPFAST_LOG_LEVEL": ("info", "how much is logged: debug, info, warning or error"),
    "STEPFAST_LOG_FORMAT": ("console", "console for people, json for machines"),
    "STEPFAST_METRICS_PORT": ("", "where a worker serves /metrics and /healthz"),
    "STEPFAST_METRICS_HOST": ("127.0.0.1", "on which address"),
    "STEPFAST_OPERATOR": ("", "who acts, in the audit; without it user@host"),
    "STEPFAST_APP": ("", "MODULE:APP of the commands that need the code of a feed"),
    "STEPFAST_MAX_CONNECTIONS": (
        str(MAX_CONNECTIONS),
        "connections to a database server that a process may use",
    ),
    "STEPFAST_LISTEN_URL": ("", "where workers listen, if a pooler stands before the database"),
    CALLBACK_URL: ("", "where callbacks are received, as the world sees it"),
    SECRET_KEY: ("", "what is encrypted and signed with, the newest key first"),
}
MEANINGS: Final = {
    "webhook_secrets": "what webhooks are signed with",
    "webhook_allow": "hosts and networks inside your walls that webhooks may reach",
    "webhook_timeout": "for one try to deliver a webhook",
    "alert_urls": "where alerts go, as URLs of Apprise",
    "alert_cooldown": "how long a cause stays quiet after it was told",
    "alert_deaths": "whether a job that dies raises an alert",
    "outbox_relay": "whether this worker sends",
    "outbox_attempts": "tries before a message is dead",
    "outbox_age": "a message that fails at this age is dead",
    "outbox_retention": "how long messages that were sent are kept",
}
SECRETS: Final = {"webhook_secrets", "alert_urls"}
# Where more is hidden than whatever looks like a secret.
SHOWN: Final[dict[str, Callable[[str], str]]] = {
    "webhook_allow": shown_addresses,
    "STEPFAST_LISTEN_URL": masked,
    CALLBACK_URL: masked,
    SECRET_KEY: lambda _: HIDDEN,
}


@dataclass(frozen=True)
class Setting:
    variable: str
    value: str
    source: str
    meaning: str


def surroundings(other_sources: Mapping[str, str]) -> list[Setting]:
    """All of them, in the order in which they are explained; `other_sources` are of names that are not the environment's."""
    found = [_of_tasks(name, names, other_sources) for name, names in variables().items()]
    found += [_of_messages(it.name, _default(it), other_sources) for it in fields(NotificationSettings)]
    for name, (default, meaning) in OTHERS.items():
        text = os.environ.get(name, "").strip()
        value = _shown(text, name) if text else default
        found.append(Setting(name, value, _source(name, text, other_sources), meaning))
    return found


def _of_tasks(field: str, names: tuple[str, ...], other_sources: Mapping[str, str]) -> Setting:
    name = next((it for it in names if os.environ.get(it, "").strip()), names[0])
    text = os.environ.get(name, "").strip()
    described = TaskSettings.model_fields[field]
    if not text:
        default = DEFAULT_URL if name == DATABASE else _written(described.default)
        return Setting(name, default, DEFAULT, described.description or "")
    if field in URLS:
        value = visible(without_secrets(masked(text))) if "://" in text else HIDDEN
    elif field == "transport":
        value = visible(shown_transport(text))
    elif SecretStr.__name__ in str(described.annotation):
        value = f"{HIDDEN} ({len(text):,} characters)"
    else:
        value = _shown(text)
    return Setting(name, value, _source(name, text, other_sources), described.description or "")


def _of_messages(field: str, default: Any, other_sources: Mapping[str, str]) -> Setting:
    name = variable(field)
    text = os.environ.get(name, "").strip()
    value = HIDDEN if text and field in SECRETS else _shown(text, field) if text else _written(default)
    return Setting(name, value, _source(name, text, other_sources), MEANINGS[field])


def _default(field: Any) -> Any:
    return None if field.default is MISSING else field.default


def _source(name: str, text: str, other_sources: Mapping[str, str]) -> str:
    return other_sources.get(name, ENVIRONMENT) if text else DEFAULT


def _written(value: object) -> str:
    if isinstance(value, timedelta):
        return spoken(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    return "" if value is None or value == () else str(value)


def _shown(text: str, name: str = "") -> str:
    return visible(without_secrets(SHOWN.get(name, str)(text)))
