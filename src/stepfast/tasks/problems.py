"""What is wrong with the environment that no variable of a task's settings shows alone: all of it, not only the first.

Nobody is reached: whether the database and the broker answer is another question, and the doctor's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from stepfast.admin.doctor.sqlite import NETWORK, disk_of
from stepfast.config import DEFAULT_URL, max_connections
from stepfast.database.drivers import open_database, sqlite_path
from stepfast.errors import ConfigurationError, StepfastError
from stepfast.notifications.settings import NotificationSettings, problems_of_environment
from stepfast.notifications.signature import UNSIGNED
from stepfast.sealing import SECRET_KEY, check, split
from stepfast.telemetry.logs import known_format, known_level
from stepfast.telemetry.masking import without_secrets
from stepfast.transports.opening import open_transport, problem_of_transport, transport_settings

DATABASE: Final = "STEPFAST_DATABASE_URL"
TRANSPORT: Final = "STEPFAST_TRANSPORT"
SECRETS: Final = "STEPFAST_WEBHOOK_SECRETS"
METRICS_PORT: Final = "STEPFAST_METRICS_PORT"
PORTS: Final = range(65_536)
LONGEST_PORT: Final = 5  # digits
WEB: Final = ("https://", "http://")
SHARES: Final = NETWORK - {"9p"}  # some sandboxes have their local disk behind it


def problems_between() -> list[str]:
    """One sentence each, with the name of the variable that it is about."""
    return [
        *_of_database(),
        *_of_connections(),
        *_of_transport(),
        *problems_of_environment(),  # webhooks and alerts, which a worker sends as well
        *_of_logs(),
        *_of_metrics(),
        *_of_key(),
    ]


def missing_secret(settings: NotificationSettings) -> str | None:
    """Why no webhook of a task can leave. No reason to stop: perhaps no task has a `webhook_url`."""
    secrets = settings.secrets
    if secrets.of_host or secrets.unsigned or not settings.outbox_relay:
        return None
    return (
        f"{SECRETS} is not set: whoever gave a task its webhook_url is not told of the end, and where messages are held "
        f"until then (WORKER_ACKNOWLEDGE) no more are taken after a while; make a secret with `stepfast outbox secret`, "
        f"or write {UNSIGNED} to send unsigned"
    )


def transport_chosen(named: str | None, *, storage: bool, service_bus: bool) -> str:
    """The one that was named, else the one whose keys are there, else the application's own database."""
    return named or ("storage-queue://" if storage else "service-bus://" if service_bus else "database://")


def _of_database() -> list[str]:
    named, supabase = _said(DATABASE), _said("SUPABASE_URL")
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
        said = str(error)
        return [
            said if said.startswith("STEPFAST_") else f"{name}: {said}"
        ]  # it may be about another variable
    return _of_disk(name, Path(sqlite_path(url))) if database.dialect.name == "sqlite" else []


def _of_disk(name: str, path: Path) -> list[str]:
    """A container's folder is often a share, and looks like any other."""
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
    """Whether what is there is enough for the transport that was chosen."""
    if _said("TASK_DATA"):
        return []  # it comes from no transport
    keys = transport_settings()
    chosen = transport_chosen(
        _said(TRANSPORT),
        storage=bool(keys.storage_connection_string or keys.storage_account),
        service_bus=bool(keys.service_bus_connection_string or keys.service_bus_namespace),
    )
    if problem_of_transport(chosen) is not None or chosen.partition("://")[0] == "database":
        return []  # said of the variable; the database is the application's own
    try:
        open_transport(chosen, keys)
    except StepfastError as error:
        return [str(error)]
    return []


def _of_logs() -> list[str]:
    found = []
    for name, judge in (("STEPFAST_LOG_LEVEL", known_level), ("STEPFAST_LOG_FORMAT", known_format)):
        try:
            if said := _said(name):
                judge(said)
        except ConfigurationError as error:
            found.append(f"{name}: {error}")
    return found


def _of_metrics() -> list[str]:
    said = _said(METRICS_PORT)
    if not said or (said.isdecimal() and len(said) <= LONGEST_PORT and int(said) in PORTS):
        return []
    return [f"{METRICS_PORT}={without_secrets(said)[:50]!r}: use 1 to 65535, or 0 for any that is free"]


def _of_key() -> list[str]:
    """Not having one is no problem, as long as nothing is sealed."""
    try:
        if keys := split(_said(SECRET_KEY)):
            check(keys)
    except ConfigurationError as error:
        return [str(error)]
    return []


def _said(name: str) -> str:
    return os.environ.get(name, "").strip()
