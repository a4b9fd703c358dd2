"""What commands of applications are made of: the options, the output and the refusals of Stepfast's own commands.

An application brings a Typer app or a function under the entry point `stepfast.commands`; this module is for these only,
since it imports Typer.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stepfast.cli.options import (
    By,
    DatabaseUrl,
    Json,
    Limit,
    Reason,
    RequiredReason,
    opened,
    url,
    usage,
)
from stepfast.cli.output import as_text, complain, console, print_facts, print_json, print_table, progress
from stepfast.cli.run_watch import LINE_EVERY, RunBars, StandstillReasons, empty_run_bars, run_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepfast.app import Stepfast
    from stepfast.applications import Component
    from stepfast.reports import Actor

__all__ = [
    "LINE_EVERY",
    "By",
    "DatabaseUrl",
    "Json",
    "Limit",
    "Reason",
    "RequiredReason",
    "RunBars",
    "StandstillReasons",
    "actor",
    "as_text",
    "complain",
    "console",
    "database_named",
    "empty_run_bars",
    "opened_app",
    "print_facts",
    "print_json",
    "print_table",
    "print_tables",
    "progress",
    "run_line",
    "usage",
]


def actor(by: str | None, reason: str | None = None) -> Actor:
    """The actor that the options `--by` and `--reason` name."""
    from stepfast.admin.audit import actor_or_default

    return actor_or_default(by, reason)


@contextmanager
def opened_app(ctx: typer.Context, database_url: str | None) -> Iterator[Stepfast]:
    """An app on the database that the command names, which must be there, with tables this code knows."""
    from stepfast.app import Stepfast

    with opened(ctx, database_url) as database:
        yield Stepfast(database=database)


def database_named(ctx: typer.Context, database_url: str | None) -> bool:
    """Whether a database was named, or the default one is there."""
    from stepfast.config import DEFAULT_URL
    from stepfast.database.drivers import sqlite_path

    return url(ctx, database_url) != DEFAULT_URL or Path(sqlite_path(DEFAULT_URL)).exists()


def print_tables(app: Stepfast, component: Component) -> None:
    """Print the SQL of an application's tables, for somebody else to run."""
    from stepfast.database.migrate import printed

    typer.echo(printed(app.database.dialect, [component]), nl=False)
