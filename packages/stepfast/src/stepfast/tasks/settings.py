"""The environment of `stepfast tasks`, read at once: every problem is named, not only the first.

The variables are those that senders of tasks have too: CLIENT_ID, AZURE_STORAGE_CONNECTION_STRING, SUPABASE_URL and so on.
Nothing is reached: whether the database and the broker answer is a question for `stepfast doctor`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from stepfast.admin.doctor.sqlite import NETWORK, disk_of
from stepfast.clock import spoken
from stepfast.config import DEFAULT_URL, MAX_CONNECTIONS, max_connections
from stepfast.database.drivers import masked, open_database, sqlite_path
from stepfast.encryption import SECRET_KEY, check, split
from stepfast.errors import ConfigurationError, StepfastError, install_hint
from stepfast.jobs.callbacks import CALLBACK_URL
from stepfast.notifications.addresses import shown as shown_addresses
from stepfast.notifications.settings import NotificationSettings, problems_of_environment, variable
from stepfast.tasks.handlers import MOST_RETRIES, retries, span
from stepfast.telemetry.logs import chosen_format, known_level
from stepfast.telemetry.masking import visible, without_secrets
from stepfast.transports.open import (
    SERVICE_BUS,
    open_transport,
    problem_of_transport,
    shown_transport,
    transport_settings,
)

try:
    from pydantic import AliasChoices, BeforeValidator, Field, SecretStr, ValidationError
    from pydantic_settings import BaseSettings, SettingsConfigDict
except ImportError as missing:
    raise ConfigurationError(f"tasks need an extra: {install_hint('tasks')}") from missing

DATABASE: Final = "STEPFAST_DATABASE_URL"
TRANSPORT: Final = "STEPFAST_TRANSPORT"
METRICS_PORT: Final = "STEPFAST_METRICS_PORT"
PORTS: Final = range(65_536)
LONGEST_PORT: Final = 5  # digits
WEB: Final = ("https://", "http://")
SHARES: Final = NETWORK - {"9p"}  # some sandboxes have their local disk behind it
LONGEST_CLIENT: Final = 50  # '-tasks-poison' is added to it, and a queue's name has 63 characters
_CLIENT: Final = re.compile(r"[a-z0-9](-?[a-z0-9])*")
_ACCOUNT: Final = re.compile(
    r"(^|;)\s*(AccountName|SharedAccessSignature|UseDevelopmentStorage)\s*=", re.IGNORECASE
)
_NAMESPACE: Final = re.compile(r"(^|;)\s*Endpoint\s*=\s*sb://", re.IGNORECASE)


def _span(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return span(value, "duration")
    except ConfigurationError as error:
        raise ValueError(str(error).removeprefix("duration: ")) from error


def _retries(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return retries(value, "retries")
    except ConfigurationError as error:
        raise ValueError(str(error).removeprefix("retries: ")) from error


def _client(value: object) -> object:
    return checked_client(value) if isinstance(value, str) else value


def _transport(value: object) -> object:
    if isinstance(value, str) and (problem := problem_of_transport(value.strip())) is not None:
        raise ValueError(f"{shown_transport(value)!r}: {problem}")
    return value


def _connection_string(pattern: re.Pattern[str], what: str) -> Callable[[object], object]:
    def check(value: object) -> object:
        if isinstance(value, str) and value.strip() and not pattern.search(value):
            raise ValueError(
                f"is no connection string of {what}; copy it from the portal, under 'Access keys'"
            )
        return value

    return check


Span = Annotated[timedelta, BeforeValidator(_span)]


def checked_client(name: str) -> str:
    """The name of a client, if it can be a part of a queue's name; raises `ValueError`."""
    if not _CLIENT.fullmatch(name) or len(name) > LONGEST_CLIENT:
        raise ValueError(
            f"{without_secrets(name.partition('?')[0])[:100]!r}: its queue is called '<CLIENT_ID>-tasks', so use "
            f"lower-case letters, digits and single hyphens, at most {LONGEST_CLIENT} characters"
        )
    return name


class TaskSettings(BaseSettings):
    """One field per variable; the description is what `stepfast config` and the documentation say."""

    model_config = SettingsConfigDict(
        extra="ignore", env_ignore_empty=True, frozen=True, hide_input_in_errors=True
    )

    client_id: Annotated[str, BeforeValidator(_client)] = Field(
        "default", validation_alias="CLIENT_ID", description="whose tasks: the queue is '<CLIENT_ID>-tasks'"
    )
    task_data: SecretStr | None = Field(
        None, validation_alias="TASK_DATA", description="one task as JSON: do it, exit, never poll"
    )
    task_timeout: Span | None = Field(
        None,
        validation_alias="WORKER_TASK_TIMEOUT",
        description="single task: limit for all tries together; polling: for each try",
    )
    max_retries: Annotated[int, BeforeValidator(_retries)] | None = Field(
        None,
        ge=0,
        le=MOST_RETRIES,
        validation_alias="WORKER_MAX_RETRIES",
        description="tries after the first, where the handler's code does not say",
    )
    concurrency: int = Field(
        10, ge=1, le=1000, validation_alias="WORKER_CONCURRENCY", description="tasks done side by side"
    )
    queues: str = Field(
        "auto",
        validation_alias="WORKER_QUEUES",
        description="polling: queues of jobs worked on beside tasks; auto: those of the app's own jobs; none: tasks only",
    )
    grace: Span = Field(
        timedelta(seconds=30),
        validation_alias="WORKER_GRACE",
        description="how long tasks may finish after SIGTERM",
    )
    poll: Span = Field(
        timedelta(seconds=5),
        validation_alias="WORKER_POLL_INTERVAL",
        description="the longest pause between looks at an empty queue",
    )
    hold: Span = Field(
        timedelta(minutes=1),
        validation_alias="WORKER_VISIBILITY_TIMEOUT",
        description="how long a message is kept from others; renewed as long as it is needed",
    )
    acknowledge: Literal["auto", "stored", "ended"] = Field(
        "auto",
        validation_alias="WORKER_ACKNOWLEDGE",
        description="when a message is removed: its job is stored, or has ended; auto: ended on SQLite",
    )
    webhook_budget: Span = Field(
        timedelta(minutes=2),
        validation_alias="WORKER_WEBHOOK_BUDGET",
        description="single task: how long to try to tell of its end",
    )
    transport: Annotated[str, BeforeValidator(_transport)] | None = Field(
        None,
        validation_alias=TRANSPORT,
        description="where tasks come from: storage-queue://, service-bus://, database:// or memory://name",
    )
    database_url: SecretStr | None = Field(
        None, validation_alias=DATABASE, description=f"where the jobs are; without it {DEFAULT_URL}"
    )
    supabase_url: SecretStr | None = Field(
        None,
        validation_alias="SUPABASE_URL",
        description=f"used where {DATABASE} is not set, if it is a postgresql:// URL",
    )
    storage_connection_string: Annotated[
        SecretStr | None, BeforeValidator(_connection_string(_ACCOUNT, "an Azure Storage account"))
    ] = Field(
        None, validation_alias="AZURE_STORAGE_CONNECTION_STRING", description="Azure Storage Queue and Blob"
    )
    storage_account: str | None = Field(
        None,
        validation_alias="AZURE_STORAGE_ACCOUNT",
        description="its name, where a managed identity is used",
    )
    service_bus_connection_string: Annotated[
        SecretStr | None, BeforeValidator(_connection_string(_NAMESPACE, "a Service Bus namespace"))
    ] = Field(None, validation_alias=AliasChoices(*SERVICE_BUS), description="Azure Service Bus")
    service_bus_namespace: str | None = Field(
        None,
        validation_alias="AZURE_SERVICE_BUS_NAMESPACE",
        description="its name, where a managed identity is used",
    )
    azure_client_id: str | None = Field(
        None, validation_alias="AZURE_CLIENT_ID", description="which managed identity, if there are several"
    )

    @property
    def chosen_transport(self) -> str:
        """The transport that tasks come from, as a URL."""
        return transport_chosen(
            self.transport,
            storage=self.storage_connection_string is not None or self.storage_account is not None,
            service_bus=self.service_bus_connection_string is not None
            or self.service_bus_namespace is not None,
        )

    @property
    def chosen_database(self) -> str | None:
        """None: the default, or what the application's own code says."""
        for url in (self.database_url, self.supabase_url):
            if url is not None and not url.get_secret_value().startswith(WEB):
                return url.get_secret_value()
        return None


def task_settings() -> TaskSettings:
    """Read the environment; raises one `ConfigurationError` with all that is wrong in it."""
    problems = problems_of_variables()
    settings: TaskSettings | None = None
    try:
        settings = TaskSettings.model_validate({})
    except ValidationError as error:
        problems += [_spoken(it) for it in error.errors(include_url=False, include_input=False)]
    if problems or settings is None:
        raise ConfigurationError("the settings cannot work:\n  " + "\n  ".join(sorted(set(problems))))
    return settings


def variables() -> dict[str, tuple[str, ...]]:
    """The variables of each field, by field; the first that is set counts."""
    return {name: _aliases(it.validation_alias) for name, it in TaskSettings.model_fields.items()}


def _aliases(alias: object) -> tuple[str, ...]:
    return tuple(str(it) for it in alias.choices) if isinstance(alias, AliasChoices) else (str(alias),)


def read_env_file(path: str) -> set[str]:
    """Set variables from a file where the environment has none; returns their names."""
    from dotenv import dotenv_values

    try:
        if not Path(path).is_file():
            raise ConfigurationError(f"there is no file {path!r} to read variables from")
        found = dotenv_values(path)
    except (OSError, ValueError) as error:  # a name that no file can have, no right to read it, no text
        why = getattr(error, "strerror", None) or error  # without the name, which may be long
        raise ConfigurationError(f"the file {path!r:.200} cannot be read: {why}") from error
    added = {name: value for name, value in found.items() if value and not os.environ.get(name)}
    os.environ.update(added)
    return set(added)


def _spoken(error: Any) -> str:
    name = str(error["loc"][0]) if error["loc"] else "?"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{name}: {message}"


def problems_of_variables() -> list[str]:
    """Problems that no field of `TaskSettings` shows alone: one sentence each, with the name of the variable."""
    return [
        *_of_database(),
        *_of_connections(),
        *_of_transport(),
        *problems_of_environment(),  # of webhooks and alerts, which a worker sends as well
        *_of_logs(),
        *_of_metrics(),
        *_of_key(),
    ]


def transport_chosen(named: str | None, *, storage: bool, service_bus: bool) -> str:
    """The transport that was named, else the one whose keys are there, else the application's own database."""
    return named or ("storage-queue://" if storage else "service-bus://" if service_bus else "database://")


def _of_database() -> list[str]:
    named, supabase = _value_of(DATABASE), _value_of("SUPABASE_URL")
    if named.startswith(WEB):
        return [
            f"{DATABASE} is the address of a web API; write the database's connection string, postgresql://…"
        ]
    if named:
        return _of_url(DATABASE, named)
    if supabase.startswith(WEB):
        problem = (
            f"SUPABASE_URL is the address of Supabase's web API, which has no transactions; set {DATABASE} to the "
            "project's connection string (postgresql://…, under 'Connect'), or to sqlite:///work.db to do without"
        )
        return [problem]
    if supabase and not supabase.startswith(("postgres://", "postgresql://")):
        return [f"SUPABASE_URL is no URL of Supabase; set {DATABASE} instead"]
    return _of_url("SUPABASE_URL", supabase) if supabase else _of_url(DATABASE, DEFAULT_URL)


def _of_url(name: str, url: str) -> list[str]:
    try:
        database = open_database(url)
    except ConfigurationError as error:
        problem = str(error)  # it may be about another variable
        return [problem if problem.startswith("STEPFAST_") else f"{name}: {problem}"]
    return _of_disk(name, Path(sqlite_path(url))) if database.dialect.name == "sqlite" else []


def _of_disk(name: str, path: Path) -> list[str]:
    """Problems of a SQLite file on a network share; a container's folder often is one, and looks like any other."""
    if (kind := disk_of(path)) not in SHARES:
        return []
    problem = (
        f"{name}: the SQLite file {str(path)!r} is on a network file system ({kind}), where its log (WAL) and its locks "
        "do not work; name a file on a local disk, such as sqlite:////tmp/work.db, or a database server"
    )
    return [problem]


def _of_connections() -> list[str]:
    try:
        max_connections()
    except ConfigurationError as error:
        return [str(error)]
    return []


def _of_transport() -> list[str]:
    """Whether the keys that are set are enough for the transport that was chosen."""
    if _value_of("TASK_DATA"):
        return []  # the task comes from no transport
    keys = transport_settings()
    chosen = transport_chosen(
        _value_of(TRANSPORT),
        storage=bool(keys.storage_connection_string or keys.storage_account),
        service_bus=bool(keys.service_bus_connection_string or keys.service_bus_namespace),
    )
    if problem_of_transport(chosen) is not None or chosen.partition("://")[0] == "database":
        return []  # a field's problem; or the database, which is the application's own
    try:
        open_transport(chosen, keys)
    except StepfastError as error:
        return [str(error)]
    return []


def _of_logs() -> list[str]:
    found = []
    for name, judge in (("STEPFAST_LOG_LEVEL", known_level), ("STEPFAST_LOG_FORMAT", chosen_format)):
        try:
            if value := _value_of(name):
                judge(value)
        except ConfigurationError as error:
            found.append(f"{name}: {error}")
    return found


def _of_metrics() -> list[str]:
    port = _value_of(METRICS_PORT)
    if not port or (port.isdecimal() and len(port) <= LONGEST_PORT and int(port) in PORTS):
        return []
    return [f"{METRICS_PORT}={without_secrets(port)[:50]!r}: use 1 to 65535, or 0 for any that is free"]


def _of_key() -> list[str]:
    """Problems of the encryption keys. Having none is no problem, as long as nothing is encrypted."""
    try:
        if keys := split(_value_of(SECRET_KEY)):
            check(keys)
    except ConfigurationError as error:
        return [str(error)]
    return []


def _value_of(name: str) -> str:
    return os.environ.get(name, "").strip()


# `stepfast config`: each variable, its value fit to be shown, and where it comes from.

DEFAULT: Final = "default"
ENVIRONMENT: Final = "environment"
HIDDEN: Final = "***"
URLS: Final = {"database_url", "supabase_url"}
OTHERS: Final = {
    "STEPFAST_LOG_LEVEL": ("info", "how much is logged: debug, info, warning or error"),
    "STEPFAST_LOG_FORMAT": (
        "auto",
        "terminal for people, console or json for machines; auto looks at stderr",
    ),
    "STEPFAST_METRICS_PORT": ("", "where a worker serves /metrics and /healthz"),
    "STEPFAST_METRICS_HOST": ("127.0.0.1", "on which address"),
    "STEPFAST_OPERATOR": ("", "who acts, in the audit; without it user@host"),
    "STEPFAST_GUARDIAN": ("", "off: workers have no guardian"),
    "STEPFAST_APP": ("", "MODULE:APP of the commands that need the code of a feed"),
    "STEPFAST_MAX_CONNECTIONS": (
        str(MAX_CONNECTIONS),
        "connections to a database server that a process may use",
    ),
    "STEPFAST_AZURE_HOSTS": ("", "hosts outside of Azure that may get the identity's token"),
    "STEPFAST_RECEIVED_RETENTION": ("30d", "how long a receiver keeps webhooks about tasks"),
    "STEPFAST_RECEIVED_SIZE": ("1GB", "how much a receiver keeps of them"),
    "STEPFAST_LISTEN_URL": ("", "where workers listen, if a pooler stands before the database"),
    CALLBACK_URL: ("", "where callbacks are received, as the world sees it"),
    SECRET_KEY: ("", "what is encrypted and signed with, the newest key first"),
}
MEANINGS: Final = {
    "webhook_secrets": "what webhooks are signed with",
    "webhook_allow": "hosts and networks inside your walls that webhooks may reach",
    "webhook_timeout": "for one try to deliver a webhook",
    "export_folders": "where exports of feeds are written that this worker does not know",
    "alert_urls": "where alerts go, as URLs of Apprise",
    "alert_cooldown": "how long a cause stays quiet after it was told",
    "alert_deaths": "whether a job that dies raises an alert",
    "outbox_relay": "whether this worker sends",
    "outbox_attempts": "tries before a message is dead",
    "outbox_age": "a message that fails at this age is dead",
    "outbox_retention": "how long messages that were sent are kept",
}
HIDDEN_FIELDS: Final = {"webhook_secrets", "alert_urls"}
# Variables of which more is hidden than what looks like a secret.
SHOWN: Final[dict[str, Callable[[str], str]]] = {
    "webhook_allow": shown_addresses,
    "STEPFAST_LISTEN_URL": masked,
    CALLBACK_URL: masked,
    SECRET_KEY: lambda _: HIDDEN,
}


@dataclass(frozen=True)
class Setting:
    """A variable as `stepfast config` shows it."""

    variable: str
    value: str
    source: str
    meaning: str


def explain(other_sources: Mapping[str, str]) -> list[Setting]:
    """All settings, in the order of the documentation; `other_sources` says where a variable comes from, if not the environment."""
    found = [_of_tasks(name, names, other_sources) for name, names in variables().items()]
    found += [
        _of_messages(field.name, _default(field), other_sources) for field in fields(NotificationSettings)
    ]
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
    shown = HIDDEN if field in HIDDEN_FIELDS else _shown(text, field)
    value = shown if text else _written(default)
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
