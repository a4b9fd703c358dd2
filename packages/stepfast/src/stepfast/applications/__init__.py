"""What a package needs to build an application on Stepfast: its tables, its transactions, its processes.

`stepfast` is for programs that enqueue and handle jobs. An application brings more: tables with migrations, commands
(`stepfast.applications.commands`), its own settings and events. Names are loaded when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.admin.audit import record as record_audit
    from stepfast.app import Stepfast
    from stepfast.clock import Duration, counted, duration, instant, micros, moment
    from stepfast.database.connection import Transaction
    from stepfast.database.drivers import masked as masked_url
    from stepfast.database.drivers import sqlite_path
    from stepfast.database.migrate import Component
    from stepfast.encryption import SECRET_KEY, Keyring
    from stepfast.limits.limit_rows import reserve_starts
    from stepfast.runs.partitioning.contract import Frontier, Plan
    from stepfast.runs.partitioning.heatmap import draw
    from stepfast.telemetry import happened
    from stepfast.telemetry.logs import Lines as LogLines
    from stepfast.telemetry.logs import formatter as log_formatter
    from stepfast.telemetry.masking import without_secrets
    from stepfast.worker.process import on_parent_gone, run_worker, worker_command

T = TypeVar("T")

__all__ = [
    "SECRET_KEY",
    "Component",
    "Duration",
    "Frontier",
    "Keyring",
    "LogLines",
    "Plan",
    "counted",
    "draw",
    "duration",
    "happened",
    "instant",
    "log_formatter",
    "masked_url",
    "micros",
    "migrate",
    "moment",
    "on_parent_gone",
    "persist",
    "record_audit",
    "reserve_starts",
    "run_worker",
    "sqlite_path",
    "table_names",
    "without_secrets",
    "worker_command",
]

_LATER = {
    "SECRET_KEY": "stepfast.encryption:SECRET_KEY",
    "Component": "stepfast.database.migrate:Component",
    "Duration": "stepfast.clock:Duration",
    "Frontier": "stepfast.runs.partitioning.contract:Frontier",
    "Keyring": "stepfast.encryption:Keyring",
    "LogLines": "stepfast.telemetry.logs:Lines",
    "Plan": "stepfast.runs.partitioning.contract:Plan",
    "counted": "stepfast.clock:counted",
    "draw": "stepfast.runs.partitioning.heatmap:draw",
    "duration": "stepfast.clock:duration",
    "happened": "stepfast.telemetry:happened",
    "instant": "stepfast.clock:instant",
    "log_formatter": "stepfast.telemetry.logs:formatter",
    "masked_url": "stepfast.database.drivers:masked",
    "micros": "stepfast.clock:micros",
    "moment": "stepfast.clock:moment",
    "on_parent_gone": "stepfast.worker.process:on_parent_gone",
    "record_audit": "stepfast.admin.audit:record",
    "reserve_starts": "stepfast.limits.limit_rows:reserve_starts",
    "run_worker": "stepfast.worker.process:run_worker",
    "sqlite_path": "stepfast.database.drivers:sqlite_path",
    "without_secrets": "stepfast.telemetry.masking:without_secrets",
    "worker_command": "stepfast.worker.process:worker_command",
}


def migrate(app: Stepfast, component: Component, *, views: str | None = None) -> list[str]:
    """Bring the tables of an application up to date; returns the names of the migrations applied.

    `views`: the names of its views from now on: "none", "default", or a prefix. Without it they stay as they are.
    """
    from stepfast.database.migrate import migrate as migrate_component

    return migrate_component(app.database, component, views=views)


def table_names(url: str) -> list[str]:
    """Tables and views of the database at `url`, which need not have Stepfast's."""
    from contextlib import closing

    from stepfast.database.drivers import open_database
    from stepfast.database.tables import table_names as names

    with closing(open_database(url)) as database, database.looking() as tx:
        return names(tx)


def persist(app: Stepfast, work: Callable[[Transaction], T]) -> T:
    """Run `work` in a transaction, and the whole of it again after a deadlock or a lock timeout."""
    from stepfast.database.database import persist as persist_work
    from stepfast.database.dialects import Plans

    return persist_work(app.database, work, Plans.FREE)


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'stepfast.applications' has no attribute {name!r}")
    module, _, attribute = _LATER[name].partition(":")
    found = globals()[name] = getattr(import_module(module), attribute)
    return found
