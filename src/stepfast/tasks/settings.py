"""What `stepfast tasks` is told by its environment, read at once: every problem is named, not only the first.

The same variables as whoever hands in the tasks has: CLIENT_ID, AZURE_STORAGE_CONNECTION_STRING, SUPABASE_URL and so on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from stepfast.config import DEFAULT_URL
from stepfast.errors import ConfigurationError
from stepfast.tasks.parsing import MOST_RETRIES, retries, span
from stepfast.tasks.problems import DATABASE, TRANSPORT, problems_between, transport_chosen
from stepfast.telemetry.masking import without_secrets
from stepfast.transports.opening import SERVICE_BUS, problem_of_transport, shown_transport

try:
    from pydantic import AliasChoices, BeforeValidator, Field, SecretStr, ValidationError
    from pydantic_settings import BaseSettings, SettingsConfigDict
except ImportError as missing:
    raise ConfigurationError("tasks need an extra: pip install 'stepfast[tasks]'") from missing

LONGEST_CLIENT: Final = 50  # '-tasks-poison' is added to it, and a queue's name has 63 characters
_CLIENT: Final = re.compile(r"[a-z0-9](-?[a-z0-9])*")
_ACCOUNT: Final = re.compile(
    r"(^|;)\s*(AccountName|SharedAccessSignature|UseDevelopmentStorage)\s*=", re.IGNORECASE
)
_NAMESPACE: Final = re.compile(r"(^|;)\s*Endpoint\s*=\s*sb://", re.IGNORECASE)


def checked_client(name: str) -> str:
    """The name, if it can be a part of a queue's; raises `ValueError`."""
    if not _CLIENT.fullmatch(name) or len(name) > LONGEST_CLIENT:
        raise ValueError(
            f"{without_secrets(name.partition('?')[0])[:100]!r}: its queue is called '<CLIENT_ID>-tasks', so use "
            f"lower-case letters, digits and single hyphens, at most {LONGEST_CLIENT} characters"
        )
    return name


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


def _secret_with(pattern: re.Pattern[str], what: str) -> Callable[[object], object]:
    def check(value: object) -> object:
        if isinstance(value, str) and value.strip() and not pattern.search(value):
            raise ValueError(
                f"is no connection string of {what}; copy it from the portal, under 'Access keys'"
            )
        return value

    return check


Span = Annotated[timedelta, BeforeValidator(_span)]


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
        SecretStr | None, BeforeValidator(_secret_with(_ACCOUNT, "an Azure Storage account"))
    ] = Field(
        None, validation_alias="AZURE_STORAGE_CONNECTION_STRING", description="Azure Storage Queue and Blob"
    )
    storage_account: str | None = Field(
        None,
        validation_alias="AZURE_STORAGE_ACCOUNT",
        description="its name, where a managed identity is used",
    )
    service_bus_connection_string: Annotated[
        SecretStr | None, BeforeValidator(_secret_with(_NAMESPACE, "a Service Bus namespace"))
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
        """The one that was named, else the one whose keys are there, else the application's own database."""
        return transport_chosen(
            self.transport,
            storage=self.storage_connection_string is not None or self.storage_account is not None,
            service_bus=self.service_bus_connection_string is not None
            or self.service_bus_namespace is not None,
        )

    @property
    def chosen_database(self) -> str | None:
        """None: the default, or what the application's own code says."""
        for it in (self.database_url, self.supabase_url):
            if it is not None and not it.get_secret_value().startswith(("https://", "http://")):
                return it.get_secret_value()
        return None


def task_settings() -> TaskSettings:
    """Read the environment; raises one `ConfigurationError` with all that is wrong in it."""
    problems = problems_between()
    settings: TaskSettings | None = None
    try:
        settings = TaskSettings.model_validate({})
    except ValidationError as error:
        problems += [_spoken(it) for it in error.errors(include_url=False, include_input=False)]
    if problems or settings is None:
        raise ConfigurationError("the settings cannot work:\n  " + "\n  ".join(sorted(set(problems))))
    return settings


def variables() -> dict[str, tuple[str, ...]]:
    """The variables of each field; the first that is set counts."""
    return {name: _aliases(it.validation_alias) for name, it in TaskSettings.model_fields.items()}


def _aliases(alias: object) -> tuple[str, ...]:
    return tuple(str(it) for it in alias.choices) if isinstance(alias, AliasChoices) else (str(alias),)


def read_env_file(path: str) -> set[str]:
    """Let a file of variables count as the environment, where that does not say; returns the names it gave."""
    from dotenv import dotenv_values

    if not Path(path).is_file():
        raise ConfigurationError(f"there is no file {path!r} to read variables from")
    added = {name: value for name, value in dotenv_values(path).items() if value and not os.environ.get(name)}
    os.environ.update(added)
    return set(added)


def _spoken(error: Any) -> str:
    name = str(error["loc"][0]) if error["loc"] else "?"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{name}: {message}"
